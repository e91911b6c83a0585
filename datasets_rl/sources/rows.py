"""Splitting of consecutive rows into episodes, for files that have the rows of all episodes one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key


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
