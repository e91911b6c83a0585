"""Schema of the packed-row layout: the position of each field in a record.

A record holds every narrow field of a step, so that a batch is a single gather. Fields that exist at t and at t+1
(`shared`: the observation, the info) are stored once, at the start of the record. A window of a record and the shared
fields of the next record therefore holds a whole transition:

    record i                                      record i+1
    |<--------- record_bytes -------------------->|
    | shared: s_i  | action, reward, flags ... pad | shared: s_i+1  | ...
    |<---------------------- window_bytes ------------------------>|

A field of at least `WIDE_BYTES` bytes per step (an image) has a separate file. Images may stay encoded: that file then
holds the concatenated encoded images, and a second file holds the end offset of each. Compressed images are stored in
the same way, with a third file: the dictionary that all images share. Images that are frames of videos have the number
of a packet each, and a file of these packets.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.fingerprints import fingerprint_files, fingerprinted
from datasets_rl.format.images import FORMS, form_class
from datasets_rl.format.images.base import ArrayFile, Form, ImageForm, WholeFile
from datasets_rl.ted.keys import (
    NEXT,
    NEXT_FINAL_KNOWN,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    ROOT_FLAGS,
    Key,
    dotted_name,
)
from datasets_rl.ted.rewards import reward_dtype

ROWS_FILE = "rows.npy"
FINAL_FILE = "final.npy"
DATA_SUFFIXES = (".npy", ".texts.json", ".dictionary", ".videos.json", ".mp4")
"""Ends of the names of all files of the fields."""
WIDE_BYTES = 4096  # measured: format/FORMAT.md, "Where wide fields begin"
NAME_BYTES = 200
"""Bytes of the longest dotted key. File names have at most 255 bytes. The names of a field's files, temporary files
included, add up to 40 bytes to the key."""
_RECORD_ALIGN = 8
_STORED_FORMS = tuple(FORMS)[1:]  # a field that states none has the first one
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")}
"""Stored dtypes. Wider unsigned integers are missing because torch can neither gather nor write such integers."""
_RESERVED_NAMES = frozenset({"rows", "final", "episodes", "digests", "fingerprints", "sketches"})


@dataclass(frozen=True, slots=True)
class Column:
    """Key, dtype and shape of a field, without a position on disk."""

    key: Key
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of a step, without the leading axis N."""
    shared: bool = False
    """Whether the field exists at t and at t+1. Such a field is stored once: the value at t+1 is in the next record."""
    memory_dtype: np.dtype[Any] | None = None
    """Dtype in memory if it is wider than the stored dtype. Otherwise None."""
    text: bool = False
    """Whether the values are int32 codes of texts, [1]. A separate file lists the texts."""
    form: Form = "raw"
    """How images are stored: as pixels, as the PNG or JPEG files of the upstream, compressed without loss, or as frames
    of the upstream's videos. `shape` is the shape of the pixels, which readers return for every form."""

    @property
    def read_dtype(self) -> np.dtype[Any]:
        """Dtype of the values that readers return."""
        return self.memory_dtype or self.dtype

    @property
    def image_form(self) -> ImageForm:
        """The form of the values, which knows the files, readers and writers of the field."""
        return form_class(self.form)(self)

    @property
    def encoded(self) -> bool:
        """Whether the images are stored as PNG or JPEG."""
        return self.form == "encoded"

    @property
    def compressed(self) -> bool:
        """Whether the images are stored compressed, with a dictionary."""
        return self.form == "compressed"

    @property
    def video(self) -> bool:
        """Whether the images are frames of stored videos."""
        return self.form == "video"

    @property
    def step_bytes(self) -> int:
        """Bytes of a step in memory."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def min_step_bytes(self) -> int:
        """Lower bound for the bytes of a step on disk.

        The bound is exact except for images of another form than raw.
        """
        return self.image_form.min_step_bytes


END_COLUMNS = tuple(Column(key, np.dtype(np.bool_), (1,)) for key in (NEXT_TERMINATED, NEXT_TRUNCATED))
"""The columns of the flags, which every source has."""


@dataclass(frozen=True, slots=True)
class Field(Column):
    """Column with a position on disk."""

    file: str = ROWS_FILE
    """File that holds the field, relative to the dataset's folder."""
    offset: int = 0
    """Bytes from the start of the record, 0 in a separate file."""

    @property
    def name(self) -> str:
        """Dotted key: the name of the field in the structured dtype."""
        return dotted_name(self.key)

    @property
    def wide(self) -> bool:
        """Whether the field has a separate file."""
        return self.file != ROWS_FILE

    @property
    def final_file(self) -> str:
        """File with the value after the last action of each episode. Only shared fields have such a file."""
        return f"final.{self.name}.npy" if self.wide else FINAL_FILE

    @property
    def texts_file(self) -> str:
        """File with the vocabulary, a JSON list of texts. Only text fields have such a file."""
        return f"{self.name}.texts.json"

    def to_json(self) -> dict[str, Any]:
        """Return the field's entry in the manifest, as JSON values."""
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
        if self.form != "raw":
            entry["form"] = self.form
        return entry


