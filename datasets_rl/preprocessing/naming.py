"""Steps by name: created from the arguments in a recipe, described for listings, and recognized in manifests."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from datasets_rl.arguments import check
from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.format.schema import short_text
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.signatures import argument_problems, transform_names
from datasets_rl.preprocessing.steps import INSTEAD, STEPS, step_class

if TYPE_CHECKING:
    from datasets_rl.transforms import Transform

Arguments = tuple[str, Sequence[Any], Mapping[str, Any]]
"""The name of a step, the positional and the keyword arguments."""
ALL_STEPS = Remedy("{} shows all steps", Call("preprocessing.naming.describe_steps"))


_TRANSFORMS = "transforms."
"""The beginning of the modules of the steps that are transforms, in `STEPS`."""


@dataclasses.dataclass(frozen=True)
class StepDescription:
    """The description of a step for listings."""

    name: str
    arguments: str
    """The arguments with their defaults, as in a recipe: ``percent=10.0, of=episodes``.

    Arguments without a default are required.
    """
    summary: str


def describe_steps() -> list[StepDescription]:
    """Return the descriptions of all steps that recipes can name, sorted by name."""
    classes = {name: step_class(name) for name in STEPS}
    return [
        StepDescription(name, ", ".join(_argument_texts(cls)), (cls.__doc__ or "").partition("\n")[0].removesuffix("."))
        for name, cls in classes.items()
    ]


def _argument_texts(cls: type[Step | Transform]) -> Iterator[str]:
    if not issubclass(cls, Step):
        yield from (str(parameter).partition(":")[0] for parameter in inspect.signature(cls).parameters.values())
        return
    for field in _fields(cls):
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        yield field.name if field.default is dataclasses.MISSING else f"{field.name}={default}"


def make_step(name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> Step:
    """Return a new step for a name and arguments.

    Args:
        name: The name of the step or the transform in recipes.
        positional: The positional arguments.
        named: The keyword arguments.

    Raises:
        InvalidArgumentError: If there is no such step, or the step does not accept these arguments.
    """
    if name not in STEPS:
        raise _unknown_step(name)
    module, _, class_name = STEPS[name].partition(":")
    if module.startswith(_TRANSFORMS):
        check(argument_problems(class_name, positional, named))
    cls = step_class(name)
    if not issubclass(cls, Step):
        from datasets_rl.preprocessing.transforms import TransformStep

        return TransformStep.from_arguments(name, cls, positional, named)
    fields, hints = _fields(cls), typing.get_type_hints(cls)
    names = [field.name for field in fields]
    if names and _is_tuple_hint(hints[names[0]]) and positional and not isinstance(positional[0], (list, tuple)):
        positional = [tuple(positional)]
    required = {field.name for field in fields if field.default is dataclasses.MISSING}
    arguments = dict(zip(names, positional, strict=False)) | dict(named)
    problems = [
        f"it has no argument {key!r} (its arguments: {', '.join(names) or 'none'})"
        for key in arguments.keys() - set(names)
    ]
    problems += [f"{key} is missing" for key in sorted(required - arguments.keys())]
    if len(positional) > len(names):
        problems.append(f"it was given {short_text(list(positional))}, expected at most {len(names)} arguments")
    if not problems:
        arguments = {key: _convert_value(value, hints[key]) for key, value in arguments.items()}
        forms = {field.name: field.metadata["form"] for field in fields if "form" in field.metadata}
        problems = [
            f"{key} is {short_text(value)}, expected {forms.get(key) or _type_name(hints[key])}"
            for key, value in arguments.items()
            if not _fits_hint(value, hints[key])
        ]
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    return cls(**arguments)


def check_batch_transforms(transforms: Sequence[Arguments], dataset: str) -> None:
    """Check the transforms of the batches of a dataset, as far as that is possible without importing torch.

    Args:
        transforms: The names of the transforms, with arguments.
        dataset: The dataset, for messages.

    Raises:
        InvalidArgumentError: If there is no such transform, or a transform does not accept the arguments, or needs
            whole episodes.
    """
    episodes = []
    for name, positional, named in transforms:
        module, _, class_name = STEPS.get(name, f"{_TRANSFORMS}:{transform_names().get(name, '')}").partition(":")
        if not class_name:
            raise _unknown_step(name)
        if not module.startswith(_TRANSFORMS):
            episodes.append(make_step(name, positional, named).use())
        elif problems := argument_problems(class_name, positional, named):
            raise InvalidArgumentError(f"the transform {name} of {dataset}: {'; '.join(problems)}", hint=ALL_STEPS)
    if episodes:
        raise InvalidArgumentError(
            f"the transforms {', '.join(sorted(episodes))} of {dataset} need whole episodes, but are applied to batches",
            hint=Remedy(
                "apply them to the dataset first: `{}`", Call("preprocess", Call("locate", dataset), recipe=...)
            ),
        )


def _unknown_step(name: str) -> InvalidArgumentError:
    similar = [INSTEAD[name]] if name in INSTEAD else difflib.get_close_matches(name, STEPS, n=3, cutoff=0.5)
    meant = f" (did you mean {', '.join(similar)}?)" if similar else ""
    return InvalidArgumentError(f"there is no step {name!r}{meant}", hint=ALL_STEPS)


def _fields(cls: type[Step]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a step that are arguments."""
    return [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]  # steps are dataclasses


def _is_tuple_hint(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _convert_value(value: Any, hint: Any) -> Any:
    """Return a value converted to the type of the field: a single value to a tuple, and a number to a string."""
    if _is_tuple_hint(hint):
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return str(value) if hint is str and type(value) in {int, float} else value


def _fits_hint(value: Any, hint: Any) -> bool:
    """Return whether an argument has the type of the field."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return all(_fits_hint(item, inner[0]) for item in value)
    if inner:
        return any(_fits_hint(value, option) for option in inner)
    if isinstance(value, bool) and hint is not bool:
        return False
    return isinstance(value, (int, float) if hint is float else hint)


_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return str(hint) if typing.get_args(hint) else _NAMES.get(hint, str(hint.__name__))
