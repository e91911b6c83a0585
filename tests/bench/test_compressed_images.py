"""What stacks of compressed Atari frames cost: beside raw frames, in memory and from the disk."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace

import bench_data
import numpy as np
import pytest
import torch
from raw.atari_dqn import screens
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.format.npy import advise_random_reads
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.storages import DatasetStorage
from datasets_rl.transforms import CatFrames

PIXELS, NEXT_PIXELS = ("pixels",), ("next", "pixels")
SHAPE = (1, 84, 84)
SCHEMA = [
    Column(PIXELS, np.dtype(np.uint8), SHAPE, shared=True),
    Column(("action",), np.dtype(np.int64), ()),
    Column(("next", "reward"), np.dtype(np.float32), (1,)),
    *FLAGS,
]
STEPS = 1000
"""Number of steps of an episode."""


GAMES = [
    "pong",
    "breakout",
    "seaquest",
    "space_invaders",
    "qbert",
    "asterix",
    "beam_rider",
    "enduro",
    "freeway",
    "ms_pacman",
]


@pytest.fixture(scope="module")
def frames(size):
    """Frames of each game, of which each is in its dataset ten times."""
    return [screens(size(full=1001, small=41), game) for game in GAMES[: size(full=10, small=2)]]


@pytest.fixture(scope="module")
def folders(frames, size, session_path):
    """The datasets of all games, 10,000 frames each, raw and compressed."""
    steps = size(full=STEPS, small=40)
    last = (np.arange(steps) == steps - 1)[:, None]
    columns = {
        ("action",): np.zeros(steps, np.int64),
        ("next", "reward"): np.zeros((steps, 1), np.float32),
        ("next", "terminated"): last,
        ("next", "truncated"): np.zeros_like(last),
    }
    folders = {"raw": [], "compressed": []}
    for game, states in zip(GAMES, frames, strict=False):
        episodes = [Trajectory(columns, {PIXELS: states.reshape(-1, *SHAPE)})] * size(full=10, small=1)
        raw = write_dataset(session_path / game / "raw", episodes, SCHEMA)
        compressed = [replace(SCHEMA[0], form="compressed"), *SCHEMA[1:]]
        dictionaries = {PIXELS: FrameDictionary.train(states[::2])}
        written = write_dataset(session_path / game / "compressed", episodes, compressed, dictionaries)
        folders["raw"].append(raw.folder)
        folders["compressed"].append(written.folder)
    return folders


def buffer_of(folder):
    """A buffer of stacks of four, now and next."""
    stacks = CatFrames(4, -3, in_keys=[PIXELS, NEXT_PIXELS])
    return TensorDictReplayBuffer(storage=DatasetStorage(StoredDataset(folder)), transform=stacks)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs a system that drops pages on request")
@pytest.mark.parametrize("count", [32, 256])
def test_stacks_from_the_disk(folders, count, size, expect, run_in_child):
    """Raw frames that do not fit in memory: no page of a batch is in it. The compressed frames fit."""
    os.sync()
    took = run_in_child(from_the_disk, folders, count, size(full=30, small=1))
    print("\n" + ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in took.items()))

    speed = took["raw"] / took["compressed"]
    expect(f"{count} stacks of compressed frames, times the speed of raw ones on the disk", speed, at_least=5)


def from_the_disk(folders, count, rounds):
    """Seconds of a batch, in a process of its own: the system keeps the pages of files that others have mapped."""
    torch.set_num_threads(1)
    raw, compressed = (buffer_of(folders[name][0]) for name in ("raw", "compressed"))
    pixels = raw.storage.stored.map("pixels.npy")
    advise_random_reads(pixels)  # as for a dataset that is larger than half of the memory

    def cold():
        drop(pixels, folders["raw"][0] / "pixels.npy")
        return raw.sample(count)

    drop(compressed.storage.stored.map("pixels.npy"), folders["compressed"][0] / "pixels.npy")
    for _ in range(400 * rounds // count):  # until most of its pages have been read
        compressed.sample(count)
    return bench_data.compare({"raw": cold, "compressed": lambda: compressed.sample(count)}, rounds=rounds, repeat=1)


def drop(mapped, path):
    """Drop the pages of a file from memory."""
    mapped._mmap.madvise(mmap.MADV_DONTNEED)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def warm(folders):
    """Buffers of raw and of compressed frames of all games, with all pages in memory."""
    buffers = {name: [buffer_of(folder) for folder in parts] for name, parts in folders.items()}
    for buffer in [*buffers["raw"], *buffers["compressed"]]:
        for part in torch.arange(len(buffer)).split(4096):
            buffer.storage.take_fields(part, [PIXELS])
    return buffers


@pytest.mark.parametrize("count", [32, 256])
def test_stacks_in_memory(warm, count, size, compare, expect):
    def sample_all(buffers):
        for buffer in buffers:
            buffer.sample(count)

    calls = {name: (lambda buffers=buffers: sample_all(buffers)) for name, buffers in warm.items()}
    took = compare(calls, rounds=size(full=60, small=1), repeat=1)
    for game, raw, compressed in zip(GAMES, *warm.values(), strict=False):
        pair = {"raw": lambda raw=raw: raw.sample(count), "compressed": lambda one=compressed: one.sample(count)}
        alone = compare(pair, rounds=size(full=20, small=1), repeat=1)
        print(f"{game} {alone['compressed'] / alone['raw']:.2f}", end=" ")
    expect(f"{count} stacks of compressed frames, times raw ones", took["compressed"] / took["raw"], at_most=1.5)


def grown(folder, batches):
    """MB over the idle process of some batches of 256 stacks."""
    buffer = buffer_of(folder)
    buffer.sample(1)
    idle = bench_data.peak()
    for _ in range(batches):
        buffer.sample(256)
    return bench_data.peak() - idle


def test_stacks_take_little_memory(folders, size, expect_exactly, run_in_child):
    expect_exactly(
        "MB over the idle process", run_in_child(grown, folders["compressed"][0], size(full=200, small=2)), at_most=200
    )
