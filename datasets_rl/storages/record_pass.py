"""Steps of a stored dataset together with windows and n-step targets, read in one pass over the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.storages.packed import Column, RowArrays, RowSlot
from datasets_rl.storages.records import Records
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key
from datasets_rl.ted.passes import (
    Alive,
    Bootstraps,
    Discount,
    Ended,
    Entry,
    Outside,
    Part,
    Pass,
    RewardSum,
    RewardSums,
    StepCount,
    TimeSteps,
    Values,
)

_WORD = 8
_LARGE_WINDOW, _LARGE_BATCH = 1 << 10, 1 << 20
"""Bytes of the entries of a step, and of a batch, above both of which a pass takes longer than a copy of whole records."""
_FIXED: dict[type[Part], torch.dtype] = {
    Outside: torch.bool,
    TimeSteps: torch.int64,
    StepCount: torch.int64,
    Discount: torch.float32,
    Bootstraps: torch.bool,
    Alive: torch.float32,
    Ended: torch.bool,
}
"""The dtypes of entries that do not consist of values of a field."""


@dataclass(frozen=True, slots=True, eq=False)
class PassEpisodes:
    """Episodes, of which windows stay within one: the stored ones, or parts of them."""

    firsts: NDArray[np.int64]
    """The first row of each episode, [E]."""
    lasts: NDArray[np.int64]
    """The last row of each episode, [E]."""
    cut: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether each episode lost the row after its last row, [E], or [0] if no episode did."""
    passes: dict[Any, RecordPass | None] = field(default_factory=dict)
    """The passes that were compiled for these episodes."""


