"""Reader of TFRecord files and of ``tf.train.Example`` messages, without TensorFlow and without copies.

    record    | length 8 | CRC 4 | payload ... | CRC 4 |      little endian. The CRCs are masked CRC32C

    payload   Example { 1: Features { 1: entry { 1: key, 2: Feature { 1 bytes | 2 floats | 3 integers } } ... } }

The lists of an Example are packed: floats are views of the payload, and only integers, which have 1 to 10 bytes each,
are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read import gz
from datasets_rl.read.streams import AGAIN, fill, first_problems, unexpected_format

Feature: TypeAlias = "NDArray[np.float32] | NDArray[np.int64] | list[memoryview]"
"""Floats [V], a view of the payload, or integers [V], or byte strings, views of the payload."""

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
_RECORD_MAX_BYTES = (1 << 31) - 1  # protobuf's limit for a message
_STRINGS_MAX = 1 << 20  # per list, because empty strings take 2 bytes in the file and 200 in memory
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class _DamagedError(Exception):
    """An invalid message."""


def read_record_file(path: Path, *, max_bytes: int = _RECORD_MAX_BYTES) -> Iterator[memoryview]:
    """Yield the payloads of a file, which may be compressed by gzip, see `read_records`.

    Args:
        path: The file.
        max_bytes: Maximum size of a record. A compressed file of a few megabytes could state records of gigabytes.

    Raises:
        ConversionError: If the file is neither a TFRecord nor a gzip file, or for the reasons of `read_records`.
    """
    with path.open("rb") as file:
        yield from read_records(decompressed(file, path.name), path.name, max_bytes=max_bytes)


def decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """Return the stream of the records of a file at the start, which may be compressed by gzip.

    Raises:
        ConversionError: If the file is neither a TFRecord nor a gzip file.
    """
    head = file.read(_HEAD.size)
    file.seek(0)
    # The length of a record may begin like a gzip file, but not with a matching CRC.
    if len(head) < _HEAD.size or masked_crc(head[:8]) == _HEAD.unpack(head)[1]:
        return file
    if not head.startswith(gz.MAGIC):
        raise ConversionError(name, [unexpected_format(head, "a TFRecord or gzip file")], hint=AGAIN)
    return cast("BinaryIO", gz.GzipReader(file, name))


def read_records(stream: BinaryIO, name: str, *, max_bytes: int = _RECORD_MAX_BYTES) -> Iterator[memoryview]:
    """Yield the payloads of a file, each checked against the CRCs.

    After the first damaged record, no payload is yielded. The rest of the file is only searched for other damaged records.

    Args:
        stream: The file, at the beginning, or at the beginning of a record. The stream needs ``readinto`` but need not be
            seekable.
        name: Name of the file in errors.
        max_bytes: Maximum size of a record.

    Yields:
        Payloads, each with separate memory.

    Raises:
        ConversionError: If records are damaged or truncated. The error names the number and the offset of each record.
    """
    problems: list[str] = []
    offset = number = 0
    head = bytearray(_HEAD.size)
    while count := fill(stream, memoryview(head)):
        where = f"record {number:,} at byte {offset:,}"
        size, check = _HEAD.unpack(head)
        if count < _HEAD.size:
            problems.append(f"{where} is truncated after {count} of the {_HEAD.size} bytes of the length")
            break
        if masked_crc(head[:8]) != check or size > _RECORD_MAX_BYTES:
            problems.append(f"{where} has a damaged length, so that the next records cannot be located")
            break
        if size > max_bytes:
            problems.append(f"{where} has {size:,} bytes, expected at most {max_bytes:,}")
            break
        record: NDArray[np.uint8] = np.empty(size + _FOOT.size, np.uint8)
        count = fill(stream, record.data)
        if count < len(record):
            problems.append(f"{where} is truncated after {count:,} of {len(record):,} bytes")
            break
        payload = record.data[:size]
        if masked_crc(payload) != _FOOT.unpack(record.data[size:])[0]:
            problems.append(f"{where} does not match the CRC32C")
        elif not problems:
            yield payload
        offset += _HEAD.size + len(record)
        number += 1
    if problems:
        raise ConversionError(name, first_problems(problems, "records"), hint=AGAIN)


def parse_example(payload: memoryview, name: str) -> dict[str, Feature]:
    """Read a ``tf.train.Example``.

    Args:
        payload: The bytes of the message. The features are views of the bytes.
        name: Name of the message in errors.

    Returns:
        The features by name. A feature without values is an empty list.

    Raises:
        ConversionError: If the bytes are not such a message.
    """
    try:
        features: dict[str, Feature] = {}
        for number, start, stop in _parse_messages(payload, 0, len(payload)):
            if number == 1:
                features.update(_parse_features(payload, start, stop))
    except (_DamagedError, UnicodeDecodeError) as error:
        raise ConversionError(name, [f"it is not a valid tf.train.Example: {error}"], hint=AGAIN) from error
    return features


def masked_crc(data: Any) -> int:
    """Return the masked CRC32C of TFRecords: rotated, and with a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _parse_features(data: memoryview, start: int, stop: int) -> Iterator[tuple[str, Feature]]:
    for number, at, end in _parse_messages(data, start, stop):
        if number == 1:
            spans = {field: (first, last) for field, first, last in _parse_messages(data, at, end)}
            key = slice(*spans.get(1, (0, 0)))
            yield str(data[key], "utf-8"), _parse_feature(data, *spans.get(2, (0, 0)))


