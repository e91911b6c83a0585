"""A command a file: ``run(shell, ...)`` takes options and returns a `Result`. The folder is the list of commands.

The module's ``run`` has the command's help as its docstring. Modules import at their head nothing that is slow, because
``rlds --help`` imports all of them: torch, h5py, httpx and pandas come inside the functions that need them.
"""

from __future__ import annotations

import pkgutil

__all__ = ["command_names"]


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
