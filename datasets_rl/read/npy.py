"""Arrays as ``numpy.save`` writes them, read from front to back out of any stream."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import AGAIN, Readable, fill, unlike

__all__ = ["MAGIC", "NpyReader"]

MAGIC = b"\x93NUMPY"
_PLAIN = "biufcSU"
# What numpy's parser was seen to raise on damaged headers.
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


@lru_cache(maxsize=256)
def _parsed(
    read: Callable[[BinaryIO], tuple[tuple[int, ...], bool, np.dtype[Any]]], header: bytes
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # numpy compiles the header as Python, which costs more than to read the array of a short episode.
    return read(io.BytesIO(header))


class NpyReader:
    """A ``.npy`` file in a stream; its rows are read from the first to the last.

    Args:
        stream: The file, from its beginning.
        name: What it is called in errors.
        most: The bytes that the array can have at most, as far as the size of the file tells.

    Raises:
        ConversionError: If it is no such file, or claims an array larger than that.
    """

    def __init__(self, stream: BinaryIO | Readable, name: str, *, most: int) -> None:
        self.name = name
        self._stream = stream
        self._row = 0
        self.shape: tuple[int, ...]
        self.dtype: np.dtype[Any]
        """As stored, with its byte order."""
        self.shape, self.fortran, self.dtype = self._header()
        if self.pickled:
            return
        size = self.dtype.itemsize * math.prod(self.shape)
        if self.dtype.kind not in _PLAIN or self.dtype.fields:
            raise ConversionError(name, [f"it has dtype {self.dtype}; expected numbers or text"])
        if min(self.shape, default=0) < 0 or size > most:
            declared = f"it declares {list(self.shape)} of {self.dtype}, {size:,} bytes"
            raise ConversionError(name, [f"{declared}; it can hold {most:,} at most"], hint=AGAIN)

    @property
    def pickled(self) -> bool:
        """Whether it holds Python objects, which `pickles.load_npy` reads."""
        return self.dtype.hasobject

    def read(self) -> NDArray[Any]:
        """Read the whole array, and the end of the file.

        Returns:
            The array in this machine's byte order.

        Raises:
            ConversionError: If the file is cut, holds more, or holds Python objects.
        """
        self._check_no_objects()
        shape = self.shape[::-1] if self.fortran else self.shape
        out: NDArray[Any] = np.empty(shape, self.dtype)
        self._fill(out)
        self._finish()
        whole = out.T if self.fortran else out
        return whole.astype(self.dtype.newbyteorder("="), copy=False)

    def read_into(self, out: NDArray[Any]) -> None:
        """Read the next rows into the caller's memory, and with the last row the end of the file, where checksums stand.

        Args:
            out: [rows, ...], contiguous, of the array's dtype: the bytes are put there as they come.

        Raises:
            ConversionError: If the file is cut, has fewer rows, keeps its columns together, holds Python objects, or
                has a wrong checksum.
            ValueError: If `out` does not fit.
        """
        self._check_no_objects()
        if out.shape[1:] != self.shape[1:] or out.dtype != self.dtype or not out.flags.c_contiguous:
            wanted = f"[rows, {', '.join(map(str, self.shape[1:]))}] of {self.dtype}, contiguous"
            raise ValueError(f"out is {list(out.shape)} of {out.dtype}; expected {wanted}")
        if self.fortran and len(self.shape) > 1:
            raise ConversionError(self.name, ["its columns lie together, not its rows; it can only be read whole"])
        if not self.shape or self._row + len(out) > self.shape[0]:
            rows = self.shape[0] if self.shape else 0
            raise ConversionError(self.name, [f"it has {rows:,} rows; expected {self._row + len(out):,}"])
        self._fill(out)
        self._row += len(out)
        if self._row == self.shape[0]:
            self._finish()

    def blocks(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the array in blocks of that many rows, in this machine's byte order.

        The end of the file, where checksums stand, is read before the last block is yielded.

        Raises:
            ConversionError: As `read` does.
        """
        self._check_no_objects()
        if not self.shape or (self.fortran and len(self.shape) > 1):
            whole = self.read()
            yield from (whole[start : start + rows] for start in range(0, len(whole), rows)) if self.shape else [whole]
            return
        if not self.shape[0]:
            self._finish()
        while self._row < self.shape[0]:
            block: NDArray[Any] = np.empty((min(rows, self.shape[0] - self._row), *self.shape[1:]), self.dtype)
            self.read_into(block)
            yield block.astype(self.dtype.newbyteorder("="), copy=False)

    def _finish(self) -> None:
        """Read the end of the file: nothing may follow the array, and streams compare their checksum there."""
        if fill(self._stream, memoryview(bytearray(1))):
            raise ConversionError(self.name, ["more bytes follow its array"], hint=AGAIN)

    def _header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        head = bytearray(12)
        got = fill(self._stream, memoryview(head))
        if not head.startswith(MAGIC):
            raise ConversionError(self.name, [unlike(bytes(head[:got]), "a .npy array")], hint=AGAIN)
        if got < len(head):
            raise ConversionError(self.name, ["its header is cut"], hint=AGAIN)
        version, read = tuple(head[6:8]), npy.read_array_header_1_0
        size = int.from_bytes(head[8:10], "little")
        rest = 10 + size - len(head)
        if version == (2, 0):
            read, rest = npy.read_array_header_2_0, int.from_bytes(head[8:12], "little")
        elif version != (1, 0):
            raise ConversionError(self.name, [f"its format is {version}; expected (1, 0) or (2, 0)"])
        if not 0 <= rest <= 1 << 16:
            raise ConversionError(self.name, [f"its header has {rest:,} bytes; expected few"], hint=AGAIN)
        text = bytearray(rest)
        got = fill(self._stream, memoryview(text))
        try:
            found = _parsed(read, bytes(head[8:] + text[:got]))
        except _HEADER_ERRORS as error:
            raise ConversionError(self.name, [f"its header is damaged or cut: {error}"], hint=AGAIN) from error
        return found

    def _fill(self, out: NDArray[Any]) -> None:
        if not out.nbytes:
            return
        view = out.reshape(-1).view(np.uint8).data
        got = fill(self._stream, view)
        if got < len(view):
            whole = math.prod(self.shape) * self.dtype.itemsize
            done = self._row * out[:1].nbytes + got if self._row else got
            raise ConversionError(self.name, [f"it is cut: {done:,} of {whole:,} bytes are there"], hint=AGAIN)

    def _check_no_objects(self) -> None:
        if self.pickled:
            raise ConversionError(self.name, ["it holds Python objects; expected numbers or text"])
