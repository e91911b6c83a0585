"""Reading TFRecords and Examples returns the written values, and damage is refused."""

from __future__ import annotations

import gzip
import io
import struct
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw.tfrecords import crc32c, example, masked, record

from datasets_rl.errors import ConversionError
from datasets_rl.read import tfrecord
from datasets_rl.read.gz import GzipReader

PAYLOADS = [b"123456789", b"", bytes(range(200)), b"x"]
FILE = b"".join(map(record, PAYLOADS))

floats = st.lists(st.floats(width=32, allow_nan=False), min_size=1)
integers = st.lists(st.integers(-(2**63), 2**63 - 1))
pixels = st.lists(st.integers(0, 2**14 - 1))
strings = st.lists(st.binary(max_size=300), min_size=1)


def read(data, name="x.tfrecord"):
    return [bytes(payload) for payload in tfrecord.read_records(io.BytesIO(data), name)]


def faults(data):
    with pytest.raises(ConversionError) as caught:
        read(data)
    assert "force=True" in caught.value.hint
    return caught.value.problems


def peak():
    """Return the peak memory of the process in kilobytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def values(feature):
    return feature.tolist() if isinstance(feature, np.ndarray) else [bytes(one) for one in feature]


def parsed(payload):
    return {name: values(feature) for name, feature in tfrecord.parse_example(memoryview(payload), "it").items()}


def test_the_checksum_matches_published_values():
    """RFC 3720 B.4, the check value of CRC catalogs, and the mask computed by hand."""
    vectors = {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E}

    assert {data: crc32c(data) for data in vectors} == vectors
    assert masked(b"123456789") == 0xC78AB0E5
    assert tfrecord.masked_crc(b"123456789") == 0xC78AB0E5
    assert record(b"123456789")[-4:] == bytes.fromhex("e5b08ac7")


def test_payloads_are_read_in_order():
    assert read(FILE) == PAYLOADS
    assert read(b"") == []


def test_payloads_are_read_from_gzip():
    stream = GzipReader(io.BytesIO(gzip.compress(FILE)), "x.gz")

    assert [bytes(one) for one in tfrecord.read_records(stream, "x")] == PAYLOADS


def test_payloads_own_their_memory():
    kept = list(tfrecord.read_records(io.BytesIO(FILE), "x"))

    assert [bytes(one) for one in kept] == PAYLOADS


@pytest.mark.parametrize("kept", [1, 11, 12, 13, 20, 24])
def test_a_truncated_record_is_reported(kept):
    """Truncated within the length, its checksum, the payload, and the last checksum."""
    start = len(record(PAYLOADS[2]))
    (problem,) = faults(record(PAYLOADS[2]) + FILE[:kept])

    assert f"record 1 at byte {start:,} is truncated after" in problem


def test_all_damaged_records_are_reported_at_once_and_earlier_ones_are_given():
    data = record(b"good") + record(b"bad", check=1) + record(b"good") + record(b"worse", check=2)
    reading = tfrecord.read_records(io.BytesIO(data), "x.tfrecord")

    assert bytes(next(reading)) == b"good"
    with pytest.raises(ConversionError) as caught:
        next(reading)
    assert caught.value.problems == (
        "record 1 at byte 20 does not match the CRC32C",
        "record 3 at byte 59 does not match the CRC32C",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is counted in another unit, or not at all")
def test_a_wrong_length_does_not_allocate_memory():
    """With a valid checksum it declares 2 GB, which the file does not have."""
    for size in (2**31 - 1, 2**31, 2**63):
        length = struct.pack("<Q", size)
        data = length + struct.pack("<I", masked(length)) + b"abc"
        before = peak()
        faults(data)

        assert peak() - before < 100_000


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=20), floats | integers | pixels | strings, max_size=6))
def test_examples_read_as_the_runtime_wrote_them(features):
    assert parsed(example(features)) == features | {name: [] for name, one in features.items() if not one}


def test_floats_and_strings_are_views_of_the_payload():
    payload = np.frombuffer(example({"a": [1.5, 2.5], "b": [b"pixels"]}), np.uint8)
    found = tfrecord.parse_example(payload.data, "it")

    assert np.shares_memory(found["a"], payload)
    assert np.shares_memory(np.frombuffer(found["b"][0], np.uint8), payload)
    assert found["a"].dtype == np.float32


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


def test_lists_that_are_not_packed_or_packed_in_parts_are_read():
    """The format allows both."""
    loose = field(2, b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", 2.5))
    mixed = field(3, b"\x08\x05" + field(1, b"\x96\x01\x07") + b"\x08" + b"\xff" * 9 + b"\x01")
    entries = [field(1, field(1, name) + field(2, feature)) for name, feature in ((b"f", loose), (b"i", mixed))]

    assert parsed(field(1, b"".join(entries))) == {"f": [1.5, 2.5], "i": [5, 150, 7, -1]}


@pytest.mark.parametrize("most", [2**7, 2**14, 2**63])
def test_many_integers_of_mixed_widths_are_read(most):
    """More than are decoded at once, so that values cross every border between blocks."""
    wanted = np.random.default_rng(0).integers(-most if most == 2**63 else 0, most, 70_001)

    assert parsed(example({"x": wanted})) == {"x": wanted.tolist()}


def test_unknown_fields_are_skipped():
    inner = field(1, field(1, b"x") + field(2, field(3, field(1, b"\x07"))) + field(9, b"?"))
    payload = b"\x50\x01" + field(7, b"?") + b"\x59" + bytes(8) + b"\x5d" + bytes(4) + field(1, inner)

    assert parsed(payload) == {"x": [7]}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x0a\x7f", "has 127 bytes, but 0 remain"),
        (b"\xff" * 12, "does not end"),
        (b"\x0b\x01", "unknown type 3"),
        (field(1, field(1, field(1, b"\xff\xfe") + field(2, b""))), "utf-8"),
        (field(1, field(1, field(1, b"x") + field(2, field(2, field(1, b"abc"))))), "has no floats"),
        (
            field(1, field(1, field(1, b"x") + field(2, field(3, field(1, b"\x80"))))),
            "integers at byte .* are truncated",
        ),
        (field(1, field(1, field(1, b"x") + field(2, field(3, field(1, b"\xff" * 12 + b"\1"))))), "more than 10 bytes"),
        (field(1, field(1, field(1, b"x") + field(2, field(1, b"\x0a\x09a")))), "truncated|remain"),
        (field(1, field(1, field(1, b"x") + field(2, field(1, b"\x08\x01")))), "not a byte string"),
        (field(1, field(1, field(1, b"x") + field(2, field(2, b"") + field(3, b"")))), "several lists"),
    ],
)
def test_data_that_is_not_an_example_is_refused(payload, says):
    with pytest.raises(ConversionError, match=says):
        tfrecord.parse_example(memoryview(payload), "record 3")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_examples_raise_no_other_error(data):
    payload = bytearray(example({"a": [1.5] * 40, "b": [1, 300, -1] * 9, "c": [b"x" * 40, b"y" * 200]}))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    with suppress(ConversionError):
        assert len(tfrecord.parse_example(memoryview(payload)[:cut], "it")) <= 12


def test_a_huge_number_of_empty_strings_is_refused(monkeypatch):
    monkeypatch.setattr(tfrecord, "_STRINGS_MAX", 100)

    with pytest.raises(ConversionError, match="more than 100 byte strings"):
        tfrecord.parse_example(memoryview(example({"x": [b""] * 101})), "it")
