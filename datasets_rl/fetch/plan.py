"""What to do next about a file: decisions without side effects, which tests enumerate.

Three questions, in the order in which a download meets them. Each gets a `Step`, which says why.

    finished   what lies in the folder under the file's own name     -> present, hash, restart
    part       what an interrupted download left, for this address   -> resume, restart
    answer     what the server said to the request                   -> resume, restart, whole, retry, refuse

Bytes of two versions must never end up in one file, and a mixture must never depend on luck. Bytes are therefore added
to others in two cases only, after a broken connection as well as in another process: a known sha256 is compared with
the whole file at the end, or the first answer had a version mark (a strong ETag or a Last-Modified date) and the answer
that continues has the same one. In every other case the download begins again. To compare samples of the bytes so far
with the server's does not replace this rule: an upstream that corrects a few values leaves the length and nearly all bytes as
they were, so that samples agree and the file is a mixture. Only a comparison of all bytes is certain, and it costs as
much as the download.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

from datasets_rl.errors import InvalidArgumentError

__all__ = [
    "Answer",
    "Do",
    "Finished",
    "Left",
    "Step",
    "Wanted",
    "answer",
    "cut",
    "finished",
    "part",
    "pause",
    "safe_path",
]

LONGEST_PAUSE = 60.0
"""Seconds; a server that asks for more is asked again after this time."""
_FIRST_PAUSE = 0.5
_NO_SUCH_RANGE = 416
_PASSING = frozenset({408, 425, 429, *range(500, 600)})


class Do(enum.Enum):
    """What a step is."""

    PRESENT = "present"
    """Nothing is left to do."""
    HASH = "hash"
    """Read the file that is there; its digest decides."""
    RESUME = "resume"
    """Go on behind the bytes at hand; with none at hand, begin."""
    RESTART = "restart"
    """Drop the bytes at hand and begin again."""
    WHOLE = "whole"
    """The bytes at hand are all that there are."""
    RETRY = "retry"
    """The same request may succeed later."""
    REFUSE = "refuse"
    """This address will not give the file."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, and why."""

    do: Do
    reason: str
    if_range: str | None = None
    """For RESUME of a part: the version mark that the server must still have."""
    wrong_bytes: bool = False
    """For REFUSE: the address has a file, and it is another one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file must be; None where it is unknown or where the user said not to look."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    crc32c: str | None = None

    @property
    def checksum(self) -> str:
        """The name of the strongest checksum that is known, or nothing."""
        return next((name for name in ("sha256", "md5", "crc32c") if getattr(self, name) is not None), "")

    def completed(self, said: Wanted) -> Wanted:
        """Return this with what another one knows beyond it."""
        return Wanted(*(getattr(self, name) or getattr(said, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Finished:
    """A file under its own name."""

    size: int
    recorded_size: int | None = None
    """From the record beside it; None if there is no record."""
    recorded_sha256: str | None = None
    untouched: bool = False
    """Its modification time is the recorded one."""


@dataclass(frozen=True, slots=True)
class Left:
    """What an interrupted download left."""

    address: str
    """Where the bytes came from."""
    done: int
    """Bytes at hand."""
    total: int | None = None
    """Bytes of the whole file, if the server said so."""
    validator: str | None = None
    """A strong ETag, or else a Last-Modified date."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The header of a server's answer."""

    status: int
    total: int | None = None
    """Bytes of the whole file: Content-Length of a 200, the last number of Content-Range of a 206 or 416."""
    start: int = 0
    """Where a 206 begins."""
    validator: str | None = None
    encoding: str = ""
    """Content-Encoding."""


def finished(wanted: Wanted, file: Finished | None) -> Step:
    """Decide about a file under its own name; the network is not needed for it."""
    if file is None:
        return Step(Do.RESTART, "there is no such file yet")
    if wanted.size is not None and file.size != wanted.size:
        return Step(Do.RESTART, f"the file there has {file.size:,} bytes, expected {wanted.size:,}")
    recorded = file.recorded_sha256 is not None and file.recorded_size == file.size and file.untouched
    if not recorded:
        if wanted.sha256 is None and file.recorded_sha256 is None:
            return Step(Do.RESTART, "the file there has no record of where it came from, and no known digest")
        return Step(Do.HASH, "the file there is not the one that was recorded, or its record is lost")
    if wanted.sha256 is not None and file.recorded_sha256 != wanted.sha256:
        return Step(Do.RESTART, f"the file there has sha256 {file.recorded_sha256}, expected {wanted.sha256}")
    return Step(Do.PRESENT, "fetched before")


