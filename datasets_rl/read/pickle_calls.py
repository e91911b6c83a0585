"""Functions that a pickle of plain data may name: numpy's arrays, numbers and dtypes, and a few containers.

Each function is reimplemented here and validates the arguments. numpy's own functions are not called.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPE = re.compile("[biufc][0-9]{1,2}|[SU][1-9][0-9]{0,8}|O8?")
_NUMPY_CORES = ("numpy.core", "numpy._core")


class DamagedPickleError(Exception):
    """Raised if a pickle cannot be read. The argument is the reason."""


class AllowedGlobal:
    """Global that the pickle names. `call` is None if the global is not allowed."""

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self.call = call


class UnbuiltObject:
    """Array or dtype without content yet, which follows in a BUILD instruction."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.places: list[int] = []
        """Numbers of the entries in the memo."""


def called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function that a pickle names, if the function takes that number of arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise DamagedPickleError(f"a call has {len(arguments)} arguments: {error}") from error
    return function(*arguments)


def checked_keys(values: Sequence[Any]) -> Sequence[Any]:
    """Check that keys are plain values or flat tuples of plain values, because hashing nested keys may exhaust the stack."""
    for value in values:
        for part in value if type(value) is tuple else (value,):
            if not isinstance(part, str | bytes | int | float | complex | np.generic | None):
                raise DamagedPickleError(
                    f"a {type(part).__name__} is a key, expected text, a number, or a flat tuple of them"
                )
    return values


def _is_word(value: Any, words: set[str]) -> bool:
    return isinstance(value, str) and value in words


def _numpy_dtype(code: Any, align: Any = False, copy: Any = False) -> UnbuiltObject:  # noqa: ARG001  # as numpy calls it
    if not isinstance(code, str) or not _TYPE.fullmatch(code):
        raise DamagedPickleError(f"the numpy dtype {code!r:.80} is not allowed, expected numbers, text or objects")
    dtype = np.dtype(code)

    def build(state: Any) -> np.dtype[Any]:
        if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
            raise DamagedPickleError(f"a structured numpy dtype is not allowed: {state!r:.80}")
        order = state[1]
        if not _is_word(order, {"<", ">", "|", "="}):
            raise DamagedPickleError(f"a numpy dtype has the byte order {order!r:.20}, expected <, >, | or =")
        return dtype if order == "|" else dtype.newbyteorder(order)

    return UnbuiltObject(build)


def _numpy_reconstruct(kind: Any, shape: Any, code: Any) -> UnbuiltObject:  # noqa: ARG001  # the content comes with BUILD
    if not isinstance(kind, AllowedGlobal) or kind.call is not _NDARRAY:
        raise DamagedPickleError("an array is of a custom class, expected numpy.ndarray")

    def build(state: Any) -> NDArray[Any]:
        if not isinstance(state, tuple) or len(state) != 5:
            raise DamagedPickleError("an array has no content")
        _, shape, dtype, fortran, content = state
        return _array_from_bytes(content, dtype, shape, "F" if fortran is True else "C")

    return UnbuiltObject(build)


def _ndarray_placeholder(*_: Any) -> None:
    raise DamagedPickleError("numpy.ndarray is called, expected arrays as numpy writes arrays")


_NDARRAY = _ndarray_placeholder


def _array_from_bytes(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple):
        raise DamagedPickleError("an array has no dtype or no shape")
    if not _is_word(order, {"C", "F", "A"}):
        raise DamagedPickleError(f"an array has the order {order!r:.20}, expected C, F or A")
    if len(shape) > 32 or not all(type(size) is int and size >= 0 for size in shape):
        raise DamagedPickleError(f"an array has the shape {shape!r:.80}, expected at most 32 integers >= 0")
    count = math.prod(shape)
    if dtype.hasobject:
        if not isinstance(content, list) or len(content) != count:
            raise DamagedPickleError(
                f"an array declares {count:,} objects, but the content is not a list of that length"
            )
        objects: NDArray[Any] = np.empty(count, object)
        for number, value in enumerate(content):
            objects[number] = value
        return objects.reshape(shape, order=order)
    if isinstance(content, str):
        content = content.encode("latin-1")  # strings of Python 2
    if not isinstance(content, bytes | bytearray) or len(content) != count * dtype.itemsize:
        size = len(content) if isinstance(content, bytes | bytearray) else 0
        raise DamagedPickleError(f"an array declares {count * dtype.itemsize:,} bytes, but has {size:,}")
    _check_booleans(content, dtype)
    array: NDArray[Any] = np.frombuffer(content, dtype) if len(content) else np.empty(count, dtype)
    return array.reshape(shape, order=order)


