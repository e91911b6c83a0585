"""Training programs, one file each: read them from top to bottom, copy them, change them. `README.md` has their results."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["program_files", "summary"]


def program_files() -> dict[str, Path]:
    """Return the file of each training program by its name, sorted."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}


def summary(path: Path) -> str:
    """Return the first sentence of a program, without importing it: torch takes seconds."""
    return (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].replace("\n", " ")
    )
