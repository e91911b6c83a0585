"""The files of a download in the folder: the part with its sidecar, and the record beside a finished file.

    <name>               the finished file
    <name>.fetched.json  its record: address, size, sha256, etag
    <name>.part          the bytes so far
    <name>.part.json     the sidecar: where they came from, which version they are, which ranges are on the disk

The sidecar may lag behind the part and never runs ahead of it: the part is fsynced before the sidecar that counts its
bytes is written. A process killed at any moment therefore loses the last moments and nothing else. The state of a
running sha256 cannot be saved; the bytes at hand are read again when a download goes on, which is far faster than the
network.
"""

from __future__ import annotations

import glob
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
from datasets_rl.fetch.plan import Wanted

__all__ = ["Digest", "PartialDownload", "Record", "Span", "digest_file", "read_record"]

SAVE_EVERY = 1.0
"""Seconds between two sidecars of a running download: what a killed process loses at most."""
_BLOCK = 1 << 20


class Digest:
    """The checksums of the first `upto` bytes of a file: sha256, CRC-32C and, if asked for, MD5.

    CRC-32C, which many servers tell, costs a twentieth of the others; MD5 as much again as sha256.

    Args:
        md5: Whether that is wanted as well.
    """

    def __init__(self, *, md5: bool = False) -> None:
        self._md5 = md5
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._sums: dict[str, Any] = {"sha256": hashlib.sha256(), "crc32c": CRC32CHash()}
        if self._md5:
            self._sums["md5"] = hashlib.md5(usedforsecurity=False)
        self.upto = 0
        """Bytes taken in so far."""

    def take(self, chunk: bytes, at: int) -> None:
        """Take in bytes as they arrive; those that do not lie at the edge are left for `catch_up`."""
        if at == self.upto:
            for one in self._sums.values():
                one.update(chunk)
            self.upto += len(chunk)

    def catch_up(self, path: Path, stop: int) -> None:
        """Take in the bytes up to `stop` from the disk."""
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
    """Return the checksums of a whole file."""
    digest = Digest(md5=md5)
    digest.catch_up(path, path.stat().st_size)
    return digest


@dataclass(frozen=True, slots=True)
class Record:
    """Where a finished file came from, and what it was when it was finished."""

    url: str
    size: int
    sha256: str
    etag: str | None
    checked: str
    mtime_ns: int
    """Tells a file that was changed afterwards, at no cost."""

    def write(self, file: Path) -> None:
        """Put the record beside its file."""
        disk.write_json(_beside(file, ".fetched.json"), asdict(self))


def read_record(file: Path) -> Record | None:
    """Return the record beside a file; None if there is none or it cannot be understood."""
    value = _read_object(_beside(file, ".fetched.json"))
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


@dataclass(slots=True)
class Span:
    """A range of a file: bytes [start, stop), of which the first `done` are written."""

    start: int
    stop: int | None
    """None while the length of the file is unknown."""
    done: int = 0

    @property
    def at(self) -> int:
        """The next byte to come."""
        return self.start + self.done

    @property
    def complete(self) -> bool:
        """Whether all of it is written."""
        return self.stop is not None and self.at >= self.stop


