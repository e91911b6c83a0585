"""The printer: results to stdout, all else to stderr, as tables, as tab-separated rows, or as JSON.

On a terminal no table is wider than the window:

    all cells fit         a line for each row, columns two blanks apart
    only words fit        the widest columns shrink, and the cells wrap between words
    some word is too wide each row becomes a record: a line for each cell, after the heading of the column
    a listing             a line for each row. Columns that do not fit are left out, from the right, and a last column
                          that does not fit ends in an ellipsis
    a listing of numbers  the same, but no cell is shortened, and a line names the columns that are left out

A pipe gets tab-separated rows, whole and unpadded.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import Any, TextIO
from unicodedata import combining, east_asian_width

from .errors import Explanation

SCHEMA_VERSION = 1
"""Version of every JSON document: changed if a key is removed or gets another meaning, not if a key is added."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    """Without a title the table is the whole answer: a pipe gets the rows, without the header."""
    listing: bool = False
    """On a terminal a row is a line. Empty columns and columns that do not fit are left out, and the last column, a text,
    is shortened. The most important column is the first."""
    numbers: bool = False
    """In a listing: the last column is not text. A last column that does not fit is left out, because the first digits of
    a number mislead. A line names the columns that are left out."""
    piped: tuple[tuple[str, ...], ...] | None = None
    """Rows for a pipe, with plain numbers. By default the rows."""
    legend: str = ""
    """Line on a terminal that explains the marks in the rows."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values. Names without a value are not shown."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Text, unchanged."""

    lines: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Labels with counts. On a terminal each label has a bar, in proportion to the largest count."""

    rows: tuple[tuple[str, int], ...]
    title: str = ""


Block = Table | Facts | Lines | Bars

_NOTHING = frozenset({"", "-"})
_GAP = 2
"""Blanks between two columns."""
_USUAL = 80
"""Width of a terminal that does not report its width, in columns."""
_NUMBER = 9
"""Columns of a first cell that stays beside the other cells of a listing at any width."""
_LEAST = 20
"""Columns that a value needs beside its name. With fewer columns, the value is printed below the name."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command returns: the same answer for programs, for readers and for `--quiet`."""

    data: Mapping[str, Any]
    """The JSON document, without the version and the command. `as_json` lists the types of the values."""
    blocks: Sequence[Block] = ()
    quiet: Sequence[str] = ()
    """The essential, a line each: ids, paths, numbers."""
    code: int = 0
    """The exit code."""
    asides: Sequence[Block] = ()
    """Blocks for readers in addition to the answer, printed to stderr."""
    then: Callable[[], None] | None = None
    """Function to call after the answer was printed, such as serving at the printed address."""


@dataclass(slots=True)
class Printer:
    """Prints results and notes as the options and the terminal require."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def show(self, command: str, result: Result) -> None:
        """Print a command's answer to stdout, and its asides to stderr."""
        if self.json:
            self._document({"command": command, **result.data})
        elif self.quiet:
            _write(sys.stdout, [_printable_text(line) for line in result.quiet])
        else:
            for stream, blocks in ((sys.stderr, result.asides), (sys.stdout, result.blocks)):
                _write(stream, _page_lines(blocks, self.width(stream), bold=self.color()))

    def note(self, text: str) -> None:
        """Say something that is not part of the answer."""
        if not self.quiet:
            _write_to_stderr(_printable_text(text))

    def failed(self, command: str, explanation: Explanation, *, document: bool = True) -> None:
        """Report an error in up to three lines, and as a JSON document where requested.

        Args:
            command: The command that failed.
            explanation: The error.
            document: False if the command's own document names the error.
        """
        if self.json and document:
            self._document({"command": command, "error": explanation})
        for mark, line in (("rlds:", explanation.what), ("  why:", explanation.why), ("  next:", explanation.hint)):
            if line:
                _write_to_stderr(f"{self._marked(mark)} {_printable_text(line)}")

    def traceback(self, error: Exception) -> None:
        """Show where an error came from."""
        import traceback

        traceback.print_exception(error, file=sys.stderr)

    def _document(self, data: Mapping[str, Any]) -> None:
        _write(sys.stdout, [json.dumps(as_json({"schema_version": SCHEMA_VERSION, **data}), indent=1, allow_nan=False)])

    def width(self, stream: TextIO) -> int | None:
        """Return the width of the terminal of a stream, in columns. None without a terminal."""
        if not stream.isatty() or self.env.get("TERM") == "dumb" or self.env.get("CI"):
            return None
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns):
            return int(columns)
        try:
            return os.get_terminal_size(stream.fileno()).columns or _USUAL
        except (OSError, ValueError):  # a replaced stream that reports a terminal but has none
            return _USUAL

    def color(self) -> bool:
        """Return whether a terminal may show bold text and colors."""
        return not self.no_color and not self.env.get("NO_COLOR") and self.env.get("TERM") != "dumb"

    def _marked(self, mark: str) -> str:
        return f"\x1b[1;31m{mark}\x1b[0m" if self.color() and sys.stderr.isatty() else mark


