"""The one printer: results to stdout, talk to stderr; tables on a terminal, plain text elsewhere, or JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from .errors import Explained

__all__ = ["SCHEMA_VERSION", "Block", "Facts", "Lines", "Printer", "Result", "Table", "count_text", "size_text"]

SCHEMA_VERSION = 1
"""Of every JSON document; it changes when a key changes its meaning or goes, not when one is added."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    """Without a title the table is the whole answer: into a pipe it goes as tab-separated rows and nothing else."""
    listing: bool = False
    """On a terminal a row is a line: what does not fit is cut from the last column, and columns that say nothing are
    left out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values; those without a value are not shown."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Text as it is."""

    lines: tuple[str, ...]
    title: str = ""


Block = Table | Facts | Lines

_WIDEST = 10_000
"""Columns that no table needs."""
_NOTHING = frozenset({"", "-"})


@dataclass(frozen=True, slots=True)
class Result:
    """What a command returns: the same answer for programs, for readers and for `--quiet`."""

    data: Mapping[str, Any]
    """The JSON document, without the version and the command."""
    blocks: Sequence[Block] = ()
    quiet: Sequence[str] = ()
    """The essential, a line each: ids, paths, numbers."""
    code: int = 0
    """The exit code."""


@dataclass(slots=True)
class Printer:
    """Prints results and talk in the way that the options and the terminal ask for."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def show(self, command: str, result: Result) -> None:
        """Print a command's answer to stdout."""
        if self.json:
            self._document({"command": command, **result.data})
        elif self.quiet:
            _write([_printable(line) for line in result.quiet])
        elif self._terminal():
            _show_rich(result.blocks, color=self._color())
        else:
            _write(_plain_page(result.blocks))

    def note(self, text: str) -> None:
        """Say something that is not part of the answer."""
        if not self.quiet:
            _say(_printable(text))

    def failed(self, command: str, told: Explained, *, document: bool = True) -> None:
        """Report an error in three lines, and as a JSON document where one was asked for.

        Args:
            command: Whose error it is.
            told: The error.
            document: False if the command's own document names the error.
        """
        if self.json and document:
            self._document({"command": command, "error": asdict(told)})
        for mark, line in (("rlds:", told.what), ("  why:", told.why), ("  next:", told.hint)):
            if line:
                _say(f"{self._marked(mark)} {_printable(line)}")

    def traceback(self, error: Exception) -> None:
        """Show where an error came from."""
        import traceback

        traceback.print_exception(error, file=sys.stderr)

    def _document(self, data: Mapping[str, Any]) -> None:
        _write([json.dumps(_finite({"schema_version": SCHEMA_VERSION, **data}), indent=1, allow_nan=False)])

    def _terminal(self) -> bool:
        return sys.stdout.isatty() and self.env.get("TERM") != "dumb" and not self.env.get("CI")

    def _color(self) -> bool:
        return not self.no_color and not self.env.get("NO_COLOR") and self.env.get("TERM") != "dumb"

    def _marked(self, mark: str) -> str:
        return f"\x1b[1;31m{mark}\x1b[0m" if self._color() and sys.stderr.isatty() else mark


def count_text(number: int, unit: str) -> str:
    """Write a number of things: ``1 step``, ``2,000 steps``."""
    return f"{number:,} {unit}{'s' * (number != 1)}"


def size_text(size: int | None) -> str:
    """Write a number of bytes for readers, in powers of 1000: ``4.8 MB``."""
    if size is None:
        return "unknown"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.95:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _finite(value: Any) -> Any:
    # JSON has no NaN and no infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _printable(text: str) -> str:
    # Manifests and servers are not ours: what they say must not steer the terminal.
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return " " if one.isspace() and ord(one) > 0x1F else one.encode("unicode_escape").decode("ascii")


def _write(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _cell(text: str) -> str:
    return _printable(text).replace("\n", " ")


def _plain_page(blocks: Sequence[Block]) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        if block.title:
            lines += [""] * bool(lines) + [_cell(block.title)]
        lines += _plain(block)
    return lines


def _plain(block: Block) -> list[str]:
    if isinstance(block, Lines):
        return [("  " if block.title else "") + _printable(line) for line in block.lines]
    if isinstance(block, Facts):
        pairs = [(name, value) for name, value in block.pairs if value]
        return _columns([(name, _cell(value)) for name, value in pairs], indent=2 if block.title else 0)
    if not block.title:
        return ["\t".join(map(_cell, row)) for row in block.rows]
    return _columns([tuple(map(_cell, row)) for row in (block.header, *block.rows)], indent=2)


def _columns(rows: Sequence[tuple[str, ...]], *, indent: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [" " * indent + line.rstrip() for line in padded]


def _listing(table: Table, width: int) -> list[str]:
    """Return a line for the headings and for each row, of at most `width` columns unless the first cell alone has more.

    Where a first cell is wider than its column, the others move to the right as far as they must.
    """
    cells = [tuple(map(_cell, row)) for row in (table.header, *table.rows)]
    told = [n for n, column in enumerate(zip(*cells, strict=True)) if not n or not set(column[1:]) <= _NOTHING]
    rows = [[row[n] for n in told] for row in cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    others = sum(2 + one for one in widths[1:-1]) + 2 + min(widths[-1], width // 3)
    widths[0] = min(widths[0], max(width - others, 1))
    starts = [0, *accumulate(2 + one for one in widths)]
    lines = []
    for first, *rest in rows:
        line = first
        for cell, start in zip(rest, starts[1:], strict=False):
            # Beside a first cell that is too wide, the later ones close up again.
            line = f"{line}  {cell}" if len(line) + 2 > start else line.ljust(start) + cell
        fits = len(line) <= width or len(line) - len(rest[-1] if rest else "") >= width
        lines.append((line if fits else f"{line[: width - 1]}…").rstrip())
    return lines


def _show_rich(blocks: Sequence[Block], *, color: bool) -> None:
    # Rich costs 40 ms, which a pipe need not pay.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, color_system="auto" if color else None, highlight=False)
    for number, block in enumerate(blocks):
        if block.title:
            console.print(*[""] * bool(number), Text(_cell(block.title), style="bold"), sep="\n")
        if isinstance(block, Lines):
            for line in block.lines:
                console.print(Text(("  " if block.title else "") + _printable(line)), soft_wrap=True)
        elif isinstance(block, Table) and block.listing:
            for row, line in enumerate(_listing(block, console.width)):
                console.print(Text(line, style="" if row else "bold"), soft_wrap=True)
        else:
            grid = _rich_grid(block)
            # What no column may lose is left to the terminal, which breaks lines that can still be copied whole.
            least = console.measure(grid, options=console.options.update(max_width=_WIDEST)).minimum
            console.width = max(console.width, least)
            console.print(grid)


def _rich_grid(block: Table | Facts) -> Any:
    from rich.table import Table as Grid
    from rich.text import Text

    facts = isinstance(block, Facts)
    left = 2 if block.title else 0
    grid = Grid(box=None, show_header=not facts, pad_edge=False, padding=(0, 2, 0, left), header_style="bold")
    header = ("", "") if isinstance(block, Facts) else block.header
    rows = [pair for pair in block.pairs if pair[1]] if isinstance(block, Facts) else block.rows
    for number, name in enumerate(header):
        # The first column holds ids and names, which are never cut and never folded.
        grid.add_column(name, style="bold" if facts and not number else None, no_wrap=not number, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(_cell(cell)) for cell in row))
    return grid
