"""Libraries of others: which libraries are missing, and which library is at fault where no file is."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from traceback import walk_tb
from types import FrameType, ModuleType

from datasets_rl.errors import DatasetsRLError, LibraryError, MissingDependencyError

_OWN = __name__.partition(".")[0]
_WRONG_CALL = re.compile(
    r"keyword argument|positional argument|takes (exactly|at most|at least|no|from|\d)|multiple values for|"
    r"required argument|incompatible (function|constructor) arguments|not callable"
)
"""Errors of Python, Cython and pybind11 about a call with arguments that the function does not have."""
_FUNCTION = re.compile(r"([\w.]+)\(\)")


@contextmanager
def importing(library: str, extra: str, purpose: str, *, module: str = "") -> Iterator[None]:
    """Import an optional library in the block. A library that is installed and broken is not missing.

    Args:
        library: The library.
        extra: The extra of datasets-rl that installs the library.
        purpose: What requires the library.
        module: The module of the library, if the name differs.

    Raises:
        MissingDependencyError: If the library is not installed.
        LibraryError: If the library is installed and cannot be imported.
    """
    module = module or library.replace("-", "_")
    try:
        yield
    except DatasetsRLError:
        raise
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise MissingDependencyError(library, extra, purpose) from error
        problem = f"{purpose} needs it, and it cannot be imported: {error}"
        hint = f"remove it by pip uninstall {library}, then pip install 'datasets-rl[{extra}]'"
        raise LibraryError(with_version(module), problem, hint=hint) from error


def raise_fault_of_code(error: Exception, where: str) -> None:
    """Raise if an exception is about a name or an argument that does not exist, which no file decides.

    Args:
        error: The exception.
        where: What was done when the exception was raised, such as the name of the file that was read.

    Raises:
        LibraryError: If a library lacks the name or the argument.
        Exception: The exception itself, if this package is at fault.
    """
    wrong_call = isinstance(error, TypeError) and _WRONG_CALL.search(str(error))
    if not wrong_call and not isinstance(error, AttributeError | ImportError | NameError):
        return
    if (library := library_of(error)) is None:
        raise error
    raise LibraryError(library, f"{where}: {type(error).__name__}: {error}") from error


def library_of(error: Exception) -> str | None:
    """Return the library at fault for an exception, with its version, or None if this package is at fault."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    raised_in = [top for frame in frames if (top := _top(frame.f_globals.get("__name__"))) is not None]
    # A function that is called wrongly has no frame: the last frame is the caller's.
    called = _called_package(error) if isinstance(error, TypeError) and _WRONG_CALL.search(str(error)) else None
    top = _top(_blamed_module(error)) or called or (raised_in[-1] if raised_in else None)
    return None if top is None or top == _OWN else with_version(top)


def with_version(module: str) -> str:
    """Return the name of the distribution of a module with its version, as in ``h5py 3.16.0``."""
    from importlib.metadata import PackageNotFoundError, version

    name = next(iter(_distributions().get(module, ())), module)  # Python 3.10 does not find all of them
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return module


@cache
def _distributions() -> Mapping[str, Sequence[str]]:
    """Return the names of the installed distributions by package, for which the files of all of them are read."""
    from importlib.metadata import packages_distributions

    return packages_distributions()


def _top(module: object) -> str | None:
    """Return the package of a module, or None for a part of Python."""
    top = str(module or "").partition(".")[0]
    return None if not top or top == "__main__" or top in sys.stdlib_module_names else top


def _blamed_module(error: Exception) -> str | None:
    """Return the module that lacks a name, or None if the exception does not say."""
    if isinstance(error, ImportError):
        return error.name
    if isinstance(error, AttributeError) and error.obj is not None:
        return _module_of(error.obj)
    return None


def _module_of(thing: object) -> str:
    """Return the module that defines a module, a class, a function, or the class of another object."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    return str(getattr(thing if isinstance(thing, type) or callable(thing) else type(thing), "__module__", ""))


def _called_package(error: TypeError) -> str | None:
    """Return the package of the function that the last line of a traceback calls, or None if unknown."""
    frame, line = [*walk_tb(error.__traceback__)][-1]
    try:
        lines, start = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # without its source
        return None
    at = line - max(start, 1) + 1
    calls = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= at <= (node.end_lineno or node.lineno)
    ]
    found = _FUNCTION.search(str(error))
    names = found[1].split(".") if found else []
    named = [function for function in calls if ast.unparse(function).rpartition(".")[2] in names]
    owners = [function.value if isinstance(function, ast.Attribute) else function for function in named or calls]
    packages = (_top(_module_of(_value(owner, frame))) for owner in owners)
    return next((package for package in packages if package is not None), None)


def _value(expression: ast.expr, frame: FrameType) -> object:
    """Return the value of a name or attribute in a frame, the called object of a call, or else None."""
    if isinstance(expression, ast.Call):
        return _value(expression.func, frame)
    if isinstance(expression, ast.Name):
        scopes = (frame.f_locals, frame.f_globals, vars(builtins))
        return next((scope[expression.id] for scope in scopes if expression.id in scope), None)
    if isinstance(expression, ast.Attribute):
        return getattr(_value(expression.value, frame), expression.attr, None)
    return None
