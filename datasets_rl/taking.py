"""Functions that take the arguments of which another callable makes one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")


def taking(make: Callable[P, A]) -> Callable[[Callable[[S, A], R]], Callable[Concatenate[S, P], R]]:
    """Turn a function's second argument, a value, into the arguments that make it, with their names, types and defaults.

    @taking(Options)                                # dataset.run(1, batched=True) calls run(dataset, Options(...))
    def run(self, options: Options) -> Path: ...
    """

    def decorate(method: Callable[[S, A], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def taken(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, make(*args, **kwargs))

        own = inspect.signature(method)
        first = next(iter(own.parameters.values())).replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *inspect.signature(make).parameters.values()]
        taken.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions have no such attribute for mypy
        return taken

    return decorate
