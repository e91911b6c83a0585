"""``rlds recipe list``: the training programs."""

from __future__ import annotations

from ...options import Shell
from ...output import Result, Table


def run(shell: Shell) -> Result:
    """List the training programs, and what each one does.

    \b
    Examples:
      rlds recipe list
      rlds recipe list -q
      rlds recipe list --json
    """
    from datasets_rl.recipes.train import program_files, summary

    shell.detail("the programs are files of the package datasets_rl.recipes.train")
    found = [(name, summary(path), path) for name, path in program_files().items()]
    return Result(
        {"recipes": [{"name": name, "summary": text, "path": str(path)} for name, text, path in found]},
        [Table(("recipe", "summary"), tuple((name, text) for name, text, _ in found), listing=True)],
        quiet=[name for name, _, _ in found],
    )