class Schema:
    """Fields of a dataset and their positions on disk.

    Raises:
        InvalidArgumentError: If two fields have the same key or overlap, or a field is not valid. The error names all
            problems.
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields: tuple[Field, ...] = tuple(fields)
        narrow = self.narrow
        end = max((field.offset + field.step_bytes for field in narrow), default=0)
        self.record_bytes: int = _round_up(end, _RECORD_ALIGN)
        shared_end = max((field.offset + field.step_bytes for field in narrow if field.shared), default=0)
        self.window_bytes: int = self.record_bytes + _round_up(shared_end, _RECORD_ALIGN)
        problems = list(_schema_problems(self.fields))
        if problems:
            raise InvalidArgumentError(f"the schema is inconsistent: {'; '.join(problems)}")

    @classmethod
    def layout(cls, columns: Iterable[Column], *, wide_bytes: int = WIDE_BYTES) -> Schema:
        """Return the schema that packs columns: shared columns first, then by descending item size, so all are aligned.

        Args:
            columns: The columns, see `stored_column`. The schema lists the fields in this order.
            wide_bytes: Minimum bytes per step of a column with a separate file.
        """
        columns = [stored_column(column) for column in columns]
        offsets: dict[Key, int] = {}
        offset = 0
        for column in sorted(columns, key=lambda column: (not column.shared, -column.dtype.itemsize)):
            if column.step_bytes < wide_bytes and column.image_form.is_array:
                offset = _round_up(offset, column.dtype.itemsize)
                offsets[column.key] = offset
                offset += column.step_bytes
        return cls(_placed_field(column, offsets.get(column.key)) for column in columns)

    @property
    def narrow(self) -> tuple[Field, ...]:
        """Fields inside the record."""
        return tuple(field for field in self.fields if not field.wide)

    @property
    def wide(self) -> tuple[Field, ...]:
        """Fields with a separate file."""
        return tuple(field for field in self.fields if field.wide)

    @cached_property
    def record(self) -> np.dtype[np.void]:
        """Structured dtype of a record of rows.npy."""
        return _structured_dtype(self.narrow, self.record_bytes)

    @cached_property
    def final_record(self) -> np.dtype[np.void]:
        """Structured dtype of a record of final.npy: the shared fields, at the same offsets."""
        return _structured_dtype([field for field in self.narrow if field.shared], self.final_record_bytes)

    @property
    def final_record_bytes(self) -> int:
        """Bytes of a record of final.npy."""
        return self.window_bytes - self.record_bytes

    @cached_property
    def array_files(self) -> Mapping[str, ArrayFile]:
        """The files of the steps and of the final states, by name. End offsets precede the images that they divide."""
        files = [ArrayFile(ROWS_FILE, self.record, (), "step")]
        if any(field.shared for field in self.narrow):
            files.append(ArrayFile(FINAL_FILE, self.final_record, (), "episode"))
        files += [file for field in self.wide for file in field.image_form.array_files()]
        files += fingerprint_files([field.name for field in fingerprinted(self)])
        return {file.name: file for file in files}

    @cached_property
    def whole_files(self) -> Mapping[str, WholeFile]:
        """The files that are read as a whole, by name: vocabularies, dictionaries of compressed images, lists of videos."""
        files = [WholeFile(field.texts_file, 2) for field in self.fields if field.text]
        files += [file for field in self.wide for file in field.image_form.whole_files()]
        return {file.name: file for file in files}

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
        return f"Schema({fields}, {self.record_bytes} bytes a record)"

    @cached_property
    def _by_key(self) -> Mapping[Key, Field]:
        return {field.key: field for field in self.fields}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries of all fields in the manifest, as JSON values."""
        return [field.to_json() for field in self.fields]

    @classmethod
    def from_json(cls, entries: Any) -> Schema:
        """Return the schema in a manifest, which is not trusted.

        Raises:
            InvalidArgumentError: If an entry is not a field, or the fields contradict each other. The error names all
                problems.
        """
        if not isinstance(entries, list) or not entries:
            raise InvalidArgumentError(f"schema is {type(entries).__name__}, expected a list of fields")
        problems = [problem for number, entry in enumerate(entries) for problem in _entry_problems(number, entry)]
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        return cls(map(_field_from_json, entries))


