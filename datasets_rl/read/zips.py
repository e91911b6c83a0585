"""Reader of the members of zip files as streams, decompressed with ISA-L if available, with verified checksums.

Raw deflate streams have no checksum. With a gzip header before a member and the checksum from the directory after it,
the member becomes a gzip stream.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer, Self

from datasets_rl.errors import ConversionError
from datasets_rl.read.gz import GzipReader
from datasets_rl.read.streams import (
    AGAIN,
    COMPRESSION_MAX,
    InputStream,
    JoinedStream,
    StreamSpan,
    first_problems,
    unexpected_format,
)

MAGIC = b"PK\x03\x04"
_EMPTY = b"PK\x05\x06"
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_UTF8 = 0x800
_LOCAL = struct.Struct("<4s2xH18xHH")
# Exceptions that the standard library raises for damaged directories.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    NotImplementedError,
    struct.error,
    UnicodeDecodeError,
    OverflowError,
)


@dataclass(frozen=True, slots=True)
class ZipMember:
    """File of a zip archive."""

    name: str
    size: int
    """Number of decompressed bytes."""
    stored: int
    """Number of bytes in the archive."""
    deflated: bool
    crc: int
    offset: int
    raw_name: bytes
    """Encoded name, which the archive has in the directory and before the data."""


class ZipReader:
    """Open zip file. A context manager.

    Args:
        source: The file, or a seekable stream.
        name: Name of the file in errors, by default the name in the path.
        repeated: Names of members, without folders, that may occur several times: the last one counts.

    Raises:
        ConversionError: If the file is not a zip file, or members are encrypted, duplicated, compressed with another
            method, or declare more bytes than deflate can store. The error names all such members.
    """

    def __init__(self, source: Path | str | BinaryIO, name: str = "", repeated: Collection[str] = ()) -> None:
        with ExitStack() as closing:
            if isinstance(source, Path | str):
                name = name or Path(source).name
                self._file: BinaryIO = closing.enter_context(Path(source).open("rb"))
            else:
                self._file = source
            self.name = name or "zip"
            head = self._file.read(64)
            if not head.startswith((MAGIC, _EMPTY)):
                raise ConversionError(self.name, [unexpected_format(head, "a zip file")], hint=AGAIN)
            try:
                with zipfile.ZipFile(self._file) as archive:
                    entries = archive.infolist()
            except _ZIP_ERRORS as error:
                problem = f"the directory, at the end of the file, is damaged or truncated: {error}"
                raise ConversionError(self.name, [problem], hint=AGAIN) from error
            self.members: Mapping[str, ZipMember] = self._members_by_name(entries, repeated)
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if the file was opened here."""
        self._closing.close()

    def open(self, name: str) -> io.RawIOBase:
        """Open a member as a stream. The checksum is checked at the end.

        Raises:
            ConversionError: If the local header is not at the offset in the directory, or has another name.
        """
        member = self.members[name]
        where = f"{self.name}: {name}"
        head = (StreamSpan(self._file, member.offset, _LOCAL.size + len(member.raw_name)).read() or b"").ljust(
            _LOCAL.size
        )
        mark, _, *sizes = _LOCAL.unpack_from(head)
        if mark != MAGIC:
            raise ConversionError(where, ["it is not at the offset in the directory"], hint=AGAIN)
        # No checksum covers names: only the comparison of the two copies reveals a flipped bit.
        if head[_LOCAL.size :] != member.raw_name or sizes[0] != len(member.raw_name):
            raise ConversionError(where, [f"the local header has the name {head[_LOCAL.size :]!r}"], hint=AGAIN)
        span = StreamSpan(self._file, member.offset + _LOCAL.size + sum(sizes), member.stored)
        if not member.deflated:
            return _CheckedReader(span, member, where)
        tail = struct.pack("<II", member.crc, member.size & 0xFFFFFFFF)
        return GzipReader(JoinedStream(io.BytesIO(_GZIP_HEAD), span, io.BytesIO(tail)), where)

    def _members_by_name(self, entries: Sequence[zipfile.ZipInfo], repeated: Collection[str]) -> dict[str, ZipMember]:
        problems: list[str] = []
        members: dict[str, ZipMember] = {}
        for entry in entries:
            if entry.filename in members and entry.filename.rpartition("/")[2] not in repeated:
                problems.append(f"{entry.filename} is duplicated")
            problems.extend(f"{entry.filename} {problem}" for problem in _entry_problems(entry))
            deflated = entry.compress_type == zipfile.ZIP_DEFLATED
            sizes = entry.file_size, entry.compress_size
            raw_name = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437")
            members[entry.filename] = ZipMember(
                entry.filename, *sizes, deflated, entry.CRC, entry.header_offset, raw_name
            )
        if problems:
            raise ConversionError(self.name, first_problems(problems), hint=AGAIN)
        return members


def _entry_problems(entry: zipfile.ZipInfo) -> Iterator[str]:
    if entry.header_offset < 0:
        yield f"has the offset {entry.header_offset:,}, before the beginning of the file"
    if entry.flag_bits & 1:
        yield "is encrypted"
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        yield f"is compressed with method {entry.compress_type}, expected 0 or 8 (deflate)"
    most = entry.compress_size * (COMPRESSION_MAX if entry.compress_type == zipfile.ZIP_DEFLATED else 1)
    if entry.file_size > most:
        yield f"declares {entry.file_size:,} bytes, but {entry.compress_size:,} stored bytes can have at most {most:,}"


class _CheckedReader(InputStream):
    """Content of a member that is not compressed, with the same checks as for compressed members."""

    def __init__(self, span: StreamSpan, member: ZipMember, name: str) -> None:
        self._span, self._member, self._name = span, member, name
        self._count = self._crc = 0

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count = self._span.readinto(view)
        self._crc = zlib.crc32(view[:count], self._crc)
        self._count += count
        if count or not len(view):
            return count
        if (self._count, self._crc) != (self._member.size, self._member.crc):
            raise ConversionError(self._name, ["it is truncated, or the checksum is wrong"], hint=AGAIN)
        return 0
