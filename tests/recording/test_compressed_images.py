"""Adding episodes to datasets of compressed images, and those of such datasets to others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from stored_data import Trajectory, columns, store_dataset
from tensordict import TensorDict

from datasets_rl import append_episodes, load, verify
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.images import compressed as compressed_images
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.recording.recorder import Recorder

PIXELS = ("pixels",)
RAW = [Column(PIXELS, np.dtype("u1"), (64, 64), shared=True), *columns()]
COMPRESSED = [replace(column, form="compressed") if column.key == PIXELS else column for column in RAW]


def frames(count, seed):
    images = np.repeat(np.random.default_rng(seed).integers(0, 256, (1, 64, 64), np.uint8), count, 0)
    for number, image in enumerate(images):
        image[number % 60 :, :4] = number % 256
    return images


def trajectory(steps, seed):
    last = (np.arange(steps) == steps - 1)[:, None]
    return Trajectory(
        {
            ("action",): np.full((steps, 2), seed, np.float32),
            ("next", "reward"): np.ones((steps, 1), np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {("observation",): np.zeros((steps + 1, 3), np.float32), PIXELS: frames(steps + 1, seed)},
    )


def transitions(steps, seed):
    images, done = torch.from_numpy(frames(steps + 1, seed)), torch.zeros(steps, 1, dtype=torch.bool)
    done[-1] = True
    after = {"pixels": images[1:], "observation": torch.zeros(steps, 3), "reward": torch.ones(steps, 1), "done": done}
    before = {
        "pixels": images[:-1],
        "observation": torch.zeros(steps, 3),
        "action": torch.full((steps, 2), float(seed)),
    }
    return TensorDict({**before, "next": after}, [steps])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    given = [trajectory(30, 1), trajectory(20, 2)]
    store_dataset(tmp_path / "raw", given, RAW)
    store_dataset(tmp_path / "compressed", given, COMPRESSED, {PIXELS: FrameDictionary.train(frames(500, 1), 1 << 14)})
    store_dataset(tmp_path / "other", given, COMPRESSED, {PIXELS: FrameDictionary.train(frames(500, 2), 1 << 14)})
    return tmp_path


def images(*seeds):
    return np.concatenate([frames(steps + 1, seed)[:-1] for steps, seed in seeds])


def test_a_new_dataset_has_the_dictionary_and_the_bytes_of_the_first_episodes(home, monkeypatch):
    monkeypatch.setattr(compressed_images, "decompress", None)
    append_episodes("local/a", home / "compressed")

    dataset, source = load("local/a").stored, StoredDataset(home / "compressed")
    assert bytes(dataset.map("pixels.npy")) == bytes(source.map("pixels.npy"))
    assert dataset.dictionaries[PIXELS].data == source.dictionaries[PIXELS].data


@pytest.mark.parametrize("first", ["raw", "compressed"])
def test_pixels_and_images_of_other_dictionaries_are_stored_like_those_of_the_dataset(home, first):
    append_episodes("local/a", home / first)
    for name in ("raw", "other", "compressed"):
        append_episodes("local/a", home / name, again=True)
    append_episodes("local/a", transitions(10, 3))

    stored = load("local/a").stored
    assert stored.schema[PIXELS].form == first
    assert np.array_equal(stored.column(PIXELS), images(*[(30, 1), (20, 2)] * 4, (10, 3)))
    assert np.array_equal(stored.final_states(PIXELS)[8:9], frames(11, 3)[-1:])
    if first == "compressed":
        assert stored.dictionaries[PIXELS].data == StoredDataset(home / "compressed").dictionaries[PIXELS].data
    assert verify("local/a", deep=True).problems == ()


def recorded(steps, seed):
    """Return a recorder that recorded one episode of pixels for local/a, and is closed without a commit."""
    recorder = Recorder("local/a", {"specs": {}, "metadata": {}})
    recording = recorder.recording(RAW)
    for piece in trajectory(steps, seed).pieces():
        recording.writer.append(piece)
    recording.commit()
    recorder.close()
    return recording.folder


def test_a_recording_that_a_process_left_is_added_with_the_dictionary_of_the_dataset(home):
    append_episodes("local/a", home / "compressed")
    recorded(15, 4)
    append_episodes("local/a")

    assert np.array_equal(load("local/a").stored.column(PIXELS), images((30, 1), (20, 2), (15, 4)))


@pytest.mark.parametrize("file", ["pixels.npy", "pixels.ends.npy", "pixels.dictionary"])
def test_damaged_images_of_a_recording_are_not_added(home, file):
    append_episodes("local/a", home / "compressed")
    recorded(15, 4)
    folder = next((home / "local" / "a" / "recorded").iterdir())
    content = bytearray((folder / file).read_bytes())
    content[-9] ^= 1
    (folder / file).write_bytes(content)

    with pytest.raises(
        IntegrityError, match=r"journal\.jsonl is damaged: the checksum of the stored rows does not match"
    ):
        append_episodes("local/a")
    assert len(StoredDataset(home / "local" / "a")) == 50


def test_a_recording_of_another_dictionary_is_kept_with_the_reason(home):
    append_episodes("local/a", home / "compressed")
    recorded(15, 4)
    dataset = home / "local" / "a"
    (dataset / "recorded").rename(home / "recorded")
    (dataset / "CURRENT").unlink()
    append_episodes("local/a", home / "other")
    (home / "recorded").rename(dataset / "recorded")

    with pytest.raises(InvalidArgumentError, match="are compressed with another dictionary than the images of local/a"):
        append_episodes("local/a")
    assert len(StoredDataset(home / "local" / "a")) == 50


def test_images_of_another_size_do_not_fit(home):
    append_episodes("local/a", home / "compressed")
    small = trajectory(5, 1)
    small = replace(small, states={**small.states, PIXELS: frames(6, 1)[:, :32, :32]})
    store_dataset(home / "small", [small], [Column(PIXELS, np.dtype("u1"), (32, 32), shared=True), *columns()])

    with pytest.raises(
        InvalidArgumentError, match=r"pixels is uint8 \[32, 32\] shared.*, and the dataset has uint8 \[64, 64\]"
    ):
        append_episodes("local/a", home / "small")
