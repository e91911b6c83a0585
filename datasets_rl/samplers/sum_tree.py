"""Sum tree of the priorities of rows, from which prioritized samplers draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_DENSE = 2
"""A level with fewer sums per written row is recomputed as a whole."""


class SumTree:
    """The mass of each row, where mass = (priority + eps) ** alpha, and the sum of all masses.

    A tree in which each sum is that of 8 children: masses on the lowest level, sums above. The children fill one cache
    line, and a draw adds up 4 or 2 of them as it descends. A sum is always computed from its children, never updated by
    a difference, so that rounding errors do not accumulate. All levels are in one array, the highest level first:

        sums      total | 0-63  64-127  128-191  192-255 | 0-7  8-15  16-23 ...       masses    row 0, row 1, ...
        index     0       8     9       10       11        16   17    18                        0      1

    Args:
        capacity: Number of rows; 200 to 256 in the figure.
        ranked: Whether to track the largest priority, which makes writes 1.3 times as slow.
    """

    def __init__(self, capacity: int, *, ranked: bool = False) -> None:
        blocks = 1 << ((capacity - 1) // 8).bit_length()
        count, size = 16, blocks
        while size > 8:
            count, size = count + size, size // 8
        self._sums, self._highs = _aligned_zeros(count), _aligned_zeros(count)
        self._masses, self._priorities = _aligned_zeros(8 * blocks), _aligned_zeros(8 * blocks)
        self._low = np.array([np.inf, 0.0])
        self._capacity = capacity
        self._ranked = ranked

    def grown(self, capacity: int) -> SumTree:
        """Return a tree of a larger capacity with the priorities and masses of this one."""
        larger = SumTree(capacity, ranked=self._ranked)
        rows = np.arange(self._capacity)
        # The masses are not computed again: that of a torn row is 0, whatever its priority is.
        _write(
            *(larger._sums, larger._masses, larger._highs, larger._priorities, larger._low),
            *(rows, self.priorities, self.masses, self._ranked),
        )
        return larger

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._sums[0])

    @property
    def lowest(self) -> float:
        """The smallest mass that is not 0; infinity if all are 0."""
        # A tree of minima would make writes 1.3 times as slow. All rows are scanned only after the last row of the
        # smallest mass got a larger one, and that row is the one drawn, and therefore updated, least often.
        if not self._low[1]:
            _find_lowest(self._masses, self._low)
        return float(self._low[0])

    @property
    def highest_priority(self) -> float:
        """The largest priority; 0 if the tree is empty or not ranked."""
        return float(self._highs[0])

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


def _aligned_zeros(count: int) -> Floats:
    """Return zeros that start at a cache line; the system allocates their pages at the first write."""
    zeros = np.zeros(count + 7)
    start = -zeros.ctypes.data // zeros.itemsize % 8
    return zeros[start : start + count]


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


@compile_for("float64(float64[::1], int64)")
def _sum_block(values: Floats, block: int) -> float:
    i = 8 * block
    left: float = values[i] + values[i + 1] + (values[i + 2] + values[i + 3])
    right: float = values[i + 4] + values[i + 5] + (values[i + 6] + values[i + 7])
    return left + right


@compile_for("float64(float64[::1], int64)")
def _max_block(values: Floats, block: int) -> float:
    i = 8 * block
    left: float = max(values[i], values[i + 1], values[i + 2], values[i + 3])
    right: float = max(values[i + 4], values[i + 5], values[i + 6], values[i + 7])
    return max(left, right)


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
    count, single = len(rows), len(new_priorities) == 1
    first, last = len(masses), 0
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
        first, last = min(first, row), max(last, row)
    low[0], low[1] = lowest, lowest_count
    children, high_children = masses, priorities
    size, stop, depth = len(masses) // 8, len(sums), 3
    while stop > 8:
        start = stop - max(size, 8)
        parents, high_parents = sums[start:stop], highs[start:stop]
        first >>= 3
        last >>= 3
        # On the highest levels, and for neighboring rows, there are few parents per row.
        whole_level = last - first < _DENSE * count
        for i in range(last - first + 1 if whole_level else count):
            parent = first + i if whole_level else rows[i] >> depth
            parents[parent] = _sum_block(children, parent)
            if ranked:
                high_parents[parent] = _max_block(high_children, parent)
        children, high_children = parents, high_parents
        size, stop, depth = size // 8, start, depth + 3
    sums[0] = _sum_block(sums, 1)
    if ranked:
        highs[0] = _max_block(highs, 1)
    return highest


@compile_for("void(float64[::1], int64, float64[::1], int64[::1])")
def _descend(level: Floats, width: int, points: Floats, rows: Rows) -> None:
    """Replace each parent in `rows` by the one of its `width` children on a level that contains its point."""
    # All points halve their children before any halves them again, so that their reads do not wait for each other. With
    # a million rows, this is 15 times faster than one point at a time.
    count = len(points)
    # Numba tests whether a signed index is negative, which takes an eighth of the time.
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    if width == 8:
        for i in range(count):
            row = np.uint64(rows[i]) << three
            left = level[row] + level[row + one] + (level[row + two] + level[row + three])
            right = points[i] >= left
            points[i] = points[i] - left if right else points[i]
            rows[i] = row + four if right else row
    if width >= 4:
        for i in range(count):
            row = np.uint64(rows[i])
            left = level[row] + level[row + one]
            right = points[i] >= left
            points[i] = points[i] - left if right else points[i]
            rows[i] = row + two if right else row
    if width >= 2:
        for i in range(count):
            row = np.uint64(rows[i])
            right = points[i] >= level[row]
            points[i] = points[i] - level[row] if right else points[i]
            rows[i] = row + one if right else row


@compile_for("void(float64[::1], float64[::1], float64[::1], int64[::1], float64[::1])")
def _draw(sums: Floats, masses: Floats, points: Floats, rows: Rows, drawn: Floats) -> None:
    blocks, count = len(masses) // 8, len(points)
    for i in range(count):
        points[i] *= sums[0]
        rows[i] = 0
    size = blocks
    while size > 8:
        size //= 8
    _descend(sums[8:16], size, points, rows)
    start = 16
    while size < blocks:
        size *= 8
        _descend(sums[start : start + size], 8, points, rows)
        start += size
    _descend(masses, 8, points, rows)
    for i in range(count):
        row = rows[i]
        # Rounding may put a point past the last mass: the point then selects that mass.
        while masses[row] == 0:
            row -= 1
        drawn[i] = masses[row]
        rows[i] = row
