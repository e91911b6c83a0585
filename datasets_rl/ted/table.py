"""Episode table: the first row, length and metadata of each episode, and the index arithmetic on the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.notebook import table_html

if TYPE_CHECKING:
    from pandas import DataFrame

EPISODE_DTYPE = np.dtype(
    [("start", "<i8"), ("length", "<i8"), ("return", "<f8"), ("source", "<i8"), ("final_known", "?")]
)
"""Fields of every episode table: first row, number of rows, sum of rewards, number in the upstream's order, and whether
the observation after the last action is known. A source can add metadata as further fields."""

COMPUTED = frozenset(EPISODE_DTYPE.names or ()) - {"source"}
"""The fields that follow from the rows of the episodes. All other fields are metadata, which a conversion keeps."""

_SHOWN = 5
_BLOCK = 1 << 14
"""Episodes that are checked at once, in the cache of a core."""
Index = NDArray[np.int64]


class EpisodeTable:
    """Table of E contiguous episodes with N steps in total.

        row       0 1 2 3 4 5 6 7 8
        episode   0 0 0 0 1 1 2 2 2        starts [0, 4, 6], lengths [4, 2, 3], stops [4, 6, 9]

        >>> from datasets_rl import load
        >>> episodes = load("demo/pendulum").episodes
        >>> len(episodes), episodes.rows(1)
        (75, range(200, 400))
        >>> episodes["length"][:3].tolist()
        [200, 200, 200]

    Args:
        records: Structured array [E] with at least the fields of `EPISODE_DTYPE`.
        returns: Function that returns the field ``return``, [E], if the returns are only computed when read.

    Raises:
        InvalidArgumentError: If a field is missing, or the episodes are not contiguous from row 0.
    """

    def __init__(self, records: NDArray[np.void], returns: Callable[[], NDArray[np.float64]] | None = None) -> None:
        missing = [name for name in EPISODE_DTYPE.names or () if name not in (records.dtype.names or ())]
        if missing:
            raise InvalidArgumentError(f"the episode table lacks the fields {missing}")
        self._records, self._returns = records, returns
        # Arrays of their own, because the records are not aligned. A table of millions is read once, in blocks.
        self._starts, self._lengths = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
        stop = 0
        for first in range(0, len(records), _BLOCK):
            block = slice(first, first + _BLOCK)
            starts, lengths = self._starts[block], self._lengths[block]
            starts[:], lengths[:] = records["start"][block], records["length"][block]
            stops = np.cumsum(lengths) + stop
            # If the sum of the lengths overflows, a start is negative.
            wrong = np.flatnonzero((lengths < 1) | (starts < 0) | (starts != stops - lengths))
            if len(wrong):
                number = int(wrong[0])
                raise InvalidArgumentError(
                    f"episode {first + number} starts at row {starts[number]} with {lengths[number]} steps, "
                    "expected contiguous episodes from row 0, each of at least 1 step"
                )
            stop = stops[-1]

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer[Any]]) -> EpisodeTable:
        """Return the table of episodes with these lengths, [E]."""
        records = np.zeros(len(lengths), EPISODE_DTYPE)
        records["length"] = lengths
        records["start"] = np.cumsum(lengths) - lengths
        records["source"] = np.arange(len(lengths))
        return cls(records)

    def __len__(self) -> int:
        """Return the number of episodes, E."""
        return len(self._records)

    @property
    def records(self) -> NDArray[np.void]:
        """The table as a structured array, [E]."""
        if self._returns is not None:
            self._records["return"] = self._returns()
            self._returns = None
        return self._records

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a field of the table, [E]."""
        column: NDArray[Any] = (self.records if name == "return" else self._records)[name]
        return column

    def __iter__(self) -> Iterator[range]:
        """Yield the range of rows of each episode."""
        return (range(int(start), int(stop)) for start, stop in zip(self.starts, self.stops, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields of the table."""
        return tuple(self._records.dtype.names or ())

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The dtype of the records."""
        return self._records.dtype

    @property
    def metadata_names(self) -> list[str]:
        """Names of the fields that do not follow from the rows of the episodes: `source`, and what the source added."""
        return [name for name in self.names if name not in COMPUTED]

    @property
    def starts(self) -> Index:
        """First row of each episode, [E]."""
        return self._starts

    @property
    def lengths(self) -> Index:
        """Number of steps of each episode, [E]."""
        return self._lengths

    @property
    def stops(self) -> Index:
        """Row after the last row of each episode, [E]."""
        return self.starts + self.lengths

    @property
    def steps(self) -> int:
        """Total number of steps, N."""
        return int(self._starts[-1] + self._lengths[-1]) if len(self) else 0

    @property
    def numbers(self) -> Index:
        """Number of each episode by which it is selected, [E]. Different episodes have different numbers.

        The number is the number at the source, and in a merge the number among the episodes of the merged datasets.
        Where each file counts its episodes from 0, the number is the position among the episodes of all files. Copies
        and parts of an episode have the same number, also episodes that `append_episodes` adds again.
        """
        source: Index = self["source"]
        if "file" not in self.names or self["file"].dtype.kind not in "iu":
            return source
        pairs, firsts, places = np.unique(
            np.stack([self["file"], source]), axis=1, return_index=True, return_inverse=True
        )
        if pairs.shape[1] == len(np.unique(source)):
            return source
        positions = np.argsort(np.argsort(firsts))  # in the order of the table: appended episodes come last
        return positions[places.reshape(-1)]

    def episode_of(self, rows: NDArray[np.integer[Any]] | int) -> Index:
        """Return the index of the episode of each row, in the shape of `rows`."""
        return np.asarray(np.searchsorted(self.starts, rows, side="right") - 1)

    def next_known(self, rows: Index) -> NDArray[np.bool_]:
        """Return whether the next state of each row is known, in the shape of `rows`."""
        episodes = self.episode_of(rows)
        last = self.starts[episodes] + self.lengths[episodes] - 1
        known: NDArray[np.bool_] = self["final_known"][episodes] | (last != rows)
        return known

    @overload
    def rows(self, episode: SupportsIndex) -> range: ...

    @overload
    def rows(self, episode: Iterable[Any]) -> Index: ...

    def rows(self, episode: SupportsIndex | Iterable[Any]) -> range | Index:
        """Return the rows of an episode as a range, or the rows of several episodes as int64 [n], in the given order.

            >>> dataset[dataset.episodes.rows([0, 3])]
            >>> dataset[dataset.episodes.rows(dataset.episodes["return"] > -200)]

        Args:
            episode: An index of the table, where a negative index counts from the end. Or several indices, or a mask,
                bool [E].

        Raises:
            IndexError: If there is no such episode.
        """
        if np.ndim(episode):  # type: ignore[arg-type]  # of any sequence
            chosen = np.arange(len(self))[np.asarray(episode) if len(episode) else []]  # type: ignore[arg-type]
            return concatenated_ranges(self.starts[chosen], self.lengths[chosen])
        number: Any = episode
        start, length = self.starts[number], self.lengths[number]
        return range(int(start), int(start + length))

    def to_pandas(self) -> DataFrame:
        """Return the table as a DataFrame with a row per episode, indexed by the number of the episode.

            >>> dataset.episodes.to_pandas().nlargest(10, "return")

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        with importing("pandas", "pandas", "to_pandas()"):
            from pandas import DataFrame, RangeIndex
        columns = {name: self[name] if self[name].ndim == 1 else [*self[name]] for name in self.names}
        return DataFrame(columns, index=RangeIndex(len(self), name="episode"))

    def _repr_html_(self) -> str:
        """Return the first and the last episodes, for notebooks."""
        numbers = [*range(min(len(self), _SHOWN)), *range(max(len(self) - _SHOWN, _SHOWN), len(self))]
        rows = [(str(number), *map(_cell_text, self.records[number])) for number in numbers]
        if len(self) > 2 * _SHOWN:
            rows.insert(_SHOWN, ("...",) * (1 + len(self.names)))
        return table_html(f"{len(self):,} episodes, {self.steps:,} steps", ("episode", *self.names), rows)

    def __repr__(self) -> str:
        lengths = self.lengths
        span = f", lengths {lengths.min()} to {lengths.max()}" if len(self) else ""
        return f"EpisodeTable({len(self)} episodes, {self.steps} steps{span})"


def concatenated_ranges(starts: Index, lengths: Index) -> Index:
    """Return the concatenated ranges ``start, start + 1, ...`` of these lengths, [sum of the lengths]."""
    stops = np.cumsum(lengths)
    return np.repeat(starts - (stops - lengths), lengths) + np.arange(lengths.sum())


def _cell_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
