"""What batches of a robot with three cameras cost: beside decoding image by image, beside LeRobot, and in memory."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import bench_data
import numpy as np
import pytest
import torch
from PIL import Image
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl import LeRobotExperienceReplay, Selection, downloading, load
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.settings import Settings
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.transforms import WindowTransform

CAMERAS = ("top", "left", "wrist")
KEYS = [("observation", camera) for camera in CAMERAS]
SIDE, CHUNK, BATCH, FPS = 224, 16, 64, 20
FORMS = ("raw", "encoded", "compressed")
NAME = "me/cameras"


def camera_frames(episode, camera, count, *, noisy):
    """Return images of a disc that moves over a smooth background, uint8 [n, 224, 224, 3], as of a camera if `noisy`."""
    rng = np.random.default_rng([episode, camera])
    small = np.random.default_rng(camera).integers(30, 220, (15, 15, 3)).astype(np.uint8)
    frames = np.repeat(
        np.asarray(Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC))[None], count, 0
    )
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for frame, (row, column) in zip(frames, 112 + rng.normal(0, 3, (count, 2)).cumsum(0), strict=True):
        frame[(rows - row) ** 2 + (columns - column) ** 2 < 400] = (240, 120, 40)
    noise = rng.integers(-3, 4, frames.shape, np.int8) if noisy else np.int16(0)
    return (frames + noise.astype(np.int16)).clip(0, 255).astype(np.uint8)


def jpeg(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def files():
    """The JPEG images of each camera, in the order of the rows; filled by `folders`."""
    return {key: [] for key in KEYS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, size, files):
    """A dataset of 2,000 steps in each form: camera images as JPEG, rendered images as pixels and compressed."""
    episodes, length = size(full=20, small=2), size(full=100, small=10)
    last = (np.arange(length) == length - 1)[:, None]
    steps = {
        ("action",): np.zeros((length, 14), np.float32),
        ("next", "reward"): np.zeros((length, 1), np.float32),
        ("next", "terminated"): last,
        ("next", "truncated"): np.zeros_like(last),
    }
    narrow = [
        Column(("action",), np.dtype(np.float32), (14,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    pixels = {
        noisy: [
            {key: camera_frames(number, camera, length + 1, noisy=noisy) for camera, key in enumerate(KEYS)}
            for number in range(episodes)
        ]
        for noisy in (False, True)
    }
    images = [{key: [jpeg(frame) for frame in frames] for key, frames in one.items()} for one in pixels[True]]
    for key in KEYS:
        files[key] += [image for one in images for image in one[key][:-1]]
    states = {
        "raw": pixels[False],
        "compressed": pixels[False],
        "encoded": [{key: EncodedImages(found) for key, found in one.items()} for one in images],
    }
    dictionaries = {
        key: FrameDictionary.train(np.concatenate([one[key][::10] for one in pixels[False]])) for key in KEYS
    }
    found = {}
    for form in FORMS:
        cameras = [Column(key, np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True) for key in KEYS]
        found[form] = tmp_path_factory.mktemp(form)
        write_dataset(
            found[form],
            [Trajectory(steps, one) for one in states[form]],
            [*(camera if form == "raw" else replace(camera, form=form) for camera in cameras), *narrow],
            dictionaries if form == "compressed" else None,
        )
    return found


def opened(folder, batch):
    """The dataset with chunks of actions."""
    act = WindowTransform.act(CHUNK)
    return load(folder, batch_size=batch, transform=act).select(["observation", "action"])


@pytest.fixture(scope="module", autouse=True)
def no_cache():
    """Decode every image: of a large dataset, a cache has few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_IMAGE_CACHE", "0")
        yield


def printed(took, batch):
    print(", ".join(f"{name} {batch / seconds:,.0f} samples/s" for name, seconds in took.items()))


def test_jpeg_images_beside_decoding_one_after_the_other(folders, files, size, compare, expect):
    """As a dataset of items, and the collation of a batch, do with pillow."""
    batch = size(full=BATCH, small=4)
    dataset = opened(folders["encoded"], batch)

    def item(row):
        return [torch.from_numpy(np.array(Image.open(io.BytesIO(files[key][row])))).permute(2, 0, 1) for key in KEYS]

    def one_by_one():
        return torch.utils.data.default_collate([item(row) for row in torch.randint(len(dataset), (batch,)).tolist()])

    took = compare({"ours": dataset.sample, "one by one": one_by_one}, rounds=15, repeat=1)

    printed(took, batch)
    expect("samples/s of JPEG images over decoding one by one", took["one by one"] / took["ours"], at_least=1.5)


