"""Files in tar and zip archives, one after the other, without unpacking anything to the disk.

What is not a plain file below the archive's root is refused: links, devices, names that lead out of it, names that are
there twice, and streams that swell more than data does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from datasets_rl.errors import ConversionError
from datasets_rl.read import gz, xz, zips
from datasets_rl.read.streams import AGAIN, Readable, fill, unlike

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Limits", "Member", "members", "members_of_part"]

_BLOCK = 512
_PIECE = 1 << 18
_NAME_MOST = 1 << 16  # bytes of a long name or of a pax header
_GRACE = 64 << 20  # below this nothing is too swollen
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
    """What an archive may ask of this machine."""

    size: int = 1 << 44
    """Bytes of all files together."""
    files: int = 10_000_000
    ratio: int = 2_000
    """Bytes for each compressed byte; frames that hardly change reach some hundreds."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive."""

    name: str
    size: int
    stream: io.RawIOBase
    """Its content; it can be read until the next member is asked for."""

    def read(self) -> bytearray:
        """Return what is left of the content, in memory.

        Raises:
            ConversionError: If the archive is cut or damaged.
        """
        data = bytearray(self.size)
        return data[: fill(self.stream, memoryview(data))]


def members(source: Path | str | BinaryIO, name: str = "", *, limits: Limits | None = None) -> Iterator[Member]:
    """Yield the files of a tar, tar.gz, tar.xz or zip archive in the order in which they lie there.

    The kind of the archive is told by its bytes. Only zip needs to seek. A hostile member ends the reading; those before
    it were given.

    Args:
        source: The file, or a stream of it.
        name: What it is called in errors; by default the file's name.
        limits: What it may ask for.

    Yields:
        Plain files. What is left unread of one is passed over.

    Raises:
        ConversionError: If it is no such archive, is cut or damaged, or has members that are refused; of a zip file all
            of those at once.
    """
    limits = limits or Limits()
    with ExitStack() as closing:
        if isinstance(source, Path | str):
            name = name or Path(source).name
            source = closing.enter_context(Path(source).open("rb"))
        watched = _Watched(source, name or "archive", limits)
        head = watched.peek(_BLOCK)
        if head.startswith((zips.MAGIC, b"PK\x05\x06")):
            source.seek(0)
            found = _zipped(source, watched.name, limits)
        elif head.startswith(gz.MAGIC):
            watched.inflated = gz.Gunzip(watched, watched.name)
            found = _tarred(watched, limits)
        elif head.startswith(xz.MAGIC):
            watched.inflated = xz.Unxz(watched, watched.name)
            found = _tarred(watched, limits)
        elif _is_header(head):
            watched.inflated = watched
            found = _tarred(watched, limits)
        else:
            raise ConversionError(watched.name, [unlike(head, "a tar, tar.gz, tar.xz or zip archive")], hint=AGAIN)
        yield from found


