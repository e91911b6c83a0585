"""Common interface to the arrays of files: their shapes and dtypes, and their rows in order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.ragged import Ragged
from datasets_rl.ted.episode import concatenate_columns

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.read.hdf5 import Hdf5Array, Hdf5File

_WHOLE_MAX_BYTES = 64 << 20
TEXT_CHARS = 4096
"""Longer texts of attributes, such as models of a simulator, are left out."""
TEXT = np.dtype(np.int32)
"""Dtype of the integer codes of texts."""

Rows = NDArray[Any] | list[str] | list[bytes]
"""Rows of an array: numbers, texts, or the bytes of images. Frames that stay in videos are ``VideoFrames``."""


@dataclass(frozen=True, slots=True)
class Array:
    """Description of an array: number, shape and dtype of its rows."""

    rows: int
    shape: tuple[int, ...]
    """Shape of a row."""
    dtype: np.dtype[Any]
    text: bool = False
    encoded: bool = False
    """Whether the rows are PNG or JPEG files. `shape` and `dtype` describe the decoded images."""
    video: bool = False
    """Whether the rows are frames of videos, as `shape` and `dtype` describe the decoded images."""
    problem: str = ""
    """Why the rows cannot be read, for an array of objects. The problem is an error only if the array is used."""

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row. Strings count as integer codes."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def kind(self) -> str:
        """What the elements are: the name of the dtype, or ``text`` or images."""
        images = "encoded images" if self.encoded else "frames of videos" if self.video else ""
        return "text" if self.text else images or self.dtype.name

    def __str__(self) -> str:
        return f"{self.kind} {[self.rows, *self.shape]}"


class ArrayFile(ABC):
    """Open file of arrays. A context manager."""

    name: str
    arrays: Mapping[str, Array]
    scalars: Mapping[str, NDArray[Any]] = MappingProxyType({})
    """Single numbers by name, [] each, which are arrays of no row."""
    unwritten: int = 0
    """Number of chunks that were never written to the file and read as fill values."""
    lengths: Mapping[str, NDArray[np.int64]] = MappingProxyType({})
    """Number of rows of each episode, [E], by array, where the structure of the file separates the episodes."""
    of_episodes: Mapping[str, NDArray[Any]] = MappingProxyType({})
    """Numbers of the episodes, [E] each, by name, which attributes of the groups of the episodes state."""
    unused: Sequence[str] = ()
    """Names of the attributes of the groups of episodes that are left out."""
    attributes: Mapping[str, str | float | bool] = MappingProxyType({})
    """Texts and numbers that the attributes of the whole file state, by name."""
    is_table: bool = False
    """Whether the arrays are columns of a table."""
    way: str = ""
    """How the structure separates the episodes, an item of `layout.ARRANGED`, or empty if it does not."""
    episode_names: Sequence[str] = ()
    """Names or numbers of the episodes, where the names of arrays or groups have them."""
    absent_marks: str = ""
    """Name of the array that marks the episodes in files of this kind, if the file lacks the array, or empty."""
    padding: Sequence[str] = ()
    """Names of the arrays of lengths and masks that state which rows are padding."""
    contained: Collection[str] = ()
    """Names of the arrays whose values other arrays of the file have, too."""
    open_question: str = ""
    """Why the file is not certainly a single episode if no array marks the episodes, or empty if it is."""
    optional: Sequence[str] = ()
    """Names of arrays with a meaning that the format defines, which need not be fields."""
    decisions: Mapping[str, int] = MappingProxyType({})
    """How often each rule was applied to read the file."""

    @property
    def readable(self) -> list[str]:
        """Names of the arrays without Python objects, which no reader returns."""
        return [name for name, array in self.arrays.items() if array.text or not array.dtype.hasobject]

    @abstractmethod
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        """Yield the rows of an array in blocks of `rows`. The blocks of several arrays may be read alternately.

        Raises:
            ConversionError: If the array cannot be decoded.
        """

    def take_notes_of(self, file: ArrayFile) -> None:
        """Take over the notes about another file, whose arrays this file has in another form."""
        for note in ArrayFile.__annotations__.keys() - {"arrays"}:
            setattr(self, note, getattr(file, note))

    def read_all(self, name: str) -> Rows:
        """Return all rows of a small array."""
        blocks = [*self.blocks(name, 1 << 16)]
        return join_rows(blocks) if blocks else np.empty(0)

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *details: object) -> None: ...


class RowReader:
    """Reader of ascending ranges of the rows of an array.

    block      |         |         |
    read()       [------) [------)         the second range is assembled from two blocks
    """

    def __init__(self, file: ArrayFile, name: str, rows: int) -> None:
        self._name = f"{file.name}: {name}"
        self._blocks = file.blocks(name, rows)
        self._block: Rows = []
        self._start = 0

    def read(self, start: int, stop: int) -> Rows:
        """Return the rows [start, stop), which must not precede the rows of earlier calls."""
        parts: list[Any] = []
        while start < stop:
            end = self._start + len(self._block)
            if start < end:
                parts.append(self._block[start - self._start : stop - self._start])
                start = min(end, stop)
                continue
            block = next(self._blocks, None)
            if block is None:
                raise ConversionError(self._name, [f"the array ends at row {end:,}, expected {stop:,} rows"])
            self._block, self._start = block, end
        if len(parts) == 1:
            whole: Rows = parts[0]
            return whole
        return join_rows(parts)

    def peek(self, row: int) -> Rows:
        """Return a row, [1, ...], at or after the end of the last range, without consuming the row."""
        end = self._start + len(self._block)
        if row < end:
            return self._block[row - self._start : row - self._start + 1]
        if (block := next(self._blocks, None)) is None:
            raise ConversionError(self._name, [f"the array ends at row {end:,}, expected {row + 1:,} rows"])
        self._block, self._start = block, end
        return self.peek(row)

    def finish(self) -> None:
        """Read the remaining rows, because formats with a checksum compare the checksum after the last row.

        Raises:
            ConversionError: If the rest of the array is truncated or damaged.
        """
        for _ in self._blocks:
            pass


def join_rows(parts: Sequence[Any]) -> Rows:
    """Return consecutive blocks of an array as a single block: a list of texts or byte strings, an array, or frames."""
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    joined: Rows = concatenate_columns(parts)
    return joined


class Hdf5Arrays(ArrayFile):
    """Open HDF5 file."""

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.hdf5 import Hdf5File

        self.name = name
        self.file = Hdf5File(path)
        self.unwritten = self.file.unwritten
        self.arrays = {
            array_name: _hdf5_array(array, f"{name}: {array_name}")
            for array_name, array in self.file.arrays.items()
            if array.shape
        }
        single = [name for name, array in self.file.arrays.items() if not array.shape and array.numeric]
        self.scalars = {name: np.asarray(self.file.value(name)) for name in single}
        self.attributes = {
            name: value
            for name, value in self.file.attributes("").items()
            if not isinstance(value, np.ndarray) and not (isinstance(value, str) and len(value) > TEXT_CHARS)
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        array = self.arrays[name]
        if array.text or array.encoded:
            yield from self._object_blocks(name, rows)
            return
        for block in self.file.blocks([name], rows=rows):
            yield block.columns[name]

    def _object_blocks(self, name: str, rows: int) -> Iterator[Rows]:
        """Yield texts, or the bytes of images. Their lengths vary, and only the HDF5 library can read them."""
        from datasets_rl.read.hdf5 import library_errors

        dataset, text = self.file.arrays[name].dataset, self.arrays[name].text
        if text and self.arrays[name].shape:
            raise ConversionError(self.name, [f"{name} is {self.arrays[name]}, expected a text for each row"])
        for start in range(0, self.arrays[name].rows, rows):
            with library_errors(self.name, f"{name}: "):
                values = dataset[start : start + rows]
                block = [item.decode() if text else item.tobytes() for item in values]
            yield block

    def __exit__(self, *details: object) -> None:
        self.file.close()


class Hdf5Group(Hdf5Arrays):
    """Group of an open HDF5 file. The names of arrays are names in the group, and closing the group leaves the file open."""

    def __init__(self, file: Hdf5File, group: str, name: str) -> None:
        file.enter(group)
        self.name = name
        self.file = file
        self.unwritten = file.unwritten
        self._prefix = f"{group}/"
        self.arrays = {
            array_name.removeprefix(self._prefix): _hdf5_array(array, f"{name}: {array_name}")
            for array_name, array in file.arrays.items()
            if array.shape
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        for block in self.file.blocks([self._prefix + name], rows=rows):
            yield block.columns[self._prefix + name]

    def __exit__(self, *details: object) -> None: ...


def _hdf5_array(array: Hdf5Array, name: str) -> Array:
    import h5py

    rows = array.shape[0]
    if array.text:
        return Array(rows, array.shape[1:], TEXT, text=True)
    if len(array.shape) == 1 and rows and h5py.check_vlen_dtype(array.dataset.dtype) == np.uint8:
        return _encoded_array(rows, array.dataset[0].tobytes(), name)
    return Array(rows, array.shape[1:], array.dtype)


def _encoded_array(rows: int, first: bytes, name: str) -> Array:
    """Return the description of an array of images, by the header of the first image, or else of an array of objects."""
    from datasets_rl.read.images import read_header

    if not first:  # an unknown final state
        return Array(rows, (), np.dtype(np.uint8), encoded=True)
    try:
        header = read_header(first, name)
    except ConversionError:
        # This is an error only if the array is used.
        return Array(rows, (), np.dtype(object))
    return Array(rows, header.shape, header.dtype, encoded=True)


class NpzArrays(ArrayFile):
    """Open npz file."""

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.npz import NpzFile

        self.name = name
        self._file = NpzFile(path)
        self.arrays = {
            array_name: Array(array.shape[0], array.shape[1:], TEXT, text=True)
            if array.dtype.kind == "U"
            else Array(array.shape[0], array.shape[1:], array.dtype.newbyteorder("="))
            for array_name, array in self._file.arrays.items()
            if array.shape
        }
        single = [name for name, array in self._file.arrays.items() if not array.shape and array.dtype.kind in "biuf"]
        self.scalars = {name: self._file.read(name) for name in single}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        reader, array = self._file.open(name), self.arrays[name]
        if reader.fortran and len(reader.shape) > 1 and array.rows * array.row_bytes > _WHOLE_MAX_BYTES:
            problem = f"{name} is in Fortran order and too large to be transposed in memory"
            raise ConversionError(self.name, [problem], hint="save the array with numpy.ascontiguousarray")
        for block in reader.blocks(rows):
            yield block.tolist() if array.text else block

    def read_objects(self, name: str) -> Any:
        """Return an array of Python objects that are plain data."""
        return self._file.read_objects(name)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class TableArrays(ArrayFile):
    """Open Parquet or Arrow file."""

    is_table = True

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.parquet import TableFile

        self.name = name
        self._file = TableFile(path)
        self.arrays = {}
        self._columns: dict[str, str] = {}
        """Columns of arrays with another name."""
        try:
            # The lengths of the lists of a column are known only after reading its rows.
            self.arrays = self._without_paths({column: self._array(column) for column in self._file.columns})
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    def _without_paths(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Return arrays, in which images that Hugging Face stores with their paths have the name of the column.

        image/bytes, image/path        image
        """
        roots = {
            name.removesuffix("/bytes") for name, array in arrays.items() if name.endswith("/bytes") and array.encoded
        }
        for root in sorted(roots):
            if {name for name in arrays if name.startswith(f"{root}/")} == {f"{root}/bytes", f"{root}/path"}:
                self._columns[root] = f"{root}/bytes"
        renamed = {column: root for root, column in self._columns.items()}
        paths = {f"{root}/path" for root in self._columns}
        return {renamed.get(name, name): array for name, array in arrays.items() if name not in paths}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        column = self._columns.get(name, name)
        for block in self._file.blocks([column], rows=rows):
            values = block[column]
            if isinstance(values, Ragged):
                values = values.stacked(f"{self.name}: {name}")
            if (shape := self._file.tensors.get(name)) is not None and isinstance(values, np.ndarray):
                values = values.reshape(-1, *shape)
            array = self.arrays.get(name)
            if isinstance(values, list) and array is not None and array.dtype.hasobject:
                raise ConversionError(self.name, [f"{name} has bytes, expected numbers, text or images"])
            if isinstance(values, np.ndarray) and array is not None and values.shape[1:] != array.shape:
                problem = (
                    f"{name} has rows of shape {list(values.shape[1:])}, but the first row has {list(array.shape)}"
                )
                raise ConversionError(self.name, [problem])
            yield values

    def lists(self, name: str, rows: int) -> Iterator[Any]:
        """Yield the cells of a column in blocks of rows: numbers, [n, k, ...], or ragged lists."""
        column = self._columns.get(name, name)
        for block in self._file.blocks([column], rows=rows):
            yield block[column]

    def first_bytes(self, name: str) -> bytes:
        """Return the first cell of a column of bytes, or no bytes if the column has no bytes."""
        cells = next(self._file.blocks([name], rows=1), {}).get(name, [])
        return cells[0] if isinstance(cells, list) and cells and isinstance(cells[0], bytes) else b""

    def _array(self, name: str) -> Array:
        try:
            first = next(self.blocks(name, 1), np.empty(0))
        except ConversionError:
            # This is an error only if the column is used.
            return Array(self._file.rows, (), np.dtype(object))
        if isinstance(first, list) and first and isinstance(first[0], bytes):
            return _encoded_array(self._file.rows, first[0], f"{self.name}: {name}")
        if isinstance(first, list):
            return Array(self._file.rows, (), TEXT, text=True)
        return Array(self._file.rows, first.shape[1:], first.dtype)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class WithEpisodes(ArrayFile):
    """File of steps, and a table with a row per episode.

    The columns of the table are the arrays ``episodes/<column>``.
    """

    def __init__(self, steps: ArrayFile, episodes: ArrayFile) -> None:
        self.name = steps.name
        self.unwritten, self.decisions = steps.unwritten, steps.decisions
        self._steps, self._episodes = steps, episodes
        columns = {f"{_EPISODES}{name}": array for name, array in episodes.arrays.items()}
        self.arrays = {**steps.arrays, **columns}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        inner = name.removeprefix(_EPISODES)
        return (self._steps if inner == name else self._episodes).blocks(inner, rows)

    def __exit__(self, *details: object) -> None:
        self._episodes.__exit__(*details)
        self._steps.__exit__(*details)


_EPISODES = "episodes/"
