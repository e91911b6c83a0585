"""What benchmarks do at full size only."""

import pytest
from bench_data import convert, run_in_child
from raw.d4rl import CASES


@pytest.mark.slow
def test_a_conversion_is_measured_in_another_process(tmp_path):
    case = CASES[0]
    case.many(tmp_path / "tree", 100_000)

    cost = run_in_child(convert, case.id, {}, [tmp_path / "tree"], tmp_path / "home")

    assert cost.steps == 1000
    assert cost.stored > 0
    assert cost.seconds > 0
    assert cost.alone > 0
