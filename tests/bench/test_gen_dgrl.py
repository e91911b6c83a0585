"""What a conversion of Gen-DGRL costs, against inflating the archive and nothing else, in memory, and on the disk."""

from __future__ import annotations

import pytest
from bench_data import child, conversion
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
CASES = [case for case in raw.CASES if case.many is not None]


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
        bare = child(BARE, large)
        cost = conversion(name, small, large, tmp_path / str(turn), jobs=jobs)
        ratios.append(cost.seconds / bare)
        show(
            f"\n{name}, jobs {jobs}: {cost.seconds:.2f} s, raw {raw_bytes / 1e6:.0f} MB, stored {cost.stored:.0f} MB, "
            f"peak {cost.peak:.0f} MB over idle, {cost.seconds / bare:.2f} of bare inflating ({bare:.2f} s)"
        )
        assert cost.peak < 500
    assert min(ratios) < 3
