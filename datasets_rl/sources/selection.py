"""Which part of a dataset is wanted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted

__all__ = ["Numbers", "Option", "Selection", "read_numbers"]

_NUMBERS = re.compile(r"(-?\d+)|(-?\d*):(-?\d*)(?::(\d+))?")
_ALWAYS = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE, EPISODE})
_LISTS = ("keys", "include", "exclude")


@dataclass(frozen=True, slots=True)
class Option:
    """A choice that only one source has, as ``--images encoded``."""

    name: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    """What may be given; anything, where none is named."""
    numbers: bool = False
    """Whether it chooses pieces by their numbers, as `Selection.episodes` does, so that a dataset can grow by it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a dataset that is wanted; all of it by default."""

    episodes: str = ""
    """Numbers in the upstream's own order: ``0:100``, ``0:100:2``, ``1,5,9``."""
    keys: tuple[str, ...] = ()
    """Fields by their dotted names, ``observation`` or ``info.qpos``; a name stands for all that lies below it. Reward
    and flags are always there."""
    max_size: int | None = None
    """Bytes on the wire; the first files that fit are taken."""
    include: tuple[str, ...] = ()
    """Globs on the paths of upstream files; others are left out."""
    exclude: tuple[str, ...] = ()
    """Globs on the paths of upstream files that are left out."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What the source itself lets one choose, `Source.options`."""

    def to_json(self) -> dict[str, Any]:
        """Describe the selection for the manifest: nothing for the whole."""
        plain: dict[str, Any] = {"episodes": self.episodes, "max_size": self.max_size, "options": dict(self.options)}
        plain |= {name: list(getattr(self, name)) for name in _LISTS}
        return {name: value for name, value in plain.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Selection:
        """Read back what `to_json` wrote.

        Raises:
            InvalidArgumentError: If it is another document.
        """
        kinds: dict[str, type] = dict.fromkeys(_LISTS, list) | {"episodes": str, "max_size": int, "options": dict}
        wrong = sorted(f"{name} = {one!r}" for name, one in value.items() if not isinstance(one, kinds.get(name, ())))
        if wrong:
            raise InvalidArgumentError(
                f"a selection has {', '.join(wrong)}; expected {', '.join(kinds)}, each of its type"
            )
        given: dict[str, Any] = {name: tuple(one) if name in _LISTS else one for name, one in value.items()}
        return cls(**given)

    def __str__(self) -> str:
        """Write the selection as one types it."""
        words = [f"--episodes {self.episodes}"] if self.episodes else []
        words += [f"--max-size {self.max_size}"] if self.max_size else []
        words += [f"--keys {','.join(self.keys)}"] if self.keys else []
        words += [f"--{name} {one}" for name in ("include", "exclude") for one in getattr(self, name)]
        words += [f"--{name} {value}" for name, value in sorted(self.options.items())]
        return " ".join(words) or "the whole dataset"

    def covers(self, asked: Selection, options: Sequence[Option] = ()) -> bool:
        """Return whether a dataset of this selection has all that is asked for.

        Args:
            asked: The other selection. A choice that it leaves open, as `images`, is that of this one.
            options: Those of the source.
        """
        return not self.contradicts(asked, options) and self.joined(asked, options) == self.joined(self, options)

    def contradicts(self, asked: Selection, options: Sequence[Option] = ()) -> list[str]:
        """Return the names of the choices that change what is stored, and for which the two differ."""
        known = {option.name: option for option in options}
        return [
            name
            for name, value in sorted(asked.options.items())
            if not (name in known and known[name].numbers) and value != self.choice(name, options)
        ]

    def choice(self, name: str, options: Sequence[Option] = ()) -> str:
        """Return the value of an option, the default of the source where it was not given."""
        defaults = {option.name: option.default for option in options}
        return self.options.get(name) or defaults.get(name, "")

    def joined(self, asked: Selection, options: Sequence[Option] = ()) -> Selection:
        """Return the smallest selection that has all of both, with the choices of this one.

        Args:
            asked: The other selection, which contradicts no choice.
            options: Those of the source.
        """
        numbers = {option.name for option in options if option.numbers}
        choices = {name: value for name, value in self.options.items() if name not in numbers}
        chosen = {name: _join_numbers(self.options.get(name, ""), asked.options.get(name, "")) for name in numbers}
        return Selection(
            episodes=_join_numbers(self.episodes, asked.episodes),
            keys=_join_keys(self.keys, asked.keys),
            max_size=max(self.max_size, asked.max_size) if self.max_size and asked.max_size else None,
            include=tuple(dict.fromkeys(self.include + asked.include)) if self.include and asked.include else (),
            exclude=tuple(one for one in dict.fromkeys(self.exclude) if one in asked.exclude),
            options=choices | {name: text for name, text in chosen.items() if text},
        )

    def counts_as(self, other: Selection, options: Sequence[Option] = ()) -> bool:
        """Return whether both count episodes over the same files of the upstream."""
        numbers = [option.name for option in options if option.numbers]
        here, there = (
            (
                one.max_size,
                {*one.include},
                {*one.exclude},
                *(_join_numbers(text, text) for text in (one.options.get(name, "") for name in numbers)),
            )
            for one in (self, other)
        )
        return here == there

    def within(self, part: Selection) -> Selection:
        """Return this selection with everything that it leaves open taken from a stored part."""
        given = {one.name: getattr(self, one.name) or getattr(part, one.name) for one in fields(self)}
        return Selection(**{**given, "options": {**part.options, **self.options}})

    def keeps_file(self, path: str) -> bool:
        """Return whether the globs let a file of this path, or of this name, in."""

        def meets(patterns: Sequence[str]) -> bool:
            name = path.rpartition("/")[2]
            return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in patterns)

        return (not self.include or meets(self.include)) and not meets(self.exclude)

    def kept_keys(self, keys: Sequence[Key]) -> set[Key]:
        """Return those of the fields that are wanted.

        Raises:
            UnknownKeyError: If a name that is wanted stands for no field.
        """
        if not self.keys:
            return set(keys)
        kept = {key for key in keys if key in _ALWAYS}
        for name in self.keys:
            wanted = tuple(name.split("."))
            found = {key for key in keys if wanted in {key[: len(wanted)], key[1 : len(wanted) + 1] * (key[0] == NEXT)}}
            if not found:
                raise UnknownKeyError(name, sorted(dotted(key) for key in keys))
            kept |= found
        return kept


