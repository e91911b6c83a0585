"""What making a dataset costs, source by source: against reading the raw bytes alone, in memory, and on the disk."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from datasets_rl import sources

SIZE = int(os.environ.get("RLDS_BENCH_BYTES", "100000000"))
HEAD = "| source | steps | raw MB | stored MB | seconds | peak MB over idle | to a bare read | to a read with sha256 |"
MEASURE = """
import hashlib, json, sys, time
from pathlib import Path
from datasets_rl import downloading, sources
from datasets_rl.settings import Settings
import datasets_rl.pipeline.conversion, datasets_rl.pipeline.shards

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def get(tree, home):
    settings = Settings(home=Path(home), progress=False, jobs=1)
    return downloading.download(name, from_local=tree, settings=settings, selection=sources.Selection(options=options))

name, tree, few, home, options = json.loads(sys.argv[1])
get(few, home + "/warm")
files = [path for path in Path(tree).rglob("*") if path.is_file()]

def read(use):
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as stream:
            while block := stream.read(1 << 20):
                use(block)
    return time.perf_counter() - began

read(len)
reading = [min(read(use) for _ in range(3)) for use in (len, hashlib.sha256().update)]
idle = peak()
began = time.perf_counter()
folder = get(tree, home)
seconds = time.perf_counter() - began
manifest = json.loads((folder / "manifest.json").read_text())
raw = sum(path.stat().st_size for path in files)
stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
print(json.dumps([manifest["steps"], raw / 1e6, stored / 1e6, seconds, peak() - idle, *(seconds / one for one in reading)]))
"""


def cases():
    for name in sources.names():
        if importlib.util.find_spec(f"raw.{name}") is not None:
            found = getattr(importlib.import_module(f"raw.{name}"), "CASES", [])
            yield from (pytest.param(case, id=f"{name}{row}") for row, case in enumerate(found) if case.many)


@pytest.fixture(scope="module")
def shown():
    """The rows that were printed."""
    return []


@pytest.mark.parametrize("case", [*cases()])
def test_what_a_source_costs(case, show, shown, tmp_path, request):
    trees = [tmp_path / "tree", tmp_path / "few"]
    for folder, size in zip(trees, (SIZE, SIZE // 1000), strict=True):
        folder.mkdir()
        case.many(folder, size)
    task = [case.id, *map(str, trees), str(tmp_path / "home"), dict(case.options)]
    done = subprocess.run([sys.executable, "-c", MEASURE, json.dumps(task)], capture_output=True, text=True, check=True)

    steps, raw, stored, seconds, peak, *ratios = json.loads(done.stdout)
    name = request.node.callspec.id
    row = [name, f"{steps:,}", f"{raw:.0f}", f"{stored:.0f}", f"{seconds:.2f}", f"{peak:.0f}"]
    row += [f"{ratio:.1f}" for ratio in ratios]
    # Each as it comes, so that a run that is stopped has shown what it measured.
    head = [] if shown else ["", HEAD, "| --- " + "| ---: " * 7 + "|"]
    shown.append(name)
    show("\n".join([*head, f"| {' | '.join(row)} |"]))
    assert peak < 500
