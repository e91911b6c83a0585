"""The index arithmetic of trajectories and slices, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED
from datasets_rl.ted.table import EpisodeTable, concatenated_ranges
from datasets_rl.ted.trajectories import Trajectories, TrajectoryMarkers


def index(*numbers):
    return np.array(numbers, np.int64)


def listed(trajectories):
    bounds = zip(trajectories.firsts, trajectories.firsts + trajectories.lengths, strict=True)
    return [trajectories.rows(np.arange(first, stop)).tolist() for first, stop in bounds]


@pytest.fixture
def back_to_back():
    """Trajectories with rows 0-3, 4-5 and 6-8."""
    return Trajectories(index(0, 4, 6), index(4, 2, 3))


@pytest.fixture
def turns():
    """Environment 0 wrote rows 0, 2 and 4, environment 1 rows 1, 3 and 5; its first episode ended at row 3."""
    ends = np.array([False, False, False, True, False, False])
    return Trajectories.from_markers(TrajectoryMarkers((index(0, 1, 0, 1, 0, 1),), ends), np.arange(6))


class TestTrajectories:
    def test_a_table_of_episodes_needs_no_map(self):
        made = Trajectories.from_table(EpisodeTable.from_lengths(index(4, 2, 3)))

        assert listed(made) == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
        assert made.order is None
        assert made.ended_by == {NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED}

    def test_rows_of_alternating_environments_are_joined(self, turns):
        assert listed(turns) == [[0, 2, 4], [1, 3], [5]]
        assert turns.longest == 3

    def test_rows_in_order_need_no_map(self):
        ends = np.array([False, True, False, True])

        assert Trajectories.from_markers(TrajectoryMarkers((np.zeros(4, np.int64),), ends), np.arange(4)).order is None

    def test_rows_are_in_chronological_order(self):
        """A ring of 4 that wraps: the oldest is row 2, the newest row 1."""
        ends = np.array([False, False, True, False])
        made = Trajectories.from_markers(TrajectoryMarkers((np.zeros(4, np.int64),), ends), index(2, 3, 0, 1))

        assert listed(made) == [[2, 3, 0], [1]]

    def test_rows_out_of_order_are_sorted_by_step_and_divided_at_gaps(self):
        made = Trajectories.from_markers(
            TrajectoryMarkers((index(7, 3, 7, 3, 7, 7),), None, index(1, 0, 0, 1, 4, 3)), np.arange(6)
        )

        assert listed(made) == [[1, 3], [2, 0], [5, 4]]

    def test_a_row_has_its_trajectory_and_position(self, turns):
        numbers, places = turns.locate(index(5, 2, 3))

        assert numbers.tolist() == [2, 0, 1]
        assert (places - turns.firsts[numbers]).tolist() == [0, 1, 1]

    @given(st.lists(st.integers(1, 3) | st.integers(1, 200), min_size=1, max_size=60), st.data())
    def test_a_row_of_a_dataset_has_the_trajectory_that_contains_it(self, lengths, data):
        table = EpisodeTable.from_lengths(np.array(lengths))
        rows = np.array(data.draw(st.lists(st.integers(0, sum(lengths) - 1), max_size=20)), np.int64)
        numbers, places = Trajectories.from_table(table).locate(rows)

        assert numbers.tolist() == [number for row in rows for number in np.flatnonzero(table.stops > row)[:1]]
        assert places.tolist() == rows.tolist()

    def test_shares_are_every_nth(self, back_to_back):
        assert listed(back_to_back.share(0, 2)) == [[0, 1, 2, 3], [6, 7, 8]]
        assert listed(back_to_back.share(1, 2)) == [[4, 5]]


class TestSlices:
    def all(self, slices):
        starts, lengths = slices.at(np.arange(slices.total))
        rows = slices.rows(starts, lengths).tolist()
        sizes = [slices.length] * slices.total if lengths is None else lengths.tolist()
        return [[rows.pop(0) for _ in range(size)] for size in sizes]

    @pytest.mark.parametrize("options", [{}, {"before": 2}, {"after": 1}, {"short": True, "before": 1, "after": 2}])
    def test_a_slice_has_a_number_within_its_trajectory(self, back_to_back, options):
        slices = back_to_back.slices(3, **options)
        owners = np.repeat(np.arange(len(back_to_back)), slices.counts)
        numbers = np.concatenate([np.arange(count) for count in slices.counts])

        for found, expected in zip(slices.of(owners, numbers), slices.at(np.arange(slices.total)), strict=True):
            assert (found is None and expected is None) or found.tolist() == expected.tolist()

    def test_every_slice_has_a_number(self, back_to_back):
        assert self.all(back_to_back.slices(3)) == [[0, 1, 2], [1, 2, 3], [6, 7, 8]]

    def test_slices_over_the_start_are_cut_there(self, back_to_back):
        assert self.all(back_to_back.slices(3, before=2)) == [
            *([0], [0, 1], [0, 1, 2], [1, 2, 3]),
            *([6], [6, 7], [6, 7, 8]),
        ]

    def test_slices_over_the_end_are_cut_there(self, back_to_back):
        assert self.all(back_to_back.slices(3, after=1)) == [
            *([0, 1, 2], [1, 2, 3], [2, 3]),
            *([6, 7, 8], [7, 8]),
        ]

    def test_a_short_trajectory_is_spanned_by_its_own_length(self, back_to_back):
        assert self.all(back_to_back.slices(5, short=True, before=4))[4:6] == [[4], [4, 5]]

    def test_whether_a_slice_starts_at_a_row(self, back_to_back, turns):
        assert (
            back_to_back.slices(3).starting(np.arange(9))[0].tolist()
            == [True, True] + [False] * 4 + [True] + [False] * 2
        )
        admitted, starts, lengths = back_to_back.slices(3, short=True).starting(index(4, 5, 1))
        assert admitted.tolist() == [True, False, True]
        assert starts.tolist() == [4, 5, 1]
        assert lengths is not None
        assert lengths.tolist() == [2, 1, 3]
        admitted, starts, lengths = turns.slices(2).starting(index(2, 4, 1))
        assert admitted.tolist() == [True, False, True]
        assert lengths is None
        assert turns.slices(2).rows(starts[admitted], None).tolist() == [2, 4, 1, 3]

    def test_a_slice_over_the_end_may_start_where_it_says(self, back_to_back):
        admitted, _, lengths = back_to_back.slices(3, after=1).starting(index(2, 3))

        assert admitted.tolist() == [True, False]
        assert lengths is not None
        assert lengths.tolist()[0] == 2

    def test_without_a_slice_the_error_names_the_longest_trajectory(self, back_to_back):
        with pytest.raises(InvalidArgumentError, match="no trajectory has 5 steps, and the longest of 3 has 4"):
            back_to_back.slices(5).check_any_left()
        with pytest.raises(InvalidArgumentError, match="empty storage"):
            Trajectories(index(), index()).slices(1).check_any_left()


def test_spans_follow_each_other():
    assert concatenated_ranges(index(5, 0, 9), index(2, 0, 3)).tolist() == [5, 6, 9, 10, 11]
    assert concatenated_ranges(index(), index()).tolist() == []
