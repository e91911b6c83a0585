"""The contract of storages, for every read-only storage over a dataset."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch
from stored_data import Model, plain, trajectory, write_dataset

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View
from datasets_rl.testing import StorageContract

LENGTHS = (3, 1, 5)
ROWS = np.array([0, 1, 4, 5, 7])
"""Rows of the selection: they divide episode 0 once and episode 2 twice, and exclude episode 1."""


def read_elsewhere(storages, queue):
    """Read batches; runs in a spawned process, which shares no memory with this one."""
    queue.put([{key: values.tolist() for key, values in plain(one.get([0, -1])).items()} for one in storages])


class TestDatasetStorage(StorageContract):
    def make(self, steps):
        return steps


class TestTruncatedIsNotDone(TestDatasetStorage):
    def trajectories(self):
        return [trajectory(steps, seed=steps, terminated=steps == 3) for steps in LENGTHS]

    def make(self, steps):
        return DatasetStorage(steps.stored, truncated_as_done=False)

    def elements(self):
        return [one | {("next", "done"): one["next", "terminated"]} for one in super().elements()]


class TestViewOfRows(StorageContract):
    def make(self, steps):
        return View(steps, ROWS)

    def elements(self):
        model = Model(self.trajectories())
        del model.rows["next", "final_known"]  # no selected row has an unknown next state
        rows = [{key: rows[number] for key, rows in model.rows.items()} for number in ROWS]
        for place in (1, 3, 4):
            rows[place] |= {("next", "truncated"): np.array([True]), ("next", "done"): np.array([True])}
        for row, number in zip(rows, (0, 0, 1, 1, 2), strict=True):
            row["episode",] = np.array(number)
        return rows

    def test_an_episode_ends_where_rows_are_missing_with_the_true_observation_after_it(self, storage):
        table = storage.episodes
        rewards = storage.column(("next", "reward"))[:, 0].double()

        assert [list(rows) for rows in table] == [[0, 1], [2, 3], [4]]
        assert table["source"].tolist() == [0, 2, 2]
        assert table["final_known"].tolist() == [True, True, True]
        assert table["return"].tolist() == pytest.approx([float(rewards[list(rows)].sum()) for rows in table])
        assert torch.equal(storage.get(1)["next", "observation"], storage.dataset.get(2)["observation"])

    def test_a_selected_end_keeps_its_flags_and_its_final_state(self, stored):
        storage = View(DatasetStorage(stored), np.array([2, 3, 8]))

        assert storage.episodes["final_known"].tolist() == [True, False, True]
        assert (storage.get(slice(None)) == storage.dataset.get([2, 3, 8])).all()

    @pytest.mark.parametrize("rows", [[], [1, 1], [2, 1]], ids=repr)
    def test_rows_must_be_increasing_and_unique(self, stored, rows):
        with pytest.raises(InvalidArgumentError, match="ascending"):
            View(DatasetStorage(stored), np.array(rows, np.int64))


SOME = (("observation",), ("next", "observation"), ("next", "final_known"), ("action",))


class TestViewOfFields(TestDatasetStorage):
    def make(self, steps):
        return View(steps, None, dict.fromkeys(SOME))

    def elements(self):
        return [{key: one[key] for key in SOME} for one in super().elements()]


NAMES = {("state",): ("observation",), ("label",): ("episode",)}


class TestViewWithSecondNames(TestViewOfRows):
    def make(self, steps):
        return View(steps, ROWS).with_names(NAMES)

    def elements(self):
        return [one | {name: one[key] for name, key in NAMES.items()} for one in super().elements()]

    def test_a_second_name_may_be_read_without_the_first(self, storage):
        chosen = storage.with_keys([("state",), ("action",)])

        assert set(plain(chosen.get([0, 2]))) == {("state",), ("action",)}
        assert torch.equal(chosen.column(("state",)), storage.column(("observation",)))

    test_a_selected_end_keeps_its_flags_and_its_final_state = None
    test_leaves_of_a_batch_do_not_share_memory = None


class TestDeviceStorage(TestDatasetStorage):
    def make(self, steps):
        return DeviceStorage(steps, "cpu")


class TestViewOfRowsOnADevice(TestViewOfRows):
    def make(self, steps):
        return DeviceStorage(View(steps, ROWS), "cpu")

    test_rows_must_be_increasing_and_unique = None
    test_a_selected_end_keeps_its_flags_and_its_final_state = None
    test_an_episode_ends_where_rows_are_missing_with_the_true_observation_after_it = None


FIELDS = {
    ("observation",): torch.float64,
    ("next", "reward"): None,
    ("next", "truncated"): None,
    ("next", "final_known"): None,
}


class TestSelectedFields(StorageContract):
    def make(self, steps):
        return View(DatasetStorage(steps.stored, truncated_as_done=False), np.arange(9), FIELDS)

    def elements(self):
        model = Model(self.trajectories())
        return [{key: model.rows[key][number] for key in FIELDS} for number in range(9)]

    def test_fields_are_read_in_their_dtype(self, storage):
        assert storage.get(0)["observation"].dtype == torch.float64
        assert storage.get(0)["next", "reward"].dtype == torch.float32


class TestPaddedTrajectories(StorageContract):
    def make(self, steps):
        return PaddedTrajectories(steps)

    def elements(self):
        model = Model(self.trajectories())
        return [self.padded(model, start, length) for start, length in zip(model.starts, model.lengths, strict=True)]

    def padded(self, model, start, length):
        mask = np.arange(max(model.lengths)) < length
        element = {("mask",): mask}
        for key, rows in model.rows.items():
            element[key] = np.zeros((len(mask), *rows[0].shape), rows[0].dtype)
            element[key][:length] = rows[start : start + length]
        return element

    def test_batches_are_episodes_by_steps(self, storage):
        assert tuple(storage.get([0, 1]).batch_size) == (2, 5)
        assert tuple(storage.get(0).batch_size) == (5,)
        assert storage.get([1])["mask"].tolist() == [[True, False, False, False, False]]


class TestPaddedSelection(TestPaddedTrajectories):
    def make(self, steps):
        return PaddedTrajectories(View(steps, ROWS))

    def elements(self):
        model = Model(self.trajectories())
        del model.rows["next", "final_known"]
        for key in list(model.rows):
            model.rows[key] = [model.rows[key][number] for number in ROWS]
        for place in (1, 3, 4):
            model.rows["next", "truncated"][place] = model.rows["next", "done"][place] = np.array([True])
        model.rows["episode",] = [np.array(number) for number in (0, 0, 1, 1, 2)]
        model.lengths = [2, 2, 1]
        return [self.padded(model, start, length) for start, length in ((0, 2), (2, 2), (4, 1))]

    def test_batches_are_episodes_by_steps(self, storage):
        assert tuple(storage.get([0, 1]).batch_size) == (2, 2)


@pytest.mark.usefixtures("warm_python")
def test_another_process_reads_the_same(tmp_path):
    """Spawned, as DataLoader workers are on macOS and Windows: the files are mapped again there."""
    dataset = DatasetStorage(write_dataset(tmp_path, [trajectory(steps, seed=steps) for steps in LENGTHS]))
    storages = [dataset, View(dataset, ROWS), PaddedTrajectories(dataset)]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=read_elsewhere, args=(storages, queue))
    process.start()
    got = queue.get(timeout=60)
    process.join()

    for storage, elsewhere in zip(storages, got, strict=True):
        assert elsewhere == {key: values.tolist() for key, values in plain(storage.get([0, -1])).items()}