def part(wanted: Wanted, left: Left | None, address: str) -> Step:
    """Decide whether an interrupted download goes on at this address; see the rule at the top of the module."""
    if left is None or left.done == 0:
        return Step(Do.RESUME, "nothing is there yet")
    if wanted.size is not None and (left.done > wanted.size or left.total not in (None, wanted.size)):
        return Step(Do.RESTART, f"the part is of a file of {left.total or left.done:,} bytes, expected {wanted.size:,}")
    if left.address == address and left.validator is not None:
        return Step(Do.RESUME, "the server can compare versions", if_range=left.validator)
    if wanted.sha256 is not None:
        return Step(Do.RESUME, "the digest will be compared at the end")
    if left.address != address:
        return Step(Do.RESTART, f"the part came from {left.address}, and no digest is known to compare with")
    return Step(
        Do.RESTART, "it cannot resume: the server gave no strong ETag and no Last-Modified, and no sha256 is known"
    )


def answer(wanted: Wanted, left: Left, asked: int, said: Answer) -> Step:
    """Decide what an answer to a request for the bytes from `asked` on is good for.

    Args:
        wanted: What the file must be.
        left: What is at hand, and what earlier answers said about the file.
        asked: The first byte of the Range header, or 0 if there was none.
        said: The answer.
    """
    if said.status not in (200, 206):
        return _no_content(wanted, left, asked, said)
    if said.encoding.lower() not in ("", "identity"):
        return Step(Do.REFUSE, f"the answer is encoded with {said.encoding}, although it was asked for plain")
    start = said.start if said.status == 206 else 0
    if start != asked:
        whole = ": the file changed, or ranges are not supported" if said.status == 200 else ""
        return Step(Do.RESTART, f"the server sent bytes from {start:,} on, asked from {asked:,}{whole}")
    if wanted.size is not None and said.total not in (None, wanted.size):
        return Step(Do.REFUSE, f"the file there has {said.total:,} bytes, expected {wanted.size:,}", wrong_bytes=True)
    if left.done > 0:
        return _same_version(wanted, left, said)
    return Step(Do.RESUME, "the file begins")


def _no_content(wanted: Wanted, left: Left, asked: int, said: Answer) -> Step:
    if said.status != _NO_SUCH_RANGE or asked == 0:
        return Step(Do.RETRY if said.status in _PASSING else Do.REFUSE, f"status {said.status}")
    agreed = left.total in (None, asked) or wanted.sha256 is not None
    if said.total == asked and agreed:
        same = _same_version(wanted, left, said)
        return Step(Do.WHOLE, "status 416: there are no further bytes") if same.do is Do.RESUME else same
    had = "" if agreed else f", and {left.total:,} before"
    return Step(Do.RESTART, f"status 416: the server says that the file has {said.total} bytes{had}")


def _same_version(wanted: Wanted, left: Left, said: Answer) -> Step:
    if None not in (left.total, said.total) and left.total != said.total and said.status != _NO_SUCH_RANGE:
        return Step(Do.RESTART, f"the file has {said.total:,} bytes now and had {left.total:,}")
    if None not in (left.validator, said.validator) and left.validator != said.validator:
        return Step(Do.RESTART, f"the file is version {said.validator} now and was {left.validator}")
    if wanted.sha256 is not None:
        return Step(Do.RESUME, "the digest will be compared at the end")
    if None in (left.validator, said.validator):
        return Step(Do.RESTART, "without a strong ETag or Last-Modified nothing shows that the rest is of one version")
    return Step(Do.RESUME, "the same version goes on")


def pause(failures: int, retry_after: float | None, chance: float) -> float:
    """Return the seconds to wait before the next request.

    Args:
        failures: Failures in a row so far, from 1.
        retry_after: What the server asked for.
        chance: In [0, 1): spreads clients that failed together.
    """
    backoff = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE / 2) * (0.5 + chance / 2)
    return min(max(backoff, retry_after or 0.0), LONGEST_PAUSE)


def cut(start: int, stop: int, pieces: int) -> list[tuple[int, int]]:
    """Cut [start, stop) into at most `pieces` ranges of nearly equal length, none of them empty."""
    pieces = max(1, min(pieces, stop - start))
    edges = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
    return list(itertools.pairwise(edges))


def safe_path(path: str) -> PurePosixPath:
    """Return the path of an asset, which must stay in the folder that it is put under.

    Raises:
        InvalidArgumentError: If it is empty or absolute, has '..', a backslash or a drive, or ends with a slash.
    """
    parts = path.split("/")
    windows = PureWindowsPath(path)
    hostile = "\\" in path or "\0" in path or windows.drive or windows.root or path.startswith("/")
    if hostile or any(name in ("", ".", "..") for name in parts):
        raise InvalidArgumentError(f"the path {path!r} of a file to fetch is not a plain relative path")
    return PurePosixPath(path)
