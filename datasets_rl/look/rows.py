"""The rows of an episode in order, and the true final observation of the episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import Field
from datasets_rl.look.steps import StepReader
from datasets_rl.ted.keys import EPISODE, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key


@dataclass(frozen=True, slots=True)
class Row:
    """The stored values of a step."""

    step: int
    """Number within the episode, t."""
    row: int
    """Number within the dataset."""
    terminated: bool
    truncated: bool
    values: Mapping[str, Any]
    """Values by dotted key: an array, a text, or an `Image`."""


@dataclass(frozen=True, slots=True)
class Image:
    """Dtype and shape of an image, which stand for the pixels."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """Some rows of an episode."""

    episode: int
    length: int
    start: int
    """Row of the first step of the episode in the dataset."""
    episode_return: float
    rows: tuple[Row, ...]
    final: Mapping[str, Any] | None
    """The observation after the last action, by dotted key, or None if unknown, or if the last row is not shown."""
    final_known: bool
    """Whether the observation after the last action is known."""


def episode_rows(
    steps: StepReader, episode: int, rows: slice | None = None, keys: Sequence[Key] | None = None
) -> EpisodeRows:
    """Return rows of an episode, with the final observation if `rows` has the last row.

    Args:
        steps: The steps.
        episode: Number of the episode. A negative number counts from the end.
        rows: The rows within the episode, all by default.
        keys: The fields, all by default.

    Raises:
        InvalidArgumentError: If there is no such episode.
        UnknownKeyError: If there is no such field. The error names the existing fields.
    """
    table = steps.episodes
    if not -len(table) <= episode < len(table):
        raise InvalidArgumentError(
            f"episode is {episode}, expected an integer from {-len(table):,} to {len(table) - 1:,}"
        )
    episode %= len(table)
    whole = table.rows(episode)
    chosen = whole[rows or slice(None)]
    fields = [field for field in steps.fields if field.key != EPISODE] if keys is None else [*map(steps.field, keys)]
    columns = {field.name: _column(steps, field, chosen) for field in fields}
    numbers = np.arange(chosen.start, chosen.stop, chosen.step)
    terminated = steps.take(NEXT_TERMINATED, numbers)[:, 0]
    truncated = steps.take(NEXT_TRUNCATED, numbers)[:, 0] | (~terminated & (numbers == whole[-1]))
    shown = tuple(
        Row(
            step=row - whole.start,
            row=row,
            terminated=bool(terminated[number]),
            truncated=bool(truncated[number]),
            values={name: column[number] for name, column in columns.items()},
        )
        for number, row in enumerate(chosen)
    )
    final = None
    known = bool(table["final_known"][episode])
    if known and whole[-1] in chosen:
        states = [field for field in fields if field.shared and field.key[0] == OBSERVATION[0]]
        final = {field.name: _final_value(steps, field, whole[-1]) for field in states}
    return EpisodeRows(
        episode, len(whole), whole.start, float(table["return"][episode]), shown, final, final_known=known
    )


def _column(steps: StepReader, field: Field, rows: range) -> Sequence[Any] | NDArray[Any]:
    if field.wide:
        return [Image(field.read_dtype.name, field.shape)] * len(rows)
    values = steps.take(field.key, np.arange(rows.start, rows.stop, rows.step))
    if field.text:
        texts = steps.stored.texts(field.key)
        return [texts[code] for code in values.reshape(-1)]
    return values


def _final_value(steps: StepReader, field: Field, row: int) -> Any:
    if field.wide:
        return Image(field.read_dtype.name, field.shape)
    value = steps.next_state(field.key, row)
    return value if value is None or not field.text else steps.stored.texts(field.key)[int(value)]
