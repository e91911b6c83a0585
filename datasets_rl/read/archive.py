"""Reader of the files in tar and zip archives, in order, without unpacking the files to disk.

Only plain files below the root of the archive are accepted. Links, devices, paths that lead out of the archive,
duplicate names, and excessive compression ratios raise an error.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from typing_extensions import Buffer

from datasets_rl.errors import ConversionError
from datasets_rl.read import gz, xz, zips
from datasets_rl.read.streams import AGAIN, InputStream, Readable, fill, unexpected_format

_BLOCK = 512
_BUFFER_BYTES = 1 << 18
_NAME_MAX_BYTES = 1 << 16  # of a long name or of a pax header
_GRACE = 64 << 20  # decompressed bytes below which the compression ratio is not limited
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "sparse",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the content of an archive."""

    size: int = 1 << 44
    """Maximum total size of the files in bytes."""
    files: int = 10_000_000
    """Maximum number of files."""
    ratio: int = 2_000
    """Maximum compression ratio. Frames that hardly change reach some hundreds."""


@dataclass(frozen=True, slots=True)
class Member:
    """File of an archive."""

    name: str
    size: int
    stream: io.RawIOBase
    """Content of the file, which can be read until the next member is requested."""
    start: int | None = None
    """The first byte of the file in the archive, if the archive is a tar without compression."""

    def read(self) -> bytearray:
        """Return the remaining content.

        Raises:
            ConversionError: If the archive is truncated or damaged.
        """
        data = bytearray(self.size)
        return data[: fill(self.stream, memoryview(data))]


def members(source: Path | str | BinaryIO, name: str = "", *, limits: Limits | None = None) -> Iterator[Member]:
    """Yield the files of a tar, tar.gz, tar.xz or zip archive, in the order of the archive.

    The first bytes determine the format. Only zip archives need a seekable stream. An unsafe member raises an error,
    after the members before the damage were yielded.

    Args:
        source: The file, or a stream of the file.
        name: Name of the archive in errors, by default the name in the path.
        limits: Limits on the content.

    Yields:
        Plain files. The unread rest of a file is skipped.

    Raises:
        ConversionError: If the file is not such an archive, is truncated or damaged, or has unsafe members. For a zip
            file, the error names all such members.
    """
    limits = limits or Limits()
    with ExitStack() as closing:
        if isinstance(source, Path | str):
            name = name or Path(source).name
            source = closing.enter_context(Path(source).open("rb"))
        watched = _LimitedReader(source, name or "archive", limits)
        head = watched.peek(_BLOCK)
        if head.startswith((zips.MAGIC, b"PK\x05\x06")):
            source.seek(0)
            files = _zip_members(source, watched.name, limits)
        elif head.startswith(gz.MAGIC):
            watched.inflated = gz.GzipReader(watched, watched.name)
            files = _tar_members(watched, limits)
        elif head.startswith(xz.MAGIC):
            watched.inflated = xz.XzReader(watched, watched.name)
            files = _tar_members(watched, limits)
        elif _is_tar_header(head):
            watched.inflated = watched
            files = _tar_members(watched, limits)
        else:
            raise ConversionError(
                watched.name, [unexpected_format(head, "a tar, tar.gz, tar.xz or zip archive")], hint=AGAIN
            )
        yield from files


def is_tar(path: Path) -> bool:
    """Return whether a file begins as a tar archive without compression."""
    with path.open("rb") as file:
        return _is_tar_header(file.read(_BLOCK))


