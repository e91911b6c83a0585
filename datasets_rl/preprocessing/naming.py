"""Steps by their names: made of what a recipe says, and described for listings."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import shorten
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps import known
from datasets_rl.preprocessing.transforms import TransformStep, transforms

__all__ = ["Described", "described", "make"]


@dataclasses.dataclass(frozen=True)
class Described:
    """A step, for listings."""

    name: str
    arguments: str
    """As one writes them: ``percent=10.0, of=episodes``; those without a value must be given."""
    summary: str


def described() -> list[Described]:
    """Describe every step, and every transform that is one, by name."""
    found = [Described(name, ", ".join(_arguments(kind)), kind.summary) for name, kind in known().items()]
    for name, kind in transforms().items():
        text = ", ".join(str(one).partition(":")[0] for one in inspect.signature(kind).parameters.values())
        found.append(Described(name, text, (kind.__doc__ or "").partition("\n")[0].removesuffix(".")))
    return sorted(found, key=lambda one: one.name)


def _arguments(kind: type[Step]) -> Iterator[str]:
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # steps are dataclasses
        if one.init:
            default = ",".join(one.default) if isinstance(one.default, tuple) else one.default
            yield one.name if one.default is dataclasses.MISSING else f"{one.name}={default}"


def make(name: str, words: Sequence[Any], named: Mapping[str, Any]) -> Step:
    """Make a step of its name and arguments.

    Args:
        name: As in recipes.
        words: Arguments in their order.
        named: Arguments by name.

    Raises:
        InvalidArgumentError: If there is no such step, or it does not take these arguments.
    """
    if name in known():
        kind = known()[name]
        fields = [one for one in dataclasses.fields(kind) if one.init]  # type: ignore[arg-type]  # steps are dataclasses
        names = [one.name for one in fields]
        hints = typing.get_type_hints(kind)
        if names and _is_many(hints[names[0]]) and words and not isinstance(words[0], (list, tuple)):
            words = [tuple(words)]
        needed = {one.name for one in fields if one.default is dataclasses.MISSING}
        arguments = dict(zip(names, words, strict=False)) | dict(named)
        faults = [
            f"it has no argument {key!r} (its arguments: {', '.join(names) or 'none'})"
            for key in arguments.keys() - set(names)
        ]
        faults += [f"{key} is missing" for key in sorted(needed - arguments.keys())]
        if len(words) > len(names):
            faults.append(f"it was given {shorten(list(words))}; expected at most {len(names)} arguments")
        if not faults:
            arguments = {key: _as(value, hints[key]) for key, value in arguments.items()}
            forms = {one.name: one.metadata["form"] for one in fields if "form" in one.metadata}
            faults = [
                f"{key} is {shorten(value)}; expected {forms.get(key) or _told(hints[key])}"
                for key, value in arguments.items()
                if not _fits(value, hints[key])
            ]
        if faults:
            raise InvalidArgumentError("; ".join(faults))
        return kind(**arguments)
    if name in transforms():
        return TransformStep.of(name, words, named)
    every = [*known(), *transforms()]
    near = difflib.get_close_matches(name, every, n=3, cutoff=0.5)
    raise InvalidArgumentError(
        f"there is no step {name!r}",
        hint=f"did you mean {', '.join(near)}?" if near else "rlds preprocess --list shows all",
    )


def _is_many(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _as(value: Any, hint: Any) -> Any:
    """Read what is written shorter: one value for several, and a text that looks like a number."""
    if _is_many(hint):
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return str(value) if hint is str and type(value) in {int, float} else value


def _fits(value: Any, hint: Any) -> bool:
    """Say whether an argument is of the type that a field of a step says."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return all(_fits(one, inner[0]) for one in value)
    if inner:
        return any(_fits(value, one) for one in inner)
    if isinstance(value, bool) and hint is not bool:
        return False
    return isinstance(value, (int, float) if hint is float else hint)


_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def _told(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return str(hint) if typing.get_args(hint) else _NAMES.get(hint, str(hint.__name__))
