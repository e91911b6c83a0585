"""What preprocessing costs: against TorchRL's, against the bare bytes, with a process and with two, and in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench_data import seconds
from stored_data import FLAGS, write_dataset

from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Function, Recipe, preprocess
from datasets_rl.store import version_folder
from datasets_rl.ted.episode import Episode


class _Long:
    """An episode of a locomotion task, 17 numbers wide, that `write_dataset` takes."""

    def __init__(self, seed, dtype, steps):
        dice = np.random.default_rng(seed)
        last = (np.arange(steps) == steps - 1)[:, None]
        self._whole = Episode(
            {
                ("action",): dice.normal(size=(steps, 6)).astype("f4"),
                ("next", "reward"): dice.normal(size=(steps, 1)).astype("f4"),
                ("next", "terminated"): np.zeros_like(last),
                ("next", "truncated"): last,
            },
            {("observation",): dice.normal(size=(steps + 1, 17)).astype(dtype)},
        )

    def pieces(self):
        yield self._whole


def locomotion(folder, episodes, dtype="f4", steps=1000):
    columns = [
        Column(("observation",), np.dtype(dtype), (17,), shared=True),
        Column(("action",), np.dtype("f4"), (6,)),
        Column(("next", "reward"), np.dtype("f4"), (1,)),
        *FLAGS,
    ]
    return write_dataset(folder, [_Long(seed, dtype, steps) for seed in range(episodes)], columns, id="toy/long")


def normed(step):
    return step.set("norm", step["observation"].norm(dim=-1))


def least(calls, rounds):
    """Seconds of each call, the least of some rounds; each is given the number of its round."""
    taken = [{name: seconds(lambda call=call, n=n: call(n)) for name, call in calls.items()} for n in range(rounds)]
    return {name: min(one[name] for one in taken) for name in calls}


def test_a_function_of_single_steps_and_one_of_batches_are_faster_than_torchrl(torchrl_data, tmp_path, size, expect):
    common = pytest.importorskip("torchrl.data.datasets.common")
    stored = locomotion(tmp_path / "toy" / "long", 10, steps=size(full=1000, small=2))
    ours = StoredExperienceReplay(str(stored.folder))
    theirs = SimpleNamespace(_storage=torchrl_data.TensorStorage(ours[:].memmap(tmp_path / "theirs")))

    def torchrl(turn):
        common.BaseDatasetExperienceReplay.preprocess(
            theirs,
            normed,
            num_workers=1,
            chunksize=0,
            mp_start_method="fork",
            generator=torch.Generator(),
            dest=tmp_path / f"t{turn}",
        )

    took = least(
        {
            "steps": lambda turn: ours.preprocess(normed, num_workers=1, dest=tmp_path / f"s{turn}"),
            "batches": lambda turn: ours.preprocess(normed, num_workers=1, batched=True, dest=tmp_path / f"b{turn}"),
            "torchrl": torchrl,
        },
        size(full=3, small=1),
    )
    for name, goal in (("steps", 3), ("batches", 50)):
        expect(f"a function of {name}, times TorchRL's speed", took["torchrl"] / took[name], at_least=goal)


def test_a_cast_takes_little_more_than_reading_and_writing_the_bytes(tmp_path, size, expect):
    stored = locomotion(tmp_path / "toy" / "long", size(full=1000, small=1), "f8")
    recipe = Recipe.inline(["cast:float32,observation"])

    def cast(turn):
        preprocess(stored.folder, recipe, out=tmp_path / f"cast{turn}", jobs=1)

    def copied(turn):
        rows = np.array(stored.rows).view(np.uint8)
        with (tmp_path / f"bare{turn}").open("wb") as file:
            file.write(rows[: (version_folder(tmp_path / f"cast{turn}") / "rows.npy").stat().st_size])
            os.fsync(file.fileno())

    took = least({"cast": cast, "copied": copied}, size(full=5, small=1))
    expect("a cast, of the time of reading and writing the bytes", took["cast"] / took["copied"], at_most=5)


def slow(step):
    """Take half a millisecond, all of it in this thread."""
    total = 0
    for number in range(6000):
        total += number
    return step.set("total", torch.tensor(total))


SLOW = """
import sys

for _ in range(int(sys.argv[1])):
    total = 0
    for number in range(6000):
        total += number
"""


def test_two_processes_bring_most_of_what_the_machine_has_for_them(tmp_path, size, expect):
    """The same loop in processes without any data shows how much faster two are, which depends on what else runs."""
    stored = locomotion(tmp_path / "toy" / "long", size(full=20, small=1), steps=size(full=1000, small=2))
    recipe = Recipe([Function(slow)])

    def run(processes, turn):
        engine = size(full=LocalEngine(processes, threads=1), small=None)
        preprocess(stored.folder, recipe, out=tmp_path / f"{processes}-{turn}", engine=engine, num_parts=8)

    def loop(processes):
        command = [sys.executable, "-c", SLOW, str(len(stored) // processes)]
        for child in [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]:
            child.wait()

    calls = {f"{count} loops": lambda _, count=count: loop(count) for count in (1, 2)}
    calls |= {f"{count} processes": lambda turn, count=count: run(count, turn) for count in (1, 2)}
    took = least(calls, size(full=3, small=1))
    print(f"\n{ {name: round(value, 2) for name, value in took.items()} } s")
    more = (took["2 processes"] / took["1 processes"]) / (took["2 loops"] / took["1 loops"])
    expect("time with two processes, of that with one, to the same of bare loops", more, at_most=1.5)


def memory(small, large, folder, max_ram):
    """MB by which a process grows while it preprocesses a large dataset; mapped files do not count."""
    recipe = Recipe([Function(normed, "batch")])
    preprocess(small, recipe, out=folder / "small", jobs=1, max_ram=max_ram)

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    idle = most = resident()
    done = threading.Event()

    def watch():
        nonlocal most
        while not done.wait(0.002):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    preprocess(large, recipe, out=folder / "large", jobs=1, max_ram=max_ram)
    done.set()
    watcher.join()
    return most - idle


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
def test_the_memory_stays_below_what_was_allowed(tmp_path, size, expect_exactly, run_in_child):
    small = locomotion(tmp_path / "toy" / "small", size(full=4, small=1))
    large = locomotion(tmp_path / "toy" / "large", size(full=2500, small=1))
    allowed = large.manifest.bytes * size(full=1, small=64) // 4  # an episode is processed as a whole

    grown = run_in_child(memory, small.folder, large.folder, tmp_path, allowed)

    assert len(StoredDataset(tmp_path / "large")) == len(large)
    expect_exactly("memory over idle, of what was allowed", grown * (1 << 20) / allowed, at_most=1)
