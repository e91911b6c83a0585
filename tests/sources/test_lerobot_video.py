"""LeRobot's videos that stay videos: the files, exact frames, and what each client of a dataset makes of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from raw.lerobot import LENGTHS, NEW, OLD, draw, write_new, write_old

from datasets_rl import LeRobotExperienceReplay, Selection, downloading, verify
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.format.reader import StoredDataset

av = pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
FILE = "chunk-000/file-000"
VIDEO = {"images": "video"}


@pytest.fixture
def drawn():
    return [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def convert(folder, settings):
    """A function that converts the files in the folder, and returns the dataset."""

    def run(name=NEW, *, options=VIDEO, **selection):
        wanted = Selection(options=options, **selection)
        made = downloading.download(
            f"lerobot/{name}", from_local=folder, settings=settings, selection=wanted, force=True
        )
        assert verify(made, deep=True, settings=settings).problems == ()
        return StoredDataset(made)

    return run


@pytest.mark.parametrize("write", [write_old, write_new])
def test_the_files_are_those_of_the_upstream(convert, folder, drawn, write):
    write(folder, drawn)

    stored = convert()

    assert stored.schema[TOP].form == "video"
    kept = {hashlib.sha256(path.read_bytes()).digest() for path in (stored.folder / "videos").iterdir()}
    assert kept == {hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*.mp4")}
    assert "frames of videos" in stored.manifest.images["observation.image.top"]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "options",
    [
        {"crf": "20", "sc_threshold": "0"},
        {"crf": "20", "sc_threshold": "0", "g": "7", "bf": "3"},
        {"crf": "20", "sc_threshold": "0", "g": "7", "bf": "3", "x264-params": "open-gop=1"},
        {"codec": "libsvtav1", "crf": "30", "preset": "12", "threads": "0"},
    ],
)
def test_frames_are_equal_to_those_that_raw_decodes(convert, folder, drawn, options, monkeypatch):
    write_new(folder, drawn, per_video=5, **options)
    raw = convert(options={"images": "raw"})
    expected = np.asarray(raw.items(TOP))
    with av.open(str(folder / f"videos/{CAMERA}/{FILE}.mp4")) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert np.array_equal(expected, frames)
    monkeypatch.setattr("datasets_rl.sources.lerobot._SHARD_BYTES", 1)

    stored = convert()

    rng = np.random.default_rng(0)
    assert np.array_equal(stored.items(TOP)[:], expected)
    for _ in range(20):
        rows = rng.integers(0, len(stored), rng.integers(1, 40))
        assert np.array_equal(stored.items(TOP).take(rows), expected[rows])
    assert len([*(stored.folder / "videos").iterdir()]) == 1


def test_batches_have_the_same_frames(convert, folder, drawn, settings):
    write_new(folder, drawn)
    raw = convert(options={"images": "raw"})
    pixels = np.asarray(raw.items(TOP)).copy()
    stored = convert()

    dataset = LeRobotExperienceReplay(NEW, root=settings.home / "lerobot", batch_size=64)

    batch = dataset.sample()
    rows = batch["index"].numpy()
    assert np.array_equal(batch[TOP].numpy(), pixels[rows])
    last = stored.episodes.stops[stored.episodes.episode_of(rows)] - 1 == rows
    following = np.where(last[:, None, None, None], 0, pixels[np.minimum(rows + 1, len(pixels) - 1)])
    assert np.array_equal(batch["next"][TOP].numpy(), following)


@pytest.mark.first(1)
@pytest.mark.parametrize("images", ["video", "encoded", "raw"])
def test_a_frame_that_cannot_be_decoded_costs_its_episode(convert, folder, drawn, images, monkeypatch):
    write_old(folder, drawn, codec="libsvtav1", crf="30", preset="12", threads="0")
    path = folder / f"videos/chunk-001/{CAMERA}/episode_000003.mp4"
    damage_frame(path, 7)

    for limit in (1 << 28, 1):
        monkeypatch.setattr("datasets_rl.sources.lerobot.reader._EPISODE_BYTES", limit)
        stored = convert(OLD, options={"images": images})

        assert stored.episodes["source"].tolist() == [0, 1, 2, 4]
        decisions = {decision.rule: decision.text for decision in stored.manifest.decisions}
        text = decisions["video-of-episode-3"]
        assert text.startswith(f"episode 3 was left out: episode_000003.mp4 of {CAMERA}: the frame at 0.")
    for path in (folder / "videos").rglob("*.mp4"):
        damage_frame(path, 0)
    with pytest.raises(ConversionError, match="episode 0 was left out"):
        convert(OLD, options={"images": images})


def damage_frame(path: Path, number: int) -> None:
    """Overwrite the bytes of the packet of a frame."""
    with av.open(str(path)) as container:
        packet = [one for one in container.demux(video=0) if one.size][number]
        place, size = packet.pos, packet.size
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"\xff" * size)


def test_damaged_videos_are_found(convert, folder, drawn, settings):
    write_new(folder, drawn)
    stored = convert()
    path = next((stored.folder / "videos").iterdir())
    data = bytearray(path.read_bytes())

    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    flipped = verify(stored.folder, settings=settings).problems
    path.write_bytes(data[:-100])
    truncated = verify(stored.folder, settings=settings).problems

    assert any(f"videos/{path.name} has the digest" in problem for problem in flipped)
    assert any(f"videos/{path.name} is {len(data) - 100:,} bytes" in problem for problem in truncated)


def test_videos_keep_their_size(convert, folder, drawn):
    write_old(folder, drawn)

    with pytest.raises(InvalidArgumentError, match="videos that stay videos keep the size"):
        convert(OLD, options={"images": "video", "image-size": "32"})


def test_without_videos_there_are_none_to_keep(convert, folder, drawn):
    write_old(folder, drawn, video=False)

    with pytest.raises(ConversionError, match="images are to stay videos, but the source has none"):
        convert(OLD)


def test_fields_without_cameras_are_selected_where_images_stay_videos(convert, folder, drawn):
    write_new(folder, drawn)

    stored = convert(keys=("action",))

    assert np.array_equal(stored.column(("action",)), np.concatenate([one.action for one in drawn]))
    assert TOP not in stored.schema
    assert not (stored.folder / "videos").exists()


@pytest.mark.usefixtures("warm_python")
def test_a_dry_run_shows_the_bytes_and_the_time_of_each_form(folder, drawn, settings):
    write_new(folder, drawn)
    command = [sys.executable, "-m", "datasets_rl.cli", "--root", str(settings.home), "download", f"lerobot/{NEW}"]
    command += ["--from-local", str(folder), "--images", "video", "--dry-run"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    lines = {line.partition("--images ")[2] for line in done.stdout.splitlines() if "--images" in line}
    assert {line.split()[0] for line in lines if "a core reads the images of a step in about" in line} == {
        "encoded",
        "raw",
        "compressed",
        "video",
    }
