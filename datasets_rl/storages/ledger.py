"""The counts of a shared storage, and the record of a write in progress.

A process may be killed between any two instructions of a write. A writer therefore first records which slots the write
changes, and only then changes these slots. The next process that acquires the lock of the buffer finds the record.

    words, int64      held | written | rewritten | torn | phase | held, written, rewritten after the commit
    marks, uint8      a mark per slot: 0 valid, 1 torn, 2 being written

    phase     idle ------------> writing ------------------> committing -----------------> idle
    action         marks := 2            data, next counts               counts, marks := 0
    killed                       roll back: marks 2 -> 1     roll forward: repeat the commit

Phase, marks and counts are in memory that outlives the process, and the death of a process loses none of its completed
stores. The order in which mapped pages reach the disk before a power cut is undefined: create a new scratch folder
after a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]

_HELD, _WRITTEN, _REWRITTEN, _TORN, _PHASE = range(5)
_NEXT = 5
_IDLE, _WRITING, _COMMITTING = range(3)
_VALID, _TORN_MARK, _OPEN = range(3)


class Ledger:
    """The counts and marks of a storage, in memory that processes share.

    Args:
        words: The memory, int64 [`words_of` (slots)]. All zeros is the ledger of an empty storage.
        slots: Number of slots of the storage.
    """

    WORDS = 8
    """Words before the marks."""

    def __init__(self, words: NDArray[np.int64], slots: int) -> None:
        # A memoryview accesses an element in half the time of an array, and in a tenth of that of a mapped array.
        self.words = words.view(np.ndarray)
        self.head: memoryview[int] = self.words.data[: self.WORDS]
        self._marks = self.words[self.WORDS :].view(np.uint8)[:slots]
        self._marks_view = self._marks.data

    @classmethod
    def word_count(cls, slots: int) -> int:
        """Return the number of words in the ledger of a storage with `slots` slots."""
        return cls.WORDS + -(-slots // 8)

    @classmethod
    def for_slots(cls, slots: int) -> Ledger:
        """Return the ledger of an empty storage, in private memory."""
        return cls(np.zeros(cls.word_count(slots), np.int64), slots)

    @property
    def unfinished(self) -> bool:
        """Whether a write has begun and not ended."""
        return self.head[_PHASE] != _IDLE

    def torn_slots(self) -> Slots:
        """Return the torn slots in ascending order, int64 [n]."""
        return np.flatnonzero(self._marks[: self.head[_HELD]] == _TORN_MARK)

    def begin(self, slices: Sequence[slice | Slots]) -> None:
        """Record that these slots are about to be overwritten."""
        self.head[_PHASE] = _WRITING
        self._mark(slices, _OPEN)

    def begin_change(self, change: slice) -> list[Slots]:
        """Record that part of the data in these slots is about to change. Torn slots stay torn.

        Returns:
            The slots to pass to `commit`.
        """
        valid = change.start + np.flatnonzero(self._marks[change] == _VALID)
        self.begin([valid])
        return [valid]

    def commit(self, counts: tuple[int, int, int], slices: Sequence[slice | Slots]) -> None:
        """Record that the slots passed to `begin` have been written.

        Args:
            counts: The counts of slots held, written and rewritten after the write.
            slices: The argument of `begin`.
        """
        head = self.head
        head[_NEXT], head[_NEXT + 1], head[_NEXT + 2] = counts
        head[_PHASE] = _COMMITTING
        head[_HELD], head[_WRITTEN], head[_REWRITTEN] = counts
        self._mark(slices, _VALID)
        if head[_TORN]:
            self._count_torn()
        head[_PHASE] = _IDLE

    def _mark(self, slices: Sequence[slice | Slots], mark: int) -> None:
        for slots in slices:
            if isinstance(slots, slice):
                self._marks_view[slots] = bytes((mark,)) * (slots.stop - slots.start)
            else:
                self._marks[slots] = mark

    def recover(self, clear: Callable[[Slots], None]) -> None:
        """Finish the write that a dead process left: roll forward if the commit had begun, else roll back.

        If this process dies during the recovery, the next process can repeat the recovery.

        Args:
            clear: Called with the held slots, int64 [n], that the write had changed.
        """
        head = self.head
        opened = np.flatnonzero(self._marks == _OPEN)
        if head[_PHASE] == _COMMITTING:
            head[_HELD], head[_WRITTEN], head[_REWRITTEN] = head[_NEXT:]
        elif opened.size and opened[0] < head[_HELD]:
            head[_REWRITTEN] += 1
            torn = opened[opened < head[_HELD]]
            clear(torn)
            self._marks[torn] = _TORN_MARK
            opened = opened[opened >= head[_HELD]]
        self._marks[opened] = _VALID
        self._count_torn()
        head[_PHASE] = _IDLE

    def reset(self, filled: int, written: int) -> None:
        """Record that all stored data were replaced. No slot is torn after this call."""
        self.commit((filled, written, self.head[_REWRITTEN] + 1), [slice(0, len(self._marks))])

    def tear(self, slots: Slots) -> None:
        """Mark slots as torn that are torn in a restored state."""
        self._marks[slots] = _TORN_MARK
        self._count_torn()

    def _count_torn(self) -> None:
        self.head[_TORN] = int(np.count_nonzero(self._marks[: self.head[_HELD]] == _TORN_MARK))
