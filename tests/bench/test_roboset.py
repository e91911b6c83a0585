"""What a conversion of RoboSet costs, against reading the files with h5py alone, in memory, and on the disk."""

from __future__ import annotations

import subprocess
import sys

import pytest
from raw import roboset as raw

SIZE = 100 << 20
BARE = """
import sys, time
from pathlib import Path
import h5py

def read(name, item):
    if isinstance(item, h5py.Dataset):
        item[()]

start = time.perf_counter()
for path in Path(sys.argv[1]).rglob("*.h5"):
    with h5py.File(path) as file:
        file.visititems(read)
print(time.perf_counter() - start)
"""
CONVERT = """
import sys, time
from pathlib import Path
from datasets_rl import library
from datasets_rl.settings import Settings

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def convert(tree, home):
    settings = Settings(home=Path(home), progress=False, jobs=int(sys.argv[5]))
    return library.download(sys.argv[1], from_local=tree, settings=settings)

convert(sys.argv[2], sys.argv[4] + "/small")  # imports, and what is compiled
idle = peak()
start = time.perf_counter()
folder = convert(sys.argv[3], sys.argv[4] + "/large")
took = time.perf_counter() - start
print(took, sum(path.stat().st_size for path in folder.rglob("*")) / 1e6, (peak() - idle) / 1024)
"""


def run(*words):
    done = subprocess.run([sys.executable, "-c", *map(str, words)], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    raw.many(small, 1 << 20)
    raw.many(large, SIZE)
    return small, large


@pytest.mark.bench
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_conversion_costs_little_more_than_reading(trees, tmp_path, show, jobs):
    small, large = trees
    raw_bytes = sum(path.stat().st_size for path in large.rglob("*.h5"))
    ratios = []
    for turn in range(3):
        (bare,) = run(BARE, large)
        took, stored, peak = run(CONVERT, raw.CASES[0].id, small, large, tmp_path / str(turn), jobs)
        ratios.append(took / bare)
        show(
            f"\nroboset, jobs {jobs}: {took:.2f} s, raw {raw_bytes / 1e6:.0f} MB, stored {stored:.0f} MB, "
            f"peak {peak:.0f} MB over idle, {took / bare:.2f} of h5py ({bare:.2f} s)"
        )
        assert peak < 500
    assert min(ratios) < 3
