"""What videos cost: frames of random batches and the conversion, beside a sequential pass of PyAV, and beside LeRobot."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from raw.lerobot import FPS, draw, write_new

from datasets_rl import LeRobotExperienceReplay, Selection, downloading
from datasets_rl.settings import Settings

av = pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
NAME = "me/bench"
WINDOW = {"observation.image.top": [-0.1, 0.0], "action": [step / FPS for step in range(16)]}


@pytest.fixture(scope="module")
def lengths(size):
    return [size(full=200, small=6)] * size(full=10, small=2)


@pytest.fixture(scope="module")
def upstream(session_path, lengths, size):
    """Episodes with AV1 videos of 480 x 640 and a key frame every second frame, as LeRobot writes them."""
    folder = session_path / "lerobot"
    shape = size(full=(480, 640, 3), small=(64, 96, 3))
    drawn = [draw(length, seed, shape) for seed, length in enumerate(lengths)]
    write_new(folder, drawn, codec="libsvtav1", crf="30", preset="12", threads="0", per_video=5)
    return folder


@pytest.fixture(scope="module")
def convert(session_path, upstream):
    """A function that converts the folder anew, without its images in tables."""

    def run(images, jobs=1, **options):
        settings = Settings(home=session_path / images, progress=False, jobs=jobs)
        keys = ("observation.image.top", "observation.state", "action")
        wanted = Selection(keys=keys, options={"images": images, **options})
        downloading.download(f"lerobot/{NAME}", from_local=upstream, settings=settings, selection=wanted, force=True)
        return LeRobotExperienceReplay(NAME, root=settings.home / "lerobot", batch_size=64, delta_timestamps=WINDOW)

    return run


@pytest.fixture(scope="module")
def stored(convert, size):
    small = size(full="224", small="32")
    return {"video": convert("video"), "encoded": convert("encoded", **{"image-size": small})}


@pytest.fixture(scope="module")
def files(upstream):
    return sorted((upstream / "videos" / CAMERA).rglob("*.mp4"))


def decode_all(files):
    """Decode every frame in a single pass and thread."""
    count = 0
    for path in files:
        with av.open(str(path)) as container:
            container.streams.video[0].thread_count = 1
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")
                count += 1
    return count


def decode_frame(path, seconds):
    """Decode a frame as LeRobot's reader without torchcodec does: open the file, and search the frame."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(int(seconds / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.time >= seconds - 1e-4:
                return frame.to_ndarray(format="rgb24")
    raise AssertionError(f"{path} has no frame at {seconds} s")


@pytest.mark.parametrize("form", ["video", "encoded"])
def test_random_frames_beside_one_sequential_pass(stored, files, form, compare, expect):
    """Two frames and a chunk of actions, 64 times: frames a second of a batch over those of the pass."""
    dataset = stored[form]
    shape = dataset.sample()[TOP].shape
    frames = shape[0] * shape[1]
    count = decode_all(files)

    taken = compare({"batch": dataset.sample, "pass": lambda: decode_all(files)}, rounds=5, repeat=1)

    rates = {"batch": frames / taken["batch"], "pass": count / taken["pass"]}
    print(f"{form}: {rates['batch']:,.0f} random frames/s; one pass: {rates['pass']:,.0f} frames/s")
    least = {"video": 0.5, "encoded": 2}[form]
    expect(f"frames/s of {form} over one sequential pass", rates["batch"] / rates["pass"], at_least=least)


@pytest.mark.parametrize("form", ["video", "encoded"])
def test_random_frames_beside_opening_the_file_for_each(stored, files, form, compare, expect, size):
    dataset = stored[form]
    shape = dataset.sample()[TOP].shape
    items = size(full=64, small=2)
    seconds = np.random.default_rng(0).integers(1, size(full=200, small=6), items) / FPS

    def open_each():
        for second in seconds.tolist():
            decode_frame(files[0], second - 1 / FPS)
            decode_frame(files[0], second)

    taken = compare({"batch": dataset.sample, "open": open_each}, rounds=5, repeat=1)

    ratio = (taken["open"] / items) / (taken["batch"] / shape[0])
    expect(f"items/s of {form} over opening the file for each", ratio, at_least={"video": 2, "encoded": 5}[form])


def test_transcoding_beside_one_sequential_pass(convert, files, compare, expect, size):
    options = {"image-size": size(full="224", small="32")}

    taken = compare(
        {"convert": lambda: convert("encoded", **options), "pass": lambda: decode_all(files)}, rounds=3, repeat=1
    )

    expect("transcoding over one sequential pass", taken["convert"] / taken["pass"], at_most=1)


def seconds_on_cores(cores, upstream, home, size):
    """Return the seconds that a conversion to JPEG takes on some cores."""
    wanted = Selection(keys=("observation.image.top",), options={"images": "encoded", "image-size": size})
    settings = Settings(home=Path(home), progress=False, jobs=1)
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:cores])
    try:
        start = time.perf_counter()
        downloading.download(
            f"lerobot/{NAME}", from_local=Path(upstream), settings=settings, selection=wanted, force=True
        )
        return time.perf_counter() - start
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not limit cores")
def test_transcoding_on_two_cores_beside_one(upstream, tmp_path, run_in_child, expect, size, full):
    if full and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    rounds, form = size(full=3, small=1), size(full="224", small="32")
    taken = {cores: [] for cores in (1, 2)}
    for _ in range(rounds):
        for cores, found in taken.items():
            found.append(run_in_child(seconds_on_cores, cores, str(upstream), str(tmp_path / f"{cores}"), form))

    expect("time of transcoding on one core over that on two", min(taken[1]) / min(taken[2]), at_least=1.5)


def test_items_beside_lerobot(stored, upstream, compare, expect, size):
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="pip install lerobot", exc_type=ImportError
    )
    windows = {CAMERA: [-0.1, 0.0], "action": WINDOW["action"]}
    theirs = lerobot.LeRobotDataset(NAME, root=upstream, delta_timestamps=windows, video_backend="pyav")
    items = size(full=16, small=1)
    rows = torch.randint(0, len(theirs), (items,)).tolist()

    taken = compare(
        {"ours": stored["video"].sample, "theirs": lambda: [theirs[row] for row in rows]}, rounds=3, repeat=1
    )

    expect("items/s over LeRobot's", taken["theirs"] / items / (taken["ours"] / 64), at_least=2)
