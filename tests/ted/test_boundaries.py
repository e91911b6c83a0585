"""The bounds of trajectories in the order of a ring."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datasets_rl import find_start_stop_traj
from datasets_rl.errors import InvalidArgumentError


def bounds(**kwargs):
    """Return (row, ..., last row, length) of every trajectory."""
    start, stop, lengths = find_start_stop_traj(**kwargs)
    return [
        (*first, last[0], length)
        for first, last, length in zip(start.tolist(), stop.tolist(), lengths.tolist(), strict=True)
    ]


def flags(count, *rows):
    return torch.arange(count)[:, None].eq(torch.tensor(rows)).any(1)


def test_the_example_of_the_documentation():
    """A full ring: the row under the cursor is an end, and the last trajectory continues at row 0."""
    expected = [(8, 2, 5), (3, 4, 2), (5, 7, 3)]

    assert bounds(end=flags(10, 2, 7), at_capacity=True, cursor=4) == expected
    assert bounds(trajectory=torch.tensor([5, 5, 5, 0, 0, 1, 1, 1, 5, 5]), at_capacity=True) == expected


@pytest.mark.parametrize("cursor", [4, torch.tensor([3, 4]), range(2, 5)], ids=str)
def test_the_cursor_is_the_last_of_several_rows(cursor):
    assert bounds(end=flags(6, 1), at_capacity=True, cursor=cursor) == [(5, 1, 3), (2, 4, 3)]


def test_a_storage_with_room_ends_at_its_last_row():
    assert bounds(end=flags(5, 1), at_capacity=False, cursor=3) == [(0, 1, 2), (2, 4, 3)]
    assert bounds(trajectory=torch.tensor([7]), at_capacity=False) == [(0, 0, 1)]


def test_environments_are_separate():
    end = torch.stack([flags(4, 1), flags(4)], 1)

    assert bounds(end=end, at_capacity=True) == [(2, 0, 1, 4), (0, 1, 3, 4)]


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({}, "neither"),
        ({"end": flags(3, 1), "trajectory": torch.zeros(3)}, "both"),
        ({"end": torch.zeros(0, dtype=torch.bool)}, "shape"),
        ({"end": torch.tensor(True)}, "shape"),
        ({"end": flags(3, 1), "cursor": range(0)}, "cursor"),
    ],
    ids=["neither", "both", "no rows", "no time", "no cursor"],
)
def test_arguments_without_a_meaning_are_refused(kwargs, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        find_start_stop_traj(**kwargs, at_capacity=True)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.booleans())
def test_every_row_is_in_one_trajectory_and_only_its_last_row_is_an_end(columns, at_capacity):
    end = torch.tensor(columns).T
    start, stop, lengths = find_start_stop_traj(end=end, at_capacity=at_capacity)
    covered = torch.zeros_like(end, dtype=torch.int64)
    for first, last, length in zip(start.tolist(), stop.tolist(), lengths.tolist(), strict=True):
        rows = (torch.arange(length) + first[0]) % len(end)
        covered[rows, first[1]] += 1
        assert first[1] == last[1]
        assert rows[-1] == last[0]
        assert not end[rows[:-1], first[1]].any()

    assert (covered == 1).all()
