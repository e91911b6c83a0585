"""Digests of functions of the user, which identify the results of recipes with such functions."""

from __future__ import annotations

import copyreg
import hashlib
import pickle
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

_DIGEST_LENGTH = 16
_IGNORED_ATTRIBUTES = {
    "__annotations__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}
"""Attributes of a class that do not affect the behavior."""


def code_digest(fn: Any) -> str:
    """Return a digest of the code and the data of a function or a class, which is equal in every process.

    The digest changes if any code of the user changes that the function refers to, directly or indirectly.
    """
    hashed = hashlib.sha256()
    for piece in _value_bytes(fn, {}):
        hashed.update(piece)
        hashed.update(b"|")
    return hashed.hexdigest()[:_DIGEST_LENGTH]


def _value_bytes(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the bytes of a value and of all objects that the value refers to.

    A repeated object is a number, so that cycles end.
    """
    parts = _parts_of(value)
    if parts is None:
        yield value if isinstance(value, bytes) else repr(value).encode()
        return
    # Whether equal constants are the same object depends on whether the module was just compiled or read from a cache.
    if not isinstance(value, (tuple, types.CodeType)):
        if id(value) in seen:
            yield str(seen[id(value)][0]).encode()
            return
        seen[id(value)] = (len(seen), value)
    for part in parts:
        yield from _value_bytes(part, seen)


def _parts_of(value: Any) -> Iterable[Any] | None:  # noqa: C901, PLR0911 -- a flat dispatch on types
    if isinstance(value, (str, bytes, int, float, complex, type(None), type(...))):
        return None
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) or _is_installed(value):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if isinstance(value, types.FunctionType):
        cells = list(value.__closure__ or ())
        return value.__code__, value.__defaults__, value.__kwdefaults__, cells, list(_used_values(value))
    if isinstance(value, types.CellType):
        # An empty cell belongs to a variable that is not set yet.
        return [value.cell_contents] if value != types.CellType() else ()
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_consts, value.co_names, value.co_varnames
    if isinstance(value, type):
        return value.__bases__, [item for item in sorted(vars(value).items()) if item[0] not in _IGNORED_ATTRIBUTES]
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (frozenset, set)):
        return sorted(value, key=repr)
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, property):
        return value.fget, value.fset
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else _reduced_parts(value)


def _used_values(fn: types.FunctionType) -> Iterator[Any]:
    """Yield the globals that a function uses, and the used attributes of modules of the user."""
    names = dict.fromkeys(_used_names(fn.__code__))
    for name in names:
        if name in fn.__globals__:
            yield (value := fn.__globals__[name])
            if isinstance(value, types.ModuleType) and not _is_installed(value):
                yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))


def _used_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code uses, including the names in nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _used_names(constant)


def _is_installed(value: Any) -> bool:
    """Return whether a module, a class or a function is installed code, which the name identifies."""
    if not isinstance(value, (types.ModuleType, type, types.FunctionType)):
        return False
    name = str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)
    if name in sys.builtin_module_names or name.partition(".")[0] in {"datasets_rl", *sys.stdlib_module_names}:
        return name != "__main__"
    path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _reduced_parts(value: Any) -> Iterable[Any]:
    """Return the parts by which pickle copies an object.

    Of an object without such parts, a lock or a file, return the type.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = reduce(value) if reduce else value.__reduce_ex__(2)
    except (TypeError, pickle.PicklingError):
        return [type(value)]
    parts = (reduced,) if isinstance(reduced, str) else reduced
    return [type(value), *(list(part) if isinstance(part, Iterator) else part for part in parts)]
