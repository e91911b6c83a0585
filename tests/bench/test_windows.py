"""What windows of steps cost, against plain batches of the same dataset and against indexing arrays by hand."""

import numpy as np
import pytest
import torch

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    MultiStepTransform,
    QChunkTransform,
    RandomShift,
    SequenceTransform,
    WindowTransform,
)

WINDOW = 16
TRANSFORMS = {
    "3-step targets": lambda: MultiStepTransform(3, 0.99),
    "stacks of 4": lambda: CatFrames(4, -1, ["observation"]),
    "chunks of 16": lambda: ActionChunkTransform(WINDOW),
    "padded windows of 16": lambda: WindowTransform({"observation": (1, 0), "action": (0, WINDOW - 1)}, "zero"),
    "windows by seconds": lambda: WindowTransform.delta_timestamps(
        {"observation": [-0.1, 0], "action": [step / 10 for step in range(WINDOW)]}, fps=10
    ),
    "Decision Transformer, 20 steps": lambda: SequenceTransform.dt_corl(20),
    "Q-chunks of 5": lambda: QChunkTransform(5, 0.99),
}
LIMITS = {256: (2, 2, 3, 3, 3, 10, 3), 4096: (3, 2, 10, 10, 10, 20, 10)}
"""Largest ratio to a plain batch, by batch size, in the order of the transforms."""


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def buffer(dataset, transform, size):
    return TensorDictReplayBuffer(storage=dataset.storage, transform=transform, batch_size=size)


@pytest.mark.parametrize("size_of_batch", list(LIMITS))
@pytest.mark.usefixtures("one_thread")
def test_a_batch_of_windows_costs_a_few_plain_batches(ours, size_of_batch, compare, expect):
    """A window of 16 records of 100 bytes is 16 times as much memory as a step; neither is in a cache."""
    calls = {"plain": buffer(ours, None, size_of_batch).sample}
    calls.update({name: buffer(ours, make(), size_of_batch).sample for name, make in TRANSFORMS.items()})
    took = compare(calls, rounds=36, repeat=10)

    for name, limit in zip(TRANSFORMS, LIMITS[size_of_batch], strict=True):
        expect(f"sample({size_of_batch}) with {name}, of a plain one", took[name] / took["plain"], at_most=limit)


@pytest.mark.usefixtures("one_thread")
def test_windows_cost_little_more_than_arrays_indexed_by_hand(ours, compare, expect):
    """The arrays are copies of two columns in memory; by hand means numpy, with the same padding and masks."""
    size = 1024
    columns = {key: ours.storage.column((key,)).clone().numpy() for key in ("observation", "action")}
    episodes = ours.storage.episodes
    lasts = np.repeat(episodes.stops - 1, episodes.lengths)

    def by_hand():
        rows = np.random.randint(len(lasts), size=size)  # noqa: NPY002 - as in programs for research
        window = rows[:, None] + np.arange(WINDOW)
        clipped = np.minimum(window, lasts[rows][:, None])
        return [array[clipped] for array in columns.values()], clipped == window

    spans = dict.fromkeys(columns, (0, WINDOW - 1))
    took = compare({"ours": buffer(ours, WindowTransform(spans), size).sample, "by hand": by_hand}, rounds=36, repeat=5)

    expect("sample(1024) with windows of 16, of arrays by hand", took["ours"] / took["by hand"], at_most=1.5)


@pytest.mark.usefixtures("one_thread")
def test_shifted_images_cost_a_few_copies(size, compare, expect):
    images = torch.randint(256, (size(full=256, small=4), 9, 84, 84), dtype=torch.uint8)
    shift = RandomShift(4)
    shifts = torch.randint(0, 9, (len(images), 2))
    took = compare({"shift": lambda: shift.shift(images, shifts), "copy": images.clone}, rounds=9, repeat=10)

    expect("RandomShift(4) of 256 stacks of 9 images, of a copy", took["shift"] / took["copy"], at_most=10)
