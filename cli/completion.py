"""Completion of command lines: what may follow the words before the cursor, read from the declarations of the commands.

A shell runs ``rlds __complete WORD...`` at every press of the tab key, so that only the module of the named command is
imported, and nothing that needs torch.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .commands import command_names, subcommand_names
from .options import GLOBALS

Candidates = Iterable[str]


def print_candidates(words: Sequence[str]) -> int:
    """Print the candidates for the last word: one in a line, with its help after a tab; return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line of the shell is being typed
        lines = [f"{value}\t{' '.join(text.split())}" if text else value for value, text in complete(words)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def complete(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the candidates for the last word, each with its help.

    Args:
        words: The words after ``rlds``; the last one is completed, and may be empty.
    """
    *before, current = words or [""]
    current = current.lstrip("'\"")
    start, equals, value = current.partition("=")
    if equals and current.startswith("--"):
        found = _follow([*before, start], value, words)
        return sorted((f"{start}={one}", text) for one, text in found if one.startswith(value))
    return sorted({pair for pair in _follow(before, current, words) if pair[0].startswith(current)})


def _follow(before: Sequence[str], current: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    path, rest = _command_path(before)
    module = _module_of(path)
    parameters = [*_global_parameters(), *(() if module is None else _parameters(module))]
    options = {name: one for one in parameters for name in one.names}
    last = before[-1] if before else ""
    if last in options and options[last].takes_value:
        yield from ((one, "") for one in options[last].candidates(words, current))
    elif current.startswith("-"):
        yield from ((max(one.names, key=len), one.help) for one in parameters if one.names)
    elif not rest and (below := _names_below(path)):
        yield from ((name, "") for name in below)
    elif path:
        given = [word for at, word in enumerate(rest) if not _belongs_to_option(rest, at, options)]
        yield from ((one, "") for one in _argument(parameters, len(given)).candidates(words, current))


def _names_below(path: Sequence[str]) -> Sequence[str]:
    return command_names() if not path else subcommand_names(path[0]) if len(path) == 1 else ()


@dataclass(frozen=True)
class _Parameter:
    """An option, or an argument, which has no names."""

    names: tuple[str, ...] = ()
    kind: Any = str
    find: Callable[[Sequence[str], str], Candidates] | None = None
    help: str = ""
    counts: bool = False

    @property
    def takes_value(self) -> bool:
        return self.kind is not bool and not self.counts

    @property
    def several(self) -> bool:
        return typing.get_origin(self.kind) is list

    def candidates(self, words: Sequence[str], current: str) -> Candidates:
        if self.find is not None:
            return self.find(words, current)
        if typing.get_origin(self.kind) is Literal:
            return map(str, typing.get_args(self.kind))
        if inspect.isclass(self.kind) and issubclass(self.kind, enum.Enum):
            return [str(one.value) for one in self.kind]
        return ()


def _command_path(before: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that name the command, and those after it."""
    path: list[str] = []
    for at, word in enumerate(before):
        if word.startswith("-") or (at and before[at - 1] == "--root"):
            continue
        if word not in (subcommand_names(path[0]) if path else command_names()):
            return path, list(before[at:])
        path.append(word)
        if not subcommand_names(path[0]) or len(path) > 1:
            return path, list(before[at + 1 :])
    return path, []


def _module_of(path: Sequence[str]) -> Any:
    return importlib.import_module(".".join([f"{__package__}.commands", *path])) if path else None


def _parameters(module: Any) -> Iterator[_Parameter]:
    if not hasattr(module, "run"):
        return
    hints = typing.get_type_hints(module.run, include_extras=True)
    declared = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is typing.Annotated}
    more: Sequence[inspect.Parameter] = getattr(module, "source_options", tuple)()
    for name, hint in {**declared, **{one.name: one.annotation for one in more}}.items():
        kind, info, *_ = typing.get_args(hint)
        kind = next((one for one in typing.get_args(kind) if one is not type(None)), kind) if _is_union(kind) else kind
        # Typer keeps the first name where a default would be.
        names = tuple(one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str))
        if type(info).__name__ == "OptionInfo":
            long = f"--{name.strip('_').replace('_', '-')}"
            names = tuple(one for one in (names or (long,)) if one.startswith("-")) or (long,)
        else:
            names = ()
        yield _Parameter(
            names, kind, getattr(info, "autocompletion", None), info.help or "", bool(getattr(info, "count", False))
        )


def _is_union(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _global_parameters() -> list[_Parameter]:
    shared = [
        _Parameter(tuple(names), Path if name == "root" else kind, None, settings["help"], "count" in settings)
        for name, (kind, names, settings, _) in GLOBALS.items()
    ]
    return [*shared, _Parameter(("--help", "-h"), bool, None, "Show this message and exit.")]


def _belongs_to_option(rest: Sequence[str], at: int, options: Mapping[str, _Parameter]) -> bool:
    if rest[at].startswith("-"):
        return True
    return at > 0 and rest[at - 1] in options and options[rest[at - 1]].takes_value


def _argument(parameters: Sequence[_Parameter], position: int) -> _Parameter:
    arguments = [one for one in parameters if not one.names]
    if position < len(arguments):
        return arguments[position]
    return arguments[-1] if arguments and arguments[-1].several else _Parameter()