@dataclass
class PartialDownload:
    """The part file of one download and what is known about its bytes. Its methods may be called from many threads."""

    target: Path
    """Where the finished file goes."""
    url: str = ""
    """The address as the catalog has it."""
    address: str = ""
    """The address with its version pinned, where the scheme can do that."""
    etag: str | None = None
    validator: str | None = None
    total: int | None = None
    spans: list[Span] = field(default_factory=lambda: [Span(0, None)])
    inherited: bool = False
    """Some bytes came from an earlier process or from another address."""
    digest: Digest = field(default_factory=Digest)
    replaces: int = 0
    """Bytes of another version on the disk, which stay there until this one begins."""
    said: Wanted = field(default_factory=Wanted)
    """What the answers told of the whole file."""

    def __post_init__(self) -> None:
        self.path = _beside(self.target, ".part")
        self._sidecar = _beside(self.target, ".part.json")
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    @classmethod
    def load(cls, target: Path) -> PartialDownload:
        """Return what an earlier process left for this file, or an empty part."""
        part = cls(target)
        value = _read_object(part._sidecar)
        try:
            part.url, part.address = str(value["url"]), str(value["address"])
            part.etag, part.validator, part.total = value["etag"], value["validator"], value["total"]
            part.spans = [Span(int(start), stop and int(stop), int(done)) for start, stop, done in value["spans"]]
            part.said = Wanted(**value.get("said", {}))
            size = part.path.stat().st_size
        except (KeyError, TypeError, ValueError, OSError):
            return cls(target)
        if not part.spans or any(span.done and span.at > size for span in part.spans):
            return cls(target)
        part.inherited = part.done > 0
        return part

    @property
    def done(self) -> int:
        """Bytes at hand."""
        return sum(span.done for span in self.spans)

    @property
    def complete(self) -> bool:
        """Whether every byte is at hand."""
        return all(span.complete for span in self.spans)

    @property
    def left(self) -> plan.Left:
        """What `plan` wants to know."""
        return plan.Left(self.address, self.done, self.total, self.validator)

    def begin(self) -> int:
        """Make room for the first byte and return how many bytes of another version went."""
        with self._lock:
            # The sidecar goes first: without it the part counts for nothing.
            self._sidecar.unlink(missing_ok=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            # An answer that broke off before its first byte counted may have told of another version.
            self.etag = self.validator = self.total = self.spans[0].stop = None
            self.said = Wanted()
            replaced, self.replaces = self.replaces, 0
            return replaced

    def adopt(self, url: str, address: str) -> None:
        """Go on at an address, which may be another one than before; its version marks are not the old ones."""
        if address != self.address:
            self.etag = self.validator = None
            self.said = Wanted()
        self.url, self.address = url, address

    def learn(self, total: int | None, etag: str | None, validator: str | None, said: Wanted) -> None:
        """Keep what an accepted answer said about the file."""
        with self._lock:
            self.said = self.said.completed(said)
            if not self.done:
                # A version mark is kept only where it is that of every byte at hand.
                self.etag, self.validator = etag, validator
            if total is not None and self.total is None:
                self.total = self.spans[-1].stop = total

    def split(self, pieces: int) -> None:
        """Cut what is still to come of the only span into several."""
        only = self.spans[0]
        if only.stop is None:
            return
        first, *others = plan.cut(only.at, only.stop, pieces)
        only.stop = first[1]
        self.spans += [Span(start, stop) for start, stop in others]
        self.save()

    def end(self) -> None:
        """Take the bytes at hand as the whole file, whose length the server did not tell."""
        only = self.spans[0]
        self.total = only.stop = only.at

    def advance(self, span: Span, chunk: bytes) -> None:
        """Count bytes that were just written."""
        at = span.at
        span.done += len(chunk)
        self.digest.take(chunk, at)
        if self._due():
            self.save(if_due=True)

    def _due(self) -> bool:
        return time.monotonic() - self._saved >= SAVE_EVERY

    def save(self, *, if_due: bool = False) -> None:
        """Make the bytes so far durable, then the sidecar that counts them.

        Args:
            if_due: Do nothing if another thread did it while this one waited for its turn.
        """
        with self._lock:
            if not self.path.exists() or (if_due and not self._due()):
                return
            # The counts are read before the fsync: what another thread writes meanwhile is left for the next time.
            spans = [(span.start, span.stop, span.done) for span in self.spans]
            disk.sync(self.path)
            facts: dict[str, Any] = {"url": self.url, "address": self.address}
            facts |= {"etag": self.etag, "validator": self.validator}
            facts |= {"total": self.total, "spans": spans, "said": asdict(self.said)}
            disk.write_json(self._sidecar, facts)
            self._saved = time.monotonic()

    def give_back(self, size: int) -> None:
        """Shorten the part by up to `size` bytes at its end, for want of room."""
        with self._lock:
            last = max(self.spans, key=lambda span: span.at if span.done else 0)
            last.done -= min(size, last.done)
            with self.path.open("r+b") as stream:
                stream.truncate(last.at)
            if self.digest.upto > last.at:
                self.digest.reset()

    def discard(self) -> int:
        """Delete the bytes so far and return how many they were."""
        with self._lock:
            dropped = self.done
            self._sidecar.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self._sweep()
            self.etag = self.validator = self.total = None
            self.said = Wanted()
            self.spans, self.inherited = [Span(0, None)], False
            self.digest.reset()
            return dropped

    def publish(self, sha256: str, checked: str) -> Record:
        """Move the whole part to its place, its record with it."""
        facts = self.path.stat()
        record = Record(self.address, facts.st_size, sha256, self.etag, checked, facts.st_mtime_ns)
        # The record goes first, so that a process that dies in between leaves a part that is still resumed; an older
        # file at the place does not have the record's time, and is therefore not taken for the new one.
        record.write(self.target)
        disk.publish_file(self.path, self.target)
        self._sidecar.unlink(missing_ok=True)
        self._sweep()
        return record

    def _sweep(self) -> None:
        """Delete what a process that was killed in the middle of writing a sidecar or a record left."""
        for file in (self._sidecar, _beside(self.target, ".fetched.json")):
            for left in self.target.parent.glob(f".{glob.escape(file.name)}.*.tmp"):
                left.unlink(missing_ok=True)


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
