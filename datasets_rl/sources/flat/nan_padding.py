"""Padding with NaN: the last rows of the episodes of a batch, [E, T, ...], in which no field has a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.blank import blank_rows, may_be_blank

NAN_PADDING = "nan-padding"
RULES: Mapping[str, str] = {
    NAN_PADDING: "the last rows of episodes, in which all fields are NaN, are padding and were left out",
}
"""Text of each counted decision, by rule."""
_BLOCK_EPISODES = 256

_FILLS = (0, -1)
"""Values of other arrays in padding, beside NaN."""

_Index = NDArray[np.int64]


def steps_before_nan(
    file: ArrayFile, core: Sequence[str], others: Sequence[str], flags: Collection[str], *, is_stated: bool
) -> _Index | None:
    """Return the number of steps of each episode before rows of NaN, [E], or None if no episode ends with such rows.

    Args:
        file: The file.
        core: Arrays of observations, actions and rewards, [E, T, ...] or [E, T + 1, ...].
        others: Other arrays of steps, which are zero, -1 or NaN in padding.
        flags: Arrays of end flags among the others, which may have any value in padding.
        is_stated: Whether the user states which rows have an action.

    Raises:
        ConversionError: If some of the observations, actions and rewards end with NaN, and others do not.
    """
    floats = [name for name in core if file.arrays[name].dtype.kind == "f" and not file.arrays[name].text]
    shapes = {file.arrays[name].rows: file.arrays[name].shape[0] for name in (*core, *others)}
    if not floats or len(shapes) > 1:
        return None
    steps = min(file.arrays[name].shape[0] for name in (*core, *others))
    blank = {name: _trailing_blanks(file, name, steps, ()) for name in floats}
    if not any(rows.any() for rows in blank.values()):
        return None
    rest = [name for name in (*core, *others) if name not in floats and name not in flags]
    padding: _Index = np.minimum.reduce(
        [*blank.values(), *(_trailing_blanks(file, name, steps, _FILLS) for name in rest)]
    )
    open_names = [name for name, rows in blank.items() if (rows > padding).any()]
    if open_names and not is_stated:
        more = np.any([blank[name] > padding for name in open_names], axis=0)
        first = int(np.argmax(more))
        problem = (
            f"{join_names(open_names, ITEMS_MAX)} is NaN in the last rows of {more.sum():,} of {len(more):,} episodes, where "
            f"other fields have values: the first is episode {first:,}, row {steps - max(blank[name][first] for name in open_names):,}"
        )
        hint = (
            'state in dataset.toml alignment = "one-more" if the last row only has the observation after the last action, or '
            'alignment = "same-row" if these rows are steps. Otherwise add an array of lengths'
        )
        raise ConversionError(file.name, [problem], hint=hint)
    return steps - padding if padding.any() else None


def _trailing_blanks(file: ArrayFile, name: str, steps: int, fills: Sequence[int]) -> _Index:
    """Return how many of the last rows of each episode are blank, at most `steps`, [E]."""
    counts: list[_Index] = []
    array = file.arrays[name]
    if array.text or not may_be_blank(array):
        return np.zeros(array.rows, np.int64)
    for block in file.blocks(name, _BLOCK_EPISODES):
        values: NDArray[Any] = np.asarray(block)
        if not blank_rows(values[:, -1], fills).any():
            counts.append(np.zeros(len(values), np.int64))
            continue
        has_value = ~blank_rows(values, fills, axes=2)[:, ::-1]
        trailing = np.where(has_value.any(1), has_value.argmax(1), has_value.shape[1])
        counts.append(np.minimum(trailing, steps).astype(np.int64))
    return np.concatenate(counts)
