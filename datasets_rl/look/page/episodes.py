"""Sorted and filtered views of an episode table, by pages."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"\s*(?P<name>[^\s<>=!]+)\s*(?P<operator><=|>=|!=|==|<|>|=)\s*(?P<number>\S+)\s*")
_AND = re.compile(r"\s*,\s*|\s+and\s+")
_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def conditions(text: str) -> list[tuple[str, str, float]]:
    """Return the conditions of a filter: ``return > 100 and length < 50`` has two.

    Raises:
        InvalidArgumentError: If a condition is not a column, a comparison and a number.
    """
    # A search in long runs of spaces would take quadratic time.
    return [_condition(part) for part in _AND.split(" ".join(text.split())) if part]


def _condition(text: str) -> tuple[str, str, float]:
    match = _CONDITION.fullmatch(text)
    number = None if match is None else _number(match["number"])
    if match is None or number is None:
        raise InvalidArgumentError(f"{text!r} is not a condition, such as return > 100, or length = 200")
    return match["name"], match["operator"], number


def _number(text: str) -> float | None:
    try:
        return _WORDS.get(text.lower()) if text.lower() in _WORDS else float(text.replace("\u2212", "-"))
    except ValueError:
        return None


def order(columns: Mapping[str, NDArray[Any]], sort: str, where: str, *, descending: bool) -> NDArray[np.int64]:
    """Return the numbers of the episodes that fulfill a filter, sorted by a column, [M].

    Episodes with the same value are sorted by number. NaN comes last.

    Args:
        columns: Columns of the table by name, [E] each.
        sort: The name of a column.
        where: The filter, as `conditions` documents. All episodes fulfill an empty filter.
        descending: Whether the greatest value comes first.

    Raises:
        UnknownKeyError: If there is no such column.
        InvalidArgumentError: If the filter cannot be read.
    """
    tests = conditions(where)
    for name in (sort, *(name for name, _, _ in tests)):
        if name not in columns:
            raise UnknownKeyError(name, [*columns])
    keys = columns[sort]
    kept: NDArray[np.int64] = np.arange(len(keys))
    for name, comparison, number in tests:
        kept = kept[_OPERATORS[comparison](columns[name][kept], number)]
    values = keys[kept]
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    if descending:
        values = ~values if values.dtype.kind in "iu" else -values
    return kept[np.argsort(values, kind="stable")]
