"""What priorities, and epochs without replacement, cost: against cpprb, and against uniform draws."""

import time

import numpy as np
import pytest
import torch

from datasets_rl import LazyTensorStorage, PrioritizedSampler, SamplerWithoutReplacement, TensorDictReplayBuffer

LIMITS = {256: (2, 1), 4096: (5, 2)}
"""Times the speed of cpprb, of a draw and of an update.

Ratios depend on the cores, and on what else they do: 2.4 to 6.4 times and 5.5 to 15 times are seen of draws.
"""
SHAPES = {
    "observation": 17,
    "action": 6,
    "reward": 1,
    "next_observation": 17,
    "terminated": 1,
    "truncated": 1,
    "done": 1,
}


@pytest.fixture(scope="module")
def prioritized(ours):
    """The transitions in memory, each with another priority."""
    steps = len(ours)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(steps), sampler=PrioritizedSampler(steps, alpha=0.6, beta=0.4), batch_size=256
    )
    for start in range(0, steps, 50_000):
        rb.extend(ours.storage.get(slice(start, start + 50_000)))
    rb.update_priority(torch.arange(steps), torch.rand(steps))
    return rb


@pytest.fixture(scope="module")
def cpprb_buffer(ours):
    cpprb = pytest.importorskip("cpprb", reason="pip install cpprb")
    steps = len(ours)
    buffer = cpprb.PrioritizedReplayBuffer(steps, {name: {"shape": width} for name, width in SHAPES.items()}, alpha=0.6)
    chunk_steps = min(steps, 50_000)
    chunk = {name: np.random.default_rng(0).random((chunk_steps, width), np.float32) for name, width in SHAPES.items()}
    for _ in range(0, steps, chunk_steps):
        buffer.add(**chunk)
    buffer.update_priorities(np.arange(steps), np.random.default_rng(0).random(steps))
    return buffer


def steps_of_training(sample, update, *, repeat):
    """Seconds of a draw and of the update after it: the update finds in the caches what the draw leaves."""
    drawn = written = 0.0
    for number in range(repeat):
        start = time.perf_counter()
        sample()
        middle = time.perf_counter()
        update(number % 64)
        written += time.perf_counter() - middle
        drawn += middle - start
    return drawn / repeat, written / repeat


@pytest.mark.parametrize("batch_size", list(LIMITS))
def test_draws_and_updates_of_priorities_are_faster_than_those_of_cpprb(
    cpprb_buffer, prioritized, batch_size, size, expect
):
    rows, values = list(torch.randint(len(prioritized), (64, batch_size))), list(torch.rand(64, batch_size))
    indices, priorities = [one.numpy() for one in rows], [one.numpy() for one in values]
    calls = {
        "ours": (
            lambda: prioritized.sample(batch_size),
            lambda number: prioritized.update_priority(rows[number], values[number]),
        ),
        "cpprb": (
            lambda: cpprb_buffer.sample(batch_size, beta=0.4),
            lambda number: cpprb_buffer.update_priorities(indices[number], priorities[number]),
        ),
    }
    taken, repeat = {name: [] for name in calls}, size(full={256: 100, 4096: 25}[batch_size], small=1)
    for _ in range(size(full=15, small=1)):
        for name, (sample, update) in calls.items():
            taken[name].append(steps_of_training(sample, update, repeat=repeat))

    (ours, our_update), (cpprb, their_update) = (np.min(taken[name], axis=0) * 1e6 for name in ("ours", "cpprb"))
    print(f"\nsample {ours:.0f} us, cpprb {cpprb:.0f} us; update {our_update:.0f} us, cpprb {their_update:.0f} us")
    least_sample, least_update = LIMITS[batch_size]
    expect(f"sample({batch_size}) by priorities, times cpprb's speed", cpprb / ours, at_least=least_sample)
    expect(f"update of {batch_size} priorities, times cpprb's speed", their_update / our_update, at_least=least_update)


@pytest.mark.parametrize("batch_size", [256, 4096])
def test_an_epoch_costs_no_more_than_uniform_draws(ours, batch_size, compare, expect):
    """The epoch's beginning is in the rounds: a million rows take 4,000 or 250 batches."""
    sampler, uniform = SamplerWithoutReplacement(), ours.sampler
    batches = -(-len(ours) // batch_size)

    took = compare(
        {
            "without replacement": lambda: sampler.sample(ours.storage, batch_size),
            "uniform": lambda: uniform.sample(ours.storage, batch_size),
            "rows": lambda: ours.storage.get(torch.randint(len(ours), (batch_size,))),
        },
        rounds=15,
        repeat=batches,
    )

    more = (took["without replacement"] - took["uniform"]) / took["rows"]
    expect(f"{batch_size} rows without replacement, of uniform ones with their gather", 1 + more, at_most=1)
