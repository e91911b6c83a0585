"""Sum tree of the priorities of rows, from which prioritized samplers draw."""

from __future__ import annotations

import mmap
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_DENSE = 2
"""A level with fewer sums per written row is recomputed as a whole."""
_CHUNK = 512
"""Number of rows, 8 ** 3, that are stored as a single sum while their priority is the same."""
_LARGE = 1 << 29
"""Number of bytes above which an array is in small pages: the first row of a huge page takes 2 MB of memory."""


class SumTree:
    """The mass of each row, where mass = (priority + eps) ** alpha, and the sum of all masses.

    A tree in which each number is the sum of 8 children: masses on the lowest level, sums above. The children fill a
    cache line, and a draw adds up 4 or 2 children per level. A sum is always computed from its children, never updated
    by a difference, so that rounding errors do not accumulate. All levels are in a single array, the highest level
    first:

        sums      total | 0-63  64-127  128-191  192-255 | 0-7  8-15  16-23 ...       masses    row 0, row 1, ...
        index     0       8     9       10       11        16   17    18                        0      1

    `append` gives all rows of a dataset the same priority. A chunk of 512 such rows is written as a single sum, 512
    times the mass, and the levels below that sum are filled when a draw or a write first enters the chunk. To begin
    with a billion rows therefore takes two million sums, and the memory grows with the chunks that were entered. The
    sums of equal masses are exact, so that the draws are the same as of a tree that was filled at once.

    Args:
        capacity: Number of rows, 200 to 256 in the figure.
        ranked: Whether to track the largest priority, which makes writes 1.3 times as slow.
    """

    def __init__(self, capacity: int, *, ranked: bool = False) -> None:
        blocks = 1 << ((capacity - 1) // 8).bit_length()
        count, size = 16, blocks
        while size > 8:
            count, size = count + size, size // 8
        self._nodes, self._leaves = _aligned_zeros(count), _aligned_zeros(8 * blocks)
        """The sums and the largest priorities of the levels, [2, ...], and the masses and the priorities, [2, rows]."""
        self._deferred = np.zeros(8 * blocks // _CHUNK if 8 * blocks > _CHUNK else 0, np.bool_)
        """Whether each chunk is only a sum, [chunks]: then `_nodes` has the priority of the chunk. Empty for a single
        chunk."""
        self._state = np.array([np.inf, 0.0, 0.0])
        """The smallest mass above 0, the number of rows with that mass, and the number of deferred chunks."""
        self._capacity = capacity
        self._ranked = ranked

    def grown(self, capacity: int) -> SumTree:
        """Return a tree of a larger capacity with the priorities and masses of this tree."""
        larger = SumTree(capacity, ranked=self._ranked)
        # The masses are not computed again: that of a torn row is 0, whatever its priority is.
        _write(
            *(larger._nodes, larger._leaves, larger._deferred, larger._state, larger._ranked),
            *(np.arange(self._capacity), self.priorities, self.masses),
        )
        return larger

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[0, 0])

    @property
    def lowest(self) -> float:
        """The smallest mass that is not 0, or infinity if all masses are 0."""
        # A tree of minima would make writes 1.3 times as slow. All rows are scanned only after the last row of the
        # smallest mass got a larger mass, and that row is drawn, and therefore updated, least often.
        if not self._state[1]:
            _find_lowest(self._nodes, self._leaves, self._deferred, self._state)
        return float(self._state[0])

    @property
    def highest_priority(self) -> float:
        """The largest priority, or 0 if the tree is empty or not ranked."""
        return float(self._nodes[1, 0])

    @property
    def priorities(self) -> Floats:
        """The priority of each row, [capacity], a view, for which all chunks are filled."""
        _fill_all(self._nodes, self._leaves, self._deferred, self._state, self._ranked)
        return self._leaves[1, : self._capacity]

    @property
    def masses(self) -> Floats:
        """The mass of each row, [capacity], a view, for which all chunks are filled."""
        _fill_all(self._nodes, self._leaves, self._deferred, self._state, self._ranked)
        return self._leaves[0, : self._capacity]

    def masses_of(self, rows: Rows) -> Floats:
        """Return the masses of some rows, [n]."""
        masses = np.empty(len(rows))
        _read_masses(self._nodes, self._leaves, self._deferred, rows, masses)
        return masses

    @staticmethod
    def are_valid(rows: Rows, priorities: Floats, count: int, largest: float) -> bool:
        """Return whether all rows are in [0, count) and all priorities in [0, largest]. False for NaN."""
        return _are_within(rows, priorities, count, largest)

    def append(self, rows: range, priority: float, eps: float, alpha: float) -> None:
        """Set the priority of consecutive rows that have never had a priority. Whole chunks of rows are not touched.

        Args:
            rows: Rows below the capacity, with a step of 1.
            priority: Finite, nonnegative number.
            eps: Constant added to the priority.
            alpha: Exponent.
        """
        first, stop = -(-rows.start // _CHUNK), rows.stop // _CHUNK
        if not len(self._deferred) or first >= stop:
            self.write(np.arange(rows.start, rows.stop), np.array([priority]), eps, alpha)
            return
        for part in (range(rows.start, first * _CHUNK), range(stop * _CHUNK, rows.stop)):
            if part:
                self.write(np.arange(part.start, part.stop), np.array([priority]), eps, alpha)
        mass = float(np.power(np.array([priority + eps]), alpha)[0])
        _defer(self._nodes, self._deferred, self._state, first, stop, priority, mass, self._ranked)

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
        return _write(self._nodes, self._leaves, self._deferred, self._state, self._ranked, rows, priorities, masses)

    def draw(self, points: Floats) -> tuple[Rows, Floats]:
        """Draw a row for each point, with probability proportional to the mass. A row of mass 0 is never drawn.

        Args:
            points: Numbers in [0, 1), [B], which are overwritten.

        Returns:
            The rows and the masses, [B] each.
        """
        rows, masses = np.empty(len(points), np.int64), np.empty(len(points))
        _draw(self._nodes, self._leaves, self._deferred, self._state, self._ranked, points, rows, masses)
        return rows, masses


def _aligned_zeros(count: int) -> Floats:
    """Return zeros, [2, count], that start at a cache line. The system allocates the pages at the first write."""
    if 16 * count > _LARGE and hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory = mmap.mmap(-1, 16 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(memory, np.float64).reshape(2, count)
    zeros = np.zeros(2 * count + 7)
    start = -zeros.ctypes.data // zeros.itemsize % 8
    return zeros[start : start + 2 * count].reshape(2, count)


@compile_for("boolean(int64[::1], float64[::1], int64, float64)")
def _are_within(rows: Rows, priorities: Floats, count: int, largest: float) -> bool:
    invalid = 0
    for row in rows:
        invalid += row < 0 or row >= count
    for priority in priorities:
        invalid += not 0 <= priority <= largest
    return invalid == 0


_TREE = "float64[:, ::1], float64[:, ::1], boolean[::1], float64[::1], boolean"
"""Types of the nodes, leaves, deferred chunks, state, and whether the tree is ranked."""


@compile_for("int64(int64, int64)")
def _chunk_level(count: int, chunks: int) -> int:
    """Return where the sums of chunks start among `count` sums."""
    return count - 64 * chunks - 8 * chunks - max(chunks, 8)


@compile_for(f"void({_TREE}, int64)")
def _fill(nodes: Floats, leaves: Floats, deferred: Flags, state: Floats, ranked: bool, chunk: int) -> None:
    """Write the masses and priorities of a deferred chunk, and the two levels of sums above."""
    count, chunks = nodes.shape[1], len(deferred)
    top = _chunk_level(count, chunks) + chunk
    mass, priority = nodes[0, top] / _CHUNK, nodes[1, top]
    for row in range(_CHUNK * chunk, _CHUNK * (chunk + 1)):
        leaves[0, row], leaves[1, row] = mass, priority
    for width in (8, 64):
        start = count - 64 * chunks - (8 * chunks if width == 8 else 0) + width * chunk
        for node in range(start, start + width):
            nodes[0, node] = mass * (_CHUNK // width)
            if ranked:
                nodes[1, node] = priority
    deferred[chunk] = False
    state[2] -= 1


@compile_for(f"void({_TREE}, int64[::1], int64)")
def _fill_chunks(
    nodes: Floats, leaves: Floats, deferred: Flags, state: Floats, ranked: bool, rows: Rows, size: int
) -> None:
    """Fill the deferred chunks among ``rows // size``."""
    if state[2]:
        for row in rows:
            if deferred[row // size]:
                _fill(nodes, leaves, deferred, state, ranked, row // size)


@compile_for(f"void({_TREE})")
def _fill_all(nodes: Floats, leaves: Floats, deferred: Flags, state: Floats, ranked: bool) -> None:
    if state[2]:
        for chunk in range(len(deferred)):
            if deferred[chunk]:
                _fill(nodes, leaves, deferred, state, ranked, chunk)


@compile_for("void(float64[:, ::1], float64[:, ::1], boolean[::1], int64[::1], float64[::1])")
def _read_masses(nodes: Floats, leaves: Floats, deferred: Flags, rows: Rows, masses: Floats) -> None:
    for i in range(len(rows)):
        chunk = rows[i] // _CHUNK
        if len(deferred) and deferred[chunk]:
            masses[i] = nodes[0, _chunk_level(nodes.shape[1], len(deferred)) + chunk] / _CHUNK
        else:
            masses[i] = leaves[0, rows[i]]


@compile_for("void(float64[:, ::1], float64[:, ::1], boolean[::1], float64[::1])")
def _find_lowest(nodes: Floats, leaves: Floats, deferred: Flags, state: Floats) -> None:
    chunks = max(len(deferred), 1)
    size = leaves.shape[1] // chunks
    lowest, count = np.inf, 0
    for counts in (False, True):
        for chunk in range(chunks):
            if len(deferred) and deferred[chunk]:
                mass = nodes[0, _chunk_level(nodes.shape[1], len(deferred)) + chunk] / _CHUNK
                if counts:
                    count += _CHUNK if mass == lowest else 0
                elif mass > 0:
                    lowest = min(lowest, mass)
                continue
            for mass in leaves[0, size * chunk : size * (chunk + 1)]:
                if counts:
                    count += mass == lowest
                else:
                    lowest = min(lowest, mass if mass > 0 else np.inf)
    state[0], state[1] = lowest, count


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


@compile_for("void(float64[:, ::1], boolean[::1], float64[::1], int64, int64, float64, float64, boolean)")
def _defer(
    nodes: Floats,
    deferred: Flags,
    state: Floats,
    first: int,
    stop: int,
    priority: float,
    mass: float,
    ranked: bool,
) -> None:
    """Write the sums of the chunks [first, stop), and the sums above."""
    if 0 < mass < state[0]:
        state[0], state[1] = mass, 0.0
    if mass == state[0]:
        state[1] += _CHUNK * (stop - first)
    state[2] += stop - first
    sums, highs, size = nodes[0], nodes[1], len(deferred)
    start = _chunk_level(len(sums), size)
    end = start + max(size, 8)
    for chunk in range(first, stop):
        deferred[chunk] = True
        sums[start + chunk] = _CHUNK * mass
        highs[start + chunk] = priority
    last = stop - 1
    while start > 8:
        children, high_children = sums[start:end], highs[start:end]
        size //= 8
        end, start = start, start - max(size, 8)
        first >>= 3
        last >>= 3
        for parent in range(first, last + 1):
            sums[start + parent] = _sum_block(children, parent)
            if ranked:
                highs[start + parent] = _max_block(high_children, parent)
    sums[0] = _sum_block(sums, 1)
    if ranked:
        highs[0] = _max_block(highs, 1)


@compile_for(f"float64({_TREE}, int64[::1], float64[::1], float64[::1])")
def _write(
    nodes: Floats,
    leaves: Floats,
    deferred: Flags,
    state: Floats,
    ranked: bool,
    rows: Rows,
    new_priorities: Floats,
    new_masses: Floats,
) -> float:
    count, single = len(rows), len(new_priorities) == 1
    sums, highs, masses, priorities = nodes[0], nodes[1], leaves[0], leaves[1]
    _fill_chunks(nodes, leaves, deferred, state, ranked, rows, _CHUNK)
    first, last = len(masses), 0
    highest = 0.0
    lowest, lowest_count = state[0], state[1]
    for i in range(count):
        row, index = rows[i], 0 if single else i
        mass, priority = new_masses[index], new_priorities[index]
        # If no row has the lowest mass any more, all masses are above that mass, so a mass that is not above is the new
        # lowest.
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
    state[0], state[1] = lowest, lowest_count
    children, high_children = masses, priorities
    size, stop, depth = len(masses) // 8, len(sums), 3
    while stop > 8:
        start = stop - max(size, 8)
        parents, high_parents = sums[start:stop], highs[start:stop]
        first >>= 3
        last >>= 3
        # On the highest levels, and for neighboring rows, there are few parents per row. Below the sum of a deferred chunk,
        # which has 8 ** 3 rows, nothing is written yet.
        whole_level = last - first < _DENSE * count and (depth > 9 or not state[2])
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
    """Replace each parent in `rows` by the child, of `width` children on a level, that contains the point."""
    # All points halve their children before the next halving, so that the reads do not wait for each other. With
    # a million rows, this is 15 times faster than point by point.
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


@compile_for(f"void({_TREE}, float64[::1], int64[::1], float64[::1])")
def _draw(
    nodes: Floats,
    leaves: Floats,
    deferred: Flags,
    state: Floats,
    ranked: bool,
    points: Floats,
    rows: Rows,
    drawn: Floats,
) -> None:
    sums, masses, blocks, count = nodes[0], leaves[0], leaves.shape[1] // 8, len(points)
    for i in range(count):
        points[i] *= sums[0]
        rows[i] = 0
    size = blocks
    while size > 8:
        size //= 8
    _descend(sums[8:16], size, points, rows)
    start = 16
    while size < blocks:
        if size == len(deferred):
            _fill_chunks(nodes, leaves, deferred, state, ranked, rows, 1)
        size *= 8
        _descend(sums[start : start + size], 8, points, rows)
        start += size
    _descend(masses, 8, points, rows)
    for i in range(count):
        row = rows[i]
        # Rounding may put a point past the last mass: the point then selects that mass.
        while masses[row] == 0:
            row -= 1
            if state[2] and deferred[row // _CHUNK]:
                _fill(nodes, leaves, deferred, state, ranked, row // _CHUNK)
        drawn[i] = masses[row]
        rows[i] = row
