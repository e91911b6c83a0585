"""``rlds completion show``: print the script for a shell."""

from __future__ import annotations

from ... import shells
from ...options import Shell
from ...output import Lines, Result
from .install import Name


def run(shell: Shell, name: Name = None) -> Result:
    """Print the script for your shell.

    \b
    Examples:
      rlds completion show bash > /etc/bash_completion.d/rlds
      rlds completion show zsh > ~/.zfunc/_rlds
      rlds completion show fish | source
    """
    found = shells.find_shell(name or "")
    shell.detail(f"the script is for {found}")
    text = shells.SHELLS[found].script
    return Result({"shell": found, "script": text}, [Lines(tuple(text.splitlines()))], quiet=text.splitlines())
