"""Detection of truncated files, by the length or end marker that the file format defines.

A response without Content-Length that is cut off looks complete. So does a truncated copy on a proxy, which sends the
length of the copy. Most formats state the length of the file, or end with a marker. If neither the size nor a checksum
of a file is known, this is the only evidence that the file is complete.

Each check reads little: a header, a footer, or the lengths of the records. The exception is gzip: only decompression
finds the end of a gzip file. Decompression takes constant memory and is still faster than a network.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from datasets_rl.errors import ConversionError

_BLOCK = 1 << 20
_JSON_MAX = 16 << 20
_ZIP_FIRST = (b"PK\x03\x04", b"PK\x05\x06")
_USTAR_AT = 257
_TAR_BLOCK = 512
_SUPERBLOCK_MIN = 48
_STORED_END = re.compile(r"truncated file: .*stored_eof = (\d+)")
"""The message of HDF5 for a file that ends before the address in its superblock."""


def truncation_problem(path: Path, name: str) -> str | None:
    """Return how a file is truncated, or None if the file is complete or the format does not define an end.

    The result is also None for a file that violates the format in another way. The reader of the format reports this.

    Args:
        path: The file.
        name: The final name of the file, because some formats have no marker at the beginning of a file.
    """
    with path.open("rb") as stream:
        head = stream.read(_TAR_BLOCK)
        check = _truncation_check(head, name)
        if check is None:
            return None
        stream.seek(0)
        missing = check(stream, path.stat().st_size)
    return missing and f"the file is truncated: {missing}"


def _truncation_check(head: bytes, name: str) -> Callable[[BinaryIO, int], str | None] | None:
    for magic, check in _BY_MAGIC.items():
        if head.startswith(magic):
            return check
    if head[_USTAR_AT : _USTAR_AT + 5] == b"ustar":
        return _tar_truncation
    last = name.rpartition("/")[2].lower()
    if ".tfrecord" in last:
        return _tfrecord_truncation
    return _json_truncation if last.endswith(".json") else None


def _hdf5_truncation(stream: BinaryIO, size: int) -> str | None:
    """Let HDF5 compare the size with the end-of-file address in the superblock."""
    # Imported here because most files do not need h5py.
    import h5py

    if size < _SUPERBLOCK_MIN:
        return "the end is within the superblock"
    try:
        h5py.File(stream.name, "r", locking=False).close()
    except (OSError, RuntimeError, ValueError) as error:
        end = _STORED_END.search(str(error))
        return f"the superblock states {int(end[1]):,} bytes, and the file has {size:,}" if end else None
    return None


def _gzip_truncation(stream: BinaryIO, size: int) -> str | None:
    """Decompress every member up to its trailer."""
    # Imported here because the module imports numpy.
    from datasets_rl.read.gz import GzipReader

    content, scratch = GzipReader(stream, ""), bytearray(_BLOCK)
    try:
        while content.readinto(scratch):
            pass
    except ConversionError as error:
        return f"the gzip stream does not end within {size:,} bytes" if isinstance(error.__cause__, EOFError) else None
    return None


def _zip_truncation(stream: BinaryIO, size: int) -> str | None:
    """Look for the end record, which is the last record of the file."""
    return None if zipfile.is_zipfile(stream) else f"no zip end record is at the end of the {size:,} bytes"


def _xz_truncation(stream: BinaryIO, size: int) -> str | None:
    """Look for the stream footer: checksum 4 bytes, backward size 4, flags 2, magic 2, and optional zeros."""
    stream.seek(max(0, size - _BLOCK))
    tail = stream.read().rstrip(b"\0")
    # The stripped zeros are always padding: the footer ends with the magic bytes, which have no zeros.
    footer = tail[-12:]
    complete = (
        len(footer) == 12 and footer.endswith(b"YZ") and struct.pack("<I", zlib.crc32(footer[4:10])) == footer[:4]
    )
    return None if complete else f"no xz footer is at the end of the {size:,} bytes"


def _tar_truncation(stream: BinaryIO, size: int) -> str | None:
    """Look for the two blocks of zeros that end an archive."""
    stream.seek(max(0, size - 2 * _TAR_BLOCK))
    complete = size % _TAR_BLOCK == 0 and not stream.read().strip(b"\0")
    return (
        None if complete else f"the two blocks of zeros that end a tar archive are not at the end of the {size:,} bytes"
    )


def _npy_truncation(stream: BinaryIO, size: int) -> str | None:
    """Compare the size with the shape and the dtype in the header."""
    from datasets_rl.read.npy import read_header

    try:
        header = read_header(stream)
    except ValueError:
        return "the end is within the header" if size < _TAR_BLOCK else None
    if header.dtype.hasobject:
        # A pickle follows, and only reading the pickle finds the end.
        return None
    expected = header.size + header.dtype.itemsize * math.prod(header.shape)
    return f"the header states {expected:,} bytes, and the file has {size:,}" if size < expected else None


def _end_mark_check(mark: bytes, kind: str) -> Callable[[BinaryIO, int], str | None]:
    def check(stream: BinaryIO, size: int) -> str | None:
        stream.seek(max(len(mark), size - len(mark)))
        return None if stream.read() == mark else f"the {kind} footer is not at the end of the {size:,} bytes"

    return check


def _tfrecord_truncation(stream: BinaryIO, size: int) -> str | None:
    """Step from record to record: length 8 bytes, checksum of the length 4, payload, checksum of the payload 4."""
    from datasets_rl.read.tfrecord import masked_crc

    position = following = 0
    if size == 0:
        return None
    # Four times as fast as seeking and reading: 0.6 s for 200,000 records.
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while following < size:
            position, head = following, data[following : following + 12]
            if len(head) < 12:
                following = size + 1
                break
            length, checksum = struct.unpack("<QI", head)
            if masked_crc(head[:8]) != checksum:
                return None
            following = position + 16 + length
    return f"the record at byte {position:,} ends after the {size:,} bytes of the file" if following > size else None


def _json_truncation(stream: BinaryIO, size: int) -> str | None:
    """Parse the document, unless the document is large. JSON documents that describe other files are small."""
    if size > _JSON_MAX:
        return None
    try:
        json.loads(stream.read())
    except json.JSONDecodeError as error:
        # Several documents in a row, as in JSON lines, form a format without an end marker.
        return None if error.msg == "Extra data" else f"the JSON document is not complete: {error}"
    except UnicodeDecodeError as error:
        return "the end is within a character" if error.end == size else None
    except (ValueError, RecursionError):
        return None
    return None


_BY_MAGIC: dict[bytes, Callable[[BinaryIO, int], str | None]] = {
    b"\x89HDF\r\n\x1a\n": _hdf5_truncation,
    b"\x1f\x8b": _gzip_truncation,
    **dict.fromkeys(_ZIP_FIRST, _zip_truncation),
    b"\xfd7zXZ\x00": _xz_truncation,
    b"\x93NUMPY": _npy_truncation,
    b"PAR1": _end_mark_check(b"PAR1", "Parquet"),
    b"ARROW1": _end_mark_check(b"ARROW1", "Arrow"),
}
