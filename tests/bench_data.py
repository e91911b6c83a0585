"""What the benchmarks share: timing in turns, what a conversion costs, one file as our dataset and as TorchRL's."""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from datasets_rl.downloading import download
from datasets_rl.settings import Settings

NAME = "halfcheetah-medium-v2"


def seconds(call, *, rounds, repeat):
    """Return the mean seconds of one call in each of `rounds` rounds of `repeat` calls."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        taken.append((time.perf_counter() - start) / repeat)
    return taken


def compare(calls, *, rounds=15, repeat=100):
    """Return the median seconds per call of each named call; the calls alternate, so that machine load affects all."""
    for call in calls.values():
        seconds(call, rounds=1, repeat=repeat)
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name] += seconds(call, rounds=1, repeat=repeat)
    return {name: statistics.median(values) for name, values in taken.items()}


CONVERT = """
import json, resource, sys, time
from pathlib import Path
from datasets_rl import downloading
from datasets_rl.settings import Settings

name, small, large, home, jobs = json.loads(sys.argv[1])
fetch, fetching = downloading._fetch, [0, 0]

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def processors():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

def timed(*arguments, **options):
    start, begun = time.perf_counter(), time.thread_time()
    came = fetch(*arguments, **options)
    fetching[:] = fetching[0] + time.perf_counter() - start, fetching[1] + time.thread_time() - begun
    return came

def convert(tree, home):
    return downloading.download(name, from_local=tree, settings=Settings(home=Path(home), progress=False, jobs=jobs))

convert(small, home + "/small")  # imports, and what is compiled
downloading._fetch = timed
idle, start, begun = peak(), time.perf_counter(), processors()
folder = convert(large, home + "/large")
seconds, cpu = time.perf_counter() - start, processors() - begun
stored = sum(path.stat().st_size for path in folder.rglob("*"))
print(json.dumps([str(folder), seconds, cpu, *fetching, stored / 1e6, (peak() - idle) / 1024]))
"""


@dataclass(frozen=True)
class Cost:
    """Time, size and memory of one conversion, measured in a new process after a small warm-up conversion."""

    folder: Path
    seconds: float
    cpu: float
    """Processor seconds, including those of reader processes."""
    fetching: float
    """Seconds of the fetch, a part of `seconds`; for raw files that are present, the time to compute their digests."""
    fetching_cpu: float
    stored: float
    """Size of the stored dataset in megabytes."""
    peak: float
    """Peak resident memory in megabytes, above that of the idle process."""


def child(code, *words):
    """Run `code` with the arguments `words` in a new Python process; return its output, parsed as JSON."""
    run = [sys.executable, "-c", code, *map(str, words)]
    return json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def conversion(name, small, large, home, *, jobs=1):
    """Measure the conversion of the raw files `large`, after a warm-up conversion of `small` with the same id."""
    folder, *figures = child(CONVERT, json.dumps([name, str(small), str(large), str(home), jobs]))
    return Cost(Path(folder), *figures)


def converted(raw, root):
    """Convert the raw file of the dataset `NAME` below `root`; return the folder of the dataset."""
    settings = Settings.from_env({"RLDS_HOME": str(root), "RLDS_NO_PROGRESS": "1"})
    return download(f"d4rl/{NAME}", root=root, from_local=raw, hash_check=False, settings=settings)


def torchrl_dataset(raw, root):
    """Return TorchRL's dataset class over the same raw file; a link replaces its download."""
    d4rl = pytest.importorskip("torchrl.data.datasets.d4rl", reason="pip install --no-deps torchrl hoptorch")

    def linked(_url, folder):
        path = Path(folder, "raw.hdf5")
        path.symlink_to(raw)
        return str(path)

    patch = pytest.MonkeyPatch()
    patch.setattr(d4rl, "_download_dataset_from_url", linked)
    try:
        return d4rl.D4RLExperienceReplay(NAME, batch_size=None, root=root, direct_download=True)
    finally:
        patch.undo()
