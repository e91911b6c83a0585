"""The packed-row layout: where each field of a step lies in its record.

One record holds every narrow field of one step, so that a batch is one gather. Fields that exist at t and at t+1
(`carried`: the observation, the info) are stored once and stand first, so that a window of one record and the carried
part of the record after it holds a whole transition:

    record i                                      record i+1
    |<--------- record_bytes -------------------->|
    | carried: s_i | action, reward, flags ... pad | carried: s_i+1 | ...
    |<---------------------- window_bytes ------------------------>|

A field of at least `WIDE_BYTES` bytes (an image) has a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from datasets_rl.errors import BadArgument
from datasets_rl.ted.keys import NEXT, Key, as_key, dotted

__all__ = ["ROWS_FILE", "WIDE_BYTES", "Column", "Field", "Schema"]

ROWS_FILE = "rows.npy"
WIDE_BYTES = 1024  # measured: format/FORMAT.md, "Where wide fields begin"
_RECORD_ALIGN = 8
_KINDS = frozenset("biuf")


@dataclass(frozen=True, slots=True)
class Column:
    """A field before it has a place: what one step of it is."""

    key: Key
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Axes of one step, without the leading [N]."""
    carried: bool = False
    """Stored once for t and t+1: the value at t+1 is the next record's."""
    read_as: np.dtype[Any] | None = None
    """The dtype in memory where it is wider than the stored one."""

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Field(Column):
    """A column with its place on disk."""

    file: str = ROWS_FILE
    """The file that holds it, relative to the dataset's folder."""
    offset: int = 0
    """Bytes from the start of the record; 0 in a file of its own."""

    @property
    def name(self) -> str:
        """The key with dots: the name of the field in the structured dtype."""
        return dotted(self.key)

    @property
    def wide(self) -> bool:
        """Whether the field has a file of its own."""
        return self.file != ROWS_FILE

    @property
    def final_file(self) -> str:
        """The file with the value after the last action of each episode; only carried fields have one."""
        return f"final.{self.name}.npy" if self.wide else "final.npy"

    def to_json(self) -> dict[str, Any]:
        """Describe the field for the manifest."""
        entry: dict[str, Any] = {
            "key": list(self.key),
            "dtype": self.dtype.str,
            "shape": list(self.shape),
            "file": self.file,
            "offset": self.offset,
            "carried": self.carried,
        }
        if self.read_as is not None:
            entry["read_as"] = self.read_as.str
        return entry


