"""What a conversion of V-D4RL costs, against numpy's and h5py's bare reading, in memory, and on the disk."""

from __future__ import annotations

import pytest
from bench_data import child, conversion
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
        bare = child(BARE[files[0].suffix], large)
        cost = conversion(name, small, large, tmp_path / str(turn), jobs=jobs)
        ratios.append(cost.seconds / bare)
        show(
            f"\n{name}, jobs {jobs}: {cost.seconds:.2f} s, raw {sum(path.stat().st_size for path in files) / 1e6:.0f} MB, "
            f"stored {cost.stored:.0f} MB, peak {cost.peak:.0f} MB over idle, {cost.seconds / bare:.2f} of bare reading ({bare:.2f} s)"
        )
        assert cost.peak < 500
    assert min(ratios) < 3
