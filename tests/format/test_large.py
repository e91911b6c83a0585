"""A dataset that is larger than the memory can be opened and sampled; its files are sparse."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset

from datasets_rl.format.npy import NpyStream
from datasets_rl.format.reader import StoredDataset
from datasets_rl.storages import DatasetStorage

BYTES = 400 << 30
SMAPS = Path("/proc/self/smaps")


@pytest.fixture
def large(tmp_path):
    """A dataset of 400 GB in one episode: zeros except for a few written rows."""
    folder = tmp_path / "large"
    write_dataset(folder, [trajectory(5)])
    document = json.loads((folder / "manifest.json").read_text())
    stored = StoredDataset(folder)
    steps = BYTES // stored.schema.record_bytes
    stretch(folder / "rows.npy", stored.schema.record, steps, trailing=stored.schema.record_bytes)
    table = np.load(folder / "episodes.npy")
    table["length"] = steps
    table["return"] = 0
    np.save(folder / "episodes.npy", table)
    document["steps"] = steps
    for entry in document["files"]:
        entry["bytes"] = (folder / entry["path"]).stat().st_size
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


def stretch(path, dtype, rows, *, trailing):
    header = NpyStream(path.with_suffix(".new"), dtype, expected=rows)
    header.discard()
    kept = path.read_bytes()[len(path.with_suffix(".new").read_bytes()) :][: 5 * dtype.itemsize]
    try:
        with path.with_suffix(".new").open("r+b") as stream:
            start = stream.seek(0, os.SEEK_END)
            stream.write(kept)
            stream.truncate(start + rows * dtype.itemsize + trailing)
    except OSError:
        pytest.skip("this file system has no sparse files of that size")
    os.replace(path.with_suffix(".new"), path)


def test_a_dataset_larger_than_the_memory_is_sampled_and_its_columns_are_mapped(large):
    """numpy's copy-on-write mode would reserve memory for all of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory > BYTES:
        pytest.skip("this machine has more memory than the dataset")
    storage = DatasetStorage(StoredDataset(large))

    batch = storage.get(torch.randint(len(storage), (64,), generator=torch.Generator().manual_seed(0)))
    rewards = storage.column(("next", "reward"))

    assert batch.shape == (64,)
    assert not batch["observation"].any()
    assert len(rewards) == len(storage) > 10**9
    rewards[len(storage) - 1] = 7.0
    assert not storage.get(len(storage) - 1)["next", "reward"].any()


@pytest.mark.skipif(not SMAPS.exists(), reason="the access hints are read from /proc")
@pytest.mark.parametrize(("memory", "random"), [(1, True), (1 << 60, False)])
def test_only_files_that_exceed_the_memory_are_read_row_by_row(tmp_path, monkeypatch, memory, random):
    write_dataset(tmp_path / "data", [trajectory(50)])
    monkeypatch.setattr("datasets_rl.storages.dataset.memory_bytes", lambda: memory)

    storage = DatasetStorage(StoredDataset(tmp_path / "data"))

    assert ("rr" in flags_of(tmp_path / "data" / "rows.npy", storage)) == random


def flags_of(path, storage):
    """Return the flags of the memory mapping that the storage reads."""
    address, found = storage._windows.data_ptr(), False
    with SMAPS.open() as stream:
        for line in stream:
            if "-" in line.split()[0] and str(path) in line:
                start, stop = (int(part, 16) for part in line.split()[0].split("-"))
                found = start <= address < stop
            elif line.startswith("VmFlags") and found:
                return line.split()[1:]
    raise AssertionError("the file is not mapped")
