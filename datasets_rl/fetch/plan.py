"""Decisions of a download, as functions without side effects that tests enumerate.

A download takes three decisions, in this order. Each function returns a `DownloadDecision`.

    decide_existing   what to do with an existing file of the final name -> present, hash, restart
    decide_resume     whether to resume an interrupted download      -> resume, restart
    decide_response   how to handle the response of the server       -> resume, restart, whole, retry, refuse

A file must never mix the bytes of two versions, not even by chance. A download therefore appends to existing bytes in
two cases only, whether a connection broke or another process was killed: a known sha256 is compared with the complete
file at the end, or the first response had a validator (a strong ETag or a Last-Modified date) and the response that
continues has the same validator. In every other case the download restarts. Comparing samples of the existing bytes
with bytes of the server would not replace this rule: an upstream that corrects a few values keeps the length and nearly
all bytes, so that the samples agree although the file is a mixture. Only a comparison of all bytes is certain, and
costs as much as the download.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

from datasets_rl.errors import InvalidArgumentError

LONGEST_PAUSE = 60.0
"""Maximum number of seconds before a retry, even if the server asks for a longer pause."""
_FIRST_PAUSE = 0.5
_NO_SUCH_RANGE = 416
_PASSING = frozenset({408, 425, 429, *range(500, 600)})


class Action(enum.Enum):
    """Action of a decision."""

    PRESENT = "present"
    """Use the existing file."""
    HASH = "hash"
    """Read the existing file. The digest decides."""
    RESUME = "resume"
    """Continue after the bytes on disk, or start at the first byte."""
    RESTART = "restart"
    """Drop the bytes on disk and start again."""
    WHOLE = "whole"
    """The bytes on disk are the complete file."""
    RETRY = "retry"
    """Repeat the request later. A repeated request may succeed."""
    REFUSE = "refuse"
    """Give up this address, which does not serve the file."""


@dataclass(frozen=True, slots=True)
class DownloadDecision:
    """Action to take, with its reason."""

    action: Action
    reason: str
    if_range: str | None = None
    """For RESUME of a partial download: the validator that the server must still have."""
    wrong_bytes: bool = False
    """For REFUSE: the address serves another file."""


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """Expected size and checksums of a file. Each is None if unknown, or if the user disabled the check."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    crc32c: str | None = None

    @property
    def checksum(self) -> str:
        """Name of the strongest known checksum, or empty if no checksum is known."""
        return next((name for name in ("sha256", "md5", "crc32c") if getattr(self, name) is not None), "")

    def completed(self, reported: ExpectedFile) -> ExpectedFile:
        """Return a copy with the unknown values taken from `reported`."""
        return ExpectedFile(*(getattr(self, name) or getattr(reported, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class ExistingFile:
    """State of a file that exists under its final name."""

    size: int
    recorded_size: int | None = None
    """Size in the record next to the file, or None without a record."""
    recorded_sha256: str | None = None
    untouched: bool = False
    """Whether the modification time is the recorded time."""


@dataclass(frozen=True, slots=True)
class PartialState:
    """State of an interrupted download."""

    address: str
    """Address that the bytes were fetched from."""
    done: int
    """Number of bytes on disk."""
    total: int | None = None
    """Size of the complete file in bytes, if the server reported the size."""
    validator: str | None = None
    """Strong ETag, or else a Last-Modified date."""


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """Status and headers of a server's response."""

    status: int
    total: int | None = None
    """Bytes of the complete file: Content-Length of a 200, the last number of Content-Range of a 206 or 416."""
    start: int = 0
    """First byte of a 206."""
    validator: str | None = None
    encoding: str = ""
    """Content-Encoding."""


def _restart(reason: str) -> DownloadDecision:
    return DownloadDecision(Action.RESTART, reason)


def decide_existing(expected: ExpectedFile, file: ExistingFile | None) -> DownloadDecision:
    """Decide what to do with an existing file of the final name, without network access."""
    if file is None:
        return _restart("there is no such file yet")
    if expected.size is not None and file.size != expected.size:
        return _restart(f"the existing file has {file.size:,} bytes, expected {expected.size:,}")
    recorded = file.recorded_sha256 is not None and file.recorded_size == file.size and file.untouched
    if not recorded:
        if expected.sha256 is None and file.recorded_sha256 is None:
            return _restart("the existing file has no record of its origin, and no known digest")
        return DownloadDecision(Action.HASH, "the existing file is not the recorded file, or the record is lost")
    if expected.sha256 is not None and file.recorded_sha256 != expected.sha256:
        return _restart(f"the existing file has sha256 {file.recorded_sha256}, expected {expected.sha256}")
    return DownloadDecision(Action.PRESENT, "fetched before")


def decide_resume(expected: ExpectedFile, partial: PartialState | None, address: str) -> DownloadDecision:
    """Decide whether an interrupted download resumes at this address, by the rule in the module docstring."""
    if partial is None or partial.done == 0:
        return DownloadDecision(Action.RESUME, "no bytes are on disk yet")
    if expected.size is not None and (partial.done > expected.size or partial.total not in (None, expected.size)):
        return _restart(
            f"the partial download is of a file of {partial.total or partial.done:,} bytes, expected {expected.size:,}"
        )
    if partial.address == address and partial.validator is not None:
        return DownloadDecision(Action.RESUME, "the server can compare versions", if_range=partial.validator)
    if expected.sha256 is not None:
        return DownloadDecision(Action.RESUME, "the digest will be compared at the end")
    if partial.address != address:
        return _restart(f"the partial download is from {partial.address}, and no digest is known to compare with")
    return _restart("the server sent no strong ETag and no Last-Modified, and no sha256 is known")


def decide_response(
    expected: ExpectedFile, partial: PartialState, requested_start: int, response: ServerResponse
) -> DownloadDecision:
    """Decide how to handle the response to a request for the bytes from `requested_start` to the end.

    Args:
        expected: The expected size and checksums of the file.
        partial: The state of the download, with the size and validator of earlier responses.
        requested_start: The first byte of the Range header, or 0 without a Range header.
        response: The response.
    """
    if response.status not in (200, 206):
        return _decide_without_content(expected, partial, requested_start, response)
    if response.encoding.lower() not in ("", "identity"):
        return DownloadDecision(
            Action.REFUSE,
            f"the response has the content encoding {response.encoding}, although the request asked for identity",
        )
    start = response.start if response.status == 206 else 0
    if start != requested_start:
        cause = ": the file changed, or ranges are not supported" if response.status == 200 else ""
        return _restart(f"the server sent bytes starting at {start:,}, expected {requested_start:,}{cause}")
    if expected.size is not None and response.total not in (None, expected.size):
        return DownloadDecision(
            Action.REFUSE, f"the served file has {response.total:,} bytes, expected {expected.size:,}", wrong_bytes=True
        )
    if partial.done > 0:
        return _decide_by_version(expected, partial, response)
    return DownloadDecision(Action.RESUME, "the file starts")


def _decide_without_content(
    expected: ExpectedFile, partial: PartialState, requested_start: int, response: ServerResponse
) -> DownloadDecision:
    if response.status != _NO_SUCH_RANGE or requested_start == 0:
        action = Action.RETRY if response.status in _PASSING else Action.REFUSE
        return DownloadDecision(action, f"status {response.status}")
    consistent = partial.total in (None, requested_start) or expected.sha256 is not None
    if response.total == requested_start and consistent:
        same = _decide_by_version(expected, partial, response)
        whole = DownloadDecision(Action.WHOLE, "status 416: there are no more bytes")
        return whole if same.action is Action.RESUME else same
    earlier = "" if consistent else f", and {partial.total:,} before"
    return _restart(f"status 416: the server reports that the file has {response.total} bytes{earlier}")


def _decide_by_version(expected: ExpectedFile, partial: PartialState, response: ServerResponse) -> DownloadDecision:
    differ = None not in (partial.total, response.total) and partial.total != response.total
    if differ and response.status != _NO_SUCH_RANGE:
        return _restart(f"the file has {response.total:,} bytes now and had {partial.total:,}")
    if None not in (partial.validator, response.validator) and partial.validator != response.validator:
        return _restart(f"the file is version {response.validator} now and was {partial.validator}")
    if expected.sha256 is not None:
        return DownloadDecision(Action.RESUME, "the digest will be compared at the end")
    if None in (partial.validator, response.validator):
        return _restart("without a strong ETag or Last-Modified nothing shows that the rest is of the same version")
    return DownloadDecision(Action.RESUME, "the same version continues")


def retry_delay(failures: int, retry_after: float | None, jitter: float) -> float:
    """Return the seconds to wait before the next request.

    Args:
        failures: Number of consecutive failures, at least 1.
        retry_after: Seconds that the server asked to wait.
        jitter: Random number in [0, 1), which spreads the retries of clients that failed together.
    """
    backoff = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE / 2) * (0.5 + jitter / 2)
    return min(max(backoff, retry_after or 0.0), LONGEST_PAUSE)


def split_range(start: int, stop: int, max_ranges: int) -> list[tuple[int, int]]:
    """Split [start, stop) into at most `max_ranges` nonempty ranges of nearly equal length."""
    max_ranges = max(1, min(max_ranges, stop - start))
    edges = [start + (stop - start) * index // max_ranges for index in range(max_ranges + 1)]
    return list(itertools.pairwise(edges))


def safe_path(path: str) -> PurePosixPath:
    """Return the path of an asset after checking that the path does not lead out of the folder.

    Raises:
        InvalidArgumentError: If the path is empty or absolute, has '..', a backslash or a drive, ends with a slash, or
            has half of a surrogate pair, which no file system and no address can have.
    """
    parts = path.split("/")
    windows = PureWindowsPath(path)
    unsafe = "\\" in path or "\0" in path or windows.drive or windows.root or path.startswith("/")
    unsafe = unsafe or any("\ud800" <= character <= "\udfff" for character in path)
    if unsafe or any(name in ("", ".", "..") for name in parts):
        raise InvalidArgumentError(f"the path {path!r} of a file to fetch is not a plain relative path")
    return PurePosixPath(path)
