"""Checks of arguments: each function returns the problems, and `check` raises a single error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError


def check(*problems: Iterable[str], hint: str = "") -> None:
    """Raise an error if there are problems.

    Args:
        problems: Lists of problems, which the message joins.
        hint: What to do next.

    Raises:
        InvalidArgumentError: If a list is not empty.
    """
    if found := [problem for each in problems for problem in each]:
        raise InvalidArgumentError("; ".join(found), hint=hint)


def size_problems(least: int = 1, *, optional: bool = False, **sizes: Any) -> list[str]:
    """Return which sizes are not integers >= `least`. None is valid only if sizes are optional."""
    return [
        f"{name} is {size!r}, expected an integer >= {least}"
        for name, size in sizes.items()
        if not (optional and size is None)
        and (not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < least)
    ]


def is_number(value: Any) -> bool:
    """Return whether a value is a number of Python or NumPy."""
    return isinstance(value, (int, float, np.number))


def share_problems(**shares: Any) -> list[str]:
    """Return which numbers are outside of [0, 1]; tensors are not read."""
    return [
        f"{name} is {share}, expected a number in [0, 1]"
        for name, share in shares.items()
        if is_number(share) and not 0 <= share <= 1
    ]


def axis_problems(*, allow_positive: bool = False, **axes: Any) -> list[str]:
    """Return which axes are not integers, or not counted from the last axis."""
    expected = "an axis" if allow_positive else "a negative axis, which is independent of the batch size"
    return [
        f"{name} is {axis!r}, expected {expected}"
        for name, axis in axes.items()
        if not isinstance(axis, (int, np.integer)) or (axis >= 0 and not allow_positive)
    ]


def choice_problems(*choices: Any, **arguments: Any) -> list[str]:
    """Return which arguments are not among some choices."""
    *others, last = map(repr, choices)
    return [
        f"{name} is {value!r}, expected {', '.join(others)} or {last}"
        for name, value in arguments.items()
        if value not in choices
    ]


def unless(valid: bool, problem: str) -> list[str]:
    """Return a problem unless something is valid."""
    return [] if valid else [problem]
