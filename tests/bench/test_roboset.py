"""What a conversion of RoboSet costs, against reading the files with h5py alone, in memory, and on the disk."""

from __future__ import annotations

import pytest
from bench_data import child, conversion
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
        bare = child(BARE, large)
        cost = conversion(raw.CASES[0].id, small, large, tmp_path / str(turn), jobs=jobs)
        ratios.append(cost.seconds / bare)
        show(
            f"\nroboset, jobs {jobs}: {cost.seconds:.2f} s, raw {raw_bytes / 1e6:.0f} MB, stored {cost.stored:.0f} MB, "
            f"peak {cost.peak:.0f} MB over idle, {cost.seconds / bare:.2f} of h5py ({bare:.2f} s)"
        )
        assert cost.peak < 500
    assert min(ratios) < 3
