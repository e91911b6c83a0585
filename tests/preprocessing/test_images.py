"""Datasets with encoded images: images that preprocessing does not change stay encoded."""

from __future__ import annotations

import numpy as np
import pytest
from raw.images import encoded, scene
from stored_data import Trajectory, columns, store_dataset

from datasets_rl.errors import PreprocessError
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Function, Recipe, dry_run, preprocess, preview
from datasets_rl.preprocessing.batches import episode_batch
from datasets_rl.progress import Report
from datasets_rl.store import version_folder
from datasets_rl.ted.episode import EncodedImages

CAMERA = ("observation", "camera")
SHAPE = (24, 32, 3)
LENGTHS = ((4, True), (1, False), (6, False), (5, True), (3, True))
COLUMNS = [
    Column(CAMERA, np.dtype("u1"), SHAPE, shared=True, form="encoded"),
    *[one for one in columns() if one.key != ("observation",)],
]


def filmed(number, steps, known):
    last = (np.arange(steps) == steps - 1)[:, None]
    frames = [encoded(scene(*SHAPE, seed=100 * number + step)) for step in range(steps + known)]
    return Trajectory(
        {
            ("action",): np.full((steps, 2), number, np.float32),
            ("next", "reward"): np.full((steps, 1), number, np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {CAMERA: EncodedImages(frames)},
    )


@pytest.fixture
def folder(tmp_path):
    given = [filmed(number, *one) for number, one in enumerate(LENGTHS)]
    return store_dataset(tmp_path / "home" / "toy" / "films", given, COLUMNS).folder.parent


def strict(folder):
    stored = StoredDataset(folder)
    assert not check_files(folder, Report())
    assert not check_rules(stored.schema, stored.episodes, stored.column).problems
    return stored


def frames(stored, episode):
    rows = stored.episodes
    return stored.column(CAMERA, int(rows.starts[episode]), int(rows.stops[episode]))


def image(number, step):
    return scene(*SHAPE, seed=100 * number + step)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_filter_copies_the_bytes_of_images(folder, tmp_path, jobs):
    before = StoredDataset(folder)
    recipe = Recipe.inline(["keep_lengths:4"])
    came = strict(preprocess(folder, recipe, out=tmp_path / "out" / "long", jobs=jobs, num_parts=5))

    assert came.schema[CAMERA].encoded
    assert came.episodes.lengths.tolist() == [4, 6, 5]
    data, ends = before.map("observation.camera.npy"), before.map("observation.camera.ends.npy")
    rows = [row for number in (0, 2, 3) for row in before.episodes.rows(number)]
    wanted = b"".join(bytes(data[ends[row - 1] if row else 0 : ends[row]]) for row in rows)
    assert bytes(came.map("observation.camera.npy")) == wanted
    assert came.episodes["final_known"].tolist() == [True, False, True]
    assert np.array_equal(frames(came, 2)[3], image(3, 3))


@pytest.mark.parametrize("per", ["step", "batch", "episode"])
def test_images_that_a_function_does_not_change_stay_encoded(folder, tmp_path, per):
    recipe = Recipe([Function(lambda data: data.set("action", data["action"] * 2), per)])
    came = strict(preprocess(folder, recipe, out=tmp_path / "out" / "same", jobs=1))

    assert came.schema[CAMERA].encoded
    assert bytes(came.map("observation.camera.npy")) == bytes(StoredDataset(folder).map("observation.camera.npy"))
    assert came.column(("action",))[:, 0].tolist() == [
        2 * number for number, (steps, _) in enumerate(LENGTHS) for _ in range(steps)
    ]


def test_images_stay_encoded_where_a_function_drops_steps(folder, tmp_path):
    def second_half(data):
        return data[len(data) // 2 :]

    came = strict(preprocess(folder, Recipe([Function(second_half, "episode")]), out=tmp_path / "out" / "half", jobs=1))

    assert came.schema[CAMERA].encoded
    assert came.episodes.lengths.tolist() == [2, 1, 3, 3, 2]
    assert np.array_equal(frames(came, 0)[0], image(0, 2))
    assert np.array_equal(came.final_states(CAMERA)[:1], image(0, 4)[None])


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_images_that_change_in_a_later_partial_are_stored_as_pixels_everywhere(folder, tmp_path, monkeypatch, jobs):
    def darker(data):
        late = (data["action"] == 4).all()
        return data.apply(lambda one: one // 2 if late and one.dtype == data[CAMERA].dtype and one.ndim == 4 else one)

    monkeypatch.setattr(dry_run, "_BYTES", 1)
    recipe = Recipe([Function(darker, "episode")])
    came = strict(preprocess(folder, recipe, out=tmp_path / "out" / "dark", jobs=jobs, num_parts=5))

    assert not came.schema[CAMERA].encoded
    assert np.array_equal(frames(came, 0)[1], image(0, 1))
    assert np.array_equal(frames(came, 4)[1], image(4, 1) // 2)


def test_a_dry_run_reports_the_size_of_encoded_images(folder):
    stored = StoredDataset(folder)
    found = preview(folder, Recipe.inline(["reward_scaling:scale=2"]))

    assert [one.encoded for one in found.columns if one.key == CAMERA] == [True]
    assert (version_folder(folder) / "observation.camera.npy").stat().st_size < found.bytes < stored.manifest.bytes


def test_datasets_of_pixels_and_of_encoded_images_are_merged(folder, tmp_path):
    looked = preprocess(
        folder,
        Recipe([Function(lambda data: data.set("action", data["action"] + 1), "batch")]),
        out=tmp_path / "a" / "b",
    )
    pixels = preprocess(folder, Recipe([_decode]), out=tmp_path / "out" / "pixels", jobs=1)
    assert not StoredDataset(pixels).schema[CAMERA].encoded

    for number, both in enumerate(([looked, pixels], [pixels, looked])):
        merged = strict(preprocess(both, Recipe.inline(["keep_lengths:2"]), out=tmp_path / "out" / f"both{number}"))
        assert not merged.schema[CAMERA].encoded
        assert merged.episodes.lengths.tolist() == [4, 6, 5, 3, 4, 6, 5, 3]
        assert np.array_equal(frames(merged, 0), frames(merged, 4) ^ 1)


def _decode(step):
    """Flip a bit of every image, which requires decoding."""
    for key in (CAMERA, ("next", *CAMERA)):
        step[key] = step[key] ^ 1
    return step


@pytest.mark.parametrize(
    "text", ["resize:[12,16]", "crop:10,top=3", "center_crop:[8,20]", "gray_scale", "to_tensor_image"]
)
def test_renamed_images_have_the_same_pixels(folder, text):
    block = episode_batch(StoredDataset(folder), 0, len(LENGTHS))
    name, _, words = text.partition(":")
    camera, small = "in_keys=observation.camera", "out_keys=observation.small"
    there = Recipe.inline([",".join(filter(None, [f"{name}:{words}", camera]))])(block)
    beside = Recipe.inline([",".join(filter(None, [f"{name}:{words}", camera, small]))])(block)

    for kind in ("states", "final_states"):
        changed, both = getattr(there, kind), getattr(beside, kind)
        assert not np.array_equal(changed[CAMERA], getattr(block, kind)[CAMERA])
        assert np.array_equal(both["observation", "small"], changed[CAMERA])
        assert both[CAMERA] is getattr(block, kind)[CAMERA]


def test_a_renamed_field_replaces_a_field_of_the_new_name(folder):
    block = episode_batch(StoredDataset(folder), 0, len(LENGTHS))
    came = Recipe.inline(["resize:[12,16],in_keys=observation.camera,out_keys=action"])(block)

    assert came.states["action",].shape == (19, 12, 16, 3)
    assert ("action",) not in came.steps


def test_a_transform_that_splits_episodes_keeps_the_right_final_images(folder, tmp_path):
    recipe = Recipe.inline(["step_counter:max_steps=2"])
    came = strict(preprocess(folder, recipe, out=tmp_path / "out" / "short", jobs=1))

    assert came.schema[CAMERA].encoded
    # Every step from the second on ends an episode.
    assert came.episodes.lengths.tolist() == [2, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1, 1, 2, 1]
    assert came.episodes["final_known"].tolist() == [True] * 3 + [False] + [True] * 4 + [False] + [True] * 6
    places = [(number, step) for number, last in ((0, 4), (2, 5), (3, 5), (4, 3)) for step in range(2, last + 1)]
    found = came.final_states(CAMERA)[came.episodes["final_known"]]
    assert np.array_equal(found, np.stack([image(*one) for one in places]))


def test_a_damaged_image_is_reported_with_its_episode_when_it_is_decoded(folder, tmp_path):
    stored = StoredDataset(folder)
    data = np.load(version_folder(folder) / "observation.camera.npy", mmap_mode="r+")
    ends = stored.map("observation.camera.ends.npy")
    data[ends[6] : ends[7]] = 0
    data.flush()

    with pytest.raises(PreprocessError, match=r"episode 2, .*image 2 "):
        preprocess(folder, Recipe.inline(["resize:8"]), out=tmp_path / "out" / "small", jobs=1)
    assert preprocess(folder, Recipe.inline(["reward_scaling:scale=2"]), out=tmp_path / "out" / "copy", jobs=1)
