"""Damaged files of every format are refused, or read like the intact file where a changed bit has no meaning."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from raw.images import encoded, scene
from raw.tfrecords import record

from datasets_rl.errors import ConversionError
from datasets_rl.read import images, pickles, tfrecord
from datasets_rl.read.archive import members
from datasets_rl.read.gz import GzipNpyReader
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.parquet import TableFile

ARRAY = np.random.default_rng(0).integers(0, 255, (2, 7, 3), np.uint8)
TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
STEP = {"a": np.arange(3.0), "b": b"pixels", "c": [1.5, 2.5], "d": (1, "x")}
PAYLOADS = [b"123456789", b"", bytes(range(200)), b"x"]
ENDS = np.cumsum([16 + len(payload) for payload in PAYLOADS]).tolist()


def written(write, *arguments, **options):
    out = io.BytesIO()
    write(out, *arguments, **options)
    return out.getvalue()


def packed(kind):
    """Return an archive of two files."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder, "in", "folder")
        inside.mkdir(parents=True)
        (inside / "a").write_bytes(b"123" * 300)
        (inside / "b").write_bytes(bytes(range(256)) * 9)
        return Path(shutil.make_archive(f"{folder}/x", kind, f"{folder}/in")).read_bytes()


def first_member(data):
    """Return where the compressed data of the first member of a zip file is."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entry = archive.infolist()[0]
    start = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    return start, start + entry.compress_size


def arrow(out):
    with pa.ipc.new_file(out, TABLE.schema) as stream:
        stream.write_table(TABLE)


def read_gzip(path):
    with GzipNpyReader(path) as file:
        return file.read().tolist()


def read_npz(path):
    with NpzFile(path) as file:
        return {name: file.read(name).tolist() for name in file.arrays}


def read_archive(path):
    return {member.name: bytes(member.read()) for member in members(path)}


def read_table(path):
    with TableFile(path) as file:
        blocks = list(file.blocks(list(file.columns), rows=2))
    return [{name: list(values) for name, values in block.items()} for block in blocks]


def read_image(path):
    out = np.empty((1, 16, 24, 3), np.uint8)
    images.decode([path.read_bytes()], out, "x")
    return out.tolist()


def read_records(path):
    with path.open("rb") as stream:
        return [bytes(payload) for payload in tfrecord.read_records(stream, "x")]


NPY, TAR = written(np.save, ARRAY), packed("tar")
FORMATS = {
    "npy": (NPY, lambda path: NpyReader(io.BytesIO(path.read_bytes()), "x", most=1 << 20).read().tolist()),
    "npy.gz": (gzip.compress(NPY), read_gzip),
    "npz": (written(np.savez, x=ARRAY, y=np.arange(3)), read_npz),
    "npz, compressed": (written(np.savez_compressed, x=ARRAY, y=np.arange(3)), read_npz),
    "tar": (TAR, read_archive),
    "tar.gz": (packed("gztar"), read_archive),
    "tar.xz": (packed("xztar"), read_archive),
    "zip": (packed("zip"), read_archive),
    "parquet": (written(lambda out: parquet.write_table(TABLE, out)), read_table),
    "arrow": (written(arrow), read_table),
    "png": (encoded(scene(16, 24)), read_image),
    "jpeg": (encoded(scene(16, 24), "JPEG"), read_image),
    "tfrecord": (b"".join(map(record, PAYLOADS)), read_records),
    "pickle": (pickle.dumps({"steps": [STEP] * 2}, 2), lambda path: repr(pickles.load(path.read_bytes()))),
}
END_MARKS = {"png": 2, "jpeg": 2, "tar": len(TAR) - len(TAR.rstrip(b"\0"))}
"""Bytes at the end that a decoder does not need."""
CHECKED = {
    "npy.gz": (10, None),
    "npz": first_member(FORMATS["npz"][0]),
    "npz, compressed": first_member(FORMATS["npz, compressed"][0]),
    "tar.gz": (20, None),
    "tar.xz": (10, None),
    "png": (8, -12),
    "tfrecord": (0, None),
}
"""The places of the bytes that a checksum covers."""


@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_is_refused(tmp_path, name):
    data, read = FORMATS[name]
    for kept in range(0, len(data) - END_MARKS.get(name, 0), 1 if len(data) < 1000 else 13):
        (tmp_path / "x").write_bytes(data[:kept])
        if name == "tfrecord" and kept in (0, *ENDS):  # a file of fewer records
            assert read(tmp_path / "x") == PAYLOADS[: [0, *ENDS].index(kept)]
            continue
        with pytest.raises(ConversionError):
            read(tmp_path / "x")


@pytest.mark.parametrize("name", CHECKED)
def test_a_flipped_bit_is_refused_wherever_it_is(tmp_path, name):
    """A few bits of compressed data have no meaning, such as the padding of the last byte."""
    data, read = FORMATS[name]
    (tmp_path / "x").write_bytes(data)
    intact, passed = read(tmp_path / "x"), 0
    for place in range(len(data))[slice(*CHECKED[name])]:
        damaged = bytearray(data)
        damaged[place] ^= 0x20
        (tmp_path / "x").write_bytes(damaged)
        with suppress(ConversionError):
            assert read(tmp_path / "x") == intact
            passed += 1
    assert passed < (8 if name.startswith("tar") else 1)


@pytest.mark.parametrize("examples", [25, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_random_damage_never_fails_in_another_way(tmp_path, name, examples):
    data, read = FORMATS[name]

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(drawn):
        damaged = bytearray(data)
        for _ in range(drawn.draw(st.integers(1, 4))):
            damaged[drawn.draw(st.integers(0, min(len(damaged) - 1, 4000)))] = drawn.draw(st.integers(0, 255))
        if drawn.draw(st.booleans()):
            del damaged[drawn.draw(st.integers(1, len(damaged))) :]
        (tmp_path / "x").write_bytes(damaged)
        with suppress(ConversionError):
            read(tmp_path / "x")

    check()