class Schema:
    """The fields of a dataset and their places.

    Args:
        fields: Every field, with its place.

    Raises:
        BadArgument: If two fields have one key or overlap, or a field leaves its record; all faults at once.
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields: tuple[Field, ...] = tuple(fields)
        narrow = self.narrow
        end = max((field.offset + field.step_bytes for field in narrow), default=0)
        self.record_bytes: int = _round_up(end, _RECORD_ALIGN)
        carried_end = max((field.offset + field.step_bytes for field in narrow if field.carried), default=0)
        self.window_bytes: int = self.record_bytes + _round_up(carried_end, _RECORD_ALIGN)
        problems = list(_faults(self.fields))
        if problems:
            raise BadArgument(f"the schema is inconsistent: {'; '.join(problems)}")

    @classmethod
    def layout(cls, columns: Iterable[Column], *, wide_bytes: int = WIDE_BYTES) -> Schema:
        """Give every column its place: carried fields first, then by item size, so that all are aligned.

        Args:
            columns: The columns, in the order in which they are to be listed.
            wide_bytes: Bytes of one step from which a column gets a file of its own.
        """
        columns = list(columns)
        places: dict[Key, int] = {}
        offset = 0
        for column in sorted(columns, key=lambda column: (not column.carried, -column.dtype.itemsize)):
            if column.step_bytes < wide_bytes:
                offset = _round_up(offset, column.dtype.itemsize)
                places[column.key] = offset
                offset += column.step_bytes
        return cls(_placed(column, places.get(column.key)) for column in columns)

    @property
    def narrow(self) -> tuple[Field, ...]:
        """The fields inside the record."""
        return tuple(field for field in self.fields if not field.wide)

    @property
    def wide(self) -> tuple[Field, ...]:
        """The fields with a file of their own."""
        return tuple(field for field in self.fields if field.wide)

    @cached_property
    def record(self) -> np.dtype[np.void]:
        """The structured dtype of one record of rows.npy."""
        return _structured(self.narrow, self.record_bytes)

    @cached_property
    def final_record(self) -> np.dtype[np.void]:
        """The structured dtype of one record of final.npy: the carried fields, at the same offsets."""
        return _structured([field for field in self.narrow if field.carried], self.window_bytes - self.record_bytes)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __getitem__(self, key: Key) -> Field:
        return self._by_key[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.dtype.name}{list(field.shape)}" for field in self.fields)
        return f"Schema({fields}; {self.record_bytes} bytes a record)"

    @cached_property
    def _by_key(self) -> Mapping[Key, Field]:
        return {field.key: field for field in self.fields}

    def to_json(self) -> list[dict[str, Any]]:
        """Describe the schema for the manifest."""
        return [field.to_json() for field in self.fields]

    @classmethod
    def from_json(cls, entries: Any) -> Schema:
        """Read a schema back from a manifest, trusting nothing in it.

        Raises:
            BadArgument: If an entry is not a field, or the fields contradict each other.
        """
        if not isinstance(entries, list) or not entries:
            raise BadArgument(f"schema is {type(entries).__name__}; expected a list of fields")
        return cls(_field_from_json(number, entry) for number, entry in enumerate(entries))


def _placed(column: Column, offset: int | None) -> Field:
    return Field(
        key=column.key,
        dtype=column.dtype,
        shape=column.shape,
        carried=column.carried,
        read_as=column.read_as,
        file=ROWS_FILE if offset is not None else f"{dotted(column.key)}.npy",
        offset=offset or 0,
    )


def _field_from_json(number: int, entry: Any) -> Field:
    try:
        read_as = entry.get("read_as")
        field = Field(
            key=as_key(entry["key"]),
            dtype=np.dtype(str(entry["dtype"])),
            shape=tuple(int(size) for size in entry["shape"]),
            carried=entry["carried"] is True,
            read_as=None if read_as is None else np.dtype(str(read_as)),
            file=str(entry["file"]),
            offset=int(entry["offset"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadArgument(f"schema entry {number} is not a field: {error!r}") from error
    if field.file not in {ROWS_FILE, f"{field.name}.npy"}:
        raise BadArgument(f"schema entry {number} ({field.name}) lies in {field.file!r}; expected {ROWS_FILE!r}")
    return field


def _structured(fields: Iterable[Field], record_bytes: int) -> np.dtype[np.void]:
    # In the order of their offsets: the header of an .npy file cannot name them in another.
    fields = sorted(fields, key=lambda field: field.offset)
    spec: dict[str, Any] = {
        "names": [field.name for field in fields],
        "formats": [(field.dtype, field.shape) for field in fields],
        "offsets": [field.offset for field in fields],
        "itemsize": record_bytes,
    }
    record: np.dtype[np.void] = np.dtype(spec)  # type: ignore[call-overload]  # numpy's stubs want a TypedDict
    return record


def _faults(fields: tuple[Field, ...]) -> Iterator[str]:
    seen: set[Key] = set()
    taken: list[tuple[int, int, str]] = []
    for field in fields:
        if field.key in seen:
            yield f"{field.name} is there twice"
        seen.add(field.key)
        yield from _field_faults(field)
        if not field.wide:
            taken.append((field.offset, field.offset + field.step_bytes, field.name))
    for (_, end, left), (start, _, right) in pairwise(sorted(taken)):
        if start < end:
            yield f"{left} and {right} overlap"


def _field_faults(field: Field) -> Iterator[str]:
    if field.dtype.kind not in _KINDS or not field.dtype.isnative:
        yield f"{field.name} has dtype {field.dtype.str}; expected a bool, integer or float of this machine's byte order"
    if any(size <= 0 for size in field.shape):
        yield f"{field.name} has shape {list(field.shape)}; expected sizes above 0"
    if field.offset < 0 or field.offset % max(field.dtype.itemsize, 1):
        yield f"{field.name} has offset {field.offset}; expected a multiple of {field.dtype.itemsize}"
    if any(set(name) & set("/\\\0") or name in {".", ".."} for name in field.key):
        yield f"{field.name!r} has a name that is not a file name"
    if field.carried and field.key[0] == NEXT:
        yield f"{field.name} is carried; only root fields are"


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
