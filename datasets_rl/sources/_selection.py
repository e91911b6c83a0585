"""Which part of a dataset is wanted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from datasets_rl.errors import BadArgument, UnknownKey
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
        """Read back what `to_json` wrote."""
        fields: dict[str, Any] = {name: tuple(one) if name in _LISTS else one for name, one in value.items()}
        return cls(**fields)

    def __str__(self) -> str:
        """Write the selection as one types it."""
        words = [f"--episodes {self.episodes}"] if self.episodes else []
        words += [f"--max-size {self.max_size}"] if self.max_size else []
        words += [f"--keys {','.join(self.keys)}"] if self.keys else []
        words += [f"--{name} {one}" for name in ("include", "exclude") for one in getattr(self, name)]
        words += [f"--{name} {value}" for name, value in sorted(self.options.items())]
        return " ".join(words) or "the whole dataset"

    def covers(self, asked: Selection) -> bool:
        """Return whether a dataset of this selection has all that is asked for.

        What restricts this one must restrict the other in the same way; options must be equal, because they change
        what is stored and not only how much.
        """
        here, there = self.to_json(), asked.to_json()
        if here.pop("options", {}) != there.pop("options", {}):
            return False
        return all(there.get(name) == value for name, value in here.items())

    def keeps_file(self, path: str) -> bool:
        """Return whether the globs let a file of this path, or of this name, in."""

        def meets(patterns: Sequence[str]) -> bool:
            name = path.rpartition("/")[2]
            return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in patterns)

        return (not self.include or meets(self.include)) and not meets(self.exclude)

    def kept_keys(self, keys: Sequence[Key]) -> set[Key]:
        """Return those of the fields that are wanted.

        Raises:
            UnknownKey: If a name that is wanted stands for no field.
        """
        if not self.keys:
            return set(keys)
        kept = {key for key in keys if key in _ALWAYS}
        for name in self.keys:
            wanted = tuple(name.split("."))
            found = {key for key in keys if wanted in {key[: len(wanted)], key[1 : len(wanted) + 1] * (key[0] == NEXT)}}
            if not found:
                raise UnknownKey(name, sorted(dotted(key) for key in keys))
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
        BadArgument: If it is no such text, or names a number that there is not.
    """
    chosen: set[int] = set()
    for part in _parts(text, what):
        if isinstance(part, slice):
            chosen.update(range(total)[part])
        elif -total <= part < total:
            chosen.add(part % total)
        else:
            raise BadArgument(f"{what} are {text!r}; there are {total:,}, counted from 0")
    if not chosen:
        raise BadArgument(f"{what} are {text!r}, which is none of the {total:,}")
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
            BadArgument: If it is no such text, or counts from the end.
        """
        if not text:
            return None
        parts = [*_parts(text, "episodes")]
        if "-" in text:
            raise BadArgument(
                f"episodes are {text!r}; how many there are is not known before the files are read",
                hint="count from the front",
            )
        ranges = tuple(range(sys.maxsize)[part] for part in parts if isinstance(part, slice))
        single = frozenset(part for part in parts if isinstance(part, int))
        if not single and not any(ranges):
            raise BadArgument(f"episodes are {text!r}, which is none")
        return cls(single, tuple(filter(None, ranges)))

    def __contains__(self, number: int) -> bool:
        """Return whether an episode is wanted."""
        return number in self.single or any(number in one for one in self.ranges)

    @property
    def last(self) -> int:
        """The highest one."""
        return max([*self.single, *(one[-1] for one in self.ranges)])


def _parts(text: str, what: str) -> Iterator[int | slice]:
    for part in (text or ":").split(","):
        found = _NUMBERS.fullmatch(part.strip())
        if found is None or found[4] == "0":
            raise BadArgument(f"{what} are {text!r}; expected numbers and ranges, as in 0:100, 0:100:2 or 1,5,9")
        if found[1]:
            yield int(found[1])
        else:
            yield slice(*(int(one) if one else None for one in found.groups()[1:]))
