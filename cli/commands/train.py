"""``rlds train``: a training program of `datasets_rl.recipes.train`, in this process."""

from __future__ import annotations

import argparse
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

from datasets_rl import disk
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, MissingDependencyError

from ..options import Shell, dataset_arguments
from ..output import Facts, Lines, Result, Table
from .verify import members_of

GROUP = "Train"

# What follows the name belongs to the program, also --help and options that rlds has, too.
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def _program_names() -> list[str]:
    from datasets_rl.recipes.train import program_files

    return [*program_files()]


def run(
    shell: Shell,
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A program: bc, td3_bc, iql, ...", autocompletion=_program_names)
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS...", help="Arguments of the program, such as --dataset ID.")
    ] = None,
    module: Annotated[
        str,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module to import first, which registers an environment. Give MODULE before PROGRAM.",
        ),
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the programs.")] = False,
    shown: Annotated[
        str, typer.Option("--show", metavar="PROGRAM", help="Print a program.", autocompletion=_program_names)
    ] = "",
    copied: Annotated[
        str,
        typer.Option("--copy", metavar="PROGRAM", help="Copy a program, for changes.", autocompletion=_program_names),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="File or folder of the copy. By default this folder."),
    ] = None,
) -> Result:
    """Train a policy on a dataset or a mixture by a program in a single file, and evaluate the policy.

    The result is a line of JSON. Ctrl-C saves the run, and the same command continues. Without an environment, a
    validation loss is printed. `rlds train PROGRAM --help` lists the arguments of a program.

    \b
    Examples:
      rlds train --list
      rlds train bc --dataset demo/pendulum
      rlds train td3_bc --dataset demo/pendulum --seed 1 --steps 20000
      rlds train iql --dataset mix.toml --validation 0.1
      rlds train --import my_envs iql --dataset local/heater
      rlds train --copy iql --out my_algorithm.py
    """
    if listed:
        return _list_programs()
    if shown:
        path = _find_program(shown)
        text = path.read_text(encoding="utf-8")
        lines = tuple(text.splitlines())
        return Result({"program": shown, "path": str(path), "text": text}, [Lines(lines)], quiet=lines)
    if copied:
        return _copy(shell, copied, out)
    if not program:
        raise InvalidArgumentError(
            "no program is named, expected a program such as bc or iql",
            hint=f"{shell.rlds('train', '--list')} lists the programs",
        )
    path = _find_program(program)
    if shell.root is not None:
        os.environ["RLDS_HOME"] = str(shell.settings.home)
    words = [*(arguments or []), *(["--quiet"] if shell.printer.quiet else [])]
    try:
        result = _run_program(shell, path, words, module)
    except KeyboardInterrupt as stop:
        shell.interrupted = str(stop)
        raise
    if result is None:
        return Result({"program": program})
    line = json.dumps(result)
    return Result({"program": program, "result": result}, [Lines((line,))], quiet=[line])


def _list_programs() -> Result:
    from datasets_rl.recipes.train import program_files, summary

    found = [{"name": name, "summary": summary(path), "path": str(path)} for name, path in program_files().items()]
    table = Table(("program", "summary"), tuple((one["name"], one["summary"]) for one in found), listing=True)
    return Result({"programs": found}, [table], quiet=[one["name"] for one in found])


def _copy(shell: Shell, name: str, out: Path | None) -> Result:
    source = _find_program(name)
    target = out or Path(source.name)
    if target.is_dir():
        target /= source.name
    disk.check_outside_versions(target)
    if target.exists():
        raise InvalidArgumentError(f"{target} is not replaced: it exists", hint="give another name for the copy")
    disk.write_text(target, source.read_text(encoding="utf-8"))
    shell.printer.note(f"run the copy with: python {target} --dataset demo/pendulum")
    return Result({"program": name, "path": str(target)}, [Facts((("copied to", str(target)),))], quiet=[str(target)])


def _find_program(name: str) -> Path:
    """Return the file of a program."""
    from datasets_rl.recipes.train import program_files

    files: dict[str, Path] = program_files()
    if name in files:
        return files[name]
    near = difflib.get_close_matches(name, files, 1)
    meant = f"did you mean {near[0]}?" if near else "`rlds train --list` shows what each program does"
    meant = _NEAREST.get(name.lower(), meant)
    raise InvalidArgumentError(f"no program {name!r}, expected {', '.join(files)}", hint=meant)


def _run_program(shell: Shell, path: Path, arguments: list[str], module: str) -> dict[str, Any] | None:
    """Return the result of a program. None if the program only printed its help."""
    from datasets_rl.recipes.train import read_arguments

    name, output = path.stem, io.StringIO()
    try:
        with contextlib.redirect_stdout(output):  # the last line is the result, which this command prints
            # These checks take no second, and the import of torch takes several.
            _check_data(shell, read_arguments(path, arguments))
            if module:
                _import(module)
            shell.import_torch()
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
            imports = f"`rlds train --import MODULE {name} ...` imports the module that registers the environment"
            error.hint = f"{imports}. --no-eval trains without an environment"
        raise
    except SystemExit as stop:
        if not stop.code:
            typer.echo(output.getvalue(), nl=False)
            return None
        reason = stop.code if isinstance(stop.code, str) else "the program refused its arguments"
        raise InvalidArgumentError(reason, hint=f"`rlds train {name} --help` has its arguments") from None
    return found


def _check_data(shell: Shell, arguments: argparse.Namespace) -> None:
    """Refuse what is not stored of the data for training and validation, with the members of mixtures."""
    for name in (arguments.dataset, arguments.validation):
        for number, dataset in enumerate(members_of([name]) if isinstance(name, str) else ()):
            try:
                _check_dataset(shell, dataset)
            except DatasetsRLError as error:
                if dataset != name:
                    error.notes += (f"{dataset} is member {number} of {name}",)
                raise


def _check_dataset(shell: Shell, dataset: str) -> None:
    """Refuse an id that does not exist, and a derived dataset or a folder that is not stored. `load` downloads others,
    and makes what is in a lock."""
    from datasets_rl.sources import split_derived
    from datasets_rl.store.find import locate

    # An address, or a prefix that the imported module registers.
    if ":" in dataset or shell.settings.lock is not None:
        return
    arguments = dataset_arguments(shell, dataset)
    if isinstance(arguments["dataset"], Path) or split_derived(dataset)[1]:
        locate(**arguments)


def _import(module: str) -> None:
    """Import a module of the user, which may be a file of the working directory."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"--import {module}: {error}", hint="run the command in the folder of the module, or install the module"
        ) from error


_ONLINE = "learns from new experience only. From a dataset,"
_NEAREST = {
    "a2c": f"A2C {_ONLINE} bc or iql learn a policy",
    "ddpg": f"DDPG {_ONLINE} td3_bc and rebrac do the same with imitation",
    "diffusion": "did you mean diffusion_policy?",
    "dqn": "dqn_atari is DQN for images of Atari, with a penalty for actions that are not in the data",
    "ppo": f"PPO {_ONLINE} bc or iql learn a policy",
    "sac": f"SAC {_ONLINE} cql is SAC with a penalty for other actions, and rlpd is SAC that learns from both",
    "td3": f"TD3 {_ONLINE} td3_bc and rebrac are TD3 with imitation",
    "trpo": f"TRPO {_ONLINE} bc or iql learn a policy",
}
"""What a user can take instead of an algorithm that no program has."""

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
