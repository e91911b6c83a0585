"""ARFF: a header of attributes, then a row of text for each sample. Dense files, a few megabytes at a time.

    @relation weather
    @attribute outlook {sunny, 'light rain'}
    @attribute temperature numeric
    @data
    sunny, 25.5
    'light rain', ?                        a missing value

pandas reads what is between the commas; that every row has as many fields as there are attributes, it would not notice.
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

__all__ = ["ArffFile", "Attribute", "Rows"]

_BLOCK_BYTES = 8 << 20
_HEADER_MOST = 16 << 20
_SHOWN_MOST = 20
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.+)", re.IGNORECASE | re.DOTALL)
# Nothing is tried twice at the same place: a row of blanks would take for ever.
_FIELD = re.compile(rf"\s*({_QUOTED}(?=\s*(?:,|\Z))|[^,]*)\s*(,|\Z)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_NUMERIC = frozenset({"numeric", "real", "integer"})
_COMMENT = ord("%")
_MISSING = "?"
_ODD = (b"'", b'"', b"\\", b" ,", b"\t")
"""A row that has one of these is read field by field."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of the file."""

    name: str
    kind: str
    """``numeric``, ``nominal``, or what else the file calls it: ``string``, ``date``."""
    allowed: tuple[str, ...] = ()
    """What a nominal attribute may be."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows from `start` on, T of them."""

    start: int
    count: int
    numbers: Mapping[int, NDArray[np.float64]]
    """For each numeric attribute, by its place: [T]; NaN where the value is missing."""
    codes: Mapping[int, NDArray[np.int32]]
    """For each nominal one the place of its value among the declared ones, [T]; -1 where it is missing."""


