"""What a function of the user's does, as a short text, so that its results are found again, and only its own."""

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

__all__ = ["digest"]

_DIGEST = 16
_NOT_DONE = {
    "__annotations__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}
"""What a class has that does not change what it does."""


def digest(fn: Any) -> str:
    """Return what a function or a class does, as a short text: the same in every process.

    It is another one when anything of the user's own that it refers to is edited.
    """
    hashed = hashlib.sha256()
    for piece in _pieces(fn, {}):
        hashed.update(piece)
        hashed.update(b"|")
    return hashed.hexdigest()[:_DIGEST]


def _pieces(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the bytes of all that a value refers to; what is met again is a number, so that rings end."""
    parts = _parts(value)
    if parts is None:
        yield value if isinstance(value, bytes) else repr(value).encode()
        return
    # Whether equal constants are one object differs between a file that was just compiled and one that was stored.
    if not isinstance(value, (tuple, types.CodeType)):
        if id(value) in seen:
            yield str(seen[id(value)][0]).encode()
            return
        seen[id(value)] = (len(seen), value)
    for part in parts:
        yield from _pieces(part, seen)


def _parts(value: Any) -> Iterable[Any] | None:  # noqa: C901, PLR0911 -- a kind of value after the other
    if isinstance(value, (str, bytes, int, float, complex, type(None), type(...))):
        return None
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) or _installed(value):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if isinstance(value, types.FunctionType):
        cells = list(value.__closure__ or ())
        return value.__code__, value.__defaults__, value.__kwdefaults__, cells, list(_used(value))
    if isinstance(value, types.CellType):
        # One without contents stands for a variable that is not set yet.
        return [value.cell_contents] if value != types.CellType() else ()
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_consts, value.co_names, value.co_varnames
    if isinstance(value, type):
        return value.__bases__, [one for one in sorted(vars(value).items()) if one[0] not in _NOT_DONE]
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (frozenset, set)):
        return sorted(value, key=repr)
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, property):
        return value.fget, value.fset
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else _reduced(value)


def _used(fn: types.FunctionType) -> Iterator[Any]:
    """Yield the globals that a function uses, and of the user's own modules what is used of them."""
    names = dict.fromkeys(_names(fn.__code__))
    for name in names:
        if name in fn.__globals__:
            yield (found := fn.__globals__[name])
            if isinstance(found, types.ModuleType) and not _installed(found):
                yield from (vars(found)[one] for one in names if one in vars(found))


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code uses, and the functions in it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)


def _installed(value: Any) -> bool:
    """Say whether a module, a class or a function is not the user's: its name then says what it does."""
    if not isinstance(value, (types.ModuleType, type, types.FunctionType)):
        return False
    name = str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)
    if name in sys.builtin_module_names or name.partition(".")[0] in {"datasets_rl", *sys.stdlib_module_names}:
        return name != "__main__"
    path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _reduced(value: Any) -> Iterable[Any]:
    """Return what a copy would be made of; of what cannot be copied, a lock or a file, its type must do."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        found = reduce(value) if reduce else value.__reduce_ex__(2)
    except (TypeError, pickle.PicklingError):
        return [type(value)]
    several = (found,) if isinstance(found, str) else found
    return [type(value), *(list(one) if isinstance(one, Iterator) else one for one in several)]
