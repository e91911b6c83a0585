"""Sum tree of the priorities of rows, from which prioritized samplers draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.compiled import compile_for

__all__ = ["SumTree"]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_DENSE = 2
"""A level with fewer nodes per written row is recomputed as a whole."""


class SumTree:
    """The mass of each row, where mass = (priority + eps) ** alpha, and the sum of all masses.

    A binary tree over blocks of 8 rows, in one array: node 1 is the root, and the children of node i are 2i and 2i + 1.
    An inner node is always the sum of its two children, never updated by a difference, so that rounding errors do not
    accumulate. The three levels inside a block are not stored but summed on demand: the masses of a block fill one or
    two cache lines, and writes take half the time.

                   1                  capacity 26, blocks 4
              2         3             rows     0-7  8-15  16-23  24-31
            4   5     6   7           node      4     5      6      7

    Args:
        capacity: Number of rows.
        ranked: Whether to track the largest priority, which makes writes 1.5 times as slow.
    """

    def __init__(self, capacity: int, *, ranked: bool = False) -> None:
        blocks = 1 << ((capacity - 1) // 8).bit_length()
        # The system allocates pages of zeros at their first write: unused capacity takes no memory.
        self._sums, self._highs = np.zeros((2, 2 * blocks))
        self._masses, self._priorities = np.zeros((2, 8 * blocks))
        self._low = np.array([np.inf, 0.0])
        self._capacity = capacity
        self._ranked = ranked

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._sums[1])

    @property
    def lowest(self) -> float:
        """The smallest mass that is not 0; infinity if all are 0."""
        # A tree of minima would make writes 1.5 times as slow. All rows are scanned only after the last row of the
        # smallest mass got a larger one, and that row is the one drawn, and therefore updated, least often.
        if not self._low[1]:
            _find_lowest(self._masses, self._low)
        return float(self._low[0])

    @property
    def highest_priority(self) -> float:
        """The largest priority; 0 if the tree is empty or not ranked."""
        return float(self._highs[1])

    @property
    def priorities(self) -> Floats:
        """The priority of each row, [capacity]; a view."""
        return self._priorities[: self._capacity]

    @property
    def masses(self) -> Floats:
        """The mass of each row, [capacity]; a view."""
        return self._masses[: self._capacity]

    @staticmethod
    def are_valid(rows: Rows, priorities: Floats, count: int, largest: float) -> bool:
        """Return whether all rows are in [0, count) and all priorities in [0, largest]; False for NaN."""
        return _are_within(rows, priorities, count, largest)

    def write(self, rows: Rows, priorities: Floats, eps: float, alpha: float) -> float:
        """Set the priorities of rows.

        Args:
            rows: Rows below the capacity, [n]. If a row occurs twice, the last priority is used.
            priorities: Finite, nonnegative numbers, [n], or [1] for all rows.
            eps: Constant added to each priority.
            alpha: Exponent.

        Returns:
            The largest of the priorities.
        """
        # Outside the compiled loop: the power function of numpy is fast on many machines.
        masses = np.power(priorities + eps, alpha)
        return _write(
            self._sums, self._masses, self._highs, self._priorities, self._low, rows, priorities, masses, self._ranked
        )

    def draw(self, points: Floats) -> tuple[Rows, Floats]:
        """Draw a row for each point, with probability proportional to its mass; a row of mass 0 is never drawn.

        Args:
            points: Numbers in [0, 1), [B]; they are overwritten.

        Returns:
            The rows and their masses, [B] each.
        """
        rows, masses = np.empty(len(points), np.int64), np.empty(len(points))
        _draw(self._sums, self._masses, points, rows, masses)
        return rows, masses


@compile_for("boolean(int64[::1], float64[::1], int64, float64)")
def _are_within(rows: Rows, priorities: Floats, count: int, largest: float) -> bool:
    invalid = 0
    for row in rows:
        invalid += row < 0 or row >= count
    for priority in priorities:
        invalid += not 0 <= priority <= largest
    return invalid == 0


@compile_for("void(float64[::1], float64[::1])")
def _find_lowest(masses: Floats, low: Floats) -> None:
    lowest, count = np.inf, 0
    for mass in masses:
        lowest = min(lowest, mass if mass > 0 else np.inf)
    for mass in masses:
        count += mass == lowest
    low[0], low[1] = lowest, count


@compile_for(
    "float64(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], int64[::1], float64[::1],"
    "float64[::1], boolean)"
)
def _write(
    sums: Floats,
    masses: Floats,
    highs: Floats,
    priorities: Floats,
    low: Floats,
    rows: Rows,
    new_priorities: Floats,
    new_masses: Floats,
    ranked: bool,
) -> float:
    blocks, count, single = len(sums) // 2, len(rows), len(new_priorities) == 1
    first, last = 2 * blocks, 1
    highest = 0.0
    lowest, lowest_count = low
    for i in range(count):
        row, index = rows[i], 0 if single else i
        mass, priority = new_masses[index], new_priorities[index]
        # If no row has the lowest mass any more, all masses are above it, so a mass that is not above is the new lowest.
        if masses[row] == lowest:
            lowest_count -= 1
        if 0 < mass < lowest:
            lowest, lowest_count = mass, 1.0
        elif mass == lowest:
            lowest_count += 1
        masses[row] = mass
        priorities[row] = priority
        highest = max(highest, priority)
        node = blocks + (row >> 3)
        first, last = min(first, node), max(last, node)
    low[0], low[1] = lowest, lowest_count
    whole_level = last - first < count
    for i in range(last - first + 1 if whole_level else count):
        node = first + i if whole_level else blocks + (rows[i] >> 3)
        m = 8 * (node - blocks)
        sums[node] = (masses[m] + masses[m + 1] + (masses[m + 2] + masses[m + 3])) + (
            masses[m + 4] + masses[m + 5] + (masses[m + 6] + masses[m + 7])
        )
        if ranked:
            highs[node] = priorities[m : m + 8].max()
    depth = 3
    while first > 1:
        depth += 1
        first >>= 1
        last >>= 1
        # Near the root, and for neighboring rows, a level has few nodes per row.
        whole_level = last - first < _DENSE * count
        for i in range(last - first + 1 if whole_level else count):
            node = first + i if whole_level else (8 * blocks + rows[i]) >> depth
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            if ranked:
                highs[node] = max(highs[2 * node], highs[2 * node + 1])
    return highest


@compile_for("void(float64[::1], float64[::1], float64[::1], int64[::1], float64[::1])")
def _draw(sums: Floats, masses: Floats, points: Floats, rows: Rows, drawn: Floats) -> None:
    blocks, count = len(sums) // 2, len(points)
    for i in range(count):
        points[i] *= sums[1]
        rows[i] = 1
    # All points descend one level before any descends the next, so that their reads do not wait for each other. With a
    # million rows, this is 15 times faster than one point at a time, and at least twice as fast as nodes with 4 to 32
    # children, whose comparison is more complex.
    size = 1
    while size < blocks:
        for i in range(count):
            left = 2 * rows[i]
            right = points[i] >= sums[left]
            points[i] = points[i] - sums[left] if right else points[i]
            rows[i] = left + 1 if right else left
        size *= 2
    for i in range(count):
        row = 8 * (rows[i] - blocks)
        left_mass = masses[row] + masses[row + 1] + (masses[row + 2] + masses[row + 3])
        right = points[i] >= left_mass
        points[i] = points[i] - left_mass if right else points[i]
        rows[i] = row + 4 if right else row
    for i in range(count):
        row = rows[i]
        left_mass = masses[row] + masses[row + 1]
        right = points[i] >= left_mass
        points[i] = points[i] - left_mass if right else points[i]
        rows[i] = row + 2 if right else row
    for i in range(count):
        row = rows[i]
        row = row + 1 if points[i] >= masses[row] else row
        # Rounding may put a point past the last mass: the point then selects that mass.
        while masses[row] == 0:
            row -= 1
        drawn[i] = masses[row]
        rows[i] = row
