"""What a conversion of V-D4RL costs, against numpy's and h5py's bare reading, in memory, and on the disk."""

from __future__ import annotations

import subprocess
import sys

import pytest
from raw import vd4rl as raw

SIZE = 100 << 20
BARE = {
    ".npz": """
import sys, time
from pathlib import Path
import numpy as np

start = time.perf_counter()
for path in Path(sys.argv[1]).rglob("*.npz"):
    with np.load(path) as file:
        for name in file.files:
            file[name]
print(time.perf_counter() - start)
""",
    ".hdf5": """
import sys, time
from pathlib import Path
import h5py

start = time.perf_counter()
for path in Path(sys.argv[1]).rglob("*.hdf5"):
    with h5py.File(path) as file:
        for name in file:
            file[name][()]
print(time.perf_counter() - start)
""",
}
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


@pytest.fixture(scope="module", params=raw.CASES, ids=BARE)
def trees(request, tmp_path_factory):
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    request.param.write(small)
    request.param.many(large, SIZE)
    return request.param.id, small, large


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_conversion_costs_little_more_than_reading(trees, tmp_path, show, jobs):
    name, small, large = trees
    files = [path for path in large.rglob("*") if path.is_file()]
    ratios = []
    for turn in range(3):
        (bare,) = run(BARE[files[0].suffix], large)
        took, stored, peak = run(CONVERT, name, small, large, tmp_path / str(turn), jobs)
        ratios.append(took / bare)
        show(
            f"\n{name}, jobs {jobs}: {took:.2f} s, raw {sum(path.stat().st_size for path in files) / 1e6:.0f} MB, "
            f"stored {stored:.0f} MB, peak {peak:.0f} MB over idle, {took / bare:.2f} of bare reading ({bare:.2f} s)"
        )
        assert peak < 500
    assert min(ratios) < 3
