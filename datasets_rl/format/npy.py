"""One .npy file written block by block, hashed on the way."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import IntegrityError
from datasets_rl.format.manifest import StoredFile

__all__ = ["NpyStream", "begun_blocks", "copy_on_write", "expect_random_reads", "file_sha256", "map_npy", "open_npy"]

_HASH_BYTES = 1 << 20
# Linux's value; Python names it only since 3.11, and other systems have nothing to reserve.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_MAX_HEADER = 1 << 20  # numpy's own limit is met with 300 fields
# What numpy's parser was seen to raise on damaged headers.
_HEADER_ERRORS = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    KeyError,
    SyntaxError,
    TokenError,
    ArithmeticError,
    MemoryError,
)


class NpyStream:
    """Append to an .npy file whose number of rows may not be known before the end.

    Args:
        path: The file, made anew.
        dtype: Of one item; a structured dtype for records.
        shape: Of one item.
        expected: Rows that will come, where known: then the digest needs no second look at the file.
        written: Rows that an earlier process wrote and that stay; None makes the file anew.

    Raises:
        IntegrityError: If the file does not hold the rows that stay.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] = (),
        expected: int | None = None,
        written: int | None = None,
    ) -> None:
        self._path = path
        self.dtype = dtype
        self.shape = shape
        self._expected = expected or 0
        self._rows = 0
        self._hash = hashlib.sha256()
        self._seen = written is None and expected is not None
        if written is None:
            self._stream: IO[bytes] = path.open("wb")
            self._write(self._header(self._expected))
        else:
            self._go_on(written)

    def _go_on(self, written: int) -> None:
        """Cut what lies behind the rows that stay."""
        end = len(self._header(self._expected)) + written * self.item_bytes
        there = self._path.stat().st_size if self._path.is_file() else 0
        if there < end:
            raise IntegrityError(str(self._path), [f"it has {there:,} bytes; {written:,} rows need {end:,}"])
        self._stream = self._path.open("r+b")
        self._stream.truncate(end)
        self._stream.seek(end)
        self._rows = written

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._rows

    @property
    def item_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def flush(self, *, sync: bool) -> int:
        """Give all rows so far to the system, wait for the disk if so wanted, and return how many bytes the file has."""
        with disk.disk_errors(self._path.parent):
            self._stream.flush()
            if sync:
                os.fsync(self._stream.fileno())
        return self._stream.tell()

    def append(self, block: NDArray[Any]) -> None:
        """Write further rows, [n, ...]."""
        self._write(np.ascontiguousarray(block).reshape(-1).view(np.uint8))
        self._rows += len(block)

    def amend(self, row: int, item: NDArray[Any]) -> None:
        """Write a row again that was written by this process, [1, ...]."""
        self._seen = False
        with disk.disk_errors(self._path.parent):
            end = self._stream.tell()
            self._stream.seek(end - (self._rows - row) * item.nbytes)
            self._stream.write(np.ascontiguousarray(item).reshape(-1).view(np.uint8).data)
            self._stream.seek(end)

    def close(self, *, trailing: int = 0) -> StoredFile:
        """Write zeros after the last row, put the true number of rows into the header and return the file's entry."""
        self._write(bytes(trailing))
        counted = self._rows == self._expected
        hashed = counted and self._seen
        with disk.disk_errors(self._path.parent):
            if not counted:
                # numpy pads the header so that the leading axis can grow in place.
                self._stream.seek(0)
                self._stream.write(self._header(self._rows))
            self._stream.close()
        digest = self._hash.hexdigest() if hashed else file_sha256(self._path)
        return StoredFile(self._path.name, self._path.stat().st_size, digest)

    def discard(self) -> None:
        """Close the file without finishing it."""
        with suppress(OSError):  # what a full disk did not take is still there to be written, and is not wanted
            self._stream.close()

    def _write(self, data: Any) -> None:
        with self._hashing(data), disk.disk_errors(self._path.parent):
            self._stream.write(data)

    @contextmanager
    def _hashing(self, data: Any) -> Iterator[None]:
        """Take up a block into the digest, a large one beside what is done meanwhile: to write it takes about as long."""
        thread = threading.Thread(target=self._hash.update, args=(data,), name="rlds-digest")
        beside = self._seen and len(data) >= _HASH_BYTES
        if beside:
            thread.start()
        elif self._seen:
            self._hash.update(data)
        try:
            yield
        finally:
            if beside:
                thread.join()

    def _header(self, rows: int) -> bytes:
        described = {
            "descr": npy.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (rows, *self.shape),
        }
        stream = io.BytesIO()
        try:
            npy.write_array_header_1_0(stream, described)
        except ValueError:  # more than 65,535 characters of field names
            stream = io.BytesIO()
            npy.write_array_header_2_0(stream, described)
        return stream.getvalue()


