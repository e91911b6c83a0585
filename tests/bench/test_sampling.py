"""What a batch costs: against TorchRL's RandomSampler over the same transitions."""

import pytest
import torch

GOALS = {256: 4.0, 4096: 5.5}


@pytest.mark.parametrize("batch_size", list(GOALS))
def test_sampling_is_several_times_faster_than_torchrl(ours, theirs, batch_size, compare, expect):
    took = compare(
        {
            "ours": lambda: ours.sample(batch_size),
            "torchrl": lambda: theirs.sample(batch_size),
        },
        repeat=100 if batch_size < 1000 else 40,
    )

    ratio = took["torchrl"] / took["ours"]
    expect(f"sample({batch_size}), times TorchRL's speed", ratio, at_least=GOALS[batch_size])


def test_a_batch_of_short_episodes_costs_little_more(ours, compare, expect):
    """Every end of an episode takes its next observation from another file."""
    batch = torch.randint(len(ours), (256,))
    ends = torch.from_numpy(ours.episodes.stops[:256] - 1).repeat(256)[:256]

    took = compare({"random rows": lambda: ours.storage.get(batch), "only ends": lambda: ours.storage.get(ends)})

    expect("256 ends, of the time of 256 random rows", took["only ends"] / took["random rows"], at_most=3)


@pytest.mark.parametrize(("batch_size", "batches", "limit"), [(256, 256, 0.7), (4096, 32, 1.05)])
def test_a_run_of_batches_costs_less_than_its_samples(ours, batch_size, batches, limit, compare, expect):
    took = compare(
        {
            "sample": lambda: [ours.sample(batch_size) for _ in range(batches)],
            "batches": lambda: list(ours.batches(batches, batch_size)),
        },
        repeat=4,
    )

    expect(f"batches of {batch_size}, of the time of sample()", took["batches"] / took["sample"], at_most=limit)
