"""Remedies in the words of the shell: options for arguments of the library, commands for calls of its functions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets_rl.errors import Argument, Call

COMMANDS = {
    "append_episodes": ("append",),
    "download": ("download",),
    "citing.write_statement": ("cite", "--statement"),
    "info": ("info",),
    "lockfile.sync": ("sync",),
    "lockfile.write_lock": ("lock",),
    "list_datasets": ("list",),
    "catalog.mixture_file.mixture_toml": ("mix",),
    "preprocess": ("preprocess",),
    "push": ("push",),
    "restore": ("use",),
    "preprocessing.naming.describe_steps": ("preprocess", "--list"),
    "settings.trust_project": ("config", "trust"),
    "sources.local.files.draft_description": ("init",),
}
"""The words after ``rlds`` for each function that is a command."""

OPTIONS = {
    "again": ("--again",),
    "batch_size": ("--batch-size", "N"),
    "downloaded": ("--downloaded",),
    "episodes": ("--episodes", "RANGE"),
    "exclude": ("--exclude", "GLOB"),
    "force": ("--force",),
    "fps": ("--fps", "NUMBER"),
    "from_local": ("--from-local", "PATH"),
    "hash_check": ("--no-hash-check",),
    "high": ("--high", "RETURN"),
    "in_place": ("--in-place",),
    "include": ("--include", "GLOB"),
    "jobs": ("--jobs", "N"),
    "keep_raw": ("--keep-raw",),
    "keys": ("--keys", "KEY,..."),
    "hidden": ("--hidden", "WIDTH"),
    "lossy": ("--lossy",),
    "low": ("--low", "RETURN"),
    "lr": ("--lr", "X"),
    "max_ram": ("--max-ram", "SIZE"),
    "max_size": ("--max-size", "SIZE"),
    "mirrors": ("--mirror", "URL"),
    "missing": ("--missing", "HOW"),
    "name": ("--as", "NAME"),
    "no_conventions": ("--no-conventions",),
    "no_eval": ("--no-eval",),
    "out": ("--out", "PATH"),
    "places": ("--from", "PLACE"),
    "recipe": ("--recipe", "NAME"),
    "root": ("--root", "DIR"),
    "source": ("--source", "NAME"),
    "validation": ("--validation", "X"),
}
"""The option for each argument, and what stands for a value that the user chooses."""


def command_line(*words: object, root: Path | None = None) -> str:
    """Return a command line of ``rlds``, quoted for the shell, with a given ``--root``."""
    return shlex.join(map(str, ["rlds", *(() if root is None else ("--root", root)), *words]))


def spell_action(action: Any, root: Path | None = None) -> str:
    """Return an action of a remedy in the words of the shell.

    Args:
        action: An argument, a call, or a value that is shown unchanged.
        root: The value of ``--root``, which commands repeat.
    """
    if isinstance(action, Call) and action.function in COMMANDS:
        return command_line(*COMMANDS[action.function], *_argument_words(action), root=root)
    if isinstance(action, (Argument, Call)):
        return shlex.join(_argument_words(action))
    return str(action)


def _argument_words(value: Any) -> Iterator[str]:
    """Yield the words for an argument of a command, before quotes."""
    if isinstance(value, Call):  # a selection, or the folder of an id: commands take the id itself
        for argument in value.arguments:
            yield from _argument_words(argument)
    elif not isinstance(value, Argument):
        yield "..." if value is ... else str(value)
    elif isinstance(value.value, Call):
        yield from _argument_words(value.value)
    elif isinstance(value.value, Mapping):  # the options of a source have the names of the command line
        for name, choice in value.value.items():
            yield from (f"--{name}", str(choice))
    else:
        if value.name == "keys" and isinstance(value.value, (list, tuple)):
            value = Argument("keys", ",".join(value.value))
        # Sources of other packages may have further arguments.
        option, *placeholder = OPTIONS.get(value.name, ("", "..."))
        yield from value.option_words(option, "".join(placeholder))
