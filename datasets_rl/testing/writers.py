"""The contracts of writers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.lazy import LazyTensorStorage
from datasets_rl.testing.contract import refusal, to_write
from datasets_rl.testing.stored_data import trajectory, write_dataset
from datasets_rl.writers.base import Writer

__all__ = ["WriterContract", "WriterStateContract"]


class WriterStateContract:
    """What every writer must do, also a writer that accepts no data. A subclass has `make`."""

    def make(self) -> Writer:
        """Return a new writer."""
        raise to_write(self, "the method make(self), which returns a new writer")

    def test_the_state_can_be_saved_without_pickled_objects(self, tmp_path: Path) -> None:
        writer = self.make()
        writer.register_storage(DatasetStorage(write_dataset(tmp_path / "dataset", [trajectory(4)])))
        torch.save(writer.state_dict(), tmp_path / "state.pt")
        other = self.make()
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        writer.dumps(tmp_path / "state")
        third = self.make()
        third.loads(tmp_path / "state")

        assert repr(other.state_dict()) == repr(third.state_dict()) == repr(writer.state_dict()), (
            "the state of a writer differs after saving and loading. Restore all of state_dict in load_state_dict"
        )
        assert repr(other) == repr(writer), "the repr of a writer differs after a load of the state"

    def test_the_state_of_another_class_is_refused(self) -> None:
        writer = self.make()
        if not writer.state_dict():
            return
        before = repr(writer.state_dict())
        with refusal(
            InvalidArgumentError,
            "does not fit",
            "load_state_dict must refuse the state of another class. List what does not fit in state_problems",
        ):
            writer.load_state_dict({"other": 1})
        assert repr(writer.state_dict()) == before, (
            "a refused state changed the writer. Check a state before any change"
        )


class WriterContract(WriterStateContract):
    """What every writer that accepts data must do.

    The rewards increase from step to step, so that a writer that keeps the highest rewards keeps the last steps.
    """

    def writing(self, slots: int) -> tuple[LazyTensorStorage, Writer]:
        """Return an empty storage of this size, and a writer of the storage."""
        storage, writer = LazyTensorStorage(slots), self.make()
        writer.register_storage(storage)
        return storage, writer

    def steps(self, first: int, count: int) -> Any:
        """Return steps [count] with the rewards first, first + 1, ..."""
        rewards = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(-1)
        return TensorDict({"next": {"reward": rewards}}, [count])

    def test_the_returned_rows_have_the_data(self) -> None:
        storage, writer = self.writing(4)
        for number, count in enumerate([2, 1, 4, 3, 9]):
            data = self.steps(10 * number, count)
            rows = writer.extend(data)

            assert rows.dtype == torch.int64, f"extend returns rows of dtype {rows.dtype}. Return torch.int64"
            assert rows.shape == (count,), f"extend of {count} steps returns rows of shape {list(rows.shape)}"
            kept = rows >= 0
            assert int(kept.sum()) == min(count, 4), (
                f"extend of {count} steps into 4 slots returns {int(kept.sum())} rows >= 0. Return the row of each step"
                " that is kept, and -1 for the others"
            )
            assert bool((storage.take(rows[kept]) == data[kept]).all()), (
                "the rows that extend returns hold other steps. Return the rows in the order of the steps"
            )

    def test_single_writes_and_one_write_of_several_are_the_same(self) -> None:
        (one, writer), (several, other) = self.writing(4), self.writing(4)
        data = self.steps(0, 3)
        rows: list[Any] = [writer.add(step) for step in data]
        single, together = [int(row) for row in rows], other.extend(data).tolist()

        assert single == together == [0, 1, 2], (
            f"add returns the rows {single}, and extend {together}, expected 0, 1, 2"
        )
        assert bool((one.get(slice(None)) == several.get(slice(None))).all()), "add and extend store other values"

    def test_writing_nothing_takes_no_rows(self) -> None:
        storage, writer = self.writing(4)
        writer.extend(self.steps(0, 3))
        rows = writer.extend(self.steps(0, 0)).tolist()

        assert rows == [], f"extend of no steps returns the rows {rows}. Return none"
        assert storage.write_count == len(storage) == 3, "extend of no steps changes the storage. Write nothing"

    def test_it_starts_again_after_it_was_emptied(self) -> None:
        storage, writer = self.writing(4)
        writer.extend(self.steps(0, 6))
        storage.empty()
        writer.empty()
        rows = writer.extend(self.steps(0, 2)).tolist()

        assert rows == [0, 1], f"after empty, extend returns the rows {rows}. Forget all rows in empty, and start at 0"

    def test_without_a_storage_a_write_is_an_error(self) -> None:
        with refusal(
            InvalidArgumentError,
            "no storage",
            "extend of a writer without a storage must raise an InvalidArgumentError with 'no storage'",
        ):
            self.make().extend(self.steps(0, 1))

    def test_a_pickled_writer_continues_at_the_same_row(self) -> None:
        """Buffers go to other processes."""
        _, writer = self.writing(4)
        writer.extend(self.steps(0, 3))
        other = pickle.loads(pickle.dumps(writer))

        assert other.extend(self.steps(5, 2)).tolist() == writer.extend(self.steps(5, 2)).tolist(), (
            "a pickled writer continues at another row. Keep the state that decides the next row in attributes of the writer"
        )
