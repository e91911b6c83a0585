"""The reference implementation `qlearning_reference`, on six rows computed by hand."""

from __future__ import annotations

import numpy as np
from golden.qlearning import qlearning_reference

COLUMNS = {
    "observations": np.arange(6)[:, None],
    "actions": np.arange(6),
    "rewards": np.arange(6.0),
    "terminals": np.array([0, 1, 0, 0, 0, 0], bool),
    "timeouts": np.array([0, 0, 0, 1, 0, 0], bool),
}


def test_the_last_row_and_rows_that_reached_the_limit_are_left_out():
    made = qlearning_reference(COLUMNS, 1000)

    assert made["rows"].tolist() == [0, 1, 2, 4]
    assert made["next_observations"].ravel().tolist() == [1, 2, 3, 5]
    assert made["terminals"].tolist() == [False, True, False, False]


def test_terminate_on_end_keeps_rows_that_reached_the_limit_as_not_terminal():
    made = qlearning_reference(COLUMNS, 1000, terminate_on_end=True)

    assert made["rows"].tolist() == [0, 1, 2, 3, 4]
    assert not made["terminals"][3]


def test_without_timeouts_the_limit_of_the_environment_applies():
    """D4RL starts to count at the row after a skipped row, but at a terminal row itself."""
    columns = {name: value for name, value in COLUMNS.items() if name != "timeouts"}
    made = qlearning_reference(columns, 3)

    assert made["rows"].tolist() == [0, 1, 2, 4]
