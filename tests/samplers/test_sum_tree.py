"""The sum tree of prioritized samplers, compared with sums over a plain list."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl.samplers.sum_tree import SumTree

ALMOST_ONE = math.nextafter(1.0, 0.0)
POINTS = np.array([0.0, 5e-324, 0.1, 0.25, 0.5, 0.75, 0.999, ALMOST_ONE])

priorities = st.one_of(
    st.just(0.0),
    st.floats(0, 10),
    st.floats(0, 1e300, allow_subnormal=True),
    st.sampled_from([5e-324, 1e-300, 1e-16, 1.0, 1.0 + 2**-52, 1e16]),
)


@st.composite
def writes(draw):
    capacity = draw(st.integers(1, 40) | st.sampled_from([512, 513, 5000]))  # up to four levels of sums
    rows = st.lists(st.integers(0, capacity - 1), min_size=1, max_size=50)
    batches = [
        (chosen, draw(st.lists(priorities, min_size=len(chosen), max_size=len(chosen))))
        for chosen in draw(st.lists(rows, min_size=1, max_size=6))
    ]
    return capacity, batches


def write(tree, rows, values, eps=0.0, alpha=1.0):
    tree.write(np.array(rows, np.int64), np.array(values, np.float64), eps, alpha)


@settings(deadline=None)
@given(writes(), st.booleans())
def test_its_sum_minimum_and_maximum_are_those_of_a_list(given, look):
    capacity, batches = given
    tree, model = SumTree(capacity, ranked=True), [0.0] * capacity
    for rows, values in batches:
        write(tree, rows, values)
        for row, value in zip(rows, values, strict=True):
            model[row] = value
        if look:
            assert tree.lowest == min((mass for mass in model if mass), default=math.inf)

    assert tree.priorities[:capacity].tolist() == model
    assert tree.total == pytest.approx(math.fsum(model), rel=1e-14)
    assert tree.lowest == min((mass for mass in model if mass), default=math.inf)
    assert tree.highest_priority == max(model)


@settings(deadline=None)
@given(writes())
def test_overwritten_masses_leave_no_rounding_error(given):
    """Inner sums that are updated by differences would accumulate rounding errors."""
    capacity, batches = given
    tree, fresh = SumTree(capacity, ranked=True), SumTree(capacity, ranked=True)
    for rows, values in batches:
        write(tree, rows, values)
    for row in {row for rows, _ in batches for row in rows}:
        write(fresh, [row], [tree.priorities[row]])

    assert tree._nodes[0].tolist() == fresh._nodes[0].tolist()
    assert tree.lowest == fresh.lowest
    assert tree._nodes[1].tolist() == fresh._nodes[1].tolist()


@settings(deadline=None)
@given(writes())
def test_a_drawn_row_always_has_mass(given):
    capacity, batches = given
    tree = SumTree(capacity)
    for rows, values in batches:
        write(tree, rows, values)
    if not tree.total:
        return

    rows, masses = tree.draw(POINTS.copy())

    assert ((rows >= 0) & (rows < capacity)).all()
    assert (masses > 0).all()
    assert masses.tolist() == tree.priorities[rows].tolist()


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=600), st.lists(st.floats(0, ALMOST_ONE), min_size=1))
def test_a_point_gives_the_row_where_the_cumulative_sum_exceeds_it(masses, points):
    """The masses are integers with exact sums, so that the row is unique."""
    if not any(masses):
        return
    tree = SumTree(len(masses))
    write(tree, range(len(masses)), masses)
    total = sum(masses)
    expected = [next(row for row in range(len(masses)) if sum(masses[: row + 1]) > point * total) for point in points]

    assert tree.draw(np.array(points))[0].tolist() == expected


def test_a_point_past_the_total_by_rounding_gives_the_last_row_with_mass():
    """1 + 2 ** -53 rounds up, so the rest of the point exceeds the second mass, which is followed by zeros."""
    tree = SumTree(8)
    write(tree, [0, 4], [1.0, 1.5 * 2**-53])

    rows, masses = tree.draw(np.array([1.0, ALMOST_ONE]))

    assert tree.total == 1 + 2**-52
    assert rows[0] == 4
    assert (masses > 0).all()


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 9])
def test_the_last_row_can_be_drawn_alone(capacity):
    tree = SumTree(capacity)
    write(tree, [capacity - 1], [3.0])

    assert tree.draw(POINTS.copy())[0].tolist() == [capacity - 1] * len(POINTS)


def test_of_repeated_rows_the_last_priority_is_kept():
    tree = SumTree(4)
    write(tree, [2, 1, 2, 2], [9.0, 1.0, 8.0, 5.0])

    assert tree.priorities.tolist() == [0.0, 1.0, 5.0, 0.0]
    assert tree.total == 6.0


def test_one_priority_applies_to_many_rows():
    tree = SumTree(4, ranked=True)
    write(tree, [0, 3], [2.0], eps=1.0, alpha=2.0)

    assert tree.total == 18.0
    assert tree.lowest == 9.0
    assert tree.highest_priority == 2.0


LENGTHS = st.sampled_from([1, 7, 511, 512, 513, 1024, 1500, 4096, 5000])


@st.composite
def appended(draw):
    """The lengths of appended ranges, each with a priority, and what follows: writes and draws."""
    ranges = draw(st.lists(st.tuples(LENGTHS, priorities), min_size=1, max_size=4))
    capacity = sum(length for length, _ in ranges)
    row = st.integers(0, capacity - 1)
    written = st.lists(st.tuples(row, priorities), min_size=1, max_size=20)
    run = st.builds(
        lambda start, value: [(row, value) for row in range(start, min(start + 700, capacity))], row, priorities
    )
    return ranges, draw(st.lists(st.none() | st.just("lowest") | written | run, max_size=8))


@settings(deadline=None)
@given(appended(), st.booleans())
def test_appended_rows_are_drawn_as_if_each_was_written(given, ranked):
    """A chunk of 512 appended rows is one sum until a row of it is drawn or written."""
    ranges, steps = given
    capacity = sum(length for length, _ in ranges)
    tree, filled = SumTree(capacity, ranked=ranked), SumTree(capacity, ranked=ranked)
    start = 0
    for length, value in ranges:
        tree.append(range(start, start + length), value, 0.0, 1.0)
        filled.write(np.arange(start, start + length), np.full(length, value), 0.0, 1.0)
        start += length
    for step in [*steps, None]:
        if step == "lowest":
            assert tree.lowest == filled.lowest
        elif step is not None:
            rows, values = zip(*step, strict=True)
            write(tree, rows, values)
            write(filled, rows, values)
        elif filled.total:
            for drawn, expected in zip(tree.draw(POINTS.copy()), filled.draw(POINTS.copy()), strict=True):
                assert drawn.tolist() == expected.tolist()
    some = np.arange(0, capacity, 97)

    assert tree.total == filled.total
    assert tree.lowest == filled.lowest
    assert tree.highest_priority == filled.highest_priority
    assert tree.masses_of(some).tolist() == filled.masses[some].tolist()
    assert tree.masses.tolist() == filled.masses.tolist()
    assert tree.priorities.tolist() == filled.priorities.tolist()
    assert tree._nodes[0].tolist() == filled._nodes[0].tolist()


@pytest.mark.slow
def test_other_threads_run_while_it_draws():
    """A loop that holds the lock would block the other thread until it ends."""
    tree = SumTree(1 << 16)
    write(tree, range(1 << 16), np.ones(1 << 16))
    points = np.random.default_rng(0).random(4_000_000)

    def moments_inside():
        done, seen = threading.Event(), []

        def watch():
            while not done.wait(0.001):
                seen.append(time.perf_counter())

        thread = threading.Thread(target=watch)
        thread.start()
        start = time.perf_counter()
        tree.draw(points)
        stop = time.perf_counter()
        done.set()
        thread.join()
        return [moment for moment in seen if start + (stop - start) / 10 < moment < stop - (stop - start) / 10]

    # Another process may have the core of the watching thread for the whole of a draw.
    assert any(len(moments_inside()) > 3 for _ in range(10))


@pytest.mark.slow
def test_a_million_rows_keep_an_exact_sum_after_many_updates():
    rng = np.random.default_rng(0)
    tree, model = SumTree(1_000_000), np.zeros(1_000_000)
    for _ in range(2000):
        rows, values = rng.integers(0, 1_000_000, 4096), rng.random(4096) * 10.0 ** rng.integers(-12, 12)
        tree.write(rows, values, 0.0, 1.0)
        model[rows] = values

    assert tree.total == pytest.approx(math.fsum(model), rel=1e-15)
    assert tree.lowest == model[model > 0].min()
