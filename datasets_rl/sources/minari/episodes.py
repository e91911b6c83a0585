"""Raw episodes in Minari's files: an HDF5 file with a group per episode, or an Arrow or Parquet table per episode.

    HDF5      observations [N + 1], actions [N], rewards [N], terminations [N], truncations [N], infos [N + 1] or [N]
    tables    every column [N + 1]: actions, rewards and flags have a row of padding at the end, which is dropped

The stored data determines the type of a column, not the space or the metadata: images are JPEG or raw, whatever
``jpeg_encoding`` is.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.libraries import importing, raise_fault_of_code
from datasets_rl.read import images
from datasets_rl.read.hdf5 import CHUNK_GRACE, LIBRARY_ERRORS, chunk_problems, library_errors
from datasets_rl.sources.minari.links import Run, plain_value
from datasets_rl.sources.minari.spaces import Leaf
from datasets_rl.ted.episode import TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

_ROOTS: Mapping[str, Key] = {
    "observations": ("observation",),
    "actions": ("action",),
    "infos": ("info",),
    "rewards": NEXT_REWARD,
    "terminations": NEXT_TERMINATED,
    "truncations": NEXT_TRUNCATED,
}
_JPEG = b"\xff\xd8\xff"
_DEPTH_MAX = 16
_COMPRESSION_MAX = 1100  # deflate compresses at most 1032-fold


class EpisodeError(Exception):
    """Problems of an episode. The arguments are a sentence for each problem."""


class StoredColumn(ABC):
    """Column of an episode, before the column is read."""

    length: int
    """Number of rows."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of one row."""
    kind: str = "numbers"
    """Type of the values: ``numbers``, ``jpeg`` or ``text``."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any] | TextStates:
        """Return the rows [start, stop).

        Raises:
            ConversionError: If images are damaged, or have another shape than the space.
        """

    @abstractmethod
    def read_images(self, start: int, stop: int) -> list[bytes]:
        """Return the JPEG images of the rows [start, stop), if the column has JPEG images."""


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """Opened raw episode."""

    number: int
    columns: Mapping[Key, StoredColumn]
    steps: int | None
    """Number of steps that the metadata of the episode states."""
    seed: int | None


def key_of_names(names: Sequence[str]) -> Key:
    """Convert names to a key: dots, which separate the names of a key, are replaced with underscores."""
    return tuple(name.replace(".", "_").replace("\\", "_") or "_" for name in names)


class Hdf5Episodes:
    """Reader of the raw episodes in a main_data.hdf5.

    The first episode that is read determines the paths of all columns. Each other episode then only opens the columns.

    Args:
        path: The file.
        leaves: Leaf spaces by key, if the metadata has spaces.
    """

    def __init__(self, path: Path, leaves: Mapping[Key, Leaf]) -> None:
        self.leaves = leaves
        self._name = path.name
        with library_errors(path.name):
            self._file = h5py.File(path, "r", locking=False)
        self._columns: dict[Key, bytes] = {}
        self._groups: dict[bytes, int] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Metadata, which versions before 0.5 store in this file."""
        with library_errors(self._name):
            return {name: plain_value(value) for name, value in self._file.attrs.items()}

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the episodes, in numeric order: by name, episode_10 would precede episode_2."""
        with library_errors(self._name):
            names = [name for name in self._file if name.startswith("episode_")]
        return sorted(int(name[8:]) for name in names if name[8:].isdecimal())

    def read(self, number: int) -> RawEpisode:
        """Open an episode.

        Raises:
            EpisodeError: If the episode is missing or a link, or the columns differ from the columns of the first episode.
        """
        try:
            group = self._open_group(number)
            if not self._columns:
                self._add_columns(group, b"", ())
            for path, count in self._groups.items():
                subgroup = h5g.open(_check_not_linked(group, path), path) if path else group
                if subgroup.get_num_objs() != count:
                    raise EpisodeError(
                        f"{path.decode() or 'it'} has {subgroup.get_num_objs()} members, in the first episode {count}"
                    )
            columns = {key: self._open_column(group, path, key) for key, path in self._columns.items()}
            return RawEpisode(
                number, columns, _integer_attribute(group, b"total_steps"), _integer_attribute(group, b"seed")
            )
        except LIBRARY_ERRORS as error:
            raise_fault_of_code(error, self._name)
            raise EpisodeError(f"HDF5 reports: {error}") from error

    def _open_group(self, number: int) -> Any:
        return _open_episode(self._file, number)

    def _add_columns(self, group: Any, path: bytes, names: tuple[str, ...]) -> None:
        """Record the path of every column below a group, and the number of members of each group."""
        self._groups[path] = group.get_num_objs()
        for number in range(group.get_num_objs()):
            member = group.get_objname_by_idx(number)
            member_names = (*names, member.decode("utf-8"))
            full = b"/".join(filter(None, (path, member)))
            item = h5o.open(_check_not_linked(group, member), member)
            if len(member_names) > _DEPTH_MAX:
                raise EpisodeError(
                    f"{full.decode()} is nested in {len(member_names)} groups, expected at most {_DEPTH_MAX}"
                )
            if isinstance(item, h5g.GroupID):
                self._add_columns(item, full, member_names)
            elif isinstance(item, h5d.DatasetID):
                key = (*_ROOTS.get(member_names[0], (member_names[0],)), *member_names[1:])
                self._columns[key_of_names(key)] = full

    def _open_column(self, group: Any, path: bytes, key: Key) -> StoredColumn:
        return _Hdf5Column(path.decode(), h5d.open(_check_not_linked(group, path), path), self.leaves.get(key))


class LinkedEpisodes(Hdf5Episodes):
    """Reader of the raw episodes of a dataset that has some episodes in other files, see `datasets_rl.sources.minari.links`.

    Args:
        files: The local files of a shard, by path.
        runs: The runs of the dataset, each in a file. Runs in other files than `files` are not read.
    """

    def __init__(self, files: Mapping[str, Path], runs: Sequence[Run]) -> None:
        self._runs = [run for run in runs if run.file in files]
        self._paths = {run.file: files[run.file] for run in self._runs}
        self._opened: dict[str, h5py.File] = {}
        super().__init__(files[self._runs[0].file], {})

    @override
    def close(self) -> None:
        super().close()
        for file in self._opened.values():
            file.close()

    @cached_property
    @override
    def numbers(self) -> list[int]:
        return [number for run in self._runs for number in range(run.start, run.stop)]

    @override
    def _open_group(self, number: int) -> Any:
        run = next(run for run in self._runs if run.start <= number < run.stop)
        if run.file not in self._opened:
            self._opened[run.file] = h5py.File(self._paths[run.file], "r", locking=False)
        return _open_episode(self._opened[run.file], run.first + number - run.start)


def _open_episode(file: h5py.File, number: int) -> Any:
    name = f"episode_{number}".encode()
    return h5g.open(_check_not_linked(file.id, name), name)


def _check_not_linked(group: Any, path: bytes) -> Any:
    """Return the group, after checking that the member is not a link.

    HDF5 decides where a link leads: if no file of the linked path exists, HDF5 opens a file of that name in the folder of
    this file, and all files of Minari have the same name.
    """
    if group.links.get_info(path).type != h5l.TYPE_HARD:
        raise EpisodeError(f"{path.decode()} is a link, expected the data itself")
    return group


@dataclass(frozen=True, slots=True)
class _FieldType:
    """Decoded HDF5 datatype."""

    size: int
    """Number of bytes of a value in the file."""
    dtype: np.dtype[Any]
    """Equivalent dtype in the byte order of this machine."""
    memory: Any
    """HDF5 datatype of `dtype`."""
    text: bool
    """Whether values are strings."""
    vlen: np.dtype[Any] | None
    """Dtype of the elements, if each value is an array of variable length."""


def _hdf5_type(stored: Any) -> _FieldType:
    return _decode_type(stored.get_type().encode())


@lru_cache(maxsize=256)
def _decode_type(encoded: bytes) -> _FieldType:
    # Decoding a type costs as much as opening a dataset, and thousands of episodes share a few types.
    kind = h5t.decode(encoded)
    dtype = kind.dtype
    text = h5py.check_string_dtype(dtype) is not None
    native = dtype.newbyteorder("=")
    return _FieldType(kind.get_size(), native, h5t.py_create(native), text, h5py.check_vlen_dtype(dtype))


class _Hdf5Column(StoredColumn):
    """Column that is stored as an HDF5 dataset."""

    def __init__(self, name: str, dataset: Any, leaf: Leaf | None) -> None:
        shape: tuple[int, ...] = dataset.shape
        kind = _hdf5_type(dataset)
        if not shape:
            raise EpisodeError(f"{name} is a single value, expected a row for each step")
        declared, stored = kind.size * math.prod(shape), dataset.get_storage_size()
        # This also rejects data in other files, and data that was never written: neither is stored in this file.
        if stored * _COMPRESSION_MAX < declared:
            raise EpisodeError(f"{name} declares {list(shape)}, {declared:,} bytes, but stores {stored:,}")
        # Reading the chunk shape costs more than opening the dataset, and few bytes never decompress to a large chunk.
        if stored * _COMPRESSION_MAX > CHUNK_GRACE and (
            problems := [*chunk_problems(name, shape, _chunk_shape(dataset), kind.size)]
        ):
            raise EpisodeError(*problems)
        self._name = name
        self._dataset = dataset
        self._memory = kind.memory
        self.length, self.shape, self.dtype = shape[0], shape[1:], kind.dtype
        objects = kind.dtype.kind == "O"
        if kind.text:
            self.kind, self.shape, self.dtype = "text", (), np.dtype(np.int32)
            if len(shape) != 1:
                raise EpisodeError(f"{name} has strings of shape {list(shape)}, expected one string per step")
        elif not self.length:
            pass  # without a first value, images cannot be detected
        elif objects or (kind.dtype == np.uint8 and len(shape) == 2 and self._may_be_jpeg(leaf)):
            if objects and kind.vlen != np.uint8:
                raise EpisodeError(f"{name} has values of type object, expected numbers, strings or JPEG images")
            if objects or self._encoded_image(0).startswith(_JPEG):
                self.kind, self.dtype = "jpeg", np.dtype(np.uint8)
                self.shape = _image_shape(self._encoded_image(0), name, leaf)

    @staticmethod
    def _may_be_jpeg(leaf: Leaf | None) -> bool:
        # A raw frame of two axes has three axes with time. Infos have no space: the first bytes identify JPEG images.
        return leaf is None or len(leaf.shape) != 1

    def _encoded_image(self, row: int) -> bytes:
        return bytes(h5py.Dataset(self._dataset)[row])

    @override
    def read(self, start: int, stop: int) -> NDArray[Any] | TextStates:
        if self.kind == "jpeg":
            return _decode_images(self.read_images(start, stop), self.shape, self._name)
        with library_errors(self._name, f"rows {start:,} to {stop - 1:,}: "):
            if self.kind == "numbers" and (start, stop) == (0, self.length):
                whole: NDArray[Any] = np.empty((self.length, *self.shape), self.dtype)
                self._dataset.read(h5s.ALL, h5s.ALL, whole, self._memory)
                return whole
            rows = h5py.Dataset(self._dataset)[start:stop]
        if self.kind == "numbers":
            return np.asarray(rows, self.dtype)
        return TextStates.from_texts([_decode_text(value, self._name) for value in rows.tolist()])

    @override
    def read_images(self, start: int, stop: int) -> list[bytes]:
        with library_errors(self._name, f"rows {start:,} to {stop - 1:,}: "):
            return [bytes(value) for value in h5py.Dataset(self._dataset)[start:stop]]


def _chunk_shape(dataset: Any) -> tuple[int, ...] | None:
    layout = dataset.get_create_plist()
    return layout.get_chunk() if layout.get_layout() == h5d.CHUNKED else None


def _integer_attribute(group: Any, name: bytes) -> int | None:
    """Return an integer attribute, of up to 64 bits for seeds, or None if the attribute is missing or is not an integer."""
    if not h5a.exists(group, name):
        return None
    attribute = h5a.open(group, name)
    kind, shape = _hdf5_type(attribute), attribute.shape
    if kind.dtype.kind not in "iu" or shape not in {(), (1,)}:
        return None
    value: NDArray[Any] = np.empty(shape, kind.dtype)
    attribute.read(value, kind.memory)
    return int(value.reshape(-1)[0])


class TableEpisodes:
    """Reader of raw episodes in folders with a table each.

    Args:
        files: The local files of the episodes, by path.
        leaves: Leaf spaces by key. The rows of tables are flat, and only the spaces state shapes.
        dataset_id: Id of the dataset, for messages.
    """

    def __init__(self, files: Mapping[str, Path], leaves: Mapping[Key, Leaf], dataset_id: str) -> None:
        self.leaves = leaves
        self._dataset_id = dataset_id
        self._tables: dict[int, Path] = {}
        self._metadata: dict[int, Path] = {}
        for path, file in files.items():
            folder, _, name = path.rpartition("/")
            number = folder.rpartition("/")[2].rpartition("=")[2]
            if number.isdecimal():
                (self._metadata if name == "metadata.json" else self._tables)[int(number)] = file

    def close(self) -> None:
        """Do nothing, because each file is closed after reading."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the available episodes, ascending."""
        return sorted(self._tables)

    def read(self, number: int) -> RawEpisode:
        """Read an episode.

        Raises:
            EpisodeError: If the episode is missing, or the table cannot be read.
        """
        if number not in self._tables:
            raise EpisodeError("it has no table")
        table = _read_table(self._tables[number])
        columns: dict[Key, StoredColumn] = {}
        for name in table.schema.names:
            if name != "episode_id":
                array = table.column(name).combine_chunks()
                padded = name in {"actions", "rewards", "terminations", "truncations"}
                columns.update(self._flat_columns(array, _ROOTS.get(name, (name,)), None, cut=padded))
        metadata = _read_json(self._metadata[number]) if number in self._metadata else {}
        steps, seed = (
            value if isinstance(value := metadata.get(name), int) else None for name in ("total_steps", "seed")
        )
        return RawEpisode(number, columns, steps, seed)

    def _flat_columns(self, array: Any, names: Key, field: Any, *, cut: bool) -> Iterator[tuple[Key, StoredColumn]]:
        import pyarrow as pa

        if pa.types.is_struct(array.type):
            for number in range(array.type.num_fields):
                inner = array.type.field(number)
                # A Tuple is a struct with the names "0", "1", .... The keys follow the names in HDF5 files.
                key = (*names, f"_index_{inner.name}" if self._is_tuple_space(names) else inner.name)
                yield from self._flat_columns(array.field(number), key, inner, cut=cut)
            return
        key = key_of_names(names)
        yield key, _TableColumn(".".join(names), array[: len(array) - 1] if cut else array, self.leaves.get(key), field)

    def _is_tuple_space(self, names: Key) -> bool:
        """Return whether the entry at a path is a Tuple space, with elements `_index_0` and so on."""
        key = key_of_names(names)
        return any(leaf_key[: len(key) + 1] == (*key, "_index_0") for leaf_key in self.leaves)


