"""The index of trajectories of a storage follows its writes: updates, moves and rebuilds."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import DatasetStorage, LazyTensorStorage, ListStorage
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages import View
from datasets_rl.storages.index import TrajectoryIndex
from datasets_rl.ted.keys import NEXT_DONE
from datasets_rl.writers import RoundRobinWriter


def listed(trajectories):
    bounds = zip(trajectories.firsts, trajectories.firsts + trajectories.lengths, strict=True)
    return [trajectories.rows(np.arange(first, stop)).tolist() for first, stop in bounds]


def steps(done, **more):
    done = torch.tensor(done, dtype=torch.bool)
    return TensorDict({"next": {"done": done.unsqueeze(-1)}, **more}, done.shape)


def ids(*numbers):
    return TensorDict({"episode": torch.tensor(numbers)}, [len(numbers)])


class Reads(LazyTensorStorage):
    """A storage that counts the rows that are read from a column."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.read = []

    def column(self, key):
        return Column(super().column(key), self.read)


class Column:
    def __init__(self, values, read):
        self.values, self.read, self.device = values, read, values.device

    def __getitem__(self, rows):
        self.read.append(len(self.values[rows]))
        return self.values[rows]


@pytest.fixture
def ring():
    return LazyTensorStorage(6)


def write(storage, data):
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend(data)
    return storage


def test_an_update_reads_only_the_written_rows():
    storage = write(Reads(1000), steps([0] * 1000))
    storage.trajectories(end_key=NEXT_DONE)
    storage.read.clear()
    write(storage, steps([1, 0, 0]))
    for _ in range(3):
        storage.trajectories(end_key=NEXT_DONE)

    assert storage.read == [3]


def test_a_change_out_of_order_rebuilds_the_index(ring):
    write(ring, steps([0, 0, 1, 0, 0, 0]))
    ring.trajectories()
    ring.set(4, steps([1])[0])

    assert listed(ring.trajectories()) == [[0, 1, 2], [3, 4], [5]]


def test_each_combination_of_keys_has_a_separate_index(ring):
    write(ring, steps([0, 1, 0, 0], stop=torch.tensor([[True], [False], [False], [False]])))

    assert listed(ring.trajectories()) == [[0, 1], [2, 3]]
    assert listed(ring.trajectories(end_key=("stop",))) == [[0], [1, 2, 3]]
    assert listed(ring.trajectories(end_key=(NEXT_DONE, ("stop",)))) == [[0], [1], [2, 3]]
    assert listed(ring.trajectories()) == [[0, 1], [2, 3]]


def test_many_small_writes_keep_the_map_small(ring):
    """A list of rows that outgrows its space moves to the end; the map is compacted when it is full."""
    index = TrajectoryIndex(None, ("episode",), None)
    for number in range(500):
        write(ring, ids(number % 2))
        index.trajectories(ring)

    assert len(index._order) <= 8 * 6
    assert listed(index.trajectories(ring)) == [[2, 4, 0], [3, 5, 1]]
    assert len(index._lengths) <= 8


def test_unfinished_trajectories_are_forgotten_with_their_rows(ring):
    index = TrajectoryIndex(None, ("episode",), None)
    for number in range(100):
        write(ring, ids(number))
        index.trajectories(ring)

    assert len(index._open) == len(index._groups) == 6
    assert len(index._lengths) <= 8


def test_a_pickled_index_has_no_content(ring):
    write(ring, steps([0, 1, 0]))
    index = TrajectoryIndex(None, None, None)
    index.trajectories(ring)

    assert len(pickle.dumps(index)) < 300
    assert listed(pickle.loads(pickle.dumps(index)).trajectories(ring)) == [[0, 1], [2]]


def test_rows_of_a_dataset_are_sorted_by_step(tmp_path):
    """The rows of a dataset need not be in chronological order."""
    dataset = DatasetStorage(write_dataset(tmp_path, [trajectory(3), trajectory(2)]))

    assert listed(dataset.trajectories()) == [[0, 1, 2], [3, 4]]
    assert dataset.trajectories() is dataset.trajectories(end_key=NEXT_DONE)
    assert listed(dataset.trajectories(end_key=("next", "terminated"))) == [[0, 1, 2, 3, 4]]
    assert listed(View(dataset, np.array([0, 2, 3, 4])).trajectories()) == [[0], [1], [2, 3]]


def test_data_without_fields_has_no_trajectories():
    storage = ListStorage(3)
    storage.set(0, "a")

    with pytest.raises(InvalidArgumentError, match="no field"):
        storage.trajectories()


def test_a_missing_key_is_an_error(ring):
    write(ring, steps([0, 1]))

    with pytest.raises(UnknownKeyError):
        ring.trajectories(traj_key=("nothing",))


def test_a_missing_id_is_ignored_if_the_data_has_the_end_key(ring):
    write(ring, steps([0, 1]))

    assert listed(ring.trajectories(traj_key=("nothing",), end_key=("next", "done"))) == [[0, 1]]
    with pytest.raises(InvalidArgumentError, match=r"no next\.nothing"):
        ring.trajectories(traj_key=("nothing",), end_key=("next", "nothing"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_writes_of_another_process_update_the_index(ring):
    write(ring, steps([0, 0, 1, 0]))
    ring.share()
    assert listed(ring.trajectories()) == [[0, 1, 2], [3]]
    child = multiprocessing.get_context("fork").Process(target=write, args=(ring, steps([1, 0, 0])))
    child.start()
    child.join(60)

    assert child.exitcode == 0
    assert listed(ring.trajectories()) == [[1, 2], [3, 4], [5, 0]]


def test_an_emptied_storage_has_no_trajectories(ring):
    write(ring, steps([0, 0, 0, 0]))
    ring.trajectories()
    ring.empty()
    assert listed(ring.trajectories()) == []

    write(ring, steps([1, 0]))
    assert listed(ring.trajectories()) == [[0], [1]]
