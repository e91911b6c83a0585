"""Episodes from rows: of files that have all episodes one after the other, and of long episodes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import Episode, StoredImages, TextStates, concatenate_columns
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
        columns: The other columns to read. Columns of flags are ignored.
        read: Returns the values [start, stop) of a key. For the last piece of a state, `stop` is T + 1: if the state after
            the last step is not known, the values end before it.
        metadata: The metadata of the episode.
        step_bytes: Bytes of a step in memory, by default the bytes of the columns.
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
    steps: Mapping[Key, Any],
    states: Mapping[Key, Any],
    ends: NDArray[np.bool_],
    finals: Mapping[Key, Any],
    metadata: Mapping[str, NDArray[Any]],
    *,
    is_begun: bool,
    known: NDArray[np.bool_] | None = None,
) -> Iterator[Episode | EpisodeBatch]:
    """Split a block of rows into the rest of an episode, whole episodes, and the first piece of another episode.

        rows     0 1 2 3 4 5 6 7 8 9
        ends         1   1       1
        yielded  [---][---------][---    with `is_begun`. Otherwise, the batch begins with row 0

    Args:
        steps: The rows of the fields of steps, [T, ...].
        states: The rows of the fields of states, [T, ...].
        ends: Mask of the last rows of the n episodes that end in the block, [T].
        finals: The states after the last rows of episodes, [n, ...], of the fields for which there are any.
        metadata: The metadata of the episodes, [n].
        is_begun: Whether an episode of the block before continues.
        known: Whether the states after the last rows are known, [n]. By default, the states in `finals` are known.
    """
    stops = np.flatnonzero(ends) + 1
    starts = [0, *stops.tolist()]
    # The states that decide whether the final state is known, see `Episode.final_known`.
    has = [key in finals for key in filter(is_observation, states)] or [key in finals for key in states]
    # A batch has only whole episodes. All these states have a final state, or no state has. The writer checks encoded
    # images, and takes frames of videos, in episodes only.
    is_mixed = any(has) and not all(has)
    has_images = any(isinstance(values, StoredImages) for values in (*steps.values(), *states.values()))
    single = len(stops) if is_mixed or has_images else min(int(is_begun), len(stops))
    for number, (start, stop) in enumerate(pairwise(starts[: single + 1])):
        rows = _sliced(states, start, stop)
        if known is None or known[number]:
            rows |= {key: _joined(rows[key], values, number) for key, values in finals.items()}
        of_episode = {name: values[number] for name, values in metadata.items()}
        yield Episode(_sliced(steps, start, stop), rows, metadata=of_episode)
    if len(batched := stops[single:]):
        vocabulary = {key: values.vocabulary for key, values in (*steps.items(), *states.items()) if _is_text(values)}
        yield EpisodeBatch(
            np.diff(batched, prepend=starts[single]),
            _codes(_sliced(steps, starts[single], starts[-1])),
            _codes(_sliced(states, starts[single], starts[-1])),
            {key: _batched_finals(finals.get(key), values, single, len(batched)) for key, values in states.items()},
            np.full(len(batched), all(has)) if known is None else known[single:],
            {name: values[single:] for name, values in metadata.items()},
            vocabulary,
        )
    if starts[-1] < len(ends):
        yield Episode(_sliced(steps, starts[-1], None), _sliced(states, starts[-1], None), continues=True)


def _sliced(columns: Mapping[Key, Any], start: int, stop: int | None) -> dict[Key, Any]:
    rows = slice(start, stop)
    return {
        key: TextStates(values.codes[rows], values.vocabulary) if _is_text(values) else values[rows]
        for key, values in columns.items()
    }


def _codes(columns: Mapping[Key, Any]) -> dict[Key, Any]:
    return {key: values.codes if _is_text(values) else values for key, values in columns.items()}


def _joined(values: Any, finals: Any, number: int) -> Any:
    """Return the states of an episode with the state after the last step."""
    if _is_text(values):
        return TextStates(np.append(values.codes, finals.codes[number]), values.vocabulary)
    return concatenate_columns([values, finals[number : number + 1]])


def _batched_finals(finals: Any, values: Any, first: int, count: int) -> Any:
    """Return the states after the last steps of the episodes of a batch, or blank states if there are no states."""
    if finals is not None:
        return (finals.codes if _is_text(finals) else finals)[first:]
    if _is_text(values):
        return np.full(count, values.vocabulary.index(""), np.int32)
    return np.zeros((count, *values.shape[1:]), values.dtype)


def _is_text(values: Any) -> TypeGuard[TextStates]:
    return isinstance(values, TextStates)
