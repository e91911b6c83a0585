"""What two readers cost, and what Minari's datasets take on the disk."""

from __future__ import annotations

import pytest
from bench_data import convert
from raw import minari as raw

CASE = raw.CASES[0]
BYTES = 2 * 17 * 8 + 6 * 4 + 8 + 8 + 3
"""Of a step in TorchRL's memory maps: both observations, action, episode, reward, three flags."""


@pytest.fixture
def trees(tmp_path, size):
    found = []
    for number, raw_bytes in enumerate(size(full=[100_000, 400_000_000], small=[100_000])):
        found.append(tmp_path / str(number))
        CASE.many(found[-1], raw_bytes)
    return found


@pytest.mark.slow
def test_two_readers_cost_less_than_they_bring(trees, tmp_path, size, expect, run_in_child):
    """A reader costs its start once, as much as to read 50 to 100 MB, and what goes to the process that writes."""
    cpu = {1: [], 2: []}
    for _ in range(size(full=5, small=1)):
        for jobs, values in cpu.items():
            values.append(run_in_child(convert, CASE.id, {}, trees, tmp_path / "home", jobs).cpu)

    one, two = map(min, cpu.values())
    expect("time of the processors with two readers, of that with one", two / max(one, 1e-3), at_most=2)


@pytest.mark.slow
def test_the_disk_holds_each_observation_once(trees, tmp_path, expect_exactly):
    cost = convert(CASE.id, {}, trees[-1:], tmp_path / "home")

    expect_exactly("disk, of what TorchRL's layout takes", cost.stored / (cost.steps * BYTES), at_most=0.6)