def _parse_feature(data: memoryview, start: int, stop: int) -> Feature:
    kinds = list(_parse_messages(data, start, stop))
    if len(kinds) > 1:
        raise _DamagedError(f"the feature at byte {start:,} has several lists of values")
    for number, at, end in kinds:
        if number == 1:
            return _parse_strings(data, at, end)
        if number == 2:
            return _concatenate(
                [_parse_floats(data, *span) for span in _packed_ranges(data, at, end, _FIXED32)], np.float32
            )
        if number == 3:
            spans = _packed_ranges(data, at, end, _VARINT)
            return _concatenate([_parse_varints(data[first:last], first) for first, last in spans], np.int64)
    return []


def _parse_strings(data: memoryview, at: int, stop: int) -> list[memoryview]:
    strings: list[memoryview] = []
    while at < stop:
        # Strings shorter than 128 bytes, as most are except images, have a length of one byte.
        if data[at] == 0x0A and at + 1 < stop and data[at + 1] < 0x80:
            at += 2
            end = at + data[at - 1]
        else:
            number, wire, at = _read_tag(data, at, stop)
            end = _skip_field(data, at, stop, wire)
            if number != 1 or wire != _LENGTH:
                raise _DamagedError(f"byte {at:,} is not a byte string")
            _, at = _read_varint(data, at, stop)
        if end > stop:
            raise _DamagedError(f"the byte string at byte {at:,} is truncated")
        strings.append(data[at:end])
        at = end
        if len(strings) > _STRINGS_MAX:
            raise _DamagedError(f"a list has more than {_STRINGS_MAX:,} byte strings")
    return strings


def _packed_ranges(data: memoryview, start: int, stop: int, unpacked_wire: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of the numbers of a list, which are packed, or separate fields of the type `unpacked_wire`."""
    at = start
    while at < stop:
        number, wire, at = _read_tag(data, at, stop)
        end = _skip_field(data, at, stop, wire)
        if wire == _LENGTH:
            _, at = _read_varint(data, at, stop)
        if number != 1 or wire not in {_LENGTH, unpacked_wire}:
            raise _DamagedError(f"byte {at:,} has no {'floats' if unpacked_wire == _FIXED32 else 'integers'}")
        yield at, end
        at = end


def _concatenate(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype), *parts])


def _parse_floats(data: memoryview, at: int, end: int) -> NDArray[np.float32]:
    if (end - at) % 4:
        raise _DamagedError(f"byte {at:,} has no floats")
    return np.frombuffer(data[at:end], "<f4")


def _parse_varints(data: memoryview, at: int) -> NDArray[np.int64]:
    raw = np.frombuffer(data, np.uint8)
    if not raw.size:
        return np.empty(0, np.int64)
    if raw[-1] >= 0x80:
        raise _DamagedError(f"the integers at byte {at:,} are truncated")
    if raw.max() < 0x80:
        return raw.astype(np.int64)
    from datasets_rl.read import varints  # compiles

    values: NDArray[np.int64] = np.empty(np.count_nonzero(raw < 0x80), np.int64)
    if (wrong := varints.decode(raw, values)) >= 0:
        raise _DamagedError(f"an integer at byte {at + wrong:,} has more than {varints.WIDEST} bytes")
    return values


def _parse_messages(data: memoryview, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers and byte ranges of the fields that are messages or strings, and skip the others."""
    while at < stop:
        number, wire, at = _read_tag(data, at, stop)
        end = _skip_field(data, at, stop, wire)
        if wire == _LENGTH:
            _, at = _read_varint(data, at, stop)
            yield number, at, end
        at = end


def _read_tag(data: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    tag, at = _read_varint(data, at, stop)
    return tag >> 3, tag & 7, at


def _skip_field(data: memoryview, at: int, stop: int, wire: int) -> int:
    """Return the end of the field with the tag that ended at `at`."""
    if wire == _VARINT:
        return _read_varint(data, at, stop)[1]
    if wire == _LENGTH:
        size, at = _read_varint(data, at, stop)
        end = at + size
    elif wire in {_FIXED32, _FIXED64}:
        end = at + (4 if wire == _FIXED32 else 8)
    else:
        raise _DamagedError(f"byte {at:,} begins a field of unknown type {wire}")
    if end > stop:
        raise _DamagedError(f"the field at byte {at:,} has {end - at:,} bytes, but {stop - at:,} remain")
    return end


def _read_varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _DamagedError(f"the number before byte {at:,} does not end")
