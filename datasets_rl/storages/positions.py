"""Parsing of read indices and of write positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.dataset import as_rows


def explicit_index(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...] | Tensor:
    """Parse an index of the leading axes.

    Args:
        index: Integers, slices, None, Ellipsis, lists, masks, index tensors, or a tuple of such indices.
        shape: Sizes of the axes.

    Returns:
        A tuple that creates a view as an index of a tensor with at least these axes, or the rows to gather,
        int64, in the shape of the batch. With a single axis, the rows may be negative or out of range: the gather
        checks them.

    Raises:
        IndexError: If the index is invalid, has more axes than the storage, or has an integer that is out of range.
    """
    if type(index) is Tensor and len(shape) == 1:
        return as_rows(index, shape[0])
    parts = index if isinstance(index, tuple) else (index,)
    axes = sum(map(_axis_count, parts))
    if axes > len(shape):
        raise IndexError(f"the index {index!r} is for {axes} axes, expected at most {len(shape)}")
    if all(map(_makes_view, parts)):
        view = _expand_ellipsis(parts, len(shape) - axes)
        for part, size in zip((part for part in view if part is not None), shape, strict=False):
            if _is_number(part) and not -size <= part < size:
                raise IndexError(f"row {int(part)} is out of range, expected one of {size:,} rows")
        return view
    if len(shape) == 1 and len(parts) == 1:
        return as_rows(parts[0], shape[0])
    grid = np.arange(math.prod(shape)).reshape(shape)
    return torch.from_numpy(np.array(grid[tuple(map(_as_plain_index, parts))], np.int64))


def _makes_view(part: Any) -> bool:
    if isinstance(part, slice):
        return part.step is None or part.step > 0  # torch has no views with a negative step
    return part is None or part is Ellipsis or _is_number(part)


def _is_number(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _axis_count(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    mask = isinstance(part, (Tensor, np.ndarray)) and part.dtype in {torch.bool, np.dtype(bool)}
    return max(part.ndim, 1) if mask else 1


def _expand_ellipsis(parts: tuple[Any, ...], free: int) -> tuple[Any, ...]:
    """Replace Ellipsis by slices, so that Ellipsis never extends into the axes of the leaves."""
    ellipsis = next((number for number, part in enumerate(parts) if part is Ellipsis), len(parts))
    return (*parts[:ellipsis], *[slice(None)] * free, *parts[ellipsis + 1 :])


def _as_plain_index(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.cpu().numpy()
    if isinstance(part, (list, range)):
        array = np.asarray(part)
        return array if array.size else array.astype(np.int64)
    return part


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive slots, which may wrap around the end of the ring."""

    first: int
    count: int

    def pieces(self, slots: int) -> Iterator[tuple[int, int, int]]:
        """Yield the contiguous pieces of the last `slots` slots: first slot, first element of the data, count."""
        begin = max(self.count - slots, 0)
        while begin < self.count:
            first = (self.first + begin) % slots
            count = min(self.count - begin, slots - first)
            yield first, begin, count
            begin += count

    def where(self, slots: int) -> list[slice]:
        """Return the slots as slices."""
        if self.first + self.count <= slots:
            return [slice(self.first, self.first + self.count)]
        return [slice(first, first + count) for first, _, count in self.pieces(slots)]


def is_single_slot(cursor: Any) -> bool:
    """Return whether a cursor names a single slot, and not several."""
    return _is_number(cursor) or (isinstance(cursor, (Tensor, np.ndarray)) and cursor.ndim == 0)


def written_slots(cursor: Any, count: int, *, filled: int, slots: int, gaps: bool = False) -> Segment | Tensor:
    """Return the slots to write.

    Args:
        cursor: An integer, slice, range, list, mask or index tensor [n]. A negative value counts from the end of the
            slots held.
        count: Number of slots that the data fills.
        filled: Number of slots held.
        slots: Capacity of the storage in slots.
        gaps: Whether the write may leave a gap of unwritten slots.

    Raises:
        InvalidArgumentError: If the data fills another number of slots.
        IndexError: If a slot is out of range, or the write would leave a gap of unwritten slots.
    """
    numbers = _slot_numbers(cursor, filled, slots)
    if len(numbers) != count:
        raise InvalidArgumentError(
            f"the index names {len(numbers)} slots, and the data fills {count}, expected the same number"
        )
    if not count:
        return Segment(filled % slots, 0)
    first = int(numbers[0])
    is_range = isinstance(numbers, range)
    low, high = (first, first + count - 1) if is_range else (int(numbers.min()), int(numbers.max()))
    if low < 0 or high >= slots:
        raise IndexError(f"slot {low if low < 0 else high} is out of range, expected one of {slots:,} slots")
    if is_range or ((np.diff(numbers) - 1) % slots == 0).all():
        has_gap, last = first > filled, first
    else:
        new_slots = np.unique(numbers[numbers >= filled])
        has_gap, last = len(new_slots) != max(high - filled + 1, 0), high
        first = -1
    if has_gap and not gaps:
        raise IndexError(
            f"slot {last} would leave a gap: {filled:,} slots are held, and the next free slot is {filled}"
        )
    return torch.from_numpy(numbers) if first < 0 else Segment(first, count)


def _slot_numbers(cursor: Any, filled: int, slots: int) -> Any:
    """Return the slots that a cursor names, from 0: a range of consecutive slots, or int64 [n]."""
    if isinstance(cursor, slice):
        stop = filled if cursor.stop is None else cursor.stop
        cursor = range(*slice(cursor.start, stop, cursor.step).indices(slots))
    elif is_single_slot(cursor):
        cursor = range(int(cursor), int(cursor) + 1)
    if isinstance(cursor, range) and cursor.step == 1 and cursor.start >= 0:
        return cursor
    numbers = as_rows(cursor, filled).reshape(-1).numpy()
    return np.where(numbers < 0, numbers + filled, numbers) if numbers.min(initial=0) < 0 else numbers


def counts_after_write(counts: tuple[int, int, int], goal: Segment | Tensor, slots: int) -> tuple[int, int, int]:
    """Return the counts of a storage after a write.

    Args:
        counts: The counts of slots held, written and rewritten before the write.
        goal: The slots to write.
        slots: Capacity of the storage in slots.
    """
    held, written, rewritten = counts
    if isinstance(goal, Segment) and goal.first == written % slots:
        return max(held, min(written + goal.count, slots)), written + goal.count, rewritten
    end = min(goal.first + goal.count, slots) if isinstance(goal, Segment) else int(goal.max()) + 1
    return (end, end, rewritten + 1) if end > held else (held, written, rewritten + 1)