def stored_column(column: Column) -> Column:
    """Return a column as new datasets store it: rewards are floating point, see `datasets_rl.ted.rewards`."""
    return replace(column, dtype=reward_dtype(column.dtype)) if column.key == NEXT_REWARD else column


def is_wide_pixels(column: Column) -> bool:
    """Return whether a column holds bytes in a separate file, which can be compressed.

    A smaller column has a separate file if it is compressed, or if the source asks for that form.
    """
    return column.dtype == np.uint8 and (column.step_bytes >= WIDE_BYTES or column.image_form.has_dictionary)


def holds_images(column: Column) -> bool:
    """Return whether a column holds images: in another form than raw, or bytes that could be compressed."""
    return not column.image_form.is_array or is_wide_pixels(column)


def _placed_field(column: Column, offset: int | None) -> Field:
    """Return the field at this offset of the record. None stands for a separate file."""
    return Field(
        key=column.key,
        dtype=column.dtype,
        shape=column.shape,
        shared=column.shared,
        memory_dtype=column.memory_dtype,
        text=column.text,
        form=column.form,
        file=ROWS_FILE if offset is not None else f"{dotted_name(column.key)}.npy",
        offset=offset or 0,
    )


def _field_from_json(entry: Mapping[str, Any]) -> Field:
    memory_dtype = entry.get("memory_dtype")
    return Field(
        key=tuple(entry["key"]),
        dtype=_DTYPES[entry["dtype"]],
        shape=tuple(entry["shape"]),
        shared=entry["shared"],
        memory_dtype=None if memory_dtype is None else _DTYPES[memory_dtype],
        text=entry.get("text", False),
        form=entry.get("form", "raw"),
        file=entry["file"],
        offset=entry["offset"],
    )


def _entry_problems(number: int, entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"schema[{number}] is {short_text(entry)}, expected an object"
        return
    for name, is_valid, expected in _ENTRY_RULES:
        if not is_valid(entry.get(name)):
            yield f"schema[{number}].{name} is {short_text(entry.get(name))}, expected {expected}"
    key: Any = entry.get("key")
    if _is_key(key) and entry.get("file") not in [ROWS_FILE, f"{dotted_name(key)}.npy"]:
        own_file = f"{dotted_name(key)}.npy"
        yield f"schema[{number}].file is {short_text(entry.get('file'))}, expected {ROWS_FILE!r} or {short_text(own_file)}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_key(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_ENTRY_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("key", _is_key, "a list of names"),
    ("dtype", lambda value: isinstance(value, str) and value in _DTYPES, f"one of {', '.join(_DTYPES)}"),
    (
        "memory_dtype",
        lambda value: value is None or (isinstance(value, str) and value in _DTYPES),
        f"nothing, or one of {', '.join(_DTYPES)}",
    ),
    ("shape", lambda value: isinstance(value, list) and all(map(_is_integer, value)), "a list of integers"),
    ("offset", _is_integer, "an integer"),
    ("shared", lambda value: isinstance(value, bool), "true or false"),
    ("text", lambda value: value is None or isinstance(value, bool), "true or false"),
    (
        "form",
        lambda value: value is None or (isinstance(value, str) and value in _STORED_FORMS),
        f"nothing, {' or '.join(_STORED_FORMS)}",
    ),
)


