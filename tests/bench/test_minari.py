"""What converting Minari's HDF5 files costs: against reading them with h5py alone, in memory, and on the disk."""

import gymnasium
import h5py
import numpy as np
import pytest
from bench_data import child, conversion
from raw.minari import episodes, write

from datasets_rl import downloading
from datasets_rl.settings import Settings

NAME = "bench/drawn-v0"
H5PY = """
import sys, time, h5py
start, begun = time.perf_counter(), time.process_time()
with h5py.File(sys.argv[1]) as file:
    for name in file:
        group = file[name]
        for column in ("observations", "actions", "rewards", "terminations", "truncations"):
            group[column][()]
print([time.perf_counter() - start, time.process_time() - begun])
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """1000 episodes of 1000 steps, HalfCheetah-shaped, in Minari's layout."""
    root = tmp_path_factory.mktemp("cache")
    steps, count = 1000, 1000
    space = gymnasium.spaces.Box(-1, 1, (17,), np.float64)
    totals = {"total_steps": steps * count, "total_episodes": count}
    folder = write(root, NAME, episodes(space, [2]), space=space, **totals) / "data"
    dice = np.random.default_rng(0)
    with h5py.File(folder / "main_data.hdf5", "w", track_order=True) as file:
        for number in range(count):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": steps, "seed": number})
            columns = {
                "observations": dice.normal(size=(steps + 1, 17)),
                "actions": dice.normal(size=(steps, 6)).astype("f4"),
                "rewards": dice.normal(size=steps),
                "terminations": np.zeros(steps, bool),
                "truncations": np.arange(steps) == steps - 1,
            }
            for name, data in columns.items():
                group.create_dataset(name, data=data, chunks=True, maxshape=(None, *data.shape[1:]))
    return root


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A dataset of the same id, of a few steps."""
    root = tmp_path_factory.mktemp("small")
    space = gymnasium.spaces.Box(-1, 1, (17,), np.float64)
    write(root, NAME, episodes(space, [2]), space=space)
    return root


def test_converting_takes_at_most_half_as_long_again_as_reading_with_h5py(cache, small, tmp_path, show):
    """In time of the processors, and without the digest of the file: half of the writing is done beside the reading."""
    main = cache / NAME / "data" / "main_data.hdf5"
    ratios = []
    for n in range(5):
        wall, cpu = child(H5PY, main)
        cost = conversion(f"minari/{NAME}", small, cache, tmp_path / str(n))
        ratios.append((cost.cpu - cost.fetching_cpu) / cpu)
        show(
            f"\nh5py {cpu:.2f} s of the processors ({wall:.2f} s), converting {cost.cpu - cost.fetching_cpu:.2f} s "
            f"({cost.seconds - cost.fetching:.2f} s); ratio {ratios[-1]:.2f}; {cost.peak:.0f} MB over the idle process"
        )

    assert sorted(ratios)[2] <= 1.5


def test_two_readers_cost_less_than_they_bring(cache, small, tmp_path, show):
    """A reader costs its start once, as much as to read 50 MB, and what goes to the process that writes."""
    costs = {
        jobs: [conversion(f"minari/{NAME}", small, cache, tmp_path / f"{n}-{jobs}", jobs=jobs) for n in range(5)]
        for jobs in (1, 2)
    }

    medians = {jobs: sorted(one.cpu for one in several)[2] for jobs, several in costs.items()}
    for jobs, several in costs.items():
        wall, most = sorted(one.seconds for one in several)[2], max(one.peak for one in several)
        show(f"\njobs {jobs}: {wall:.2f} s, {medians[jobs]:.2f} s of the processors, {most:.0f} MB")
    assert medians[2] <= 2 * medians[1]


def test_the_disk_holds_each_observation_once(cache, tmp_path, show):
    """TorchRL's memory maps hold observation and next observation, the episode, the reward and three flags twice or once."""
    folder = downloading.download(
        "minari/bench/drawn-v0", from_local=cache, settings=Settings(home=tmp_path, progress=False)
    )
    ours = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    theirs = 1_000_000 * (2 * 17 * 8 + 6 * 4 + 8 + 8 + 3)

    show(f"\nours {ours / 1e6:.1f} MB, TorchRL's layout {theirs / 1e6:.1f} MB, ratio {ours / theirs:.2f}")
    assert ours <= 0.6 * theirs
