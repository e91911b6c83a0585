"""Episodes from rows: of files that have all episodes one after the other, and of long episodes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, Key

if TYPE_CHECKING:
    from datasets_rl.format.schema import Column

_CHUNK_BYTES = 8 << 20


class EpisodeField(Protocol):
    """Field that an episode has a value of for each of its rows."""

    @property
    def column(self) -> Column:
        """The column that it is converted to."""

    @property
    def first_row(self) -> int:
        """The row with the value of the first transition."""


_Field = TypeVar("_Field", bound=EpisodeField)


def split_episode(
    steps: int,
    fields: Sequence[_Field],
    read: Callable[[_Field, int, int], Any],
    *,
    terminated: bool,
    metadata: Mapping[str, Any],
) -> Iterator[Episode]:
    """Split an episode of T steps, whose states have T + 1 rows, into pieces of a few megabytes.

    Args:
        steps: The number of steps T.
        fields: The fields to read.
        read: Returns the rows [start, stop) of a field, [stop - start, ...].
        terminated: Whether the last step is terminated; else it is truncated.
        metadata: The metadata of the episode.
    """
    is_last = np.arange(steps)[:, None] == steps - 1
    flags = {NEXT_TERMINATED: is_last & terminated, NEXT_TRUNCATED: is_last & (not terminated)}
    chunk = max(1, _CHUNK_BYTES // max(1, sum(field.column.step_bytes for field in fields)))
    for start in range(0, steps, chunk):
        stop = min(start + chunk, steps)
        values: dict[Key, Any] = {key: rows[start:stop] for key, rows in flags.items()}
        states: dict[Key, Any] = {}
        for field in fields:
            group = states if field.column.shared else values
            last = stop + (stop == steps and field.column.shared)
            group[field.column.key] = read(field, start + field.first_row, last + field.first_row)
        yield Episode(values, states, continues=stop < steps, metadata=metadata)


def split_rows(
    steps: Mapping[Key, NDArray[Any]],
    states: Mapping[Key, NDArray[Any]],
    ends: NDArray[np.bool_],
    *,
    following: Mapping[Key, NDArray[Any]] | None = None,
    is_begun: bool = False,
) -> Iterator[Episode | EpisodeBatch]:
    """Split a block of rows into the rest of an episode, whole episodes, and the first piece of another one.

        rows     0 1 2 3 4 5 6 7 8 9
        ends         1   1       1
        yielded  [---][---------][---    with `is_begun`; otherwise, the batch begins with row 0

    Args:
        steps: The rows of the fields of steps, [T, ...].
        states: The rows of the fields of states, [T, ...].
        ends: Mask of the last rows of episodes, [T].
        following: The states after each row, [T, ...]; None if those after the last steps are unknown.
        is_begun: Whether an episode of the block before continues.
    """
    stops = np.flatnonzero(ends) + 1
    start = 0
    if is_begun:
        start = int(stops[0]) if len(stops) else len(ends)
        known = (
            {} if following is None or not len(stops) else {key: v[start - 1 : start] for key, v in following.items()}
        )
        yield Episode(
            {key: values[:start] for key, values in steps.items()},
            {key: np.concatenate([values[:start], known.get(key, values[:0])]) for key, values in states.items()},
            continues=not len(stops),
        )
        stops = stops[1:]
    if len(stops):
        begin, start = start, int(stops[-1])
        yield EpisodeBatch(
            np.diff(stops, prepend=begin),
            {key: values[begin:start] for key, values in steps.items()},
            {key: values[begin:start] for key, values in states.items()},
            {
                key: np.zeros((len(stops), *values.shape[1:]), values.dtype)
                if following is None
                else following[key][stops - 1]
                for key, values in states.items()
            },
            np.full(len(stops), following is not None),
        )
    if start < len(ends):
        yield Episode(
            {key: values[start:] for key, values in steps.items()},
            {key: values[start:] for key, values in states.items()},
            continues=True,
        )
