"""Gathered records of a stored dataset: a batch, apart from the fields in separate files.

    rows.npy        | s_i a_i r_i flags | s_i+1 a_i+1 r_i+1 flags |
    gathered row    | s_i a_i r_i flags | s_i+1 | episode | root flags | i |

After the last record of an episode come its final states, instead of the start of the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import IntegrityError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import ROWS_FILE
from datasets_rl.storages.packed import RowSlot
from datasets_rl.storages.record_access import RecordAccess
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, ROOT_FLAGS

_WORD = 8
_ADDED_WORDS, _ADDED_BY_GATHER = 2, 3
"""Words that follow a window in each read, and in a gather, which adds the row."""
_KNOWN_FLAG = len(ROOT_FLAGS)
"""Position of the flag of known final states, after the root flags, which are 0."""
_ROWS_BEFORE_LOADING, _COUNTED_ROWS = 1 << 16, 1 << 12
"""The compiled loop takes half a second to load: only for a program that reads more rows. A read counts at most once."""


Words: TypeAlias = NDArray[np.int64]
EpisodeBounds = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The first and the last row of each episode, [E] each."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordWindows:
    """The records of windows around B rows."""

    words: Words
    """The records, words of 8 bytes [B, W, R]."""
    outside: Tensor
    """Which records repeat the first or the last record of the episode, bool [B, W]."""
    low: NDArray[np.int64]
    """The first row of the episode of each row, [B]."""
    high: NDArray[np.int64]
    """The last row of the episode of each row, [B]."""


class Records:
    """The gather of the records of some rows.

    Torch gathers the first batches, and a compiled loop all others: the loop is faster, with equal results.

    Args:
        stored: The opened dataset.
        windows: Each record and the start of the next record, words of 8 bytes [N, W]. They overlap.
    """

    def __init__(self, stored: StoredDataset, windows: Tensor) -> None:
        schema = stored.schema
        self._stored, self._windows = stored, windows
        self.stride, self.width = windows.stride(0), windows.shape[1]
        """Words of a record, and of a window."""
        self._done, self._episode = schema[NEXT_DONE].offset, schema[EPISODE].offset
        self._loop: Callable[..., int] | None = None
        self._rows_read = 0

    @property
    def row_bytes(self) -> int:
        """Size of a row that is read, without the number of the row."""
        return (self.width + _ADDED_WORDS) * _WORD

    @property
    def gathered_bytes(self) -> int:
        """Size of a gathered row."""
        return (self.width + _ADDED_BY_GATHER) * _WORD

    def row_slot(self, name: str) -> RowSlot:
        """Return the slot of the number of a gathered row."""
        return RowSlot(name, self.row_bytes, torch.int64, ())

    def slots(self, slots: Sequence[RowSlot], leading: int = 0) -> list[RowSlot]:
        """Return the slots of a gathered row, from the slots of a window.

        Args:
            slots: The slots of a window.
            leading: Bytes before the window, in which the fields are that are not under "next".
        """
        end = leading + self.width * _WORD
        slots = [replace(slot, offset=slot.offset + leading) if slot.name[0] == NEXT else slot for slot in slots]
        flags = [
            RowSlot(key, end + _WORD + number, torch.bool, (1,))
            for number, key in enumerate([*ROOT_FLAGS, NEXT_FINAL_KNOWN])
        ]
        episode = RowSlot(EPISODE, end, torch.int64, ())
        return [*flags, *(episode if slot.name == EPISODE else slot for slot in slots)]

    def gather(self, rows: Tensor) -> tuple[Words, int]:
        """Gather the records of some rows.

        Args:
            rows: Row numbers, int64 [B], on the CPU.

        Returns:
            Gathered rows, words of 8 bytes [B, W + 3], and how many rows end an episode.

        Raises:
            IndexError: If a row is outside of [0, N).
            IntegrityError: If the episode of a row does not exist.
        """
        count, width = rows.shape[0], self.width
        if self._loop is None and not self._load_loop(count):
            return self._gather_by_torch(rows)
        words = np.empty((count, width + _ADDED_BY_GATHER), np.int64)  # torch takes longer to allocate
        if not (rows.dtype is torch.int64 and rows.is_cpu and rows.is_contiguous()):  # the loop reads its memory
            rows = rows.to("cpu", torch.int64).contiguous()
        ends: int = self._loop(rows.data_ptr(), words)  # type: ignore[misc]  # loaded
        if ends >= 0:
            return words, ends
        if ends == -1:
            raise IndexError(f"a row is out of range, expected one of {len(self._windows):,} rows")
        raise self.unknown_episode()

    def access(self, bounds: EpisodeBounds) -> RecordAccess:
        """Return the records for other loops, with the first and the last row of each episode."""
        folder = str(self._stored.folder / ROWS_FILE)
        return RecordAccess(*self.arrays, *bounds, self.stride, self.width, self._episode, folder)

    def _load_loop(self, count: int) -> bool:
        """Return whether later reads use the compiled loop, at a read of some rows."""
        self._rows_read += min(count, _COUNTED_ROWS)
        if self._rows_read <= _ROWS_BEFORE_LOADING:
            return False
        from datasets_rl.storages.record_kernel import gather_records  # deferred: loads numba

        # numba takes another time for each keyword, and none for arguments that are bound before.
        self._loop = partial(gather_records, *self.arrays, self.stride, self.width, self._done, self._episode)
        return True

    def gather_windows(self, rows: Tensor, before: int, length: int, bounds: EpisodeBounds) -> RecordWindows:
        """Gather the records of the steps around rows, see `Storage.windows_around`.

        Args:
            rows: Row of each window, int64 [B], on the CPU.
            before: Number of steps before each row.
            length: Number of steps of a window, W, at most N.
            bounds: The first and the last row of each episode, int64 [E] each.

        Raises:
            IndexError: If a row is outside of [0, N).
            IntegrityError: If the episode of a row does not exist.
        """
        from datasets_rl.storages.record_kernel import gather_windows  # deferred: loads numba

        count = len(rows)
        words, outside = np.empty((count, length, self.stride), np.int64), np.empty((count, length), np.bool_)
        low, high = np.empty(count, np.int64), np.empty(count, np.int64)
        numbers = rows.contiguous().numpy()
        result = gather_windows(self.arrays[0], numbers, *bounds, words, outside, low, high, before, self._episode)
        if result == -1:
            raise IndexError(f"a row is out of range, expected one of {len(self._windows):,} rows")
        if result == -2:
            raise self.unknown_episode()
        return RecordWindows(words, torch.from_numpy(outside), low, high)

    def _gather_by_torch(self, rows: Tensor) -> tuple[Words, int]:
        width, (_, finals, known) = self.width, self.arrays
        words = torch.empty((len(rows), width + _ADDED_BY_GATHER), dtype=torch.int64)
        words[:, :width] = self._windows.index_select(0, rows)
        flags = words.view(torch.bool)
        words[:, width] = words.view(torch.int32)[:, self._episode // 4]
        words[:, width + 1] = 0
        words[:, width + 2] = rows
        flags[:, (width + 1) * _WORD + _KNOWN_FLAG] = True
        last = flags[:, self._done].nonzero().squeeze(1)
        if len(last):
            episodes = words[:, width].index_select(0, last).numpy()
            if episodes.max() >= len(known) or episodes.min() < 0:
                raise self.unknown_episode()
            words[last, self.stride : width] = torch.from_numpy(finals[episodes])
            flags[last, (width + 1) * _WORD + _KNOWN_FLAG] = torch.from_numpy(known[episodes])
        return words.numpy(), len(last)

    @cached_property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The records, words [(N + 1) * R], the final states, words [E, W - R], and which are known, [E]."""
        stored, size = self._stored, self.width - self.stride
        records = self._windows.as_strided(((len(self._windows) + 1) * self.stride,), (1,)).numpy()
        finals = np.zeros((len(stored.episodes), 0), np.int64)
        if size:
            file = next(field.final_file for field in stored.schema.narrow if field.shared)
            finals = np.asarray(stored.map(file)).view(np.int64).reshape(-1, size)
        known = np.array(stored.episodes["final_known"])
        for array in (records, finals, known):
            array.setflags(write=False)  # numba takes a read-only array for another type
        return records, finals, known

    def unknown_episode(self) -> IntegrityError:
        """Return the error of a row of which the episode is not in the table."""
        problem = f"a row does not belong to any of the {len(self._stored.episodes):,} episodes"
        return IntegrityError(str(self._stored.folder / ROWS_FILE), [problem])
