"""The packed-row layout: where each field of a step lies in its record.

One record holds every narrow field of one step, so that a batch is one gather. Fields that exist at t and at t+1
(`shared`: the observation, the info) are stored once and stand first, so that a window of one record and the carried
part of the record after it holds a whole transition:

    record i                                      record i+1
    |<--------- record_bytes -------------------->|
    | carried: s_i | action, reward, flags ... pad | carried: s_i+1 | ...
    |<---------------------- window_bytes ------------------------>|

A field of at least `WIDE_BYTES` bytes (an image) has a file of its own. Pictures may stay encoded: their bytes then lie
back to back in that file, and a second one says where each ends.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, ROOT_FLAGS, Key, dotted

__all__ = ["NAME_BYTES", "ROWS_FILE", "WIDE_BYTES", "Column", "Field", "Schema", "upgraded_schema"]

ROWS_FILE = "rows.npy"
_FORMER_KEYS = {"carried": "shared", "read_as": "memory_dtype"}
"""The keys of version 1 of the format that have another name in version 2."""
WIDE_BYTES = 4096  # measured: format/FORMAT.md, "Where wide fields begin"
NAME_BYTES = 200
"""The longest dotted key: file names have 255 bytes, and those of a field, also while it is written, add up to 40."""
_RECORD_ALIGN = 8
_END_BYTES = 8  # an int64 a picture
_PICTURE_AXES = 3
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")}
"""The dtypes that torch gathers and writes; it cannot do either with wider unsigned integers."""
_OWN_FILES = frozenset({"rows", "final", "episodes"})


@dataclass(frozen=True, slots=True)
class Column:
    """A field before it has a place: what one step of it is."""

    key: Key
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Axes of one step, without the leading [N]."""
    shared: bool = False
    """Stored once for t and t+1: the value at t+1 is the next record's."""
    memory_dtype: np.dtype[Any] | None = None
    """The dtype in memory where it is wider than the stored one."""
    text: bool = False
    """The numbers stand for texts, which lie in a file of their own; int32, one a step."""
    encoded: bool = False
    """Pictures that are stored as PNG or JPEG and decoded when they are read; `shape` is that of the decoded ones."""

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def least_bytes(self) -> int:
        """Bytes on the disk of one step: all of them, but for pictures that stay encoded, whose size nobody knows."""
        return _END_BYTES if self.encoded else self.step_bytes


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

    @property
    def ends_file(self) -> str:
        """The file that says behind which byte each encoded picture ends."""
        return f"{self.name}.ends.npy"

    @property
    def final_ends_file(self) -> str:
        """The same for the pictures after the last action of each episode; one that is not known has no bytes."""
        return f"final.{self.name}.ends.npy"

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of all .npy files that hold this field."""
        final_states = (self.final_file, self.final_ends_file) if self.shared else ()
        if self.encoded:
            return (self.file, self.ends_file, *final_states)
        return (self.file, *final_states[:1])

    @property
    def texts_file(self) -> str:
        """The file with the texts that the numbers stand for: a JSON list; only text fields have one."""
        return f"{self.name}.texts.json"

    def to_json(self) -> dict[str, Any]:
        """Describe the field for the manifest."""
        entry: dict[str, Any] = {
            "key": list(self.key),
            "dtype": self.dtype.str,
            "shape": list(self.shape),
            "file": self.file,
            "offset": self.offset,
            "shared": self.shared,
        }
        if self.memory_dtype is not None:
            entry["memory_dtype"] = self.memory_dtype.str
        if self.text:
            entry["text"] = True
        if self.encoded:
            entry["encoded"] = True
        return entry


class Schema:
    """The fields of a dataset and their places.

    Args:
        fields: Every field, with its place.

    Raises:
        InvalidArgumentError: If two fields have one key or overlap, or a field leaves its record; all faults at once.
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields: tuple[Field, ...] = tuple(fields)
        narrow = self.narrow
        end = max((field.offset + field.step_bytes for field in narrow), default=0)
        self.record_bytes: int = _round_up(end, _RECORD_ALIGN)
        carried_end = max((field.offset + field.step_bytes for field in narrow if field.shared), default=0)
        self.window_bytes: int = self.record_bytes + _round_up(carried_end, _RECORD_ALIGN)
        problems = list(_faults(self.fields))
        if problems:
            raise InvalidArgumentError(f"the schema is inconsistent: {'; '.join(problems)}")

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
        for column in sorted(columns, key=lambda column: (not column.shared, -column.dtype.itemsize)):
            if column.step_bytes < wide_bytes and not column.encoded:
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
        return _structured([field for field in self.narrow if field.shared], self.final_record_bytes)

    @property
    def final_record_bytes(self) -> int:
        """Bytes of one record of final.npy."""
        return self.window_bytes - self.record_bytes

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
            InvalidArgumentError: If an entry is not a field, or the fields contradict each other.
        """
        if not isinstance(entries, list) or not entries:
            raise InvalidArgumentError(f"schema is {type(entries).__name__}; expected a list of fields")
        problems = [problem for number, entry in enumerate(entries) for problem in _entry_faults(number, entry)]
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        return cls(map(_field_from_json, entries))


def _placed(column: Column, offset: int | None) -> Field:
    return Field(
        key=column.key,
        dtype=column.dtype,
        shape=column.shape,
        shared=column.shared,
        memory_dtype=column.memory_dtype,
        text=column.text,
        encoded=column.encoded,
        file=ROWS_FILE if offset is not None else f"{dotted(column.key)}.npy",
        offset=offset or 0,
    )


def upgraded_schema(entries: Any) -> Any:
    """Return the schema of a manifest of version 1 with the keys of version 2."""
    if not isinstance(entries, list):
        return entries
    return [
        {_FORMER_KEYS.get(name, name): value for name, value in one.items()} if isinstance(one, dict) else one
        for one in entries
    ]


def _field_from_json(entry: Mapping[str, Any]) -> Field:
    memory_dtype = entry.get("memory_dtype")
    return Field(
        key=tuple(entry["key"]),
        dtype=_DTYPES[entry["dtype"]],
        shape=tuple(entry["shape"]),
        shared=entry["shared"],
        memory_dtype=None if memory_dtype is None else _DTYPES[memory_dtype],
        text=entry.get("text", False),
        encoded=entry.get("encoded", False),
        file=entry["file"],
        offset=entry["offset"],
    )


def _entry_faults(number: int, entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"schema[{number}] is {shorten(entry)}; expected a field"
        return
    for name, right, wanted in _ENTRY_RULES:
        if not right(entry.get(name)):
            yield f"schema[{number}].{name} is {shorten(entry.get(name))}; expected {wanted}"
    key: Any = entry.get("key")
    if _is_key(key) and entry.get("file") not in {ROWS_FILE, f"{dotted(key)}.npy"}:
        yield f"schema[{number}].file is {shorten(entry.get('file'))}; expected {ROWS_FILE!r} or the key's own file"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_key(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_ENTRY_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("key", _is_key, "a list of names"),
    ("dtype", lambda value: isinstance(value, str) and value in _DTYPES, f"one of {', '.join(_DTYPES)}"),
    (
        "memory_dtype",
        lambda value: value is None or (isinstance(value, str) and value in _DTYPES),
        "a dtype or nothing",
    ),
    ("shape", lambda value: isinstance(value, list) and all(map(_is_whole, value)), "a list of whole numbers"),
    ("offset", _is_whole, "a whole number"),
    ("shared", lambda value: isinstance(value, bool), "true or false"),
    ("text", lambda value: value is None or isinstance(value, bool), "true or false"),
    ("encoded", lambda value: value is None or isinstance(value, bool), "true or false"),
)


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
    groups = {field.key[:depth] for field in fields for depth in range(1, len(field.key))}
    groups |= {(NEXT, *field.key[:depth]) for field in fields if field.shared for depth in range(1, len(field.key))}
    following = {(NEXT, *field.key) for field in fields if field.shared}
    for field in fields:
        if field.key in seen:
            yield f"{field.name} is there twice"
        seen.add(field.key)
        if field.key in groups or field.key in following:
            yield f"{field.name} stands where other fields or a shared one stand"
        yield from _field_faults(field)
        if not field.wide:
            taken.append((field.offset, field.offset + field.step_bytes, field.name))
    for (_, end, left), (start, _, right) in pairwise(sorted(taken)):
        if start < end:
            yield f"{left} and {right} overlap"


def _field_faults(field: Field) -> Iterator[str]:
    if field.dtype.str not in _DTYPES:
        yield f"{field.name} has dtype {field.dtype.str}; expected one of {', '.join(_DTYPES)}"
    if field.memory_dtype is not None and (field.memory_dtype.str not in _DTYPES or field.shared or field.wide):
        yield f"{field.name} is read as {field.memory_dtype.str}; only narrow fields that are not shared can be"
    if field.text and (field.dtype.str, field.shape, field.memory_dtype) != ("<i4", (), None):
        yield f"{field.name} stands for texts and is {field.dtype.str} {list(field.shape)}; expected <i4 []"
    if field.encoded and not (field.wide and field.dtype.str == "|u1" and len(field.shape) == _PICTURE_AXES):
        yield f"{field.name} holds pictures and is {field.dtype.str} {list(field.shape)}; expected |u1 of three axes"
    if any(size <= 0 for size in field.shape):
        yield f"{field.name} has shape {list(field.shape)}; expected sizes above 0"
    if field.offset < 0 or field.offset % max(field.dtype.itemsize, 1):
        yield f"{field.name} has offset {field.offset}; expected a multiple of {field.dtype.itemsize}"
    yield from _name_faults(field)


def _name_faults(field: Field) -> Iterator[str]:
    if any(set(name) & set("/\\\0.") or not name for name in field.key):
        yield f"{field.name!r} has a name that is empty or holds a dot, a slash or a NUL"
    if (size := len(field.name.encode("utf-8", "surrogatepass"))) > NAME_BYTES:
        yield f"{field.name[:40]}... has a name of {size:,} bytes; expected {NAME_BYTES} at most"
    if field.key[0] in _OWN_FILES or field.key in {*ROOT_FLAGS, NEXT_FINAL_KNOWN}:
        yield f"{field.name} has a name that the format uses itself"
    if field.shared and field.key[0] == NEXT:
        yield f"{field.name} is shared; only root fields are"


def shorten(value: Any) -> str:
    """Write a value from a document that is not trusted: it may be as long and as deep as it likes."""
    return reprlib.repr(value)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