def read_numbers(text: str, total: int, what: str = "episodes") -> list[int]:
    """Read whole numbers below `total` as users write them: ``0:100``, ``0:100:2``, ``1,5,9``, ``-10:``.

    Args:
        text: The numbers; nothing stands for all.
        total: How many there are.
        what: What they count, for messages.

    Returns:
        Ascending, none twice.

    Raises:
        InvalidArgumentError: If it is no such text, or names a number that there is not.
    """
    chosen: set[int] = set()
    for part in _parts(text, what):
        if isinstance(part, slice):
            chosen.update(range(total)[part])
        elif -total <= part < total:
            chosen.add(part % total)
        else:
            raise InvalidArgumentError(f"{what} are {text!r}; there are {total:,}, counted from 0")
    if not chosen:
        raise InvalidArgumentError(f"{what} are {text!r}, which is none of the {total:,}")
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of episodes where nobody says beforehand how many there are: ``5:`` has no end."""

    single: frozenset[int]
    ranges: tuple[range, ...]

    @classmethod
    def read(cls, text: str) -> Numbers | None:
        """Read numbers as `read_numbers` does; None stands for all.

        Raises:
            InvalidArgumentError: If it is no such text, or counts from the end.
        """
        if not text:
            return None
        parts = [*_parts(text, "episodes")]
        if "-" in text:
            raise InvalidArgumentError(
                f"episodes are {text!r}; how many there are is not known before the files are read",
                hint="count from the front",
            )
        ranges = tuple(range(sys.maxsize)[part] for part in parts if isinstance(part, slice))
        single = frozenset(part for part in parts if isinstance(part, int))
        if not single and not any(ranges):
            raise InvalidArgumentError(f"episodes are {text!r}, which is none")
        return cls(single, tuple(filter(None, ranges)))

    def __contains__(self, number: int) -> bool:
        """Return whether an episode is wanted."""
        return number in self.single or any(number in one for one in self.ranges)

    @property
    def last(self) -> int:
        """The highest one."""
        return max([*self.single, *(one[-1] for one in self.ranges)])


def _join_numbers(left: str, right: str) -> str:
    """Return the text for all numbers of two texts, with ranges that touch joined into one; nothing stands for all."""
    if not left or not right:
        return ""
    pieces = list(dict.fromkeys(piece.strip() for piece in f"{left},{right}".split(",")))
    spans: list[tuple[int, int]] = []
    other: dict[str, range | None] = {}
    """Ranges with gaps; None for numbers from the end, whose place is unknown without the total."""
    for piece in pieces:
        (part,) = _parts(piece, "episodes")
        chosen = range(part, part + 1) if isinstance(part, int) else range(sys.maxsize)[part]
        if "-" in piece:
            other[piece] = None
        elif chosen.step == 1 and chosen:
            spans.append((chosen.start, chosen.stop))
        elif chosen:
            other[piece] = chosen
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        first, last = merged.pop() if merged and start <= merged[-1][1] else (start, stop)
        merged.append((first, max(last, stop)))
    if (0, sys.maxsize) in merged:
        return ""
    gaps = [one for one in other.values() if one is not None]
    words = [
        str(start) if stop == start + 1 else f"{start}:{'' if stop == sys.maxsize else stop}"
        for start, stop in merged
        if stop > start + 1 or not any(start in one for one in gaps)
    ]
    words += [
        piece
        for piece, one in other.items()
        if one is None or not any(start <= one[0] and one[-1] < stop for start, stop in merged)
    ]
    return ",".join(words) or left


def _join_keys(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    """Return the names for all fields of two lists, none below another one; nothing stands for all."""
    if not left or not right:
        return ()
    always = {dotted(key) for key in _ALWAYS}
    names = list(dict.fromkeys((*left, *(name for name in right if name not in always))))
    return tuple(name for name in names if not any(_is_below(name, one) for one in names if one != name))


def _is_below(name: str, group: str) -> bool:
    """Return whether a field belongs to the group of another name, as ``next.info.qpos`` to ``info``."""
    return any(one == group or one.startswith(f"{group}.") for one in (name, name.removeprefix("next.")))


def _parts(text: str, what: str) -> Iterator[int | slice]:
    for part in (text or ":").split(","):
        found = _NUMBERS.fullmatch(part.strip())
        if found is None or found[4] == "0":
            raise InvalidArgumentError(
                f"{what} are {text!r}; expected numbers and ranges, as in 0:100, 0:100:2 or 1,5,9"
            )
        if found[1]:
            yield int(found[1])
        else:
            yield slice(*(int(one) if one else None for one in found.groups()[1:]))
