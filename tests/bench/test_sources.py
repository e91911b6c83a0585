"""What a conversion costs, source by source: against reading and digesting the raw files with the libraries of their formats."""

import importlib
import importlib.util

import pytest
from bench_data import convert

from datasets_rl import sources

LIMITS = {
    "atari_dqn0": 3,
    "atari_dqn1": 3,
    "d4rl0": 3,
    "gen_dgrl0": 3,
    "gen_dgrl2": 3,
    "local0": 3,
    "local1": 3,
    "local2": 3,
    "minari0": 3,
    "openml1": 3,
    "openx0": 3,
    "openx1": 3,
    "openx2": 3,
    "openx3": 3,
    "roboset0": 3,
    "vd4rl0": 3,
    "vd4rl1": 3,
}
"""Of the time, by the source and the row of its cases in tests/raw."""


def cases():
    for name in sources.names():
        if importlib.util.find_spec(f"raw.{name}") is not None:
            found = getattr(importlib.import_module(f"raw.{name}"), "CASES", [])
            yield from (pytest.param(case, id=f"{name}{row}") for row, case in enumerate(found) if case.many)


@pytest.mark.parametrize("case", [*cases()])
def test_a_conversion_takes_little_more_than_reading_the_raw_files(case, size, expect, run_in_child, tmp_path, request):
    trees = []
    for number, raw_bytes in enumerate(size(full=[100_000, 100_000_000], small=[100_000])):
        trees.append(tmp_path / str(number))
        trees[-1].mkdir()
        case.many(trees[-1], raw_bytes)

    name = request.node.callspec.id
    for jobs in size(full=[1, 2], small=[1]):
        costs = [
            run_in_child(convert, case.id, dict(case.options), trees, tmp_path / "home", jobs)
            for _ in range(size(full=3, small=1))
        ]
        print(f"\n{name}, {jobs} jobs: {costs[0]}")
        expect(
            f"{name}, {jobs} jobs, of the time of reading",
            min(one.seconds / one.alone for one in costs),
            at_most=LIMITS[name],
        )
        expect(f"{name}, {jobs} jobs, MB over the idle process", max(one.peak for one in costs), at_most=500)
