"""What a comparison of two datasets reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

EPISODE_TABLE = "episode table: "
"""Begins the name of a column of the episode table in a `FieldDifference`."""
_PART = 40
"""Characters of a text that are shown beside another text."""


@dataclass(frozen=True, slots=True)
class Side:
    """A dataset that is compared."""

    name: str
    """The name as the user gave it."""
    id: str
    version: str
    """Name of the version, such as ``0001-3f2a9c10``. Empty if nothing is stored."""
    steps: int
    episodes: int


@dataclass(frozen=True, slots=True)
class Change:
    """Something of the description that differs: a field of the schema, a decision, a specification, or metadata."""

    name: str
    """What differs, such as ``schema: action``."""
    before: str
    """The text in the first dataset. Empty if only the second dataset has it."""
    after: str
    """The text in the second dataset. Empty if only the first dataset has it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'nothing'} -> {self.after or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Place:
    """A value that differs."""

    episodes: tuple[int, int]
    """Numbers of the episode in the first and in the second dataset."""
    step: int
    """The step in the episode. The number of steps is the state after the last action. -1 is a column of the episode table."""
    element: tuple[int, ...]
    """Indices of the element in the value of the step. Empty for a scalar or a text."""
    before: Any
    """The value in the first dataset."""
    after: Any
    """The value in the second dataset."""

    @property
    def texts(self) -> tuple[str, str]:
        """Both values for readers: floats with as many digits as show that they differ, and the part of texts that differs."""
        if isinstance(self.before, str) and isinstance(self.after, str):
            before, after = different_parts(self.before, self.after, _PART)
            return f"'{before}'", f"'{after}'"
        if isinstance(self.before, float) and isinstance(self.after, float):
            for digits in (4, 9):
                before, after = f"{self.before:.{digits}g}", f"{self.after:.{digits}g}"
                if before != after:
                    return before, after
        return str(self.before), str(self.after)


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field that both datasets have, in the episodes that both have."""

    name: str
    """Dotted key in the first dataset, or ``episode table: NAME`` for a column of the episode table."""
    other_name: str
    """Dotted key in the second dataset, which is another key if the field was renamed."""
    compared: int
    """Number of compared steps, the states after the last actions included, or of episodes for a column of the episode table."""
    steps: int = 0
    """Number of steps with another value."""
    values: int = 0
    """Number of elements with another value."""
    episodes: tuple[int, ...] = ()
    """Numbers in the first dataset of the episodes with another value, ascending."""
    first: Place | None = None
    """The first value that differs. None if all values are equal."""
    greatest: float | None = None
    """The greatest distance of two finite numbers that differ. None without any, as for texts."""

    @property
    def equal(self) -> bool:
        """Whether all compared values are equal. NaN is equal to NaN, and 0.0 to -0.0."""
        return self.first is None

    @property
    def of_steps(self) -> bool:
        """Whether the values are of steps. False for a column of the episode table."""
        return not self.name.startswith(EPISODE_TABLE)


@dataclass(frozen=True, slots=True)
class Difference:
    """The result of `diff`. The first dataset is before, and the second dataset is after.

    >>> from datasets_rl import diff, download
    >>> folder = download("demo/pendulum")
    >>> diff(folder, folder).equal
    True
    """

    before: Side
    after: Side
    changes: tuple[Change, ...]
    """Differences of schema, decisions and metadata."""
    origins: tuple[Change, ...]
    """Differences of what does not change the data: id, addresses, history, version of the converter. They do not count."""
    pairs: tuple[tuple[int, int], ...]
    """The episodes that both datasets have: the number in the first dataset, ascending, and the number in the second."""
    only_before: tuple[int, ...]
    """Numbers of the episodes that only the first dataset has."""
    only_after: tuple[int, ...]
    """Numbers of the episodes that only the second dataset has."""
    fields: tuple[FieldDifference, ...]
    """The fields that both datasets have, and whose values can be compared."""
    uncompared: tuple[str, ...]
    """Dotted keys of both datasets whose values cannot be compared: another number of elements, or texts and numbers."""
    shortened: tuple[tuple[int, int, int, int], ...]
    """Episodes of both datasets with other numbers of steps: the two numbers of the episode, and the two numbers of steps. Their
    first steps are compared."""
    statistics: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]
    """Statistics of both datasets, by the names whose statistics differ."""

    @property
    def moved(self) -> int:
        """Number of episodes of both datasets that come after an episode that they preceded before."""
        highest, count = -1, 0
        for _, number in self.pairs:
            count += number < highest
            highest = max(highest, number)
        return count

    @property
    def different_fields(self) -> tuple[FieldDifference, ...]:
        """The fields with different values."""
        return tuple(one for one in self.fields if not one.equal)

    @property
    def equal(self) -> bool:
        """Whether both datasets have the same episodes in the same order, with the same fields, values and description."""
        return not (
            self.changes
            or self.only_before
            or self.only_after
            or self.shortened
            or self.moved
            or self.different_fields
            or any(one.name != one.other_name for one in self.fields)
        )

    @property
    def summary(self) -> str:
        """The difference in a line."""
        if self.equal:
            return f"equal: {_count(self.before.steps, 'step')} in {_count(self.before.episodes, 'episode')}"
        both = len(self.pairs)
        parts = [f"{_count(both, 'episode')} in both"]
        if both and (different := self.different_fields):
            episodes = {episode for one in different for episode in one.episodes}
            parts.append(f"{len(episodes):,} with other values of {_names([one.name for one in different])}")
        elif both:
            parts.append("with equal values")
        if both and self.uncompared:
            parts.append(f"{_names(self.uncompared)} not compared")
        if self.moved:
            parts.append(f"{self.moved:,} in another order")
        if self.shortened:
            parts.append(f"{len(self.shortened):,} with another number of steps")
        parts += [
            f"{len(numbers):,} only in {side.name}"
            for numbers, side in ((self.only_before, self.before), (self.only_after, self.after))
            if numbers
        ]
        if renamed := [one for one in self.fields if one.name != one.other_name]:
            parts.append(f"{_count(len(renamed), 'field')} renamed")
        if self.changes:
            parts.append(f"{_count(len(self.changes), 'change')} of the description")
        return f"different: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain data. Values that JSON does not have are texts: ``nan``, ``inf`` and ``-inf``."""
        document = {"equal": self.equal, "summary": self.summary, "moved": self.moved, **asdict(self)}
        for place in (one["first"] for one in document["fields"] if one["first"]):
            place.update({side: _finite_or_text(place[side]) for side in ("before", "after")})
        return document


def _finite_or_text(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


_SHOWN_NAMES = 4


def _names(names: Sequence[str]) -> str:
    shown = names[:_SHOWN_NAMES]
    more = len(names) - len(shown)
    *first, last = [*shown, *([f"{more:,} more"] if more else [])]
    return f"{', '.join(first)} and {last}" if first else last


def different_parts(before: str, after: str, size: int) -> tuple[str, str]:
    """Return two texts, of long ones the part around the first character that differs.

    Args:
        before: The first text.
        after: The second text.
        size: The greatest number of characters of a part.
    """
    unequal = (place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
    same = next(unequal, min(len(before), len(after)))
    start = max(0, same - size // 4) if max(len(before), len(after)) > size else 0
    first, second = (
        f"{'...' * bool(start)}{text[start : start + size]}{'...' * (len(text) > start + size)}"
        for text in (before, after)
    )
    return first, second
