"""What a conversion of Gen-DGRL costs, against inflating the archive and nothing else, in memory, and on the disk."""

from __future__ import annotations

import subprocess
import sys

import pytest
from raw import gen_dgrl as raw

SIZE = 100 << 20
BARE = """
import lzma, sys, time
from pathlib import Path

start = time.perf_counter()
for path in Path(sys.argv[1]).rglob("*.xz"):
    with lzma.open(path) as file:
        while file.read(1 << 20):
            pass
for path in Path(sys.argv[1]).rglob("*.tar"):
    # What is squeezed in a plain archive are its files; those of a quarter of them are the dataset's.
    import io, tarfile
    import numpy as np
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.startswith("heist/"):
                with np.load(io.BytesIO(archive.extractfile(member).read())) as file:
                    [file[name] for name in file.files]
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
CASES = [case for case in raw.CASES if case.many is not None]


def run(*words):
    done = subprocess.run([sys.executable, "-c", *map(str, words)], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module", params=CASES, ids=["tar.xz of pickles", "tar of npz"])
def trees(request, tmp_path_factory):
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    request.param.write(small)
    request.param.many(large, SIZE)
    return request.param.id, small, large


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_conversion_costs_little_more_than_inflating(trees, tmp_path, show, jobs):
    name, small, large = trees
    raw_bytes = sum(path.stat().st_size for path in large.rglob("*") if path.is_file())
    ratios = []
    for turn in range(3):
        (bare,) = run(BARE, large)
        took, stored, peak = run(CONVERT, name, small, large, tmp_path / str(turn), jobs)
        ratios.append(took / bare)
        show(
            f"\n{name}, jobs {jobs}: {took:.2f} s, raw {raw_bytes / 1e6:.0f} MB, stored {stored:.0f} MB, "
            f"peak {peak:.0f} MB over idle, {took / bare:.2f} of bare inflating ({bare:.2f} s)"
        )
        assert peak < 500
    assert min(ratios) < 3
