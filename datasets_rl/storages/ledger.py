"""The counts of a shared storage, and the record of the write that is under way.

A process may be killed between any two instructions of a write. So a writer first records which slots it is going to
write, and only then touches them; the process that takes the lock of the buffer next finds the record.

    words, int64      held | written | rewritten | torn | phase | held, written, rewritten after the commit
    marks, uint8      one for each slot: 0 valid, 1 torn, 2 in writing

    phase     idle ------------> writing ------------------> committing -----------------> idle
    does           marks := 2            data, next counts               counts, marks := 0
    killed                       roll back: marks 2 -> 1     roll forward: the same again

Phase, marks and counts are in memory that outlives the process, and the death of a process loses no store that it has
made. The order in which a power cut saves mapped pages is not known: after one, a scratch folder has to be made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ledger", "Slots"]

Slots = NDArray[np.int64]

_HELD, _WRITTEN, _REWRITTEN, _TORN, _PHASE = range(5)
_NEXT = 5
_IDLE, _WRITING, _COMMITTING = range(3)
_VALID, _TORN_MARK, _OPEN = range(3)


class Ledger:
    """The counts and marks of a storage, over memory that processes share.

    Args:
        words: The memory, int64 [`words_of` (slots)]; zeros are the ledger of an empty storage.
        slots: Slots of the storage.
    """

    WORDS = 8
    """Words before the marks."""

    def __init__(self, words: NDArray[np.int64], slots: int) -> None:
        # An element of a memoryview takes half as long as one of an array, and of a mapped one a tenth.
        self.words = words.view(np.ndarray)
        self.head: memoryview[int] = self.words.data[: self.WORDS]
        self._marks = self.words[self.WORDS :].view(np.uint8)[:slots]
        self._runs = self._marks.data

    @classmethod
    def words_of(cls, slots: int) -> int:
        """Return how many words the ledger of a storage of so many slots has."""
        return cls.WORDS + -(-slots // 8)

    @classmethod
    def of(cls, slots: int) -> Ledger:
        """Return the ledger of an empty storage, in memory of this process."""
        return cls(np.zeros(cls.words_of(slots), np.int64), slots)

    @property
    def unfinished(self) -> bool:
        """Whether a write has begun and not ended."""
        return self.head[_PHASE] != _IDLE

    def torn_slots(self) -> Slots:
        """Return the torn slots in ascending order, int64 [n]."""
        return np.flatnonzero(self._marks[: self.head[_HELD]] == _TORN_MARK)

    def begin(self, where: Sequence[slice | Slots]) -> None:
        """Record that these slots are going to be written as a whole."""
        self.head[_PHASE] = _WRITING
        self._mark(where, _OPEN)

    def begin_change(self, part: slice) -> list[Slots]:
        """Record that a part of what is in these slots is going to be changed; torn ones stay torn.

        Returns:
            The slots to `commit`.
        """
        valid = part.start + np.flatnonzero(self._marks[part] == _VALID)
        self.begin([valid])
        return [valid]

    def commit(self, counts: tuple[int, int, int], where: Sequence[slice | Slots]) -> None:
        """Record that the slots of `begin` are written.

        Args:
            counts: The slots held, written and rewritten after the write.
            where: What `begin` got.
        """
        head = self.head
        head[_NEXT], head[_NEXT + 1], head[_NEXT + 2] = counts
        head[_PHASE] = _COMMITTING
        head[_HELD], head[_WRITTEN], head[_REWRITTEN] = counts
        self._mark(where, _VALID)
        if head[_TORN]:
            self._count_torn()
        head[_PHASE] = _IDLE

    def _mark(self, where: Sequence[slice | Slots], mark: int) -> None:
        for some in where:
            if isinstance(some, slice):
                self._runs[some] = bytes((mark,)) * (some.stop - some.start)
            else:
                self._marks[some] = mark

    def recover(self, clear: Callable[[Slots], None]) -> None:
        """End the write that a process left: all of it if that process had got as far as the commit, else none.

        A process that dies in here leaves the same to the next one.

        Args:
            clear: Called with the slots, int64 [n], that have been written to and are held.
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

    def reset(self, held: int, written: int) -> None:
        """Record that what is held was replaced as a whole; no slot is torn any more."""
        self.commit((held, written, self.head[_REWRITTEN] + 1), [slice(0, len(self._marks))])

    def tear(self, slots: Slots) -> None:
        """Mark slots as torn that were so where their data comes from."""
        self._marks[slots] = _TORN_MARK
        self._count_torn()

    def _count_torn(self) -> None:
        self.head[_TORN] = int(np.count_nonzero(self._marks[: self.head[_HELD]] == _TORN_MARK))
