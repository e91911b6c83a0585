"""``rlds completion install``: install the script for a shell."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ... import shells
from ...options import Shell
from ...output import Lines, Result

Name = Annotated[
    Literal["bash", "fish", "zsh"] | None,
    typer.Argument(metavar="[SHELL]", help="bash, fish or zsh. By default the shell of $SHELL."),
]


def run(shell: Shell, name: Name = None) -> Result:
    """Install the completion of command lines for your shell. Prints the changed files.

    New shells then complete commands, options, ids, recipes and steps.

    \b
    Examples:
      rlds completion install
      rlds completion install bash
      rlds completion install fish --json
    """
    found = shells.find_shell(name or "")
    changed = [str(path) for path in shells.install(found)]
    shell.printer.note(f"{found} completes rlds in every shell that you start")
    return Result({"shell": found, "changed": changed}, [Lines(tuple(changed))], quiet=changed)
