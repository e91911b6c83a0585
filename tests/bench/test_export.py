"""Export and import of a dataset of HalfCheetah's shape, against writing and reading the same values with each library."""

from __future__ import annotations

import shutil
import time

import h5py
import numpy as np
import pyarrow as pa
import pytest
from exports import export_stored
from gymnasium.spaces import Box
from pyarrow import parquet
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl import downloading, load
from datasets_rl.disk import sync_tree
from datasets_rl.format.schema import Column
from datasets_rl.settings import Settings

minari = pytest.importorskip("minari", reason="pip install minari, with Python 3.11")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer
MinariStorage = pytest.importorskip("minari.dataset.minari_storage").MinariStorage

FLOAT = np.dtype(np.float32)
COLUMNS = [
    Column(("observation",), FLOAT, (17,), shared=True),
    Column(("action",), FLOAT, (6,)),
    Column(("next", "reward"), FLOAT, (1,)),
    *FLAGS,
]


def halfcheetah(seed, steps):
    random, last = np.random.default_rng(seed), (np.arange(steps) == steps - 1)[:, None]
    return Trajectory(
        steps={
            ("action",): random.standard_normal((steps, 6), FLOAT),
            ("next", "reward"): random.standard_normal((steps, 1), FLOAT),
            ("next", "terminated"): last & False,
            ("next", "truncated"): last,
        },
        states={("observation",): random.standard_normal((steps + 1, 17), FLOAT)},
    )


@pytest.fixture(scope="module")
def stored(session_path, size):
    steps = size(full=1000, small=20)
    return write_dataset(
        session_path / "halfcheetah", [halfcheetah(seed, steps) for seed in range(size(full=1000, small=3))], COLUMNS
    )


@pytest.fixture(scope="module")
def episodes(stored):
    """All values in memory, an episode each: observations, actions, rewards, terminations and truncations."""
    table, columns = stored.episodes, {key: np.array(stored.column(key)) for key in (field.key for field in COLUMNS)}
    finals = np.array(stored.final_states(("observation",)))
    return [
        (
            np.append(columns["observation",][start:stop], finals[number : number + 1], 0),
            *(columns[key][start:stop] for key in list(columns)[1:]),
        )
        for number, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True))
    ]


def with_numpy(episodes, out):
    names = ("observation", "action", "reward", "terminated", "truncated")
    for number, arrays in enumerate(episodes):
        np.savez(out / f"{number}.npz", **dict(zip(names, arrays, strict=True)))


def with_h5py(episodes, out):
    with h5py.File(out / "data.hdf5", "w") as file:
        for number, name in enumerate(("observation", "action", "reward", "terminated", "truncated")):
            file[name] = np.concatenate([one[number][:1000] for one in episodes])
        file["final"] = np.stack([one[0][-1] for one in episodes])


def with_pyarrow(episodes, out):
    columns = {}
    for number, name in enumerate(("observation", "action", "reward", "terminated", "truncated")):
        values = np.concatenate([one[number][: len(one[1])] for one in episodes])
        flat = pa.array(values.reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.shape[1] > 1 else flat
    parquet.write_table(pa.table(columns), out / "steps.parquet")


def with_minari(episodes, out):
    space = [Box(-np.inf, np.inf, (size,), np.float32) for size in (17, 6)]
    storage = MinariStorage.new(out / "data", *space, data_format="hdf5")
    storage.update_episodes(
        EpisodeBuffer(
            id=None,
            observations=observation,
            actions=action,
            rewards=reward[:, 0],
            terminations=terminated[:, 0],
            truncations=truncated[:, 0],
            infos={},
        )
        for observation, action, reward, terminated, truncated in episodes
    )


def with_tensordict(stored, out):
    load(stored.folder)[:].memmap(str(out))


LIBRARIES = {
    "npz": (with_numpy, 2),
    "hdf5": (with_h5py, 2),
    "parquet": (with_pyarrow, 1.5),
    "minari": (with_minari, 1),
}


def seconds(action, out, *, synced=False):
    """Return the time of an action until its files are on the disk, which ours sync themselves."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    began = time.perf_counter()
    action()
    if not synced:
        sync_tree(out)
    return time.perf_counter() - began


@pytest.mark.parametrize("to", LIBRARIES)
def test_an_export_takes_about_the_time_of_the_library_of_its_format(to, stored, episodes, tmp_path, size, expect):
    library, limit = LIBRARIES[to]
    out = tmp_path / "out"
    rounds = range(size(full=5, small=1))

    alone = min(seconds(lambda: library(episodes, out), out) for _ in rounds)
    ours = min(seconds(lambda: export_stored(stored, to, out / "x"), out, synced=True) for _ in rounds)

    expect(f"export to {to}, {ours:.2f} s, of the time of its library", ours / alone, at_most=limit)


def test_an_export_to_torchrl_takes_about_the_time_of_tensordict(stored, tmp_path, size, expect):
    out = tmp_path / "out"
    rounds = range(size(full=5, small=1))

    alone = min(seconds(lambda: with_tensordict(stored, out), out) for _ in rounds)
    ours = min(seconds(lambda: export_stored(stored, "torchrl", out / "x"), out, synced=True) for _ in rounds)

    expect(f"export to torchrl, {ours:.2f} s, of the time of tensordict", ours / alone, at_most=1.5)


READERS = {
    "npz": lambda folder: [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))],
    "hdf5": lambda folder: [item[()] for item in _datasets(folder / "data.hdf5")],
    "parquet": lambda folder: parquet.read_table(folder / "steps.parquet"),
    "minari": lambda folder: list(minari.MinariDataset(folder / "data").iterate_episodes()),
}


def _datasets(path):
    names = []
    file = h5py.File(path)
    file.visititems(lambda _, item: names.append(item) if isinstance(item, h5py.Dataset) else None)
    return names


@pytest.mark.parametrize("to", READERS)
def test_an_import_takes_a_small_multiple_of_reading_with_the_library_and_writing_the_same_bytes(
    to, stored, tmp_path, size, expect
):
    folder = export_stored(stored, to, tmp_path / "out")
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    name = "minari/toy/data-v0" if to == "minari" else "local/toy"
    out = tmp_path / "copy"

    def copied():
        READERS[to](folder)
        shutil.copytree(stored.folder, out / "x")

    rounds = range(size(full=3, small=1))
    alone = min(seconds(copied, out) for _ in rounds)
    ours = min(
        seconds(lambda: downloading.download(name, from_local=folder, settings=settings, force=True), out, synced=True)
        for _ in rounds
    )

    expect(f"import from {to}, {ours:.2f} s, of reading with its library and writing as much", ours / alone, at_most=10)