def _check_booleans(content: bytes | bytearray, dtype: np.dtype[Any]) -> None:
    if dtype.kind == "b" and len(content) and np.frombuffer(content, np.uint8).max() > 1:
        raise DamagedPickleError("a boolean is neither 0 nor 1")


def _numpy_scalar(dtype: Any, content: Any = None) -> Any:
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        return content
    return _array_from_bytes(content, dtype, (), "C")[()]


def _encode(text: Any, encoding: Any = "latin-1") -> bytes:
    """Encode text as bytes: Python 3 writes bytes in this form in protocols 0 to 2, which have no bytes."""
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding not in {"latin-1", "latin1"}:
        raise DamagedPickleError(f"text is encoded as {encoding!r:.20}, expected latin1")
    return text.encode("latin-1")


def _bytes_from_text(content: Any = b"", encoding: Any = "latin-1") -> bytes:
    if isinstance(content, str):
        return _encode(content, encoding)
    for value in content if isinstance(content, list | tuple) else ():
        _check_type(value, int)
    return bytes(_check_type(content, bytes, bytearray, list, tuple))


def _bytearray_from_text(content: Any = b"", encoding: Any = "latin-1") -> bytearray:
    return bytearray(_bytes_from_text(content, encoding))


def _set_from_list(values: Any = ()) -> set[Any]:
    return set(checked_keys(_check_type(values, list, tuple)))


def _frozenset_from_list(values: Any = ()) -> frozenset[Any]:
    return frozenset(checked_keys(_check_type(values, list, tuple)))


def _complex_from_parts(real: Any, imaginary: Any) -> complex:
    return complex(_check_type(real, float, int), _check_type(imaginary, float, int))


def _ordered_dict_from_items(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = [_check_type(item, list, tuple) for item in _check_type(items, list, tuple)]
    return OrderedDict(zip(checked_keys([key for key, _ in pairs]), (value for _, value in pairs), strict=True))


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    """Return an empty dict without a factory, whose items follow."""
    if factory is not None and not (isinstance(factory, AllowedGlobal) and factory.call in {_as_list, _factory}):
        raise DamagedPickleError("a defaultdict has a factory other than list, dict, int or float")
    return {}


def _as_list(values: Any = ()) -> list[Any]:
    return list(_check_type(values, list, tuple))


def _factory(*_: Any) -> None:
    raise DamagedPickleError("a type is called, expected a type only as the factory of a defaultdict")


def _deque_from_list(values: Any = (), maxlen: Any = None) -> deque[Any]:
    return deque(_check_type(values, list, tuple), None if maxlen is None else _check_type(maxlen, int))


def _check_type(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise DamagedPickleError(f"a call has an argument of type {type(value).__name__}, expected {expected}")
    return value


_BUILTINS: dict[str, Callable[..., Any]] = {
    "bytes": _bytes_from_text,
    "bytearray": _bytearray_from_text,
    "set": _set_from_list,
    "frozenset": _frozenset_from_list,
    "complex": _complex_from_parts,
    "list": _as_list,
    **dict.fromkeys(("dict", "int", "float"), _factory),
}
ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _numpy_dtype,
    **{(f"{core}.multiarray", "_reconstruct"): _numpy_reconstruct for core in _NUMPY_CORES},
    **{(f"{core}.multiarray", "scalar"): _numpy_scalar for core in _NUMPY_CORES},
    **{(f"{core}.numeric", "_frombuffer"): _array_from_bytes for core in _NUMPY_CORES},
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered_dict_from_items,
    ("collections", "deque"): _deque_from_list,
    ("collections", "defaultdict"): _default_dict,
    **{(module, name): call for module in ("builtins", "__builtin__") for name, call in _BUILTINS.items()},
}