def begun_blocks(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int, most: int
) -> Iterator[NDArray[Any]]:
    """Yield the first rows of a file that an `NpyStream` has begun and not closed.

    Read and not mapped: of a mapped file, the system counts all that was seen as memory of the process.

    Args:
        path: The file.
        dtype: Of one item.
        shape: Of one item.
        rows: How many there are, as the stream said.
        most: How many come at once.

    Yields:
        [at most `most`, ...], which may be changed, and holds until the next one is asked for.

    Raises:
        IntegrityError: If the file does not hold so many.
    """
    block = np.empty((min(most, rows), *shape), dtype)
    try:
        with path.open("rb") as stream:
            if rows:
                read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
                read(stream, max_header_size=_MAX_HEADER)
            for start in range(0, rows, most):
                part = block[: rows - start]
                if stream.readinto(part.reshape(-1).view(np.uint8).data) < part.nbytes:
                    raise EOFError(f"it ends within row {start + most:,} or before")
                yield part
    except _HEADER_ERRORS as error:
        raise IntegrityError(str(path), [f"it does not hold {rows:,} rows: {error}"]) from error


def open_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Map an .npy file that must hold an array of this dtype and shape.

    Args:
        path: The file.
        dtype: Of one item.
        shape: Of the whole array.

    Raises:
        IntegrityError: If the file holds something else, or cannot be mapped.
    """
    array = map_npy(path)
    if array.dtype != dtype or array.shape != shape:
        raise IntegrityError(
            str(path), [f"it holds {array.dtype} {list(array.shape)}; the manifest says {dtype} {list(shape)}"]
        )
    return array


def copy_on_write(path: Path, mapped: np.memmap[Any, Any]) -> NDArray[Any]:
    """Map the array of a file again so that writes change this process's view and never the file.

    numpy's own mode "c" lets the system reserve memory for a copy of the whole file, which it refuses for files that
    are larger than the memory.

    Args:
        path: The file.
        mapped: The same file, mapped read-only.

    Raises:
        IntegrityError: If it cannot be mapped.
    """
    with path.open("rb") as stream:
        try:
            if os.name == "nt":
                pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            else:
                flags = mmap.MAP_PRIVATE | _NO_RESERVE
                pages = mmap.mmap(stream.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise IntegrityError(
                str(path),
                [f"it cannot be mapped for writing: {error}"],
                hint="read it in parts: dataset.stored.column(key, start, stop)",
            ) from error
    return np.ndarray(mapped.shape, mapped.dtype, pages, mapped.offset)


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """Map an .npy file of any content, whatever its header says.

    Raises:
        IntegrityError: If it cannot be mapped.
    """
    try:
        array: np.memmap[Any, Any] = npy.open_memmap(path, mode="r", max_header_size=_MAX_HEADER)
    except _HEADER_ERRORS as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise  # the file is intact
        raise IntegrityError(str(path), [f"it cannot be mapped: {error}"]) from error
    return array


def expect_random_reads(mapped: NDArray[Any]) -> None:
    """Tell the system that single rows of a mapped file will be read.

    It otherwise reads 128 kB around each of them, which pays where the file fits into the memory and costs many times
    the disk's work where it does not.
    """
    pages = getattr(mapped, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_HASH_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
