"""A named list of steps: from a file, from words at the shell, or from Python."""

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, NotEnoughMemoryError, PreprocessError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.digests import digest
from datasets_rl.preprocessing.functions import Function
from datasets_rl.preprocessing.naming import make
from datasets_rl.preprocessing.transforms import TransformStep
from datasets_rl.read.toml import parse_toml
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted
from datasets_rl.transforms import Compose, Transform

__all__ = ["Recipe", "shipped"]

_PYTHON = re.compile(r"(.+\.py)(?::(.*))?", re.DOTALL)
_INSTALLED = tuple(
    f"{path}{os.sep}"
    for path in (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
)
"""Where code lies that is not the user's."""
_WORD = re.compile(r"(?:([A-Za-z_]\w*)=)?(.*)", re.DOTALL)


@dataclass
class Recipe:
    """Steps that a dataset goes through, one after the other.

        >>> Recipe.of("iql_antmaze")                       one that is shipped
        >>> Recipe.of("my.toml"), Recipe.of("my.py:fn")    the user's own
        >>> Recipe.inline(["resize:64", "cat_frames:4"])
        >>> Recipe([KeepReturns(least=3000), fn])

    Args:
        steps: Steps, transforms, functions of a transition, classes of steps that need no arguments, or other recipes.
        name: For messages and the manifest.
        summary: One line for listings.
    """

    steps: Sequence[Any]
    name: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        self.steps = [step for given in self.steps for step in _steps(given)]
        if faults := [fault for number, step in enumerate(self.steps) for fault in _infinite(step, number)]:
            raise InvalidArgumentError(
                "; ".join(faults), hint="the manifest records arguments, and JSON has finite numbers only"
            )

    @classmethod
    def of(cls, text: str) -> Recipe:
        """Read a recipe by its name, from a TOML file, or from a Python file, ``my.py:fn``.

        Raises:
            InvalidArgumentError: If there is no such recipe or file, or a step is not as it should be; all faults at once.
        """
        if python := _PYTHON.fullmatch(text):
            return _from_python(Path(python[1]).expanduser(), python[2] or "")
        if text.endswith(".toml") or Path(text).is_file():
            try:
                return _from_toml(Path(text).expanduser().read_text("utf-8"), text)
            except OSError as error:
                raise InvalidArgumentError(f"the recipe {text} cannot be read: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise InvalidArgumentError(f"the recipe {text} cannot be read as TOML: {error}") from error
        found = _shipped()
        if text not in found:
            near = difflib.get_close_matches(text, found, n=3, cutoff=0.5)
            raise InvalidArgumentError(
                f"there is no recipe {text!r}: expected one of {', '.join(sorted(found))}",
                hint=f"did you mean {', '.join(near)}?" if near else "or give FILE.toml or FILE.py:NAME",
            )
        return _from_toml(found[text], text)

    @classmethod
    def inline(cls, texts: Sequence[str]) -> Recipe:
        """Read steps as one types them, ``cat_frames:4,dim=-1``; words without a name come first, in their order.

        Raises:
            InvalidArgumentError: If a step is not as it should be; all faults at once.
        """
        problems: list[str] = []
        steps = _all(map(_inline, texts), problems)
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        return cls(steps, ", ".join(texts))

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return what becomes of a block of whole episodes; None if nothing is left.

        Raises:
            PreprocessError: If a step fails; it says which, at which episode and with which fields.
        """
        return self.first(len(self.steps), block)

    def first(self, count: int, block: EpisodeBatch, reached: Sequence[set[int]] = ()) -> EpisodeBatch | None:
        """Return what the first steps make of a block.

        Args:
            count: How many steps.
            block: Whole episodes.
            reached: For each step, gets the numbers of the episodes that it is given.
        """
        left: EpisodeBatch | None = block
        for number, step in enumerate(self.steps[:count]):
            if left is None:
                return None
            if reached:
                reached[number].update(left.numbers.tolist())
            left = _located(step, number, left)
        return left

    def told(self, number: int) -> str:
        """Return what a step is called, with the values of its arguments: ``step 0 (keep_lengths: 10, 20)``."""
        metadata = {} if isinstance(self.steps[number], Function) else self.steps[number].to_json()
        given = ", ".join(str(value) for name, value in metadata.items() if name != "use")
        return f"step {number} ({self.steps[number].use()}{': ' if given else ''}{given})"

    @property
    def one_by_one(self) -> bool:
        """Whether a function is called for each step, or for each episode."""
        return any(isinstance(step, Function) and step.per != "batch" for step in self.steps)

    def copy(self) -> Recipe:
        """Return a copy whose functions share nothing with this one's: what they keep is as it is now.

        Functions that cannot be copied stay the same, and so do those of modules that are imported.
        """
        try:
            copied: Recipe = cloudpickle.loads(self.pickled())
        except InvalidArgumentError:
            return self
        return copied

    def pickled(self) -> bytes:
        """Return what another process can make the same recipe of.

        Raises:
            InvalidArgumentError: If a function cannot be sent.
        """
        try:
            pickled: bytes = cloudpickle.dumps(self)
        except (TypeError, pickle.PicklingError) as error:
            raise InvalidArgumentError(
                f"the recipe {self.name!r} cannot be sent to other processes: {error}",
                hint="one process needs no sending: --jobs 1, num_workers=1",
            ) from error
        return pickled

    def fit(self, blocks: Any) -> None:
        """Let the steps that need it see all episodes, as the steps before them leave them.

        Args:
            blocks: Called without arguments, gives all blocks anew.

        Raises:
            PreprocessError: If nothing is left to learn from.
        """
        for number, step in enumerate(self.steps):
            if step.requires_fit:
                left = (one for one in (self.first(number, block) for block in blocks()) if one is not None)
                some = next(left, None)
                if some is None:
                    raise PreprocessError(f"nothing is left for step {number} ({step.use()}) to learn from")
                try:
                    step.fit(chain([some], left))
                except (
                    ArithmeticError,
                    LookupError,
                    TypeError,
                    ValueError,
                ) as error:  # InvalidArgumentError is one of them
                    raise _failed(step, number, some, "", error) from error

    @property
    def fitted(self) -> dict[str, Any]:
        """What the steps learned, by slash-joined names, for the manifest."""
        return {
            f"{number}.{step.use()}/{name}": value
            for number, step in enumerate(self.steps)
            for name, value in step.fitted.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Describe the recipe for the manifest."""
        return {"name": self.name, "steps": [{**step.to_json(), **_code(step)} for step in self.steps]}


def _infinite(step: Step, number: int) -> Iterator[str]:
    """Yield the arguments of a step that a manifest cannot record: numbers that are NaN or infinite."""
    # What a function or a transform of the user's own consists of is recorded as a digest.
    own = isinstance(step, Function) or (isinstance(step, TransformStep) and not step.written)
    for name, value in {}.items() if own else step.to_json().items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, float) and not math.isfinite(one):
                yield f"step {number} ({step.to_json()['use']}): {name} is {one}; expected a finite number"


def _code(step: Step) -> dict[str, str]:
    """Return what a step of the user's own does, as a digest: the package's version stands for those that it has."""
    kind = type(step)
    if kind.__module__.startswith("datasets_rl."):
        return {}
    return {"digest": digest(kind)}


def shipped() -> Iterator[Recipe]:
    """Yield the recipes that come with the package, by name."""
    for name, text in sorted(_shipped().items()):
        yield _from_toml(text, name)


def _shipped() -> dict[str, str]:
    folder = package_files("datasets_rl.recipes")
    return {one.name[:-5]: one.read_text("utf-8") for one in folder.iterdir() if one.name.endswith(".toml")}


def _from_toml(text: str, name: str) -> Recipe:
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise InvalidArgumentError(f"the recipe {name} cannot be read as TOML: {error}") from error
    problems = [f"it has {key!r}; expected purpose and step" for key in sorted(document.keys() - {"purpose", "step"})]
    entries, steps = document.get("step"), []
    if not isinstance(entries, list) or not all(
        isinstance(one, dict) and isinstance(one.get("use"), str) for one in entries
    ):
        problems.append('it needs [[step]] tables, each with use = "NAME"')
    else:
        written = [(one["use"], (), {key: value for key, value in one.items() if key != "use"}) for one in entries]
        steps = _all(written, problems)
    if problems:
        raise InvalidArgumentError(f"the recipe {name}: {'; '.join(problems)}")
    return Recipe(steps, name, str(document.get("purpose", "")))


def _from_python(path: Path, attribute: str) -> Recipe:
    if not path.is_file():
        raise InvalidArgumentError(f"the recipe {path} is no file")
    spec = importlib.util.spec_from_file_location(f"_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidArgumentError(f"{path} fails as it is imported: {type(error).__name__}: {error}") from error
    # Workers do not find the file by its name.
    cloudpickle.register_pickle_by_value(module)
    found = getattr(module, attribute, None)
    if isinstance(found, Recipe):
        return found
    if not _is_recipe(found):
        names = [name for name, one in vars(module).items() if _is_recipe(one) and _is_own(name, one, module)]
        raise InvalidArgumentError(
            f"{path} has no {attribute!r} that is a function, a step, a list of them or a Recipe"
            if attribute
            else f"{path} was given without a name",
            hint=f"it has {', '.join(f'{path.name}:{name}' for name in names)}" if names else "write FILE.py:NAME",
        )
    return Recipe(found if isinstance(found, (list, tuple)) else [found], f"{path.name}:{attribute}")


def _is_recipe(found: Any) -> bool:
    """Say whether something can be read as a recipe."""
    several = found if isinstance(found, (list, tuple)) else [found]
    return bool(several) and all(isinstance(one, Recipe) or callable(one) for one in several)


def _is_own(name: str, found: Any, module: ModuleType) -> bool:
    """Say whether a file made something itself, for others; functions and classes may be imported."""
    imported = (inspect.isclass(found) or inspect.isroutine(found)) and found.__module__ != module.__name__
    return not (imported or name.startswith("_"))


def _steps(given: Any) -> Iterator[Step]:
    """Make steps of what a recipe was given as one."""
    if isinstance(given, Recipe):
        yield from given.steps
    elif isinstance(given, Compose):
        for one in given:
            # A function among transforms is given batches.
            yield from _steps(one) if isinstance(one, Transform) else [Function(one, "batch")]
    elif isinstance(given, Transform):
        yield TransformStep(given)
    elif isinstance(given, type) and issubclass(given, (Step, Transform)):
        yield from _steps(_made(given))
    else:
        yield given if isinstance(given, Step) else Function(given)


def _made(kind: type[Step | Transform]) -> Step | Transform:
    try:
        return kind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"the step {kind.__name__} cannot be made without arguments: {error}",
            hint=f"give one that is made: {kind.__name__}(...)",
        ) from error


Written = tuple[str, Sequence[Any], Mapping[str, Any]]


def _inline(text: str) -> Written:
    name, _, rest = text.partition(":")
    words, named = [], {}
    for part in _split(rest):
        key, value = _WORD.fullmatch(part).groups()  # type: ignore[union-attr]  # it matches everything
        if key:
            named[key] = _value(value)
        else:
            words.append(_value(value))
    return name.strip(), words, named


def _split(text: str) -> list[str]:
    """Cut at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text.startswith("[") and text.endswith("]"):
        return [_value(part) for part in _split(text[1:-1])]
    return {"True": True, "False": False, "None": None}.get(text, text)


def _all(written: Iterable[Written], problems: list[str]) -> list[Step]:
    """Make all steps, and add all that is wrong with them to the problems."""
    steps = []
    for number, (name, words, named) in enumerate(written):
        try:
            steps.append(make(name, words, named))
        except InvalidArgumentError as error:
            problems.append(f"step {number} ({name}): {error.message}{error.hint and f' ({error.hint})'}")
    return steps


def _located(step: Step, number: int, block: EpisodeBatch) -> EpisodeBatch | None:
    try:
        return step(block)
    except Exception as error:
        for one in range(len(block)) if len(block) > 1 else ():
            _located(step, number, block.pick(np.array([one])))
        where = f" at episode {block.numbers[0]}" if len(block) == 1 else ""
        raise _failed(step, number, block, where, error) from error


def _failed(step: Step, number: int, block: EpisodeBatch, where: str, error: Exception) -> DatasetsRLError:
    if isinstance(error, (MemoryError, NotEnoughMemoryError)):
        return NotEnoughMemoryError(
            f"step {number} ({_told(step, error)}){where} needs more memory than there is: {getattr(error, 'message', str(error))}",
            hint="make what the step writes smaller, or give fewer processes: --jobs 1, num_workers=1",
        )
    known = isinstance(error, DatasetsRLError)
    why, hint = (error.message, error.hint) if known else (f"{type(error).__name__}: {error}", "")  # type: ignore[attr-defined]  # it is one of ours
    keys = ", ".join(sorted(map(dotted, (*block.states, *block.steps))))
    return PreprocessError(f"step {number} ({_told(step, error)}){where}, which has {keys}: {why}", hint=hint)


def _told(step: Step, error: Exception) -> str:
    """Return what a step is called, and the line of the user's own code in which it failed: ``function fn, my.py:12``."""
    metadata = step.to_json()
    lines = [
        f", {Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_INSTALLED)
    ]
    name = f" {metadata['name']}" if "digest" in metadata and "name" in metadata else ""
    return "".join([metadata["use"], name, *lines[-1:]])
