"""Headers of ``.npy`` files, and a sequential reader of the arrays from any stream."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import raise_fault_of_code
from datasets_rl.read.streams import AGAIN, Readable, fill, unexpected_format

MAGIC = b"\x93NUMPY"
_PLAIN = "biufcSU"
_FORMATS: dict[tuple[int, ...], tuple[int, Callable[..., Any]]] = {
    (1, 0): (2, npy.read_array_header_1_0),
    (2, 0): (4, npy.read_array_header_2_0),
}
"""For each version of the format, the number of bytes of the length of the header, and numpy's parser."""
# Exceptions that numpy's parser raises for damaged headers.
_HEADER_ERRORS = (
    ValueError,
    EOFError,
    TypeError,
    KeyError,
    SyntaxError,
    TokenError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


class NpyHeader(NamedTuple):
    """Header of a ``.npy`` file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    """Stored dtype, with the byte order."""
    size: int
    """Number of bytes before the array."""


def read_header(stream: BinaryIO | Readable, *, header_max_bytes: int = 1 << 16) -> NpyHeader:
    """Read the header of a ``.npy`` file from a stream at the beginning. The array follows.

    Args:
        stream: The file.
        header_max_bytes: Maximum number of bytes of the header.

    Raises:
        ValueError: If the file has no valid header. The message is a sentence about the file.
    """
    head = bytearray(12)
    count = fill(stream, memoryview(head))
    if not head.startswith(MAGIC):
        raise ValueError(unexpected_format(bytes(head[:count]), "a .npy array"))
    if count < len(head):
        raise ValueError("the header is truncated")
    version = tuple(head[6:8])
    if version not in _FORMATS:
        raise ValueError(f"the format is {version}, expected (1, 0) or (2, 0)")
    width, _ = _FORMATS[version]
    size = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    rest = size - len(head)
    if not 0 <= rest <= header_max_bytes:
        raise ValueError(f"the header has {rest:,} bytes, expected at most {header_max_bytes:,}")
    text = bytearray(rest)
    count = fill(stream, memoryview(text))
    try:
        return NpyHeader(*_parse_header(version, bytes(head[8:] + text[:count])), size)
    except _HEADER_ERRORS as error:
        raise_fault_of_code(error, "the header of a .npy file")
        raise ValueError(f"the header is damaged or truncated: {error}") from error


@lru_cache(maxsize=256)
def _parse_header(version: tuple[int, ...], header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # numpy parses the header as Python code, which costs more than reading the array of a short episode.
    _, parse = _FORMATS[version]
    shape, fortran, dtype = parse(io.BytesIO(header), max_header_size=len(header))
    return shape, fortran, dtype


class NpyReader:
    """Reader of a ``.npy`` file in a stream, from the first row to the last.

    Args:
        stream: The file, at the beginning.
        name: Name of the file in errors.
        most: Maximum number of bytes of the array, from the size of the file.

    Raises:
        ConversionError: If the file is not a ``.npy`` file, or declares a larger array.
    """

    def __init__(self, stream: BinaryIO | Readable, name: str, *, most: int) -> None:
        self.name = name
        self._stream = stream
        self._row = 0
        try:
            self.shape, self.fortran, self.dtype, _ = read_header(stream)
        except ValueError as error:
            raise ConversionError(name, [str(error)], hint=AGAIN) from error
        if self.pickled:
            return
        size = self.dtype.itemsize * math.prod(self.shape)
        if self.dtype.kind not in _PLAIN or self.dtype.fields:
            raise ConversionError(name, [f"it has dtype {self.dtype}, expected numbers or text"])
        if min(self.shape, default=0) < 0 or size > most:
            declared = f"it declares {self}, {size:,} bytes"
            raise ConversionError(name, [f"{declared}, but the file can have at most {most:,}"], hint=AGAIN)

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype}"

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def pickled(self) -> bool:
        """Whether the array has Python objects, which `pickles.load_npy` reads."""
        return self.dtype.hasobject

    def read(self) -> NDArray[Any]:
        """Read the whole array and the end of the file.

        Returns:
            The array in the byte order of this machine.

        Raises:
            ConversionError: If the file is truncated, has more data, or has Python objects.
        """
        self._check_no_objects()
        shape = self.shape[::-1] if self.fortran else self.shape
        out: NDArray[Any] = np.empty(shape, self.dtype)
        self._fill_array(out)
        self._check_end()
        whole = out.T if self.fortran else out
        return whole.astype(self.dtype.newbyteorder("="), copy=False)

    def read_into(self, out: NDArray[Any]) -> None:
        """Read the next rows into the caller's memory. After the last row, read the end of the file and the checksums.

        Args:
            out: Output, [rows, ...], contiguous, with the dtype of the array: the bytes are copied unchanged.

        Raises:
            ConversionError: If the file is truncated, has fewer rows, is in Fortran order, has Python objects, or has a
                wrong checksum.
            ValueError: If `out` has another row shape or dtype, or is not contiguous.
        """
        self._check_no_objects()
        if out.shape[1:] != self.shape[1:] or out.dtype != self.dtype or not out.flags.c_contiguous:
            expected = f"[rows, {', '.join(map(str, self.shape[1:]))}] of {self.dtype}, contiguous"
            raise ValueError(f"out is {list(out.shape)} of {out.dtype}, expected {expected}")
        if self.fortran and len(self.shape) > 1:
            raise ConversionError(self.name, ["it is in Fortran order and can only be read as a whole"])
        if not self.shape or self._row + len(out) > self.shape[0]:
            rows = self.shape[0] if self.shape else 0
            raise ConversionError(self.name, [f"it has {rows:,} rows, expected {self._row + len(out):,}"])
        self._fill_array(out)
        self._row += len(out)
        if self._row == self.shape[0]:
            self._check_end()

    def read_rows(self, count: int) -> NDArray[Any]:
        """Return the next rows, [count, ...], in the byte order of this machine, see `read_into`."""
        rows: NDArray[Any] = np.empty((count, *self.shape[1:]), self.dtype)
        self.read_into(rows)
        return rows.astype(self.dtype.newbyteorder("="), copy=False)

    def blocks(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the array in blocks of `rows`, in the byte order of this machine.

        The end of the file with the checksums is read before the last block is yielded.

        Raises:
            ConversionError: For the reasons of `read`.
        """
        self._check_no_objects()
        if not self.shape or (self.fortran and len(self.shape) > 1):
            whole = self.read()
            yield from (whole[start : start + rows] for start in range(0, len(whole), rows)) if self.shape else [whole]
            return
        if not self.shape[0]:
            self._check_end()
        while self._row < self.shape[0]:
            yield self.read_rows(min(rows, self.shape[0] - self._row))

    def _check_end(self) -> None:
        """Read the end of the file: no data may follow the array, and streams compare the checksum there."""
        if fill(self._stream, memoryview(bytearray(1))):
            raise ConversionError(self.name, ["more bytes follow the array"], hint=AGAIN)

    def _fill_array(self, out: NDArray[Any]) -> None:
        if not out.nbytes:
            return
        view = out.reshape(-1).view(np.uint8).data
        count = fill(self._stream, view)
        if count < len(view):
            whole = math.prod(self.shape) * self.dtype.itemsize
            done = self._row * out[:1].nbytes + count if self._row else count
            raise ConversionError(self.name, [f"it is truncated: it has {done:,} of {whole:,} bytes"], hint=AGAIN)

    def _check_no_objects(self) -> None:
        if self.pickled:
            raise ConversionError(self.name, ["it has Python objects, expected numbers or text"])
