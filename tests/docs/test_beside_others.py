"""The README's comparison has a check for each row, and each named test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "beside-others.md").read_text(encoding="utf-8")
OURS, _, OTHERS = PAGE.partition("\n## The other columns\n")


def first_cells(text):
    """Return the first cells of the rows below the head of a table."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][2:]


def test_each_row_of_the_comparison_has_a_check():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Beside other projects\n")[2].partition("\n## ")[0]
    rows = first_cells(section)

    assert first_cells(OURS) == rows
    assert first_cells(OTHERS) == rows


def test_each_named_test_exists():
    nodes = re.findall(r"`(tests/[^`:]+)::(\w+)`", PAGE)
    assert nodes
    for file, name in nodes:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
