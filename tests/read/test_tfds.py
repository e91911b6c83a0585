"""features.json specifies the fields of an episode, and each episode is validated against it."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from raw.images import encoded, scene
from raw.tfrecords import example

from datasets_rl.errors import ConversionError
from datasets_rl.read import images
from datasets_rl.read.ragged import Ragged
from datasets_rl.read.tfds import Schema

CLASS = "tensorflow_datasets.core.features."
T = 5


def tensor(dtype, *shape, encoding="none"):
    dimensions = {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
    return {
        "pythonClassName": f"{CLASS}tensor_feature.Tensor",
        "tensor": {"shape": dimensions, "dtype": dtype, "encoding": encoding},
    }


def image(*shape, dtype="uint8", form="png"):
    shape = {"dimensions": list(map(str, shape))} if shape else {}
    return {
        "pythonClassName": f"{CLASS}image_feature.Image",
        "image": {"shape": shape, "dtype": dtype, "encodingFormat": form},
    }


def features(**inner):
    return {"pythonClassName": f"{CLASS}features_dict.FeaturesDict", "featuresDict": {"features": inner}}


def sequence(feature, length=-1):
    return {
        "pythonClassName": f"{CLASS}dataset_feature.Dataset",
        "sequence": {"feature": feature, "length": str(length)},
    }


TEXT = {"pythonClassName": f"{CLASS}text_feature.Text", "text": {}, "description": "what is to be done"}
STEPS = features(
    steps=sequence(
        features(
            observation=features(image=image(16, 24, 3), state=tensor("float32", 7), step=tensor("uint8", 2)),
            action=tensor("float64", 3),
            reward=tensor("float32"),
            is_first=tensor("bool"),
            language_instruction=TEXT,
            embedding=tensor("float64", 2, encoding="bytes"),
            mask=tensor("bool", 2, 2, encoding="zlib"),
            key=tensor("string"),
        )
    ),
    episode_metadata=features(file_path=TEXT, episode_id=tensor("int64"), label={"classLabel": {"numClasses": "4"}}),
)
PICTURES = [encoded(scene(16, 24, seed=step)) for step in range(T)]
STATE = np.arange(T * 7, dtype=np.float32).reshape(T, 7)
EMBEDDING = np.arange(T * 2.0).reshape(T, 2) / 3
MASK = np.arange(T * 4).reshape(T, 2, 2) % 3 == 0
EPISODE = {
    "steps/observation/image": PICTURES,
    "steps/observation/state": STATE.ravel().tolist(),
    "steps/observation/step": range(250 - 2 * T, 250),
    "steps/action": [0.5] * (3 * T),
    "steps/reward": [1.5] * T,
    "steps/is_first": [1] + [0] * (T - 1),
    "steps/language_instruction": ["pick ü up".encode()] * T,
    "steps/embedding": [row.tobytes() for row in EMBEDDING],
    "steps/mask": [zlib.compress(row.tobytes()) for row in MASK],
    "steps/key": [b"\xff\x00"] * T,
    "episode_metadata/file_path": [b"/a/b"],
    "episode_metadata/episode_id": [-7],
    "episode_metadata/label": [3],
}


def read(schema, features, **options):
    return Schema(schema).read(memoryview(example(features)), "record 3", **options)


def faults(schema, features):
    with pytest.raises(ConversionError) as caught:
        read(schema, features)
    assert caught.value.name == "record 3"
    return caught.value.problems


def test_an_episode_reads_with_the_shapes_and_types_of_the_schema():
    got = read(json.dumps(STEPS), EPISODE)

    np.testing.assert_array_equal(got["steps/observation/state"], STATE)
    np.testing.assert_array_equal(got["steps/observation/step"].ravel(), range(250 - 2 * T, 250))
    np.testing.assert_array_equal(got["steps/embedding"], EMBEDDING)
    np.testing.assert_array_equal(got["steps/mask"], MASK)
    assert {name: (one.dtype.name, one.shape) for name, one in got.items() if isinstance(one, np.ndarray)} == {
        "steps/observation/state": ("float32", (T, 7)),
        "steps/observation/step": ("uint8", (T, 2)),
        "steps/action": ("float64", (T, 3)),
        "steps/reward": ("float32", (T,)),
        "steps/is_first": ("bool", (T,)),
        "steps/embedding": ("float64", (T, 2)),
        "steps/mask": ("bool", (T, 2, 2)),
    }
    assert got["steps/language_instruction"] == ["pick ü up"] * T
    assert list(map(bytes, got["steps/key"])) == [b"\xff\x00"] * T
    assert got["episode_metadata/file_path"] == ["/a/b"]
    assert (got["episode_metadata/episode_id"], got["episode_metadata/label"]) == (-7, 3)


def test_images_are_encoded_and_can_be_decoded():
    files = read(STEPS, EPISODE)["steps/observation/image"]
    out = np.empty((T, 16, 24, 3), np.uint8)
    images.decode(files, out)

    np.testing.assert_array_equal(out, [scene(16, 24, seed=step) for step in range(T)])


def test_only_selected_fields_are_read():
    broken = EPISODE | {"steps/mask": [b"nonsense"] * T}

    assert list(read(STEPS, broken, names={"steps/reward"})) == ["steps/reward"]


def test_floats_are_views_of_the_record():
    payload = np.frombuffer(example(EPISODE), np.uint8)
    got = Schema(STEPS).read(payload.data, "x")

    assert np.shares_memory(got["steps/observation/state"], payload)


def test_the_leaves_are_known_without_a_record():
    leaves = Schema(STEPS).leaves

    assert (leaves["steps/observation/image"].kind, leaves["steps/observation/image"].shape) == ("image", (16, 24, 3))
    assert leaves["steps/observation/image"].lists == (None,)
    assert leaves["episode_metadata/episode_id"].lists == ()


def test_lists_within_steps_are_ragged():
    schema = features(
        steps=sequence(
            features(
                x=sequence(tensor("float32", 2)),
                frames={"video": image(None, 4, 4, 3)["image"] | {"shape": {"dimensions": ["-1", "4", "4", "3"]}}},
                reward=tensor("float32"),
            )
        )
    )
    got = read(
        schema,
        {
            "steps/x/ragged_flat_values": [float(one) for one in range(8)],
            "steps/x/ragged_row_lengths_0": [3, 0, 1],
            "steps/frames/ragged_flat_values": [b"a", b"b"],
            "steps/frames/ragged_row_lengths_0": [1, 1, 0],
            "steps/reward": [0.5] * 3,
        },
    )

    assert isinstance(got["steps/x"], Ragged)
    assert got["steps/x"].lengths.tolist() == [3, 0, 1]
    np.testing.assert_array_equal(got["steps/x"].values, np.arange(8.0).reshape(4, 2))
    assert list(map(bytes, got["steps/frames"].values)) == [b"a", b"b"]


def test_lists_in_lists_in_steps_keep_both_lengths():
    schema = features(steps=sequence(sequence(sequence(tensor("int64")))))
    got = read(
        schema,
        {
            "steps/ragged_flat_values": [1, 2, 3],
            "steps/ragged_row_lengths_0": [2, 1],
            "steps/ragged_row_lengths_1": [1, 0, 2],
        },
    )

    assert got["steps"].lengths.tolist() == [2, 1]
    assert got["steps"].values.lengths.tolist() == [1, 0, 2]
    assert got["steps"].values.values.tolist() == [1, 2, 3]


def test_values_with_stored_shapes_have_them():
    schema = features(steps=sequence(features(depth=tensor("uint16", None, None, encoding="zlib"))))
    values = [np.arange(6, dtype=np.uint16).reshape(2, 3), np.arange(2, dtype=np.uint16).reshape(1, 2)]
    got = read(
        schema,
        {"steps/depth/value": [zlib.compress(one.tobytes()) for one in values], "steps/depth/shape": [2, 3, 1, 2]},
    )

    for one, wanted in zip(got["steps/depth"], values, strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_inconsistent_shapes_are_refused():
    schema = features(steps=sequence(features(depth=tensor("uint16", None, 2, None, encoding="bytes"))))
    value = {"steps/depth/value": [bytes(24)]}

    assert "24 bytes, expected 48" in faults(schema, value | {"steps/depth/shape": [2, 2, 6]})[0]
    assert "expected [None, 2, None]" in faults(schema, value | {"steps/depth/shape": [2, 3, 2]})[0]
    assert "expected [None, 2, None]" in faults(schema, value | {"steps/depth/shape": [-2, 2, -3]})[0]
    assert "1 values and 2 shapes" in faults(schema, value | {"steps/depth/shape": [2, 2, 3, 2, 2, 3]})[0]
    assert "expected a multiple of 3" in faults(schema, value | {"steps/depth/shape": [2, 2]})[0]


def test_a_free_axis_outside_of_steps_is_found():
    schema = features(a=tensor("float32", None, 2), b=tensor("int32", None, encoding="bytes"))
    got = read(schema, {"a": [1.0] * 6, "b": [np.arange(4, dtype=np.int32).tobytes()]})

    assert got["a"].shape == (3, 2)
    np.testing.assert_array_equal(got["b"], range(4))


def test_unsigned_64_bit_integers_are_stored_as_signed():
    assert read(features(seed=tensor("uint64")), {"seed": [-1]})["seed"] == 2**64 - 1


def test_unsupported_features_are_recorded():
    boxes = {"boundingBox": {"shape": {"dimensions": ["4"]}, "dtype": "float32"}}
    schema = Schema(features(boxes=boxes, sound={"audio": {}}, x=tensor("int64")))

    assert list(schema.leaves) == ["x"]
    assert schema.passed_over == {"boxes": "boxes in an image", "sound": "audio"}


def test_all_errors_of_an_episode_are_reported_at_once():
    broken = EPISODE | {
        "steps/observation/state": [0.5] * 13,
        "steps/observation/step": [256] * (2 * T),
        "steps/action": [1] * (3 * T),
        "steps/is_first": [2] * T,
        "steps/language_instruction": [b"\xff"] * T,
        "steps/embedding": [b"short"] * T,
        "steps/mask": [zlib.compress(bytes(4_000_000))] * T,
        "episode_metadata/file_path": [b"a", b"b"],
    }
    del broken["episode_metadata/episode_id"]

    assert faults(STEPS, broken) == (
        "steps/observation/state has 13 numbers, expected a multiple of 7",
        "steps/observation/step has the value 256, expected uint8",
        "steps/action has integers, expected floats",
        "steps/is_first has the value 2, expected bool",
        "steps/language_instruction has text that is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "steps/embedding has a value of 5 bytes, expected 16",
        "steps/mask has a value of 5 bytes, expected 4",
        "episode_metadata/file_path has 2 values, expected 1",
        "episode_metadata/episode_id is missing from the record",
    )


def test_steps_of_different_numbers_are_refused():
    (problem,) = faults(STEPS, EPISODE | {"steps/reward": [0.5] * 4})

    assert "steps/reward 4" in problem
    assert "steps/action 5" in problem


@pytest.mark.parametrize(
    ("lengths", "says"), [([3, 2], "add up to 5"), ([-1, 5], "add up"), ([2**62, 2**62, 2**62, 2**62, 4], "add up")]
)
def test_lengths_that_do_not_add_up_are_refused(lengths, says):
    schema = features(steps=sequence(sequence(tensor("int64"))))

    assert says in faults(schema, {"steps/ragged_flat_values": [1, 2, 3, 4], "steps/ragged_row_lengths_0": lengths})[0]


def test_lists_of_a_fixed_length_must_have_it():
    schema = features(x=sequence(tensor("int64"), 3), steps=sequence(sequence(tensor("int64"), 2)))
    record = {"x": [1, 2], "steps/ragged_flat_values": [1, 2, 3], "steps/ragged_row_lengths_0": [2, 1]}

    assert faults(schema, record) == ("x has 2 values, expected 3", "steps has lists of 1 to 2 values, expected 2")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("nonsense", "not valid JSON"),
        ("[]", "not a feature"),
        ("[" * 100_000, "not valid JSON"),
        ({}, "described by nothing"),
        (features(), "names no features"),
        (features(x=tensor("bfloat16")), "x has dtype bfloat16"),
        (features(x=tensor("int64", encoding="lz4")), "x is encoded as lz4"),
        (features(x=image(form="webp")), "in webp"),
        (features(x={"sequence": {}}), "x is not a feature"),
        (features(x={"pythonClassName": "a.B", "mystery": 1}), "x is described by mystery"),
    ],
)
def test_an_invalid_schema_is_refused(document, says):
    with pytest.raises(ConversionError, match=says):
        Schema(document)


def test_all_errors_of_a_schema_are_reported_at_once():
    with pytest.raises(ConversionError) as caught:
        Schema(features(a=tensor("bfloat16"), b=tensor("int64"), c=tensor("qint8")))
    assert len(caught.value.problems) == 2
