"""Ends of the episodes of flat rows: their memory, and files that are longer than a block of flags."""

from __future__ import annotations

import tracemalloc

import h5py
import numpy as np
import pytest

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.reader import FlatReader

_STEPS = 1_000


def _reader(path, rows, *, layout=None, **changes):
    """Return a reader of a file with episodes that have `_STEPS` steps. Every second episode is truncated."""
    last = np.arange(_STEPS - 1, rows, _STEPS)
    flags = {name: np.zeros(rows, np.uint8) for name in ("terminals", "timeouts")}
    flags["terminals"][last[::2]] = flags["timeouts"][last[1::2]] = 1
    arrays = {name: np.zeros((rows, 1), np.float32) for name in ("observations", "actions", "rewards")}
    with h5py.File(path, "w") as file:
        for name, array in {**arrays, **flags, **changes}.items():
            file.create_dataset(name, data=array, chunks=(min(rows, 1 << 16), *array.shape[1:]))
    return FlatReader("local/flat", layout or Layout(inferred=True), "hdf5", {path.name: path}, {})


def _ends(reader, name="a.hdf5"):
    with reader.open_file(name) as file:
        return reader.find_ends(file, reader.plan(file))


def _peak(reader, name):
    """Return the most bytes that finding the ends of a file takes at once."""
    tracemalloc.start()
    try:
        _ends(reader, name)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_memory_for_the_ends_of_episodes_does_not_grow_with_the_steps(tmp_path):
    small, large = (_peak(_reader(tmp_path / f"{rows}.hdf5", rows), f"{rows}.hdf5") for rows in (400_000, 4_000_000))

    assert large - small < 1 << 20  # a flag for each step would be 3.6 MB


@pytest.mark.parametrize("by", ["column", "last-rows"])
def test_nor_does_the_memory_for_marks_of_episodes(tmp_path, by):
    def peak(rows):
        numbers = np.arange(rows) // _STEPS
        marks = numbers if by == "column" else (np.arange(1, rows + 1) % _STEPS == 0).astype(np.float32)
        layout = Layout(inferred=True, by=by, marks="mark")
        return _peak(_reader(tmp_path / f"{rows}.hdf5", rows, layout=layout, mark=marks), f"{rows}.hdf5")

    assert peak(2_000_000) - peak(400_000) < 1 << 20  # the marks alone are 12.8 and 6.4 MB


def test_ends_at_and_after_the_edge_of_a_block_of_flags_are_found(tmp_path):
    rows = 200_000
    terminals, timeouts = np.zeros((2, rows, 1), np.float64)
    terminals[[65_535, 131_072]] = timeouts[[65_536, 131_072]] = 1
    reader = _reader(tmp_path / "a.hdf5", rows, terminals=terminals, timeouts=timeouts)

    flags = [(one.steps["next", "terminated"], one.steps["next", "truncated"]) for one in reader.episodes()]

    terminated, truncated = (np.concatenate(parts)[:, 0] for parts in zip(*flags, strict=True))
    assert np.flatnonzero(terminated).tolist() == [65_535, 131_072]
    assert np.flatnonzero(truncated).tolist() == [65_536, 131_072, 199_999]
    assert reader.counts["both-flags"] == reader.counts["end-without-flag"] == 1


def test_runs_of_a_column_that_cross_a_block_are_one_episode(tmp_path):
    numbers = np.repeat([7, 3, 5, 9], [65_536, 4_464, 80_000, 50_000])
    layout = Layout(inferred=True, by="column", marks="episode")
    unmarked = dict.fromkeys(("terminals", "timeouts"), np.zeros(len(numbers)))
    ends = _ends(_reader(tmp_path / "a.hdf5", len(numbers), layout=layout, episode=numbers, **unmarked))

    assert (ends.numbers.tolist(), ends.lengths.tolist()) == ([7, 3, 5, 9], [65_536, 4_464, 80_000, 50_000])


def test_values_that_are_not_flags_are_counted_over_all_blocks(tmp_path):
    terminals = np.zeros(200_000)
    terminals[[70_000, 199_000]] = 2, np.nan
    reader = _reader(tmp_path / "a.hdf5", len(terminals), terminals=terminals)

    with pytest.raises(ConversionError, match=r"terminals is 2\.0 at row 70,000, expected 0 or 1 \(2 such rows\)"):
        [*reader.episodes()]
