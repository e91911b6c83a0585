"""What a batch costs: against TorchRL's RandomSampler and against arrays of numpy, over the same transitions."""

import numpy as np
import pytest
import torch

GOALS = {256: (5, 5), 4096: (10, 10)}
"""Times TorchRL's speed, by batch size: of sample(), and of a batch of batches().

Ratios of 256 steps depend on the cores, and on what else they do: 4.9 to 9.4 times and 6.5 to 11 times are seen.
"""


@pytest.mark.parametrize("batch_size", list(GOALS))
def test_sampling_is_several_times_faster_than_torchrl(ours, theirs, batch_size, compare, expect):
    run = ours.batches(batch_size=batch_size)
    took = compare(
        {
            "sample": lambda: ours.sample(batch_size),
            "batches": lambda: next(run),
            "torchrl": lambda: theirs.sample(batch_size),
        },
        rounds=15,
        # Several runs, each of which begins with the gather of all its batches.
        repeat=192 if batch_size < 1000 else 48,
    )

    for name, goal in zip(("sample", "batches"), GOALS[batch_size], strict=True):
        expect(f"{name}, {batch_size} steps, times TorchRL's speed", took["torchrl"] / took[name], at_least=goal)


OF_TAKES = {32: 2, 256: 1 / 1.5, 4096: 1 / 2}
"""Largest ratio to a take of numpy for each field, by batch size: the least that a loader in Python can do.

A batch of 32 is above 1: a TensorDict needs a tensor for each field, and torch makes one in half of the time of a take.
"""


@pytest.mark.parametrize("batch_size", list(OF_TAKES))
def test_a_batch_costs_little_beside_takes_of_numpy(ours, batch_size, compare, expect):
    """Both have the same fields. The arrays are copies in memory, the next observations another copy of the observations."""
    keys = [key for key in ours.storage.keys() if key != ("next", "observation")]  # noqa: SIM118 - a storage iterates over its steps
    arrays = {".".join(key): ours.storage.column(key).clone().numpy() for key in keys}
    arrays["next.observation"] = np.roll(arrays["observation"], -1, 0)

    def takes():
        rows = np.random.randint(0, len(ours), batch_size)  # noqa: NPY002 - as in programs for research
        return {"index": rows} | {name: array.take(rows, 0) for name, array in arrays.items()}

    torch.manual_seed(0)
    batch = ours.sample(batch_size, format="numpy")
    assert batch.keys() == takes().keys()
    calls = {
        "sample": lambda: ours.sample(batch_size),
        "arrays": lambda: ours.sample(batch_size, format="numpy"),
        "takes": takes,
    }
    took = compare(calls, rounds=60, repeat=20)

    expect(f"sample({batch_size}), of takes of numpy", took["sample"] / took["takes"], at_most=OF_TAKES[batch_size])
    if batch_size < 1000:  # most of the time of larger batches is the gather
        expect(f"sample({batch_size}, format='numpy'), of sample", took["arrays"] / took["sample"], at_most=1 / 1.5)


def test_a_batch_of_short_episodes_costs_little_more(ours, compare, expect):
    """Every end of an episode takes its next observation from another file."""
    batch = torch.randint(len(ours), (256,))
    ends = torch.from_numpy(ours.episodes.stops[:256] - 1).repeat(256)[:256]

    took = compare({"random rows": lambda: ours.storage.get(batch), "only ends": lambda: ours.storage.get(ends)})

    expect("256 ends, of the time of 256 random rows", took["only ends"] / took["random rows"], at_most=2)