def _structured_dtype(fields: Iterable[Field], record_bytes: int) -> np.dtype[np.void]:
    # Sorted by offset, because the header of an .npy file can list fields in no other order.
    fields = sorted(fields, key=lambda field: field.offset)
    spec: dict[str, Any] = {
        "names": [field.name for field in fields],
        "formats": [(field.dtype, field.shape) for field in fields],
        "offsets": [field.offset for field in fields],
        "itemsize": record_bytes,
    }
    record: np.dtype[np.void] = np.dtype(spec)  # type: ignore[call-overload]  # numpy's stubs require a TypedDict
    return record


def _schema_problems(fields: tuple[Field, ...]) -> Iterator[str]:
    seen: set[Key] = set()
    extents: list[tuple[int, int, str]] = []
    groups = {field.key[:depth] for field in fields for depth in range(1, len(field.key))}
    groups |= {(NEXT, *field.key[:depth]) for field in fields if field.shared for depth in range(1, len(field.key))}
    next_keys = {(NEXT, *field.key) for field in fields if field.shared}
    for field in fields:
        if field.key in seen:
            yield f"{field.name} appears twice"
        seen.add(field.key)
        if field.key in groups or field.key in next_keys:
            yield f"{field.name} is also a group of other fields, or the next value of a shared field"
        yield from _field_problems(field)
        if not field.wide:
            extents.append((field.offset, field.offset + field.step_bytes, field.name))
    for (_, end, left), (start, _, right) in pairwise(sorted(extents)):
        if start < end:
            yield f"{left} and {right} overlap"


def _field_problems(field: Field) -> Iterator[str]:
    if field.dtype.str not in _DTYPES:
        yield f"{field.name} has dtype {field.dtype.str}, expected one of {', '.join(_DTYPES)}"
    if field.memory_dtype is not None and (field.memory_dtype.str not in _DTYPES or field.shared or field.wide):
        yield (
            f"{field.name} has memory_dtype {field.memory_dtype.str}, expected one of {', '.join(_DTYPES)}, on a "
            "narrow field that is not shared"
        )
    if field.text and (field.dtype.str, field.shape, field.memory_dtype) != ("<i4", (), None):
        yield f"{field.name} is a text field of {field.dtype.str} {list(field.shape)}, expected <i4 []"
    yield from field.image_form.field_problems(field)
    if any(size <= 0 for size in field.shape):
        yield f"{field.name} has shape {list(field.shape)}, expected sizes above 0"
    if field.offset < 0 or field.offset % max(field.dtype.itemsize, 1):
        yield f"{field.name} has offset {field.offset}, expected a multiple of {field.dtype.itemsize}"
    yield from _name_problems(field)


def _name_problems(field: Field) -> Iterator[str]:
    if any(set(name) & set("/\\\0.") or not name for name in field.key):
        yield f"{field.name!r} has a name that is empty or contains a dot, a slash or a NUL"
    if (size := len(field.name.encode("utf-8", "surrogatepass"))) > NAME_BYTES:
        yield f"{field.name[:40]}... has a name of {size:,} bytes, expected {NAME_BYTES} at most"
    if field.key[0] in _RESERVED_NAMES or field.key in {*ROOT_FLAGS, NEXT_FINAL_KNOWN}:
        yield f"{field.name} has a name that the format uses for files or keys of the format"
    if field.shared and field.key[0] == NEXT:
        yield f"{field.name} is shared, expected a root field"


def short_text(value: Any) -> str:
    """Return a short representation of an untrusted value, which may be arbitrarily long and deep."""
    return reprlib.repr(value)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
