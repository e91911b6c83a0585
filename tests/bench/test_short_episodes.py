"""What the conversion of many short episodes costs: against reading the same arrays with h5py alone."""

from __future__ import annotations

import os
import shutil

import d4rl_files
import numpy as np
from bench_data import converted, with_h5py

LENGTH = 5


def short_file(path, episodes):
    """Write a D4RL file of HalfCheetah's columns with episodes of `LENGTH` steps."""
    steps = episodes * LENGTH
    generator = np.random.default_rng(0)
    states = generator.standard_normal((episodes, LENGTH + 1, 17), np.float32)
    ends = np.arange(steps) % LENGTH == LENGTH - 1
    terminals = ends & (np.arange(steps) % (2 * LENGTH) < LENGTH)
    columns = {
        "actions": generator.standard_normal((steps, 6), np.float32),
        "observations": states[:, :-1].reshape(steps, 17),
        "rewards": generator.standard_normal(steps, np.float32),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "next_observations": states[:, 1:].reshape(steps, 17),
    }
    return d4rl_files.write(path, columns)


def conversion(path, root):
    converted(path, root)
    shutil.rmtree(root)


def cpu_seconds(call):
    """Seconds of the processors, those of all threads."""
    begun = sum(os.times()[:2])
    call()
    return sum(os.times()[:2]) - begun


def test_a_conversion_of_short_episodes_takes_at_most_twice_the_time_of_h5py(tmp_path, size, expect):
    """Measured: 1.8 times; with one object per episode, it was 5 times."""
    path = short_file(tmp_path / "short.hdf5", size(full=200_000, small=200))
    calls = {"ours": lambda: conversion(path, tmp_path / "root"), "h5py": lambda: with_h5py(path)}
    calls["ours"]()  # imports everything

    rounds = [{name: cpu_seconds(call) for name, call in calls.items()} for _ in range(size(full=5, small=1))]
    ours, alone = (min(one[name] for one in rounds) for name in calls)

    expect("conversion of short episodes, of the time of h5py", ours / max(alone, 1e-3), at_most=2)
