"""What converting Minari's HDF5 files costs: against reading them with h5py alone, in memory, and on the disk."""

import resource
import subprocess
import sys

import gymnasium
import h5py
import numpy as np
import pytest
from raw.minari import episodes, write

from datasets_rl import library
from datasets_rl.settings import Settings

NAME = "bench/drawn-v0"
H5PY = """
import sys, time, h5py
start = time.perf_counter()
with h5py.File(sys.argv[1]) as file:
    for name in file:
        group = file[name]
        for column in ("observations", "actions", "rewards", "terminations", "truncations"):
            group[column][()]
print(time.perf_counter() - start)
"""
CONVERT = """
import sys, time
import h5py
from pathlib import Path
from datasets_rl import library
from datasets_rl.settings import Settings
import datasets_rl.convert, datasets_rl.sources._minari_recording

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

idle = peak()
settings = Settings(home=Path(sys.argv[2]), progress=False, jobs=int(sys.argv[3]))
fetch = library._fetch
took = []

def timed(*arguments, **options):
    # What hashing the raw file takes belongs to the fetch.
    began = time.perf_counter()
    came = fetch(*arguments, **options)
    took.append(time.perf_counter() - began)
    return came

library._fetch = timed
start = time.perf_counter()
library.download("minari/bench/drawn-v0", from_local=sys.argv[1], settings=settings)
print(time.perf_counter() - start - sum(took), (peak() - idle) / 1024)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """1000 episodes of 1000 steps, HalfCheetah-shaped, in Minari's layout."""
    root = tmp_path_factory.mktemp("cache")
    steps, count = 1000, 1000
    space = gymnasium.spaces.Box(-1, 1, (17,), np.float64)
    totals = {"total_steps": steps * count, "total_episodes": count}
    folder = write(root, NAME, episodes(space, [2]), space=space, **totals) / "data"
    dice = np.random.default_rng(0)
    with h5py.File(folder / "main_data.hdf5", "w", track_order=True) as file:
        for number in range(count):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": steps, "seed": number})
            columns = {
                "observations": dice.normal(size=(steps + 1, 17)),
                "actions": dice.normal(size=(steps, 6)).astype("f4"),
                "rewards": dice.normal(size=steps),
                "terminations": np.zeros(steps, bool),
                "truncations": np.arange(steps) == steps - 1,
            }
            for name, data in columns.items():
                group.create_dataset(name, data=data, chunks=True, maxshape=(None, *data.shape[1:]))
    return root


def child(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def test_converting_takes_at_most_half_as_long_again_as_reading_with_h5py(cache, tmp_path, show):
    main = cache / NAME / "data" / "main_data.hdf5"

    rounds = [(child(H5PY, main)[0], child(CONVERT, cache, tmp_path / str(n), 1)) for n in range(5)]

    ratios = sorted(converting[0] / reading for reading, converting in rounds)
    show(
        f"\nh5py {rounds[-1][0]:.2f} s, converting {rounds[-1][1][0]:.2f} s; ratio {ratios[2]:.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}); {max(one[1][1] for one in rounds):.0f} MB over the idle process"
    )
    assert ratios[2] <= 1.5


def test_two_readers_cost_less_than_they_bring(cache, tmp_path, show):
    """A reader costs its start once, and what goes through the pipe; a process a shard cost twice as much."""
    took = {1: [], 2: []}
    for n in range(5):
        for jobs, seconds in took.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall, megabytes = child(CONVERT, cache, tmp_path / f"{n}-{jobs}", jobs)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, megabytes))

    walls, cpu, peaks = ({jobs: sorted(one)[2] for jobs, one in _columns(took, at)} for at in range(3))
    show("".join(f"\njobs {n}: {walls[n]:.2f} s, {cpu[n]:.2f} s of the processors, {peaks[n]:.0f} MB" for n in took))
    assert cpu[2] <= 1.5 * cpu[1]


def _columns(took, at):
    return [(jobs, [one[at] for one in seconds]) for jobs, seconds in took.items()]


def test_the_disk_holds_each_observation_once(cache, tmp_path, show):
    """TorchRL's memory maps hold observation and next observation, the episode, the reward and three flags twice or once."""
    folder = library.download(
        "minari/bench/drawn-v0", from_local=cache, settings=Settings(home=tmp_path, progress=False)
    )
    ours = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    theirs = 1_000_000 * (2 * 17 * 8 + 6 * 4 + 8 + 8 + 3)

    show(f"\nours {ours / 1e6:.1f} MB, TorchRL's layout {theirs / 1e6:.1f} MB, ratio {ours / theirs:.2f}")
    assert ours <= 0.6 * theirs
