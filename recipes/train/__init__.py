"""Training programs, a file each, to read from top to bottom, to copy and to change. `README.md` has results."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets_rl import training

__all__ = ["program_files", "read_arguments", "summary"]


def program_files() -> dict[str, Path]:
    """Return the file of each training program by its name, sorted."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}


def summary(path: Path) -> str:
    """Return the first sentence of a program, without an import: torch takes seconds."""
    return (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].replace("\n", " ")
    )


def read_arguments(path: Path, argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a program, checked before the program is imported: torch takes seconds.

    Of the file, only its names and ``parse_arguments`` are run, which uses these names and `datasets_rl.training`.

    Raises:
        SystemExit: If an argument is wrong, or the help was printed.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        one
        for one in tree.body
        if isinstance(one, ast.Assign) or (isinstance(one, ast.FunctionDef) and one.name == "parse_arguments")
    ]
    names: dict[str, Any] = {"__doc__": summary(path), "training": training}
    exec(compile(tree, path, "exec"), names)  # noqa: S102 -- a file of this package
    checked: argparse.Namespace = names["parse_arguments"](argv)
    return checked
