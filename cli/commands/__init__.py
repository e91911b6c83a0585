"""A command a file: ``run(shell, ...)`` takes options and returns a `Result`. The folder is the list of commands.

The docstring of ``run`` is the help of the command, and ``GROUP`` of the module is the heading above the command in
``rlds --help``. A command with subcommands is a folder. If the folder has a ``run``, ``run`` is called without a subcommand.
``rlds --help`` imports all modules, so slow packages (torch, h5py, httpx, pandas) are imported inside the functions that
need such packages.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

__all__ = ["GROUPS", "command_names", "subcommand_names"]

GROUPS = ("Choose", "Get", "Look", "Prepare", "Train", "Share", "Maintain")
"""The headings of the commands, in the order of a dataset's life."""


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def subcommand_names(command: str) -> tuple[str, ...]:
    """Return the sorted names of the subcommands of a command. Empty if the command is not a folder."""
    folders = [str(Path(path, command)) for path in __path__]
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))