class RecordPass:
    """The read of the entries of a `Pass`, and of other fields of a batch, compiled once.

    Args:
        records: The records.
        episodes: The episodes, of which windows stay within one.
        slots: The positions of the narrow fields in a window, by key.
        keys: Keys of the other fields.
        wanted: The entries, of which all fields are narrow.
        masked: Whether a batch has the mask of known states.
    """

    def __init__(
        self,
        records: Records,
        episodes: PassEpisodes,
        slots: Mapping[Key, RowSlot],
        keys: Sequence[Key],
        wanted: Pass,
        *,
        masked: bool,
    ) -> None:
        from datasets_rl.storages import pass_kernel  # deferred: loads numba

        self._kernel, self._slots, self._record_bytes = pass_kernel, slots, records.stride * _WORD
        leading = self._record_bytes if wanted.n_steps else 0
        made = {entry.key for entry in wanted.entries}
        found = [
            slot for slot in records.slots([*slots.values()], leading) if slot.name in keys and slot.name not in made
        ]
        end, table, steps = leading + records.row_bytes, [], {0, max(wanted.n_steps - 1, 0)}
        for entry in wanted.entries:
            found.append(self._slot_of(entry, end, wanted.n_steps))
            for part in entry.parts:
                rows, size = self._rows_of(part, end, wanted.n_steps)
                table += rows
                end += size
                steps.update(getattr(part, "offsets", ()))
            end = -(-end // _WORD) * _WORD
        self._added_bytes = end - leading - records.row_bytes
        self._words, self._arrays = end // _WORD, RowArrays(found, end)
        numbers = (records.stride, records.width, slots[EPISODE].offset, slots[NEXT_TERMINATED].offset, wanted.n_steps)
        ends = (slots[NEXT_TRUNCATED].offset, slots[NEXT_DONE].offset)
        exponents = torch.arange(wanted.n_steps + 1)
        self._loop: Callable[..., int] = partial(
            pass_kernel.gather_pass,
            *records.arrays,
            *(episodes.firsts, episodes.lasts, episodes.cut),
            np.array(sorted(table), np.int64).reshape(-1, len(pass_kernel.COLUMNS)),
            np.array([*numbers, masked and (1 if wanted.shortens else 2), -min(steps), max(steps), *ends], np.int64),
            # As `discount_powers`: a power of a number of 4 bytes is not the rounded power of a number of 8 bytes.
            (wanted.discount ** exponents.double()).numpy(),
            (wanted.discount ** exponents.float()).numpy(),
        )

    def suits(self, count: int) -> bool:
        """Return whether a batch of `count` steps is read by this pass, and not by a copy of whole records.

        Large windows of many steps are in no cache when they are read, and each field of each step is copied separately.
        """
        return self._added_bytes <= _LARGE_WINDOW or count * self._added_bytes <= _LARGE_BATCH

    def read(self, rows: Tensor, owners: NDArray[np.int64]) -> tuple[dict[Key, Column], int]:
        """Return the leaves of a batch by key, and the result of the loop, see `gather_pass`.

        Args:
            rows: Row numbers, int64 [B], in main memory and contiguous.
            owners: The episode of each row, [B], or [0] for stored episodes.
        """
        words = np.empty((rows.shape[0], self._words), np.int64)
        result = self._loop(owners, rows.data_ptr(), words)
        return self._arrays(words), result

    def _slot_of(self, entry: Entry, offset: int, n_steps: int) -> RowSlot:
        """Return the position of an entry in an output row."""
        part = entry.parts[0]
        lead: tuple[int, ...] = ()
        if isinstance(part, (Values, Outside, TimeSteps)):
            lead = (len(part.offsets),)
        elif isinstance(part, (RewardSums, Alive, Ended)):
            lead = (n_steps,)
        if isinstance(part, (Values, RewardSum)):
            slot = self._slots[part.field]
            dtype, shape = slot.dtype, (*lead, *slot.shape)
        else:
            dtype, shape = _FIXED.get(type(part), torch.float32), lead
        return RowSlot(entry.key, offset, dtype, shape if entry.shape is None else entry.shape)

    def _rows_of(self, part: Part, target: int, n_steps: int) -> tuple[list[list[int]], int]:
        """Return the rows of the table for a part of an entry, and the bytes of the part.

        Args:
            part: The part.
            target: The byte of an output row at which the part begins.
            n_steps: Maximum number of steps after which entries under "next" are read.
        """
        kernel = self._kernel
        if isinstance(part, (Values, RewardSum)):
            slot = self._slots[part.field]
            items, size = math.prod(slot.shape), slot.end - slot.offset
            follows = slot.offset >= self._record_bytes
            source = slot.offset - self._record_bytes if follows else slot.offset
            if isinstance(part, RewardSum):
                flag = 1 if slot.dtype.itemsize == _WORD else 2 * part.rounded
                return [[kernel.SUM, source, items, 0, 0, 0, target, flag, -1]], size
            final = source if follows else -1
            return [
                [kernel.VALUES, source, size, run.start, run.step, len(run), target + size * done, part.zeros, final]
                for run, done in _runs(part.offsets)
            ], size * len(part.offsets)
        if isinstance(part, Outside):
            return [
                [kernel.OUTSIDE, 0, 1, run.start, run.step, len(run), target + done, part.inverted, -1]
                for run, done in _runs(part.offsets)
            ], len(part.offsets)
        if isinstance(part, TimeSteps):
            run, size = part.offsets, _WORD * len(part.offsets)
            return [[kernel.NUMBERS, 0, _WORD, run.start, run.step, len(run), target, 0, -1]], size
        if isinstance(part, RewardSums):
            return [[kernel.SUMS, self._slots[part.field].offset, 0, 0, 0, 0, target, 0, -1]], 4 * n_steps
        kinds: dict[type[Part], int] = {
            StepCount: kernel.COUNT,
            Discount: kernel.DISCOUNT,
            Bootstraps: kernel.BOOTSTRAPS,
            Alive: kernel.ALIVE,
            Ended: kernel.ENDED,
        }
        size = _FIXED[type(part)].itemsize * (n_steps if isinstance(part, (Alive, Ended)) else 1)
        return [[kinds[type(part)], 0, 0, 0, 0, 0, target, 0, -1]], size


def _runs(offsets: Sequence[int]) -> list[tuple[range, int]]:
    """Return steps as ranges, each with the number of the steps before it."""
    if isinstance(offsets, range):
        return [(offsets, 0)]
    return [(range(step, step + 1), number) for number, step in enumerate(offsets)]
