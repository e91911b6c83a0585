"""Frames of videos in preprocessing, merges and recordings: passed through without decoding, or pixels once they change."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from raw.lerobot import LENGTHS, NEW, draw, write_new
from torch.utils.data import DataLoader
from upstreams import publishing

from datasets_rl import LeRobotExperienceReplay, Selection, append_episodes, download, downloading, load, push, verify
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.check import check_rules
from datasets_rl.format.images import video as video_images
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.progress import Report
from datasets_rl.read import video
from datasets_rl.settings import Settings

pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
VIDEO = {"images": "video"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The same dataset as videos and as pixels."""
    folder = tmp_path_factory.mktemp("home")
    write_new(folder / "tree", [draw(length, seed) for seed, length in enumerate(LENGTHS)], sc_threshold="0")
    for images in ("video", "raw"):
        downloading.download(
            f"lerobot/{NEW}",
            from_local=folder / "tree",
            root=folder / images,
            settings=Settings(home=folder, progress=False),
            selection=Selection(options={"images": images}),
        )
    return folder


@pytest.fixture
def stored(home):
    return StoredDataset(home / "video" / NEW)


@pytest.fixture
def pixels(home):
    return np.asarray(StoredDataset(home / "raw" / NEW).column(TOP))


def strict(folder):
    """Return a dataset after checking all of its rules and digests."""
    result = StoredDataset(folder)
    assert check_files(result.folder, Report()) == []
    assert check_rules(result.schema, result.episodes, result.column).problems == []
    return result


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, 2])
def test_unchanged_frames_are_not_decoded_and_share_the_files(home, stored, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(video_images, "decode_pixels", None)
    recipe = Recipe.inline(["keep_lengths:5", "reward_scaling:scale=2", "rename:observation.image.top,camera"])

    result = StoredDataset(preprocess(home / "video" / NEW, recipe, out=tmp_path / "out", jobs=jobs, num_parts=3))

    monkeypatch.undo()
    assert result.schema["camera",].video
    kept = np.repeat(np.asarray(LENGTHS) >= 5, LENGTHS)
    assert np.array_equal(result.column(("camera",)), stored.column(TOP)[kept])
    files = {path.name: path.stat().st_ino for path in (result.folder / "videos").iterdir()}
    assert files == {path.name: path.stat().st_ino for path in (stored.folder / "videos").iterdir()}
    assert strict(result.folder)


@pytest.mark.parametrize(
    ("step", "form"),
    [("keep_steps:1:3", "video"), ("resize:32", "raw"), ("compress_images", "compressed"), ("frame_skip:2", "video")],
)
def test_every_step_gives_the_frames_that_it_gives_for_pixels(home, tmp_path, step, form):
    one, two = (
        strict(preprocess(home / images / NEW, Recipe.inline([step]), out=tmp_path / images, jobs=1))
        for images in ("video", "raw")
    )

    assert one.schema[TOP].form == form
    assert np.array_equal(one.column(TOP), two.column(TOP))


def test_merged_videos_are_stored_once(home, tmp_path, pixels):
    part = preprocess(home / "video" / NEW, Recipe.inline(["keep_lengths:5"]), out=tmp_path / "part", jobs=1)

    both = strict(preprocess([home / "video" / NEW, part], Recipe.inline([]), out=tmp_path / "both", jobs=1))
    mixed = strict(preprocess([home / "raw" / NEW, part], Recipe.inline([]), out=tmp_path / "mixed", jobs=1))

    kept = pixels[np.repeat(np.asarray(LENGTHS) >= 5, LENGTHS)]
    assert np.array_equal(both.column(TOP), np.concatenate([pixels, kept]))
    assert np.array_equal(mixed.column(TOP), np.concatenate([pixels, kept]))
    assert len([*(both.folder / "videos").iterdir()]) == 2
    assert (both.schema[TOP].form, mixed.schema[TOP].form) == ("video", "raw")


def test_a_recording_cannot_have_videos(home, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))

    with pytest.raises(InvalidArgumentError, match="which a recording cannot have") as caught:
        append_episodes("local/mine", str(home / "video" / NEW))
    assert "compress_images" in str(caught.value.hint)


def test_videos_are_published_downloaded_and_not_streamed(home, stored, tmp_path, monkeypatch):
    with publishing(tmp_path / "hub") as (server, there):
        for name, value in {"HF_ENDPOINT": server.url, "HF_TOKEN": there.token, "RLDS_NO_PROGRESS": "1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False, raising=False)
        monkeypatch.setattr("datasets_rl.format.chunks.CHUNK_BYTES", 5000)
        push(home / "video" / NEW, "hf://me/arm")

        copy = StoredDataset(download("hf://me/arm"))
        with pytest.raises(InvalidArgumentError, match="cannot be streamed: the images of observation"):
            load("hf://me/arm", streaming=True)

    assert verify("hf/me/arm", deep=True).problems == ()
    assert np.array_equal(copy.column(TOP), stored.column(TOP))


@pytest.mark.slow
def test_threads_and_forked_workers_decode_at_once(home, stored, pixels):
    rng = np.random.default_rng(0)
    items = stored.items(TOP)
    asked = [rng.integers(0, len(stored), 40) for _ in range(16)]

    with ThreadPoolExecutor(4) as pool:
        for rows, taken in zip(asked, pool.map(items.take, asked), strict=True):
            assert np.array_equal(taken, pixels[rows])
    busy = threading.Thread(target=lambda: [items.take(rows) for rows in asked * 4])
    busy.start()
    with multiprocessing.get_context("fork").Pool(2, initializer=_limit_threads) as workers:
        for rows, taken in zip(asked, workers.map(_Take(home / "video" / NEW), asked), strict=True):
            assert np.array_equal(taken, pixels[rows])
    busy.join()


def _limit_threads() -> None:
    torch.set_num_threads(1)


class _Take:
    """Takes images in another process."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def __call__(self, rows):
        return StoredDataset(self.folder).items(TOP).take(rows)


@pytest.mark.slow
def test_a_data_loader_with_workers_has_the_same_frames(home, pixels):
    dataset = LeRobotExperienceReplay(NEW, root=home / "video", batch_size=16)
    workers = DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context="fork")

    seen = list(workers)

    assert np.array_equal(torch.cat([batch[TOP] for batch in seen]).numpy(), pixels)


def test_a_batch_decodes_each_frame_once_and_each_group_in_one_pass(stored, monkeypatch):
    runs = []
    real = video._decode_run

    def counted(one, start, wanted, positions, keep):
        runs.append((one.name, start, wanted.tolist()))
        real(one, start, wanted, positions, keep)

    monkeypatch.setattr(video, "_decode_run", counted)
    monkeypatch.setattr(video, "run_on_all_cores", lambda work, count, _: work(0, count))

    stored.items(TOP).take(np.array([0, 1, 1, 2, 3, 5, 0, 8]))

    # A key frame every second frame: 4 is decoded on the way to 5, without a gap after 3; 8 is another run.
    assert [(start, wanted) for _, start, wanted in runs] == [(0, [0, 1, 2, 3, 5]), (8, [8])]


def test_a_reader_of_a_deleted_version_says_so(home, tmp_path):
    result = StoredDataset(
        preprocess(home / "video" / NEW, Recipe.inline(["keep_lengths:5"]), out=tmp_path / "out", jobs=1)
    )
    for path in (result.folder / "videos").iterdir():
        path.unlink()

    with pytest.raises(IntegrityError, match="the file is missing: another version replaced the opened version"):
        result.column(TOP)
