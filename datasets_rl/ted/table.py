"""Where each episode starts and stops in the flat [N]: all index arithmetic of episodes and slices lives here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError

__all__ = ["EPISODE_DTYPE", "EpisodeTable"]

EPISODE_DTYPE = np.dtype(
    [("start", "<i8"), ("length", "<i8"), ("return", "<f8"), ("source", "<i8"), ("final_known", "?")]
)
"""What every episode table has: first row, rows, sum of rewards, number in the upstream's own order, and whether the
observation after the last action is known. A source's own facts follow as further fields."""

Index = NDArray[np.int64]


class EpisodeTable:
    """The episodes of N steps that lie back to back.

        row       0 1 2 3 4 5 6 7 8
        episode   0 0 0 0 1 1 2 2 2        starts [0, 4, 6], lengths [4, 2, 3], stops [4, 6, 9]

    In the shapes, E is the number of episodes and N the number of rows.

    Args:
        records: Structured array [E] with at least the fields of `EPISODE_DTYPE`.

    Raises:
        InvalidArgumentError: If the episodes do not lie back to back from row 0.
    """

    def __init__(self, records: NDArray[np.void]) -> None:
        missing = [name for name in EPISODE_DTYPE.names or () if name not in (records.dtype.names or ())]
        if missing:
            raise InvalidArgumentError(f"the episode table lacks the fields {missing}")
        self.records = records
        starts, lengths = records["start"], records["length"]
        # A sum that wraps around goes below 0 first.
        wrong = np.flatnonzero((lengths < 1) | (starts < 0) | (starts != np.cumsum(lengths) - lengths))
        if len(wrong):
            first = int(wrong[0])
            raise InvalidArgumentError(
                f"episode {first} starts at row {starts[first]} with {lengths[first]} steps; "
                "expected episodes of at least one step that lie back to back"
            )

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer[Any]]) -> EpisodeTable:
        """Make a table, [E], of episodes of these lengths."""
        records = np.zeros(len(lengths), EPISODE_DTYPE)
        records["length"] = lengths
        records["start"] = np.cumsum(lengths) - lengths
        records["source"] = np.arange(len(lengths))
        return cls(records)

    def __len__(self) -> int:
        """Return E."""
        return len(self.records)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one fact of every episode, [E]."""
        column: NDArray[Any] = self.records[name]
        return column

    def __iter__(self) -> Iterator[range]:
        """Yield the rows of each episode."""
        return (range(int(start), int(stop)) for start, stop in zip(self.starts, self.stops, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """The facts that are known of every episode."""
        return tuple(self.records.dtype.names or ())

    @property
    def starts(self) -> Index:
        """First row of each episode, [E]."""
        return self["start"]

    @property
    def lengths(self) -> Index:
        """Steps of each episode, [E]."""
        return self["length"]

    @property
    def stops(self) -> Index:
        """Row after the last row of each episode, [E]."""
        return self.starts + self.lengths

    @property
    def steps(self) -> int:
        """N."""
        return int(self.lengths.sum())

    def episode_of(self, rows: NDArray[np.integer[Any]] | int) -> Index:
        """Return the episode that each row belongs to, in the shape of `rows`."""
        return np.asarray(np.searchsorted(self.starts, rows, side="right") - 1)

    def next_known(self, rows: Index) -> NDArray[np.bool_]:
        """Return whether the state after each row is a recorded one, in the shape of `rows`."""
        episodes = self.episode_of(rows)
        last = self.starts[episodes] + self.lengths[episodes] - 1
        known: NDArray[np.bool_] = self["final_known"][episodes] | (last != rows)
        return known

    def rows(self, episode: int) -> range:
        """Return the rows of one episode; negative numbers count from the end.

        Raises:
            IndexError: If there is no such episode.
        """
        start, length = self.starts[episode], self.lengths[episode]
        return range(int(start), int(start + length))

    def __repr__(self) -> str:
        lengths = self.lengths
        span = f", lengths {lengths.min()} to {lengths.max()}" if len(self) else ""
        return f"EpisodeTable({len(self)} episodes, {self.steps} steps{span})"
