"""What the readers cost, against the bare operation in the same run."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import parquet
from raw.images import decoded, encoded, scene
from raw.tfrecords import example, messages, record

from datasets_rl.read import images, pickles, tfrecord
from datasets_rl.read.archive import members
from datasets_rl.read.gz import GzipNpyReader
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.parquet import TableFile
from datasets_rl.read.tfds import Schema


def frames(count):
    """Screens of a game: a background, and a few things that move."""
    rng = np.random.default_rng(0)
    screen = np.repeat(np.repeat(rng.integers(0, 256, (14, 14), dtype=np.uint8), 6, 0), 6, 1)
    made = np.repeat(screen[None], count, 0)
    made[:, ::7, ::5] += rng.integers(0, 8, (count, 12, 17), dtype=np.uint8)
    return made


def tensor(dtype, *shape):
    return {"tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype, "encoding": "none"}}


def episode(kind, steps):
    """An RLDS episode and its schema: with images, with images as integers, or of states alone."""
    rng = np.random.default_rng(0)
    image = {"image": {"shape": {"dimensions": ["256", "256", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}}
    inner = {"state": tensor("float32", 27), "reward": tensor("float32"), "is_first": tensor("bool")}
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


@pytest.mark.parametrize(("kind", "most"), [("images", 3), ("states", 3), ("pixels as integers", 0.5)])
def test_tfrecords_are_checked_and_parsed_in_a_small_multiple_of_the_time_of_protobuf(
    kind, most, size, compare, expect
):
    payload, schema = episode(kind, size(full=100 if kind == "images" else 1000, small=2))
    length = len(payload).to_bytes(8, "little")
    # The pure checksum of the writer is too slow for the payload: ours is put there.
    file = (length + record(length)[-4:] + payload + tfrecord.masked_crc(payload).to_bytes(4, "little")) * 4
    message = messages()["t.Example"]

    def ours():
        for number, one in enumerate(tfrecord.read_records(io.BytesIO(file), "x")):
            schema.read(one, f"record {number}")

    def runtime():
        for _ in range(4):
            crc32c(payload)
            for feature in message.FromString(payload).features.feature.values():
                np.asarray(getattr(feature, feature.WhichOneof("kind")).value)

    took = compare({"ours": ours, "protobuf": runtime}, rounds=7, repeat=1)
    expect(
        f"TFRecords of {kind}, of the time of the protobuf runtime and the CRC32C",
        took["ours"] / took["protobuf"],
        at_most=most,
    )


@pytest.mark.parametrize("side", [84, 256, 480])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_images_decode_at_least_as_fast_as_with_pillow(kind, side, size, compare, expect):
    width, count = side * 4 // 3 if side == 480 else side, size(full=4_000_000 // side**2, small=1)
    data = [encoded(scene(side, width, seed=seed), kind) for seed in range(count)]
    out = np.empty((count, *images.read_header(data[0]).shape), np.uint8)

    def pillow():
        for number, image in enumerate(data):
            out[number] = decoded(image)

    took = compare({"pillow": pillow, "ours": lambda: images.decode(data, out)}, rounds=7, repeat=1)
    expect(f"{kind} of {side} rows, of the time of pillow", took["ours"] / took["pillow"], at_most=1)


def test_gzip_reaches_07_of_bare_decompression_and_3_times_the_gzip_module(tmp_path, size, compare, expect):
    isal = pytest.importorskip("isal.isal_zlib")
    array = frames(size(full=6000, small=10))
    out = np.empty_like(array)
    raw = io.BytesIO()
    np.save(raw, array)
    packed = gzip.compress(raw.getvalue(), 6)
    (tmp_path / "x.gz").write_bytes(packed)

    def ours():
        with GzipNpyReader(tmp_path / "x.gz") as source:
            source.read_into(out)

    def module():
        with gzip.open(tmp_path / "x.gz") as stream:
            out[...] = np.load(io.BytesIO(stream.read()))

    bare = len(raw.getvalue()) + 1
    calls = {"isal": lambda: isal.decompress(packed, 31, bare), "ours": ours, "gzip module": module}
    took = compare(calls, rounds=7, repeat=1)
    expect("gz of npy, of the time of ISA-L into one buffer", took["ours"] / took["isal"], at_most=1.5)
    expect("gz of npy, times the speed of the gzip module", took["gzip module"] / took["ours"], at_least=3)


def test_npz_files_are_read_about_as_fast_as_by_numpy(tmp_path, size, compare, expect):
    steps = size(full=501, small=3)
    array = np.stack([scene(64, 64, seed=seed) for seed in range(steps)])
    np.savez_compressed(tmp_path / "x.npz", image=array, action=np.zeros((steps, 6), np.float32))

    def numpy():
        with np.load(tmp_path / "x.npz") as file:
            _ = file["image"], file["action"]

    def ours():
        with NpzFile(tmp_path / "x.npz") as file:
            file.read("image"), file.read("action")

    took = compare({"numpy": numpy, "ours": ours}, rounds=7, repeat=1)
    expect("npz, of the time of numpy", took["ours"] / took["numpy"], at_most=1)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz"])
def test_archives_are_read_about_as_fast_as_by_tarfile(kind, tmp_path, size, compare, expect):
    squeeze = {
        "tar": bytes,
        "tar.gz": lambda data: gzip.compress(data, 6),
        "tar.xz": lambda data: lzma.compress(data, preset=1),
    }
    content, out = frames(size(full=60, small=2)).tobytes(), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(size(full=60, small=2)):
            entry = tarfile.TarInfo(f"{number}.npy")
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

    took = compare({"ours": ours, "tarfile": library}, rounds=5, repeat=1)
    expect(f"{kind}, of the time of tarfile", took["ours"] / took["tarfile"], at_most=1)


@pytest.mark.parametrize("lists", [False, True], ids=["arrays", "lists of floats"])
def test_pickles_are_read_in_a_small_multiple_of_the_librarys_time(lists, size, compare, expect):
    """The library, in C, calls anything that a pickle names; ours, in Python, calls nothing."""
    rng = np.random.default_rng(0)
    embedding = [0.5] * 512 if lists else np.zeros(512, np.float32)
    step = {"reward": 0.5, "is_first": False, "action": {"a": np.zeros(7, np.float32)}, "instruction": "pick up"}
    steps = [
        {**step, "observation": {"image": {"bytes": rng.bytes(15_000)}, "embedding": embedding}}
        for _ in range(size(full=60, small=2))
    ]
    data = pickle.dumps({"steps": steps}, 4)

    took = compare({"pickle": lambda: pickle.loads(data), "ours": lambda: pickles.load(data)}, rounds=9, repeat=2)
    expect("a pickled episode, of the library's time", took["ours"] / took["pickle"], at_most=50)


def test_parquet_is_read_about_as_fast_as_by_pyarrow(tmp_path, size, compare, expect):
    rng, rows = np.random.default_rng(0), size(full=200_000, small=100)
    state = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=rows * 17)), 17)
    parquet.write_table(pa.table({"reward": rng.normal(size=rows), "state": state}), tmp_path / "x")

    def ours():
        with TableFile(tmp_path / "x") as file:
            for _ in file.blocks(["reward", "state"], rows=20_000):
                pass

    took = compare({"pyarrow": lambda: parquet.read_table(tmp_path / "x"), "ours": ours}, rounds=7, repeat=1)
    expect("parquet, of the time of pyarrow", took["ours"] / took["pyarrow"], at_most=3)
