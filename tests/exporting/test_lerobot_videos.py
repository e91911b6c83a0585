"""LeRobot datasets with videos: stored files unchanged, images encoded, and what the source `lerobot` reads again."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import pandas as pd
import pytest
from exports import equal_bits, export_stored, write_robot
from raw.lerobot import LENGTHS, LOSS, draw, write_new, write_old
from stored_data import columns, trajectory, write_dataset

from datasets_rl import Selection, downloading
from datasets_rl.errors import InvalidArgumentError, LossyExportError, MissingDependencyError
from datasets_rl.exporting import Content, plan_export, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.settings import Settings

av = pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
FILE = "chunk-000/file-000"


@pytest.fixture(scope="module")
def drawn():
    return [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings(home=tmp_path_factory.mktemp("home"), progress=False)


@pytest.fixture(scope="module")
def read(settings):
    """A function that reads a folder as a dataset of the source `lerobot`."""

    def run(folder, name, **options):
        wanted = Selection(options=options)
        return StoredDataset(
            downloading.download(f"lerobot/me/{name}", from_local=folder, settings=settings, selection=wanted)
        )

    return run


@pytest.fixture(scope="module")
def upstream(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("upstream")
    write_new(folder, drawn)
    return folder


@pytest.fixture(scope="module")
def stored(read, upstream):
    return read(upstream, "stored", images="video")


def digests(folder):
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.mp4")}


def test_stored_videos_are_the_same_files_and_everything_comes_back(stored, upstream, read, tmp_path):
    out = run_export(Content(stored), "lerobot", tmp_path / "out", show=False)

    assert digests(out) == digests(upstream)
    table, again = (pd.read_parquet(next((one / "meta/episodes").rglob("*.parquet"))) for one in (upstream, out))
    for name in ("from_timestamp", "to_timestamp"):
        assert np.allclose(again[f"videos/{CAMERA}/{name}"], table[f"videos/{CAMERA}/{name}"], rtol=0, atol=1e-9)
    equal_bits(stored, read(out, "back", images="video"))
    assert json.loads((out / "meta/info.json").read_text())["robot_type"] == "so100"


@pytest.mark.parametrize("version", ["2.1", "one selected episode"])
def test_videos_of_one_episode_each_and_parts_of_videos_are_kept(version, drawn, read, stored, tmp_path):
    if version == "2.1":
        write_old(tmp_path / "old", drawn)
        made = read(tmp_path / "old", "old", images="video")
        content, lengths = Content(made), LENGTHS
    else:
        content, lengths = Content(stored, episodes=np.array([1, 3])), (LENGTHS[1], LENGTHS[3])
    out = run_export(content, "lerobot", tmp_path / "out", lossy=True, show=False)  # tasks are numbered again

    back = read(out, f"back-{version[0]}", images="video")

    assert back.episodes.lengths.tolist() == list(lengths)
    rows = np.flatnonzero(np.isin(content.stored.episodes.episode_of(np.arange(len(content.stored))), content.episodes))
    assert np.array_equal(back.items(TOP)[:], content.stored.items(TOP).take(rows))
    assert len(digests(out)) == (len(LENGTHS) if version == "2.1" else 2)


def test_frames_at_other_times_become_images_without_loss(stored, tmp_path, read):
    """At another frame rate, no video fits an episode."""
    out = run_export(Content(stored, fps=20), "lerobot", tmp_path / "faster", lossy=True, show=False)
    assert json.loads((out / "meta/info.json").read_text())["features"][CAMERA]["dtype"] == "image"
    assert digests(out) == set()

    back = read(out, "faster")
    assert np.array_equal(back.items(TOP)[:], stored.items(TOP)[:])


@pytest.mark.parametrize("form", ["raw", "png", "compressed"])
def test_images_are_encoded_if_asked_and_the_loss_is_named_before(form, tmp_path, read):
    robot = write_robot(tmp_path / "robot", form=form)
    content = Content(robot, images="video")

    with pytest.raises(LossyExportError) as caught:
        run_export(content, "lerobot", tmp_path / "out", show=False)
    assert "observation.camera: the images are encoded as videos, with a loss" in caught.value.losses
    assert not (tmp_path / "out").exists()
    out = run_export(content, "lerobot", tmp_path / "out", lossy=True, show=False)

    path = out / f"videos/observation.images.camera/{FILE}.mp4"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.codec.canonical_name in {"av1", "h264"}
        assert stream.pix_fmt == "yuv420p"
        keys = [packet.is_keyframe for packet in container.demux(stream) if packet.size]
    assert keys == [True, False] * 6
    back = read(out, f"encoded-{form}", images="raw")
    assert back.episodes.lengths.tolist() == [4, 3, 5]
    assert np.array_equal(back.column(("action",)), robot.column(("action",)))
    assert not any(decision.rule.startswith("video-of-episode") for decision in back.manifest.decisions)


@pytest.mark.parametrize("fps", [12.5, 0.3333])
def test_encoded_frames_are_near_the_images(tmp_path, read, monkeypatch, fps):
    """Episodes of several files, an odd number of frames in each, and a rate that is not an integer."""
    monkeypatch.setattr("datasets_rl.exporting.videos._FILE_SECONDS", 3.75 / fps)
    image = Column(("observation", "image"), np.dtype(np.uint8), (64, 96, 3), shared=True)
    kept = [column for column in columns() if column.key != ("observation",)]
    frames = draw(20).top
    ones = [trajectory(length, known=False) for length in (5, 3, 12)]
    starts = (0, 5, 8)
    episodes = [
        type(one)(one.steps, {image.key: frames[start : start + length]})
        for one, start, length in zip(ones, starts, (5, 3, 12), strict=True)
    ]
    stored = write_dataset(tmp_path / "stored", episodes, [*kept, image], metadata={"fps": fps})

    out = run_export(Content(stored, images="video"), "lerobot", tmp_path / "out", lossy=True, show=False)

    table = pd.read_parquet(out / "meta" / "episodes" / f"{FILE}.parquet")
    assert table["videos/observation.image/file_index"].tolist() == [0, 1, 1]
    assert np.allclose(table["videos/observation.image/from_timestamp"], [0, 0, 3 / fps])
    back = read(out, f"near-{fps}", images="raw")
    assert np.abs(back.column(("observation", "image")).astype(int) - frames).max() <= LOSS


def test_only_images_of_three_channels_and_even_sides_become_videos(tmp_path):
    sizes = {"gray": (32, 32, 1), "alpha": (32, 32, 4), "odd": (31, 32, 3), "even": (32, 32, 3)}
    cameras = [Column(("observation", name), np.dtype(np.uint8), shape, shared=True) for name, shape in sizes.items()]
    kept = [column for column in columns() if column.key != ("observation",)]
    one = trajectory(2)
    states = {column.key: np.zeros((3, *column.shape), np.uint8) for column in cameras}
    stored = write_dataset(tmp_path / "stored", [type(one)(one.steps, states)], [*kept, *cameras])

    out = export_stored(stored, "lerobot", tmp_path / "images")
    videos = run_export(Content(stored, images="video"), "lerobot", tmp_path / "videos", lossy=True, show=False)

    for folder, kinds in ((out, {"image"}), (videos, {"image", "video"})):
        features = json.loads((folder / "meta/info.json").read_text())["features"]
        found = {name.rpartition(".")[2]: feature["dtype"] for name, feature in features.items() if "images" in name}
        assert set(found.values()) == kinds
        assert found["even"] == ("video" if "video" in kinds else "image")


def test_the_choice_is_part_of_the_export_and_of_no_other_format(stored, tmp_path):
    encoded = run_export(Content(stored, images="encoded"), "lerobot", tmp_path / "out", show=False)

    features = json.loads((encoded / "meta/info.json").read_text())["features"]
    assert features[CAMERA]["dtype"] == "image"
    with pytest.raises(InvalidArgumentError, match="out is not replaced: it exists"):
        run_export(Content(stored), "lerobot", tmp_path / "out", show=False)
    with pytest.raises(InvalidArgumentError, match="images is 'raw', expected encoded or video"):
        plan_export(Content(stored, images="raw"), "lerobot")
    with pytest.raises(InvalidArgumentError, match="images is 'video': the format npz has a single form of images"):
        plan_export(Content(stored, images="video"), "npz")


def test_the_estimate_counts_the_files_of_videos(stored, tmp_path):
    plan = plan_export(Content(stored), "lerobot", tmp_path / "out")
    out = run_export(Content(stored), "lerobot", tmp_path / "out", show=False)

    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert size / 3 < plan.bytes < size * 3
    assert plan_export(Content(stored, images="encoded"), "lerobot", tmp_path / "out").bytes > 3 * plan.bytes


def test_without_pyav_images_are_exported_and_the_message_names_the_extra(tmp_path, monkeypatch):
    robot = write_robot(tmp_path / "robot")
    monkeypatch.setitem(sys.modules, "av", None)

    export_stored(robot, "lerobot", tmp_path / "images")

    with pytest.raises(MissingDependencyError, match="video"):
        plan_export(Content(robot, images="video"), "lerobot")
