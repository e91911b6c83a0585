"""``rlds config unset``: a setting removed from a file."""

from __future__ import annotations

from datasets_rl.settings import project_file, user_file

from ...config_file import keep_trust, unset_value
from ...options import Shell
from ...output import Lines, Result
from .set import Key, Project


def run(shell: Shell, key: Key, project: Project = False) -> Result:
    """Remove a setting from the user's file, or from the project's. Prints the file.

    \b
    Examples:
      rlds config unset home
      rlds config unset jobs --project
      rlds config unset mirrors.d4rl
    """
    path = project_file() if project else user_file()
    with keep_trust(path, project=project):
        removed = unset_value(path, key)
    if not removed:
        shell.printer.note(f"{path} does not set {key}")
    return Result({"file": str(path), "key": key, "removed": removed}, [Lines((str(path),))], quiet=[str(path)])
