"""xz streams of many blocks, combined from streams of a single block that `lzma` writes."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Sequence

__all__ = ["blocked", "joined", "one_block"]


def one_block(data: bytes, preset: int | None = None) -> tuple[bytes, bytes, bytes]:
    """Return the header of a stream, its only block, and the record of the block in the index."""
    whole = lzma.compress(data, preset=preset)
    back = 4 * (int.from_bytes(whole[-8:-4], "little") + 1)
    index = whole[-12 - back : -12]
    # The record is the index without its indicator, the count of 1, the padding and the checksum.
    ends = [place for place, byte in enumerate(index[2:-4]) if byte < 128]
    return whole[:12], whole[12 : -12 - back], index[2 : 2 + ends[1] + 1]


def joined(blocks: Sequence[tuple[bytes, bytes, bytes]]) -> bytes:
    """Combine blocks into a stream."""
    header = blocks[0][0]
    index = b"\0" + _number(len(blocks)) + b"".join(record for _, _, record in blocks)
    index += bytes(-len(index) % 4)
    index += zlib.crc32(index).to_bytes(4, "little")
    end = (len(index) // 4 - 1).to_bytes(4, "little") + header[6:8]
    footer = zlib.crc32(end).to_bytes(4, "little") + end + b"YZ"
    return b"".join([header, *(block for _, block, _ in blocks), index, footer])


def blocked(data: bytes, size: int) -> bytes:
    """Compress data into a stream with blocks of `size` bytes each, as ``xz -T`` does."""
    return joined([one_block(data[start : start + size]) for start in range(0, len(data), size)])


def _number(value: int) -> bytes:
    """Encode an integer as a multibyte integer of the xz format."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _number(value >> 7)
