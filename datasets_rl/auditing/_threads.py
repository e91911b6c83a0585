"""The threads of the matrix library of numpy, OpenBLAS, during an audit.

OpenBLAS computes a product on all cores. Its threads wait for each other in a loop, which takes the time of the cores from the threads of
the audit, and most where other programs use the cores, too. An audit uses all cores itself, and needs one thread for each product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
"""Names of the functions in the packages of numpy, and of systems."""


class _Threads(NamedTuple):
    get: Callable[[], int]
    set: Callable[[int], object]


@cache
def _threads() -> _Threads | None:
    """Return the functions of the library with which numpy is linked, or None if it is another library, or cannot be asked."""
    try:
        # A symbol of the module is looked up in the libraries of the module, too.
        library = ctypes.CDLL(import_module("numpy.linalg._umath_linalg").__file__)
    except (ImportError, OSError, TypeError):
        return None
    for name in _NAMES:
        found: list[Any] = [getattr(library, name.format(verb), None) for verb in ("get", "set")]
        if None not in found:
            return _Threads(*found)
    return None


_lock = Lock()
_before: list[int] = []
"""The number of threads before the first of the audits that run now, once for each audit."""


@contextmanager
def one_matrix_thread() -> Iterator[None]:
    """Let products of matrices use one thread in this process. With a library other than OpenBLAS, nothing is changed."""
    threads = _threads()
    if threads is None:
        yield
        return
    with _lock:
        _before.append(_before[0] if _before else int(threads.get()))
        threads.set(1)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                threads.set(before)
