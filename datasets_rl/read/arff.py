"""Reader of dense ARFF files, which have a header of attributes and a row of text for each sample.

    @relation weather
    @attribute outlook {sunny, 'light rain'}
    @attribute temperature numeric
    @data
    sunny, 25.5
    'light rain', ?                        a missing value

The rows are read in blocks of a few megabytes. pandas parses the fields, but does not check that every row has as many
fields as there are attributes, which is checked here. scipy.io.arff takes 3.6 times as long for 100,000 rows of eight
numbers and a category, holds all rows in memory, and reads no text.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import first_problems, refuse

_BLOCK_BYTES = 8 << 20
_HEADER_MAX_BYTES = 16 << 20
_PROBLEMS_MAX = 20
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.+)", re.IGNORECASE | re.DOTALL)
# The pattern does not backtrack, because a row of blanks would otherwise take exponential time.
_FIELD = re.compile(rf"\s*({_QUOTED}(?=\s*(?:,|\Z))|[^,]*)\s*(,|\Z)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_NUMERIC = frozenset({"numeric", "real", "integer"})
_COMMENT = ord("%")
_MISSING = "?"
_SPECIAL = (b"'", b'"', b"\\", b" ,", b"\t")
"""Characters that require a row to be parsed field by field."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """Column of the file."""

    name: str
    kind: str
    """``numeric``, ``nominal``, or another type of the file, such as ``string`` or ``date``."""
    allowed: tuple[str, ...] = ()
    """Declared values of a nominal attribute."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Block of T rows."""

    start: int
    """Number of the first row."""
    count: int
    """Number of rows, T."""
    numbers: Mapping[int, NDArray[np.float64]]
    """Values of the numeric attributes, by position, [T] each, with NaN for missing values."""
    codes: Mapping[int, NDArray[np.int32]]
    """Indices of the values of nominal attributes in the declared values, by position, [T] each, or -1 if missing."""


