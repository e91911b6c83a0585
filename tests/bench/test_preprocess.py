"""What preprocessing costs: against TorchRL's, against the bare bytes, with one process and with two, and in memory."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stored_data import FLAGS, write_dataset

from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.pipeline.engines.local import Local
from datasets_rl.preprocessing import Function, Recipe, preprocess
from datasets_rl.ted.episode import Episode

STEPS = 1000


class _Long:
    """An episode of a locomotion task, 17 numbers wide, that `write_dataset` takes."""

    def __init__(self, seed, dtype):
        dice = np.random.default_rng(seed)
        last = (np.arange(STEPS) == STEPS - 1)[:, None]
        self._whole = Episode(
            {
                ("action",): dice.normal(size=(STEPS, 6)).astype("f4"),
                ("next", "reward"): dice.normal(size=(STEPS, 1)).astype("f4"),
                ("next", "terminated"): np.zeros_like(last),
                ("next", "truncated"): last,
            },
            {("observation",): dice.normal(size=(STEPS + 1, 17)).astype(dtype)},
        )

    def pieces(self):
        yield self._whole


def locomotion(folder, episodes, dtype="f4"):
    columns = [
        Column(("observation",), np.dtype(dtype), (17,), shared=True),
        Column(("action",), np.dtype("f4"), (6,)),
        Column(("next", "reward"), np.dtype("f4"), (1,)),
        *FLAGS,
    ]
    return write_dataset(folder, [_Long(seed, dtype) for seed in range(episodes)], columns, id="toy/long")


def normed(step):
    return step.set("norm", step["observation"].norm(dim=-1))


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.bench
def test_a_function_of_single_steps_and_one_of_batches_against_torchrl(tmp_path, show):
    common = pytest.importorskip("torchrl.data.datasets.common", reason="pip install --no-deps torchrl hoptorch")
    torchrl = pytest.importorskip("torchrl.data")
    stored = locomotion(tmp_path / "toy" / "long", 10)
    ours = StoredExperienceReplay(str(stored.folder))
    data = ours[:].memmap(tmp_path / "theirs")
    theirs = SimpleNamespace(_storage=torchrl.TensorStorage(data))

    def torchrl_run(turn):
        common.BaseDatasetExperienceReplay.preprocess(
            theirs,
            normed,
            num_workers=1,
            chunksize=0,
            mp_start_method="fork",
            generator=torch.Generator(),
            dest=tmp_path / f"t{turn}",
        )

    taken = {"single": [], "batched": [], "torchrl": []}
    for turn in range(3):
        taken["single"].append(timed(lambda t=turn: ours.preprocess(normed, num_workers=1, dest=tmp_path / f"s{t}")))
        taken["batched"].append(
            timed(lambda t=turn: ours.preprocess(normed, num_workers=1, batched=True, dest=tmp_path / f"b{t}"))
        )
        taken["torchrl"].append(timed(lambda t=turn: torchrl_run(t)))
    best = {name: min(values) for name, values in taken.items()}
    steps = len(stored)
    for name, value in best.items():
        show(f"{name}: {value / steps * 1e6:.1f} us a step, {best['torchrl'] / value:.1f} times TorchRL's speed")
    assert best["torchrl"] > 3 * best["single"]
    assert best["torchrl"] > 50 * best["batched"]


@pytest.mark.bench
def test_a_cast_against_the_bare_bytes(tmp_path, show):
    stored = locomotion(tmp_path / "toy" / "long", 1000, "f8")
    recipe = Recipe.inline(["cast:float32,observation"])
    written = {}

    def cast(turn):
        written["folder"] = preprocess(stored.folder, recipe, dest=tmp_path / f"cast{turn}", jobs=1)

    def copied(turn):
        rows = np.array(stored.rows)  # what is read
        with (tmp_path / f"bare{turn}").open("wb") as file:
            file.write(rows.view(np.uint8)[: (written["folder"] / "rows.npy").stat().st_size])

    taken = {"cast": [], "bare": [], "memcpy": []}
    rows = np.array(stored.rows)
    for turn in range(5):
        taken["cast"].append(timed(lambda t=turn: cast(t)))
        taken["bare"].append(timed(lambda t=turn: copied(t)))
        taken["memcpy"].append(timed(rows.copy))
    best = {name: min(values) for name, values in taken.items()}
    ratios = {name: best[name] / best["cast"] for name in ("bare", "memcpy")}
    size = stored.manifest.bytes / 1e6
    show(f"cast of {size:.0f} MB: {best['cast']:.2f} s, {ratios['bare']:.2f} of reading and writing the bytes")
    show(f"{ratios['memcpy']:.3f} of copying them in memory")


def slow(step):
    """Take half a millisecond, all of it in this thread."""
    total = 0
    for number in range(6000):
        total += number
    return step.set("total", torch.tensor(total))


@pytest.mark.bench
def test_two_processes_against_one(tmp_path, show):
    stored = locomotion(tmp_path / "toy" / "long", 200)
    taken = {jobs: [] for jobs in (1, 2)}
    for turn in range(1):
        for jobs, values in taken.items():
            recipe = Recipe([Function(slow)])
            place, engine = tmp_path / f"{jobs}-{turn}", Local(jobs, threads=1)
            values.append(
                timed(lambda e=engine, r=recipe, p=place: preprocess(stored.folder, r, dest=p, engine=e, num_parts=16))
            )
    best = {jobs: min(values) for jobs, values in taken.items()}
    show(f"one process {best[1]:.1f} s, two {best[2]:.1f} s: {best[1] / best[2]:.2f} times as fast")


PEAK = """
import sys
from pathlib import Path
import torch
from datasets_rl.preprocessing import Function, Recipe, preprocess

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def rss():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

recipe = Recipe([Function(lambda data: data.set("norm", data["observation"].norm(dim=-1)), "batch")])
preprocess(Path(sys.argv[1]), recipe, dest=Path(sys.argv[3] + "/small"), jobs=1, max_ram=int(sys.argv[4]))
idle = rss()
import threading, time
most = [0]
def watch():
    while most[0] >= 0:
        most[0] = max(most[0], rss())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
preprocess(Path(sys.argv[2]), recipe, dest=Path(sys.argv[3] + "/large"), jobs=1, max_ram=int(sys.argv[4]))
print((most[0] - idle) / 1024)
"""


@pytest.mark.bench
def test_the_memory_stays_below_what_was_allowed(tmp_path, show):
    small = locomotion(tmp_path / "toy" / "small", 4)
    large = locomotion(tmp_path / "toy" / "large", 2500)
    allowed = large.manifest.bytes // 4
    words = [sys.executable, "-c", PEAK, small.folder, large.folder, tmp_path, str(allowed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    grown = float(done.stdout)
    show(f"{large.manifest.bytes / 1e6:.0f} MB with max_ram {allowed / 1e6:.0f} MB: {grown:.0f} MB over idle")
    assert StoredDataset(tmp_path / "large").schema
    assert grown * 1e6 < allowed
