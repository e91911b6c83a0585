"""``rlds recipe copy``: a training program as your own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError

from ...options import Shell
from ...output import Facts, Result
from ..train import find_program, recipe_names


def run(
    shell: Shell,
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="bc, td3_bc, ...", autocompletion=recipe_names),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The copy; by default RECIPE.py in this folder."),
    ] = None,
) -> Result:
    """Copy a training program, to change it. A file that exists is not replaced.

    \b
    Examples:
      rlds recipe copy bc
      rlds recipe copy td3_bc my_algorithm.py
      rlds recipe copy iql -q
    """
    source = find_program(recipe)
    target = path or Path(source.name)
    if target.is_dir():
        target /= source.name
    if target.exists():
        raise InvalidArgumentError(f"{target} exists, and is not replaced", hint="give another name for the copy")
    disk.write_text(target, source.read_text(encoding="utf-8"))
    shell.printer.note(f"run it with: python {target} --dataset demo/pendulum")
    return Result({"recipe": recipe, "path": str(target)}, [Facts((("copied to", str(target)),))], quiet=[str(target)])
