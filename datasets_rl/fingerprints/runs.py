"""Rows of episodes in blocks: the runs of rows of each episode, and the last rows of the episode that a block continues.

    rows     c c c  n n n n n  n n n n ...     c: context, rows of the open episode that came before
    begins   0                 8               first row, with the context
    starts          3          8               first new row
    stops                      8       12

The context is what windows and sequences of the first new rows reach back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
Indices = NDArray[np.int64]
CONTEXT = 16
"""The greatest number of rows of context."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of rows of m episodes. The first run continues the open episode, if any, and the last run may leave one open."""

    begins: Indices
    """The first row of each run, with the context, [m]."""
    starts: Indices
    """The first new row of each run, [m]."""
    stops: Indices
    """The row after the last row of each run, [m]."""
    ended: NDArray[np.bool_]
    """Which runs end their episode, [m]."""
    numbers: Indices
    """The number of the run of each row, [c + n]."""
    before: int
    """The number of steps of the open episode before the first new row."""
    context: int
    """The number of rows of context, c."""

    @staticmethod
    def after(before: int, starts: Indices, stops: Indices, ended: NDArray[np.bool_]) -> Runs:
        """Return the runs of new rows after `before` steps of the open episode, given their rows without the context.

        Runs that follow each other in an episode become one.
        """
        starts, stops = starts[np.append(True, ended[:-1])], stops[np.append(ended[:-1], True)]
        ended = np.append(np.ones(len(starts) - 1, np.bool_), ended[-1])
        context = min(before, CONTEXT)
        begins = starts + context
        begins[:1] = 0
        numbers = np.repeat(np.arange(len(starts)), stops + context - begins)
        return Runs(begins, starts + context, stops + context, ended, numbers, before, context)

    @property
    def lengths(self) -> Indices:
        """The number of steps of each episode up to the last row of its run, [m]."""
        lengths = self.stops - self.starts
        lengths[0] += self.before
        return lengths

    def rows(self, first: int, stop: int) -> slice:
        """Return the rows of consecutive runs, with the context of the first run."""
        return slice(int(self.begins[first]), int(self.stops[stop - 1]))

    def part(self, first: int, stop: int) -> Runs:
        """Return consecutive runs, as runs of their `rows`."""
        shift, inside, is_first = int(self.begins[first]), slice(first, stop), first == 0
        return Runs(
            self.begins[inside] - shift,
            self.starts[inside] - shift,
            self.stops[inside] - shift,
            self.ended[inside],
            self.numbers[self.rows(first, stop)] - first,
            self.before if is_first else 0,
            self.context if is_first else 0,
        )

    def tail(self, rows: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the context of the next rows, given an array of all rows, [..., c + n]."""
        stop = int(self.stops[-1])
        return rows[..., stop - min(self.open, CONTEXT) : stop].copy()

    @property
    def open(self) -> int:
        """The number of steps of the episode that is open after the last row, or 0."""
        return 0 if self.ended[-1] else int(self.lengths[-1])
