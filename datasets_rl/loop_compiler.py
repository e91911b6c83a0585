"""Compilation of loops by numba, once for each machine; modules that use it are imported only when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_for(signature: Any) -> Callable[[Function], Function]:
    """Compile a function for one signature, immediately, and cache the machine code on the disk.

    The compiled function releases the GIL while it runs.

    Args:
        signature: The signature in the syntax of numba, as a string or as one of its types.
    """

    def compile_now(function: Function) -> Function:
        try:
            dispatcher = numba.njit(signature, nogil=True, cache=True)(function)
        except (
            RuntimeError,
            OSError,
        ):  # neither the folder of the module nor the user's cache is writable, or disk full
            dispatcher = numba.njit(signature, nogil=True)(function)
        return cast("Function", dispatcher)

    return compile_now
