"""Whether a file ends where its own format says that it ends.

An answer without Content-Length that breaks off looks like a complete one, and so does a cut file on a proxy that sends
the length of what it has. Most formats state their length, or end with a mark. Where neither a size nor a checksum of a
file is known, that is the only evidence that all of it is here.

Each check reads little: a header, a footer, or the lengths of the records. The exception is gzip, whose end is found by
inflating; that is done in constant memory and is still faster than a network.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from crc32c import crc32c

try:
    # The same interface as zlib, and about three times as fast.
    from isal import isal_zlib as gz
    from isal.igzip_lib import IsalError

    _DAMAGE: tuple[Any, ...] = (zlib.error, IsalError)
except ImportError:
    gz = zlib  # type: ignore[misc]  # a module with the same interface
    _DAMAGE = (zlib.error,)

__all__ = ["cut"]

_BLOCK = 1 << 20
_JSON_MAX = 16 << 20
_ZIP_FIRST = (b"PK\x03\x04", b"PK\x05\x06")
_USTAR_AT = 257
_TAR_BLOCK = 512
_SUPERBLOCK = 96
_ADDRESS_BYTES = {2: "<H", 4: "<I", 8: "<Q"}
_HDF5_CHECKSUM_FROM = 2
"""The version of the superblock that has another layout than those before it."""


def cut(path: Path, name: str) -> str | None:
    """Return why the end of a file is missing; None if it is there, or if the format does not say.

    A file that breaks its format in another way gets None as well: its reader knows best what to report.

    Args:
        path: The file.
        name: The name that it will have: some formats have no mark at their beginning.
    """
    with path.open("rb") as stream:
        head = stream.read(_TAR_BLOCK)
        check = _check_for(head, name)
        if check is None:
            return None
        stream.seek(0)
        missing = check(stream, path.stat().st_size)
    return missing and f"it is cut: {missing}"


def _check_for(head: bytes, name: str) -> Callable[[BinaryIO, int], str | None] | None:
    for magic, check in _BY_MAGIC.items():
        if head.startswith(magic):
            return check
    if head[_USTAR_AT : _USTAR_AT + 5] == b"ustar":
        return _tar
    last = name.rpartition("/")[2].lower()
    if ".tfrecord" in last:
        return _tfrecord
    return _json if last.endswith(".json") else None


def _hdf5(stream: BinaryIO, size: int) -> str | None:
    """Compare with the end-of-file address in the superblock (HDF5 File Format Specification, II.A)."""
    block = stream.read(_SUPERBLOCK)
    if len(block) < _SUPERBLOCK // 2:
        return "it ends within its superblock"
    version = block[8]
    if version > 3:
        return None
    newer = version >= _HDF5_CHECKSUM_FROM
    width = block[9 if newer else 13]
    # The address follows the base address and one more, in every version.
    first = 12 if newer else (24, 28)[version]
    form = _ADDRESS_BYTES.get(width)
    if form is None or first + 3 * width > len(block):
        return None
    (end,) = struct.unpack_from(form, block, first + 2 * width)
    return f"its superblock states {end:,} bytes, and it has {size:,}" if size < end else None


def _gzip(stream: BinaryIO, size: int) -> str | None:
    """Inflate every member up to its trailer."""
    member, pending, ended = gz.decompressobj(wbits=31), b"", False
    try:
        while block := pending or stream.read(_BLOCK):
            pending = b""
            # Zeros may follow a member.
            if ended and not (block := block.lstrip(b"\0")):
                continue
            member.decompress(block, _BLOCK)
            pending, ended = member.unconsumed_tail, member.eof
            if ended:
                pending, member = member.unused_data, gz.decompressobj(wbits=31)
    except _DAMAGE:
        return None
    return None if ended else f"its gzip stream does not end within {size:,} bytes"


def _zip(stream: BinaryIO, size: int) -> str | None:
    """Look for the end record, which is the last thing in the file."""
    return None if zipfile.is_zipfile(stream) else f"no zip end record is in the last bytes of its {size:,}"


def _xz(stream: BinaryIO, size: int) -> str | None:
    """Look for the stream footer: checksum 4, backward size 4, flags 2, mark 2; zeros may follow."""
    stream.seek(max(0, size - _BLOCK))
    tail = stream.read().rstrip(b"\0")
    # The zeros belong to the padding, and never to the footer, which ends with the mark.
    footer = tail[-12:]
    whole = len(footer) == 12 and footer.endswith(b"YZ") and struct.pack("<I", zlib.crc32(footer[4:10])) == footer[:4]
    return None if whole else f"no xz footer is at the end of its {size:,} bytes"


def _tar(stream: BinaryIO, size: int) -> str | None:
    """Look for the two blocks of zeros that end an archive."""
    stream.seek(max(0, size - 2 * _TAR_BLOCK))
    whole = size % _TAR_BLOCK == 0 and not stream.read().strip(b"\0")
    return None if whole else f"the two blocks of zeros that end a tar archive are not at the end of its {size:,} bytes"


def _npy(stream: BinaryIO, size: int) -> str | None:
    """Compare with the shape and the dtype in the header."""
    # Imported here: most files need no numpy.
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, SyntaxError, OverflowError):
        return "it ends within its header" if size < _TAR_BLOCK else None
    if dtype.hasobject:
        # A pickle follows, and only a reader of all of it finds its end.
        return None
    expected = stream.tell() + dtype.itemsize * math.prod(shape)
    return f"its header states {expected:,} bytes, and it has {size:,}" if size < expected else None


def _ends_with(mark: bytes, kind: str) -> Callable[[BinaryIO, int], str | None]:
    def check(stream: BinaryIO, size: int) -> str | None:
        stream.seek(max(len(mark), size - len(mark)))
        return None if stream.read() == mark else f"the {kind} footer is not at the end of its {size:,} bytes"

    return check


def _tfrecord(stream: BinaryIO, size: int) -> str | None:
    """Step from record to record: length 8, its checksum 4, payload, checksum 4."""
    at = following = 0
    if size == 0:
        return None
    # Four times as fast as to seek and read: 0.6 s for 200,000 records.
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while following < size:
            at, head = following, data[following : following + 12]
            if len(head) < 12:
                following = size + 1
                break
            length, checksum = struct.unpack("<QI", head)
            if _masked(head[:8]) != checksum:
                return None
            following = at + 16 + length
    return f"the record at byte {at:,} ends after the {size:,} bytes of the file" if following > size else None


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _json(stream: BinaryIO, size: int) -> str | None:
    """Parse the document, which is small where it describes other files."""
    if size > _JSON_MAX:
        return None
    try:
        json.loads(stream.read())
    except json.JSONDecodeError as error:
        # Several documents after each other are another format, which does not mark its end.
        return None if error.msg == "Extra data" else f"its JSON document is not complete: {error}"
    except UnicodeDecodeError as error:
        return "it ends within a character" if error.end == size else None
    except (ValueError, RecursionError):
        return None
    return None


_BY_MAGIC: dict[bytes, Callable[[BinaryIO, int], str | None]] = {
    b"\x89HDF\r\n\x1a\n": _hdf5,
    b"\x1f\x8b": _gzip,
    **dict.fromkeys(_ZIP_FIRST, _zip),
    b"\xfd7zXZ\x00": _xz,
    b"\x93NUMPY": _npy,
    b"PAR1": _ends_with(b"PAR1", "Parquet"),
    b"ARROW1": _ends_with(b"ARROW1", "Arrow"),
}
