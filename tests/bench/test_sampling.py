"""What a batch costs: against TorchRL's RandomSampler over the same transitions, and against the bare gather."""

import pytest
import torch
from bench_data import compare

GOALS = {256: 4.0, 4096: 5.5}


@pytest.mark.parametrize("batch_size", list(GOALS))
def test_sampling_is_several_times_faster_than_torchrl(ours, theirs, batch_size, show):
    steps = len(ours)
    windows = ours.storage._windows
    record = ours.stored.schema.record_bytes
    rows = windows.as_strided((steps, record // 8), (record // 8, 1))

    took = compare(
        {
            "ours": lambda: ours.sample(batch_size),
            "torchrl": lambda: theirs.sample(batch_size),
            "window gather": lambda: windows.index_select(0, torch.randint(steps, (batch_size,))),
            "row gather": lambda: rows.index_select(0, torch.randint(steps, (batch_size,))),
        },
        repeat=100 if batch_size < 1000 else 40,
    )

    micro = {name: round(value * 1e6) for name, value in took.items()}
    ratio = took["torchrl"] / took["ours"]
    show(
        f"\nsample({batch_size}): {micro} us; {ratio:.1f} times faster than TorchRL, "
        f"{took['ours'] / took['row gather']:.2f} times the bare gather of rows, "
        f"{took['ours'] / took['window gather']:.2f} times that of windows"
    )
    assert ratio >= GOALS[batch_size]


def test_a_batch_of_short_episodes_costs_little_more(ours, show):
    """Every end of an episode takes its next observation from another file."""
    batch = torch.randint(len(ours), (256,))
    ends = torch.from_numpy(ours.episodes.stops[:256] - 1)

    took = compare({"random rows": lambda: ours.storage.get(batch), "only ends": lambda: ours.storage.get(ends)})

    show(f"\n256 rows: {took['random rows'] * 1e6:.0f} us; 256 ends: {took['only ends'] * 1e6:.0f} us")
    assert took["only ends"] < 3 * took["random rows"]
