"""Writing, reading and memory-mapping of .npy files: an append-only stream with digests, and checked maps."""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import IntegrityError
from datasets_rl.format.digests import NoHasher, RangeHasher, stored_file
from datasets_rl.format.manifest import StoredFile
from datasets_rl.libraries import raise_fault_of_code
from datasets_rl.read.npy import read_header
from datasets_rl.ted.keys import Key, dotted_name

# Linux's value: Python defines the constant only since 3.11, and other systems do not reserve memory.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_TAKE_ROWS = 1 << 10  # with the pages that the system maps around each row: up to 64 MB
_TAKE_BYTES = 8 << 20
_MAX_HEADER = 1 << 20  # numpy's default limit is reached with about 300 fields


class NpyStream:
    """Append-only writer of an .npy file. The number of rows may be unknown until the end.

    Args:
        path: The file. The file is created or overwritten, unless `written` is given.
        dtype: Dtype of a row, a structured dtype for records.
        shape: Shape of a row.
        expected: Total number of rows, if known.
        written: Number of rows that an earlier process wrote and that are kept; None creates the file.
        trailing: Number of zero bytes after the last row.
        hashed: Whether a new file gets digests.

    Raises:
        IntegrityError: If the file does not have the rows to keep.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] = (),
        expected: int | None = None,
        written: int | None = None,
        trailing: int = 0,
        *,
        hashed: bool = True,
    ) -> None:
        self._path = path
        self.dtype = dtype
        self.shape = shape
        self._expected = expected or 0
        self._trailing = trailing
        self._rows = 0
        self.ranges = b""
        """Digests of the ranges of the closed file, 32 bytes each. Empty before the file is closed."""
        if written is None:
            self._hasher = RangeHasher() if hashed else NoHasher()
            self._stream: IO[bytes] = path.open("wb")
            self._write(_header_bytes(self.dtype, self.shape, self._expected))
        else:
            self._resume(written)

    def _resume(self, written: int) -> None:
        """Truncate the file after the rows to keep, and position the stream there."""
        end = len(_header_bytes(self.dtype, self.shape, self._expected)) + written * self.item_bytes
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size < end:
            raise IntegrityError(
                str(self._path), [f"the file has {size:,} bytes, expected {end:,} for {written:,} rows"]
            )
        self._stream = self._path.open("r+b")
        self._stream.truncate(end)
        self._stream.seek(end)
        self._hasher = RangeHasher(skipped=end)
        self._rows = written

    @property
    def rows(self) -> int:
        """Number of rows written so far."""
        return self._rows

    @property
    def item_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def flush(self, *, sync: bool) -> int:
        """Flush all rows to the operating system, with `sync` also to disk. Return the size of the file in bytes."""
        with disk.disk_errors(self._path.parent):
            if sync:
                disk.sync_stream(self._stream)
            else:
                self._stream.flush()
        return self._stream.tell()

    def append(self, block: NDArray[Any]) -> None:
        """Append rows, [n, ...]."""
        self._write(np.ascontiguousarray(block).reshape(-1).view(np.uint8))
        self._rows += len(block)

    def patch(self, row: int, values: NDArray[Any]) -> None:
        """Overwrite rows from `row` on, which this process wrote, with items [n, ...]."""
        with disk.disk_errors(self._path.parent):
            end = self._stream.tell()
            start = self._stream.seek(end - (self._rows - row) * self.item_bytes)
            self._hasher.invalidate(start, start + values.nbytes)
            self._stream.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            self._stream.seek(end)

    def close(self) -> StoredFile:
        """Write the trailing bytes and the final number of rows, close the file, and return its manifest entry."""
        self._write(bytes(self._trailing))
        with disk.disk_errors(self._path.parent):
            if self._rows != self._expected:
                # numpy pads the header, so a larger number of rows fits in place.
                header = _header_bytes(self.dtype, self.shape, self._rows)
                self._stream.seek(0)
                self._stream.write(header)
                self._hasher.invalidate(0, len(header))
            self._stream.close()
        self.ranges = self._hasher.finish(self._path)
        return stored_file(self._path.name, self._path.stat().st_size, self.ranges)

    def discard(self) -> None:
        """Close the file without completing the header."""
        with suppress(OSError):  # on a full disk, closing fails to write buffered rows, which are discarded anyway
            self._stream.close()

    def _write(self, data: Any) -> None:
        with disk.disk_errors(self._path.parent):
            self._stream.write(data)
        self._hasher.update(data)


def _header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> bytes:
    description = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
    stream = io.BytesIO()
    try:
        npy.write_array_header_1_0(stream, description)
    except ValueError:  # more than 65,535 characters of field names
        stream = io.BytesIO()
        npy.write_array_header_2_0(stream, description)
    return stream.getvalue()


def unfinished_blocks(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int, max_rows: int
) -> Iterator[NDArray[Any]]:
    """Yield the first rows of a file that an `NpyStream` is writing or was interrupted in, in blocks.

    The file is read and not mapped, because the operating system counts all visited pages of a mapped file as memory of
    the process.

    Args:
        path: The file.
        dtype: Dtype of a row.
        shape: Shape of a row.
        rows: Number of rows to read, from `NpyStream.rows`.
        max_rows: Maximum number of rows per block.

    Yields:
        [at most `max_rows`, ...]. The caller may modify the block, which is valid until the next block is requested.

    Raises:
        IntegrityError: If the file has fewer rows.
    """
    block = np.empty((min(max_rows, rows), *shape), dtype)
    try:
        with path.open("rb") as stream:
            stream.seek(len(_header_bytes(dtype, shape, rows)))
            for start in range(0, rows, max_rows):
                chunk = block[: rows - start]
                if stream.readinto(chunk.reshape(-1).view(np.uint8).data) < chunk.nbytes:
                    raise IntegrityError(str(path), [f"the file has fewer than {rows:,} rows"])
                yield chunk
    except OSError as error:
        raise IntegrityError(str(path), [f"the file has fewer than {rows:,} rows: {error}"]) from error


def open_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Memory-map an .npy file, read-only, and check the file's dtype and shape.

    Args:
        path: The file.
        dtype: Expected dtype of a row.
        shape: Expected shape of the whole array.

    Raises:
        IntegrityError: If the file has another dtype or shape, or cannot be mapped.
    """
    array = map_npy(path)
    if array.dtype != dtype or array.shape != shape:
        raise IntegrityError(
            str(path),
            [f"the array is {array.dtype} {list(array.shape)}, expected {dtype} {list(shape)} as in the manifest"],
        )
    return array


