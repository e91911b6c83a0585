"""What a batch costs: against TorchRL's RandomSampler over the same transitions."""

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


def test_a_batch_of_short_episodes_costs_little_more(ours, compare, expect):
    """Every end of an episode takes its next observation from another file."""
    batch = torch.randint(len(ours), (256,))
    ends = torch.from_numpy(ours.episodes.stops[:256] - 1).repeat(256)[:256]

    took = compare({"random rows": lambda: ours.storage.get(batch), "only ends": lambda: ours.storage.get(ends)})

    expect("256 ends, of the time of 256 random rows", took["only ends"] / took["random rows"], at_most=2)
