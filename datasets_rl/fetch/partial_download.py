"""Files of a download on disk: the partial file with its sidecar, and the record next to a finished file.

    <name>               the finished file
    <name>.fetched.json  the record of the finished file: address, size, sha256, etag
    <name>.part          the bytes fetched so far
    <name>.part.json     the sidecar: the address and version of these bytes, and the ranges that are on disk

The sidecar never counts bytes that are not on disk: the partial file is fsynced before the sidecar that counts the
bytes is written. A process killed at any moment therefore loses at most the last second of a download. The state of a
running sha256 cannot be saved. A resumed download reads the bytes on disk again, which is far faster than the network.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crc32c import CRC32CHash

from datasets_rl import disk
from datasets_rl.fetch import plan
from datasets_rl.fetch.plan import ExpectedFile

ANSWERS_FILE = ".upstream.json"
"""The file with the answers of the upstream, in the folder of the raw files that are kept."""
SAVE_EVERY = 1.0
"""Seconds between two writes of the sidecar: the most that a killed process loses."""
_BLOCK = 1 << 20


class Digest:
    """Running checksums of the first `upto` bytes of a file: sha256, CRC-32C and, optionally, MD5.

    CRC-32C, which many servers report, costs a twentieth of sha256. MD5 costs as much as sha256.

    Args:
        md5: Whether to compute MD5.
    """

    def __init__(self, *, md5: bool = False) -> None:
        self._md5 = md5
        self.reset()

    def reset(self) -> None:
        """Restart from the first byte."""
        self._sums: dict[str, Any] = {"sha256": hashlib.sha256(), "crc32c": CRC32CHash()}
        if self._md5:
            self._sums["md5"] = hashlib.md5(usedforsecurity=False)
        self.upto = 0
        """Number of bytes hashed so far."""

    def take(self, chunk: bytes, start: int) -> None:
        """Hash a received chunk that starts at `upto`. Other chunks are left to `hash_file`."""
        if start == self.upto:
            for checksum in self._sums.values():
                checksum.update(chunk)
            self.upto += len(chunk)

    def hash_file(self, path: Path, stop: int) -> None:
        """Hash the bytes up to `stop` from disk."""
        if self.upto >= stop:
            return
        with path.open("rb") as stream:
            stream.seek(self.upto)
            while self.upto < stop and (block := stream.read(min(_BLOCK, stop - self.upto))):
                self.take(block, self.upto)

    def hexdigest(self, name: str = "sha256") -> str:
        """Return a checksum of the bytes so far, in lower-case hexadecimal digits."""
        return str(self._sums[name].hexdigest())


def digest_file(path: Path, *, md5: bool = False) -> Digest:
    """Return the checksums of a complete file."""
    digest = Digest(md5=md5)
    digest.hash_file(path, path.stat().st_size)
    return digest


@dataclass(frozen=True, slots=True)
class Record:
    """Origin and state of a finished file at the time of the download."""

    url: str
    size: int
    sha256: str
    etag: str | None
    checked: str
    mtime_ns: int
    """Modification time, which reveals a later change of the file without reading the file."""

    def write(self, file: Path) -> None:
        """Write the record next to the file."""
        disk.write_json(_record_path(file), asdict(self))


def read_record(file: Path) -> Record | None:
    """Return the record next to a file, or None if the record does not exist or cannot be parsed."""
    value = _read_json_object(_record_path(file))
    try:
        return Record(
            str(value["url"]),
            int(value["size"]),
            str(value["sha256"]),
            value["etag"],
            str(value["checked"]),
            int(value["mtime_ns"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def is_of_download(file: Path) -> bool:
    """Return whether a download wrote a file: a partial file, a sidecar, a record, or a file with a record."""
    endings = (".fetched.json", ".part", ".part.json")
    name = file.name.rpartition("@")[0] if file.name.endswith(".tmp") else file.name
    return name.endswith(endings) or file.name == ANSWERS_FILE or _record_path(file).exists()


def remove_with_record(file: Path) -> None:
    """Delete a finished file and the record of the file."""
    disk.remove_file(file)
    disk.remove_file(_record_path(file))


@dataclass(slots=True)
class Span:
    """Byte range [start, stop) of a file. The first `done` bytes of the range are written."""

    start: int
    stop: int | None
    """None while the length of the file is unknown."""
    done: int = 0

    @property
    def at(self) -> int:
        """Position of the next byte to write."""
        return self.start + self.done

    @property
    def complete(self) -> bool:
        """Whether the range is completely written."""
        return self.stop is not None and self.at >= self.stop


@dataclass
class PartialDownload:
    """Partial file of one download, with the state in the sidecar. Methods may be called from many threads."""

    target: Path
    """Path of the finished file."""
    url: str = ""
    """Address as in the catalog."""
    address: str = ""
    """Address with a pinned version, if the scheme supports that."""
    etag: str | None = None
    validator: str | None = None
    total: int | None = None
    spans: list[Span] = field(default_factory=lambda: [Span(0, None)])
    inherited: bool = False
    """Whether some bytes were fetched by an earlier process or from another address."""
    digest: Digest = field(default_factory=Digest)
    replaces: int = 0
    """Number of bytes of another version on disk, which stay on disk until the first byte of this version arrives."""
    reported: ExpectedFile = field(default_factory=ExpectedFile)
    """Checksums of the complete file that the responses reported."""

    def __post_init__(self) -> None:
        self.path = _sibling_path(self.target, ".part")
        self._sidecar = _sibling_path(self.target, ".part.json")
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    @classmethod
    def load(cls, target: Path) -> PartialDownload:
        """Return the partial download that an earlier process left for this file, or an empty partial download."""
        part = cls(target)
        value = _read_json_object(part._sidecar)
        try:
            part.url, part.address = str(value["url"]), str(value["address"])
            part.etag, part.validator, part.total = value["etag"], value["validator"], value["total"]
            part.spans = [Span(int(start), stop and int(stop), int(done)) for start, stop, done in value["spans"]]
            part.reported = ExpectedFile(**value.get("reported", {}))
            size = part.path.stat().st_size
        except (KeyError, TypeError, ValueError, OSError):
            return cls(target)
        if not part.spans or any(span.done and span.at > size for span in part.spans):
            return cls(target)
        part.inherited = part.done > 0
        return part

    @property
    def done(self) -> int:
        """Number of bytes on disk."""
        return sum(span.done for span in self.spans)

    @property
    def complete(self) -> bool:
        """Whether every byte is on disk."""
        return all(span.complete for span in self.spans)

    @property
    def state(self) -> plan.PartialState:
        """State of the download, as input for `plan`."""
        return plan.PartialState(self.address, self.done, self.total, self.validator)

    def begin(self) -> int:
        """Create an empty partial file, and return the number of replaced bytes of another version."""
        with self._lock:
            # The sidecar is deleted first: a partial file without a sidecar is ignored.
            disk.remove_file(self._sidecar)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            # A response that was cut off before its first byte was counted may have reported another version.
            self.etag = self.validator = self.total = self.spans[0].stop = None
            self.reported = ExpectedFile()
            replaced, self.replaces = self.replaces, 0
            return replaced

    def adopt(self, url: str, address: str) -> None:
        """Continue from an address. The validators of another address are dropped."""
        if address != self.address:
            self.etag = self.validator = None
            self.reported = ExpectedFile()
        self.url, self.address = url, address

    def record_response(
        self, total: int | None, etag: str | None, validator: str | None, reported: ExpectedFile
    ) -> None:
        """Record what an accepted response reported about the file."""
        with self._lock:
            self.reported = self.reported.completed(reported)
            if not self.done:
                # The validator of the first response applies to every byte on disk. Later validators may not.
                self.etag, self.validator = etag, validator
            if total is not None and self.total is None:
                self.total = self.spans[-1].stop = total

    def split(self, max_spans: int) -> None:
        """Split the missing bytes of the only span into several spans."""
        only = self.spans[0]
        if only.stop is None:
            return
        first, *others = plan.split_range(only.at, only.stop, max_spans)
        only.stop = first[1]
        self.spans += [Span(start, stop) for start, stop in others]
        self.save()

    def end(self) -> None:
        """Declare the file complete, if the server did not report the length of the file."""
        only = self.spans[0]
        self.total = only.stop = only.at

    def advance(self, span: Span, chunk: bytes) -> None:
        """Count and hash a chunk that was just written."""
        position = span.at
        span.done += len(chunk)
        self.digest.take(chunk, position)
        if self._save_is_due():
            self.save(if_due=True)

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved >= SAVE_EVERY

    def save(self, *, if_due: bool = False) -> None:
        """Sync the partial file, then write the sidecar that counts the synced bytes.

        Args:
            if_due: Do nothing if another thread saved while this thread waited for the lock.
        """
        with self._lock:
            if not self.path.exists() or (if_due and not self._save_is_due()):
                return
            # The counts are read before the fsync: bytes that another thread writes during the fsync are saved next time.
            spans = [(span.start, span.stop, span.done) for span in self.spans]
            disk.sync_file(self.path)
            state: dict[str, Any] = {"url": self.url, "address": self.address}
            state |= {"etag": self.etag, "validator": self.validator}
            state |= {"total": self.total, "spans": spans, "reported": asdict(self.reported)}
            disk.write_json(self._sidecar, state)
            self._saved = time.monotonic()

    def give_back(self, size: int) -> None:
        """Truncate the partial file by up to `size` bytes, to free disk space for the sidecar."""
        with self._lock:
            last = max(self.spans, key=lambda span: span.at if span.done else 0)
            last.done -= min(size, last.done)
            with self.path.open("r+b") as stream:
                stream.truncate(last.at)
            if self.digest.upto > last.at:
                self.digest.reset()

    def discard(self) -> int:
        """Delete the partial file, and return the number of deleted bytes."""
        with self._lock:
            dropped = self.done
            disk.remove_file(self._sidecar)
            disk.remove_file(self.path)
            self._remove_temporary()
            self.etag = self.validator = self.total = None
            self.reported = ExpectedFile()
            self.spans, self.inherited = [Span(0, None)], False
            self.digest.reset()
            return dropped

    def publish(self, sha256: str, checked: str) -> Record:
        """Write the record of the file (size, digest, origin), and rename the partial file to the final name."""
        stat = self.path.stat()
        record = Record(self.address, stat.st_size, sha256, self.etag, checked, stat.st_mtime_ns)
        # The record is written first, so that a process killed in between leaves a partial file that can be resumed.
        # An older file of the final name has another modification time than the record, so that the older file is not
        # mistaken for the new file.
        record.write(self.target)
        disk.publish_file(self.path, self.target)
        disk.remove_file(self._sidecar)
        self._remove_temporary()
        return record

    def _remove_temporary(self) -> None:
        """Delete the temporary files of a process that was killed while it wrote a sidecar or a record."""
        for file in (self._sidecar, _record_path(self.target)):
            disk.free_temporary_files(file.parent, file.name)


def _record_path(file: Path) -> Path:
    return _sibling_path(file, ".fetched.json")


def _sibling_path(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
