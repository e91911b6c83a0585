"""The classes of the tests that inherit a contract, by name with their text: the suites look there for what they do not cover."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def contract_classes(*contracts):
    """Return the text of each class of a test module that names one of these contracts as a base, by its name."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text("utf-8")
        if any(name in text for name in contracts):
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and {getattr(base, "id", "") for base in node.bases} & {*contracts}:
                    found[node.name] = ast.get_source_segment(text, node)
    return found
