"""``rlds config trust``: whether the home and the mirrors of a project's file count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datasets_rl.settings import NEED_TRUST, setting_values

from ...options import Shell
from ...output import Lines, Result
from . import setting_text


def run(
    shell: Shell,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The settings file or its folder. By default the project's.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the trust.")] = False,
) -> Result:
    """Use the home and the mirrors that a project's rlds.toml sets. Prints the file.

    Such settings are ignored by default, because the file may come from other people, as in a clone. After a change,
    the file has to be trusted again.

    \b
    Examples:
      rlds config trust
      rlds config trust ~/project/rlds.toml
      rlds config trust --revoke
    """
    from datasets_rl.settings import revoke_trust, trust_project

    file = revoke_trust(path) if revoke else trust_project(path)
    if not revoke:
        values = setting_values({}, [file])
        for key in NEED_TRUST:
            if values[key].origin != "default":
                shell.printer.note(f"trusted: {key} is {setting_text(values[key].value)}")
    return Result({"file": str(file), "trusted": not revoke}, [Lines((str(file),))], quiet=[str(file)])
