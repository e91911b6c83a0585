"""The steps that recipes can name, grouped into modules by subject; recipes can name every transform, too."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache

from datasets_rl.preprocessing.base import Step

__all__ = ["steps_by_name"]


@cache
def steps_by_name() -> Mapping[str, type[Step]]:
    """Return the classes of all steps by their names in recipes."""
    steps: dict[str, type[Step]] = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for value in vars(loaded).values():
            if (
                inspect.isclass(value)
                and issubclass(value, Step)
                and value.__module__ == loaded.__name__
                and not inspect.isabstract(value)
            ):
                steps[value.use()] = value
    return dict(sorted(steps.items()))
