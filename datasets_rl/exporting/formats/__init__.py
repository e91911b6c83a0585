"""The formats of other projects, a file each. A new file needs no entry in a list.

Importing this package imports no format, so that the help of a command can name them.
"""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from datasets_rl.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datasets_rl.exporting.base import ExportFormat

__all__ = ["FORMATS", "get_format"]

FORMATS: tuple[str, ...] = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""The names of the formats: the modules of this folder, each with one subclass of `ExportFormat`."""


def get_format(to: str | ExportFormat) -> ExportFormat:
    """Return the format with a name. A format of another package is returned unchanged.

    Raises:
        InvalidArgumentError: If no format has this name.
    """
    from datasets_rl.exporting.base import ExportFormat

    if isinstance(to, ExportFormat):
        return to
    if to not in FORMATS:
        near = difflib.get_close_matches(str(to), FORMATS, n=1)
        raise InvalidArgumentError(
            f"the format is {to!r}, expected one of {', '.join(FORMATS)}",
            hint=f"did you mean {near[0]}?" if near else "",
        )
    module = import_module(f"{__name__}.{to}")
    found: type[ExportFormat] = next(
        value
        for value in vars(module).values()
        # The module first: to Python 3.10, list[int] is a type, of which issubclass raises.
        if isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, ExportFormat)
    )
    return found()