def copy_on_write(path: Path, mapped: np.memmap[Any, Any]) -> NDArray[Any]:
    """Map the array of a file copy-on-write: writes change this process's memory and never the file.

    numpy's mode "c" makes the operating system reserve memory for a copy of the whole file, which fails for files that
    are larger than the memory.

    Raises:
        IntegrityError: If the file cannot be mapped.
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
                [f"the file cannot be mapped for writing: {error}"],
                hint="read a range of rows at a time: dataset.stored.column(key, start, stop)",
            ) from error
    return np.ndarray(mapped.shape, mapped.dtype, pages, mapped.offset)


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """Memory-map an .npy file, read-only, without checking its dtype and shape.

    Raises:
        IntegrityError: If the file cannot be mapped.
    """
    try:
        with path.open("rb") as stream:
            header = read_header(stream, header_max_bytes=_MAX_HEADER)
            if header.dtype.hasobject:
                raise IntegrityError(str(path), ["the array has Python objects, expected numbers or text"])
            # Of a path, numpy would resolve every folder, which takes longer than the mapping.
            return np.memmap(stream, header.dtype, "r", header.size, header.shape, "F" if header.fortran else "C")
    except (OSError, ValueError, TypeError, ArithmeticError) as error:
        raise_fault_of_code(error, str(path))
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise  # the file is intact
        raise IntegrityError(str(path), [f"the file cannot be mapped: {error}"]) from error


def advise_random_reads(mapped: NDArray[Any]) -> None:
    """Announce random access to a mapped file to the operating system.

    By default the system reads 128 kB around each row. This readahead is useful if the file fits into the memory, and
    multiplies the disk traffic of larger files.
    """
    pages = getattr(mapped, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)


def release_pages(mapped: NDArray[Any]) -> None:
    """Release the visited pages of a mapped file, which the operating system counts as memory of the process.

    The pages stay in the file cache.
    """
    pages = getattr(mapped, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def take_fields(mapped: NDArray[Any], keys: Sequence[Key], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return fields of some rows of a mapped file of records, each [K, ...].

    The operating system counts all visited pages as memory of the process. Pages are released after every few rows.

    Args:
        mapped: The records, [N].
        keys: Keys of the fields.
        rows: Numbers of the rows, ascending, [K].
    """
    fields = [mapped.dtype[dotted_name(key)] for key in keys]
    taken = [np.empty((len(rows), *field.shape), field.base) for field in fields]
    count = max(1, min(_TAKE_ROWS, _TAKE_BYTES // mapped.dtype.itemsize))
    for start in range(0, len(rows), count):
        records = mapped[rows[start : start + count]]
        for values, key in zip(taken, keys, strict=True):
            values[start : start + count] = records[dotted_name(key)]
        release_pages(mapped)
    return taken
