"""The datasets that a program opens: constants in calls of this package, found by the syntax tree. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources import source_names

_PACKAGE = "datasets_rl"
_OPENING = frozenset({"download", "load", "Member"})
"""Functions and classes with a dataset as the first argument."""
_MIXING = frozenset({"mixture"})
"""Functions with a list of datasets as the first argument."""
_FILES = frozenset({"load_mixture"})
"""Functions with the file of a mixture as the first argument."""
_CLASS = "ExperienceReplay"
"""End of the names of the dataset classes, which have the name of a dataset within the source as the first argument."""
_NAMES = ("dataset_id", "dataset", "members", "path")


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset, or the file of a mixture, that a line of a program opens."""

    name: str
    """The constant."""
    line: int
    call: str
    """The name of the function or the class of this package."""

    @property
    def is_mixture(self) -> bool:
        """Whether the constant is the file of a mixture."""
        return self.call in _FILES


@dataclass(frozen=True, slots=True)
class Program:
    """What a program opens."""

    opened: tuple[Opened, ...] = ()
    computed: tuple[Opened, ...] = ()
    """Calls with an argument other than a constant. The name is the code of the argument."""


def read_program(path: Path) -> Program:
    """Return what a Python program opens, by its text.

    A constant is a text in the call itself, or a name that the module sets once, to a text.

    Raises:
        InvalidArgumentError: If the file cannot be read, or is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except OSError as error:
        raise InvalidArgumentError(f"the program {path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the program {path} is not valid Python: {error}") from error
    imported, constants = _imported_names(tree), _constants(tree)
    opened: list[Opened] = []
    computed: list[Opened] = []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        function = _function_of(call.func, imported)
        argument = _first_argument(call)
        source = _source_of(function) if function.endswith(_CLASS) else ""
        if argument is None or not (source or function in _OPENING | _MIXING | _FILES):
            continue
        for item in argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]:
            if isinstance(item, ast.Call) and _function_of(item.func, imported) in _OPENING:
                continue  # another call
            value = _text_of(item, constants)
            if value is None:
                computed.append(Opened(ast.unparse(item), call.lineno, function))
            else:
                opened.append(Opened(f"{source}/{value}" if source else value, call.lineno, function))
    return Program(tuple(opened), tuple(computed))


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Return the local names of this package and of the names in it, each with the path below the package."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == _PACKAGE:
                    names[alias.asname or _PACKAGE] = alias.name if alias.asname else _PACKAGE
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == _PACKAGE:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _function_of(node: ast.expr, imported: Mapping[str, str]) -> str:
    """Return the last name of a function of this package, or an empty text for any other function."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported:
        return ""
    return [*imported[node.id].split("."), *reversed(parts)][-1]


def _first_argument(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next((keyword.value for keyword in call.keywords if keyword.arg in _NAMES), None)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the names that are set exactly once in the program, on the level of the module, to a text."""
    counts: dict[str, int] = {}
    for name in _assigned_names(tree):
        counts[name] = counts.get(name, 0) + 1
    found: dict[str, str] = {}
    for node in tree.body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            else getattr(node, "target", None)
        )
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return {name: value for name, value in found.items() if counts.get(name) == 1}


def _assigned_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def _text_of(node: ast.expr, constants: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Call) and len(node.args) == 1 and _last_name(node.func) == "Path":
        return _text_of(node.args[0], constants)
    return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _source_of(function: str) -> str:
    """Return the source of the class of this name, ``gen_dgrl`` of ``GenDGRLExperienceReplay``, or an empty text."""
    stem = function.removesuffix(_CLASS).lower()
    return next((source for source in source_names() if source.replace("_", "") == stem), "")
