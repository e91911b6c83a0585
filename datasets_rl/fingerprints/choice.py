"""Which form of the loops runs: in numpy while a process has few data, then compiled, because to load a compiler takes a second."""

from __future__ import annotations

import sys
from types import ModuleType

_LIMIT = 500_000_000
"""The nanoseconds that the loops in numpy may take in a process, roughly."""
_COMPILED = "datasets_rl.fingerprints.loops"


class _Spent:
    """The nanoseconds that the loops in numpy took, roughly."""

    total = 0


def row_loops(nanoseconds: int) -> ModuleType:
    """Return the module with the loops over rows, given what a call in numpy takes, roughly."""
    if _is_compiled(nanoseconds):
        from datasets_rl.fingerprints import loops

        return loops
    from datasets_rl.fingerprints import vectors

    return vectors


def window_loops(nanoseconds: int) -> ModuleType:
    """Return the module with the loop over windows, given what a call in numpy takes, roughly."""
    if _is_compiled(nanoseconds):
        from datasets_rl.fingerprints import sketch_loops

        return sketch_loops
    from datasets_rl.fingerprints import vectors

    return vectors


def _is_compiled(nanoseconds: int) -> bool:
    if _COMPILED in sys.modules:
        return True
    _Spent.total += nanoseconds
    return _Spent.total > _LIMIT
