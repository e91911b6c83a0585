"""What a conversion costs, by source: against digesting the raw files and reading them with their formats' libraries."""

import importlib
import importlib.util

import pytest
from bench_data import convert

from datasets_rl import sources

LIMITS = {
    "atari_dqn0": (3, 100),
    "atari_dqn1": (1.5, 100),
    "d4rl0": (2, 150),
    "dsrl0": (2, 150),
    "exorl0": (3, 100),
    "gen_dgrl0": (1.5, 100),
    "gen_dgrl2": (3, 100),
    "katakomba0": (3, 150),
    "lerobot0": (3, 150),
    "lerobot1": (3, 150),
    "lerobot3": (3, 200),
    "local0": (3, 100),
    "local1": (1.5, 100),
    "local2": (3, 300),
    "minari0": (3, 100),
    "neorl0": (2, 150),
    "og_marl0": (3, 400),
    "ogbench0": (3, 150),
    "ogbench3": (3, 150),
    "openml1": (10, 300),  # its 44 nominal attributes are parsed as text, and read by pandas alone as numbers
    "openx0": (3, 100),
    "openx1": (3, 100),
    "openx2": (3, 100),
    "openx3": (1.5, 100),
    "rl_unplugged0": (3, 100),
    "rl_unplugged1": (3, 150),
    "rl_unplugged2": (5, 100),
    "robomimic0": (5, 150),
    "robomimic1": (10, 200),
    "roboset0": (1.5, 150),
    "vd4rl0": (3, 100),
    "vd4rl1": (3, 150),
}
"""At most so many times the seconds of reading, and MB over the idle process; by source and row of its cases."""


def cases():
    for name in sources.source_names():
        if importlib.util.find_spec(f"raw.{name}") is not None:
            found = getattr(importlib.import_module(f"raw.{name}"), "CASES", [])
            yield from (pytest.param(case, id=f"{name}{row}") for row, case in enumerate(found) if case.many)


@pytest.mark.first(4)
@pytest.mark.parametrize("case", [*cases()])
def test_a_conversion_takes_little_more_than_reading_the_raw_files(
    case, size, expect, expect_exactly, run_in_child, tmp_path, request
):
    trees = []
    for number, raw_bytes in enumerate(size(full=[100_000, 100_000_000], small=[100_000])):
        trees.append(tmp_path / str(number))
        trees[-1].mkdir()
        case.many(trees[-1], raw_bytes)

    arguments = case.id, dict(case.options), trees, tmp_path / "home"
    costs = [run_in_child(convert, *arguments) for _ in range(size(full=3, small=1))]

    name = request.node.callspec.id
    slowest, largest = LIMITS[name]
    print(f"\n{costs[0]}")
    expect(f"{name}, of the time of reading", min(one.seconds / one.alone for one in costs), at_most=slowest)
    expect_exactly(f"{name}, MB over the idle process", max(one.peak for one in costs), at_most=largest)
