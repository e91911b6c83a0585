"""Common interface to the arrays of npz, HDF5 and Parquet files: their shapes and dtypes, and their rows in order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.ragged import Ragged

if TYPE_CHECKING:
    from typing_extensions import Self

_WHOLE_MAX_BYTES = 64 << 20
_TEXT = np.dtype(np.int32)  # the dtype of the integer codes of strings

_Values = NDArray[Any] | list[str]


@dataclass(frozen=True, slots=True)
class Array:
    """Description of an array: number, shape and dtype of its rows."""

    rows: int
    shape: tuple[int, ...]
    """Shape of one row."""
    dtype: np.dtype[Any]
    text: bool = False

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row; strings count as integer codes."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{'text' if self.text else self.dtype.name} {[self.rows, *self.shape]}"


class ArrayFile(ABC):
    """Open file of arrays. A context manager."""

    name: str
    arrays: Mapping[str, Array]
    unwritten: int = 0
    """Number of chunks that were never written to the file and read as fill values."""

    @abstractmethod
    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        """Yield the rows of an array in blocks of `rows`; the blocks of several arrays may be read alternately.

        Raises:
            ConversionError: If the array cannot be decoded.
        """

    def read_all(self, name: str) -> _Values:
        """Return all rows of a small array."""
        blocks = [*self.blocks(name, 1 << 16)]
        if blocks and isinstance(blocks[0], list):
            return [text for block in blocks for text in block]
        return np.concatenate(blocks) if blocks else np.empty(0)

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
        self._block: _Values = []
        self._start = 0

    def read(self, start: int, stop: int) -> _Values:
        """Return the rows [start, stop), which must not precede those of earlier calls."""
        parts: list[Any] = []
        while start < stop:
            end = self._start + len(self._block)
            if start < end:
                parts.append(self._block[start - self._start : stop - self._start])
                start = min(end, stop)
                continue
            block = next(self._blocks, None)
            if block is None:
                raise ConversionError(self._name, [f"it ends at row {end:,}; expected {stop:,} rows"])
            self._block, self._start = block, end
        if len(parts) == 1:
            whole: _Values = parts[0]
            return whole
        return [text for part in parts for text in part] if isinstance(parts[0], list) else np.concatenate(parts)

    def finish(self) -> None:
        """Read the remaining rows, because formats with a checksum compare it after the last row.

        Raises:
            ConversionError: If the rest of the array is truncated or damaged.
        """
        for _ in self._blocks:
            pass


def open_arrays(path: Path, file_format: str, name: str) -> ArrayFile:
    """Open a file.

    Args:
        path: The file.
        file_format: ``hdf5``, ``npz`` or ``parquet``.
        name: Name of the file in errors.

    Raises:
        ConversionError: If the file is damaged or has another format.
        MissingDependencyError: If pyarrow is needed and not installed.
    """
    if file_format == "parquet":
        return _TableArrays(path, name)
    return _Hdf5Arrays(path, name) if file_format == "hdf5" else _NpzArrays(path, name)


class _Hdf5Arrays(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.hdf5 import Hdf5File

        self.name = name
        self._file = Hdf5File(path)
        self.unwritten = self._file.unwritten
        self.arrays = {
            array_name: Array(array.shape[0], array.shape[1:], array.dtype)
            for array_name, array in self._file.arrays.items()
            if array.shape and not array.text
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        for block in self._file.blocks([name], rows=rows):
            yield block.columns[name]

    def __exit__(self, *details: object) -> None:
        self._file.close()


class _NpzArrays(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.npz import NpzFile

        self.name = name
        self._file = NpzFile(path)
        self.arrays = {
            array_name: Array(array.shape[0], array.shape[1:], _TEXT, text=True)
            if array.dtype.kind == "U"
            else Array(array.shape[0], array.shape[1:], array.dtype.newbyteorder("="))
            for array_name, array in self._file.arrays.items()
            if array.shape
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        reader, array = self._file.open(name), self.arrays[name]
        if reader.fortran and len(reader.shape) > 1 and array.rows * array.row_bytes > _WHOLE_MAX_BYTES:
            problem = f"{name} is in Fortran order and too large to be transposed in memory"
            raise ConversionError(self.name, [problem], hint="save it with numpy.ascontiguousarray")
        for block in reader.blocks(rows):
            yield block.tolist() if array.text else block

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class _TableArrays(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.parquet import TableFile

        self.name = name
        self._file = TableFile(path)
        self.arrays = {}
        try:
            # The lengths of the lists of a column are known only after reading its rows.
            self.arrays = {column: self._array(column) for column in self._file.columns}
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    @override
    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        for block in self._file.blocks([name], rows=rows):
            values = block[name]
            if isinstance(values, Ragged):
                values = values.stacked(f"{self.name}: {name}")
            if isinstance(values, list) and values and isinstance(values[0], bytes):
                raise ConversionError(self.name, [f"{name} has bytes; expected numbers or text"])
            array = self.arrays.get(name)
            if isinstance(values, np.ndarray) and array is not None and values.shape[1:] != array.shape:
                problem = f"{name} has rows of shape {list(values.shape[1:])}; the first row has {list(array.shape)}"
                raise ConversionError(self.name, [problem])
            yield values  # type: ignore[misc]  # lists of bytes raised an error above

    def _array(self, name: str) -> Array:
        try:
            first = next(self.blocks(name, 1), np.empty(0))
        except ConversionError:
            # This is an error only if the column is used.
            return Array(self._file.rows, (), np.dtype(object))
        if isinstance(first, list):
            return Array(self._file.rows, (), _TEXT, text=True)
        return Array(self._file.rows, first.shape[1:], first.dtype)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)
