"""The checks of an audit: a file for each, with a class of the name of the file in CamelCase."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets_rl.auditing.base import Check

CHECKS: tuple[str, ...] = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
)
"""Names of the checks."""


@cache
def check_class(name: str) -> type[Check]:
    """Return the class of a check.

    Raises:
        KeyError: If there is no such check.
    """
    if name not in CHECKS:
        raise KeyError(name)
    found: type[Check] = getattr(import_module(f"{__name__}.{name}"), name.title().replace("_", ""))
    return found
