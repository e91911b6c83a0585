"""Transforms by name, and checks of their arguments, read from the source code: an import of a transform takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from datasets_rl.format.schema import short_text
from datasets_rl.preprocessing.steps import snake

_NUMBERS = (int, float)
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "Factor": ((*_NUMBERS, list), "a number, or a list of numbers"),
    "float": (_NUMBERS, "a number"),
    "int": ((int,), "an integer"),
    "Keys": ((str, list), "a key, or a list of keys"),
    "None": ((type(None),), "None"),
    "Number": ((*_NUMBERS, list), "a number, or a list of numbers"),
    "Sequence": ((list,), "a list"),
    "str": ((str,), "a text"),
    "Tensor": ((*_NUMBERS, list), "a list of numbers"),
    "tuple": ((list,), "a list"),
}
"""The values that a recipe can state, and a text for messages, by the name of a type. A parameter of any other type takes
every value."""


@cache
def transform_names() -> Mapping[str, str]:
    """Return the class names of all transforms by their names in recipes: "RewardSum" for "reward_sum"."""
    return {snake(name): name for name in _modules() if name[0].isupper()}


def argument_problems(class_name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """Return why a transform cannot be created from the arguments of a recipe, as far as its signature tells.

    Args:
        class_name: The name of the class in `datasets_rl.transforms`.
        positional: The positional arguments: numbers, texts, truth values, None, and lists of them.
        named: The keyword arguments.
    """
    arguments = _parameters(class_name)
    if arguments is None:
        return []
    places = [*arguments.posonlyargs, *arguments.args][1:]
    parameters = {one.arg: one for one in (*places, *arguments.kwonlyargs)}
    values = dict(zip(parameters, positional[: len(places)], strict=False)) | dict(named)
    names = ", ".join(parameters) or "none"
    unknown = sorted(named.keys() - parameters) if arguments.kwarg is None else []
    problems = [f"it has no argument {name!r} (its arguments: {names})" for name in unknown]
    if len(positional) > len(places) and arguments.vararg is None:
        problems.append(f"it was given {short_text(list(positional))}, expected at most {len(places)} arguments")
    required = {one.arg for one in places[: len(places) - len(arguments.defaults)]}
    required |= {
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    }
    problems += [f"{name} is missing" for name in parameters if name in required - values.keys()]
    return problems + [
        f"{name} is {short_text(values[name])}, expected {_expected(one.annotation)}"
        for name, one in parameters.items()
        if name in values and one.annotation is not None and not _fits(values[name], one.annotation)
    ]


def _alternatives(annotation: ast.expr) -> list[ast.expr]:
    """Return the types of a union."""
    if isinstance(annotation, ast.BinOp):
        return [*_alternatives(annotation.left), *_alternatives(annotation.right)]
    return [annotation]


def _fits(value: Any, annotation: ast.expr) -> bool:
    """Return whether a value may have the type of an annotation."""
    return any(
        value in literals
        if (literals := _literals(one))
        else type(value) in _TYPES.get(_name(one), ((type(value),), ""))[0]
        for one in _alternatives(annotation)
    )


def _expected(annotation: ast.expr) -> str:
    """Return a text of the values that fit an annotation."""
    texts = [", ".join(map(repr, _literals(one))) or _TYPES[_name(one)][1] for one in _alternatives(annotation)]
    return " or ".join(dict.fromkeys(text for text in texts if text != "None"))


def _name(annotation: ast.expr) -> str:
    """Return the name of a type without its parameters."""
    return ast.unparse(annotation.value if isinstance(annotation, ast.Subscript) else annotation)


def _literals(annotation: ast.expr) -> list[Any]:
    """Return the values of a `Literal`."""
    if not isinstance(annotation, ast.Subscript) or _name(annotation) != "Literal":
        return []
    values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return [ast.literal_eval(value) for value in values]


@cache
def _parameters(class_name: str) -> ast.arguments | None:
    """Return the parameters of a class, with `self`, or None if the module of the class has no `__init__` of it."""
    classes = {node.name: node for node in _parsed(_modules()[class_name]) if isinstance(node, ast.ClassDef)}
    while cls := classes.get(class_name):
        methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
        if "__init__" in methods:
            return methods["__init__"].args
        class_name = ast.unparse(cls.bases[0]) if cls.bases else ""
    return None


@cache
def _modules() -> Mapping[str, str]:
    """Return the module of each public name of `datasets_rl.transforms`."""
    imports = (node for node in _parsed("__init__") if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module).rpartition(".")[2] for node in imports for alias in node.names}


def _parsed(module: str) -> Sequence[ast.stmt]:
    """Return the statements of a module of `datasets_rl.transforms`."""
    return ast.parse((Path(__file__).parents[1] / "transforms" / f"{module}.py").read_text("utf-8")).body
