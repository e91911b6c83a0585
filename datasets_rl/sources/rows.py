"""Episodes from rows: of files that have all episodes one after the other, and of long episodes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, Key, is_observation

if TYPE_CHECKING:
    from datasets_rl.format.schema import Column

_CHUNK_BYTES = 8 << 20


def rows_in_chunk(row_bytes: int) -> int:
    """Return how many rows of this size are read at once: a few megabytes, at least one row."""
    return max(1, _CHUNK_BYTES // max(1, row_bytes))


def end_flags(steps: int, *, terminated: bool) -> dict[Key, NDArray[np.bool_]]:
    """Return the flags of an episode of T steps, [T, 1] each: the last step is terminated, or else truncated."""
    is_last = np.arange(steps)[:, None] == steps - 1
    return {NEXT_TERMINATED: is_last & terminated, NEXT_TRUNCATED: is_last & (not terminated)}


def split_episode(
    flags: Mapping[Key, NDArray[np.bool_]],
    columns: Sequence[Column],
    read: Callable[[Key, int, int], Any],
    metadata: Mapping[str, Any],
    *,
    step_bytes: int | None = None,
) -> Iterator[Episode]:
    """Split an episode of T steps into pieces of a few megabytes.

    Args:
        flags: The flags of the steps, [T, 1] each.
        columns: The other columns to read; those of flags are ignored.
        read: Returns the values [start, stop) of a key. For the last piece of a state, `stop` is T + 1: if the state after
            the last step is not known, the values end before it.
        metadata: The metadata of the episode.
        step_bytes: Bytes of a step in memory; by default those that the columns have.
    """
    steps = len(next(iter(flags.values())))
    columns = [column for column in columns if column.key not in flags]
    step_bytes = sum(column.step_bytes for column in columns) if step_bytes is None else step_bytes
    chunk = rows_in_chunk(step_bytes)
    for start in range(0, steps, chunk):
        stop = min(start + chunk, steps)
        values: dict[Key, Any] = {key: rows[start:stop] for key, rows in flags.items()}
        states: dict[Key, Any] = {}
        for column in columns:
            if column.shared:
                states[column.key] = read(column.key, start, stop + (stop == steps))
            else:
                values[column.key] = read(column.key, start, stop)
        yield Episode(values, states, continues=stop < steps, metadata=metadata)


def split_rows(
    steps: Mapping[Key, NDArray[Any]],
    states: Mapping[Key, NDArray[Any]],
    ends: NDArray[np.bool_],
    following: Mapping[Key, NDArray[Any]],
    metadata: Mapping[str, NDArray[Any]],
    *,
    is_begun: bool,
) -> Iterator[Episode | EpisodeBatch]:
    """Split a block of rows into the rest of an episode, whole episodes, and the first piece of another one.

        rows     0 1 2 3 4 5 6 7 8 9
        ends         1   1       1
        yielded  [---][---------][---    with `is_begun`; otherwise, the batch begins with row 0

    Args:
        steps: The rows of the fields of steps, [T, ...].
        states: The rows of the fields of states, [T, ...].
        ends: Mask of the last rows of episodes, [T].
        following: The states after each row, [T, ...], of the fields for which they are known.
        metadata: The metadata of the episode that ends at each row, [T].
        is_begun: Whether an episode of the block before continues.
    """
    stops = np.flatnonzero(ends) + 1
    starts = [0, *stops.tolist()]
    known = [key in following for key in states if is_observation(key)]
    # A batch has only whole episodes, whose observations all have a final state, or none has.
    single = len(stops) if any(known) and not all(known) else min(int(is_begun), len(stops))
    for start, stop in pairwise(starts[: single + 1]):
        finals = {key: values[stop - 1 : stop] for key, values in following.items()}
        joined = {key: np.concatenate([states[key][start:stop], final]) for key, final in finals.items()}
        of_episode = {name: values[stop - 1] for name, values in metadata.items()}
        yield Episode(_sliced(steps, start, stop), _sliced(states, start, stop) | joined, metadata=of_episode)
    if len(batched := stops[single:]):
        lasts, count = batched - 1, len(batched)
        unknown = {key: np.zeros((count, *values.shape[1:]), values.dtype) for key, values in states.items()}
        yield EpisodeBatch(
            np.diff(batched, prepend=starts[single]),
            _sliced(steps, starts[single], starts[-1]),
            _sliced(states, starts[single], starts[-1]),
            unknown | {key: values[lasts] for key, values in following.items()},
            np.full(count, all(known)),
            {name: values[lasts] for name, values in metadata.items()},
        )
    if starts[-1] < len(ends):
        yield Episode(_sliced(steps, starts[-1], None), _sliced(states, starts[-1], None), continues=True)


def _sliced(arrays: Mapping[Key, NDArray[Any]], start: int, stop: int | None) -> dict[Key, NDArray[Any]]:
    return {key: array[start:stop] for key, array in arrays.items()}
