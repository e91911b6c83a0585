"""Recipes: named lists of steps, from a TOML or Python file, from the command line or from Python."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import math
import os
import pickle
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from datasets_rl.disk import expand_home
from datasets_rl.errors import (
    Argument,
    DatasetsRLError,
    InvalidArgumentError,
    NotEnoughMemoryError,
    PreprocessError,
    Remedy,
)
from datasets_rl.notebook import facts_html
from datasets_rl.preprocessing.base import DataStep, Step
from datasets_rl.preprocessing.naming import ALL_STEPS, Arguments, make_step
from datasets_rl.read.toml import parse_toml
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted_name

if TYPE_CHECKING:
    from datasets_rl.preprocessing.merge import Stored
    from datasets_rl.transforms import Transform

_PYTHON = re.compile(r"(.+\.py)(?::(.*))?", re.DOTALL)
_INSTALLED = tuple(
    f"{path}{os.sep}"
    for path in (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
)
"""The folders of installed code, as opposed to code of the user."""
_ARGUMENT = re.compile(r"(?:([A-Za-z_]\w*)=)?(.*)", re.DOTALL)


@dataclass
class Recipe:
    """A sequence of steps that transforms a dataset.

        >>> from datasets_rl import Recipe, load
        >>> Recipe.of("td3_bc").summary           # a recipe of this package, "my.toml" and "my.py:fn" are your own
        'Observations normalized to mean 0 and standard deviation 1, as in TD3+BC'
        >>> best = Recipe.inline(["keep_top_returns:20", "cast:float16,observation"])
        >>> len(load("demo/pendulum").derive(best, name="best").episodes)
        15

    Args:
        steps: Steps, transforms, functions of a transition, classes of steps without required arguments, or recipes.
        name: The name in messages and in the manifest.
        summary: A one-line description for listings.
    """

    steps: Sequence[Any]
    name: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        self.steps = [step for item in self.steps for step in _as_steps(item)]
        if problems := [text for number, step in enumerate(self.steps) for text in _not_finite_problems(step, number)]:
            raise InvalidArgumentError(
                "; ".join(problems), hint="the manifest records arguments, and JSON has finite numbers only"
            )

    @classmethod
    def of(cls, text: str) -> Recipe:
        """Read a recipe by name, from a TOML file, or from a Python file, ``my.py:fn``.

        Raises:
            InvalidArgumentError: If there is no such recipe or file, or a step is invalid. The error names all
                problems.
        """
        if python := _PYTHON.fullmatch(text):
            return _from_python(expand_home(python[1]), python[2] or "")
        if text.endswith(".toml") or Path(text).is_file():
            try:
                return _from_toml(expand_home(text).read_text("utf-8"), text)
            except OSError as error:
                raise InvalidArgumentError(f"the recipe {text} cannot be read: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise InvalidArgumentError(f"the recipe {text} cannot be read as TOML: {error}") from error
        texts = _shipped_texts()
        if text not in texts:
            similar = difflib.get_close_matches(text, texts, n=3, cutoff=0.5)
            raise InvalidArgumentError(
                f"there is no recipe {text!r}: expected one of {', '.join(sorted(texts))}",
                hint=f"did you mean {', '.join(similar)}?" if similar else "or give FILE.toml or FILE.py:NAME",
            )
        return _from_toml(texts[text], text)

    @classmethod
    def inline(cls, texts: Sequence[str]) -> Recipe:
        """Read steps as written on the command line, ``cat_frames:4,dim=-1``. Positional arguments come first.

        Raises:
            InvalidArgumentError: If a step is invalid. The error names all problems.
        """
        problems: list[str] = []
        steps = _make_steps(map(parse_inline, texts), problems)
        if problems:
            raise InvalidArgumentError("; ".join(problems), hint=ALL_STEPS)
        return cls(steps, ", ".join(texts))

    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """Return a batch of whole episodes transformed by all steps, or None if no steps of the episodes remain.

        Raises:
            PreprocessError: If a step fails. The error names the step, the episode and the fields.
        """
        return self.first(len(self.steps), batch)

    def first(self, count: int, batch: EpisodeBatch, reached: Sequence[set[int]] = ()) -> EpisodeBatch | None:
        """Return a batch transformed by the first steps, or None if no steps of the episodes remain.

        Args:
            count: The number of steps of the recipe to apply.
            batch: A batch of whole episodes.
            reached: A set for each step, to which the numbers of the episodes that reach this step are added.
        """
        result: EpisodeBatch | None = batch
        for number, step in enumerate(self.steps[:count]):
            if result is None:
                return None
            if reached:
                reached[number].update(result.numbers.tolist())
            result = _apply_step(step, number, result)
        return result

    def _repr_html_(self) -> str:
        """Return the name, the summary and a row for each step, for notebooks."""
        steps = (
            (label.partition(" (")[0], label.partition(" (")[2][:-1])
            for label in map(self.step_label, range(len(self.steps)))
        )
        return facts_html(f"Recipe {self.name}", (("summary", self.summary), *steps))

    def step_label(self, number: int) -> str:
        """Return the name of a step with the values of the arguments: ``step 0 (keep_lengths: 10, 20)``."""
        from datasets_rl.preprocessing.functions import Function

        step = self.steps[number]
        description = {"use": step.use()} if isinstance(step, Function) else step.to_json()
        arguments = ", ".join(str(value) for name, value in description.items() if name != "use")
        return f"step {number} ({description['use']}{': ' if arguments else ''}{arguments})"

    @property
    def calls_functions(self) -> bool:
        """Whether a function of the recipe is called for each step or for each episode."""
        from datasets_rl.preprocessing.functions import Function

        return any(isinstance(step, Function) and step.per != "batch" for step in self.steps)

    def copy(self) -> Recipe:
        """Return a copy with functions that share no state with this recipe.

        Functions of imported modules, and functions that cannot be pickled, are not copied.
        """
        try:
            copied: Recipe = cloudpickle.loads(self.pickled())
        except InvalidArgumentError:
            return self
        return copied

    def pickled(self) -> bytes:
        """Return the recipe as a pickle, for another process.

        Raises:
            InvalidArgumentError: If a function cannot be pickled.
        """
        try:
            pickled: bytes = cloudpickle.dumps(self)
        except (TypeError, pickle.PicklingError) as error:
            raise InvalidArgumentError(
                f"the recipe {self.name!r} cannot be sent to other processes: {error}",
                hint=Remedy("use one process: {}", Argument("jobs", 1)),
            ) from error
        return pickled

    def prepare(self, stored: Stored) -> None:
        """Let each step look at the dataset that the recipe reads.

        Raises:
            PreprocessError: If a step does not fit the dataset.
        """
        for number, step in enumerate(self.steps):
            try:
                step.prepare(stored)
            except InvalidArgumentError as error:
                raise PreprocessError(f"step {number} ({step.use()}): {error.message}", hint=error.remedy) from error

    def fit(self, batches: Any) -> None:
        """Fit the steps that require it to all episodes, as transformed by the previous steps.

        Args:
            batches: A function that returns an iterable of all batches, called once for each of these steps.

        Raises:
            PreprocessError: If the previous steps keep no episodes, or a step fails.
        """
        for number, step in enumerate(self.steps):
            if step.requires_fit:
                results = (self.first(number, batch) for batch in batches())
                transformed = (result for result in results if result is not None)
                first = next(transformed, None)
                if first is None:
                    raise PreprocessError(f"no episodes are left to fit step {number} ({step.use()}) to")
                try:
                    step.fit(chain([first], transformed))
                except (
                    ArithmeticError,
                    LookupError,
                    TypeError,
                    ValueError,
                ) as error:  # InvalidArgumentError is one of them
                    raise _step_error(step, number, first, "", error) from error

    @property
    def fitted(self) -> dict[str, Any]:
        """The fitted parameters of all steps by slash-joined names, for the manifest."""
        return {
            f"{number}.{step.use()}/{name}": value
            for number, step in enumerate(self.steps)
            for name, value in step.fitted.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the description of the recipe for the manifest."""
        return {"name": self.name, "steps": [{**step.to_json(), **_code_digests(step)} for step in self.steps]}


