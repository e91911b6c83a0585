"""Stores of zarr as files of the user: the values of every codec, replay buffers, and stores that are damaged."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from layouts_zarr import BLOSC, CODECS, pack, write_store
from PIL import Image

import datasets_rl
from datasets_rl import download
from datasets_rl.errors import ConversionError, DatasetsRLError, MissingDependencyError
from datasets_rl.read.zarr_store import ZarrStore
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.local.files import describe_files, draft_description

tensorstore = pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")

PAGE = Path(datasets_rl.__file__).parents[1] / "docs" / "sources" / "local.md"
ROWS = 50
DRAW = np.random.default_rng(10)
VALUES = DRAW.normal(size=(ROWS, 3)).astype(np.float32)
ACTION = DRAW.normal(size=(ROWS, 2)).astype(np.float32)
IMAGES = DRAW.integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)
ENDS = np.array([20, 35, ROWS])
BUFFER = {"data/state": VALUES, "data/action": ACTION, "meta/episode_ends": ENDS}


@pytest.fixture
def buffer(tmp_path):
    return write_store(tmp_path / "buffer.zarr", BUFFER)


def read(path, name):
    file = (
        path
        if path.is_file()
        else next(path / marker for marker in (".zgroup", "zarr.json") if (path / marker).exists())
    )
    with open_arrays(file, "zarr", "a") as arrays:
        return np.concatenate([*arrays.blocks(name, 7)])


def changed(path, **members):
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


VERSION_2 = {
    "none": None,
    **{f"blosc {name}": {**BLOSC, "cname": name} for name in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")},
    "zlib": {"id": "zlib", "level": 1},
    "bz2": {"id": "bz2", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
}
BYTES = CODECS[0]
VERSION_3 = {
    "none": [BYTES],
    "zstd": CODECS,
    "gzip": [BYTES, {"name": "gzip", "configuration": {"level": 5}}],
    "blosc": [
        BYTES,
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
        },
    ],
    "checksums": [*CODECS, {"name": "crc32c"}],
    "transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, *CODECS],
    "shards": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 1], "codecs": CODECS}}],
}


@pytest.mark.parametrize("name", VERSION_2)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_arrays_of_version_2_have_the_values_that_were_written(tmp_path, name, kind):
    path = write_store(tmp_path / "a.zarr", {"x": VALUES}, chunks={"x": [16, 2]}, compressor=VERSION_2[name])
    path = path if kind == "folder" else pack(path, tmp_path / "a.zarr.zip")

    np.testing.assert_array_equal(read(path, "x"), VALUES)


@pytest.mark.parametrize("name", VERSION_3)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_arrays_of_version_3_have_the_values_that_were_written(tmp_path, name, kind):
    path = write_store(tmp_path / "a.zarr", {"x": VALUES}, 3, {"x": [16, 3]}, codecs=VERSION_3[name])
    path = path if kind == "folder" else pack(path, tmp_path / "a.zarr.zip", "a.zarr/")

    np.testing.assert_array_equal(read(path, "x"), VALUES)


def test_zstd_with_the_member_of_newer_versions_of_numcodecs_is_read(tmp_path):
    path = write_store(tmp_path / "a.zarr", {"x": VALUES}, compressor={"id": "zstd", "level": 1})
    changed(path / "x" / ".zarray", compressor={"id": "zstd", "level": 1, "checksum": False})

    np.testing.assert_array_equal(read(path, "x"), VALUES)


@pytest.mark.parametrize("dtype", [">f8", "<f2", "|b1", "|i1", ">i4", "<i8", "|u1", "<u2"])
def test_every_dtype_is_read_in_the_byte_order_of_this_machine(tmp_path, dtype):
    values = (VALUES * 9).astype(dtype) if dtype[1] != "b" else VALUES > 0
    path = write_store(tmp_path / "a.zarr", {"x": values})

    found = read(path, "x")

    np.testing.assert_array_equal(found, values)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


def test_a_replay_buffer_of_diffusion_policy_is_read_with_its_images_and_its_ends(tmp_path, stored):
    arrays = {
        **BUFFER,
        "data/img": IMAGES.astype(np.float32),
        "data/keypoint": np.repeat(VALUES[:, None, :2], 9, 1),
        "data/n_contacts": VALUES[:, :1],
    }

    dataset = stored(write_store(tmp_path / "pusht.zarr", arrays, chunks={"data/img": [16, 8, 6, 3]}))

    assert dataset.episodes.lengths.tolist() == [20, 15, 15]
    for key, name in {
        ("action",): "data/action",
        ("observation", "state"): "data/state",
        ("observation", "img"): "data/img",
        ("observation", "keypoint"): "data/keypoint",
        ("info", "n_contacts"): "data/n_contacts",
    }.items():
        np.testing.assert_array_equal(dataset.column(key), arrays[name])
    assert {decision.rule: decision.count for decision in dataset.manifest.decisions}["no-reward"] == ROWS


def umi_arrays():
    return {
        "data/camera0_rgb": IMAGES,
        "data/robot0_eef_pos": VALUES,
        "data/robot0_eef_rot_axis_angle": VALUES[:, ::-1],
        "data/robot0_gripper_width": VALUES[:, :1],
        "data/robot0_demo_end_pose": np.repeat(VALUES, 2, 1).astype(np.float64),
        "meta/episode_ends": ENDS,
    }


def test_a_replay_buffer_of_umi_is_asked_for_its_actions_and_read_with_the_answer(tmp_path, stored, refused):
    folder = tmp_path / "umi"
    folder.mkdir()
    packed = pack(write_store(tmp_path / "aside.zarr", umi_arrays()), folder / "umi.zarr.zip")
    asked = refused(packed)
    section = PAGE.read_text("utf-8").partition("\n## Stores of zarr")[2]
    (folder / "dataset.toml").write_text(re.search(r"```toml\n(.*?)```", section, re.DOTALL)[1])

    dataset = stored(folder)

    assert "which array is the action?" in asked
    assert 'by = "file"' not in draft_description(packed).text
    assert dataset.episodes.lengths.tolist() == [20, 15, 15]
    for part in ("action", "observation"):
        np.testing.assert_array_equal(dataset.column((part, "pos")), VALUES)
        np.testing.assert_array_equal(dataset.column((part, "rot")), VALUES[:, ::-1])
        np.testing.assert_array_equal(dataset.column((part, "width")), VALUES[:, :1])
    np.testing.assert_array_equal(dataset.column(("observation", "image")), IMAGES)
    assert ("info", "robot0_demo_end_pose") in {field.key for field in dataset.schema}


def encoded_store(folder, images, codec, encode):
    """Write a store in which each chunk of data/image is an image file."""
    path = write_store(folder, {**BUFFER, "data/image": images}, chunks={"data/image": [1, *images.shape[1:]]})
    changed(path / "data" / "image" / ".zarray", compressor={"id": codec, "level": 50})
    for row, image in enumerate(images):
        place = path / "data" / "image" / ".".join(map(str, [row, *[0] * (images.ndim - 1)]))
        place.write_bytes(encode(image))
    return path


def by_pillow(form, **options):
    def encode(image):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, form, **options)
        return stream.getvalue()

    return encode


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize(
    "images", [IMAGES, IMAGES[..., :1], IMAGES[..., 0]], ids=["color", "gray with an axis", "gray"]
)
def test_images_in_jpeg_2000_are_decoded(tmp_path, stored, kind, images):
    encode = by_pillow("JPEG2000", irreversible=False)
    path = encoded_store(tmp_path / "a.zarr", images, "imagecodecs_jpeg2k", lambda image: encode(image.squeeze()))
    path = path if kind == "folder" else pack(path, tmp_path / "a.zarr.zip")

    np.testing.assert_array_equal(stored(path).column(("observation", "image")), images)


@pytest.mark.parametrize(("codec", "form", "most"), [("imagecodecs_png", "PNG", 0), ("imagecodecs_jpeg", "JPEG", 60)])
def test_images_in_png_and_jpeg_are_decoded(tmp_path, codec, form, most):
    smooth = np.linspace(0, 255, 64 * 64 * 3).reshape(1, 64, 64, 3).astype(np.uint8).repeat(ROWS, 0)
    path = encoded_store(tmp_path / "a.zarr", smooth, codec, by_pillow(form))

    assert np.abs(read(path, "data/image").astype(int) - smooth).max() <= most


def test_images_in_jpeg_xl_are_decoded(tmp_path):
    imagecodecs = pytest.importorskip("imagecodecs", reason="pip install imagecodecs")
    path = encoded_store(tmp_path / "a.zarr", IMAGES, "imagecodecs_jpegxl", imagecodecs.jpegxl_encode)

    np.testing.assert_array_equal(read(path, "data/image"), IMAGES)

    (path / "data" / "image" / "3.0.0.0").write_bytes(imagecodecs.jpegxl_encode(IMAGES[0])[:-9])
    with pytest.raises(ConversionError, match=r"data/image/3\.0\.0\.0 cannot be decoded"):
        read(path, "data/image")


def test_without_imagecodecs_the_extra_for_jpeg_xl_is_named(tmp_path, monkeypatch, settings):
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path = encoded_store(tmp_path / "a.zarr", IMAGES, "imagecodecs_jpegxl", lambda image: image.tobytes())

    with pytest.raises(MissingDependencyError, match=r"datasets-rl\[jpegxl\]"):
        download(str(path), settings=settings)


def test_without_tensorstore_the_extra_is_named(buffer, monkeypatch, settings):
    monkeypatch.setitem(sys.modules, "tensorstore", None)

    with pytest.raises(MissingDependencyError, match=r"datasets-rl\[zarr\]"):
        download(str(buffer), settings=settings)


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (by_pillow("JPEG2000")(IMAGES[0])[:60], "cannot be decoded"),
        (b"", "cannot be decoded"),
        (by_pillow("PNG")(IMAGES[0]), "cannot be decoded"),
        (by_pillow("JPEG2000")(IMAGES[0, :, :5]), r"is an image of \[8, 5, 3\], expected \[8, 6, 3\]"),
        (by_pillow("JPEG2000")(IMAGES[0, ..., 0].astype(np.uint16)), "is an image of"),
    ],
)
def test_a_damaged_image_is_named(tmp_path, image, problem):
    path = encoded_store(tmp_path / "a.zarr", IMAGES, "imagecodecs_jpeg2k", by_pillow("JPEG2000"))
    (path / "data" / "image" / "3.0.0.0").write_bytes(image)

    with pytest.raises(ConversionError, match=rf"data/image/3\.0\.0\.0 {problem}"):
        read(path, "data/image")


@pytest.mark.parametrize("version", [2, 3])
def test_a_missing_chunk_of_vectors_is_refused_with_its_rows(tmp_path, refused, version):
    path = write_store(tmp_path / "a.zarr", BUFFER, version)
    (path / "data" / "action" / ("2.0" if version == 2 else "c/2/0")).unlink()

    text = refused(path)

    assert "data/action lacks 1 of 13 chunks, the first of rows 8 to 11" in text
    assert "root['data/action'] = root['data/action'][:]" in text


@pytest.mark.parametrize("name", ["data/action", "data/state"])
def test_a_missing_chunk_of_single_actions_and_states_is_refused(tmp_path, refused, name):
    path = write_store(tmp_path / "a.zarr", {**BUFFER, name: ACTION[:, 0]})
    (path / name / "2").unlink()

    assert f"{name} lacks 1 of 13 chunks" in refused(path)


def test_a_group_that_is_a_link_is_not_followed_and_a_chunk_that_is_a_link_to_nothing_is_missing(buffer, refused):
    (buffer / "data").rename(buffer.parent / "outside")
    (buffer / "data").symlink_to(buffer.parent / "outside")

    assert "which array is the action?" in refused(buffer)

    (buffer / "data").unlink()
    (buffer.parent / "outside").rename(buffer / "data")
    (buffer / "data" / "state" / "1.0").unlink()
    (buffer / "data" / "state" / "1.0").symlink_to("nowhere")
    assert "data/state lacks 1 of 13 chunks" in refused(buffer)


def test_missing_chunks_of_numbers_are_fill_values_and_counted(tmp_path, stored):
    reward = np.zeros((ROWS, 1), np.float32)
    reward[-1] = 1

    dataset = stored(write_store(tmp_path / "a.zarr", {**BUFFER, "data/reward": reward}, 3, every=False))

    np.testing.assert_array_equal(dataset.column(("next", "reward")), reward)
    assert {decision.rule: decision.count for decision in dataset.manifest.decisions}["unwritten-chunks"] == 12


def test_a_replay_buffer_without_its_ends_is_refused_and_not_a_single_episode(buffer, refused, stored):
    shutil.rmtree(buffer / "meta")

    assert "it has no array meta/episode_ends, which marks the episodes of such files" in refused(buffer)

    (buffer / "dataset.toml").write_text('[episodes]\nby = "file"')
    assert stored(buffer).episodes.lengths.tolist() == [ROWS]


def test_a_missing_chunk_of_the_ends_is_refused(buffer, refused):
    (buffer / "meta" / "episode_ends" / "0").unlink()

    assert "meta/episode_ends" in refused(buffer)


DAMAGES = {
    "a chunk without a fill value": (
        lambda path: [(path / "data/action/2.0").unlink(), changed(path / "data/action/.zarray", fill_value=None)],
        "data/action lacks 1 chunks, and no fill value is stated",
    ),
    "a truncated chunk": (
        lambda path: (path / "data/action/2.0").write_bytes((path / "data/action/2.0").read_bytes()[:-3]),
        "data/action rows",
    ),
    "an empty chunk": (lambda path: (path / "data/action/2.0").write_bytes(b""), "data/action rows"),
    "a chunk that states other bytes": (
        lambda path: (path / "data/action/2.0").write_bytes(
            b"\2\1\x21\4" + (1 << 30).to_bytes(4, "little") + bytes(40)
        ),
        "data/action/2.0 declares 1,073,741,824 bytes, expected at most 32",
    ),
    "a chunk of many bytes": (
        lambda path: (path / "data/action/2.0").write_bytes(bytes(2 << 20)),
        "data/action has the chunk data/action/2.0 of 2,097,152 bytes",
    ),
    "a shape of 10^12 rows": (
        lambda path: changed(path / "data/action/.zarray", shape=[10**12, 2]),
        "data/action lacks 249,999,999,987 of 250,000,000,000 chunks, the first of rows 52 to 55",
    ),
    "every shape of 10^12 rows": (
        lambda path: [
            changed(path / f"data/{name}/.zarray", shape=[10**12, width])
            for name, width in (("action", 2), ("state", 3))
        ],
        "data/state lacks 249,999,999,987 of 250,000,000,000 chunks",
    ),
    "a shape with fewer rows": (
        lambda path: changed(path / "data/action/.zarray", shape=[40, 2]),
        "data/action is [40, 2] by its metadata, and has 3 chunks beyond that shape",
    ),
    "chunks that are too large": (
        lambda path: changed(path / "data/action/.zarray", chunks=[1 << 40, 2]),
        "data/action has chunks of 8,796,093,022,208 bytes, expected at most 268,435,456",
    ),
    "lost metadata of an array": (
        lambda path: (path / "data/action/.zarray").unlink(),
        "data/action has 13 chunks and neither .zarray nor zarr.json",
    ),
    "an array that the store lists": (
        lambda path: [
            shutil.rmtree(path / "data/action"),
            (path / ".zmetadata").write_text(json.dumps({"metadata": {"data/action/.zarray": {}}})),
        ],
        "data/action is listed in the metadata of the store, but has no metadata itself",
    ),
    "metadata without JSON": (
        lambda path: (path / "data/action/.zarray").write_text("{"),
        "data/action/.zarray does not describe an array: it is not JSON",
    ),
    "metadata in git-LFS": (
        lambda path: (path / "data/action/.zarray").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "data/action/.zarray does not describe an array: it is a pointer of git-LFS",
    ),
    "metadata of another kind": (
        lambda path: changed(path / "data/action/.zarray", shape="many"),
        "shape is 'many', expected a list of numbers",
    ),
    "chunks of no row": (
        lambda path: changed(path / "data/action/.zarray", chunks=[0, 2]),
        "chunks [0, 2] do not fit to the shape [50, 2]",
    ),
    "a filter": (
        lambda path: changed(path / "data/action/.zarray", filters=[{"id": "delta", "dtype": "<f4"}]),
        "data/action is compressed by delta, which has no reader here; write the array again with zarr",
    ),
    "an unknown compressor": (
        lambda path: changed(path / "data/action/.zarray", compressor={"id": "lz4"}),
        "data/action is compressed by lz4",
    ),
    "ends beyond the rows": (
        lambda path: write_store(path, {"meta/episode_ends": ENDS + 1}),
        "meta/episode_ends is int64 [3], expected the ends or last-rows of episodes of 50 rows",
    ),
    "an array of other rows": (
        lambda path: [shutil.rmtree(path / "data/action"), write_store(path, {"data/action": ACTION[:-1]})],
        "meta/episode_ends",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_store_is_refused_with_its_array(buffer, refused, name):
    damage, problem = DAMAGES[name]
    if name == "ends beyond the rows":
        shutil.rmtree(buffer / "meta" / "episode_ends")
    damage(buffer)

    assert problem in refused(buffer)


def test_a_flipped_bit_in_a_zip_file_is_found_by_the_checksum(tmp_path, refused):
    path = pack(write_store(tmp_path / "a.zarr", BUFFER, compressor=None), tmp_path / "a.zarr.zip")
    data = bytearray(path.read_bytes())
    data[data.index(ACTION[:4].tobytes()) + 5] ^= 1
    path.write_bytes(data)

    assert "the checksum is wrong" in refused(path)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["../x/.zarray"], "the path '../x/.zarray' leads out of the archive"),
        (["/x/.zarray"], "the path '/x/.zarray' leads out of the archive"),
        (["a\\..\\x"], "leads out of the archive"),
        (["a.zarr/.zgroup", "b.zarr/.zgroup"], "the archive has the stores a.zarr, b.zarr, expected one"),
        (["readme.txt"], "the archive has the stores none, expected one store of zarr"),
    ],
)
def test_a_zip_file_with_other_paths_is_refused(tmp_path, refused, names, problem):
    path = tmp_path / "a.zarr.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, '{"zarr_format": 2}')

    assert problem in refused(path)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_zip_file_with_several_versions_of_a_file_is_refused_with_the_way_out(buffer, tmp_path, refused):
    path = pack(buffer, tmp_path / "a.zarr.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("data/action/0.0", b"newer")

    text = refused(path)

    assert "data/action/0.0 is duplicated" in text
    assert "run `unzip -o a.zarr.zip`, which keeps the last of such files, and give the folder" in text


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_zip_file_to_which_zarr_appended_attributes_is_read(buffer, tmp_path, stored):
    path = pack(buffer, tmp_path / "a.zarr.zip")
    with zipfile.ZipFile(path, "a") as archive:
        for attributes in ("{}", '{"fps": 10}'):
            archive.writestr(".zattrs", attributes)
        archive.writestr(".zgroup", '{"zarr_format": 2}')

    np.testing.assert_array_equal(stored(path).column(("observation",)), VALUES)


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("compressor", [BLOSC, None], ids=["blosc", "none"])
def test_ranges_of_rows_in_any_order_have_their_values(tmp_path, kind, compressor):
    path = write_store(tmp_path / "a.zarr", {"x": VALUES, "y": -VALUES}, chunks={"x": [7, 2]}, compressor=compressor)
    path = path if kind == "folder" else pack(path, tmp_path / "a.zarr.zip")

    with ZarrStore(path, "a") as store:
        for start, stop in np.sort(DRAW.integers(0, ROWS, (40, 2))):
            np.testing.assert_array_equal(store.read("x", start, stop), VALUES[start:stop])
            np.testing.assert_array_equal(store.read("y", start, stop), -VALUES[start:stop])


def test_a_compressed_zip_file_is_read(buffer, tmp_path, stored):
    path = tmp_path / "a.zarr.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(buffer.rglob("*")):
            archive.write(file, f"buffer.zarr/{file.relative_to(buffer).as_posix()}")

    np.testing.assert_array_equal(stored(path).column(("observation",)), VALUES)


def test_a_truncated_zip_file_is_refused(buffer, tmp_path, refused):
    path = pack(buffer, tmp_path / "a.zarr.zip")
    path.write_bytes(path.read_bytes()[:-100])

    assert "the directory, at the end of the file, is damaged or truncated" in refused(path)


def test_a_zip_file_of_another_name_is_recognized_and_read_by_its_new_name(buffer, tmp_path, refused, stored):
    path = pack(buffer, tmp_path / "pusht.zip", "pusht/buffer.zarr/")

    assert "pusht.zip is a zip file with a store of zarr; give the file a name that ends with .zarr.zip" in refused(
        path
    )
    assert stored(path.rename(tmp_path / "pusht.zarr.zip")).episodes.lengths.tolist() == [20, 15, 15]


@pytest.mark.parametrize("is_marked", [True, False])
def test_the_group_of_a_store_is_refused_because_the_ends_are_outside(buffer, refused, is_marked):
    if not is_marked:
        (buffer / ".zgroup").unlink()

    assert "the folder is a group of the store buffer.zarr; give the store, buffer.zarr" in refused(buffer / "data")


def test_a_store_whose_root_lost_its_metadata_is_refused(buffer, refused):
    (buffer / ".zgroup").unlink()

    assert "is a group of the store buffer.zarr" in refused(buffer)


def test_chunks_without_any_metadata_are_named(buffer, refused):
    for path in [*buffer.rglob(".z*")]:
        path.unlink()

    text = refused(buffer)

    assert "data/action/0.0 is a chunk of zarr whose metadata" in text
    assert "copy the whole folder of the store, with hidden files" in text


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_in_a_tar_archive_is_refused_with_the_way_out(tmp_path, refused, version):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(write_store(tmp_path / "a.zarr", BUFFER, version), "a.zarr")

    assert "unpack the archive, and give the folder" in refused(tmp_path / "a.tar")


def test_a_single_array_is_refused(buffer, refused):
    shutil.copytree(buffer / "data" / "action", buffer.parent / "alone.zarr")

    assert "it is a single array, expected a group of arrays" in refused(buffer.parent / "alone.zarr")


def test_an_array_of_an_unknown_name_is_asked_for(tmp_path, refused):
    path = write_store(tmp_path / "a.zarr", {**BUFFER, "data/cost_to_go": VALUES[:, 0]})

    assert "which fields are data/cost_to_go?" in refused(path)


def test_texts_and_objects_are_left_out(tmp_path, stored):
    path = write_store(tmp_path / "a.zarr", BUFFER)
    shutil.copytree(path / "meta" / "episode_ends", path / "meta" / "names")
    changed(path / "meta" / "names" / ".zarray", dtype="|O", filters=[{"id": "vlen-utf8"}], fill_value=0)

    assert stored(path).episodes.lengths.tolist() == [20, 15, 15]


def test_the_stores_of_a_folder_are_read_in_numeric_order(tmp_path, stored):
    folder = tmp_path / "runs"
    for number in (10, 2):
        write_store(folder / f"run{number}.zarr", {**BUFFER, "data/state": VALUES + number})

    dataset = stored(folder)
    found = describe_files(folder)

    assert dataset.episodes.lengths.tolist() == [20, 15, 15] * 2
    np.testing.assert_array_equal(dataset.column(("observation",)), np.concatenate([VALUES + 2, VALUES + 10]))
    assert (found.files, found.first) == (2, "run2.zarr")


def test_a_description_selects_a_store_by_its_name(tmp_path, stored):
    folder = tmp_path / "runs"
    for number in (2, 10):
        write_store(folder / f"run{number}.zarr", {**BUFFER, "data/state": VALUES + number})
    (folder / "dataset.toml").write_text('files = "run10.zarr"')

    np.testing.assert_array_equal(stored(folder).column(("observation",)), VALUES + 10)


def test_files_that_are_not_of_zarr_are_refused_with_a_message(tmp_path):
    (tmp_path / "a.zarr.zip").write_bytes(b"PK\3\4 and nothing")
    with pytest.raises(DatasetsRLError, match="damaged or truncated"):
        open_arrays(tmp_path / "a.zarr.zip", "zarr", "a.zarr.zip")