class _TableColumn(StoredColumn):
    """Flat column of a table."""

    def __init__(self, name: str, array: Any, leaf: Leaf | None, field: Any) -> None:
        import pyarrow as pa

        kind = array.type
        self._name = name
        self._array = array
        self._listed = False
        self.length = len(array)
        if array.null_count:
            raise EpisodeError(f"{name} has {array.null_count:,} rows without a value")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self.kind, self.shape, self.dtype = "text", (), np.dtype(np.int32)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self.kind, self.dtype = "jpeg", np.dtype(np.uint8)
            self.shape = _image_shape(array[0].as_py(), name, leaf)
        elif pa.types.is_fixed_size_list(kind):
            self.shape = self._row_shape(kind.list_size, leaf, field)
            self._listed = True
            self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        else:
            self.shape = ()
            self.dtype = np.dtype(kind.to_pandas_dtype())
        if self.dtype.kind not in "biuf":
            raise EpisodeError(f"{name} has values of type {kind}, expected numbers, strings or JPEG images")

    def _row_shape(self, size: int, leaf: Leaf | None, field: Any) -> tuple[int, ...]:
        stated = (field.metadata or {}).get(b"shape") if field is not None else None
        shape = leaf.shape if leaf is not None else (size,)
        if leaf is None and stated is not None:
            shape = tuple(int(axis) for axis in stated.decode().split(",") if axis)
        if int(np.prod(shape, dtype=np.int64)) != size:
            raise EpisodeError(f"{self._name} has {size} values per step, expected {list(shape)}")
        return shape

    @override
    def read(self, start: int, stop: int) -> NDArray[Any] | TextStates:
        rows = self._array[start:stop]
        if self.kind == "text":
            return TextStates.from_texts(rows.to_pylist())
        if self.kind == "jpeg":
            return _decode_images(self.read_images(start, stop), self.shape, self._name)
        flat = rows.flatten() if self._listed else rows
        return np.asarray(flat.to_numpy(zero_copy_only=False), self.dtype).reshape(stop - start, *self.shape)

    @override
    def read_images(self, start: int, stop: int) -> list[bytes]:
        return list(self._array[start:stop].to_pylist())


