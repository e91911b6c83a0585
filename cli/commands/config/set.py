"""``rlds config set``: a setting in a file."""

from __future__ import annotations

from typing import Annotated

import typer

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import project_file, setting_values, user_file

from ... import candidates
from ...config_file import keep_trust, parse_setting, set_value, split_key
from ...options import Shell
from ...output import Lines, Result
from . import setting_text

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A key that `rlds config` lists, or mirrors.SOURCE for the mirrors of a source.",
        autocompletion=candidates.setting_keys,
    ),
]
Project = Annotated[bool, typer.Option("--project", help="Change the project's rlds.toml instead of the user's file.")]


def run(
    shell: Shell,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value. Separate the items of a list by commas.")],
    project: Project = False,
) -> Result:
    """Set a setting in the user's file, or in the project's. Prints the file.

    \b
    Examples:
      rlds config set home /data/rl
      rlds config set jobs 8 --project
      rlds config set mirrors.d4rl https://lab/d4rl,file:///d4rl
    """
    path = project_file() if project else user_file()
    parsed = parse_setting(key, value)
    with keep_trust(path, project=project):
        set_value(path, key, parsed)
    name = split_key(key)[0]
    try:
        used = setting_values()[name]
    except InvalidArgumentError as error:  # of other settings, which are corrected separately
        shell.printer.note(error.message)
    else:
        if not used.origin.startswith(f"{path}:"):
            shell.printer.note(f"{used.origin} takes precedence over this file: {name} is {setting_text(used.value)}")
    return Result({"file": str(path), "key": key, "value": parsed}, [Lines((str(path),))], quiet=[str(path)])
