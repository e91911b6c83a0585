"""What the audit of the images of two cameras costs: beside a pass that only decodes the images, and in memory."""

from __future__ import annotations

import time

import bench_data
import numpy as np
import pytest
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl import audit
from datasets_rl.auditing.checks import CHECKS
from datasets_rl.format.images.encoded import encode
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.ted.episode import EncodedImages

SIDE, LENGTH = 96, 200
CAMERAS = [("observation", camera) for camera in ("front", "wrist")]


def filmed(joint, camera):
    """Return JPEG images of a disc that follows a joint, before a background, with the noise of a sensor."""
    rng = np.random.default_rng(camera)
    background = np.kron(rng.integers(60, 190, (8, 8, 3)), np.ones((12, 12, 1)))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    images = np.empty((len(joint), SIDE, SIDE, 3), np.uint8)
    for number, angle in enumerate(joint):
        near = (rows - 48 - 20 * angle) ** 2 + (columns - 48 - 30 * angle * (-1) ** camera) ** 2 < 64
        image = np.where(near[..., None], (240, 120, 40), background) + rng.integers(-3, 4, background.shape)
        images[number] = image.clip(0, 255)
    return EncodedImages(encode(images, 90))


@pytest.fixture(scope="module")
def folder(session_path, size):
    """A dataset of 100,000 images of two cameras, as JPEG, and a moving state."""
    episodes = []
    for number in range(size(full=250, small=8)):
        rng, length = np.random.default_rng(number), size(full=LENGTH, small=12)
        knots = np.linspace(0, length, 16)
        joint = np.interp(np.arange(length + 1), knots, rng.uniform(-1, 1, 16))
        last = (np.arange(length) == length - 1)[:, None]
        steps = {
            ("action",): np.diff(joint)[:, None].astype(np.float32),
            ("next", "reward"): last.astype(np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        }
        state = (joint[:, None] + rng.normal(0, 0.002, (length + 1, 6))).astype(np.float32)
        images = {key: filmed(joint, camera) for camera, key in enumerate(CAMERAS)}
        episodes.append(Trajectory(steps, {("observation", "state"): state, **images}))
    columns = [
        *(Column(key, np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form="encoded") for key in CAMERAS),
        Column(("observation", "state"), np.dtype(np.float32), (6,), shared=True),
        Column(("action",), np.dtype(np.float32), (1,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    return write_dataset(session_path / "filmed", episodes, columns).folder


def test_an_audit_of_images_beside_decoding_them_once(folder, size, full, expect):
    """By the time of the processors, because both use all cores."""
    stored = StoredDataset(folder)

    def decode():
        for key in CAMERAS:
            for start in range(0, len(stored), 800):
                assert stored.items(key)[start : start + 800].any()

    taken = {"audit": [], "decode": []}
    for _ in range(size(full=3, small=1)):
        for name, call in {"audit": lambda: audit(folder), "decode": decode}.items():
            started = time.process_time()
            call()
            taken[name].append(time.process_time() - started)
    print({name: f"{min(values):.2f} s" for name, values in taken.items()})

    # 1.0 to 1.1 measured with one thread of OpenBLAS, and 1.5 with two on a machine with a load of 28.
    expect("an audit, of the time of decoding each image once", min(taken["audit"]) / min(taken["decode"]), at_most=1.5)
    assert not full or set(audit(folder).checked) >= {name for name in CHECKS if "image" in name}


def grown(folder):
    """Return the megabytes by which a process grows in an audit, after an audit of the states alone, which loads numba."""
    audit(folder, checks=["outliers"])
    idle = bench_data.peak()
    audit(folder)
    return bench_data.peak() - idle


def test_an_audit_of_images_takes_bounded_memory(folder, expect_exactly, run_in_child):
    expect_exactly("MB over the idle process", run_in_child(grown, folder), at_most=300)