class ArffFile:
    """A dense ARFF file, whose header has been read.

    Args:
        path: The file.

    Raises:
        ConversionError: If it is no such file; every fault of the header.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        faults: list[str] = []
        self.attributes: Sequence[Attribute] = self._header(faults)
        if faults:
            raise ConversionError(path.name, faults[:_SHOWN_MOST])

    def rows(self, wanted: Collection[int]) -> Iterator[Rows]:
        """Read the rows, from the first to the last.

        Args:
            wanted: The places of the attributes to read; numeric or nominal ones.

        Raises:
            ConversionError: If a row has another number of fields, or a value that its attribute cannot have; every
                fault among the rows that were read together.
        """
        start = 0
        for lines in self._lines():
            yield self._read(lines, sorted(wanted), start)
            start += len(lines)

    def _header(self, faults: list[str]) -> list[Attribute]:
        attributes: list[Attribute] = []
        with self._path.open("rb") as stream:
            while line := stream.readline(_HEADER_MOST):
                if stream.tell() > _HEADER_MOST:
                    break
                text = _decoded(line, self._path.name).strip()
                if text.lower().startswith("@data"):
                    self._begin = stream.tell()
                    return attributes
                if text.lower().startswith("@attribute"):
                    attributes.append(_attribute(text, faults))
                elif text and not text.startswith("%") and not text.lower().startswith("@relation"):
                    faults.append(f"its header has the line {text!r:.60}; expected @attribute or @data")
                    return attributes
        faults.append("it has no @data")
        return attributes

    def _lines(self) -> Iterator[list[bytes]]:
        """Yield the rows as they stand in the file, without comments and empty lines."""
        with self._path.open("rb") as stream:
            stream.seek(self._begin)
            rest = b""
            while block := stream.read(_BLOCK_BYTES):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if not newline and len(rest) > _BLOCK_BYTES:
                    raise ConversionError(self._path.name, [f"a row has more than {_BLOCK_BYTES:,} bytes"])
                if lines := _data(whole):
                    yield lines
            if lines := _data(rest):
                yield lines

    def _read(self, lines: list[bytes], wanted: Sequence[int], start: int) -> Rows:
        faults: list[str] = []
        self._even(lines, start, faults)
        self._refuse(faults)
        nominal = [place for place in wanted if self.attributes[place].kind == "nominal"]
        numeric = [place for place in wanted if place not in nominal]
        body, reason, odd = b"\n".join(lines), "", False
        try:
            frame = self._frame(body, wanted, nominal)
            codes = {place: frame[place].array.codes.astype(np.int32) for place in nominal}
            numbers = {place: frame[place].to_numpy(np.float64) for place in numeric}
        except (ValueError, Warning) as error:
            reason = str(error)
        else:
            reason = f"it has {len(frame):,} rows in {len(lines):,} lines" * (len(frame) != len(lines))
            # Older versions of pandas let such values pass as missing.
            reason += "it has undeclared values" * any((known < 0).any() for known in codes.values())
            # Truth values, and texts that only Python calls numbers, as 1_000.
            odd = any(frame[place].dtype.kind not in "iuf" for place in numeric)
            odd |= any(np.isinf(one).any() for one in numbers.values())
        if reason or odd or b"nan" in body.lower():
            self._refuse(list(islice(self._misfits(lines, wanted, start), _SHOWN_MOST)))
        if reason:
            self._refuse([f"from row {start:,} on it cannot be read: {reason}"])
        for place, known in codes.items():
            known[known == len(self.attributes[place].allowed)] = -1
        return Rows(start, len(lines), numbers, codes)

    def _frame(self, body: bytes, wanted: Sequence[int], nominal: Sequence[int]) -> Any:
        """Let pandas read rows.

        Raises:
            ValueError, Warning: If a value is not one that its attribute can have.
        """
        import pandas as pd

        # Categories are named to pandas, which would else take 1.50 for 1.5.
        known = {place: pd.CategoricalDtype([*self.attributes[place].allowed, _MISSING]) for place in nominal}
        options: dict[str, Any] = {
            "header": None,
            "names": range(len(self.attributes)),
            "usecols": wanted,
            "dtype": known,
            "na_values": {place: [_MISSING] for place in wanted if place not in known},
            "keep_default_na": False,
            "skipinitialspace": True,
            "skip_blank_lines": False,
            "low_memory": False,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pd.read_csv(io.BytesIO(body), **options)

    def _misfits(self, lines: Sequence[bytes], wanted: Sequence[int], start: int) -> Iterator[str]:
        """Yield the values that their attributes cannot have."""
        for row, line in enumerate(lines):
            fields = _fields(_decoded(line, self._path.name))
            for place in wanted:
                attribute, value = self.attributes[place], fields[place]
                allowed = attribute.allowed
                number = not allowed and _NUMBER.fullmatch(value) is not None and math.isfinite(float(value))
                if not (number or value == _MISSING or value in allowed):
                    shown = f"one of {', '.join(allowed[:8])}{', ...' * (len(allowed) > 8)}"
                    expected = shown if allowed else "a finite number"
                    yield f"row {start + row:,}: {attribute.name} is {value!r:.60}; expected {expected}"

    def _even(self, lines: list[bytes], start: int, faults: list[str]) -> None:
        """Check that every row has all fields; write rows with quotes anew, as pandas wants them."""
        commas = len(self.attributes) - 1
        uneven = [row for row, line in enumerate(lines) if line.count(b",") != commas]
        whole = b"\n".join(lines)
        marks = [mark for mark in _ODD if mark in whole]
        if marks:
            uneven = [row for row, line in enumerate(lines) if any(mark in line for mark in marks)] + uneven
        for row in sorted({*uneven}):
            line = lines[row]
            if line.startswith(b"{"):
                faults.append(f"row {start + row:,} is sparse: {line[:40]!r}; expected a value for each attribute")
                continue
            fields = _fields(_decoded(line, self._path.name))
            if len(fields) != commas + 1:
                faults.append(f"row {start + row:,} has {len(fields)} fields; expected {commas + 1}: {line[:60]!r}")
                continue
            quoted = (f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields)
            lines[row] = ",".join(quoted).encode()

    def _refuse(self, faults: Sequence[str]) -> None:
        if faults:
            more = [f"and {len(faults) - _SHOWN_MOST:,} more"] if faults[_SHOWN_MOST:] else []
            raise ConversionError(self._path.name, [*faults[:_SHOWN_MOST], *more])


def _attribute(text: str, faults: list[str]) -> Attribute:
    found = _ATTRIBUTE.fullmatch(text)
    if found is None:
        faults.append(f"its header has the line {text!r:.60}; expected @attribute NAME TYPE")
        return Attribute(text, "unknown")
    name, kind = _unquoted(found[1]), found[2].strip()
    if kind.startswith("{") and kind.endswith("}"):
        values = dict.fromkeys(_fields(kind[1:-1]))
        return Attribute(name, "nominal", tuple(value for value in values if value != _MISSING))
    kind = kind.split()[0].lower()  # a range may follow
    return Attribute(name, "numeric" if kind in _NUMERIC else kind)


def _fields(line: str) -> list[str]:
    """Cut a row at its commas, but for those inside quotes."""
    fields = []
    for found in _FIELD.finditer(line):
        fields.append(_unquoted(found[1].rstrip()))
        if not found[2]:
            break
    return fields


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text


def _data(block: bytes) -> list[bytes]:
    return [text for line in block.splitlines() if (text := line.strip()) and text[0] != _COMMENT]


def _decoded(line: bytes, name: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConversionError(name, [f"it is no text in UTF-8: {error}"]) from error
