"""``rlds train``: one of the training programs of `datasets_rl.recipes.train`, in this process."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError, MissingDependencyError

from ..options import Shell
from ..output import Lines, Result

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "Train"

# What follows the name belongs to the program, also --help and options that rlds has, too.
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def recipe_names(args: Sequence[str], incomplete: str) -> list[str]:
    """Return the names of the programs, for the tab key."""
    del args
    from datasets_rl.recipes.train import program_files

    return [name for name in program_files() if name.startswith(incomplete)]


def run(
    shell: Shell,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            show_default=False,
            help="A program: bc, td3_bc, iql, ...",
            autocompletion=recipe_names,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENTS...", show_default=False, help="Arguments of the program, such as --dataset ID."
        ),
    ] = None,
) -> Result:
    """Train a policy on a dataset by a program of one file, and evaluate it in the dataset's environment.

    The result is one line of JSON. An interrupted run resumes where it was. `rlds train RECIPE --help` has the
    arguments of a program; `rlds recipe copy RECIPE` gives a copy of it to change.

    \b
    Examples:
      rlds train bc --dataset demo/pendulum
      rlds train td3_bc --dataset demo/pendulum --seed 1 --steps 20000
      rlds train iql --help
    """
    find_program(recipe)
    if shell.root is not None:
        os.environ["RLDS_HOME"] = str(shell.settings.home)
    result = _run_program(recipe, arguments or [])
    if result is None:
        return Result({"recipe": recipe})
    line = json.dumps(result)
    return Result({"recipe": recipe, "result": result}, [Lines((line,))], quiet=[line])


def find_program(name: str) -> Path:
    """Return the file of a program.

    Raises:
        InvalidArgumentError: If there is no such program.
    """
    from datasets_rl.recipes.train import program_files

    files: dict[str, Path] = program_files()
    if name in files:
        return files[name]
    near = difflib.get_close_matches(name, files, 1)
    meant = f"did you mean {near[0]}?" if near else "`rlds recipe list` says what each one does"
    raise InvalidArgumentError(f"no recipe {name!r}; expected one of {', '.join(files)}", hint=meant)


def _run_program(name: str, arguments: list[str]) -> dict[str, Any] | None:
    """Return the result of a program; None if it only printed its help.

    Raises:
        InvalidArgumentError: If it refuses its arguments.
        MissingDependencyError: If it needs a library that is not installed.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):  # its last line is its result, which this command prints
            program = importlib.import_module(f"datasets_rl.recipes.train.{name}")
            found: dict[str, Any] = program.main(arguments)
    except ModuleNotFoundError as error:
        if isinstance(error, MissingDependencyError) or error.name not in _EXTRAS:
            raise
        raise MissingDependencyError(str(error.name), _EXTRAS[str(error.name)], f"the program {name}") from error
    except SystemExit as stop:
        if not stop.code:
            typer.echo(output.getvalue(), nl=False)
            return None
        reason = stop.code if isinstance(stop.code, str) else "the program refused its arguments"
        raise InvalidArgumentError(reason, hint=f"`rlds train {name} --help` has its arguments") from None
    return found


_EXTRAS = {"gymnasium": "gymnasium", "ale_py": "atari", "gymnasium_robotics": "robotics", "wandb": "wandb"}
"""The extras with the libraries that programs import."""
