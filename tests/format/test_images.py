"""Encoded images are read as their pixels wherever a field is read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from raw.images import decoded, encoded, scene
from stored_data import Trajectory, columns, plain, write_dataset

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.errors import ConversionError, IntegrityError, InvalidArgumentError
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.progress import Report
from datasets_rl.samplers import SliceSampler
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import EncodedImages, Episode
from datasets_rl.transforms import CatFrames

SHAPE = (24, 32, 3)
U1 = np.dtype(np.uint8)
CAMERA, WRIST = ("observation", "camera"), ("wrist",)
COLUMNS = [
    Column(CAMERA, U1, SHAPE, shared=True, form="encoded"),
    Column(WRIST, U1, (16, 16, 1), form="encoded"),
    *[one for one in columns() if one.key != ("observation",)],
]
LENGTHS = ((4, True), (1, False), (6, False), (5, True))
"""Number of steps of each episode, and whether its final image is known."""


def episode(number, steps, known):
    cameras = [scene(*SHAPE, seed=100 * number + step) for step in range(steps + known)]
    wrists = [scene(16, 16, 1, seed=200 * number + step) for step in range(steps)]
    last = (np.arange(steps) == steps - 1)[:, None]
    return Episode(
        {
            ("action",): np.full((steps, 2), number + 1, np.float32),
            ("next", "reward"): np.ones((steps, 1), np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
            # Lossless and lossy images in one field.
            WRIST: EncodedImages([encoded(one, "JPEG" if step % 2 else "PNG") for step, one in enumerate(wrists)]),
        },
        {CAMERA: EncodedImages([encoded(one) for one in cameras])},
    )


def cut(whole, *at):
    """Yield the pieces of an episode, split at these steps."""
    bounds = [0, *at, len(whole)]
    for start, stop in pairwise(bounds):
        last = stop == len(whole)
        steps = {
            key: EncodedImages(one.images[start:stop]) if isinstance(one, EncodedImages) else one[start:stop]
            for key, one in whole.steps.items()
        }
        states = {key: EncodedImages(one.images[start : None if last else stop]) for key, one in whole.states.items()}
        yield Episode(steps, states, continues=not last)


class Pieces(Trajectory):
    """An episode that is split into two pieces if it has more than three steps."""

    def pieces(self):
        whole = Episode(self.steps, self.states)
        yield from cut(whole, *([2] if len(whole) > 3 else []))


@pytest.fixture(scope="module")
def whole():
    return [episode(number, *one) for number, one in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def stored(whole, tmp_path_factory):
    pieces = [Pieces(one.steps, one.states) for one in whole]
    return write_dataset(tmp_path_factory.mktemp("images"), pieces, COLUMNS)


@pytest.fixture(scope="module")
def pixels(whole):
    """Pixels as pillow decodes them: at t, at t + 1 (zeros where unknown), and those of the other camera."""
    now = [decoded(one) for each in whole for one in each.states[CAMERA].images[: len(each)]]
    following = [
        decoded(each.states[CAMERA].images[step + 1]) if step + 1 < len(each.states[CAMERA]) else np.zeros(SHAPE, U1)
        for each in whole
        for step in range(len(each))
    ]
    wrist = [decoded(one)[..., None] for each in whole for one in each.steps[WRIST].images]
    return {CAMERA: np.stack(now), ("next", *CAMERA): np.stack(following), WRIST: np.stack(wrist)}


def test_columns_are_the_pixels_that_pillow_decodes(stored, pixels):
    for key, wanted in pixels.items():
        assert np.array_equal(stored.column(key), wanted)
        assert np.array_equal(stored.column(key, 3, 9), wanted[3:9])
        assert stored.column(key, 5, 5).shape == (0, *wanted.shape[1:])


def test_a_batch_holds_the_pixels_of_its_rows_in_fresh_memory(stored, pixels):
    storage = DatasetStorage(stored)
    rows = torch.tensor([15, 3, 4, 3, 0, 10, 4])
    batch = plain(storage.get(rows))

    for key, wanted in pixels.items():
        assert np.array_equal(batch[key], wanted[rows])
        assert np.array_equal(plain(storage.get(-2))[key], wanted[-2])
    batch[CAMERA][:] = 0
    assert np.array_equal(plain(storage.get(rows))[CAMERA], pixels[CAMERA][rows])


def test_a_field_of_some_rows_equals_those_rows_of_the_column(stored):
    storage = DatasetStorage(stored)
    rows = torch.tensor([15, 3, 4, 3, 0, 10, 4])

    for key in stored.keys():  # noqa: SIM118 - no mapping
        assert torch.equal(storage.pick(key, rows), storage.column(key)[rows]), key


def test_slices_and_stacks_of_frames_read_pixels(stored, pixels):
    storage = DatasetStorage(stored)
    stack = CatFrames(2, dim=-1, in_keys=[CAMERA], out_keys=["stack"], padding="constant")
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=SliceSampler(num_slices=4, strict_length=False), batch_size=8, transform=stack
    )
    starts = stored.episodes.starts
    batch = buffer.sample()

    for row, camera, pair in zip(batch["index"].tolist(), batch[CAMERA], batch["stack"], strict=True):
        before = np.zeros(SHAPE, U1) if row in starts else pixels[CAMERA][row - 1]
        assert np.array_equal(camera, pixels[CAMERA][row])
        assert np.array_equal(pair, np.concatenate([before, pixels[CAMERA][row]], -1))


def test_the_files_open_without_this_package(stored, whole):
    data = np.load(stored.folder / "observation.camera.npy")
    ends = np.load(stored.folder / "observation.camera.ends.npy")

    second = data[ends[0] : ends[1]].tobytes()
    assert second == whole[0].states[CAMERA].images[1]
    assert len(ends) == len(stored)
    assert Schema.from_json(stored.schema.to_json()) == stored.schema
    assert not check_files(stored.folder, Report())
    assert not check_rules(stored.schema, stored.episodes, stored.column).problems


def test_a_killed_writer_resumes_with_the_same_bytes(whole, stored, tmp_path):
    commits = []
    for count, one in enumerate(whole):
        writer = DatasetWriter(tmp_path, COLUMNS, name="toy/data", commits=commits)
        for piece in cut(one, *([2] if len(one) > 3 else [])):
            writer.append(piece)
        if count == len(whole) - 1:
            written = writer.finish()
        else:
            commits.append(writer.commit())
            for more in cut(episode(9, 3, known=True), 1):
                writer.append(more)  # lost in the simulated kill
        writer.discard()

    assert {(one.path, one.digest) for one in written.files} == {
        (one.path, one.digest) for one in stored.manifest.files
    }


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ([encoded(scene(24, 30))] * 5, r"image 0 is uint8 \[24, 30, 3\], expected uint8 \[24, 32, 3\]"),
        ([encoded(scene(24, 32, 4))] * 5, r"is uint8 \[24, 32, 4\]"),
        ([encoded(scene(24, 32))] * 4 + [b"<html>"], "image 4 is a web page"),
        ([b""] * 5, "image 0"),
        ([encoded(scene(24, 32))] * 3, "has 3 images, expected 4"),
    ],
    ids=["narrow", "alpha", "page", "empty", "few"],
)
def test_images_that_do_not_fit_are_refused_before_they_are_stored(tmp_path, images, problem):
    writer = DatasetWriter(tmp_path, COLUMNS, name="toy/data")
    good = episode(0, 4, known=True)
    try:
        with pytest.raises(ConversionError, match=problem):
            writer.append(Episode(good.steps, {CAMERA: EncodedImages(images)}))
        with pytest.raises(ConversionError, match="camera holds ndarray, expected encoded images"):
            writer.append(Episode(good.steps, {CAMERA: np.zeros((5, *SHAPE), U1)}))
        with pytest.raises(ConversionError, match="action holds EncodedImages, expected float32"):
            writer.append(Episode({**good.steps, ("action",): good.steps[WRIST]}, good.states))
    finally:
        writer.discard()


def test_only_three_axes_of_bytes_can_be_images():
    with pytest.raises(InvalidArgumentError, match="encoded images, <f4"):
        Schema.layout([Column(CAMERA, np.dtype("f4"), SHAPE, form="encoded")])
    with pytest.raises(InvalidArgumentError, match=r"expected \|u1 with three axes"):
        Schema.layout([Column(CAMERA, U1, (24, 32), form="encoded")])


def test_damage_is_reported_with_the_file_and_the_image(whole, tmp_path):
    stored = write_dataset(tmp_path, [Pieces(one.steps, one.states) for one in whole], COLUMNS)
    ends = stored.map("observation.camera.ends.npy")
    at = stored.map("observation.camera.npy").offset + int(ends[6]) + 60
    with (tmp_path / "observation.camera.npy").open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 40)

    storage = DatasetStorage(StoredDataset(tmp_path))
    assert storage.get([0, 1, 2])["observation", "camera"].any()
    with pytest.raises(IntegrityError, match=r"observation.camera.npy: image 7 is a PNG"):
        storage.get([0, 7])


def test_image_offsets_outside_of_the_file_are_refused(whole, tmp_path):
    stored = write_dataset(tmp_path, [Pieces(one.steps, one.states) for one in whole], COLUMNS)
    path = tmp_path / "observation.camera.ends.npy"
    ends = np.load(path)
    ends[2] += 1 << 40
    np.save(path, ends)

    with pytest.raises(IntegrityError, match="image 2 has the bytes 2,344 to"):
        StoredDataset(stored.folder).column(CAMERA)
