"""TOML files of users: recipes, mixtures, descriptions and locks of datasets."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DEPTH = 32
"""Maximum nesting of tables and arrays. Deeper documents could exhaust the stack of recursive functions."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: If the text is not valid TOML, or tables and arrays are nested deeper than `MAX_DEPTH`.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        document = None
    if document is None or _is_deeper(document, MAX_DEPTH):
        raise ValueError(f"the tables and arrays are nested more than {MAX_DEPTH} deep")
    return document


def toml_value(value: Any) -> str:
    """Return a text, a number, a Boolean, a list or a mapping as TOML."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {toml_value(item)}' for name, item in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    # JSON escapes every character of a text that TOML forbids but this one.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_deeper(document: dict[str, Any], depth: int) -> bool:
    level: list[Any] = [document]
    for _ in range(depth):
        level = [child for child in chain.from_iterable(map(_children, level)) if isinstance(child, (dict, list))]
    return bool(level)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
