"""What a conversion costs: against reading the file's columns with h5py alone, and in memory."""

import subprocess
import sys
from pathlib import Path

import pytest

IDLE = """
import sys, time
from pathlib import Path
import h5py, numpy

from datasets_rl.fetch import fetch_local
from datasets_rl.sources import d4rl

def peak():
    # Not ru_maxrss: it counts what the parent held before the child's own program began.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
H5PY = """
start = time.perf_counter()
with h5py.File(sys.argv[1]) as file:
    names = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        file[name][()]
print(time.perf_counter() - start, peak())
"""
CONVERT = """
from datasets_rl import downloading, planning, sources, store
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.settings import Settings
import datasets_rl.fetch.schemes
idle = peak()
settings = Settings.from_env({"RLDS_HOME": sys.argv[2], "RLDS_NO_PROGRESS": "1"})
paths = store.dataset_paths("d4rl/halfcheetah-medium-v2", settings=settings)
options = planning.DownloadOptions(from_local=sys.argv[1], hash_check=False)
whole = sources.Selection()
listing = planning.find_files("d4rl/halfcheetah-medium-v2", paths, settings, options, whole)
files = downloading._fetcher("d4rl/halfcheetah-medium-v2", paths, settings, options).fetch(listing.assets)
Fetcher.fetch = lambda *_: files
start = time.perf_counter()
downloading._convert("d4rl/halfcheetah-medium-v2", listing, paths, settings, options, whole, None)
print(time.perf_counter() - start, peak() - idle)
"""


def child(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", IDLE + code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    took, kilobytes = done.stdout.split()
    return float(took), int(kilobytes) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("kind", ["raw_file", "plain_file"])
def test_converting_takes_at_most_half_as_long_again_as_reading(kind, request, tmp_path, show):
    raw = request.getfixturevalue(kind)

    rounds = [(child(H5PY, raw), child(CONVERT, raw, tmp_path / str(number))) for number in range(5)]

    ratios = sorted(converting[0] / reading[0] for reading, converting in rounds)
    reading, converting = rounds[-1]
    memory = max(converting[1] for _, converting in rounds)
    show(
        f"\n{kind}: h5py {reading[0]:.2f} s, converting {converting[0]:.2f} s; "
        f"ratio {ratios[2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); {memory:.0f} MB over the idle process"
    )
    assert ratios[2] <= 1.5
    assert memory <= 300