def test_pixels_beside_torch(folders, size, compare, expect):
    batch = size(full=BATCH, small=4)
    dataset = opened(folders["raw"], batch)
    columns = [dataset.storage.column(key) for key in KEYS]

    def by_torch():
        rows = torch.randint(len(dataset), (batch,))
        return [column.index_select(0, rows) for column in columns]

    took = compare({"ours": dataset.sample, "torch": by_torch}, rounds=40, repeat=1)

    printed(took, batch)
    expect("a batch of pixels, in times torch's copy of the images alone", took["ours"] / took["torch"], at_most=1.5)


def test_compressed_images_beside_pixels(folders, size, compare, expect):
    """Rendered images, which compress well."""
    batch = size(full=BATCH, small=4)
    datasets = {form: opened(folders[form], batch).sample for form in ("raw", "compressed")}

    took = compare(datasets, rounds=40, repeat=1)

    printed(took, batch)
    expect("a batch of compressed images, in times pixels", took["compressed"] / took["raw"], at_most=2)


def grown(folder, batch, batches):
    """MB over the idle process of some batches, with a cache of the default size."""
    dataset = opened(folder, batch)
    idle = bench_data.peak()
    for _ in range(batches):
        dataset.sample()
    return bench_data.peak() - idle


@pytest.mark.parametrize("form", ["encoded", "compressed"])
def test_batches_take_bounded_memory(folders, form, size, expect_exactly, run_in_child, monkeypatch):
    """Not of pixels, which are pages of the file."""
    monkeypatch.delenv("RLDS_IMAGE_CACHE")
    megabytes = run_in_child(grown, folders[form], size(full=BATCH, small=4), size(full=100, small=2))

    expect_exactly(f"MB of {form} over the idle process", megabytes, at_most=400)


def test_jpeg_images_beside_lerobot(tmp_path, size, expect):
    """Three videos, as LeRobot writes and reads them by default, and their frames as JPEG: the same frames.

    Both decode in several threads, so that the processors' time is what other programs do not change.
    """
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="pip install lerobot[dataset]", exc_type=ImportError
    )
    episodes, length = size(full=6, small=1), size(full=100, small=20)
    names = [f"observation.images.{camera}" for camera in CAMERAS]
    features = {name: {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["h", "w", "c"]} for name in names}
    features["action"] = {"dtype": "float32", "shape": (14,), "names": None}
    written = lerobot.LeRobotDataset.create(NAME, FPS, features, root=tmp_path / "theirs")
    for episode in range(episodes):
        frames = [camera_frames(episode, camera, length, noisy=True) for camera in range(len(CAMERAS))]
        for step in range(length):
            images = {name: images[step] for name, images in zip(names, frames, strict=True)}
            written.add_frame({**images, "action": np.zeros(14, np.float32), "task": "go"})
        written.save_episode()
    written.finalize()
    chunk = {"action": [step / FPS for step in range(CHUNK)]}
    theirs = lerobot.LeRobotDataset(NAME, root=tmp_path / "theirs", delta_timestamps=chunk, return_uint8=True)
    settings = Settings(home=tmp_path / "ours", progress=False)
    wanted = Selection(options={"images": "encoded"})
    downloading.download(f"lerobot/{NAME}", from_local=tmp_path / "theirs", settings=settings, selection=wanted)
    ours = LeRobotExperienceReplay(
        NAME, root=settings.home / "lerobot", batch_size=BATCH, delta_timestamps=chunk, final_unknown="keep"
    ).select(["observation", "action"])
    items = size(full=16, small=1)

    def collated():
        rows = torch.randint(len(theirs), (items,)).tolist()
        return torch.utils.data.default_collate([theirs[row] for row in rows])

    took = {"ours": [], "theirs": []}
    for _ in range(size(full=10, small=1)):
        for name, call in (("ours", ours.sample), ("theirs", collated)):
            start, used = time.perf_counter(), time.process_time()
            call()
            took[name].append((time.process_time() - used, time.perf_counter() - start))

    (our_processors, our_seconds), (their_processors, their_seconds) = (
        map(min, zip(*took[name], strict=True)) for name in took
    )
    print(f"ours {BATCH / our_seconds:,.0f} samples/s, LeRobot {items / their_seconds:,.0f} samples/s")
    ratio = (their_processors / items) / (our_processors / BATCH)
    expect("seconds of the processors of a sample of LeRobot, in times ours", ratio, at_least=10)