def _not_finite_problems(step: Step, number: int) -> Iterator[str]:
    """Yield a problem for each argument of a step that a manifest cannot record: NaN and infinite numbers."""
    for name, value in {}.items() if step.is_digest else step.to_json().items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, float) and not math.isfinite(item):
                yield f"step {number} ({step.to_json()['use']}): {name} is {item}, expected a finite number"


def _code_digests(step: Step) -> dict[str, str]:
    """Return the digest of the code of a user's step. The version of this package identifies its steps."""
    cls = type(step)
    if cls.__module__.startswith("datasets_rl."):
        return {}
    from datasets_rl.preprocessing.digests import code_digest

    # The code of the step is not in the manifest, but whether it leaves observations and actions unchanged.
    return {"digest": code_digest(cls), **({"environment": "unchanged"} if isinstance(step, DataStep) else {})}


def shipped_recipes() -> Iterator[Recipe]:
    """Yield the recipes of this package, sorted by name."""
    for name, text in sorted(_shipped_texts().items()):
        yield _from_toml(text, name)


def _shipped_texts() -> dict[str, str]:
    folder = package_files("datasets_rl.recipes")
    return {file.name[:-5]: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}


def _from_toml(text: str, name: str) -> Recipe:
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise InvalidArgumentError(f"the recipe {name} cannot be read as TOML: {error}") from error
    problems = [f"it has {key!r}, expected summary and step" for key in sorted(document.keys() - {"summary", "step"})]
    entries, steps = document.get("step"), []
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("use"), str) for entry in entries
    ):
        problems.append('it needs [[step]] tables, each with use = "NAME"')
    else:
        specs = [(entry["use"], (), {key: value for key, value in entry.items() if key != "use"}) for entry in entries]
        steps = _make_steps(specs, problems)
    if problems:
        raise InvalidArgumentError(f"the recipe {name}: {'; '.join(problems)}", hint=ALL_STEPS)
    return Recipe(steps, name, str(document.get("summary", "")))


