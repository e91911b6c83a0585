"""``rlds config path``: the files of settings."""

from __future__ import annotations

from datasets_rl.settings import project_file, user_file

from ...options import Shell
from ...output import Result, Table


def run(shell: Shell) -> Result:
    """Print the paths of the project's file and the user's file, which need not exist.

    \b
    Examples:
      rlds config path
      rlds config path -q
      rlds config path --json
    """
    shell.detail("the first file takes precedence")
    files = [("project", project_file()), ("user", user_file())]
    rows = tuple((name, str(path), "yes" if path.is_file() else "no") for name, path in files)
    data = [{"name": name, "path": str(path), "exists": path.is_file()} for name, path in files]
    return Result({"files": data}, [Table(("file", "path", "exists"), rows)], quiet=[str(path) for _, path in files])