def count_text(number: int, unit: str) -> str:
    """Write a number of things: ``1 step``, ``2,000 steps``."""
    return f"{number:,} {unit}{'s' * (number != 1)}"


def steps_text(sized: Any) -> str:
    """Write the steps and the episodes of what has both numbers: ``2,000 steps in 10 episodes``."""
    return f"{count_text(sized.steps, 'step')} in {count_text(sized.episodes, 'episode')}"


def short_count_text(number: int | None) -> str:
    """Write a count for the column of a table: ``6,729``, ``403k``, ``1.0M``, ``50M``. A dash for an unknown count."""
    if number is None:
        return "-"
    if number < 100_000:
        return f"{number:,}"
    if number < 999_500:
        return f"{number / 1e3:.0f}k"
    return f"{number / 1e6:.1f}M" if number < 9_950_000 else f"{number / 1e6:,.0f}M"


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


def as_json(value: Any) -> Any:
    """Return a value for JSON: a dataclass as an object, a path or a class as text, NaN and infinity as null."""
    if isinstance(value, type):
        return value.__name__
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _printable_text(text: str) -> str:
    # Manifests and servers are not ours: their texts must not steer the terminal.
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escape_character(one) for one in text)


def _escape_character(one: str) -> str:
    return " " if one.isspace() and ord(one) > 0x1F else one.encode("unicode_escape").decode("ascii")


def _write(stream: TextIO, lines: Sequence[str]) -> None:
    stream.writelines(f"{line}\n" for line in lines)


def _write_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _cell_text(text: str) -> str:
    return _printable_text(text).replace("\n", " ")


def _page_lines(blocks: Sequence[Block], width: int | None, *, bold: bool) -> list[str]:
    """Return the lines of a page, for a terminal of `width` columns or for a pipe."""
    lines: list[str] = []
    for block in blocks:
        if block.title:
            title = _cell_text(block.title)
            lines += [""] * bool(lines) + [title if width is None else emphasize(title, bold=bold)]
        lines += _piped_lines(block) if width is None else _fitted_lines(block, width, bold=bold)
    return lines


def _piped_lines(block: Block) -> list[str]:
    if isinstance(block, Lines):
        return [("  " if block.title else "") + _printable_text(line) for line in block.lines]
    if isinstance(block, Facts):
        return ["\t".join(map(_cell_text, pair)) for pair in block.pairs if pair[1]]
    if isinstance(block, Bars):
        return [f"{_cell_text(label)}\t{count}" for label, count in block.rows]
    rows = block.rows if block.piped is None else block.piped
    rows = (block.header, *rows) if block.title else rows
    return ["\t".join(map(_cell_text, row)) for row in rows]


