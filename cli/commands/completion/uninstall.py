"""``rlds completion uninstall``: what ``install`` wrote, removed."""

from __future__ import annotations

from ... import shells
from ...options import Shell
from ...output import Lines, Result
from .install import Name


def run(shell: Shell, name: Name = None) -> Result:
    """Remove the completion of command lines for your shell. Prints the changed files.

    \b
    Examples:
      rlds completion uninstall
      rlds completion uninstall bash
      rlds completion uninstall zsh --json
    """
    found = shells.find_shell(name or "")
    changed = [str(path) for path in shells.uninstall(found)]
    if not changed:
        shell.printer.note(f"{found} had no completion of rlds")
    return Result({"shell": found, "changed": changed}, [Lines(tuple(changed))], quiet=changed)
