"""What a conversion of a table of covertype's size costs, against reading it with pandas alone."""

from __future__ import annotations

import pytest
from bench_data import child, conversion
from raw import openml as raw

from datasets_rl.format.reader import StoredDataset

ROWS = 581_012
BARE = """
import sys, time
import pandas as pd
from sklearn.preprocessing import StandardScaler

start = time.perf_counter()
with open(sys.argv[1], "rb") as stream:
    for line in stream:
        if line.startswith(b"@data"):
            break
    pd.read_csv(stream, header=None)
print(time.perf_counter() - start)
"""


@pytest.mark.bench
def test_a_table_of_half_a_million_rows_is_read_in_bounded_memory(tmp_path, show):
    case = raw.CASES[1]
    raw.many(tmp_path / "small", 1 << 20)
    raw.many(tmp_path / "large", ROWS * 137)
    (table,) = (tmp_path / "large").rglob("*.arff")
    for turn in range(2):
        bare = child(BARE, table)
        cost = conversion(case.id, tmp_path / "small", tmp_path / "large", tmp_path / str(turn))
        show(
            f"\nopenml, {ROWS:,} rows: {cost.seconds:.2f} s, raw {table.stat().st_size / 1e6:.0f} MB, stored {cost.stored:.0f} MB, "
            f"peak {cost.peak:.0f} MB over idle, {cost.seconds / bare:.1f} of pandas ({bare:.2f} s)"
        )
        assert cost.peak < 500
        assert len(StoredDataset(cost.folder)) == ROWS