def _from_python(path: Path, attribute: str) -> Recipe:
    if not path.is_file():
        raise InvalidArgumentError(f"the recipe {path} is not a file")
    spec = importlib.util.spec_from_file_location(f"_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidArgumentError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    # Other processes cannot import the module by its name.
    cloudpickle.register_pickle_by_value(module)
    value = getattr(module, attribute, None)
    if isinstance(value, Recipe):
        return value
    if not _is_recipe(value):
        names = [
            name for name, other in vars(module).items() if _is_recipe(other) and _is_defined_in(name, other, module)
        ]
        raise InvalidArgumentError(
            f"{path} has no {attribute!r} that is a function, a step, a list of them or a Recipe"
            if attribute
            else f"{path} was given without a name",
            hint=f"it has {', '.join(f'{path.name}:{name}' for name in names)}" if names else "write FILE.py:NAME",
        )
    return Recipe(value if isinstance(value, (list, tuple)) else [value], f"{path.name}:{attribute}")


def _is_recipe(value: Any) -> bool:
    """Return whether a value is a recipe, or can be a step or a list of steps."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return bool(items) and all(isinstance(item, Recipe) or callable(item) for item in items)


def _is_defined_in(name: str, value: Any, module: ModuleType) -> bool:
    """Return whether a module defines a public value itself, as opposed to importing it."""
    imported = (inspect.isclass(value) or inspect.isroutine(value)) and value.__module__ != module.__name__
    return not (imported or name.startswith("_"))


def _as_steps(item: Any) -> Iterator[Step]:
    """Yield the steps for one item of the list that a recipe is given."""
    if isinstance(item, Recipe):
        yield from item.steps
    elif isinstance(item, Step):
        yield item
    else:
        yield from _wrap_as_steps(item)


def _wrap_as_steps(item: Any) -> Iterator[Step]:
    """Yield the steps for a transform, a class or a function. Only these need torch."""
    from datasets_rl.preprocessing.functions import Function
    from datasets_rl.preprocessing.transforms import TransformStep
    from datasets_rl.transforms import Compose, Transform

    if isinstance(item, Compose):
        for element in item:
            # A function in a Compose is called with batches.
            yield from _as_steps(element) if isinstance(element, Transform) else [Function(element, "batch")]
    elif isinstance(item, Transform):
        yield TransformStep.of(item)
    elif isinstance(item, type) and issubclass(item, (Step, Transform)):
        yield from _as_steps(_instantiate(item))
    else:
        yield Function(item)


def _instantiate(cls: type[Step | Transform]) -> Step | Transform:
    try:
        return cls()
    except TypeError as error:
        raise InvalidArgumentError(
            f"the step {cls.__name__} needs arguments: {error}", hint=f"pass an instance: {cls.__name__}(...)"
        ) from error


def parse_inline(text: str) -> Arguments:
    """Parse a step as written on the command line, ``cat_frames:4,dim=-1``."""
    name, _, rest = text.partition(":")
    positional, keywords = [], {}
    for argument in _split_arguments(rest):
        key, value = _ARGUMENT.fullmatch(argument).groups()  # type: ignore[union-attr]  # it matches every string
        if key:
            keywords[key] = _parse_value(value)
        else:
            positional.append(_parse_value(value))
    return name.strip(), positional, keywords


def _split_arguments(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text.startswith("[") and text.endswith("]"):
        return [_parse_value(part) for part in _split_arguments(text[1:-1])]
    return {"True": True, "False": False, "None": None}.get(text, text)


def _make_steps(specs: Iterable[Arguments], problems: list[str]) -> list[Step]:
    """Return the valid steps, and append the problems of the others to a list."""
    steps = []
    for number, (name, positional, keywords) in enumerate(specs):
        try:
            steps.append(make_step(name, positional, keywords))
        except InvalidArgumentError as error:
            problems.append(f"step {number} ({name}): {error.message}")
    return steps


def _apply_step(step: Step, number: int, batch: EpisodeBatch) -> EpisodeBatch | None:
    """Apply a step. If it fails, apply it to each episode alone, so that the error names the episode."""
    try:
        return step(batch)
    except Exception as error:
        for episode in range(len(batch)) if len(batch) > 1 else ():
            _apply_step(step, number, batch.select_episodes(np.array([episode])))
        where = f" at episode {batch.numbers[0]}" if len(batch) == 1 else ""
        raise _step_error(step, number, batch, where, error) from error


def _step_error(step: Step, number: int, batch: EpisodeBatch, where: str, error: Exception) -> DatasetsRLError:
    if isinstance(error, (MemoryError, NotEnoughMemoryError)):
        reason = getattr(error, "message", str(error))
        return NotEnoughMemoryError(
            f"step {number} ({_step_name(step, error)}){where} needs more memory than is available: {reason}",
            hint=Remedy("make the results of the step smaller, or use fewer processes: {}", Argument("jobs", 1)),
        )
    own = isinstance(error, DatasetsRLError)
    why, hint = (error.message, error.remedy) if own else (f"{type(error).__name__}: {error}", "")  # type: ignore[attr-defined]  # an error of this package has both
    keys = ", ".join(sorted(map(dotted_name, (*batch.states, *batch.steps))))
    return PreprocessError(f"step {number} ({_step_name(step, error)}){where}, with fields {keys}: {why}", hint=hint)


def _step_name(step: Step, error: Exception) -> str:
    """Return the name of a step, and the line of the user's code in which it failed: ``function fn, my.py:12``."""
    metadata = step.to_json()
    lines = [
        f", {Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_INSTALLED)
    ]
    name = f" {metadata['name']}" if "digest" in metadata and "name" in metadata else ""
    return "".join([metadata["use"], name, *lines[-1:]])
