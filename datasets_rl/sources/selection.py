"""Selections: the part of a dataset to fetch and store."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, SupportsIndex

from datasets_rl.errors import Call, InvalidArgumentError, UnknownKeyError, WrongTypeError
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    Key,
    dotted_name,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUMBERS = re.compile(r"(-?\d+)|(-?\d*):(-?\d*)(?::(\d+))?")
MAX_EPISODES = 10_000_000
"""Episodes that a dataset may state, or a selection have. The numbers of so many episodes take some gigabytes of memory."""
_ALWAYS = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE, EPISODE})
_LISTS = ("keys", "include", "exclude")


@dataclass(frozen=True, slots=True)
class Option:
    """Option of a source, such as ``upstream`` of ``openx``, with the values ``rlds`` and ``hub``."""

    name: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    """Allowed values, or empty if any value is allowed."""
    numbers: bool = False
    """Whether the value is a list of numbers, like `Selection.episodes`, so that a stored dataset can be extended."""


MIN_RATIO = 4.0
"""Number of bytes of pixels per compressed byte from which on images are compressed unless the user decides."""
IMAGES = Option(
    "images",
    "Store images as pixels, as pixels that are compressed without loss, as the PNG and JPEG images of the source, or as its "
    "videos. By default, PNG and JPEG images are stored as such, and pixels are compressed if that makes them "
    f"{MIN_RATIO:g} times smaller.",
    choices=("raw", "compressed", "encoded"),
)
"""Option of every source that converts files. Without a value, each conversion measures which form is smaller."""


@dataclass(frozen=True, slots=True, init=False)
class Selection:
    """Part of a dataset to fetch and store, by default the whole dataset.

        >>> from datasets_rl import Selection, load
        >>> part = load("demo/pendulum", selection=Selection(episodes=[0, 1], keys="observation"))
        >>> len(part.episodes)
        2

    Args:
        episodes: Numbers of episodes, as text such as ``0:100`` or as integers: an integer, a list, a range or an array.
        keys: Names of fields: a name, or several names.
        max_size: Maximum download size in bytes.
        include: Globs on the paths of upstream files: a glob, or several globs.
        exclude: Globs on the paths of upstream files to exclude: a glob, or several globs.
        options: Values of the options of the source, by name.

    Raises:
        WrongTypeError: If an argument is of another type.
        InvalidArgumentError: If no episode is selected.
    """

    episodes: str = ""
    """Episode numbers in the upstream's order: ``0:100``, ``0:100:2``, ``1,5,9``."""
    keys: tuple[str, ...] = ()
    """Fields by dotted name, ``observation`` or ``info.qpos``. A name includes every field below the name. Reward and flags
    are always included."""
    max_size: int | None = None
    """Maximum download size in bytes. Files are taken in order until the next one would exceed it."""
    include: tuple[str, ...] = ()
    """Globs on the paths of upstream files. Other files are excluded."""
    exclude: tuple[str, ...] = ()
    """Globs on the paths of upstream files to exclude."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of `Source.options`, by name."""

    def __init__(
        self,
        episodes: str | SupportsIndex | Iterable[SupportsIndex] = "",
        keys: str | Iterable[str] = (),
        max_size: int | None = None,
        include: str | Iterable[str] = (),
        exclude: str | Iterable[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        values = {
            "episodes": _numbers_text(episodes),
            **{name: _as_names(name, given) for name, given in zip(_LISTS, (keys, include, exclude), strict=True)},
            "max_size": max_size,
            "options": {} if options is None else options,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the class is frozen

    def to_json(self) -> dict[str, Any]:
        """Return the selection as JSON for the manifest, or an empty object for the whole dataset."""
        plain: dict[str, Any] = {"episodes": self.episodes, "max_size": self.max_size, "options": dict(self.options)}
        plain |= {name: list(getattr(self, name)) for name in _LISTS}
        return {name: value for name, value in plain.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Selection:
        """Restore a selection from the output of `to_json`.

        Raises:
            InvalidArgumentError: If a field is unknown or has the wrong type.
        """
        types: dict[str, type] = dict.fromkeys(_LISTS, list) | {"episodes": str, "max_size": int, "options": dict}
        wrong = sorted(
            f"{name} = {content!r}" for name, content in value.items() if not isinstance(content, types.get(name, ()))
        )
        if wrong:
            raise InvalidArgumentError(
                f"a selection has {', '.join(wrong)}, expected only "
                f"{', '.join(f'{name} ({type_.__name__})' for name, type_ in types.items())}"
            )
        arguments: dict[str, Any] = {
            name: tuple(content) if name in _LISTS else content for name, content in value.items()
        }
        return cls(**arguments)

    def __str__(self) -> str:
        """Return the fields and options that are set: ``episodes=0:100 keys=observation,action images=encoded``."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "options"}
        given |= sorted(self.options.items())
        shown = {name: ",".join(value) if name in _LISTS else value for name, value in given.items() if value}
        return " ".join(f"{name}={value}" for name, value in shown.items()) or "the whole dataset"

    def call(self) -> Call:
        """Return the call that creates this selection, for the remedy of an error."""
        return Call("Selection", **{each.name: value for each in fields(self) if (value := getattr(self, each.name))})

    def covers(self, requested: Selection, options: Sequence[Option] = ()) -> bool:
        """Return whether a dataset stored with this selection contains everything that another selection selects.

        Args:
            requested: The other selection. A choice that `requested` leaves open, such as `images`, is taken from this
                selection.
            options: The options of the source.
        """
        return not self.contradicts(requested, options) and self.union(requested, options) == self.union(self, options)

    def contradicts(self, requested: Selection, options: Sequence[Option] = ()) -> list[str]:
        """Return the names of the options that change how data is stored and that differ between the two selections."""
        numbers = {option.name for option in options if option.numbers}
        return [
            name
            for name, value in sorted(requested.options.items())
            if name not in numbers and value != self.choice(name, options)
        ]

    def choice(self, name: str, options: Sequence[Option] = ()) -> str:
        """Return the value of an option, or the default of the source if the selection does not set it."""
        defaults = {option.name: option.default for option in options}
        return self.options.get(name) or defaults.get(name, "")

    def union(self, requested: Selection, options: Sequence[Option] = ()) -> Selection:
        """Return the smallest selection that covers both selections, with the options of this selection.

        Args:
            requested: The other selection, which must not contradict this selection.
            options: The options of the source.
        """
        numbers = {option.name for option in options if option.numbers}
        choices = {name: value for name, value in self.options.items() if name not in numbers}
        chosen = {name: _join_numbers(self.options.get(name, ""), requested.options.get(name, "")) for name in numbers}
        return Selection(
            episodes=_join_numbers(self.episodes, requested.episodes),
            keys=_join_keys(self.keys, requested.keys),
            max_size=max(self.max_size, requested.max_size) if self.max_size and requested.max_size else None,
            include=tuple(dict.fromkeys(self.include + requested.include))
            if self.include and requested.include
            else (),
            exclude=tuple(pattern for pattern in dict.fromkeys(self.exclude) if pattern in requested.exclude),
            options=choices | {name: text for name, text in chosen.items() if text},
        )

    def numbers_episodes_like(self, other: Selection, options: Sequence[Option] = ()) -> bool:
        """Return whether both selections number episodes over the same upstream files."""
        numbers = [option.name for option in options if option.numbers]
        own_files, other_files = (
            (
                selection.max_size,
                {*selection.include},
                {*selection.exclude},
                *(_join_numbers(text, text) for text in (selection.options.get(name, "") for name in numbers)),
            )
            for selection in (self, other)
        )
        return own_files == other_files

    def completed_from(self, stored: Selection) -> Selection:
        """Return this selection, with every open field taken from the selection of a stored dataset."""
        merged = {each.name: getattr(self, each.name) or getattr(stored, each.name) for each in fields(self)}
        return Selection(**{**merged, "options": {**stored.options, **self.options}})

    def keeps_file(self, path: str) -> bool:
        """Return whether the globs select a file, by the path or by the name of the file."""

        def matches(patterns: Sequence[str]) -> bool:
            name = path.rpartition("/")[2]
            return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in patterns)

        return (not self.include or matches(self.include)) and not matches(self.exclude)

    def kept_keys(self, keys: Sequence[Key]) -> set[Key]:
        """Return the selected fields.

        Raises:
            UnknownKeyError: If a selected name matches no field.
        """
        if not self.keys:
            return set(keys)
        kept = {key for key in keys if key in _ALWAYS}
        for name in self.keys:
            group = tuple(name.split("."))
            selected = {key for key in keys if group in {key[: len(group)], key[1 : len(group) + 1] * (key[0] == NEXT)}}
            if not selected:
                raise UnknownKeyError(name, sorted(dotted_name(key) for key in keys))
            kept |= selected
        return kept


def read_numbers(text: str, total: int, noun: str = "episodes") -> list[int]:
    """Parse integers and ranges below `total`: ``0:100``, ``0:100:2``, ``1,5,9``, ``-10:``.

    Args:
        text: Integers and slices, separated by commas. An empty text selects all items.
        total: Number of items to select from.
        noun: Name of the items, for messages.

    Returns:
        The selected numbers, ascending and unique.

    Raises:
        InvalidArgumentError: If the text cannot be parsed, selects nothing or more than `MAX_EPISODES`, or names a number
            out of range.
    """
    chosen: set[int] = set()
    for part in _parse_ranges(text, noun):
        if isinstance(part, slice):
            selected = range(total)[part]
            if selected and (selected[-1] - selected[0]) // selected.step >= MAX_EPISODES:
                raise InvalidArgumentError(
                    f"{noun} are {text!r}, which selects more than {MAX_EPISODES:,} of {total:,}", hint="select fewer"
                )
            chosen.update(selected)
        elif -total <= part < total:
            chosen.add(part % total)
        else:
            raise InvalidArgumentError(f"{noun} are {text!r}, but there are {total:,}, counted from 0")
    if not chosen:
        raise InvalidArgumentError(f"{noun} are {text!r}, which selects none of the {total:,}")
    return sorted(chosen)


def select_episodes(text: str, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which episodes of a stored dataset are selected, bool [E].

    Args:
        text: The selected numbers, see `read_numbers`.
        numbers: The number of each episode, [E], see `EpisodeTable.numbers`.

    Raises:
        InvalidArgumentError: If the text cannot be parsed, or no episode is selected.
    """
    import numpy as np  # deferred: commands that only list datasets start without numpy

    selected = np.isin(numbers, read_numbers(text, int(numbers.max()) + 1))
    if not selected.any():
        raise InvalidArgumentError(
            f"episodes are {text!r}, which selects none of the {len(numbers):,} with the numbers {numbers.min()} to "
            f"{numbers.max()}",
            hint="`dataset.episodes.numbers` has the number of each episode",
        )
    return selected


@dataclass(frozen=True, slots=True)
class Numbers:
    """Episode numbers for a dataset whose number of episodes is not known in advance: ``5:`` has no end."""

    single: frozenset[int]
    ranges: tuple[range, ...]

    @classmethod
    def read(cls, text: str) -> Numbers | None:
        """Parse numbers like `read_numbers`. None selects all episodes.

        Raises:
            InvalidArgumentError: If the text cannot be parsed, selects nothing, or counts from the end.
        """
        if not text:
            return None
        parts = [*_parse_ranges(text, "episodes")]
        if "-" in text:
            raise InvalidArgumentError(
                f"episodes are {text!r}, but the number of episodes is not known before the files are read",
                hint="count from the start",
            )
        ranges = tuple(range(sys.maxsize)[part] for part in parts if isinstance(part, slice))
        single = frozenset(part for part in parts if isinstance(part, int))
        if not single and not any(ranges):
            raise InvalidArgumentError(
                f"episodes are {text!r}, which selects no episode, expected numbers such as '0', '0:100' or '5:'"
            )
        return cls(single, tuple(filter(None, ranges)))

    def __contains__(self, number: int) -> bool:
        """Return whether an episode is selected."""
        return number in self.single or any(number in range_ for range_ in self.ranges)

    @property
    def last(self) -> int:
        """Highest selected number."""
        return max([*self.single, *(range_[-1] for range_ in self.ranges)])


def _numbers_text(given: Any) -> str:
    """Return numbers of episodes, an integer or several integers, as text for `read_numbers`."""
    if isinstance(given, str):
        return given
    if isinstance(given, range) and given and given[0] >= 0 and given.step > 0:
        return _range_text(given)
    numbers = [*given] if getattr(given, "ndim", isinstance(given, Iterable)) else [given]
    if any(isinstance(number, bool) or "bool" in str(getattr(number, "dtype", "")) for number in numbers):
        raise _not_numbers_error(given, hint="np.flatnonzero(mask) returns the numbers that a mask selects")
    try:
        indices = sorted({*map(operator.index, numbers)})
    except TypeError as error:
        raise _not_numbers_error(given) from error
    if not indices:
        raise InvalidArgumentError(
            f"episodes is {given!r}, which selects none", hint="leave episodes out to select all"
        )
    ranges = _merged(range(number, number + 1) for number in indices if number >= 0)
    return ",".join([*map(_range_text, ranges), *(str(number) for number in indices if number < 0)])


def _not_numbers_error(given: Any, hint: str = "") -> WrongTypeError:
    return WrongTypeError(
        f"episodes is {_short_repr(given)}, expected numbers as integers, [0, 1, 5], or as text, '0:100'", hint=hint
    )


def _as_names(argument: str, given: Any) -> tuple[str, ...]:
    """Return an argument of a name or several names as a tuple."""
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if others := [name for name in names if not isinstance(name, str)]:
        raise WrongTypeError(
            f"{argument} has {_short_repr(others[0])}, expected text"
            + (", a name such as 'next.info.qpos'" if argument == "keys" else ", a glob such as '*.hdf5'")
        )
    return names


def _short_repr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _join_numbers(left: str, right: str) -> str:
    """Return the text that selects the numbers of both texts, with adjacent ranges merged.

    An empty text selects all numbers.
    """
    if not left or not right:
        return ""
    ranges: list[range] = []
    from_end: list[str] = []  # numbers counted from the end, which cannot be placed without the total
    for piece in dict.fromkeys(piece.strip() for piece in f"{left},{right}".split(",")):
        (part,) = _parse_ranges(piece, "episodes")
        if "-" in piece:
            from_end.append(piece)
        else:
            ranges.append(range(part, part + 1) if isinstance(part, int) else range(sys.maxsize)[part])
    merged = _merged(range_ for range_ in ranges if range_.step == 1 or len(range_) == 1)
    if range(sys.maxsize) in merged:
        return ""
    stepped = [
        range_
        for range_ in ranges
        if range_.step > 1 < len(range_) and not any(range_[0] in other and range_[-1] in other for other in merged)
    ]
    kept = [range_ for range_ in merged if len(range_) > 1 or not any(range_.start in other for other in stepped)]
    return ",".join([*map(_range_text, kept + stepped), *from_end]) or left


def _merged(ranges: Iterable[range]) -> list[range]:
    """Return the union of ranges of consecutive numbers as separate ranges, ascending."""
    merged: list[range] = []
    for start, stop in sorted((range_[0], range_[-1] + 1) for range_ in ranges if range_):
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, stop))
        else:
            merged.append(range(start, stop))
    return merged


def _range_text(range_: range) -> str:
    stop = "" if range_[-1] >= sys.maxsize - range_.step else str(range_.stop)
    step = f":{range_.step}" if range_.step > 1 else ""
    return str(range_.start) if len(range_) == 1 else f"{range_.start}:{stop}{step}"


def _join_keys(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    """Return the names that select the fields of both lists, no name below another name. An empty list selects all fields."""
    if not left or not right:
        return ()
    always = {dotted_name(key) for key in _ALWAYS}
    names = list(dict.fromkeys((*left, *(name for name in right if name not in always))))
    return tuple(name for name in names if not any(_is_below(name, other) for other in names if other != name))


def _is_below(name: str, group: str) -> bool:
    """Return whether a field is in a group: ``next.info.qpos`` is in ``info``."""
    return any(path == group or path.startswith(f"{group}.") for path in (name, name.removeprefix("next.")))


def _parse_ranges(text: str, noun: str) -> Iterator[int | slice]:
    for part in (text or ":").split(","):
        match = _NUMBERS.fullmatch(part.strip())
        if match is None or match[4] == "0":
            raise InvalidArgumentError(
                f"{noun} are {text!r}, expected numbers and ranges, as in 0:100, 0:100:2 or 1,5,9"
            )
        if match[1]:
            yield int(match[1])
        else:
            yield slice(*(int(number) if number else None for number in match.groups()[1:]))
