"""Helpers of the readers: filling a buffer, parts of a file as streams, and messages about unexpected files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import BinaryIO, Protocol, cast

from typing_extensions import Buffer

from datasets_rl.errors import Argument, ConversionError, Remedy

ITEMS_MAX = 20
LFS = b"version https://git-lfs"
AGAIN = Remedy("the file is damaged or truncated: download it again with {}", Argument("force", True))
COMPRESSION_MAX = 1100
"""Maximum compression ratio of deflate, which is 1032: data that declares more was never written."""


class Readable(Protocol):
    """Interface of a stream for the readers."""

    def readinto(self, buffer: Buffer, /) -> int | None:
        """Read the next bytes into the buffer, and return the number of bytes, 0 at the end."""


def fill(stream: Readable | BinaryIO, view: memoryview) -> int:
    """Fill the view with the next bytes of the stream, and return the number of bytes, which is smaller only at the end."""
    count = 0
    while count < len(view) and (more := stream.readinto(view[count:])):  # type: ignore[union-attr]  # not in BinaryIO's stub
        count += more
    return count


class InputStream(io.RawIOBase):
    """Base of the streams that define ``readinto``."""

    def readable(self) -> bool:
        """Return True."""
        return True


class StreamSpan(InputStream):
    """Part of a file as a separate stream. Several parts of a file may be read alternately.

    Args:
        file: A seekable file.
        start: First byte of the part.
        size: Number of bytes of the part.
    """

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file = file
        self._at = start
        self._left = size

    def readinto(self, buffer: Buffer, /) -> int:
        """Read the next bytes into the buffer, and return the number of bytes, 0 at the end of the part or of the file."""
        view = memoryview(buffer).cast("B")[: self._left]
        self._file.seek(self._at)
        count = self._file.readinto(view) or 0  # type: ignore[attr-defined]  # not in BinaryIO's stub
        self._at += count
        self._left -= count
        return int(count)


class JoinedStream(InputStream):
    """Concatenation of streams."""

    def __init__(self, *streams: io.RawIOBase | io.BytesIO) -> None:
        self._streams = list(streams)

    def readinto(self, buffer: Buffer, /) -> int:
        """Read the next bytes into the buffer, and return the number of bytes, 0 at the end."""
        while self._streams:
            if count := cast("int", self._streams[0].readinto(buffer)):
                return count
            del self._streams[0]
        return 0


def first_problems(problems: Sequence[str], noun: str = "") -> list[str]:
    """Return the first problems, and the number of the others, which are problems of `noun`."""
    more = len(problems) - ITEMS_MAX
    return [*problems[:ITEMS_MAX], *([f"and {more:,} more {noun}".rstrip()] if more > 0 else [])]


def refuse(name: str, problems: Iterable[str]) -> None:
    """Raise a ConversionError about a file or a part of a file, if there are problems."""
    if listed := [*problems]:
        raise ConversionError(name, listed)


def unexpected_format(head: bytes, expected: str) -> str:
    """Return a message about a file with an unexpected beginning.

    Args:
        head: The first bytes of the file.
        expected: The expected format, such as "a PNG or JPEG image".
    """
    kind = f"is not {expected}"
    if not head:
        return f"it is empty, expected {expected}"
    if head.lstrip()[:1] == b"<":
        kind = f"is a web page or an XML error, not {expected}"
    elif len(head) > 8 and LFS.startswith(head[: len(LFS)]):
        kind = "is a git-LFS pointer, not the file that is meant"
    return f"it {kind}, and begins with {head[:16]!r}"
