"""RLDS: TFRecords parsed by the protobuf runtime, and read back by the source `openx`."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from exports import export_stored, texts_or_values, write_images, write_robot
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import comparison
from raw.tfrecords import masked, messages
from stored_data import columns, trajectory, write_dataset

from datasets_rl import Selection, downloading
from datasets_rl.errors import LossyExportError
from datasets_rl.exporting import Content, run_export
from datasets_rl.exporting.formats.rlds import varints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.settings import Settings

EPISODES = [trajectory(4, terminated=True), trajectory(3, seed=2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("plain"), EPISODES)


def records(folder):
    """Parse the records with the protobuf runtime, and check their framing."""
    for path in sorted(folder.glob("1.0.0/*.tfrecord-*")):
        data, start = path.read_bytes(), 0
        while start < len(data):
            size, check = struct.unpack_from("<QI", data, start)
            assert check == masked(data[start : start + 8])
            payload = data[start + 12 : start + 12 + size]
            assert struct.unpack_from("<I", data, start + 12 + size) == (masked(payload),)
            features = messages()["t.Example"].FromString(payload).features.feature
            yield {name: getattr(one, one.WhichOneof("kind")).value for name, one in features.items()}
            start += 16 + size


def test_protobuf_parses_every_value_and_the_final_observations(plain, tmp_path):
    folder = run_export(Content(plain), "rlds", tmp_path / "out", show=False)

    for record, one in zip(records(folder), EPISODES, strict=True):
        steps = len(one)
        assert np.array_equal(np.float32(record["steps/observation"]).reshape(-1, 3), one.states["observation",])
        assert np.array_equal(np.float32(record["steps/action"]).reshape(-1, 2)[:-1], one.steps["action",])
        assert np.array_equal(np.float32(record["steps/reward"])[:-1], one.steps["next", "reward"][:, 0])
        assert list(record["steps/is_first"]) == [1] + [0] * steps
        assert list(record["steps/is_last"]) == [0] * steps + [1]
        assert any(record["steps/is_terminal"]) == one.steps["next", "terminated"].any()
        # The last transition leads to a terminal state: a target must not use the value of that state.
        end = float(not one.steps["next", "terminated"].any())
        assert list(record["steps/discount"]) == [1.0] * (steps - 1) + [end, end]


def test_the_files_of_tensorflow_datasets_name_shapes_shards_and_episodes(plain, tmp_path):
    folder = export_stored(plain, "rlds", tmp_path / "out") / "1.0.0"

    features = json.loads((folder / "features.json").read_text())["featuresDict"]["features"]
    steps = features["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert steps["observation"]["tensor"] == {"shape": {"dimensions": ["3"]}, "dtype": "float32", "encoding": "none"}
    assert set(steps) == {"observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"}
    info = json.loads((folder / "dataset_info.json").read_text())
    (split,) = info["splits"]
    assert split["shardLengths"] == ["2"]
    assert [path.name for path in folder.glob("*tfrecord*")] == [f"{info['name']}-train.tfrecord-00000-of-00001"]
    assert int(split["numBytes"]) == sum(path.stat().st_size for path in folder.glob("*tfrecord*"))


@pytest.mark.parametrize("known", [True, False])
def test_the_source_reads_nested_keys_texts_images_and_doubles_back(known, tmp_path):
    stored = write_robot(tmp_path / "stored", known=known)
    folder = export_stored(stored, "rlds", tmp_path / "out")
    home = Settings(home=tmp_path / "home", progress=False, jobs=1)

    made = downloading.download(
        "openx/toy", from_local=folder, settings=home, selection=Selection(options={"images": "encoded"})
    )

    assert comparison.deep_problems(made, settings=home) == []
    back = StoredDataset(made)
    for key in (
        ("observation", "joints"),
        ("observation", "camera"),
        ("observation", "gripper"),
        ("action",),
        ("task",),
    ):
        assert np.array_equal(texts_or_values(back, key), texts_or_values(stored, key)), key
    following = back.column(("next", "observation", "joints"))
    assert np.array_equal(following, stored.column(("next", "observation", "joints")))
    assert back.episodes["episode_metadata.difficulty"].tolist() == stored.episodes["difficulty"].tolist()
    images = [bytes(one) for one in stored.items(("observation", "camera")).read_stored(0, 12).images]
    assert [bytes(one) for one in back.items(("observation", "camera")).read_stored(0, 12).images] == images


def test_pixels_become_png_images_of_the_observation(tmp_path):
    stored = write_images(tmp_path / "stored")
    folder = export_stored(stored, "rlds", tmp_path / "out", lossy=False)

    made = downloading.download(
        "openx/toy", from_local=folder, settings=Settings(home=tmp_path / "home", progress=False)
    )

    back = StoredDataset(made)
    assert np.array_equal(back.column(("observation", "pixels")), stored.column(("pixels",)))
    assert np.array_equal(back.column(("next", "observation", "pixels")), stored.column(("next", "pixels")))
    assert np.array_equal(back.column(("action",)), stored.column(("action",)))


def test_unknown_final_observations_need_consent(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3, known=False)])

    with pytest.raises(LossyExportError, match="unknown: it becomes zeros"):
        run_export(Content(stored), "rlds", tmp_path / "out", show=False)


def test_several_shards_have_every_episode_once(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_rl.exporting.formats.rlds._SHARD_BYTES", 300)
    stored = write_dataset(tmp_path / "stored", [trajectory(3, seed=seed) for seed in range(9)])

    folder = export_stored(stored, "rlds", tmp_path / "out")

    assert len(list(folder.glob("1.0.0/*tfrecord*"))) > 2
    made = downloading.download(
        "openx/toy", from_local=folder, settings=Settings(home=tmp_path / "home", progress=False)
    )
    observations = StoredDataset(made).column(("observation",))
    assert observations.tobytes() == np.ascontiguousarray(stored.column(("observation",))).tobytes()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), min_size=1))
def test_varints_are_those_of_protobuf(values):
    message = messages()["t.Int64List"](value=values).SerializeToString()

    body = varints(np.array(values, np.int64))
    assert message.endswith(body)
    assert messages()["t.Int64List"].FromString(message[: len(message) - len(body)] + body).value == values


def test_equal_exports_are_equal_files(plain, tmp_path):
    for to in ("rlds", "npz", "hdf5"):
        first, second = (export_stored(plain, to, tmp_path / f"{to}{number}") for number in range(2))
        for path in (one for one in first.rglob("*") if one.is_file()):
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes(), path.name


def test_the_marks_of_first_steps_come_back_once_and_infos_are_named_as_a_loss(tmp_path):
    goal, first = (
        Column(("info", "goal"), np.dtype(np.float32), (), shared=True),
        Column(("is_init",), np.dtype(bool), ()),
    )
    one = trajectory(3)
    stored = write_dataset(
        tmp_path / "stored",
        [
            type(one)(
                {**one.steps, first.key: np.array([True, False, False])},
                {**one.states, goal.key: np.arange(4, dtype=np.float32)},
            )
        ],
        columns(goal, first),
    )

    with pytest.raises(LossyExportError, match=r"info\.goal: readers of RLDS take infos as values of steps"):
        run_export(Content(stored), "rlds", tmp_path / "out", show=False)
    made = downloading.download(
        "openx/toy",
        from_local=export_stored(stored, "rlds", tmp_path / "out"),
        settings=Settings(home=tmp_path / "home", progress=False),
    )

    back = StoredDataset(made)
    assert back.column(("is_init",)).reshape(-1).tolist() == [True, False, False]
    assert ("is_init_",) not in back.schema
    assert back.column(("info", "goal")).reshape(-1).tolist() == [0, 1, 2]
