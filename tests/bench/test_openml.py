"""What a conversion of a table of covertype's size costs, against reading it with pandas alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
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
CONVERT = """
import sys, time
from pathlib import Path
from datasets_rl import library
from datasets_rl.settings import Settings

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def convert(tree, home):
    settings = Settings(home=Path(home), progress=False, jobs=1)
    return library.download(sys.argv[1], from_local=tree, settings=settings)

convert(sys.argv[2], sys.argv[4] + "/small")  # imports, and what is compiled
idle = peak()
start = time.perf_counter()
folder = convert(sys.argv[3], sys.argv[4] + "/large")
took = time.perf_counter() - start
print(folder, took, sum(path.stat().st_size for path in folder.rglob("*")) / 1e6, (peak() - idle) / 1024)
"""


@pytest.mark.bench
def test_a_table_of_half_a_million_rows_is_read_in_bounded_memory(tmp_path, show):
    case = raw.CASES[1]
    raw.many(tmp_path / "small", 1 << 20)
    raw.many(tmp_path / "large", ROWS * 137)
    (table,) = (tmp_path / "large").rglob("*.arff")
    for turn in range(2):
        words = [sys.executable, "-c", BARE, table]
        bare = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        places = [tmp_path / "small", tmp_path / "large", tmp_path / str(turn)]
        words = [sys.executable, "-c", CONVERT, case.id, *places]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        folder, *figures = done.stdout.split()
        took, stored, peak = map(float, figures)
        show(
            f"\nopenml, {ROWS:,} rows: {took:.2f} s, raw {table.stat().st_size / 1e6:.0f} MB, stored {stored:.0f} MB, "
            f"peak {peak:.0f} MB over idle, {took / bare:.1f} of pandas ({bare:.2f} s)"
        )
        assert peak < 500
        assert len(StoredDataset(Path(folder))) == ROWS
