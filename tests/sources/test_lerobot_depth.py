"""LeRobot's depths and language columns, in datasets that lerobot 0.6.1 wrote, with the values that it reads itself."""

from __future__ import annotations

import json
import multiprocessing
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from exports import equal_bits, export_stored
from pyarrow import parquet
from raw import make_lerobot_depth as made

from datasets_rl import Selection, downloading, verify
from datasets_rl.errors import ConversionError
from datasets_rl.exporting import Content, plan_export, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.read.depth import Depth
from datasets_rl.settings import Settings

av = pytest.importorskip("av", reason="pip install av")
KEYS = {name: ("observation", "image", name.rpartition(".")[2]) for name in made.DEPTHS}
MILLIMETERS, METERS = made.DEPTHS


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(Path(made.__file__).with_name("lerobot-0.6.1.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def convert(folder):
    """A function that converts a folder, and returns the dataset."""

    def run(kind, **options):
        settings = Settings(home=folder / "home", progress=False)
        found = downloading.download(
            "lerobot/me/depth",
            from_local=folder / kind,
            settings=settings,
            selection=Selection(options=options),
            force=True,
        )
        assert verify(found, deep=True, settings=settings).problems == ()
        return StoredDataset(found)

    return run


def edit(folder, kind, change):
    path = folder / kind / "meta/info.json"
    document = json.loads(path.read_text())
    for name in made.DEPTHS:
        change(document["features"][name])
    path.write_text(json.dumps(document))


def rules(stored):
    return {decision.rule: decision.text for decision in stored.manifest.decisions}


@pytest.mark.parametrize("kind", ["video", "image"])
@pytest.mark.parametrize("images", ["", "raw"])
def test_depths_are_those_that_lerobot_reads_in_the_unit_of_their_feature(convert, folder, kind, images):
    stored = convert(kind, **({"images": images} if images else {}))
    read = np.load(folder / f"{kind}.npz")

    millimeters, meters = (stored.column(KEYS[name])[..., 0] for name in (MILLIMETERS, METERS))

    assert millimeters.dtype == (np.int16 if kind == "video" else np.int32)
    off = np.abs(millimeters - read[f"mm/{MILLIMETERS}"])
    assert off.max() <= (kind == "video")  # at codes where the exponential functions of numpy and torch differ
    assert np.count_nonzero(off) <= off.size / 1000
    assert meters.dtype == np.float32
    assert np.allclose(meters, read[f"m/{METERS}"], rtol=0, atol=3e-6)
    given = np.stack([made.depth_of(MILLIMETERS, row) for length in made.LENGTHS for row in range(length)])[..., 0]
    seen = (given > 10) & (given < 10_000)
    assert np.abs(millimeters - given.astype(int))[seen].max() <= (2 if kind == "video" else 0)  # 13.5 m in 4,095 parts
    assert stored.manifest.metadata["units"] == {".".join(KEYS[MILLIMETERS]): "mm", ".".join(KEYS[METERS]): "m"}
    text = rules(stored)[f"depth {MILLIMETERS}"]
    assert ("codes of 12 bits" in text) == (kind == "video")
    assert "millimeters" in text


def test_a_linear_law_and_a_feature_without_a_law(convert, folder):
    stored = convert("video")
    meters = stored.column(KEYS[METERS]).astype(float).ravel()
    codes = np.log((meters + 3.5) / 3.51) / np.log(13.5 / 3.51) * 4095
    assert np.abs(codes - np.rint(codes)).max() < 0.01

    edit(folder, "video", lambda one: one["info"].update({"video.use_log": False, "video.depth_max": 40.0}))
    linear = convert("video")

    assert linear.column(KEYS[MILLIMETERS]).dtype == np.int32  # 40 meters are more than 16 bits of millimeters
    assert np.allclose(linear.column(KEYS[METERS]).ravel(), 0.01 + np.rint(codes) / 4095 * 39.99, rtol=1e-6, atol=0)
    law = ("video.depth_min", "video.depth_max", "video.shift", "video.use_log", "depth_unit")
    edit(folder, "video", lambda one: [one["info"].pop(name) for name in law])
    without = convert("video").column(KEYS[METERS])
    assert np.abs(without.ravel() - meters * 1000).max() <= 0.51  # the law and the unit of LeRobot's reader


def write_png_videos(folder):
    """Replace the videos by such of PNG images of 16 bits, and return their values."""
    values = np.stack([made.depth_of(MILLIMETERS, row)[..., 0] for row in range(4)] * 2)[: sum(made.LENGTHS)]
    for name in made.DEPTHS:
        path = next((folder / "video/videos" / name).rglob("*.mp4"))
        with av.open(str(path), "w", format="mov") as out:
            stream = out.add_stream("png", made.FPS)
            stream.height, stream.width, stream.pix_fmt = *made.SIZE, "gray16be"
            for depth in values:
                out.mux(stream.encode(av.VideoFrame.from_ndarray(depth, "gray16le").reformat(format="gray16be")))
            out.mux(stream.encode(None))

    def set_info(one):
        one["info"] = {"video.is_depth_map": True, "video.pix_fmt": "gray16be"}

    edit(folder, "video", set_info)
    return values


def test_values_of_16_bits_without_a_law_are_as_they_are(convert, folder):
    values = write_png_videos(folder)

    stored = convert("video")

    assert np.array_equal(stored.column(KEYS[MILLIMETERS])[..., 0], values)


@pytest.mark.parametrize("change", [{"depth_unit": "feet"}, {"video.depth_max": 0.0}, {"video.shift": -1.0}])
def test_a_law_that_is_none_is_refused(convert, folder, change):
    edit(folder, "video", lambda one: one["info"].update(change))

    with pytest.raises(ConversionError, match=r"observation\.images\.depth: "):
        convert("video")


def test_depths_of_8_bits_are_the_pixels_of_their_video(convert, folder):
    edit(folder, "video", lambda one: one["info"].update({"video.pix_fmt": "yuv420p"}))

    stored = convert("video")

    assert stored.schema[KEYS[MILLIMETERS]].dtype == np.uint8
    assert stored.schema[KEYS[MILLIMETERS]].shape == (*made.SIZE, 1)


def test_a_damaged_depth_image_is_named(convert, folder):
    path = next((folder / "image/data").rglob("*.parquet"))
    table = parquet.read_table(path)
    images = table[METERS].to_pylist()
    images[1]["bytes"] = images[1]["bytes"][:40]
    images[2]["bytes"] = table[MILLIMETERS][2]["bytes"].as_py()
    at = table.column_names.index(METERS)
    parquet.write_table(table.set_column(at, METERS, pa.array(images, table[METERS].type)), path)

    with pytest.raises(ConversionError) as caught:
        convert("image")
    text = str(caught.value)
    assert "observation.image.far: image 1 " in text
    assert "image 2 is [16, 32] of mode I;16, expected [16, 32] of float32" in text


def test_language_is_json_text_with_the_rows_that_lerobot_wrote(convert):
    stored = convert("video")

    for name, rows_of in (
        ("language_persistent", lambda episode, _: made.persistent_of(episode)),
        ("language_events", made.events_of),
    ):
        texts, codes = stored.texts((name,)), stored.column((name,))
        got = [json.loads(texts[code]) for code in codes]
        wanted = [rows_of(episode, row) for episode, length in enumerate(made.LENGTHS) for row in range(length)]
        assert got == [[{key: one for key, one in row.items() if one is not None} for row in rows] for rows in wanted]
        assert len(texts) <= 4


def test_depths_and_language_come_back_from_an_export(convert, folder):
    stored = convert("video")
    export_stored(stored, "lerobot", folder / "out", lossy=False)

    back = convert("out")

    equal_bits(stored, back)
    info = json.loads((folder / "out/meta/info.json").read_text())
    assert info["features"]["language_events"] == {"dtype": "language", "shape": [1], "names": None}


def export_as_videos(stored, folder):
    run_export(Content(stored, images="video"), "lerobot", folder, lossy=True, show=False)
    return json.loads((folder / "meta/info.json").read_text())["features"]


def test_depths_come_back_from_an_export_of_images_within_a_step_of_their_codes(convert, folder):
    """TIFF images are exact, so that only the export makes codes of them."""
    stored = convert("image")

    features = export_as_videos(stored, folder / "out")
    back = convert("out")

    for name, unit in ((MILLIMETERS, 1000), (METERS, 1)):
        given, got = (one.column(KEYS[name]).astype(np.float64) / unit for one in (stored, back))
        inside = given.clip(0.01, 10)
        # Half of the distance of two codes there, 3.51 m to 13.5 m times log(13.5 / 3.51) / 4095, and half a millimeter.
        step = (inside + 3.5) * np.log(13.5 / 3.51) / 4095
        assert (np.abs(got - inside) <= step / 2 * 1.001 + (unit == 1000) * 0.0005).all()
        written = features[name]
        assert (written["dtype"], written["shape"]) == ("video", [*made.SIZE, 1])
        lerobots = {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5, "video.use_log": True}
        lerobots |= {"is_depth_map": True, "video.codec": "hevc", "video.pix_fmt": "gray12le", "video.fps": made.FPS}
        assert lerobots.items() <= written["info"].items()
        assert written["info"]["depth_unit"] == ("mm" if unit == 1000 else "m")
    stats = json.loads((folder / "out/meta/stats.json").read_text())[METERS]
    assert np.shape(stats["mean"]) == (1, 1, 1)
    assert stats["max"][0][0][0] == pytest.approx(float(stored.column(KEYS[METERS]).max()))
    assert back.manifest.metadata["units"] == stored.manifest.metadata["units"]


@pytest.mark.parametrize("law", [{}, {"video.use_log": False, "video.depth_max": 40.0}, {"video.shift": 0.5}])
def test_codes_come_back_from_an_export_unchanged(convert, folder, law):
    edit(folder, "video", lambda one: one["info"].update(law))
    stored = convert("video")

    export_as_videos(stored, folder / "out")

    equal_bits(stored, convert("out"))


def test_an_export_states_what_it_does_to_depths(convert):
    plan = plan_export(Content(convert("image"), images="video"), "lerobot")

    assert any(
        loss
        == "observation.image.far: each depth becomes the nearest of 4,096 between 0.01 and 10 m, 1.2 to 4.4 mm apart"
        for loss in plan.losses
    )


def test_a_depth_that_is_not_a_number_or_out_of_range_gets_the_nearest_code():
    depth = Depth("m", "gray12le")

    codes = depth.codes(np.array([[np.nan, -np.inf, 0.0, 0.01, 10.0, np.inf]], np.float32))

    assert codes.tolist() == [[0, 0, 0, 0, 4095, 4095]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_that_is_forked_after_videos_were_decoded_starts(convert, folder):
    """FFmpeg's decoders have threads that the forked process does not have, and wait for them when they are released."""
    write_png_videos(folder)
    convert("video")
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(30)

    assert child.exitcode == 0
