"""The contract of storages."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.testing.contract import listed, refusal, to_write
from datasets_rl.testing.stored_data import Model, Trajectory, plain, trajectory, write_dataset

__all__ = ["StorageContract"]


class StorageContract:
    """What every read-only storage of TED must do. A subclass has `make`, and `elements` for other elements.

    The dataset has three episodes, of 3, 1 and 5 steps. The final state of the second episode is unknown.
    """

    def make(self, steps: DatasetStorage) -> Storage:
        """Return a storage over the steps of a stored dataset."""
        del steps
        raise to_write(self, "the method make(self, steps), which returns a storage over the steps of a stored dataset")

    def trajectories(self) -> Sequence[Trajectory]:
        """Return the episodes of the dataset."""
        return [trajectory(steps, seed=steps, known=steps != 1) for steps in (3, 1, 5)]

    def elements(self) -> list[dict[Key, NDArray[Any]]]:
        """Return the expected elements, in plain Python: by default the nine steps of the dataset."""
        model = Model(self.trajectories())
        return [{key: rows[number] for key, rows in model.rows.items()} for number in range(len(model))]

    @pytest.fixture
    def stored(self, tmp_path: Path) -> StoredDataset:
        """Return the dataset."""
        return write_dataset(tmp_path / "toy", self.trajectories())

    @pytest.fixture
    def storage(self, stored: StoredDataset) -> Storage:
        """Return the storage."""
        return self.make(DatasetStorage(stored))

    def test_its_length_is_its_number_of_elements(self, storage: Storage) -> None:
        count = len(self.elements())

        assert len(storage) == count, f"len of the storage is {len(storage)}, expected {count}, the number of elements"
        assert storage.max_size == count, f"max_size is {storage.max_size}. A read-only storage of {count} is full"

    def test_every_element_has_the_expected_value(self, storage: Storage) -> None:
        for number, expected in enumerate(self.elements()):
            found = plain(storage.get(number))
            missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
            assert not missing, f"get({number}) lacks {listed(missing)}. Return each field of an element"
            assert not more, f"get({number}) has {listed(more)}, too. Return only the fields of elements()"
            for key, values in expected.items():
                assert found[key].tolist() == values.tolist(), (
                    f"get({number}) has {dotted_name(key)} = {found[key].tolist()}, expected {values.tolist()}"
                )

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
    def test_a_batch_is_its_elements_in_the_shape_of_the_index(self, storage: Storage, index: Any) -> None:
        numbers = np.arange(len(storage))[np.asarray(index, np.int64) if isinstance(index, (list, range)) else index]
        batch = storage.get(index)
        shape = tuple(batch.batch_size[: numbers.ndim])

        assert shape == numbers.shape, (
            f"get({index!r}) has the batch size {shape}, expected that of the index, {numbers.shape}"
        )
        for place, number in np.ndenumerate(numbers):
            one = plain(storage.get(int(number)))
            for key, values in plain(batch).items():
                assert values[place].tolist() == one[key].tolist(), (
                    f"get({index!r}) has another {dotted_name(key)} at {place} than get({number})"
                )

    def test_a_mask_chooses_elements(self, storage: Storage) -> None:
        mask = [number % 2 == 1 for number in range(len(storage))]

        for chosen in (mask, np.array(mask), torch.tensor(mask)):
            assert bool((storage.get(chosen) == storage.get(np.flatnonzero(mask))).all()), (
                f"get of a mask of type {type(chosen).__name__} does not return the elements that are True in the mask"
            )

    @pytest.mark.parametrize(
        "wrong",
        [99, -99, [0, 99], torch.tensor([-99]), 1.5, ["a"], [True], True, torch.tensor([0.5]), 10**30],
        ids=repr,
    )
    def test_an_invalid_or_out_of_range_index_is_an_index_error(self, storage: Storage, wrong: Any) -> None:
        with refusal(IndexError, "", f"get({wrong!r}) must raise an IndexError"):
            storage.get(wrong)

    @pytest.mark.parametrize("wrong", [99, -99, [0, 99], torch.tensor([-99])], ids=repr)
    def test_a_row_out_of_range_is_named_with_the_number_of_rows(self, storage: Storage, wrong: Any) -> None:
        with refusal(
            IndexError,
            rf"row -?99 is out of range, expected one of {len(storage)} rows",
            f"get({wrong!r}) must raise an IndexError that names the row and the number of rows",
        ):
            storage.get(wrong)

    def test_a_column_is_that_key_of_all_elements(self, storage: Storage) -> None:
        everything: Any = storage.get(slice(None))
        known: list[Key] = list(self.keys_of(storage))

        for key in known:
            column = storage.column(key)
            assert column.dtype == everything[key].dtype, (
                f"column({key}) is of {column.dtype}, and get returns {everything[key].dtype}. Use the same dtype"
            )
            assert torch.equal(column, everything[key]), f"column({key}) differs from the values of get(slice(None))"
        read = {key if isinstance(key, tuple) else (key,) for key in everything.keys(True, True)}
        assert read == set(known), (
            f"keys() and get differ in {listed(read ^ set(known))}. Name in keys() each field that get returns"
        )

    def keys_of(self, storage: Any) -> Sequence[Key]:
        """Return the keys of a storage, or fail with a sentence."""
        assert hasattr(storage, "keys"), f"{type(storage).__name__} lacks keys(), which returns the keys of the fields"
        return list(storage.keys())

    def test_an_unknown_key_is_an_error_with_the_known_keys(self, storage: Storage) -> None:
        with refusal(
            UnknownKeyError,
            "observation",
            "column of a key that does not exist must raise an UnknownKeyError with the keys",
        ):
            storage.column(("next", "nothing"))

    def test_writing_to_a_batch_does_not_change_the_storage(self, storage: Storage, stored: StoredDataset) -> None:
        before = {path.name: path.read_bytes() for path in stored.folder.iterdir()}
        index = list(range(len(storage)))
        first = storage.get(index).clone()
        for batch in (storage.get(index), storage.get(0), storage.get(slice(None))):
            for leaf in batch.values(include_nested=True, leaves_only=True):
                leaf.fill_(1)
        for key in self.keys_of(storage):
            storage.column(key).fill_(1)

        assert bool((storage.get(index) == first).all()), (
            "a write to a batch or a column changes later batches. Return copies of what the storage keeps"
        )
        assert {path.name: path.read_bytes() for path in stored.folder.iterdir()} == before, (
            "a write to a batch changes the files of the dataset. Return copies of mapped memory"
        )

    def test_leaves_of_a_batch_do_not_share_memory(self, storage: Storage) -> None:
        batch: Any = storage.get([0, 1])
        rest = {key: leaf.clone() for key, leaf in batch.items(include_nested=True, leaves_only=True)}
        for key in list(rest):
            leaf = batch[key]
            leaf.copy_(~leaf if leaf.dtype == torch.bool else leaf + 1)
            for other, kept in rest.items():
                if other != key:
                    assert torch.equal(batch[other], kept), (
                        f"a write to {key} of a batch changes {other} of the batch. Return each field in separate memory"
                    )
            leaf.copy_(rest[key])

    def test_writes_are_refused(self, storage: Any) -> None:
        with refusal(InvalidArgumentError, "read-only", "set must raise an InvalidArgumentError that says 'read-only'"):
            storage[0] = storage[0]
        with refusal(
            InvalidArgumentError, "emptied", "empty must raise an InvalidArgumentError with 'cannot be emptied'"
        ):
            storage.empty()

    def test_iterating_gives_the_elements(self, storage: Any) -> None:
        elements = list(storage)

        assert len(elements) == len(storage), f"iterating gives {len(elements)} elements. There are {len(storage)}"
        for number, element in enumerate(elements):
            assert bool((element == storage.get(number)).all()), (
                f"element {number} of an iteration is not get({number})"
            )

    def test_a_pickle_has_the_paths_and_not_the_data(self, storage: Any, stored: StoredDataset) -> None:
        """A copy for each DataLoader worker could exceed the memory."""
        expected = storage.get(slice(None))
        for key in self.keys_of(storage):
            storage.column(key)
        packed = pickle.dumps(storage)
        again = pickle.loads(packed)

        assert bool((again.get(slice(None)) == expected).all()), "a pickled storage returns other values"
        rows = expected["observation"].numpy()
        assert not any(row.tobytes() in packed for row in rows), (
            "the pickle of a storage has the data. Leave caches out of __getstate__, and open the files again"
        )
        assert "rows" not in vars(pickle.loads(pickle.dumps(stored))), "the pickle of the dataset has the mapped rows"
