"""The export formats by name."""

from __future__ import annotations

import difflib
from importlib import import_module

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.exporting.base import ExportFormat

FORMATS: tuple[str, ...] = ("d3rlpy", "d4rl", "hdf5", "lerobot", "minari", "npz", "parquet", "rlds", "torchrl")
"""The names of the formats. Each is a module of this package with a subclass of `ExportFormat`."""


def get_format(name: str) -> ExportFormat:
    """Return the format with a name.

    Raises:
        InvalidArgumentError: If no format has this name.
    """
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        raise InvalidArgumentError(
            f"the format is {name!r}, expected one of {', '.join(FORMATS)}",
            hint=f"did you mean {near[0]}?" if near else "",
        )
    module = import_module(f"datasets_rl.exporting.{name}")
    found: type[ExportFormat] = next(
        value
        for value in vars(module).values()
        # The module first: to Python 3.10, list[int] is a type, of which issubclass raises.
        if isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, ExportFormat)
    )
    return found()
