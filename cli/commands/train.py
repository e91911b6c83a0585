"""``rlds train``: one of the training programs of `datasets_rl.recipes.train`, in this process."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError, MissingDependencyError

from ..options import Shell
from ..output import Lines, Result

GROUP = "Train"

# What follows the name belongs to the program, also --help and options that rlds has, too.
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def recipe_names() -> list[str]:
    """Return the names of the programs, for the tab key."""
    from datasets_rl.recipes.train import program_files

    return [*program_files()]


def run(
    shell: Shell,
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A program: bc, td3_bc, iql, ...", autocompletion=recipe_names),
    ],
    module: Annotated[
        str,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module to import first, which registers an environment; give it before PROGRAM.",
        ),
    ] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS...", help="Arguments of the program, such as --dataset ID."),
    ] = None,
) -> Result:
    """Train a policy on a dataset by a program of one file, and evaluate it in the dataset's environment.

    The result is one line of JSON. Ctrl-C saves the run, and the same command continues it. Without an environment, a
    validation loss is printed. `rlds train RECIPE --help` has the arguments of a program; `rlds recipe copy RECIPE`
    gives a copy of it to change.

    \b
    Examples:
      rlds train bc --dataset demo/pendulum
      rlds train td3_bc --dataset demo/pendulum --seed 1 --steps 20000
      rlds train --import my_envs iql --dataset local/heater
      rlds train iql --help
    """
    find_program(recipe)
    if shell.root is not None:
        os.environ["RLDS_HOME"] = str(shell.settings.home)
    if module:
        _import(module)
    words = [*(arguments or []), *(["--quiet"] if shell.printer.quiet else [])]
    try:
        result = _run_program(recipe, words)
    except KeyboardInterrupt as stop:
        shell.interrupted = str(stop)
        raise
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
        library = str(error.name).partition(".")[0]
        if isinstance(error, MissingDependencyError) or library in {"None", "datasets_rl"}:
            raise
        missing = MissingDependencyError(library, _EXTRAS.get(library, ""), f"the program {name}")
        if library not in _EXTRAS:
            missing.hint = f"pip install {library}"
        raise missing from error
    except InvalidArgumentError as error:
        if "which is not registered" in error.message:
            imports = f"`rlds train --import MODULE {name} ...` imports the module that registers it"
            error.hint = f"{imports}; --no-eval trains without it"
        raise
    except SystemExit as stop:
        if not stop.code:
            typer.echo(output.getvalue(), nl=False)
            return None
        reason = stop.code if isinstance(stop.code, str) else "the program refused its arguments"
        raise InvalidArgumentError(reason, hint=f"`rlds train {name} --help` has its arguments") from None
    return found


def _import(module: str) -> None:
    """Import a module of the user, which may be a file of the working directory."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"--import {module}: {error}", hint="run the command in the folder of the module, or install it"
        ) from error


_EXTRAS = {
    "ale_py": "atari",
    "cv2": "atari",
    "gymnasium": "gymnasium",
    "gymnasium_robotics": "robotics",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "shimmy": "dm-control",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""The extras with the libraries that programs import."""
