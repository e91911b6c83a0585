"""Reader of xz files as streams, from the beginning or from any block.

A file has a stream or several, and a stream has a block or, if ``xz -T`` wrote the stream, many. The index after the blocks
states the size of each block, so that several processes can decompress a file at once:

    | header | block 0 | block 1 | block 2 | index | footer | header | block 3 | index | footer |
                         |<---------------------------------------- a stream that begins at block 1,
                         after the header, with an index of the blocks 1 and 2

`lzma.LZMAFile` decompresses at the same speed, but has no blocks and no limit of the memory, which the header of a
file chooses, and it takes the zeros between two streams for the end of the file.
"""

from __future__ import annotations

import io
import lzma
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

from typing_extensions import Buffer

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import AGAIN, InputStream, JoinedStream, Readable, StreamSpan

MAGIC = b"\xfd7zXZ\0"
_END = b"YZ"
_HEADER = 12
_FOOTER = struct.Struct("<II2s2s")
_MEMORY = 256 << 20  # xz -9 needs 65 MB. A header alone could ask for 4 GB
_BUFFER_BYTES = 1 << 18
_INDEX_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Block of an xz file, which can be decompressed separately."""

    stream: int
    """Position of the stream in the file."""
    start: int
    """Position of the block in the file."""
    stored: int
    """Number of stored bytes, without the padding to a multiple of four."""
    at: int
    """Position of the content in the decompressed file."""
    size: int
    """Number of decompressed bytes."""


def blocks(file: BinaryIO, name: str) -> list[Block]:
    """Read the indexes of an xz file, the last index first.

    Raises:
        ConversionError: If an index is truncated, damaged, or does not match the file.
    """
    streams: list[tuple[int, list[tuple[int, int]]]] = []
    end = file.seek(0, io.SEEK_END)
    while end:
        end = _end_without_padding(file, end)
        stream, records = _read_index(file, end, name)
        streams.append((stream, records))
        end = stream
    result: list[Block] = []
    at = 0
    for stream, records in reversed(streams):
        start = stream + _HEADER
        for stored, size in records:
            result.append(Block(stream, start, stored, at, size))
            start += stored + -stored % 4
            at += size
    return result


def open_blocks(file: BinaryIO, blocks: Sequence[Block], name: str) -> XzReader:
    """Return the content of consecutive blocks as a stream."""
    parts: list[io.RawIOBase | io.BytesIO] = []
    for stream, group in groupby(blocks, key=lambda block: block.stream):
        members = list(group)
        last = members[-1]
        body = StreamSpan(file, members[0].start, last.start + last.stored + -last.stored % 4 - members[0].start)
        index = _index_bytes([(block.stored, block.size) for block in members])
        header = StreamSpan(file, stream, _HEADER)
        flags = StreamSpan(file, stream + 6, 2).read() or b""
        size = struct.pack("<I", len(index) // 4 - 1)
        footer = struct.pack("<I", zlib.crc32(size + flags)) + size + flags + _END
        parts += [header, body, io.BytesIO(index + footer)]
    return XzReader(JoinedStream(*parts), name)


class XzReader(InputStream):
    """Decompressed content of an xz file, which may have several streams, as a stream. Checksums are checked.

    Args:
        source: The file, at the beginning.
        name: Name of the file in errors.
    """

    def __init__(self, source: Readable, name: str) -> None:
        self._source, self._name = source, name
        self._buffer = bytearray(_BUFFER_BYTES)
        self._decompressor: lzma.LZMADecompressor | None = None
        self._left = b""

    def readinto(self, buffer: Buffer, /) -> int:
        """Decompress the next bytes into the buffer, and return the number of bytes, 0 at the end.

        Raises:
            ConversionError: If the file is truncated or damaged.
        """
        view = memoryview(buffer).cast("B")
        try:
            while len(view):
                if (data := self._next_bytes(len(view))) is None:
                    return 0
                view[: len(data)] = data
                if data:
                    return len(data)
        except lzma.LZMAError as error:
            raise ConversionError(self._name, [f"the xz stream is damaged: {error}"], hint=AGAIN) from error
        return 0

    def _next_bytes(self, most: int) -> bytes | None:
        """Decompress some bytes, possibly none, and return None at the end."""
        stream = self._decompressor
        if stream is None or stream.eof:
            # Streams may be followed by zeros, in multiples of four, and by other streams.
            while self._fill_buffer():
                self._left = self._left.lstrip(b"\0")
                if self._left:
                    break
            else:
                return None
            self._decompressor = stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        elif stream.needs_input and not self._fill_buffer():
            raise ConversionError(self._name, ["the xz stream is truncated"], hint=AGAIN)
        data, self._left = stream.decompress(self._left, most), b""
        if stream.eof:
            self._left = stream.unused_data
        return data

    def _fill_buffer(self) -> bool:
        """Read compressed bytes if none are buffered, and return whether there are any."""
        if not self._left:
            self._left = bytes(memoryview(self._buffer)[: self._source.readinto(self._buffer)])
        return bool(self._left)


def _end_without_padding(file: BinaryIO, end: int) -> int:
    """Return the end of the stream before `end`, without the zeros after the stream, which come in multiples of four."""
    zeros = 0
    while tail := StreamSpan(file, max(0, end - zeros - _BUFFER_BYTES), min(_BUFFER_BYTES, end - zeros)).read():
        trailing = len(tail) - len(tail.rstrip(b"\0"))
        zeros += trailing
        if trailing < len(tail):
            break
    return end - zeros // 4 * 4


def _read_index(file: BinaryIO, end: int, name: str) -> tuple[int, list[tuple[int, int]]]:
    """Return the start of the stream that ends at `end`, and the stored and decompressed sizes of the blocks."""
    footer = StreamSpan(file, max(0, end - _FOOTER.size), _FOOTER.size).read() or b""
    crc, back, flags, mark = _FOOTER.unpack(footer.ljust(_FOOTER.size, b"\0"))
    if mark != _END or crc != zlib.crc32(footer[4:10]):
        raise ConversionError(
            name, ["the last bytes are not the end of an xz stream: it is truncated or damaged"], hint=AGAIN
        )
    size = 4 * (back + 1)
    start = end - _FOOTER.size - size
    text = (StreamSpan(file, start, size).read() or b"") if start >= _HEADER and size <= _INDEX_MAX_BYTES else b""
    if len(text) < 8 or text[0] or int.from_bytes(text[-4:], "little") != zlib.crc32(text[:-4]):
        raise ConversionError(name, ["the index of the xz stream is damaged"], hint=AGAIN)
    numbers = _parse_varints(text[1:-4])
    count = next(numbers, 0)
    records = [(next(numbers, 0), next(numbers, 0)) for _ in range(min(count, size))]
    stream = start - sum(stored + -stored % 4 for stored, _ in records) - _HEADER
    if stream < 0 or (StreamSpan(file, stream, _HEADER).read() or b"")[:8] != MAGIC + flags:
        raise ConversionError(name, ["the index of the xz stream does not match the stream"], hint=AGAIN)
    return stream, records


def _parse_varints(text: bytes) -> Iterator[int]:
    """Yield integers of seven bits per byte, lowest first. The eighth bit is set if another byte follows."""
    value = shift = 0
    for byte in text:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            yield value
            value = shift = 0


def _index_bytes(records: Sequence[tuple[int, int]]) -> bytes:
    """Encode the index of a stream, which lists (unpadded size, uncompressed size) of each block, as xz writes the index."""
    text = bytearray(1)
    for number in (len(records), *(number for record in records for number in record)):
        rest = number
        while rest > 127:
            text.append(rest & 127 | 128)
            rest >>= 7
        text.append(rest)
    text += bytes(-len(text) % 4)
    return bytes(text + zlib.crc32(text).to_bytes(4, "little"))