class ArffFile:
    """Dense ARFF file. The header is read on construction.

    Raises:
        ConversionError: If the header is invalid. The error names every problem.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        problems: list[str] = []
        self.attributes: Sequence[Attribute] = self._read_header(problems)
        if problems:
            raise ConversionError(path.name, problems[:_PROBLEMS_MAX])

    def rows(self, attributes: Collection[int]) -> Iterator[Rows]:
        """Read the rows in order.

        Args:
            attributes: The positions of the numeric or nominal attributes to read.

        Raises:
            ConversionError: If a row has another number of fields, or an invalid value. The error names every problem
                of a block.
        """
        start = 0
        for lines in self._line_blocks():
            yield self._parse_rows(lines, sorted(attributes), start)
            start += len(lines)

    def _read_header(self, problems: list[str]) -> list[Attribute]:
        attributes: list[Attribute] = []
        with self._path.open("rb") as stream:
            while line := stream.readline(_HEADER_MAX_BYTES):
                if stream.tell() > _HEADER_MAX_BYTES:
                    break
                text = _decode_line(line, self._path.name).strip()
                if text.lower().startswith("@data"):
                    self._begin = stream.tell()
                    return attributes
                if text.lower().startswith("@attribute"):
                    attributes.append(_parse_attribute(text, problems))
                elif text and not text.startswith("%") and not text.lower().startswith("@relation"):
                    problems.append(f"the header has the line {text!r:.60}, expected @attribute or @data")
                    return attributes
        problems.append("it has no @data")
        return attributes

    def _line_blocks(self) -> Iterator[list[bytes]]:
        """Yield the lines of the rows in blocks, without comments and empty lines."""
        with self._path.open("rb") as stream:
            stream.seek(self._begin)
            rest = b""
            while block := stream.read(_BLOCK_BYTES):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if not newline and len(rest) > _BLOCK_BYTES:
                    raise ConversionError(self._path.name, [f"a row has more than {_BLOCK_BYTES:,} bytes"])
                if lines := _data_lines(whole):
                    yield lines
            if lines := _data_lines(rest):
                yield lines

    def _parse_rows(self, lines: list[bytes], attributes: Sequence[int], start: int) -> Rows:
        problems: list[str] = []
        self._check_fields(lines, start, problems)
        self._raise_problems(problems)
        nominal = [position for position in attributes if self.attributes[position].kind == "nominal"]
        numeric = [position for position in attributes if position not in nominal]
        body, reason, suspicious = b"\n".join(lines), "", False
        try:
            frame = self._parse_frame(body, attributes, nominal)
            codes = {position: frame[position].array.codes.astype(np.int32) for position in nominal}
            numbers = {position: frame[position].to_numpy(np.float64) for position in numeric}
        except (ValueError, Warning) as error:
            reason = str(error)
        else:
            reason = f"it has {len(frame):,} rows in {len(lines):,} lines" * (len(frame) != len(lines))
            # Older versions of pandas treat such values as missing.
            reason += "it has undeclared values" * any((values < 0).any() for values in codes.values())
            # Booleans, and strings that only Python accepts as numbers, such as 1_000.
            suspicious = any(frame[position].dtype.kind not in "iuf" for position in numeric)
            suspicious |= any(np.isinf(values).any() for values in numbers.values())
        if reason or suspicious or b"nan" in body.lower():
            self._raise_problems(list(islice(self._value_problems(lines, attributes, start), _PROBLEMS_MAX)))
        if reason:
            self._raise_problems([f"the rows that begin at {start:,} cannot be read: {reason}"])
        for position, values in codes.items():
            values[values == len(self.attributes[position].allowed)] = -1
        return Rows(start, len(lines), numbers, codes)

    def _parse_frame(self, body: bytes, attributes: Sequence[int], nominal: Sequence[int]) -> Any:
        """Parse rows with pandas.

        Raises:
            ValueError, Warning: If a value is invalid for the attribute.
        """
        import pandas as pd

        # The categories are declared to pandas, which would otherwise parse 1.50 as 1.5.
        dtypes = {position: pd.CategoricalDtype([*self.attributes[position].allowed, _MISSING]) for position in nominal}
        options: dict[str, Any] = {
            "header": None,
            "names": range(len(self.attributes)),
            "usecols": attributes,
            "dtype": dtypes,
            "na_values": {position: [_MISSING] for position in attributes if position not in dtypes},
            "keep_default_na": False,
            "skipinitialspace": True,
            "skip_blank_lines": False,
            "low_memory": False,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pd.read_csv(io.BytesIO(body), **options)

    def _value_problems(self, lines: Sequence[bytes], attributes: Sequence[int], start: int) -> Iterator[str]:
        """Yield a problem for each value that is invalid for the attribute."""
        for row, line in enumerate(lines):
            fields = _split_fields(_decode_line(line, self._path.name))
            for position in attributes:
                attribute, value = self.attributes[position], fields[position]
                allowed = attribute.allowed
                number = not allowed and _NUMBER.fullmatch(value) is not None and math.isfinite(float(value))
                if not (number or value == _MISSING or value in allowed):
                    shown = f"one of {', '.join(allowed[:8])}{', ...' * (len(allowed) > 8)}"
                    expected = shown if allowed else "a finite number"
                    yield f"row {start + row:,}: {attribute.name} is {value!r:.60}, expected {expected}"

    def _check_fields(self, lines: list[bytes], start: int, problems: list[str]) -> None:
        """Check that every row has all fields, and rewrite rows with quotes in the form that pandas parses."""
        commas = len(self.attributes) - 1
        uneven = [row for row, line in enumerate(lines) if line.count(b",") != commas]
        whole = b"\n".join(lines)
        marks = [mark for mark in _SPECIAL if mark in whole]
        if marks:
            uneven = [row for row, line in enumerate(lines) if any(mark in line for mark in marks)] + uneven
        for row in sorted({*uneven}):
            line = lines[row]
            if line.startswith(b"{"):
                problems.append(f"row {start + row:,} is sparse: {line[:40]!r}, expected a value for each attribute")
                continue
            fields = _split_fields(_decode_line(line, self._path.name))
            if len(fields) != commas + 1:
                problems.append(f"row {start + row:,} has {len(fields)} fields, expected {commas + 1}: {line[:60]!r}")
                continue
            quoted = (f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields)
            lines[row] = ",".join(quoted).encode()

    def _raise_problems(self, problems: Sequence[str]) -> None:
        refuse(self._path.name, first_problems(problems))


def _parse_attribute(text: str, problems: list[str]) -> Attribute:
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        problems.append(f"the header has the line {text!r:.60}, expected @attribute NAME TYPE")
        return Attribute(text, "unknown")
    name, kind = _unquote(match[1]), match[2].strip()
    if kind.startswith("{") and kind.endswith("}"):
        values = dict.fromkeys(_split_fields(kind[1:-1]))
        return Attribute(name, "nominal", tuple(value for value in values if value != _MISSING))
    kind = kind.split()[0].lower()  # a range may follow
    return Attribute(name, "numeric" if kind in _NUMERIC else kind)


def _split_fields(line: str) -> list[str]:
    """Split a row at commas, except for commas inside quotes."""
    fields = []
    for match in _FIELD.finditer(line):
        fields.append(_unquote(match[1].rstrip()))
        if not match[2]:
            break
    return fields


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text


def _data_lines(block: bytes) -> list[bytes]:
    return [text for line in block.splitlines() if (text := line.strip()) and text[0] != _COMMENT]


def _decode_line(line: bytes, name: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConversionError(name, [f"it is not UTF-8 text: {error}"]) from error
