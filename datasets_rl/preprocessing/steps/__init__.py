"""The steps that recipes can name: the dataclasses of the modules beside this one, and the transforms with `in_recipes`.

The names are read from the texts of the modules, because an import of a transform takes seconds. The command line runs this
file alone, whose imports are those of the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets_rl.preprocessing.base import Step
    from datasets_rl.transforms import Transform

__all__ = ["INSTEAD", "STEPS", "snake", "step_class"]

_STEP = re.compile(r"^@dataclass\nclass ([A-Z]\w*)", re.MULTILINE)
_TRANSFORM = re.compile(r'^class (\w+)|^    (in_recipes) = True$|^    instead = "(\w+)"$', re.MULTILINE)


def snake(name: str) -> str:
    """Return the name of a class as recipes write it: ``cat_frames`` for ``CatFrames``, ``permute`` for ``PermuteTransform``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.removesuffix("Transform")).lower()


def _steps_and_others() -> tuple[Mapping[str, str], Mapping[str, str]]:
    folder, steps, instead = Path(__file__).parent, {}, {}
    for path in folder.glob("*.py"):
        for name in _STEP.findall(path.read_text("utf-8")):
            steps[snake(name)] = f"preprocessing.steps.{path.stem}:{name}"
    for path in (folder.parents[1] / "transforms").glob("*.py"):
        name = ""
        for new, in_recipes, other in _TRANSFORM.findall(path.read_text("utf-8")):
            name = new or name
            if in_recipes:
                steps[snake(name)] = f"transforms.{path.stem}:{name}"
            if other:
                instead[snake(name)] = other
    return dict(sorted(steps.items())), instead


STEPS, INSTEAD = _steps_and_others()
"""The module and the class of each step by its name, and the steps for other transforms by the names of the transforms.

Not among the steps are transforms that need a model, a function or another object, take text, have no effect on stored data,
depend on the order of batches, or repeat steps in windows. Some transforms do what a step does for certain arguments:
``clip`` with ``in_keys=next.reward`` does what ``reward_clipping`` does."""


def step_class(name: str) -> type[Step | Transform]:
    """Return the class of a step: a `Step`, or a `Transform` that `TransformStep` applies.

    Raises:
        KeyError: If there is no such step.
    """
    module, _, attribute = STEPS[name].partition(":")
    cls: type[Step | Transform] = getattr(import_module(f"datasets_rl.{module}"), attribute)
    return cls
