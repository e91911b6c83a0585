"""Help pages that fit the window: usage, description, examples, commands by group, and options.

Typer's own pages cut summaries, and do not break examples.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from .commands import GROUPS
from .options import GLOBALS
from .output import Printer, emphasize, fact_lines, wrap_text

MAX_COLUMNS = 120
"""Longer lines are hard to read."""
_USUAL = 80
_INDENT = 4
_EXAMPLES = "Examples:"


def add_help(command: Any, groups: dict[str, str] | None = None) -> None:
    """Make a command of Typer, and its commands, print these pages.

    Args:
        command: The command.
        groups: The heading of each command below. By default no headings.
    """
    command.get_help = functools.partial(_help_text, command, groups or {})
    for one in getattr(command, "commands", {}).values():
        add_help(one)


def _help_text(command: Any, groups: dict[str, str], context: Any) -> str:
    printer: Printer = getattr(context.obj, "printer", None) or Printer()
    width = min(printer.width(sys.stdout) or _columns(), MAX_COLUMNS)
    bold = printer.color() and sys.stdout.isatty()
    paragraphs, examples = split_help(command.help or "")

    def section(title: str, lines: list[str]) -> list[str]:
        return [emphasize(title, bold=bold), *(f"  {line}" for line in lines)] if lines else []

    def table(rows: Iterator[tuple[str, str]]) -> list[str]:
        return fact_lines(list(rows), width - 2, bold=False)

    sections = [
        wrap_text(context.get_usage(), width),
        *(wrap_text(paragraph, width) for paragraph in paragraphs),
        section("Examples:", [line for one in examples for line in broken_example(one, width - 2)]),
        *(section(f"{heading}:", table(rows)) for heading, rows in _commands_by_group(command, groups)),
        section("Arguments:", table(_parameter_rows(command, context, arguments=True))),
        section("Options:", table(_parameter_rows(command, context, arguments=False))),
        wrap_text(command.epilog or "", width),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if any(lines))


def _columns() -> int:
    """Return the width of pages that go to a pipe."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else _USUAL


def split_help(text: str) -> tuple[list[str], list[str]]:
    """Split the help of a command into paragraphs, each in a line, and examples."""
    described, _, examples = inspect.cleandoc(text).replace("\b", "").partition(_EXAMPLES)
    paragraphs = [" ".join(one.split()) for one in described.split("\n\n")]
    return [one for one in paragraphs if one], [line.strip() for line in examples.splitlines() if line.strip()]


def broken_example(example: str, width: int) -> list[str]:
    """Break a command line with backslashes, so that a user can still copy the line."""
    lines = [""]
    for unit in _units(example):
        for word in [unit] if len(unit) + _INDENT + 2 <= width else unit.split():
            if not lines[-1] or len(lines[-1]) + len(word) + 3 <= width:
                lines[-1] = f"{lines[-1]} {word}".lstrip() if len(lines) == 1 else f"{lines[-1]} {word}"
            else:
                lines[-1] += " \\"
                lines.append(f"{' ' * _INDENT}{word}")
    if len(lines) > 1 and len(lines[-2]) - 1 + len(lines[-1].strip()) <= width:
        lines[-2:] = [f"{lines[-2][:-1]}{lines[-1].strip()}"]
    return lines


def _units(example: str) -> Iterator[str]:
    """Yield the units that a line is broken between: words with quotes, and options with values."""
    lexer = shlex.shlex(example, posix=False, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    option = ""
    for word in lexer:
        if option and word[0] == "-":
            yield option
            option = ""
        if word[0] in "->":
            option = word
        else:
            yield f"{option} {word}".strip()
            option = ""
    if option:
        yield option


def _commands_by_group(command: Any, groups: dict[str, str]) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    below = getattr(command, "commands", {})
    widest = max(map(len, below), default=0)
    for heading in (*GROUPS, ""):
        named = [name for name in below if groups.get(name, "") == heading]
        yield heading or "Commands", ((name.ljust(widest), _summary(below[name])) for name in named)


def _summary(command: Any) -> str:
    return next(iter(split_help(command.help or "")[0]), "")


def _parameter_rows(command: Any, context: Any, *, arguments: bool) -> Iterator[tuple[str, str]]:
    for one in command.get_params(context):
        # The epilog of a command names the options that all have.
        if context.parent is not None and one.name in GLOBALS:
            continue
        if (one.param_type_name == "argument") is arguments and (record := one.get_help_record(context)):
            yield record
