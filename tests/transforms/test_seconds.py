"""Windows by seconds are those of LeRobot's reader: its rounding, its tolerance, its clamping and its masks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import WindowTransform


def lerobot(column, starts, stops, row, seconds, fps):
    """`LeRobotDataset._get_query_indices` of lerobot 0.4.4, for one row, and the values of these rows."""
    start = max(one for one in starts if one <= row)
    stop = min(one for one in stops if one > row)
    deltas = [round(one * fps) for one in seconds]
    rows = [max(start, min(stop - 1, row + delta)) for delta in deltas]
    padding = [(row + delta < start) | (row + delta >= stop) for delta in deltas]
    return torch.stack([column[one] for one in rows]), torch.tensor(padding)


def steps(lengths):
    count = sum(lengths)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    return TensorDict(
        {
            "observation": {"state": torch.randn(count, 3), "image": {"top": torch.randint(256, (count, 2, 2, 3))}},
            "action": torch.randn(count, 2),
            "next": {"reward": torch.randn(count, 1), "done": done, "terminated": done, "truncated": ~done & done},
        },
        [count],
    )


@st.composite
def windows(draw):
    """Draw a frame rate, and seconds by key that are those of steps, up to less than the tolerance."""
    fps = draw(st.sampled_from([1, 3, 10, 15, 29.97, 30, 50, 120]))
    keys = draw(
        st.sets(st.sampled_from(["observation.state", "observation.image.top", "action", "next.reward"]), min_size=1)
    )
    apart = st.sampled_from([0, 9e-5, -9e-5])
    seconds = st.lists(
        st.builds(lambda step, off: step / fps + off, st.integers(-12, 12), apart), min_size=1, max_size=6
    )
    return fps, {key: draw(seconds) for key in sorted(keys)}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), windows(), st.integers(0, 8))
def test_every_value_and_every_mask_is_that_of_lerobot(lengths, drawn, wrap):
    fps, seconds = drawn
    data = steps(lengths)
    stops = torch.tensor(lengths).cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    transform = WindowTransform.delta_timestamps(seconds, fps)
    # A ring whose first episodes were overwritten, so that it begins in the middle of its memory.
    ring = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), transform=transform)
    ring.extend(data[: wrap % len(data)])
    ring.extend(data)
    rows = (torch.arange(len(data)) + wrap % len(data)) % len(data)

    for batch in (transform(data), ring.sample(rows=rows), ring[rows]):
        for key, given_seconds in seconds.items():
            path = tuple(key.split("."))
            found = [lerobot(data[path], starts, stops, row, given_seconds, fps) for row in range(len(data))]
            assert torch.equal(batch[path], torch.stack([values for values, _ in found])), key
            mask = batch[(*path[:-1], f"{path[-1]}_is_pad")]
            assert mask.dtype is torch.bool
            assert torch.equal(mask, torch.stack([padding for _, padding in found])), key


def test_entries_without_seconds_keep_their_shape():
    batch = WindowTransform.delta_timestamps({"action": [0, 0.1]}, 10)(steps([3, 2]))

    assert batch["action"].shape == (5, 2, 2)
    assert batch["observation", "state"].shape == (5, 3)
    assert "state_is_pad" not in batch["observation"].keys()  # noqa: SIM118 - a TensorDict iterates over its steps


@pytest.mark.parametrize("fps", [10, 30, 50])
@pytest.mark.parametrize("second", [0.1, 0.1 + 9e-5, 0.1 + 2e-4, 0.1004, 0.15, -0.05, -1 / 3])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-3, 0.04])
def test_seconds_are_accepted_as_by_lerobot(fps, second, tolerance):
    """`check_delta_timestamps` of lerobot 0.4.4."""
    accepted = abs(second * fps - round(second * fps)) / fps <= tolerance
    if accepted:
        made = WindowTransform.delta_timestamps({"action": [0, second]}, fps, tolerance)
        assert [*made.offsets["action"]] == [0, round(second * fps)]
    else:
        with pytest.raises(InvalidArgumentError, match=f"expected multiples of 1/{fps} s"):
            WindowTransform.delta_timestamps({"action": [0, second]}, fps, tolerance)


def test_an_error_names_every_number_of_seconds_and_its_nearest_step():
    with pytest.raises(InvalidArgumentError) as raised:
        WindowTransform.delta_timestamps({"action": [0, 0.13, 0.2], "observation.state": [-0.31]}, 10)

    assert (
        "delta_timestamps of 'action' has 0.13 (nearest: 0.1); delta_timestamps of 'observation.state' has -0.31"
        in str(raised.value)
    )
    assert "expected multiples of 1/10 s, up to a difference of 0.0001 s" in str(raised.value)


@pytest.mark.parametrize(
    ("seconds", "fps", "message"),
    [
        ([], 10, r"of 'action' is \[\], expected a list of finite numbers"),
        ([math.nan], 10, r"of 'action' is \[nan\]"),
        (0.1, 10, r"of 'action' is 0.1, expected a list"),
        (["now"], 10, r"of 'action' is \['now'\]"),
        ([0], 0, "fps is 0, expected a number of steps per second above 0"),
        ([0], math.inf, "fps is inf"),
    ],
)
def test_invalid_seconds_are_named(seconds, fps, message):
    with pytest.raises(InvalidArgumentError, match=message):
        WindowTransform.delta_timestamps({"action": seconds}, fps)


def test_all_other_invalid_arguments_are_named():
    with pytest.raises(InvalidArgumentError, match=r"tolerance_s is -1.*delta_timestamps is empty"):
        WindowTransform.delta_timestamps({}, 10, -1)
