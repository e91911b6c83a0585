"""Specs as documents: reads JSON that is not trusted, and collects every fault with its place."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._numbers import once

if TYPE_CHECKING:
    from datasets_rl.specs.base import TensorSpec

__all__ = ["KINDS", "Entry", "compact", "dtype_name", "is_whole"]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
"""Torch cannot compare wider unsigned integers."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DEPTH = 64
"""Composites in composites; a document can nest deeper than Python can follow."""
KINDS: dict[str, type[TensorSpec]] = {}
"""Every kind of spec by its name in a document; a kind adds itself."""
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in documents.

    Raises:
        InvalidArgumentError: If specs cannot have it.
    """
    if dtype not in _NAMES:
        raise InvalidArgumentError(f"dtype is {dtype}; expected one of {', '.join(_DTYPES)}")
    return _NAMES[dtype]


def compact(tensor: Tensor) -> Any:
    """Write a tensor as nested lists, or as one number if all are the same.

    An axis along which nothing changes has one entry, so that a bound for each channel of an image is a few numbers.
    """
    tensor = once(tensor)
    for axis, size in enumerate(tensor.shape):
        first = tensor.narrow(axis, 0, 1) if size else tensor
        if size > 1 and bool((tensor == first).all()):
            tensor = first
    return _named(tensor.item() if tensor.numel() == 1 else tensor.tolist())


def _named(value: Any) -> Any:
    # JSON has no infinities.
    if isinstance(value, list):
        return [_named(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def is_whole(value: Any) -> bool:
    """Return whether a JSON value is a whole number that fits an int64."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


class Entry:
    """An object of a document: gives its fields, and notes what is wrong with them.

    Args:
        document: Whatever stands there.
        place: Where, for the faults.
        faults: Where they are noted.
        depth: Of how many objects it is inside.
    """

    def __init__(self, document: Any, place: str, faults: list[str], depth: int = 0) -> None:
        self.place = place
        self.faults = faults
        self._depth = depth
        self._fields: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self._read: set[str] = set()
        self._count = len(faults)
        if not isinstance(document, dict):
            self.fault("", document, "an object")

    @property
    def sound(self) -> bool:
        """Whether no fault was found here so far."""
        return len(self.faults) == self._count

    def fault(self, name: str, value: Any, wanted: str) -> None:
        """Note what stands where something else was wanted."""
        at = f"{self.place}.{name}" if name else self.place
        self.faults.append(f"{at} is {reprlib.repr(value)}; expected {wanted}")

    def has(self, name: str) -> bool:
        """Return whether a field is there."""
        return name in self._fields

    def field(self, name: str, right: Callable[[Any], bool], wanted: str, default: Any = None) -> Any:
        """Return a field, or the default where it is missing and there is a default."""
        self._read.add(name)
        value = self._fields.get(name, default)
        if not right(value):
            self.fault(name, value, wanted)
            return default
        return value

    def whole(self, name: str, least: int, default: Any = None) -> int:
        """Return a whole number."""
        wanted = f"a whole number from {least}"
        value: int | None = self.field(name, lambda value: is_whole(value) and value >= least, wanted, default)
        return least if value is None else value

    def wholes(self, name: str, least: int) -> list[int]:
        """Return a list of whole numbers."""

        def right(value: Any) -> bool:
            return isinstance(value, list) and all(is_whole(item) and item >= least for item in value)

        return self.field(name, right, f"a list of whole numbers from {least}") or []

    def shape(self) -> list[int]:
        """Return the shape."""
        shape = self.wholes("shape", 0)
        if math.prod(size or 1 for size in shape) >= 1 << 62:
            self.fault("shape", shape, "a shape that a tensor can have")
            return []
        return shape

    def dtype(self) -> torch.dtype:
        """Return the dtype."""
        return _DTYPES[
            self.field(
                "dtype", lambda value: isinstance(value, str) and value in _DTYPES, f"one of {', '.join(_DTYPES)}"
            )
            or "float32"
        ]

    def domain(self) -> str | None:
        """Return the domain; None where it is that of the dtype."""

        def right(value: Any) -> bool:
            return value is None or (isinstance(value, str) and value in {"continuous", "discrete"})

        found: str | None = self.field("domain", right, "continuous or discrete")
        return found

    def tensor(self, name: str, dtype: torch.dtype, default: Any = None) -> Tensor | None:
        """Return what `compact` wrote; None if it is no tensor."""
        value = self.field(name, lambda value: value is not None, "numbers", default)
        try:
            return None if value is None else torch.tensor(_numbers(value, dtype), dtype=dtype)
        except (TypeError, ValueError, RuntimeError, RecursionError, OverflowError):
            self.fault(name, value, f"numbers of {dtype}, in lists of the same length")
            return None

    def spec(self) -> TensorSpec | None:
        """Read the object as a spec; None if it is none."""
        if self._depth > _DEPTH:
            self.fault("", "deeper", f"at most {_DEPTH} objects inside each other")
            return None
        kind = self.field("kind", lambda value: isinstance(value, str) and value in KINDS, f"one of {', '.join(KINDS)}")
        if kind is None:
            return None
        try:
            spec = KINDS[kind].read(self)
        except InvalidArgumentError as error:
            self.faults.append(f"{self.place}: {error.message}")
            return None
        self.faults += [
            f"{self.place} has {name!r}, which means nothing" for name in sorted(set(self._fields) - self._read)
        ]
        return spec

    def specs(self, name: str) -> list[TensorSpec | None]:
        """Read a list of objects as specs."""
        items = self.field(name, lambda value: isinstance(value, list) and bool(value), "a list of specs") or []
        return [self._inner(item, f"{name}[{number}]").spec() for number, item in enumerate(items)]

    def spec_map(self, name: str) -> dict[str, TensorSpec | None]:
        """Read an object of specs; null stays None."""
        items = self.field(name, lambda value: isinstance(value, dict), "an object of specs") or {}
        return {
            key: None if item is None else self._inner(item, f"{name}[{reprlib.repr(key)}]").spec()
            for key, item in items.items()
        }

    def _inner(self, document: Any, name: str) -> Entry:
        return Entry(document, f"{self.place}.{name}", self.faults, self._depth + 1)


def _numbers(value: Any, dtype: torch.dtype) -> Any:
    """Undo `_named`.

    Raises:
        TypeError, ValueError: If it is no number of the dtype.
    """
    if isinstance(value, list):
        return [_numbers(item, dtype) for item in value]
    if isinstance(value, str) and dtype.is_floating_point:
        if value not in _INFINITE:
            raise ValueError(value)
        return _INFINITE[value]
    if isinstance(value, bool) != (dtype == torch.bool) or not isinstance(value, (int, float)):
        raise TypeError(value)
    if not dtype.is_floating_point and not isinstance(value, int):
        raise TypeError(value)
    return value
