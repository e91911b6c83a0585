"""What the conversion of many short episodes costs: against reading the same arrays with the library of their format."""

from __future__ import annotations

import os
import shutil

import d4rl_files
import numpy as np
import pytest
from bench_data import converted, read_alone, short_columns, with_h5py

from datasets_rl.downloading.run import download
from datasets_rl.settings import Settings


def conversion(path, root):
    converted(path, root)
    shutil.rmtree(root)


def compared(ours, alone, rounds):
    """The ratio of the least times of the processors of two calls, which take turns."""
    ours()  # imports everything
    took = [(cpu_seconds(ours), cpu_seconds(alone)) for _ in range(rounds)]
    return min(one for one, _ in took) / max(min(one for _, one in took), 1e-3)


def cpu_seconds(call):
    """Seconds of the processors, those of all threads."""
    begun = sum(os.times()[:2])
    call()
    return sum(os.times()[:2]) - begun


def test_a_conversion_of_short_episodes_takes_at_most_twice_the_time_of_h5py(tmp_path, size, expect):
    """Measured: 1.8 times. With an object for each episode, it was 5 times."""
    path = d4rl_files.write(tmp_path / "short.hdf5", short_columns(size(full=200_000, small=200)))
    ratio = compared(lambda: conversion(path, tmp_path / "root"), lambda: with_h5py(path), size(full=5, small=1))

    expect("conversion of short episodes, of the time of h5py", ratio, at_most=2)


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_a_conversion_of_own_short_episodes_takes_at_most_twice_the_time_of_its_library(tmp_path, kind, size, expect):
    """Measured: 1.6 and 1.5 times. With an object for each episode, it was 10 times."""
    place = tmp_path / "raw" / "lab" / "short"
    place.mkdir(parents=True)
    columns = short_columns(size(full=200_000, small=200))
    form = '[episodes]\nby = "flags"\n' if kind == "npz" else ""
    (place / "dataset.toml").write_text(f'name = "short"\nlicense = "MIT"\ncitation = "us"\n{form}')
    if kind == "hdf5":
        d4rl_files.write(place / "data.hdf5", columns)
    else:
        np.savez_compressed(place / "data.npz", **columns)

    def convert():
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        download("local/lab/short", from_local=tmp_path / "raw", settings=settings)
        shutil.rmtree(tmp_path / "home")

    ratio = compared(convert, lambda: read_alone(place), size(full=5, small=1))

    expect(f"conversion of short episodes, of the time to read the {kind} file", ratio, at_most=2)