def _read_table(path: Path) -> Any:
    with importing("pyarrow", "pyarrow", "an Arrow or Parquet dataset of Minari"):
        import pyarrow as pa
        from pyarrow import parquet
    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path).read()
        with pa.OSFile(str(path)) as stream:
            return pa.ipc.open_file(stream).read_all()
    except (pa.ArrowException, OSError) as error:
        raise EpisodeError(f"{path.name} cannot be read: {error}") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EpisodeError(f"the metadata.json is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _decode_text(value: Any, name: str) -> str:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise EpisodeError(f"{name} has a string that is not UTF-8: {error}") from error


def _image_shape(encoded: bytes, name: str, leaf: Leaf | None) -> tuple[int, ...]:
    if not encoded.startswith(_JPEG):
        raise EpisodeError(f"{name} begins with {encoded[:8].hex(' ')}, expected a JPEG image")
    rows, columns, channels = images.read_header(encoded, name).shape
    shape = (rows, columns) if channels == 1 else (rows, columns, channels)
    if leaf is not None and leaf.shape not in {shape, (*shape, 1)}:
        raise EpisodeError(f"{name} has images of shape {list(shape)}, but the space has {list(leaf.shape)}")
    return leaf.shape if leaf is not None else shape


def _decode_images(encoded: Sequence[bytes], shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    out: NDArray[np.uint8] = np.empty((len(encoded), *shape), np.uint8)
    # A grayscale image has no channel axis.
    images.decode(encoded, out if out.ndim == 4 else out[..., None], name)
    return out
