"""``rlds recipe show``: the text of a training program."""

from __future__ import annotations

from typing import Annotated

import typer

from ...options import Shell
from ...output import Lines, Result
from ..train import find_program, recipe_names


def run(
    shell: Shell,
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="bc, td3_bc, ...", autocompletion=recipe_names),
    ],
) -> Result:
    """Print a training program.

    \b
    Examples:
      rlds recipe show bc
      rlds recipe show iql | less
      rlds recipe show td3_bc > my_algorithm.py
    """
    path = find_program(recipe)
    shell.detail(f"the file is {path}")
    text = path.read_text(encoding="utf-8")
    lines = tuple(text.splitlines())
    return Result({"recipe": recipe, "path": str(path), "text": text}, [Lines(lines)], quiet=lines)
