"""Checks of the arguments of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets_rl.arguments import size_problems
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy

Transform = Callable[[Any], Any]
MAX_BATCH = 2**31 - 1
"""Greatest number of steps in a batch. The indices alone of a larger batch take more than 16 GiB."""


def batch_size_problems(batch_size: Any) -> list[str]:
    """Return why a value is not a number of steps in a batch. None is allowed."""
    problems = size_problems(batch_size=batch_size, optional=True)
    if not problems and batch_size is not None and batch_size > MAX_BATCH:
        problems.append(f"batch_size is {batch_size:,}, expected at most {MAX_BATCH:,} steps")
    return problems


def check_batch_size(batch_size: Any) -> None:
    """Check the size of a batch to draw.

    Raises:
        InvalidArgumentError: If the value is None, or not an integer from 1 to `MAX_BATCH`.
    """
    if batch_size is None:
        raise InvalidArgumentError("no batch size", hint="pass batch_size to the constructor, or to sample()")
    if problems := batch_size_problems(batch_size):
        is_too_large = not size_problems(batch_size=batch_size, optional=True)
        smaller = Remedy("take a smaller {}", Argument("batch_size")) if is_too_large else ""
        raise InvalidArgumentError(problems[0], hint=smaller)
