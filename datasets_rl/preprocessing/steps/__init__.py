"""The steps that recipes name, a family a file; every transform of the library is one too."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache

from datasets_rl.preprocessing.base import Step

__all__ = ["known"]


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
