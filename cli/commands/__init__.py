"""A command a file: ``run(shell, ...)`` takes options and returns a `Result`. The folder is the list of commands.

The module's ``run`` has the command's help as its docstring, and its ``GROUP`` is the heading that ``rlds --help`` lists
it under. A command with subcommands is a folder; its ``run``, if it has one, runs where none of them is named.
Modules import at their head nothing that is slow, because ``rlds --help`` imports all of them: torch, h5py, httpx and
pandas come inside the functions that need them.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

__all__ = ["GROUPS", "command_names", "subcommand_names"]

GROUPS = ("Choose", "Get", "Look", "Prepare", "Train", "Share", "Maintain")
"""The headings of the commands, in the order in which a dataset meets them."""


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def subcommand_names(command: str) -> tuple[str, ...]:
    """Return the names of the commands of a command that is a folder, sorted; empty for another one."""
    folders = [str(Path(path, command)) for path in __path__]
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))