def members_of_part(path: Path, part: int, parts: int, *, limits: Limits | None = None) -> Iterator[Member]:
    """Yield the files of one of several parts of an archive, which together have all of them, in their order.

    Parts of a tar.xz archive begin with a block, so that none is inflated for nothing; one of a single block has all its
    files in the first part. A plain tar is cut anywhere, and another kind of archive not at all.

        archive   | file | file | file  | file | file |
        parts     |      0      |       1      |   2         a file is of the part in which it begins

    Args:
        path: The archive.
        part: Which one, from 0.
        parts: How many there are.
        limits: What it may ask for.

    Yields:
        Plain files, as `members` does.

    Raises:
        ConversionError: As `members` does.
    """
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        squeezed = head.startswith(xz.MAGIC)
        found = xz.blocks(file, path.name) if squeezed else []
        if not squeezed and not _is_header(head):
            yield from members(path, limits=limits) if part == 0 else ()
            return
        size = found[-1].at + found[-1].size if found else path.stat().st_size
        edges = [size * number // parts for number in (part, part + 1)]
        if squeezed:
            start, stop = (next((block.at for block in found if block.at >= edge), size) for edge in edges)
        else:
            start, stop = (edge if edge == size else edge - edge % _BLOCK for edge in edges)
        if start in {stop, size}:
            return
        limits = limits or Limits()
        watched = _Watched(file, path.name, limits, most=size)
        watched.check(size, path.stat().st_size)
        watched.at = file.seek(start) if not squeezed else start
        rest = [block for block in found if block.at >= start]
        watched.inflated = xz.inflated(file, rest, path.name) if squeezed else watched
        yield from _tarred(watched, limits, stop=None if stop == size else stop)


class _Watched(io.RawIOBase):
    """The archive's bytes, counted, and what they inflate to; `most` says how many those are, where it is known."""

    def __init__(self, source: BinaryIO, name: str, limits: Limits, most: int | None = None) -> None:
        self.name = name
        self.most = most
        self.inflated: Readable = self
        self.at = 0
        """Bytes of the inflated stream that were read."""
        self._source, self._limits = source, limits
        self._ahead = b""
        self._stored = 0

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        ahead = bytearray(size)
        self._ahead = bytes(ahead[: fill(self._source, memoryview(ahead))])
        return self._ahead

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._ahead:
            got = min(len(view), len(self._ahead))
            view[:got], self._ahead = self._ahead[:got], self._ahead[got:]
        else:
            got = cast("int", self._source.readinto(view))  # type: ignore[attr-defined]  # not in BinaryIO's stub
        self._stored += got
        return got

    def take(self, view: memoryview) -> None:
        """Fill the view with the next bytes of the inflated stream."""
        got = fill(self.inflated, view)
        self.at += got
        if got < len(view):
            raise ConversionError(self.name, [f"it is cut at byte {self.at:,} of the archive"], hint=AGAIN)
        if self.most is None:
            self.check(self.at, self._stored)
        elif self.at > self.most:
            raise ConversionError(self.name, [f"it has more than the {self.most:,} bytes that its index says"])

    def check(self, size: int, stored: int) -> None:
        """Refuse what swells more than data does."""
        if size > max(_GRACE, self._limits.ratio * stored):
            problem = f"{stored:,} bytes inflate to {size:,}; expected at most {self._limits.ratio:,} times as many"
            raise ConversionError(self.name, [problem])

    def skip(self, count: int) -> None:
        """Pass over bytes of the inflated stream; in a plain tar without reading them."""
        if self.inflated is self and self._source.seekable():
            ahead = min(count, len(self._ahead))
            self._ahead = self._ahead[ahead:]
            self._source.seek(count - ahead, io.SEEK_CUR)
            self.at += count
            self._stored += count
            return
        scratch = memoryview(bytearray(min(count, _PIECE)))
        while count:
            self.take(scratch[:count])
            count -= min(count, len(scratch))


class _Content(io.RawIOBase):
    """The content of the member at hand."""

    def __init__(self, archive: _Watched, size: int) -> None:
        self._archive = archive
        self._passed = False
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        if self._passed:
            raise ValueError("the archive was read on; a member can be read until the next one is asked for")
        view = memoryview(buffer).cast("B")[: self.left]
        self._archive.take(view)
        self.left -= len(view)
        return len(view)

    def skip(self, more: int) -> None:
        """Pass over the rest, and over `more` bytes."""
        self._passed = True
        self._archive.skip(self.left + more)
        self.left = 0


def _tarred(archive: _Watched, limits: Limits, stop: int | None = None) -> Iterator[Member]:
    """Yield the files whose header stands before `stop`."""
    seen: set[str] = set()
    total = 0
    said: dict[str, str] = {}  # what the headers before a file say of it
    for header in _headers(archive, stop):
        kind, size = bytes(header[156:157]), _number(header[124:136], archive.name)
        if kind in {b"x", b"g", b"L", b"K"}:
            said |= _said(archive, kind, size)
            continue
        name, size = said.get("path") or _name(header), _declared(archive, said, size)
        said = {}
        folder = kind == b"5"
        _refuse(archive.name, _foul(name, _KINDS.get(kind, ""), seen, folder=folder))
        name = str(PurePosixPath(name))
        content = _Content(archive, 0 if folder else size)
        padding = -content.left % _BLOCK
        if not folder:
            seen.add(name)
            total += size
            _refuse(archive.name, _excess(total, len(seen), limits))
            yield Member(name, size, content)
        content.skip(padding)
    if stop is not None:
        # A block may end exactly here, and its checksum stands after its last byte.
        fill(archive.inflated, memoryview(bytearray(1)))
        return
    # Whatever follows, checksums of the compressed stream stand behind it.
    scratch = bytearray(_PIECE)
    while got := archive.inflated.readinto(scratch):
        if any(scratch[:got]):
            raise ConversionError(archive.name, ["something follows the end of the archive"], hint=AGAIN)


def _headers(archive: _Watched, stop: int | None) -> Iterator[bytearray]:
    """Yield the headers up to the end of the archive, or those before `stop`; their files are to be read in between."""
    inside = archive.at > 0  # a part begins within the last file of the part before
    archive.skip(-archive.at % _BLOCK)
    header = bytearray(_BLOCK)
    while (stop is None or archive.at < stop) and not (inside and archive.at == archive.most):
        start = archive.at
        archive.take(memoryview(header))
        found = _is_header(header)
        ended = not any(header)
        if inside and not found and (archive.at < cast("int", archive.most) or not ended):
            continue
        if ended:
            return
        if not found:
            raise ConversionError(archive.name, [f"byte {start:,} of the archive begins no member"], hint=AGAIN)
        inside = False
        yield header


def _said(archive: _Watched, kind: bytes, size: int) -> dict[str, str]:
    """Read what a header says of the next member: a long name, or attributes."""
    if size > _NAME_MOST:
        raise ConversionError(archive.name, [f"a member's header has {size:,} bytes; expected {_NAME_MOST:,} at most"])
    data = bytearray(size + -size % _BLOCK)
    archive.take(memoryview(data))
    text = bytes(data[:size])
    if kind == b"L":
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if kind != b"x":
        return {}  # what holds for all members is no name and no size; a long link is refused with its member
    found: dict[str, str] = {}
    while text:
        digits, _, _ = text.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, mark, value = text[len(digits) + 1 : length - 1].partition(b"=")
        if not mark or not len(digits) < length <= len(text):
            raise ConversionError(archive.name, ["the attributes of a member are damaged"], hint=AGAIN)
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        text = text[length:]
    if any(key.startswith("GNU.sparse") for key in found):
        raise ConversionError(archive.name, [f"{found.get('path', 'a member')} is sparse; expected a plain file"])
    return found


def _declared(archive: _Watched, said: dict[str, str], size: int) -> int:
    text = said.get("size", "")
    if not text:
        return size
    if not text.isdecimal() or len(text) > 18:
        raise ConversionError(archive.name, [f"a member's size is {text[:30]!r}; expected a number"], hint=AGAIN)
    return int(text)


def _zipped(source: BinaryIO, name: str, limits: Limits) -> Iterator[Member]:
    with zips.ZipReader(source, name) as archive:
        seen: set[str] = set()
        files = []
        problems: list[str] = []
        for member in sorted(archive.members.values(), key=lambda member: member.offset):
            problems.extend(_foul(member.name, "", seen, folder=member.name.endswith("/")))
            if not member.name.endswith("/"):
                seen.add(str(PurePosixPath(member.name)))
                files.append(member)
        problems.extend(_excess(sum(member.size for member in files), len(files), limits))
        _refuse(name, problems)
        for member in files:
            yield Member(str(PurePosixPath(member.name)), member.size, archive.open(member.name))


def _refuse(name: str, problems: Iterator[str] | list[str]) -> None:
    if found := list(problems):
        raise ConversionError(name, found)


def _foul(name: str, kind: str, seen: set[str], *, folder: bool) -> Iterator[str]:
    if kind:
        yield f"{name} is {kind}; expected a plain file"
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]) or "\0" in name:
        yield f"{name!r} leads out of the archive"
    elif not path.parts and not (folder and name):  # tar packs "." as a folder that is the archive's own root
        yield f"{name!r} is no name of a file"
    if str(PurePosixPath(name)) in seen:
        yield f"{name} is there twice"


def _excess(total: int, files: int, limits: Limits) -> Iterator[str]:
    if total > limits.size:
        yield f"its files have {total:,} bytes; expected {limits.size:,} at most"
    if files > limits.files:
        yield f"it has {files:,} files; expected {limits.files:,} at most"


def _is_header(block: bytes | bytearray) -> bool:
    """Whether the checksum of a tar header is right: the sum of its bytes, its own place counted as blanks."""
    field = bytes(block[148:156]).strip(b" \0")
    try:
        wanted = int(field, 8)
    except ValueError:
        return False
    return len(block) == _BLOCK and wanted == sum(block) - sum(block[148:156]) + 8 * 32


def _name(header: bytearray) -> str:
    name, prefix = (bytes(part).split(b"\0", 1)[0] for part in (header[:100], header[345:500]))
    if header[257:263] == b"ustar\0" and prefix:
        name = prefix + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _number(field: bytearray, name: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")  # sizes of 8 GB and more
    text = bytes(field).strip(b" \0")
    try:
        return int(text or b"0", 8)
    except ValueError:
        raise ConversionError(name, [f"a member's size is {text!r}; expected an octal number"], hint=AGAIN) from None
