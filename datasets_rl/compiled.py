"""Loops that numba compiles, once for each machine: import a module that has some only when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled"]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(signature: Any) -> Callable[[Function], Function]:
    """Compile a function for arguments of these types, at once, and keep the result on the disk.

    The function releases the GIL while it runs.

    Args:
        signature: In numba's words, as text or as one of its types.
    """

    def compile_now(function: Function) -> Function:
        try:
            made = numba.njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError):  # nothing can be written beside the module or in the user's cache; no space
            made = numba.njit(signature, nogil=True)(function)
        return cast("Function", made)

    return compile_now
