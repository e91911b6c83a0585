"""Truncated files are detected by their own format: files of real writers, complete and cut at any position."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from datasets_rl.fetch import ends

VALUES = np.random.default_rng(0).normal(size=(200, 7)).astype("f4")


def hdf5(libver):
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=libver) as file:
        file["a/b"] = VALUES
        file.create_dataset("c", data=VALUES, chunks=(50, 7), compression="gzip")
    return stream.getvalue()


def npy(values):
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def npz(*, compressed):
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, a=VALUES, b=VALUES[:3])
    return stream.getvalue()


def tar(form):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name in "abc":
            member = tarfile.TarInfo(name)
            member.size = VALUES.nbytes
            archive.addfile(member, io.BytesIO(VALUES.tobytes()))
    # Writers pad with more blocks of zeros; two are required.
    return stream.getvalue().rstrip(b"\0") + b"\0" * (-len(stream.getvalue().rstrip(b"\0")) % 512 + 1024)


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord():
    records = [VALUES[:size].tobytes() for size in (5, 0, 100, 200)]
    heads = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(head + masked(head) + record + masked(record) for head, record in zip(heads, records, strict=True))


def parquet():
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": VALUES[:, 0]}), stream)
    return stream.getvalue()


def arrow():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": VALUES[:, 0]})
    stream = io.BytesIO()
    with pyarrow.ipc.new_file(stream, table.schema) as writer:
        writer.write(table)
    return stream.getvalue()


def plain_zip():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a", VALUES.tobytes())
    return stream.getvalue()


WHOLE = {
    "old.hdf5": lambda: hdf5("earliest"),
    "new.hdf5": lambda: hdf5("latest"),
    "a.npy": lambda: npy(VALUES),
    "a.npz": lambda: npz(compressed=False),
    "packed.npz": lambda: npz(compressed=True),
    "a.zip": plain_zip,
    "a.gz": lambda: gzip.compress(VALUES.tobytes()),
    "members.gz": lambda: gzip.compress(b"x" * 3_000_000) + gzip.compress(VALUES.tobytes()),
    "a.tar.gz": lambda: gzip.compress(tar(tarfile.GNU_FORMAT)),
    "a.tar.xz": lambda: lzma.compress(tar(tarfile.GNU_FORMAT)),
    "gnu.tar": lambda: tar(tarfile.GNU_FORMAT),
    "pax.tar": lambda: tar(tarfile.PAX_FORMAT),
    "a.tfrecord-00000-of-00001": tfrecord,
    "a.parquet": parquet,
    "a.arrow": arrow,
    "a.json": lambda: json.dumps({"a": [1.5, True, {"b": "c"}], "d": "é"}, ensure_ascii=False).encode(),
}
FILES = pytest.mark.parametrize("name", WHOLE)


def judge(tmp_path, name, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    return ends.truncation_problem(path, f"folder/{name}")


@FILES
def test_a_complete_file_is_accepted(tmp_path, name):
    assert judge(tmp_path, name, WHOLE[name]()) is None


@FILES
def test_a_truncated_file_is_detected(tmp_path, name):
    data = WHOLE[name]()
    first = len(data) // 10 + 10
    stops = {first, len(data) - 1, *np.linspace(first, len(data) - 1, 40).astype(int).tolist()}
    # A file that ends between two members or records is complete.
    whole = {len(gzip.compress(b"x" * 3_000_000))} if name == "members.gz" else set()
    whole |= {156, 172, 2_988} if "tfrecord" in name else set()

    assert [stop for stop in sorted(stops - whole) if judge(tmp_path, name, data[:stop]) is None] == []


@pytest.mark.parametrize("name", ["a.gz", "a.tar.xz", "gnu.tar"])
def test_zeros_after_the_end_are_allowed(tmp_path, name):
    assert judge(tmp_path, name, WHOLE[name]() + b"\0" * 10_240) is None


def test_the_lengths_are_in_the_message(tmp_path):
    data = WHOLE["old.hdf5"]()
    missing = judge(tmp_path, "old.hdf5", data[:3000])

    assert missing == f"the file is truncated: the superblock states {len(data):,} bytes, and the file has 3,000"


@pytest.mark.parametrize("name", ["a.txt", "a.arff", "a.csv", "a"])
def test_a_format_without_an_end_marker_is_always_accepted(tmp_path, name):
    assert judge(tmp_path, name, b"@relation a") is None
    assert judge(tmp_path, name, b"") is None


@given(
    magic=st.sampled_from(
        [*ends._BY_MAGIC, b"\x89HDF\r\n\x1a\n\x00", b"\x89HDF\r\n\x1a\n\x02\x08", b"\x93NUMPY\x01\0", b""]
    ),
    rest=st.binary(max_size=400),
    name=st.sampled_from(["a", "a.json", "a.tfrecord", "a.tar"]),
)
def test_the_check_never_fails_on_arbitrary_bytes(tmp_path_factory, magic, rest, name):
    judge(tmp_path_factory.getbasetemp(), name, magic + rest)
