"""What the reader of HDF5, and the episodes of a D4RL file, cost: against h5py alone."""

from __future__ import annotations

from bench_data import NAME, peak, seconds, with_h5py

from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.sources import get_source


def reader(path):
    with Hdf5File(path) as file:
        names = list(file.arrays)
        for _ in file.blocks(names, rows=(8 << 20) // sum(file.arrays[name].row_bytes for name in names)):
            pass


def episodes(path):
    d4rl = get_source("d4rl")
    with d4rl.open(NAME, {d4rl.assets(NAME)[0].path: path}) as opened:
        for _ in opened.episodes():
            pass


def cost(call, path):
    """Seconds, and MB over the idle process."""
    idle = peak()
    return seconds(lambda: READ[call](path)), peak() - idle


READ = {"h5py": with_h5py, "reader": reader, "episodes": episodes}


def test_reading_takes_less_time_than_h5py_alone_and_little_memory(
    raw_file, size, expect, expect_exactly, run_in_child
):
    rounds = [{name: run_in_child(cost, name, raw_file) for name in READ} for _ in range(size(full=5, small=1))]

    for name in ("reader", "episodes"):
        ours, alone = (min(one[each][0] for one in rounds) for each in (name, "h5py"))
        expect(f"{name}, of the time of h5py", ours / alone, at_most=1)
        expect_exactly(f"{name}, MB over the idle process", max(one[name][1] for one in rounds), at_most=150)
