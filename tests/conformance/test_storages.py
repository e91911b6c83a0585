"""Properties of every read-only storage over a dataset."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from stored_data import Model, plain, trajectory, write_dataset

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View

LENGTHS = (3, 1, 5)
ROWS = np.array([0, 1, 4, 5, 7])
"""Rows of the selection: they divide episode 0 once and episode 2 twice, and exclude episode 1."""


def read_elsewhere(storages, queue):
    """Read batches; runs in a spawned process, which shares no memory with this one."""
    queue.put([{key: values.tolist() for key, values in plain(one.get([0, -1])).items()} for one in storages])


class StorageContract:
    """Properties of a read-only storage of TED. A subclass makes `storage`, and computes element i."""

    @pytest.fixture
    def stored(self, tmp_path):
        return write_dataset(tmp_path / "toy", self.trajectories())

    def trajectories(self):
        return [trajectory(steps, seed=steps, known=steps != 1) for steps in LENGTHS]

    @pytest.fixture
    def storage(self, stored):
        raise NotImplementedError

    def elements(self) -> list[dict]:
        """Return the expected elements, computed in plain Python."""
        raise NotImplementedError

    def test_its_length_is_its_number_of_elements(self, storage):
        assert len(storage) == len(self.elements()) == storage.max_size

    def test_every_element_has_the_expected_value(self, storage):
        for number, expected in enumerate(self.elements()):
            got = plain(storage.get(number))
            assert set(got) == set(expected)
            for key in expected:
                assert got[key].tolist() == expected[key].tolist(), key

    @pytest.mark.parametrize(
        "index",
        [
            [0, 2, -1],
            slice(None, None, -1),
            slice(5, 2),
            range(1, 3),
            torch.tensor([[0, 1], [2, -1]]),
            torch.tensor([2, 0], dtype=torch.int32),
            np.array([2, 1, 0])[::-1],
            [],
        ],
        ids=repr,
    )
    def test_a_batch_is_its_elements_in_the_shape_of_the_index(self, storage, index):
        numbers = np.arange(len(storage))[np.asarray(index, np.int64) if isinstance(index, (list, range)) else index]
        batch = storage.get(index)

        assert tuple(batch.batch_size[: numbers.ndim]) == numbers.shape
        for place, number in np.ndenumerate(numbers):
            one = plain(storage.get(int(number)))
            for key, values in plain(batch).items():
                assert values[place].tolist() == one[key].tolist()

    def test_a_mask_chooses_elements(self, storage):
        mask = [number % 2 == 1 for number in range(len(storage))]

        for chosen in (mask, np.array(mask), torch.tensor(mask)):
            assert (storage.get(chosen) == storage.get(np.flatnonzero(mask))).all()

    @pytest.mark.parametrize(
        "wrong",
        [99, -99, [0, 99], torch.tensor([-99]), 1.5, ["a"], [True], True, torch.tensor([0.5]), 10**30],
        ids=repr,
    )
    def test_an_invalid_or_out_of_range_index_is_an_index_error(self, storage, wrong):
        with pytest.raises(IndexError):
            storage.get(wrong)

    @pytest.mark.parametrize("wrong", [99, -99, [0, 99], torch.tensor([-99])], ids=repr)
    def test_a_row_out_of_range_is_named_with_the_number_of_rows(self, storage, wrong):
        with pytest.raises(IndexError, match=rf"row -?99 is out of range, expected one of {len(storage)} rows"):
            storage.get(wrong)

    def test_a_column_is_that_key_of_all_elements(self, storage):
        everything = storage.get(slice(None))

        for key in list(storage.keys()):
            column = storage.column(key)
            assert column.dtype == everything[key].dtype
            assert torch.equal(column, everything[key])
        assert {key if isinstance(key, tuple) else (key,) for key in everything.keys(True, True)} == set(storage.keys())

    def test_an_unknown_key_is_an_error_with_the_known_keys(self, storage):
        with pytest.raises(UnknownKeyError, match="observation"):
            storage.column(("next", "nothing"))

    def test_writing_to_a_batch_does_not_change_the_storage(self, storage, stored):
        before = {path.name: path.read_bytes() for path in stored.folder.iterdir()}
        index = list(range(len(storage)))
        first = storage.get(index).clone()
        for batch in (storage.get(index), storage.get(0), storage.get(slice(None))):
            for leaf in batch.values(include_nested=True, leaves_only=True):
                leaf.fill_(1)
        for key in list(storage.keys()):
            storage.column(key).fill_(1)

        assert (storage.get(index) == first).all()
        assert {path.name: path.read_bytes() for path in stored.folder.iterdir()} == before

    def test_leaves_of_a_batch_do_not_share_memory(self, storage):
        batch = storage.get([0, 1])
        rest = {key: leaf.clone() for key, leaf in batch.items(include_nested=True, leaves_only=True)}
        for key in list(rest):
            leaf = batch[key]
            leaf.copy_(~leaf if leaf.dtype == torch.bool else leaf + 1)
            for other, kept in rest.items():
                if other != key:
                    assert torch.equal(batch[other], kept)
            leaf.copy_(rest[key])

    def test_writes_are_refused(self, storage):
        with pytest.raises(InvalidArgumentError, match="read-only"):
            storage[0] = storage[0]
        with pytest.raises(InvalidArgumentError, match="emptied"):
            storage.empty()

    def test_iterating_gives_the_elements(self, storage):
        for number, element in enumerate(storage):
            assert (element == storage.get(number)).all()

    def test_a_pickle_has_the_paths_and_not_the_data(self, storage, stored):
        """One copy per DataLoader worker could exceed the memory."""
        expected = storage.get(slice(None))
        for key in list(storage.keys()):
            storage.column(key)
        packed = pickle.dumps(storage)
        again = pickle.loads(packed)

        assert (again.get(slice(None)) == expected).all()
        assert expected["observation"].numpy().tobytes() not in packed
        assert "rows" not in vars(pickle.loads(pickle.dumps(stored)))


class TestDatasetStorage(StorageContract):
    @pytest.fixture
    def storage(self, stored):
        return DatasetStorage(stored)

    def elements(self):
        model = Model(self.trajectories())
        return [{key: rows[number] for key, rows in model.rows.items()} for number in range(len(model))]


class TestTruncatedIsNotDone(TestDatasetStorage):
    def trajectories(self):
        return [trajectory(steps, seed=steps, terminated=steps == 3) for steps in LENGTHS]

    @pytest.fixture
    def storage(self, stored):
        return DatasetStorage(stored, truncated_as_done=False)

    def elements(self):
        return [one | {("next", "done"): one["next", "terminated"]} for one in super().elements()]


class TestViewOfRows(StorageContract):
    @pytest.fixture
    def storage(self, stored):
        return View(DatasetStorage(stored), ROWS)

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
    @pytest.fixture
    def storage(self, stored):
        return View(DatasetStorage(stored), None, dict.fromkeys(SOME))

    def elements(self):
        return [{key: one[key] for key in SOME} for one in super().elements()]


NAMES = {("state",): ("observation",), ("label",): ("episode",)}


class TestViewWithSecondNames(TestViewOfRows):
    @pytest.fixture
    def storage(self, stored):
        return View(DatasetStorage(stored), ROWS).with_names(NAMES)

    def elements(self):
        return [one | {name: one[key] for name, key in NAMES.items()} for one in super().elements()]

    def test_a_second_name_may_be_read_without_the_first(self, storage):
        chosen = storage.with_keys([("state",), ("action",)])

        assert set(plain(chosen.get([0, 2]))) == {("state",), ("action",)}
        assert torch.equal(chosen.column(("state",)), storage.column(("observation",)))

    test_a_selected_end_keeps_its_flags_and_its_final_state = None
    test_leaves_of_a_batch_do_not_share_memory = None


class TestDeviceStorage(TestDatasetStorage):
    @pytest.fixture
    def storage(self, stored):
        return DeviceStorage(DatasetStorage(stored), "cpu")


class TestViewOfRowsOnADevice(TestViewOfRows):
    @pytest.fixture
    def storage(self, stored):
        return DeviceStorage(View(DatasetStorage(stored), ROWS), "cpu")

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
    @pytest.fixture
    def storage(self, stored):
        return View(DatasetStorage(stored, truncated_as_done=False), np.arange(9), FIELDS)

    def elements(self):
        model = Model(self.trajectories())
        return [{key: model.rows[key][number] for key in FIELDS} for number in range(9)]

    def test_fields_are_read_in_their_dtype(self, storage):
        assert storage.get(0)["observation"].dtype == torch.float64
        assert storage.get(0)["next", "reward"].dtype == torch.float32


class TestPaddedTrajectories(StorageContract):
    @pytest.fixture
    def storage(self, stored):
        return PaddedTrajectories(DatasetStorage(stored))

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
    @pytest.fixture
    def storage(self, stored):
        return PaddedTrajectories(View(DatasetStorage(stored), ROWS))

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