def members_of_chunk(path: Path, chunk: int, chunk_count: int, *, limits: Limits | None = None) -> Iterator[Member]:
    """Yield the files of one of several parts of an archive, which together have all files, in order.

    Parts of a tar.xz archive begin at a block, so that no data is decompressed and then dropped. An archive of a single
    block has all files in the first part. A plain tar is split anywhere. Other archives are not split.

        archive   | file | file | file  | file | file |
        parts     |      0      |       1      |   2         a file belongs to the part in which the file begins

    Args:
        path: The archive.
        chunk: Number of the part, counted from 0.
        chunk_count: Number of parts.
        limits: Limits on the content.

    Yields:
        Plain files, as `members` does.

    Raises:
        ConversionError: For the reasons of `members`.
    """
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        compressed = head.startswith(xz.MAGIC)
        blocks = xz.blocks(file, path.name) if compressed else []
        if not compressed and not _is_tar_header(head):
            yield from members(path, limits=limits) if chunk == 0 else ()
            return
        size = blocks[-1].at + blocks[-1].size if blocks else path.stat().st_size
        edges = [size * number // chunk_count for number in (chunk, chunk + 1)]
        if compressed:
            start, stop = (next((block.at for block in blocks if block.at >= edge), size) for edge in edges)
        else:
            start, stop = (edge if edge == size else edge - edge % _BLOCK for edge in edges)
        if start in {stop, size}:
            return
        limits = limits or Limits()
        watched = _LimitedReader(file, path.name, limits, size_max=size)
        watched.check(size, path.stat().st_size)
        watched.at = file.seek(start) if not compressed else start
        rest = [block for block in blocks if block.at >= start]
        watched.inflated = xz.open_blocks(file, rest, path.name) if compressed else watched
        yield from _tar_members(watched, limits, stop=None if stop == size else stop)


class _LimitedReader(InputStream):
    """Counter of the stored and decompressed bytes of an archive. `size_max` is the decompressed size, if known."""

    def __init__(self, source: BinaryIO, name: str, limits: Limits, size_max: int | None = None) -> None:
        self.name = name
        self.most = size_max
        self.inflated: Readable = self
        self.at = 0
        """Position in the decompressed stream."""
        self._source, self._limits = source, limits
        self._ahead = b""
        self._stored = 0

    def peek(self, size: int) -> bytes:
        ahead = bytearray(size)
        self._ahead = bytes(ahead[: fill(self._source, memoryview(ahead))])
        return self._ahead

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._ahead:
            count = min(len(view), len(self._ahead))
            view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
        else:
            count = cast("int", self._source.readinto(view))  # type: ignore[attr-defined]  # not in BinaryIO's stub
        self._stored += count
        return count

    def take(self, view: memoryview) -> None:
        """Fill the view with the next bytes of the decompressed stream."""
        count = fill(self.inflated, view)
        self.at += count
        if count < len(view):
            raise ConversionError(self.name, [f"it is truncated at byte {self.at:,} of the archive"], hint=AGAIN)
        if self.most is None:
            self.check(self.at, self._stored)
        elif self.at > self.most:
            raise ConversionError(self.name, [f"it has more than the {self.most:,} bytes that the index states"])

    def check(self, size: int, stored: int) -> None:
        """Raise if the compression ratio exceeds the limit."""
        if size > max(_GRACE, self._limits.ratio * stored):
            problem = f"{stored:,} bytes decompress to {size:,}, expected at most {self._limits.ratio:,} times as many"
            raise ConversionError(self.name, [problem])

    def skip(self, count: int) -> None:
        """Skip bytes of the decompressed stream, in a plain tar without reading the bytes."""
        if self.inflated is self and self._source.seekable():
            ahead = min(count, len(self._ahead))
            self._ahead = self._ahead[ahead:]
            self._source.seek(count - ahead, io.SEEK_CUR)
            self.at += count
            self._stored += count
            return
        scratch = memoryview(bytearray(min(count, _BUFFER_BYTES)))
        while count:
            self.take(scratch[:count])
            count -= min(count, len(scratch))


class _MemberContent(InputStream):
    """Content of the current member."""

    def __init__(self, archive: _LimitedReader, size: int) -> None:
        self._archive = archive
        self._passed = False
        self.left = size

    def readinto(self, buffer: Buffer, /) -> int:
        if self._passed:
            raise ValueError("a member can be read only until the next member is requested")
        view = memoryview(buffer).cast("B")[: self.left]
        self._archive.take(view)
        self.left -= len(view)
        return len(view)

    def skip(self, padding: int) -> None:
        """Skip the rest of the content, and `padding` bytes."""
        self._passed = True
        self._archive.skip(self.left + padding)
        self.left = 0


def _tar_members(archive: _LimitedReader, limits: Limits, stop: int | None = None) -> Iterator[Member]:
    """Yield the files with a header before `stop`."""
    seen: set[str] = set()
    total = 0
    attributes: dict[str, str] = {}  # of the next file, from the headers before the header of the file
    for header in _tar_headers(archive, stop):
        kind, size = bytes(header[156:157]), _parse_octal(header[124:136], archive.name)
        if kind in {b"x", b"g", b"L", b"K"}:
            attributes |= _read_attributes(archive, kind, size)
            continue
        name, size = attributes.get("path") or _name_from_header(header), _declared_size(archive, attributes, size)
        attributes = {}
        folder = kind == b"5"
        _raise_problems(archive.name, _member_problems(name, _KINDS.get(kind, ""), seen, folder=folder))
        name = str(PurePosixPath(name))
        content = _MemberContent(archive, 0 if folder else size)
        padding = -content.left % _BLOCK
        if not folder:
            seen.add(name)
            total += size
            _raise_problems(archive.name, _limit_problems(total, len(seen), limits))
            yield Member(name, size, content, archive.at if archive.inflated is archive else None)
        content.skip(padding)
    if stop is not None:
        # A block may end exactly here, and the checksum follows the last byte.
        fill(archive.inflated, memoryview(bytearray(1)))
        return
    # The rest must be read, because the checksums of the compressed stream are at the end.
    scratch = bytearray(_BUFFER_BYTES)
    while count := archive.inflated.readinto(scratch):
        if any(scratch[:count]):
            raise ConversionError(archive.name, ["more data follows the end of the archive"], hint=AGAIN)


def _tar_headers(archive: _LimitedReader, stop: int | None) -> Iterator[bytearray]:
    """Yield the headers up to the end of the archive, or before `stop`. The caller reads each file before the next."""
    inside = archive.at > 0  # a part begins within the last file of the previous part
    archive.skip(-archive.at % _BLOCK)
    header = bytearray(_BLOCK)
    while (stop is None or archive.at < stop) and not (inside and archive.at == archive.most):
        start = archive.at
        archive.take(memoryview(header))
        is_header = _is_tar_header(header)
        ended = not any(header)
        if inside and not is_header and (archive.at < cast("int", archive.most) or not ended):
            continue
        if ended:
            return
        if not is_header:
            raise ConversionError(
                archive.name, [f"byte {start:,} of the archive is not the beginning of a member"], hint=AGAIN
            )
        inside = False
        yield header


def _read_attributes(archive: _LimitedReader, kind: bytes, size: int) -> dict[str, str]:
    """Read the attributes of the next member, such as a long name, from a header."""
    if size > _NAME_MAX_BYTES:
        raise ConversionError(
            archive.name, [f"a member's header has {size:,} bytes, expected at most {_NAME_MAX_BYTES:,}"]
        )
    data = bytearray(size + -size % _BLOCK)
    archive.take(memoryview(data))
    text = bytes(data[:size])
    if kind == b"L":
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if kind != b"x":
        return {}  # global attributes include no names and sizes. The member of a long link raises an error
    attributes: dict[str, str] = {}
    while text:
        digits, _, _ = text.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, mark, value = text[len(digits) + 1 : length - 1].partition(b"=")
        if not mark or not len(digits) < length <= len(text):
            raise ConversionError(archive.name, ["the attributes of a member are damaged"], hint=AGAIN)
        attributes[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        text = text[length:]
    if any(key.startswith("GNU.sparse") for key in attributes):
        raise ConversionError(archive.name, [f"{attributes.get('path', 'a member')} is sparse, expected a plain file"])
    return attributes


def _declared_size(archive: _LimitedReader, attributes: dict[str, str], size: int) -> int:
    text = attributes.get("size", "")
    if not text:
        return size
    if not text.isdecimal() or len(text) > 18:
        raise ConversionError(archive.name, [f"a member's size is {text[:30]!r}, expected a number"], hint=AGAIN)
    return int(text)


def _zip_members(source: BinaryIO, name: str, limits: Limits) -> Iterator[Member]:
    with zips.ZipReader(source, name) as archive:
        seen: set[str] = set()
        files = []
        problems: list[str] = []
        for member in sorted(archive.members.values(), key=lambda member: member.offset):
            problems.extend(_member_problems(member.name, "", seen, folder=member.name.endswith("/")))
            if not member.name.endswith("/"):
                seen.add(str(PurePosixPath(member.name)))
                files.append(member)
        problems.extend(_limit_problems(sum(member.size for member in files), len(files), limits))
        _raise_problems(name, problems)
        for member in files:
            yield Member(str(PurePosixPath(member.name)), member.size, archive.open(member.name))


def _raise_problems(name: str, problems: Iterator[str] | list[str]) -> None:
    if listed := list(problems):
        raise ConversionError(name, listed)


def _member_problems(name: str, kind: str, seen: set[str], *, folder: bool) -> Iterator[str]:
    if kind:
        yield f"{name} is {kind}, expected a plain file"
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]) or "\0" in name:
        yield f"{name!r} leads out of the archive"
    elif not path.parts and not (folder and name):  # tar writes "." as a folder, which is the root of the archive
        yield f"{name!r} is not a file name"
    if str(PurePosixPath(name)) in seen:
        yield f"{name} is duplicated"


def _limit_problems(total: int, files: int, limits: Limits) -> Iterator[str]:
    if total > limits.size:
        yield f"the files have {total:,} bytes, expected at most {limits.size:,}"
    if files > limits.files:
        yield f"it has {files:,} files, expected at most {limits.files:,}"


def _is_tar_header(block: bytes | bytearray) -> bool:
    """Return whether the checksum of a tar header is correct: the sum of the bytes, with the field of the checksum as blanks."""
    field = bytes(block[148:156]).strip(b" \0")
    try:
        checksum = int(field, 8)
    except ValueError:
        return False
    return len(block) == _BLOCK and checksum == sum(block) - sum(block[148:156]) + 8 * 32


def _name_from_header(header: bytearray) -> str:
    name, prefix = (bytes(part).split(b"\0", 1)[0] for part in (header[:100], header[345:500]))
    if header[257:263] == b"ustar\0" and prefix:
        name = prefix + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _parse_octal(field: bytearray, name: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")  # sizes of 8 GB and more
    text = bytes(field).strip(b" \0")
    try:
        return int(text or b"0", 8)
    except ValueError:
        raise ConversionError(name, [f"a member's size is {text!r}, expected an octal number"], hint=AGAIN) from None
