"""Digests of the files of a stored dataset: of each whole file, and of its ranges, so that a part can be checked.

rows.npy      | 64 KiB | 64 KiB | 64 KiB | ... |        ranges of `range_bytes` bytes
digests.npy     d_0      d_1      d_2      ...          uint8 [K, 32]: of all files, in the order of their paths
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.format.manifest import Manifest, StoredFile

DIGESTS_FILE = "digests.npy"
METADATA_FOLDER = "metadata"
"""The folder of arrays that describe the whole dataset; no range of theirs is read alone."""
_DIGEST_BYTES = 32
_RANGE_BYTES_MIN, _RANGE_BYTES_MAX = 64 << 10, 1 << 20
_RANGES = 32 << 10
_HASH_BYTES = 1 << 20


def range_bytes(size: int) -> int:
    """Return the bytes of the ranges of a file with `size` bytes: the last range of a file may be shorter.

    A reader fetches up to one range more than it needs at each end, and the digests of all ranges: the smallest power of
    two for which the file has at most 32,768 ranges, between 64 KiB and 1 MiB. The digests of a file of 100 GB have 3 MB.
    """
    return min(max(1 << (max(size - 1, 0) // _RANGES).bit_length(), _RANGE_BYTES_MIN), _RANGE_BYTES_MAX)


class FileDigests:
    """SHA-256 of a file and of its ranges, computed from its bytes in one pass.

    Args:
        size: The number of bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._range_bytes = range_bytes(size)
        self._whole = hashlib.sha256()
        self._range = hashlib.sha256()
        self._remaining = self._range_bytes
        self._ranges: list[bytes] = []

    def update(self, data: Any) -> None:
        """Add the next bytes, a buffer of bytes."""
        with self.adding(data):
            pass

    @contextmanager
    def adding(self, data: Any) -> Iterator[None]:
        """Add the next bytes; those of a large buffer in a thread, while the caller writes them in the block."""
        thread = None
        if len(data) >= _HASH_BYTES:
            thread = threading.Thread(target=self._whole.update, args=(data,), name="rlds-digest")
            thread.start()
        else:
            self._whole.update(data)
        try:
            yield
            self._update_ranges(memoryview(data))
        finally:
            if thread is not None:
                thread.join()

    def _update_ranges(self, data: memoryview) -> None:
        while data:
            taken = data[: self._remaining]
            self._range.update(taken)
            self._remaining -= len(taken)
            data = data[len(taken) :]
            if not self._remaining:
                self._next_range()

    def _next_range(self) -> None:
        self._ranges.append(self._range.digest())
        self._range, self._remaining = hashlib.sha256(), self._range_bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of all bytes so far, in hexadecimal."""
        return self._whole.hexdigest()

    @property
    def ranges(self) -> bytes:
        """Concatenated SHA-256 of the ranges, 32 bytes each."""
        if self._remaining < self._range_bytes:
            self._next_range()
        return b"".join(self._ranges)


def file_digests(path: Path) -> FileDigests:
    """Return the digests of an existing file."""
    digests = FileDigests(path.stat().st_size)
    buffer = memoryview(bytearray(_HASH_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digests.update(buffer[:count])
    return digests


def write_digests(folder: Path, ranges: Mapping[str, bytes]) -> StoredFile:
    """Write the digests of the ranges of all files, and return the entry of the written file.

    Args:
        folder: The folder of the dataset.
        ranges: The `FileDigests.ranges` of each file, by path.
    """
    joined = b"".join(ranges[path] for path in sorted(ranges))
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(joined, np.uint8).reshape(-1, _DIGEST_BYTES))
    data = stream.getvalue()
    with disk.disk_errors(folder):
        (folder / DIGESTS_FILE).write_bytes(data)
    return StoredFile(DIGESTS_FILE, len(data), hashlib.sha256(data).hexdigest())


class RangeDigests:
    """Digests of the ranges of all files of a dataset but its metadata.

    Args:
        data: The content of `DIGESTS_FILE`.
        manifest: The manifest of the dataset.

    Raises:
        ValueError: If the content is not a table with a digest for each range of the files.
    """

    def __init__(self, data: bytes, manifest: Manifest) -> None:
        table: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        self._table = table
        self._firsts: dict[str, int] = {}
        count = 0
        for entry in sorted(_covered_files(manifest), key=lambda entry: entry.path):
            self._firsts[entry.path] = count
            count += -(-entry.bytes // range_bytes(entry.bytes))
        if table.dtype != np.uint8 or table.shape != (count, _DIGEST_BYTES):
            raise ValueError(
                f"it is {table.dtype} {list(table.shape)}; the ranges of the files need uint8 {[count, _DIGEST_BYTES]}"
            )

    def cover(self, entry: StoredFile, start: int, stop: int) -> tuple[int, int]:
        """Return the first byte, and the byte after the last one, of the ranges that contain the bytes [start, stop)."""
        size = range_bytes(entry.bytes)
        if start >= stop:
            return start, start
        return start // size * size, min(-(-stop // size) * size, entry.bytes)

    def problem(self, entry: StoredFile, start: int, data: bytes) -> str:
        """Return how whole ranges of a file differ from their digests; empty if they agree.

        Args:
            entry: The file.
            start: The first byte of the first range.
            data: The bytes of the ranges.
        """
        size, view = range_bytes(entry.bytes), memoryview(data)
        first = self._firsts[entry.path] + start // size
        for number, offset in enumerate(range(0, len(data), size)):
            if hashlib.sha256(view[offset : offset + size]).digest() != self._table[first + number].tobytes():
                last = min(start + offset + size, entry.bytes)
                return f"its bytes {start + offset:,} to {last:,} differ from their digest"
        return ""

    def of_file(self, entry: StoredFile) -> bytes | None:
        """Return the digests of the ranges of a file, as `FileDigests.ranges`; None if none are stored."""
        first = self._firsts.get(entry.path)
        if first is None:
            return None
        return self._table[first : first + -(-entry.bytes // range_bytes(entry.bytes))].tobytes()


def _covered_files(manifest: Manifest) -> Iterator[StoredFile]:
    for entry in manifest.files:
        if entry.path != DIGESTS_FILE and not entry.path.startswith(f"{METADATA_FOLDER}/"):
            yield entry
