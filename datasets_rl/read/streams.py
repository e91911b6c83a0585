"""What the readers of streams share: filling a buffer, parts of a file, and saying what a wrong file looks like."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AGAIN", "DAMAGED", "Joined", "Readable", "Span", "fill", "listed", "shown", "unlike"]

_SHOWN_MOST = 20
_LFS = b"version https://git-lfs"
AGAIN = "the file is damaged or was cut: download it again with --force"
DAMAGED = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    EOFError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
"""What numpy, h5py and the standard library raise while they read a damaged file."""


class Readable(Protocol):
    """What the readers need of a stream."""

    def readinto(self, buffer: Buffer, /) -> int | None:
        """Put the next bytes into the buffer; return how many, 0 at the end."""


def fill(stream: Readable | BinaryIO, view: memoryview) -> int:
    """Fill the view as far as the stream goes; return how far."""
    got = 0
    while got < len(view) and (more := stream.readinto(view[got:])):  # type: ignore[union-attr]  # not in BinaryIO's stub
        got += more
    return got


class Span(io.RawIOBase):
    """A part of a file as a stream of its own. Several may take turns at one file.

    Args:
        file: Must be able to seek.
        start: Where the part begins.
        size: Its bytes.
    """

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file = file
        self._at = start
        self._left = size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Put the next bytes into the buffer; return how many, 0 at the end or where the file is cut."""
        view = memoryview(buffer).cast("B")[: self._left]
        self._file.seek(self._at)
        got = self._file.readinto(view) or 0  # type: ignore[attr-defined]  # not in BinaryIO's stub
        self._at += got
        self._left -= got
        return int(got)


class Joined(io.RawIOBase):
    """Streams one after the other."""

    def __init__(self, *streams: io.RawIOBase | io.BytesIO) -> None:
        self._streams = list(streams)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Put the next bytes into the buffer; return how many, 0 at the end."""
        while self._streams:
            if got := cast("int", self._streams[0].readinto(buffer)):
                return got
            del self._streams[0]
        return 0


def shown(problems: Sequence[str]) -> list[str]:
    """Return the first of many problems, and how many more there are."""
    more = len(problems) - _SHOWN_MOST
    return [*problems[:_SHOWN_MOST], *([f"and {more:,} more"] if more > 0 else [])]


def listed(names: Sequence[str]) -> str:
    """Join names for a message, which stays readable however many they are."""
    more = len(names) - _SHOWN_MOST
    return ", ".join(names[:_SHOWN_MOST]) + (f" and {more:,} more" if more > 0 else "")


def unlike(head: bytes, wanted: str) -> str:
    """Say what a file is that does not begin as it should.

    Args:
        head: Its first bytes.
        wanted: What it should be, as in "a PNG or JPEG image".
    """
    kind = f"is not {wanted}"
    if not head:
        return f"it is empty; expected {wanted}"
    if head.lstrip()[:1] == b"<":
        kind = f"is a web page or an XML error, not {wanted}"
    elif len(head) > 8 and _LFS.startswith(head[: len(_LFS)]):
        kind = "is a git-LFS pointer, not the file that it points to"
    return f"it {kind}: it begins with {head[:16]!r}"
