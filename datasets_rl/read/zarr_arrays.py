"""Metadata of arrays of zarr, versions 2 and 3: `ZarrArray`.

action/.zarray      version 2    {"shape": [900, 2], "chunks": [100, 2], "dtype": "<f4", "compressor": {"id": "blosc", ...}, ...}
action/zarr.json    version 3    {"node_type": "array", "shape": [900, 2], "chunk_grid": ..., "codecs": [...], ...}
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datasets_rl.read.tensorstores import CHUNK_MAX_BYTES

IMAGE_CODECS = ("imagecodecs_jpeg", "imagecodecs_jpeg2k", "imagecodecs_jpegxl", "imagecodecs_png")
"""Codecs that encode each chunk as an image."""
_CODECS_2 = ("blosc", "bz2", "zlib", "gzip", "zstd")
_CODECS_3 = ("bytes", "transpose", "blosc", "gzip", "zstd", "crc32c", "sharding_indexed")
_MEMBERS_2 = ("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")
_MEMBERS_3 = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
)
_DTYPES_3 = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_NAN_BYTES = {base64.b64encode(np.array(np.nan, dtype).tobytes()).decode() for dtype in ("<f2", "<f4", "<f8")}
_INDEX = re.compile(r"0|[1-9]\d{0,17}")
_AXES_MAX = 32
_STORED_MORE = 1 << 20
"""Bytes that a chunk may have beyond twice the decompressed bytes."""


class NotZarrError(ValueError):
    """Raised where metadata are not those of an array. The text is the problem."""


@dataclass(slots=True)
class ZarrArray:
    """Array of a store: metadata, and the chunks that the store has."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Dtype of the values, in the byte order of this machine. Object if the values are not numbers."""
    grid: tuple[int, ...]
    """Shape of the chunks that are files."""
    chunk: tuple[int, ...]
    """Shape of the parts that are decompressed as a whole: the grid, or the chunks in the shards."""
    driver: str
    """Name of the driver of TensorStore."""
    metadata: Mapping[str, Any]
    """The metadata without the members that TensorStore does not know."""
    separator: str
    prefix: str = ""
    """Beginning of the keys of the chunks: c of version 3, or empty."""
    codec: str = ""
    """Item of `IMAGE_CODECS`, or empty."""
    blosc: bool = False
    """Whether the chunks begin with the header of Blosc."""
    problem: str = ""
    """Why the values cannot be read, or empty."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What the user states about the array."""
    stored: dict[int, list[str]] = field(default_factory=dict)
    """Keys of the chunks that the store has, by the position of the chunk along the first axis."""
    count: int = 0
    """Number of the chunks that the store has."""
    beyond: list[str] = field(default_factory=list)
    """Keys of chunks outside of the shape."""
    large: list[str] = field(default_factory=list)
    """Keys of chunks with more bytes than the values can have."""

    @property
    def missing(self) -> int:
        """Number of chunks that the store does not have."""
        return math.prod(self._chunk_counts()) - self.count

    @property
    def rows_of_chunk(self) -> int:
        """Number of rows of a chunk."""
        return self.chunk[0] if self.chunk else 1

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def rewritten_by(self) -> str:
        """Attributes by which xarray changes the values that it reads, as text, or empty."""
        others = {"scale_factor": 1, "add_offset": 0}
        changing = {name: value for name, own in others.items() if (value := self.attributes.get(name, own)) != own}
        absent = {name: self.attributes[name] for name in ("_FillValue", "missing_value") if name in self.attributes}
        changing |= {name: value for name, value in absent.items() if not _is_nan(value)}
        return ", ".join(f"{name} = {value}" for name, value in changing.items())

    def add(self, key: str, below: str, size: int) -> bool:
        """Add a file of the store, and return whether the name is the name of a chunk.

        Args:
            key: The path in the store.
            below: The path below the array.
            size: Number of bytes of the file.
        """
        index = self._index_of(below)
        if index is None:
            return False
        if any(number >= count for number, count in zip(index, self._chunk_counts(), strict=True)):
            self.beyond.append(key)
            return True
        if self.grid == self.chunk and size > 2 * math.prod(self.chunk) * self.dtype.itemsize + _STORED_MORE:
            self.large.append(key)
        self.stored.setdefault(index[0] if index else 0, []).append(key)
        self.count += 1
        return True

    def first_missing(self) -> tuple[int, int]:
        """Return the rows [start, stop) of the first chunk that the store does not have."""
        per_row = math.prod(self._chunk_counts()[1:])
        row = next(row for row in range(len(self.stored) + 1) if len(self.stored.get(row, [])) < per_row)
        return row * self.grid[0], min((row + 1) * self.grid[0], self.shape[0])

    def _chunk_counts(self) -> list[int]:
        return [-(-length // size) for length, size in zip(self.shape, self.grid, strict=True)]

    def _index_of(self, below: str) -> tuple[int, ...] | None:
        if not self.shape:
            return () if below == (self.prefix or "0") else None
        parts = below.split(self.separator)
        if self.prefix:
            if parts[0] != self.prefix:
                return None
            parts = parts[1:]
        if len(parts) != len(self.shape) or not all(map(_INDEX.fullmatch, parts)):
            return None
        return tuple(map(int, parts))


def read_metadata_2(document: Any) -> ZarrArray:
    """Return an array of version 2.

    Args:
        document: The JSON value of ``.zarray``.

    Raises:
        NotZarrError: If the document does not describe an array.
    """
    if not isinstance(document, Mapping) or document.get("zarr_format") != 2:
        raise NotZarrError('expected an object with "zarr_format": 2')
    shape, chunks = _read_shape(document, "shape"), _read_shape(document, "chunks")
    _check_grid(shape, chunks)
    separator = document.get("dimension_separator", ".")
    compressor = document.get("compressor")
    if separator not in {".", "/"} or not (compressor is None or isinstance(compressor, Mapping)):
        raise NotZarrError(f"the separator is {separator!r} and the compressor is {compressor!r}")
    codec = "" if compressor is None else str(compressor.get("id"))
    metadata = {name: document.get(name) for name in _MEMBERS_2} | {"dimension_separator": separator}
    if codec == "zstd":
        # Frames state themselves whether they have a checksum, and TensorStore does not know the member.
        metadata["compressor"] = {name: value for name, value in (compressor or {}).items() if name != "checksum"}
    array = ZarrArray(shape, _dtype_2(document.get("dtype")), chunks, chunks, "zarr", metadata, separator)
    array.codec = codec if codec in IMAGE_CODECS else ""
    array.blosc = codec == "blosc"
    filters = [str(one.get("id") if isinstance(one, Mapping) else one) for one in document.get("filters") or ()]
    unknown = [*filters, *([codec] if codec not in {"", *_CODECS_2, *IMAGE_CODECS} else [])]
    array.problem = _problem(array, unknown)
    return array


def read_metadata_3(document: Any) -> ZarrArray | None:
    """Return an array of version 3, or None for a group.

    Args:
        document: The JSON value of ``zarr.json``.

    Raises:
        NotZarrError: If the document describes neither.
    """
    if not isinstance(document, Mapping) or document.get("zarr_format") != 3:
        raise NotZarrError('expected an object with "zarr_format": 3')
    if document.get("node_type") == "group":
        return None
    shape, grid = (
        _read_shape(document, "shape"),
        _read_shape(_options(document, "chunk_grid", "regular"), "chunk_shape"),
    )
    _check_grid(shape, grid)
    encoding = document.get("chunk_key_encoding")
    name = encoding.get("name") if isinstance(encoding, Mapping) else None
    options = _options(document, "chunk_key_encoding", "default", "v2")
    separator = options.get("separator", "/" if name == "default" else ".")
    codecs = document.get("codecs")
    if separator not in {".", "/"} or not isinstance(codecs, list) or not codecs:
        raise NotZarrError(f"the separator is {separator!r} and the codecs are {codecs!r}")
    names = [str(one.get("name")) if isinstance(one, Mapping) else str(one) for one in codecs]
    inner, chunk = names, grid
    if "sharding_indexed" in names:
        sharding = codecs[names.index("sharding_indexed")].get("configuration")
        chunk = _read_shape(sharding, "chunk_shape")
        _check_grid(grid, chunk)
        within = sharding.get("codecs")
        inner = [*names, *(str(one.get("name")) for one in within if isinstance(one, Mapping))]
    metadata = {key: document.get(key) for key in _MEMBERS_3}
    prefix = "c" if name == "default" else ""
    array = ZarrArray(shape, _dtype_3(document.get("data_type")), grid, chunk, "zarr3", metadata, separator, prefix)
    stated = document.get("attributes")
    array.attributes = stated if isinstance(stated, Mapping) else {}
    array.codec = names[0] if names[0] in IMAGE_CODECS and len(names) == 1 else ""
    array.blosc = names[-1] == "blosc"
    unknown = [] if array.codec else [one for one in inner if one not in _CODECS_3]
    array.problem = _problem(array, unknown)
    return array


def _problem(array: ZarrArray, unknown: Sequence[str]) -> str:
    """Return why the values of an array cannot be read, or an empty text."""
    chunk_bytes = math.prod(array.chunk) * array.dtype.itemsize
    if array.dtype.hasobject:
        return ""  # never read
    if unknown:
        return f"is compressed by {' and '.join(unknown)}, which has no reader here"
    if chunk_bytes > CHUNK_MAX_BYTES:
        return f"has chunks of {chunk_bytes:,} bytes, expected at most {CHUNK_MAX_BYTES:,}"
    if array.codec and (len(array.shape) < 3 or array.chunk[1:] != array.shape[1:]):
        return f"has images in chunks {list(array.chunk)} of {list(array.shape)}, expected whole images in each chunk"
    return ""


def _read_shape(document: Any, name: str) -> tuple[int, ...]:
    shape = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(shape, list) or len(shape) > _AXES_MAX:
        raise NotZarrError(f"{name} is {shape!r:.80}, expected a list of numbers")
    if not all(isinstance(length, int) and 0 <= length < 1 << 62 for length in shape):
        raise NotZarrError(f"{name} is {shape!r:.80}, expected numbers of at least 0")
    return tuple(shape)


def _check_grid(shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    if len(chunks) != len(shape) or 0 in chunks:
        raise NotZarrError(f"chunks {list(chunks)} do not fit to the shape {list(shape)}")


def _is_nan(value: Any) -> bool:
    """Return whether an attribute is NaN: a float, its name, or its bytes in base64, as xarray writes them."""
    if isinstance(value, str):
        return value == "NaN" or value in _NAN_BYTES
    return isinstance(value, float) and math.isnan(value)


def _options(document: Mapping[str, Any], member: str, *known: str) -> Mapping[str, Any]:
    """Return the configuration of a member with a name of the known names."""
    value = document.get(member)
    if not isinstance(value, Mapping) or value.get("name") not in known:
        raise NotZarrError(f"{member} is {value!r:.80}, expected {' or '.join(known)}")
    options = value.get("configuration", {})
    return options if isinstance(options, Mapping) else {}


def _dtype_2(text: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(text) if isinstance(text, str) else np.dtype(object)
    except TypeError:
        dtype = np.dtype(object)
    return dtype.newbyteorder("=") if dtype.kind in "biuf" else np.dtype(object)


def _dtype_3(text: Any) -> np.dtype[Any]:
    return np.dtype(text) if isinstance(text, str) and _DTYPES_3.fullmatch(text) else np.dtype(object)
