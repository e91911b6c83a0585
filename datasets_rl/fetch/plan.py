"""Decisions of a download, as functions without side effects that tests enumerate.

There are three decisions, in the order in which a download takes them. Each returns a `Step` with its reason.

    finished   what to do with an existing file of the final name     -> present, hash, restart
    part       whether to resume an interrupted download              -> resume, restart
    answer     how to handle the response of the server               -> resume, restart, whole, retry, refuse

A file must never mix the bytes of two versions, not even by chance. Bytes are therefore appended to existing ones in
two cases only, whether a connection broke or another process was killed: a known sha256 is compared with the complete
file at the end, or the first response had a validator (a strong ETag or a Last-Modified date) and the response that
continues has the same one. In every other case the download restarts. Comparing samples of the existing bytes with the
server's would not replace this rule: an upstream that corrects a few values keeps the length and nearly all bytes, so
that the samples agree although the file is a mixture. Only a comparison of all bytes is certain, and it costs as much
as the download.
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
"""Maximum number of seconds before a retry, even if the server asks for a longer pause."""
_FIRST_PAUSE = 0.5
_NO_SUCH_RANGE = 416
_PASSING = frozenset({408, 425, 429, *range(500, 600)})


class Do(enum.Enum):
    """Action of a step."""

    PRESENT = "present"
    """Use the existing file."""
    HASH = "hash"
    """Read the existing file; its digest decides."""
    RESUME = "resume"
    """Continue after the bytes on disk, or start at the first byte."""
    RESTART = "restart"
    """Drop the bytes on disk and start again."""
    WHOLE = "whole"
    """The bytes on disk are the complete file."""
    RETRY = "retry"
    """Repeat the request later; it may succeed."""
    REFUSE = "refuse"
    """Give up this address, which does not serve the file."""


@dataclass(frozen=True, slots=True)
class Step:
    """Action to take, with its reason."""

    do: Do
    reason: str
    if_range: str | None = None
    """For RESUME of a partial download: the validator that the server must still have."""
    wrong_bytes: bool = False
    """For REFUSE: the address serves another file."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Expected size and checksums of a file; None if unknown, or if the user disabled the check."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    crc32c: str | None = None

    @property
    def checksum(self) -> str:
        """Name of the strongest known checksum; empty if none is known."""
        return next((name for name in ("sha256", "md5", "crc32c") if getattr(self, name) is not None), "")

    def completed(self, said: Wanted) -> Wanted:
        """Return a copy whose unknown values are taken from `said`."""
        return Wanted(*(getattr(self, name) or getattr(said, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Finished:
    """State of a file that exists under its final name."""

    size: int
    recorded_size: int | None = None
    """Size in the record next to the file; None if there is no record."""
    recorded_sha256: str | None = None
    untouched: bool = False
    """Whether the modification time is the recorded one."""


@dataclass(frozen=True, slots=True)
class Left:
    """State of an interrupted download."""

    address: str
    """Address that the bytes were fetched from."""
    done: int
    """Number of bytes on disk."""
    total: int | None = None
    """Bytes of the complete file, if the server reported them."""
    validator: str | None = None
    """Strong ETag, or else a Last-Modified date."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers of a server's response."""

    status: int
    total: int | None = None
    """Bytes of the complete file: Content-Length of a 200, the last number of Content-Range of a 206 or 416."""
    start: int = 0
    """First byte of a 206."""
    validator: str | None = None
    encoding: str = ""
    """Content-Encoding."""


def finished(wanted: Wanted, file: Finished | None) -> Step:
    """Decide what to do with an existing file of the final name, without network access."""
    if file is None:
        return Step(Do.RESTART, "there is no such file yet")
    if wanted.size is not None and file.size != wanted.size:
        return Step(Do.RESTART, f"the existing file has {file.size:,} bytes, expected {wanted.size:,}")
    recorded = file.recorded_sha256 is not None and file.recorded_size == file.size and file.untouched
    if not recorded:
        if wanted.sha256 is None and file.recorded_sha256 is None:
            return Step(Do.RESTART, "the existing file has no record of its origin, and no known digest")
        return Step(Do.HASH, "the existing file is not the recorded one, or its record is lost")
    if wanted.sha256 is not None and file.recorded_sha256 != wanted.sha256:
        return Step(Do.RESTART, f"the existing file has sha256 {file.recorded_sha256}, expected {wanted.sha256}")
    return Step(Do.PRESENT, "fetched before")


def part(wanted: Wanted, left: Left | None, address: str) -> Step:
    """Decide whether an interrupted download resumes at this address; the module docstring states the rule."""
    if left is None or left.done == 0:
        return Step(Do.RESUME, "no bytes are on disk yet")
    if wanted.size is not None and (left.done > wanted.size or left.total not in (None, wanted.size)):
        return Step(
            Do.RESTART,
            f"the partial download is of a file of {left.total or left.done:,} bytes, expected {wanted.size:,}",
        )
    if left.address == address and left.validator is not None:
        return Step(Do.RESUME, "the server can compare versions", if_range=left.validator)
    if wanted.sha256 is not None:
        return Step(Do.RESUME, "the digest will be compared at the end")
    if left.address != address:
        return Step(Do.RESTART, f"the partial download is from {left.address}, and no digest is known to compare with")
    return Step(
        Do.RESTART, "it cannot resume: the server sent no strong ETag and no Last-Modified, and no sha256 is known"
    )


def answer(wanted: Wanted, left: Left, asked: int, said: Answer) -> Step:
    """Decide how to handle the response to a request for the bytes from `asked` to the end.

    Args:
        wanted: The expected size and checksums of the file.
        left: The state of the download, with what earlier responses reported about the file.
        asked: The first byte of the Range header, or 0 if there was none.
        said: The response.
    """
    if said.status not in (200, 206):
        return _no_content(wanted, left, asked, said)
    if said.encoding.lower() not in ("", "identity"):
        return Step(
            Do.REFUSE, f"the response has the content encoding {said.encoding}, although the request asked for identity"
        )
    start = said.start if said.status == 206 else 0
    if start != asked:
        cause = ": the file changed, or ranges are not supported" if said.status == 200 else ""
        return Step(Do.RESTART, f"the server sent bytes starting at {start:,}, expected {asked:,}{cause}")
    if wanted.size is not None and said.total not in (None, wanted.size):
        return Step(Do.REFUSE, f"the served file has {said.total:,} bytes, expected {wanted.size:,}", wrong_bytes=True)
    if left.done > 0:
        return _same_version(wanted, left, said)
    return Step(Do.RESUME, "the file starts")


def _no_content(wanted: Wanted, left: Left, asked: int, said: Answer) -> Step:
    if said.status != _NO_SUCH_RANGE or asked == 0:
        return Step(Do.RETRY if said.status in _PASSING else Do.REFUSE, f"status {said.status}")
    consistent = left.total in (None, asked) or wanted.sha256 is not None
    if said.total == asked and consistent:
        same = _same_version(wanted, left, said)
        return Step(Do.WHOLE, "status 416: there are no more bytes") if same.do is Do.RESUME else same
    earlier = "" if consistent else f", and {left.total:,} before"
    return Step(Do.RESTART, f"status 416: the server reports that the file has {said.total} bytes{earlier}")


def _same_version(wanted: Wanted, left: Left, said: Answer) -> Step:
    if None not in (left.total, said.total) and left.total != said.total and said.status != _NO_SUCH_RANGE:
        return Step(Do.RESTART, f"the file has {said.total:,} bytes now and had {left.total:,}")
    if None not in (left.validator, said.validator) and left.validator != said.validator:
        return Step(Do.RESTART, f"the file is version {said.validator} now and was {left.validator}")
    if wanted.sha256 is not None:
        return Step(Do.RESUME, "the digest will be compared at the end")
    if None in (left.validator, said.validator):
        return Step(
            Do.RESTART, "without a strong ETag or Last-Modified nothing shows that the rest is of the same version"
        )
    return Step(Do.RESUME, "the same version continues")


def pause(failures: int, retry_after: float | None, chance: float) -> float:
    """Return the seconds to wait before the next request.

    Args:
        failures: Number of consecutive failures, at least 1.
        retry_after: Seconds that the server asked to wait.
        chance: Random number in [0, 1), which spreads the retries of clients that failed together.
    """
    backoff = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE / 2) * (0.5 + chance / 2)
    return min(max(backoff, retry_after or 0.0), LONGEST_PAUSE)


def cut(start: int, stop: int, pieces: int) -> list[tuple[int, int]]:
    """Split [start, stop) into at most `pieces` nonempty ranges of nearly equal length."""
    pieces = max(1, min(pieces, stop - start))
    edges = [start + (stop - start) * index // pieces for index in range(pieces + 1)]
    return list(itertools.pairwise(edges))


def safe_path(path: str) -> PurePosixPath:
    """Return the path of an asset after checking that it cannot leave its folder.

    Raises:
        InvalidArgumentError: If the path is empty or absolute, has '..', a backslash or a drive, or ends with a slash.
    """
    parts = path.split("/")
    windows = PureWindowsPath(path)
    unsafe = "\\" in path or "\0" in path or windows.drive or windows.root or path.startswith("/")
    if unsafe or any(name in ("", ".", "..") for name in parts):
        raise InvalidArgumentError(f"the path {path!r} of a file to fetch is not a plain relative path")
    return PurePosixPath(path)
