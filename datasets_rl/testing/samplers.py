"""The contract of samplers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.buffers import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.lazy import LazyTensorStorage
from datasets_rl.testing.contract import refusal, to_write
from datasets_rl.testing.stored_data import trajectory, write_dataset

__all__ = ["SamplerContract"]

STEPS = (4, 6)
"""The lengths of the episodes of the storage."""
ROWS = sum(STEPS)
REWARDS = {
    "bool": [0, 1, 1, 0, 0, 1, 1, 1, 0, 1],
    "uint8": [200, 100, 0, 3, 255, 1, 0, 7, 130, 2],
    "int64": [-3, 0, 5, 1, -1, 700, 0, 2, -40, 11],
    "float64": [-0.25, 0, 1.5, 3, -2, 0.125, 0, 1, 0.5, -1],
}


class _Empty(Storage):
    """A storage with room for a single step and no content."""

    def __init__(self) -> None:
        super().__init__(1)

    @override
    def get(self, index: Any) -> Any:
        raise IndexError(index)

    @override
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise InvalidArgumentError(f"{data} at {cursor}")


class SamplerContract:
    """What every sampler of steps must do. A subclass has `make`.

    A sampler of slices is made with slices of a single step, and a sampler with a capacity with at least 10 steps.
    """

    def make(self, generator: Generator | None = None) -> Sampler:
        """Return a new sampler that draws with a generator, or with torch's global generator if `generator` is None."""
        del generator
        raise to_write(self, "the method make(self, generator=None), which returns a new sampler")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """Return ten steps in two episodes of a stored dataset."""
        return DatasetStorage(write_dataset(tmp_path / "dataset", [trajectory(steps) for steps in STEPS]))

    def test_batches_are_rows_of_the_storage_and_cover_it(self, storage: Storage) -> None:
        """The last batch of an epoch may be smaller than requested."""
        sampler = self.make()
        rows = []
        for _ in range(100):
            drawn = sampler.sample(storage, 7)
            assert isinstance(drawn, tuple), f"sample returns {type(drawn).__name__}. Return a tuple of rows and info"
            index, info = drawn
            assert isinstance(index, Tensor), f"sample returns rows of type {type(index).__name__}. Return a tensor"
            assert index.dtype == torch.int64, f"sample returns rows of dtype {index.dtype}. Return torch.int64"
            assert index.ndim == 1, f"sample returns rows of shape {list(index.shape)}. Return a single axis, [B]"
            assert 1 <= len(index) <= 7, f"sample(storage, 7) returns {len(index)} rows. Return 1 to 7 rows"
            assert isinstance(info, dict), f"sample returns info of type {type(info).__name__}. Return a dict"
            rows.append(index)
        drawn_rows = set(torch.cat(rows).tolist())
        outside, missing = drawn_rows - set(range(ROWS)), set(range(ROWS)) - drawn_rows

        assert not outside, (
            f"sample returns rows {sorted(outside)} of a storage of {ROWS} steps. Return rows below {ROWS}"
        )
        assert not missing, f"100 batches of 7 rows lack the rows {sorted(missing)}. Draw each step of the storage"

    def test_the_rows_of_an_epoch_differ(self, storage: Storage) -> None:
        """Only a sampler that states `has_epochs` has epochs."""
        sampler = self.make(Generator().manual_seed(1))
        if not sampler.has_epochs:
            return
        rows: list[int] = []
        for _ in range(ROWS):
            rows += sampler.sample(storage, 3)[0].tolist()
            if sampler.ran_out:
                break
        again = sorted({row for row in rows if rows.count(row) > 1})

        assert sampler.ran_out, (
            f"ran_out is False after {ROWS} batches of a storage of {ROWS} steps. Set ran_out with the last batch of an"
            " epoch, or state has_epochs = False"
        )
        assert not again, f"an epoch has the rows {again} more than once. Draw each row once before ran_out is True"

    def test_the_global_seed_alone_reproduces_the_batches(self, storage: Storage) -> None:
        """Users expect torch.manual_seed to be sufficient."""
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            sampler = self.make()
            runs.append([sampler.sample(storage, 7)[0].tolist() for _ in range(3)])

        assert runs[0] == runs[1], (
            "two samplers draw other batches after the same torch.manual_seed. Without a generator, draw with torch's"
            " global generator only"
        )
        assert runs[0][0] != runs[0][1], "two batches in a row are the same. Advance the generator with each batch"

    def test_a_separate_generator_does_not_advance_the_global_one(self, storage: Storage) -> None:
        torch.manual_seed(3)
        expected = torch.rand(3)
        torch.manual_seed(3)
        first = self.make(Generator().manual_seed(1)).sample(storage, 7)[0]

        assert torch.equal(torch.rand(3), expected), (
            "a sampler with a generator advances torch's global generator. Pass the generator to each random function"
        )
        assert torch.equal(self.make(Generator().manual_seed(1)).sample(storage, 7)[0], first), (
            "two samplers with generators of the same seed draw other batches. Draw with the generator only"
        )

    def test_a_loaded_state_gives_the_next_batches(self, storage: Storage) -> None:
        sampler = self.make(Generator().manual_seed(1))
        sampler.sample(storage, 7)
        state = sampler.state_dict()
        expected = [sampler.sample(storage, 7)[0].tolist() for _ in range(3)]
        other = self.make()
        other.load_state_dict(state)

        assert [other.sample(storage, 7)[0].tolist() for _ in range(3)] == expected, (
            "a sampler that loaded a state draws other batches than the sampler that saved the state. Add what decides"
            " the next batch to state_dict, as a copy, and restore this state in load_state_dict"
        )

    def test_a_state_can_be_saved_and_loaded(self, storage: Storage, tmp_path: Path) -> None:
        sampler = self.make(Generator().manual_seed(1))
        sampler.sample(storage, 4)
        sampler.dumps(tmp_path / "sampler")
        other = self.make()
        other.loads(tmp_path / "sampler")

        for _ in range(4):
            assert other.sample(storage, 4)[0].tolist() == sampler.sample(storage, 4)[0].tolist(), (
                "a sampler draws other batches after dumps and loads. Have numbers, texts, tensors and lists in"
                " state_dict, and restore all entries in load_state_dict"
            )
            assert other.ran_out == sampler.ran_out, (
                "ran_out differs after dumps and loads. Save the place in the epoch"
            )

    def test_an_invalid_generator_is_refused(self) -> None:
        with refusal(
            InvalidArgumentError,
            "generator",
            "load_state_dict must refuse a generator that is not the state of a generator. Call super().load_state_dict first",
        ):
            self.make().load_state_dict({**self.make().state_dict(), "generator": torch.zeros(3)})

    def test_a_damaged_state_is_refused_when_it_loads_into_a_larger_ring(self) -> None:
        """A wrapped ring is first reordered, together with the state of the sampler."""
        state = self.make().state_dict()
        damaged = dict.fromkeys(state, 7) | {"generator": 7}
        with refusal(
            InvalidArgumentError,
            "generator",
            "renumbered and load_state_dict must refuse a damaged state. Report damage in state_problems",
        ):
            self.make().load_state_dict(self.make().renumbered(damaged, 1, 4))

    def test_a_pickled_sampler_gives_the_next_batches(self, storage: Storage) -> None:
        """Buffers go to other processes."""
        sampler = self.make(Generator().manual_seed(1))
        sampler.sample(storage, 4)
        other = pickle.loads(pickle.dumps(sampler))

        assert other.sample(storage, 4)[0].tolist() == sampler.sample(storage, 4)[0].tolist(), (
            "a pickled sampler draws another batch. Keep the state that decides the next batch in attributes of the sampler"
        )

    def test_it_either_ignores_or_accepts_priorities(self, storage: Storage) -> None:
        sampler = self.make()
        sampler.update_priority(torch.tensor([1]), 2.0, storage=storage)
        rows = set(sampler.sample(storage, 4)[0].tolist())

        assert rows <= set(range(ROWS)), (
            f"after update_priority, sample returns the rows {sorted(rows)}. There are {ROWS}"
        )

    def test_an_empty_storage_cannot_be_sampled(self) -> None:
        message = "episodes of a stored dataset|empty storage" if self.make().needs_episodes else "empty storage"
        with refusal(
            InvalidArgumentError,
            message,
            "sample of an empty storage must raise an InvalidArgumentError that says 'empty storage'",
        ):
            self.make().sample(_Empty(), 1)

    @pytest.mark.parametrize("dtype", REWARDS)
    def test_a_buffer_returns_the_rewards_of_the_drawn_rows(self, storage: Storage, dtype: str) -> None:
        """Rows may have any dtype. A sampler that needs the episodes of a stored dataset gets the episodes, once."""
        sampler = self.make(Generator().manual_seed(1))
        if sampler.needs_episodes:
            rewards = storage.column(("next", "reward"))
            rows, _ = sampler.sample(storage, 5)
            batch = storage.take(rows)
        else:
            rewards = torch.tensor(REWARDS[dtype]).to(getattr(torch, dtype)).unsqueeze(-1)
            data = storage.get(slice(None)).set(("next", "reward"), rewards)
            buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), sampler=sampler, batch_size=5)
            buffer.extend(data)
            batch = buffer.sample()
            rows = batch["index"]

        assert torch.equal(batch["next", "reward"], rewards[rows]), (
            f"a batch of a buffer has the {dtype} rewards {batch['next', 'reward'].tolist()} of the rows"
            f" {rows.tolist()}. Leave entries of the storage alone, and return only own entries as info"
        )
