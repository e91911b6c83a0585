"""What an epoch over wide records costs: against copying the same bytes, and against TorchRL."""

import warnings

import numpy as np
import pytest
import torch
from bench_data import compare
from tensordict import TensorDict

from datasets_rl import LazyMemmapStorage, LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer

STEPS, BATCH = 20_480, 256
GOAL = 2.0
"""Times the copy of the same bytes; 1.5 is wanted, 1.1 to 1.5 is seen."""


@pytest.fixture(scope="module")
def images():
    """84 x 84 x 4 bytes a step, as of stacked Atari frames: 578 MB."""
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (STEPS, 4, 84, 84), np.uint8))
    return TensorDict({"pixels": pixels, "action": torch.zeros(STEPS, dtype=torch.int64)}, [STEPS])


def epoch(buffer):
    for _ in buffer:
        pass


def buffer_over(storage, images):
    rb = TensorDictReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=BATCH)
    rb.extend(images)
    return rb


def test_an_epoch_of_images_costs_little_more_than_copying_them(images, show):
    source = images["pixels"].view(STEPS // BATCH, BATCH, -1)

    def copied():
        for batch in source:
            kept = batch.clone()  # a loop has the batch before while the next one is made, and so takes turns in memory
        return kept

    ram, memmap = (buffer_over(kind(STEPS), images) for kind in (LazyTensorStorage, LazyMemmapStorage))
    runs = {"copy": copied, "ram": lambda: epoch(ram), "memmap": lambda: epoch(memmap)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchrl_data = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    theirs = torchrl_data.TensorDictReplayBuffer(
        storage=torchrl_data.LazyTensorStorage(STEPS),
        sampler=torchrl_data.SamplerWithoutReplacement(),
        batch_size=BATCH,
    )
    theirs.extend(images)
    runs["torchrl"] = lambda: epoch(theirs)
    took = compare(runs, repeat=1)

    milli = {name: round(value * 1e3) for name, value in took.items()}
    ratios = {name: took[name] / took["copy"] for name in ("ram", "memmap", "torchrl")}
    show(
        f"\nepoch of {STEPS} images: {milli} ms; {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())} times the copy"
    )
    assert ratios["ram"] <= GOAL
    assert ratios["memmap"] <= GOAL
