"""The reader against h5py on a file of a million steps, in one run: ``pytest -m bench tests/read -s``."""

from __future__ import annotations

import json
import subprocess
import sys

import d4rl_files
import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

SCRIPT = """
import json, sys, threading, time
import h5py
from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.sources import source

path, what = sys.argv[1:]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def watch():
    while True:
        peak[0] = max(peak[0], resident())
        time.sleep(0.002)

def h5py_alone():
    with h5py.File(path) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            file[name][()]

def reader():
    with Hdf5File(path) as file:
        names = list(file.arrays)
        for _ in file.blocks(names, rows=(8 << 20) // sum(file.arrays[name].row_bytes for name in names)):
            pass

def recording():
    with source("d4rl").open("halfcheetah-medium-v2", {"halfcheetah_medium-v2.hdf5": path}) as opened:
        for _ in opened.episodes():
            pass

run = {"h5py": h5py_alone, "reader": reader, "recording": recording}[what]
idle = resident()
peak = [idle]
threading.Thread(target=watch, daemon=True).start()
times = []
for _ in range(3):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(times), "bytes": peak[0] - idle}))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    path = d4rl_files.big_halfcheetah(tmp_path_factory.mktemp("big") / "big.hdf5")

    def measure(what):
        out = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), what], capture_output=True, text=True, check=True
        )
        return json.loads(out.stdout)

    rounds = [{what: measure(what) for what in ("h5py", "reader", "recording")} for _ in range(3)]
    made = {
        what: {"seconds": min(r[what]["seconds"] for r in rounds), "bytes": max(r[what]["bytes"] for r in rounds)}
        for what in rounds[0]
    }
    print()
    for what, figure in made.items():
        ratio = figure["seconds"] / made["h5py"]["seconds"]
        print(f"{what:10} {figure['seconds']:6.2f} s {ratio:5.2f} of h5py {figure['bytes'] / 1e6:6.0f} MB over idle")
    return made


@pytest.mark.parametrize("what", ["reader", "recording"])
def test_reading_takes_less_time_than_h5py_alone(figures, what):
    assert figures[what]["seconds"] < figures["h5py"]["seconds"]


@pytest.mark.parametrize("what", ["reader", "recording"])
def test_memory_stays_far_below_the_goal(figures, what):
    assert figures[what]["bytes"] < 150_000_000
