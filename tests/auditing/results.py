"""Results of long measurements, kept in a file by case: a program that was stopped goes on, and has the results of one run.

A result counts only for the code that measured the result: the rules of the audit, the recordings and the faults.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import datasets_rl.auditing

T = TypeVar("T")
_RULES = Path(datasets_rl.auditing.__file__).parent
_RECORDINGS = ("clean.py", "environments.py", "worlds.py", "recorded.py", "planting.py", "faults_*.py")


@functools.cache
def code() -> str:
    """Return the digest of the code that decides about results."""
    files = [path for path in sorted(_RULES.rglob("*.py")) if path.name != "benefits.py"]
    files += [path for pattern in _RECORDINGS for path in sorted(Path(__file__).parent.glob(pattern))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Results:
    """Results by the name of the case, as JSON values."""

    def __init__(self, path: Path | None) -> None:
        """Read the results of a file. Without a file, nothing is kept."""
        self.path = path
        kept = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
        self.cases = kept["cases"] if kept.get("code") == code() else {}

    def of(self, case: str, measure: Callable[[], T]) -> T:
        """Return the result of a case, which is measured unless it is kept."""
        if case not in self.cases:
            self.cases[case] = measure()
            if self.path:
                partial = self.path.with_suffix(".partial")
                partial.write_text(json.dumps({"code": code(), "cases": self.cases}), "utf-8")
                partial.replace(self.path)
        result: T = self.cases[case]
        return result