def _fitted_lines(block: Block, width: int, *, bold: bool) -> list[str]:
    margin = "  " if block.title else ""
    room = max(width - len(margin), 1)
    if isinstance(block, Facts):
        shown = fact_lines(
            [(_cell_text(name), _cell_text(value)) for name, value in block.pairs if value], room, bold=bold
        )
    elif isinstance(block, Bars):
        shown = _bar_lines([(_cell_text(label), count) for label, count in block.rows], room)
    elif isinstance(block, Table):
        rows = [tuple(map(_cell_text, row)) for row in block.rows]
        header = tuple(map(_cell_text, block.header))
        if block.listing:
            shown = _listing_lines(header, rows, room, shortens=not block.numbers, bold=bold)
        else:
            shown = _table_lines(header, rows, room, bold=bold)
        shown += wrap_text(block.legend, room) if block.legend else []
    elif block.title:
        shown = [line for text in block.lines for line in wrap_text(_printable_text(text), room)]
    else:
        # Paths, and text for other programs, are copied, and must stay unchanged.
        shown = [_printable_text(line) for line in block.lines]
    return [f"{margin}{line}" for line in shown]


def _table_lines(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int, *, bold: bool) -> list[str]:
    columns = list(zip(header, *rows, strict=True))
    natural = [max(map(_text_width, column)) for column in columns]
    longest = [max(_text_width(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    widths = _shrunk_widths(natural, longest, width - _GAP * (len(columns) - 1))
    if widths is None:
        records = [
            fact_lines([pair for pair in zip(header, row, strict=True) if pair[1]], width, bold=bold) for row in rows
        ]
        return list(chain.from_iterable([""] * bool(number) + record for number, record in enumerate(records)))
    head = [emphasize(line, bold=bold) for line in _row_lines(header, widths)]
    return head + [line for row in rows for line in _row_lines(row, widths)]


def _shrunk_widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return the widths of columns that fit, the widest shrunk to the same level. None if words do not fit."""
    if sum(least) > room:
        return None
    for level in range(max(natural), 0, -1):
        widths = [max(low, min(full, level)) for full, low in zip(natural, least, strict=True)]
        if sum(widths) <= room:
            return widths
    return list(least)


def _row_lines(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [wrap_text(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [
        (" " * _GAP).join(_pad_text(part, width) for part, width in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*wrapped, fillvalue="")
    ]


def fact_lines(pairs: Sequence[tuple[str, str]], width: int, *, bold: bool) -> list[str]:
    """Return names with values at the right, or below where the width does not suffice."""
    start = max((_text_width(name) for name, _ in pairs), default=0) + _GAP
    below = width - start < _LEAST
    if below:
        start = _GAP
    lines: list[str] = []
    for name, value in pairs:
        first, *more = wrap_text(value, max(width - start, 1))
        names = [emphasize(part, bold=bold) for part in wrap_text(name, width)] if below else []
        beside = emphasize(name, bold=bold) + " " * (start - _text_width(name)) if not below else " " * start
        lines += [*names, f"{beside}{first}", *(" " * start + line for line in more)]
    return lines


def _bar_lines(rows: Sequence[tuple[str, int]], width: int) -> list[str]:
    """Return a line for each row: the label and the count, both at the right of a column, and the bar."""
    labels = max((_text_width(label) for label, _ in rows), default=0)
    counts = max((len(f"{count:,}") for _, count in rows), default=0)
    room, most = max(width - labels - counts - 2 * _GAP, 1), max((count for _, count in rows), default=0) or 1
    return [
        f"{' ' * (labels - _text_width(label))}{label}{' ' * _GAP}{count:>{counts},}{' ' * _GAP}{_bar(count, most, room)}".rstrip()
        for label, count in rows
    ]


def _bar(count: int, most: int, width: int) -> str:
    """Return a bar in eighths of a column, at least 1 for a count above 0."""
    eighths = max(round(8 * width * count / most), int(count > 0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def sparkline(counts: Sequence[int]) -> str:
    """Return a histogram as a word, a letter for each bin, ``·`` for an empty bin."""
    most = max(counts, default=0)
    return "".join("▁▂▃▄▅▆▇█"[(8 * count - 1) // most] if count else "·" for count in counts)


def value_text(value: Any) -> str:
    """Write a value of a field for readers: four digits of a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def number_text(value: float | None) -> str:
    """Write a number of a statistic for readers: four digits, three of very large and very small numbers, and "-" for None."""
    if value is None:
        return "-"
    text = f"{value:.4g}"
    return f"{value:.2e}" if "e" in text else text


def _listing_lines(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int, *, shortens: bool, bold: bool
) -> list[str]:
    """Return a line for the headings and for each row.

    Beside a first cell that is wider than its column, the others move to the right. Where they leave the window, the
    cell takes a separate line, and stays whole. A number stays beside the others, which are shortened.
    """
    cells = [header, *rows]
    filled = [n for n, column in enumerate(zip(*cells, strict=True)) if not n or not set(column[1:]) <= _NOTHING]
    last = len(header) - 1 if shortens else -1
    natural = [max(map(_text_width, column)) for column in zip(*cells, strict=True)]
    shown = _fitting_columns(filled, natural, width, last)
    left_out = [] if shortens else [header[n] for n in filled if n not in shown]
    cells = [tuple(row[n] for n in shown) for row in cells]
    widths = [natural[n] for n in shown]
    shortens = shown[-1] == last
    room = width - sum(_GAP + one for one in widths[1:-1]) - _GAP
    beside = room - (min(widths[-1], width // 3) if shortens else widths[-1])
    widths[0] = min(widths[0], max(beside, min(width // 2, room - min(widths[-1], _LEAST)), _NUMBER))
    # Where every row moves the others to the right, the headings move, too.
    shortest = min((_text_width(first) for first, *_ in cells[1:]), default=0)
    widths[0] = max(widths[0], shortest) if shortest < room else widths[0]
    starts = [*accumulate(_GAP + one for one in widths)]
    lines = []
    for number, row in enumerate(cells):
        found = _listing_row_lines(row, starts, width, shortens=shortens)
        lines += found if number else [emphasize(line, bold=bold) for line in found]
    if left_out:
        lines += wrap_text(f"no room for {', '.join(left_out)}. --json has all", width)
    return lines


def _fitting_columns(columns: Sequence[int], widths: Sequence[int], width: int, last: int) -> list[int]:
    """Return the columns that fit beside first cells of up to half of the width, from the left.

    The last column of the table, which can be shortened, follows the others if they fit, or if there is room for it.
    """
    first, *others = columns
    room = width - min(widths[first], width // 2)
    kept = [first]
    for column in (one for one in others if one != last):
        if widths[column] + _GAP > room:
            break
        kept.append(column)
        room -= widths[column] + _GAP
    if last in others and (len(kept) == len(others) or room >= _GAP + min(widths[last], _LEAST)):
        kept.append(last)
    return kept


def _listing_row_lines(row: Sequence[str], starts: Sequence[int], width: int, *, shortens: bool) -> list[str]:
    first, *rest = row
    line, needed = first, 0
    for cell, start in zip(rest, starts, strict=False):
        needed = _text_width(line)
        line = _pad_text(line, max(start, needed + _GAP)) + cell
    needed = needed if shortens else _text_width(line)
    if needed <= width or _text_width(first) <= _NUMBER:
        return [_shorten(line.rstrip(), width)]
    return [*_fold_word(first, width), *_listing_row_lines(["", *rest], starts, width, shortens=shortens)]


def _shorten(text: str, width: int) -> str:
    return text if _text_width(text) <= width else f"{_fold_word(text, width - 1)[0]}…"


def wrap_text(text: str, width: int) -> list[str]:
    """Break a text between words. A word that is longer than a line is folded."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _text_width(joined) <= width:
            lines[-1] = joined
        else:
            lines[len(lines) - (not lines[-1]) :] = _fold_word(word, width)
    return lines


def _fold_word(word: str, width: int) -> list[str]:
    lines = [""]
    for letter in word:
        if lines[-1] and _text_width(lines[-1]) + _text_width(letter) > width:
            lines.append("")
        lines[-1] += letter
    return lines


def _pad_text(text: str, width: int) -> str:
    return text + " " * (width - _text_width(text))


def _text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(one) in "WF" else not combining(one) for one in text)


def emphasize(text: str, *, bold: bool) -> str:
    """Return a text in bold letters, if wanted."""
    return f"\x1b[1m{text}\x1b[0m" if bold and text else text
