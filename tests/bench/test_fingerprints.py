"""What the fingerprints of episodes cost a conversion."""

from __future__ import annotations

import os
import shutil

import d4rl_files
import numpy as np
import pytest
from bench_data import converted, short_columns

from datasets_rl.fingerprints.sketch import SKETCH, SKETCH_SIZE
from datasets_rl.format.fingerprints import FingerprintWriter


def none(writer, _columns, _final_states, _runs, ends):
    """Return zeros in place of fingerprints."""
    count = len(ends)
    return np.zeros(count, writer._open.dtype), np.zeros((count, SKETCH_SIZE), SKETCH), np.zeros(count, bool)


@pytest.fixture(params=["long", "short"])
def file(request, tmp_path, size):
    """HalfCheetah's shape in episodes of 1,000 steps, with infos, and in episodes of 5 steps."""
    if request.param == "long":
        return request.getfixturevalue("raw_file")
    return d4rl_files.write(tmp_path / "short.hdf5", short_columns(size(full=200_000, small=200)))


def test_fingerprints_are_a_small_part_of_a_conversion(file, tmp_path, size, expect_exactly, monkeypatch):
    """Seconds of the processors, as least of rounds in turns."""
    real = FingerprintWriter.add

    def seconds(add):
        monkeypatch.setattr(FingerprintWriter, "add", add)
        begun = sum(os.times()[:2])
        converted(file, tmp_path / "root")
        shutil.rmtree(tmp_path / "root")
        return sum(os.times()[:2]) - begun

    seconds(real)  # imports everything
    rounds = [(seconds(real), seconds(none)) for _ in range(size(full=7, small=1))]
    least, without = (min(each) for each in zip(*rounds, strict=True))

    expect_exactly("conversion with fingerprints, of that without", least / max(without, 1e-3), at_most=1.25)
