"""A dataset with damaged images is verified to its end."""

from dataclasses import replace

import numpy as np
from stored_data import Trajectory, columns, write_dataset

from datasets_rl import verify
from datasets_rl.format.digests import digest_of_ranges, range_digests
from datasets_rl.format.manifest import DIGESTS_FILE
from datasets_rl.format.schema import Column
from datasets_rl.progress import Report
from datasets_rl.read.compressed_frames import FrameDictionary

CAMERA = ("camera",)
STEPS = 40


def test_damaged_images_are_counted_and_listed_with_all_other_problems(tmp_path):
    last = (np.arange(STEPS) == STEPS - 1)[:, None]
    steps = {
        ("action",): np.zeros((STEPS, 2), np.float32),
        ("next", "reward"): np.ones((STEPS, 1), np.float32),
        ("next", "terminated"): last,
        ("next", "truncated"): np.zeros_like(last),
        CAMERA: np.arange(STEPS, dtype=np.uint8).repeat(64 * 64).reshape(STEPS, 64, 64),
    }
    fields = [Column(CAMERA, np.dtype(np.uint8), (64, 64), form="compressed")]
    fields += [column for column in columns() if column.key != ("observation",)]
    stored = write_dataset(tmp_path, [Trajectory(steps, {})], fields, {CAMERA: FrameDictionary()})
    ends, data = np.load(tmp_path / "camera.ends.npy"), np.load(tmp_path / "camera.npy")
    data[ends[[11, 30]]] ^= 255
    np.save(tmp_path / "camera.npy", data)
    digest = digest_of_ranges(range_digests(tmp_path / "camera.npy", Report()))
    files = [
        replace(file, digest=digest) if file.path == "camera.npy" else file
        for file in stored.manifest.files
        if file.path != DIGESTS_FILE
    ]
    (tmp_path / DIGESTS_FILE).unlink()
    statistics = {
        **stored.manifest.statistics,
        "next.reward": {**stored.manifest.statistics["next.reward"], "max": 9.0},
    }
    replace(stored.manifest, files=tuple(files), statistics=statistics).write(tmp_path)

    problem = "is damaged: the result is not 4,096 bytes that were compressed with this dictionary"
    problems = verify(tmp_path, deep=True).problems
    assert f"camera.npy has 2 damaged images: frame 12 {problem}; frame 31 {problem}" in problems
    assert any("statistics" in other and "next.reward" in other for other in problems)
