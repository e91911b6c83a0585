"""Where an index reads, and where a cursor writes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import BadArgument
from datasets_rl.storages.dataset import as_rows, wrapped

__all__ = ["Run", "note", "positions", "target"]


def positions(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...] | Tensor:
    """Read an index of the leading axes.

    Args:
        index: Whole numbers, slices, None, Ellipsis, lists, masks, index tensors, or a tuple of them.
        shape: Sizes of the axes.

    Returns:
        A tuple that makes a view when a tensor of at least these axes is indexed with it, or the rows to gather,
        int64, in the shape of the batch.

    Raises:
        IndexError: If the index reaches outside, or is none.
    """
    if isinstance(index, Tensor) and index.dtype == torch.int64 and len(shape) == 1 and index.is_cpu:
        return wrapped(index, shape[0])
    parts = index if isinstance(index, tuple) else (index,)
    taken = sum(_axes(part) for part in parts)
    if taken > len(shape):
        raise IndexError(f"the index {index!r} has {taken} axes; the storage has {len(shape)}")
    if all(map(_makes_view, parts)):
        return _explicit(parts, len(shape) - taken)
    if len(shape) == 1 and len(parts) == 1:
        return wrapped(as_rows(parts[0], shape[0]), shape[0])
    grid = np.arange(math.prod(shape)).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(grid[tuple(map(_plain, parts))], np.int64))


def _makes_view(part: Any) -> bool:
    if isinstance(part, slice):
        return part.step is None or part.step > 0
    return part is None or part is Ellipsis or _is_number(part)


def _is_number(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _axes(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    mask = isinstance(part, (Tensor, np.ndarray)) and str(part.dtype) in {"bool", "torch.bool"}
    return max(part.ndim, 1) if mask else 1


def _explicit(parts: tuple[Any, ...], free: int) -> tuple[Any, ...]:
    """Write Ellipsis as the slices it stands for, so that it never reaches into the leaves."""
    at = next((number for number, part in enumerate(parts) if part is Ellipsis), len(parts))
    return (*parts[:at], *[slice(None)] * free, *parts[at + 1 :])


def _plain(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.cpu().numpy()
    return np.asarray(part) if isinstance(part, (list, range)) else part


@dataclass(frozen=True, slots=True)
class Run:
    """Slots that follow each other, through the end of the ring if need be."""

    first: int
    count: int

    def pieces(self, slots: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces that lie in one: first slot, first element of the data, count; the last `slots` only."""
        begin = max(self.count - slots, 0)
        while begin < self.count:
            first = (self.first + begin) % slots
            count = min(self.count - begin, slots - first)
            yield first, begin, count
            begin += count


def target(cursor: Any, count: int, *, held: int, slots: int) -> Run | Tensor:
    """Read which slots are to be written.

    Args:
        cursor: A whole number, slice, range, list, or index tensor [n].
        count: Slots that the data fills.
        held: Slots that are held.
        slots: Slots that there are.

    Raises:
        BadArgument: If the data fills another number of slots, or one slot has more steps than fit.
        IndexError: If a slot is out of range, or slots before it were never written.
    """
    if slots < 1:
        raise BadArgument("one slot has more steps than max_size; expected a larger max_size")
    numbers = _slot_numbers(cursor, held, slots)
    if len(numbers) != count:
        raise BadArgument(f"{len(numbers)} slots were named for data of {count}")
    if isinstance(numbers, range):
        run = Run(numbers.start, count) if numbers.step == 1 or count == 1 else None
        numbers = numbers if run is not None else torch.arange(count) * numbers.step + numbers.start
    else:
        first = int(numbers[0]) if count else 0
        run = Run(first, count) if torch.equal(numbers, torch.arange(first, first + count) % slots) else None
    if run is not None and isinstance(numbers, range):
        low, high = run.first, run.first + count - 1
    else:
        low, high = (int(numbers.min()), int(numbers.max())) if count else (0, -1)
    if low < 0 or high >= slots:
        raise IndexError(f"slot {low if low < 0 else high} is outside the {slots:,} slots")
    if not _reachable(run if run is not None else numbers, held):
        raise IndexError(f"slot {high} was to be written while {held:,} are held; the next free one is {held}")
    return run if run is not None else numbers


def _slot_numbers(cursor: Any, held: int, slots: int) -> range | Tensor:
    if isinstance(cursor, slice):
        return range(*slice(cursor.start, held if cursor.stop is None else cursor.stop, cursor.step).indices(slots))
    if isinstance(cursor, range):
        return cursor
    if isinstance(cursor, (int, np.integer)) and not isinstance(cursor, bool):
        number = int(cursor) + held * (cursor < 0)
        return range(number, number + 1)
    return wrapped(as_rows(cursor, held).reshape(-1), slots)


def _reachable(goal: Run | Tensor, held: int) -> bool:
    if isinstance(goal, Run):
        return goal.first <= held
    fresh = goal[goal >= held].unique()
    return torch.equal(fresh, torch.arange(held, held + len(fresh)))


def note(counts: NDArray[np.int64], goal: Run | Tensor, slots: int) -> None:
    """Count a write after it is done: who reads the counts in another process finds the data there."""
    held, written, _ = counts.tolist()
    if isinstance(goal, Run) and goal.first == written % slots:
        counts[1] = written + goal.count
        counts[0] = max(held, min(written + goal.count, slots))
        return
    end = min(goal.first + goal.count, slots) if isinstance(goal, Run) else int(goal.max()) + 1
    if end > held:
        counts[:2] = end
    counts[2] += 1
