"""Every command on a dataset of compressed images."""

import re
import resource

import numpy as np
import pytest
import view_data
import zstandard
from stored_data import reseal

from datasets_rl import append_episodes
from datasets_rl.store import version_folder


@pytest.fixture
def frames(home, tmp_path):
    """The folder of the dataset local/frames, of compressed images."""
    stored = view_data.image_dataset(tmp_path / "frames", (8, 20, 15), form="compressed")
    append_episodes("local/frames", stored.folder)
    return home / "local" / "frames"


@pytest.mark.parametrize("deep", [(), ("--deep",)])
@pytest.mark.usefixtures("frames")
def test_an_intact_dataset_is_intact(rlds, deep):
    ran = rlds("verify", "local/frames", *deep)

    assert (ran.code, ran.err) == (0, ""), ran.out
    assert "intact" in ran.out


def replace_frame(folder, row, frame):
    """Replace a compressed frame by another frame, with digests that pass as those of the publisher."""
    data, ends = np.load(folder / "observation.npy"), np.load(folder / "observation.ends.npy")
    starts = [0, *ends[:-1].tolist()]
    pieces = [data[start:end].tobytes() for start, end in zip(starts, ends.tolist(), strict=True)]
    pieces[row] = frame
    np.save(folder / "observation.npy", np.frombuffer(b"".join(pieces), np.uint8))
    np.save(folder / "observation.ends.npy", np.cumsum([len(piece) for piece in pieces]))
    reseal(folder)


def bomb(size):
    """Return a zstd frame of that many zeros."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    block = bytes(1 << 20)
    return b"".join([*(compressor.compress(block) for _ in range(size >> 20)), compressor.flush()])


@pytest.mark.parametrize("size", [1 << 20, 1 << 30])
def test_a_frame_that_claims_more_than_its_shape_is_refused_before_memory_is_taken(rlds, frames, size):
    replace_frame(version_folder(frames), 9, bomb(size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = rlds("verify", "local/frames", "--deep")

    assert ran.code == 5
    assert "frame 9 is damaged: the result is not 12,288 bytes that were compressed" in ran.out
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert rlds("describe", "local/frames").code == 5


def test_offsets_that_do_not_follow_each_other_are_refused(rlds, frames):
    folder = version_folder(frames)
    ends = np.load(folder / "observation.ends.npy")
    ends[4] = ends[3] - 1
    np.save(folder / "observation.ends.npy", ends)
    reseal(folder)
    ran = rlds("verify", "local/frames", "--deep")

    assert ran.code == 5
    assert "image 4 has the bytes" in ran.out


@pytest.mark.usefixtures("frames")
def test_info_says_how_images_are_stored(rlds):
    assert re.search(
        r"images\s+observation: compressed without loss, [\d.]+ times smaller than the pixels",
        rlds("info", "local/frames").out,
    )
    images = rlds("info", "local/frames", "--json").json["stored"]["images"]
    assert images["observation"].startswith("compressed without loss")


@pytest.mark.first(3)
@pytest.mark.usefixtures("frames")
@pytest.mark.parametrize(
    "words", ["describe local/frames", "sample local/frames", "list", "bench local/frames --seconds 0"]
)
def test_other_commands_work(rlds, words):
    ran = rlds(*words.split())

    assert (ran.code, ran.err) == (0, "")
