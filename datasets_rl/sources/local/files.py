"""The arrays of a file, whatever its format: what they are, known at once, and their rows, from front to back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.ragged import Ragged

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Array", "ArrayFile", "Rows", "open_arrays"]

_WHOLE_MOST = 64 << 20
_TEXT = np.dtype(np.int32)  # what numbers of texts are

_Values = NDArray[Any] | list[str]


@dataclass(frozen=True, slots=True)
class Array:
    """An array with rows."""

    rows: int
    shape: tuple[int, ...]
    """Of one row."""
    dtype: np.dtype[Any]
    text: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; texts are counted as numbers."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{'text' if self.text else self.dtype.name} {[self.rows, *self.shape]}"


class ArrayFile(ABC):
    """An open file. A context manager."""

    name: str
    arrays: Mapping[str, Array]
    unwritten: int = 0
    """Chunks that the file does not store, and that read as fill values."""

    @abstractmethod
    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        """Yield the rows of an array in blocks of that many; several arrays may take turns.

        Raises:
            ConversionError: If it does not decode.
        """

    def whole(self, name: str) -> _Values:
        """Return all rows of a narrow array."""
        blocks = [*self.blocks(name, 1 << 16)]
        if blocks and isinstance(blocks[0], list):
            return [text for block in blocks for text in block]
        return np.concatenate(blocks) if blocks else np.empty(0)

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *details: object) -> None: ...


class Rows:
    """The rows of an array in ascending order, as many at a time as the caller asks for.

    block     |         |         |
    asked       [------) [------)         the second range is assembled from two blocks
    """

    def __init__(self, file: ArrayFile, name: str, rows: int) -> None:
        self._name = f"{file.name}: {name}"
        self._blocks = file.blocks(name, rows)
        self._held: _Values = []
        self._start = 0

    def read(self, start: int, stop: int) -> _Values:
        """Return the rows [start, stop); later calls ask for later ones."""
        parts: list[Any] = []
        while start < stop:
            end = self._start + len(self._held)
            if start < end:
                parts.append(self._held[start - self._start : stop - self._start])
                start = min(end, stop)
                continue
            block = next(self._blocks, None)
            if block is None:
                raise ConversionError(self._name, [f"it ends at row {end:,}; expected {stop:,} rows"])
            self._held, self._start = block, end
        if len(parts) == 1:
            whole: _Values = parts[0]
            return whole
        return [text for part in parts for text in part] if isinstance(parts[0], list) else np.concatenate(parts)

    def finish(self) -> None:
        """Read the rows that no step uses: formats with a checksum compare it at the last row.

        Raises:
            ConversionError: If the rest of the array is cut or damaged.
        """
        for _ in self._blocks:
            pass


def open_arrays(path: Path, form: str, name: str) -> ArrayFile:
    """Open a file.

    Args:
        path: The file.
        form: ``hdf5``, ``npz`` or ``parquet``.
        name: What it is called in errors.

    Raises:
        ConversionError: If it is no such file, or damaged.
        MissingDependencyError: If pyarrow is wanted and absent.
    """
    if form == "parquet":
        return _Table(path, name)
    return _Hdf5(path, name) if form == "hdf5" else _Npz(path, name)


class _Hdf5(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.hdf5 import Hdf5File

        self.name = name
        self._file = Hdf5File(path)
        self.unwritten = self._file.unwritten
        self.arrays = {
            array: Array(one.shape[0], one.shape[1:], one.dtype)
            for array, one in self._file.arrays.items()
            if one.shape and not one.text
        }

    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        for block in self._file.blocks([name], rows=rows):
            yield block.columns[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()


class _Npz(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.npz import NpzFile

        self.name = name
        self._file = NpzFile(path)
        self.arrays = {
            array: Array(one.shape[0], one.shape[1:], _TEXT, text=True)
            if one.dtype.kind == "U"
            else Array(one.shape[0], one.shape[1:], one.dtype.newbyteorder("="))
            for array, one in self._file.arrays.items()
            if one.shape
        }

    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        reader, array = self._file.open(name), self.arrays[name]
        if reader.fortran and len(reader.shape) > 1 and array.rows * array.row_bytes > _WHOLE_MOST:
            problem = f"{name} keeps its columns together and not its rows, and is too large to be turned"
            raise ConversionError(self.name, [problem], hint="save numpy.ascontiguousarray of it")
        for block in reader.blocks(rows):
            yield block.tolist() if array.text else block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class _Table(ArrayFile):
    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.parquet import TableFile

        self.name = name
        self._file = TableFile(path)
        self.arrays = {}
        try:
            # How long the lists of a column are is known of its rows alone.
            self.arrays = {column: self._array(column) for column in self._file.columns}
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    def blocks(self, name: str, rows: int) -> Iterator[_Values]:
        for block in self._file.blocks([name], rows=rows):
            values = block[name]
            if isinstance(values, Ragged):
                values = values.stacked(f"{self.name}: {name}")
            if isinstance(values, list) and values and isinstance(values[0], bytes):
                raise ConversionError(self.name, [f"{name} holds bytes; expected numbers or text"])
            wanted = self.arrays.get(name)
            if isinstance(values, np.ndarray) and wanted is not None and values.shape[1:] != wanted.shape:
                problem = f"{name} has rows of {list(values.shape[1:])}; the first one has {list(wanted.shape)}"
                raise ConversionError(self.name, [problem])
            yield values  # type: ignore[misc]  # lists of bytes were refused

    def _array(self, name: str) -> Array:
        try:
            first = next(self.blocks(name, 1), np.empty(0))
        except ConversionError:
            # It is a fault where the column is wanted, and only there.
            return Array(self._file.rows, (), np.dtype(object))
        if isinstance(first, list):
            return Array(self._file.rows, (), _TEXT, text=True)
        return Array(self._file.rows, first.shape[1:], first.dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)
