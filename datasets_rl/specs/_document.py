"""JSON documents of specs: reading of untrusted JSON that collects every problem with its location."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._numbers import without_repeats

_INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64")
}
"""Dtypes by name, without uint16 to uint64, for which torch does not implement comparisons."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DEPTH = 64
"""Maximum nesting depth of composites: a document may be nested deeper than Python's recursion limit."""
KINDS: dict[str, Any] = {}
"""Spec classes by `kind`, the identifier in a document. Each class registers itself."""
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in documents."""
    if dtype not in _NAMES:
        raise InvalidArgumentError(f"dtype is {dtype}, expected one of {', '.join(_DTYPES)}")
    return _NAMES[dtype]


def compact_values(tensor: Tensor) -> Any:
    """Convert a tensor to nested lists for JSON, or to a single number if all elements are equal.

    An axis along which the elements are constant is reduced to size 1: bounds for the channels of an image take a number
    for each channel.
    """
    tensor = without_repeats(tensor)
    for axis, size in enumerate(tensor.shape):
        first = tensor.narrow(axis, 0, 1) if size else tensor
        if size > 1 and bool((tensor == first).all()):
            tensor = first
    return _infinities_as_text(tensor.item() if tensor.numel() == 1 else tensor.tolist())


def _infinities_as_text(value: Any) -> Any:
    # JSON has no infinity: write the string "inf" or "-inf" instead.
    if isinstance(value, list):
        return [_infinities_as_text(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def is_int64(value: Any) -> bool:
    """Return whether a JSON value is an integer that fits in an int64."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


class SpecDocument:
    """JSON object of a document, which validates fields during reading, and collects the problems.

    Args:
        document: Parsed JSON of any type. Any value but an object is a problem.
        place: Path of the object in the document, for messages.
        problems: List to which problems are appended.
        depth: Number of enclosing objects.
    """

    def __init__(self, document: Any, place: str, problems: list[str], depth: int = 0) -> None:
        self.place = place
        self.problems = problems
        self._depth = depth
        self._fields: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self._read: set[str] = set()
        self._count = len(problems)
        if not isinstance(document, dict):
            self.report("", document, "an object")

    @property
    def valid(self) -> bool:
        """Whether no problem has been reported since the object was created."""
        return len(self.problems) == self._count

    def report(self, name: str, value: Any, expected: str) -> None:
        """Append a problem: the invalid value of a field, and the expectation."""
        place = f"{self.place}.{name}" if name else self.place
        self.problems.append(f"{place} is {reprlib.repr(value)}, expected {expected}")

    def has(self, name: str) -> bool:
        """Return whether the object has a field."""
        return name in self._fields

    def field(self, name: str, valid: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        """Return the value of a field, or the default for a missing field and for an invalid value, which is reported."""
        self._read.add(name)
        value = self._fields.get(name, default)
        if not valid(value):
            self.report(name, value, expected)
            return default
        return value

    def integer(self, name: str, minimum: int, default: Any = None) -> int:
        """Return an integer field that is at least `minimum`."""
        expected = f"an integer >= {minimum}"
        value: int | None = self.field(name, lambda value: is_int64(value) and value >= minimum, expected, default)
        return minimum if value is None else value

    def integers(self, name: str, minimum: int) -> list[int]:
        """Return a field that is a list of integers, each at least `minimum`."""

        def valid(value: Any) -> bool:
            return isinstance(value, list) and all(is_int64(item) and item >= minimum for item in value)

        return self.field(name, valid, f"a list of integers >= {minimum}") or []

    def shape(self) -> list[int]:
        """Return the field `shape`."""
        shape = self.integers("shape", -1)
        if math.prod(abs(size) or 1 for size in shape) >= 1 << 62:
            self.report("shape", shape, "a shape of fewer than 2**62 elements")
            return []
        return shape

    def dtype(self) -> torch.dtype:
        """Return the dtype that the document names in its field `dtype`."""
        expected = f"one of {', '.join(_DTYPES)}"
        name = self.field("dtype", lambda value: isinstance(value, str) and value in _DTYPES, expected)
        return _DTYPES[name or "float32"]

    def domain(self) -> str | None:
        """Return the field `domain`, or `None` for the default domain of the dtype."""
        names = (None, "continuous", "discrete")
        domain: str | None = self.field("domain", lambda value: value in names, "continuous or discrete")
        return domain

    def tensor(self, name: str, dtype: torch.dtype, default: Any = None) -> Tensor | None:
        """Return a tensor from a field, the inverse of `compact_values`, or `None` if the field is invalid."""
        value = self.field(name, lambda value: value is not None, "numbers", default)
        try:
            return None if value is None else torch.tensor(_text_as_infinities(value, dtype), dtype=dtype)
        except (TypeError, ValueError, RuntimeError, RecursionError, OverflowError):
            self.report(name, value, f"numbers of {dtype}, in lists of the same length")
            return None

    def spec(self) -> Any:
        """Read the object as a spec, or return `None` if the object does not describe a spec."""
        if self._depth > _DEPTH:
            self.report("", "nested too deeply", f"at most {_DEPTH} nested objects")
            return None
        kind = self.field("kind", lambda value: isinstance(value, str) and value in KINDS, f"one of {', '.join(KINDS)}")
        if kind is None:
            return None
        try:
            spec = KINDS[kind].read(self)
        except InvalidArgumentError as error:
            self.problems.append(f"{self.place}: {error.message}")
            return None
        self.problems += [
            f"{self.place} has an unknown field {name!r}" for name in sorted(set(self._fields) - self._read)
        ]
        return spec

    def specs(self, name: str) -> list[Any]:
        """Return a field that is a list of specs."""
        items = self.field(name, lambda value: isinstance(value, list) and bool(value), "a list of specs") or []
        return [self._inner(item, f"{name}[{number}]").spec() for number, item in enumerate(items)]

    def spec_map(self, name: str) -> dict[str, Any]:
        """Return a field that is an object of specs by key, where null becomes `None`."""
        items = self.field(name, lambda value: isinstance(value, dict), "an object of specs") or {}
        return {
            key: None if item is None else self._inner(item, f"{name}[{reprlib.repr(key)}]").spec()
            for key, item in items.items()
        }

    def _inner(self, document: Any, name: str) -> SpecDocument:
        return SpecDocument(document, f"{self.place}.{name}", self.problems, self._depth + 1)


def _text_as_infinities(value: Any, dtype: torch.dtype) -> Any:
    """Convert "inf" and "-inf" to floats: the inverse of `_infinities_as_text`."""
    if isinstance(value, list):
        return [_text_as_infinities(item, dtype) for item in value]
    if isinstance(value, str) and dtype.is_floating_point:
        if value not in _INFINITE:
            raise ValueError(value)
        return _INFINITE[value]
    if isinstance(value, bool) != (dtype == torch.bool) or not isinstance(value, (int, float)):
        raise TypeError(value)
    if not dtype.is_floating_point and not isinstance(value, int):
        raise TypeError(value)
    return value
