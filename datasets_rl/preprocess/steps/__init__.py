"""The steps that recipes name, a family a file; every transform of the library is one too."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from datasets_rl.errors import BadArgument
from datasets_rl.preprocess._base import Step
from datasets_rl.rows import shorten

__all__ = ["known", "make"]


@cache
def known() -> Mapping[str, type[Step]]:
    """Return every step by its name in recipes."""
    found: dict[str, type[Step]] = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for one in vars(loaded).values():
            if (
                inspect.isclass(one)
                and issubclass(one, Step)
                and one.__module__ == loaded.__name__
                and not inspect.isabstract(one)
            ):
                found[one.use()] = one
    return dict(sorted(found.items()))


def make(name: str, words: Sequence[Any], named: Mapping[str, Any]) -> Step:
    """Make a step of its name and arguments.

    Args:
        name: As in recipes.
        words: Arguments in their order.
        named: Arguments by name.

    Raises:
        BadArgument: If there is no such step, or it does not take these arguments.
    """
    from datasets_rl.preprocess.transforms import Applied, transforms

    if name in known():
        kind = known()[name]
        fields = [one for one in dataclasses.fields(kind) if one.init]  # type: ignore[arg-type]  # steps are dataclasses
        names = [one.name for one in fields]
        needed = {one.name for one in fields if one.default is dataclasses.MISSING}
        arguments = dict(zip(names, words, strict=False)) | dict(named)
        faults = [
            f"it has no argument {key!r} (its arguments: {', '.join(names) or 'none'})"
            for key in arguments.keys() - set(names)
        ]
        faults += [f"{key} is missing" for key in sorted(needed - arguments.keys())]
        if len(words) > len(names):
            faults.append(f"it was given {shorten(list(words))}; expected at most {len(names)} arguments")
        if faults:
            raise BadArgument("; ".join(faults))
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()})
    if name in transforms():
        return Applied.of(name, words, named)
    import difflib

    every = [*known(), *transforms()]
    near = difflib.get_close_matches(name, every, n=3, cutoff=0.5)
    raise BadArgument(
        f"there is no step {name!r}",
        hint=f"did you mean {', '.join(near)}?" if near else "rlds preprocess --steps lists all",
    )
