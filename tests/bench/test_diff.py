"""Comparing a million steps with a copy takes little more than reading both."""

from __future__ import annotations

import shutil
import time

import numpy as np
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl import diff
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column

FLOAT = np.dtype(np.float32)
STEPS, LIMIT = 1000, 1.5


def test_a_copy_is_compared_in_the_time_of_reading_both(tmp_path, full):
    flags = np.arange(STEPS)[:, None] == STEPS - 1
    trajectories = []
    for number in range(1000 if full else 10):
        rng = np.random.default_rng(number)
        steps = {("action",): rng.normal(size=(STEPS, 6)), ("next", "reward"): rng.normal(size=(STEPS, 1))}
        trajectories.append(
            Trajectory(
                {key: values.astype(FLOAT) for key, values in steps.items()}
                | {("next", "terminated"): flags & False, ("next", "truncated"): flags},
                {("observation",): rng.normal(size=(STEPS + 1, 17)).astype(FLOAT)},
            )
        )
    schema = [Column(("observation",), FLOAT, (17,), shared=True), Column(("action",), FLOAT, (6,))]
    write_dataset(tmp_path / "a", trajectories, [*schema, Column(("next", "reward"), FLOAT, (1,)), *FLAGS])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folders = [tmp_path / "a", tmp_path / "b"]

    def read() -> None:
        for folder in folders:
            rows = StoredDataset(folder).rows
            for start in range(0, len(rows), 32_768):
                rows[start : start + 32_768].copy()

    def seconds(work) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    rounds = [(seconds(read), seconds(lambda: diff(*folders))) for _ in range(5)]
    reading, comparing = (min(column) for column in zip(*rounds, strict=True))
    print(f"\nreading both {reading:.3f} s, comparing {comparing:.3f} s: {comparing / reading:.2f}")
    assert not full or comparing <= LIMIT * reading
