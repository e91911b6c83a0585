"""Digests of the files of a stored dataset: of each range of each file, so that a part of a file can be checked.

rows.npy      | 256 KiB | 256 KiB | ... |      ranges of `RANGE_BYTES` bytes, the last of which ends with the file
digests.npy     d_0       d_1       ...        uint8 [K, 32]: the SHA-256 of all ranges of all files, by path
manifest.json                                  of each file the digest: the SHA-256 of d_0 + d_1 + ...
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.format.manifest import DIGESTS_FILE, Manifest, StoredFile
from datasets_rl.progress import Report

METADATA_FOLDER = "metadata"
"""The folder of arrays that describe the whole dataset. These arrays are never read in ranges."""
RANGE_BYTES = 256 << 10
"""A reader fetches up to a range more than it needs at each end, and the digests of all ranges: 12 MB for 100 GB."""
_DIGEST_BYTES = 32


class RangeHasher:
    """SHA-256 of each range of a file, computed from the bytes as they are appended.

    Args:
        skipped: The number of bytes at the start of the file that are hashed later, from the disk.
    """

    def __init__(self, skipped: int = 0) -> None:
        self._size = skipped
        self._digests: list[bytes] = [b""] * -(-skipped // RANGE_BYTES)
        self._stale = set(range(len(self._digests)))
        """Ranges to hash from the disk."""
        self._last = hashlib.sha256()

    def update(self, data: Any) -> None:
        """Append the next bytes, a buffer of bytes."""
        view = memoryview(data)
        while view:
            taken = view[: RANGE_BYTES - self._size % RANGE_BYTES]
            if self._size % RANGE_BYTES == 0:
                self._digests.append(b"")
                self._last = hashlib.sha256()
            self._last.update(taken)
            self._size += len(taken)
            self._digests[-1] = self._last.digest() if self._size % RANGE_BYTES == 0 else b""
            view = view[len(taken) :]

    def invalidate(self, start: int, stop: int) -> None:
        """Hash the ranges of the bytes [start, stop) from the disk, because these bytes were overwritten."""
        self._stale |= set(range(start // RANGE_BYTES, -(-stop // RANGE_BYTES)))

    def finish(self, path: Path) -> bytes:
        """Return the digests of all ranges of the complete file, 32 bytes each."""
        if self._digests and not self._digests[-1]:
            self._digests[-1] = self._last.digest()
        if self._stale:
            with path.open("rb", buffering=0) as stream:
                for number in sorted(self._stale):
                    stream.seek(number * RANGE_BYTES)
                    self._digests[number] = hashlib.sha256(stream.read(RANGE_BYTES)).digest()
        return b"".join(self._digests)


class NoHasher(RangeHasher):
    """A hasher of a file without digests, which is never checked."""

    @override
    def update(self, data: Any) -> None:
        pass

    @override
    def invalidate(self, start: int, stop: int) -> None:
        pass

    @override
    def finish(self, path: Path) -> bytes:
        return b""


def range_digests(path: Path, report: Report) -> bytes:
    """Return the digests of all ranges of a file, 32 bytes each, and report the bytes that were read."""
    digests = []
    with path.open("rb", buffering=0) as stream:
        while data := stream.read(RANGE_BYTES):
            digests.append(hashlib.sha256(data).digest())
            report(len(data))
    return b"".join(digests)


def stored_file(path: str, size: int, ranges: bytes) -> StoredFile:
    """Return the manifest entry of a file with these digests of the file's ranges."""
    return StoredFile(path, size, digest_of_ranges(ranges))


def digest_of_ranges(ranges: bytes) -> str:
    """Return the digest of a file, in hexadecimal, from the digests of the ranges."""
    return hashlib.sha256(ranges).hexdigest()


def digest_of_bytes(data: bytes) -> str:
    """Return the digest of a file with this content, in hexadecimal."""
    starts = range(0, len(data), RANGE_BYTES)
    view = memoryview(data)
    return digest_of_ranges(b"".join(hashlib.sha256(view[start : start + RANGE_BYTES]).digest() for start in starts))


def write_digests(folder: Path, ranges: Mapping[str, bytes]) -> StoredFile:
    """Write the digests of the ranges of all files, and return the entry of the written file.

    Args:
        folder: The folder of the dataset.
        ranges: The digests of the ranges of each file, by path.
    """
    joined = b"".join(ranges[path] for path in sorted(ranges))
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(joined, np.uint8).reshape(-1, _DIGEST_BYTES))
    data = stream.getvalue()
    with disk.disk_errors(folder):
        (folder / DIGESTS_FILE).write_bytes(data)
    return StoredFile(DIGESTS_FILE, len(data), digest_of_bytes(data))


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
            count += -(-entry.bytes // RANGE_BYTES)
        if table.dtype != np.uint8 or table.shape != (count, _DIGEST_BYTES):
            raise ValueError(
                f"the digests are {table.dtype} {list(table.shape)}, expected uint8 {[count, _DIGEST_BYTES]}"
            )

    def cover(self, entry: StoredFile, start: int, stop: int) -> tuple[int, int]:
        """Return the first byte, and the byte after the last one, of the ranges that contain the bytes [start, stop)."""
        if start >= stop:
            return start, start
        return start // RANGE_BYTES * RANGE_BYTES, min(-(-stop // RANGE_BYTES) * RANGE_BYTES, entry.bytes)

    def problem(self, entry: StoredFile, start: int, data: bytes) -> str:
        """Return how whole ranges of a file differ from their digests. The text is empty if they agree.

        Args:
            entry: The file.
            start: The first byte of the first range.
            data: The bytes of the ranges.
        """
        view = memoryview(data)
        first = self._firsts[entry.path] + start // RANGE_BYTES
        for number, offset in enumerate(range(0, len(data), RANGE_BYTES)):
            if hashlib.sha256(view[offset : offset + RANGE_BYTES]).digest() != self._table[first + number].tobytes():
                last = min(start + offset + RANGE_BYTES, entry.bytes)
                return f"the bytes {start + offset:,} to {last:,} differ from their digest"
        return ""

    def of_file(self, entry: StoredFile) -> bytes | None:
        """Return the digests of the ranges of a file, 32 bytes each, or None if no digests are stored."""
        first = self._firsts.get(entry.path)
        return None if first is None else self._table[first : first - (-entry.bytes // RANGE_BYTES)].tobytes()


def _covered_files(manifest: Manifest) -> Iterator[StoredFile]:
    for entry in manifest.files:
        if entry.path != DIGESTS_FILE and not entry.path.startswith(f"{METADATA_FOLDER}/"):
            yield entry
