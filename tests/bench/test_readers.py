"""What the readers cost, against the bare operation in the same run."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import tarfile
import zlib

import numpy as np
import pyarrow as pa
import pytest
from bench_data import compare
from crc32c import crc32c
from pyarrow import parquet
from raw.images import decoded, encoded, scene
from raw.tfrecords import example, messages, record

from datasets_rl.read import pickles, tfrecord
from datasets_rl.read.archive import members
from datasets_rl.read.gz import GzipNpy
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.parquet import TableFile
from datasets_rl.read.tfds import Schema

STEPS = 100


@pytest.fixture
def table(show):
    def table(title, size, taken):
        (_, bare), *others = taken.items()
        rows = [f"{name}: {size / seconds / 1e6:,.0f} MB/s, {bare / seconds:.2f} of bare" for name, seconds in others]
        show(f"\n{title} ({size / 1e6:,.1f} MB; bare {size / bare / 1e6:,.0f} MB/s)\n  " + "\n  ".join(rows))

    return table


def frames(count):
    """Screens of a game: a background, and a few things that move."""
    rng = np.random.default_rng(0)
    screen = np.repeat(np.repeat(rng.integers(0, 256, (14, 14), dtype=np.uint8), 6, 0), 6, 1)
    made = np.repeat(screen[None], count, 0)
    made[:, ::7, ::5] += rng.integers(0, 8, (count, 12, 17), dtype=np.uint8)
    return made


def tensor(dtype, *shape):
    return {"tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype, "encoding": "none"}}


def episode(kind):
    """An RLDS episode and its schema: with images, or of states alone."""
    rng = np.random.default_rng(0)
    image = {"image": {"shape": {"dimensions": ["256", "256", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}}
    inner = {"state": tensor("float32", 27), "reward": tensor("float32"), "is_first": tensor("bool")}
    steps = STEPS if kind == "images" else STEPS * 10
    values = {
        "steps/state": rng.normal(size=steps * 27).tolist(),
        "steps/reward": [0.5] * steps,
        "steps/is_first": [0] * steps,
    }
    if kind == "images":
        inner |= {"image": image, "instruction": {"text": {}}, "embedding": tensor("float32", 512)}
        values |= {
            "steps/image": [encoded(scene(256, 256, seed=seed % 5), "JPEG") for seed in range(steps)],
            "steps/instruction": [b"pick up the cup"] * steps,
            "steps/embedding": [0.5] * (512 * steps),
        }
    if kind == "pixels as integers":
        inner |= {"frame": tensor("uint8", 84, 84)}
        values |= {"steps/frame": rng.integers(0, 256, 7056 * steps).tolist()}
    schema = {"featuresDict": {"features": {"steps": {"sequence": {"feature": {"featuresDict": {"features": inner}}}}}}}
    return example(values), Schema(schema)


@pytest.mark.parametrize("kind", ["images", "states", "pixels as integers"])
def test_tfrecords_parse_at_200_megabytes_a_second(kind, table):
    payload, schema = episode(kind)
    with_crc = payload[:64]  # the pure checksum of the writer is too slow for more: ours is put there
    file = b""
    length = len(payload).to_bytes(8, "little")
    head = length + record(length)[-4:]
    file = (head + payload + tfrecord._masked(payload).to_bytes(4, "little")) * 4
    message = messages()["t.Example"]

    def ours():
        for number, one in enumerate(tfrecord.records(io.BytesIO(file), "x")):
            schema.read(one, f"record {number}")

    def runtime():
        for _ in range(4):
            for feature in message.FromString(payload).features.feature.values():
                np.asarray(getattr(feature, feature.WhichOneof("kind")).value)

    assert with_crc
    taken = compare({"bare": lambda: crc32c(file), "ours": ours, "protobuf runtime": runtime}, rounds=7, repeat=1)
    table(f"TFRecord, {kind}; bare is the CRC32C alone", len(file), taken)
    assert len(file) / taken["ours"] > (200e6 if kind != "pixels as integers" else 100e6)


@pytest.mark.parametrize("side", [84, 256, 480])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_images_decode_at_least_as_fast_as_with_pillow(kind, side, table):
    images = [encoded(scene(side, side * 4 // 3 if side == 480 else side, seed=seed), kind) for seed in range(32)]
    out = np.empty((32, *images.header(images[0]).shape), np.uint8)

    def pillow():
        for number, image in enumerate(images):
            out[number] = decoded(image)

    taken = compare({"pillow": pillow, "ours": lambda: images.decode(images, out)}, rounds=7, repeat=1)
    table(f"{kind} of {side} rows; bare is pillow in a loop", out.nbytes, taken)


def test_gzip_reaches_07_of_bare_decompression_and_3_times_the_gzip_module(tmp_path, table):
    array = frames(6000)
    out = np.empty_like(array)
    raw = io.BytesIO()
    np.save(raw, array)
    packed = gzip.compress(raw.getvalue(), 6)
    (tmp_path / "x.gz").write_bytes(packed)
    isal = pytest.importorskip("isal.isal_zlib")
    size = len(raw.getvalue())

    def ours():
        with GzipNpy(tmp_path / "x.gz") as source:
            source.read_into(out)
            source.finish()

    def module():
        with gzip.open(tmp_path / "x.gz") as stream:
            out[...] = np.load(io.BytesIO(stream.read()))

    calls = {"bare": lambda: isal.decompress(packed, 31, size + 1), "ours": ours, "gzip module": module}
    taken = compare(calls | {"zlib alone": lambda: zlib.decompress(packed, 31, size + 1)}, rounds=7, repeat=1)
    table("gz of npy; bare is ISA-L into one buffer", size, taken)
    assert taken["bare"] / taken["ours"] > 0.7
    assert taken["gzip module"] / taken["ours"] > 3


def test_npz_against_numpy(tmp_path, table):
    array = np.stack([scene(64, 64, seed=seed) for seed in range(501)])
    np.savez_compressed(tmp_path / "x.npz", image=array, action=np.zeros((501, 6), np.float32))

    def numpy():
        with np.load(tmp_path / "x.npz") as file:
            _ = file["image"], file["action"]

    def ours():
        with NpzFile(tmp_path / "x.npz") as file:
            file.read("image"), file.read("action")

    table("npz, deflated; bare is numpy", array.nbytes, compare({"numpy": numpy, "ours": ours}, rounds=7, repeat=1))


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz"])
def test_archives_against_tarfile(kind, table, tmp_path):
    squeeze = {
        "tar": bytes,
        "tar.gz": lambda data: gzip.compress(data, 6),
        "tar.xz": lambda data: lzma.compress(data, preset=1),
    }
    undo = {"tar": bytes, "tar.gz": gzip.decompress, "tar.xz": lzma.decompress}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(60):
            entry = tarfile.TarInfo(f"{number}.npy")
            content = frames(60).tobytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    path = tmp_path / "x"
    path.write_bytes(squeeze[kind](out.getvalue()))

    def ours():
        for member in members(path):
            member.read()

    def library():
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                tar.extractfile(member).read()

    calls = {"bare": lambda: undo[kind](path.read_bytes()), "ours": ours, "tarfile": library}
    table(f"{kind}; bare is inflating it in memory", len(out.getvalue()), compare(calls, rounds=5, repeat=1))


@pytest.mark.parametrize("lists", [False, True], ids=["arrays", "lists of floats"])
def test_pickles_against_the_library(lists, table):
    rng = np.random.default_rng(0)
    embedding = [0.5] * 512 if lists else np.zeros(512, np.float32)
    step = {"reward": 0.5, "is_first": False, "action": {"a": np.zeros(7, np.float32)}, "instruction": "pick up"}
    steps = [
        {**step, "observation": {"image": {"bytes": rng.bytes(15_000)}, "embedding": embedding}} for _ in range(60)
    ]
    data = pickle.dumps({"steps": steps}, 4)

    taken = compare({"pickle": lambda: pickle.loads(data), "ours": lambda: pickles.load(data)}, rounds=9, repeat=2)
    table("a pickled episode; bare is the library, which calls anything", len(data), taken)


def test_parquet_against_pyarrow(tmp_path, table):
    rng = np.random.default_rng(0)
    state = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=200_000 * 17)), 17)
    data = pa.table({"reward": rng.normal(size=200_000), "state": state})
    parquet.write_table(data, tmp_path / "x")

    def ours():
        with TableFile(tmp_path / "x") as file:
            for _ in file.blocks(["reward", "state"], rows=20_000):
                pass

    calls = {"pyarrow": lambda: parquet.read_table(tmp_path / "x"), "ours": ours}
    table("parquet; bare is pyarrow's own table", data.nbytes, compare(calls, rounds=7, repeat=1))
