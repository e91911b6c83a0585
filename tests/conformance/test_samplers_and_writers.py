"""Properties of every sampler and every writer."""

from __future__ import annotations

import pickle

import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import samplers, writers
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import (
    ConsumingSampler,
    EpisodeSampler,
    EpisodeSliceSampler,
    GoalSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from datasets_rl.storages import DatasetStorage, LazyTensorStorage
from datasets_rl.storages.base import Storage
from datasets_rl.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
    WriterEnsemble,
)


class Nothing(Storage):
    """A storage with room for a step and no content."""

    def __init__(self):
        super().__init__(1)

    def get(self, index):
        raise IndexError(index)

    def set(self, cursor, data):
        raise InvalidArgumentError(f"{data} at {cursor}")


@pytest.fixture
def storage(tmp_path):
    return DatasetStorage(write_dataset(tmp_path / "dataset", [trajectory(4), trajectory(6)]))


class SamplerContract:
    """Properties of a sampler. A subclass makes the sampler."""

    def make(self, generator=None) -> Sampler:
        raise NotImplementedError

    def test_batches_are_rows_of_the_storage_and_cover_it(self, storage):
        """The last batch of an epoch may be smaller than requested."""
        sampler = self.make()
        batches = [sampler.sample(storage, 7) for _ in range(100)]

        assert {index.dtype for index, _ in batches} == {torch.int64}
        assert all(index.ndim == 1 and 1 <= len(index) <= 7 for index, _ in batches)
        assert set(torch.cat([index for index, _ in batches]).tolist()) == set(range(10))
        assert all(isinstance(info, dict) for _, info in batches)

    def test_the_global_seed_alone_reproduces_the_batches(self, storage):
        """Users expect torch.manual_seed to be sufficient."""
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            sampler = self.make()
            runs.append([sampler.sample(storage, 7)[0].tolist() for _ in range(3)])

        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]

    def test_a_separate_generator_does_not_advance_the_global_one(self, storage):
        torch.manual_seed(3)
        expected = torch.rand(3)
        torch.manual_seed(3)
        first = self.make(torch.Generator().manual_seed(1)).sample(storage, 7)[0]

        assert torch.equal(torch.rand(3), expected)
        assert torch.equal(self.make(torch.Generator().manual_seed(1)).sample(storage, 7)[0], first)

    def test_a_loaded_state_gives_the_next_batches(self, storage):
        sampler = self.make(torch.Generator().manual_seed(1))
        sampler.sample(storage, 7)
        state = sampler.state_dict()
        expected = [sampler.sample(storage, 7)[0].tolist() for _ in range(3)]
        other = self.make()
        other.load_state_dict(state)

        assert [other.sample(storage, 7)[0].tolist() for _ in range(3)] == expected

    def test_a_state_can_be_saved_and_loaded(self, storage, tmp_path):
        sampler = self.make(torch.Generator().manual_seed(1))
        sampler.sample(storage, 4)
        sampler.dumps(tmp_path / "sampler")
        other = self.make()
        other.loads(tmp_path / "sampler")

        for _ in range(4):
            assert other.sample(storage, 4)[0].tolist() == sampler.sample(storage, 4)[0].tolist()
            assert other.ran_out == sampler.ran_out

    def test_an_invalid_generator_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="generator"):
            self.make().load_state_dict({**self.make().state_dict(), "generator": torch.zeros(3)})

    def test_a_damaged_state_is_refused_when_it_loads_into_a_larger_ring(self):
        """A wrapped ring is first reordered, and the state of its sampler with it."""
        state = self.make().state_dict()
        damaged = dict.fromkeys(state, 7) | {"generator": 7}
        with pytest.raises(InvalidArgumentError, match="generator"):
            self.make().load_state_dict(self.make().renumbered(damaged, 1, 4))

    def test_a_pickled_sampler_gives_the_next_batches(self, storage):
        """Buffers go to other processes."""
        sampler = self.make(torch.Generator().manual_seed(1))
        sampler.sample(storage, 4)
        other = pickle.loads(pickle.dumps(sampler))

        assert other.sample(storage, 4)[0].tolist() == sampler.sample(storage, 4)[0].tolist()

    def test_it_either_ignores_or_accepts_priorities(self, storage):
        sampler = self.make()
        sampler.update_priority(torch.tensor([1]), 2.0, storage=storage)

        assert set(sampler.sample(storage, 4)[0].tolist()) <= set(range(10))

    def test_an_empty_storage_cannot_be_sampled(self):
        with pytest.raises(InvalidArgumentError, match="empty storage"):
            self.make().sample(Nothing(), 1)


class TestRandomSampler(SamplerContract):
    def make(self, generator=None):
        return RandomSampler(generator)

    def test_every_step_has_the_same_probability(self, storage):
        """Chi-square with 9 degrees of freedom: above 27.9 once in a thousand runs; this one is seeded."""
        index, _ = self.make(torch.Generator().manual_seed(0)).sample(storage, 100_000)
        counts = torch.bincount(index, minlength=10).double()

        assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 27.9


class TestGoalSampler(SamplerContract):
    def make(self, generator=None):
        return GoalSampler(geometric=0.9, generator=generator)


class TestSamplerWithoutReplacement(SamplerContract):
    def make(self, generator=None):
        return SamplerWithoutReplacement(generator=generator)


class TestConsumingSampler(SamplerContract):
    def make(self, generator=None):
        return ConsumingSampler(1000, generator=generator)


class TestEpisodeSampler(SamplerContract):
    def make(self, generator=None):
        sampler = EpisodeSampler(pool_steps=7)
        sampler.generator = generator
        return sampler

    def test_an_empty_storage_cannot_be_sampled(self):
        with pytest.raises(InvalidArgumentError, match="episodes of a stored dataset, and the storage is a Nothing"):
            self.make().sample(Nothing(), 1)


class TestEpisodeSliceSampler(SamplerContract):
    def make(self, generator=None):
        sampler = EpisodeSliceSampler(slice_len=1)
        sampler.generator = generator
        return sampler


class TestPrioritizedSampler(SamplerContract):
    def make(self, generator=None):
        return PrioritizedSampler(10, alpha=0.7, beta=0.5, generator=generator)


class TestPrioritizedSliceSampler(SamplerContract):
    def make(self, generator=None):
        return PrioritizedSliceSampler(10, alpha=0.7, beta=0.5, slice_len=1, generator=generator)


class TestSliceSampler(SamplerContract):
    def make(self, generator=None):
        return SliceSampler(slice_len=1, generator=generator)


class TestSliceSamplerWithoutReplacement(SamplerContract):
    def make(self, generator=None):
        return SliceSamplerWithoutReplacement(slice_len=1, generator=generator)


class TestWindowSampler(SamplerContract):
    def make(self, generator=None):
        return WindowSampler(generator=generator)


class WriterContract:
    """Properties of a writer. A subclass makes the writer."""

    def make(self) -> Writer:
        raise NotImplementedError

    def test_the_state_can_be_saved_without_pickled_objects(self, storage, tmp_path):
        writer = self.make()
        writer.register_storage(storage)
        torch.save(writer.state_dict(), tmp_path / "state.pt")
        other = self.make()
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        writer.dumps(tmp_path / "state")
        third = self.make()
        third.loads(tmp_path / "state")

        assert repr(other.state_dict()) == repr(third.state_dict()) == repr(writer.state_dict())
        assert repr(other) == repr(writer)

    def test_the_state_of_another_class_is_refused(self):
        writer = self.make()
        if not writer.state_dict():
            return
        before = repr(writer.state_dict())
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            writer.load_state_dict({"other": 1})
        assert repr(writer.state_dict()) == before


class Writes:
    """Properties of a writer that accepts data. Ranks increase, so that the last elements also rank highest."""

    def writing(self, slots):
        storage, writer = LazyTensorStorage(slots), self.make()
        writer.register_storage(storage)
        return storage, writer

    def steps(self, first, count):
        rewards = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(-1)
        return TensorDict({"next": {"reward": rewards}}, [count])

    def test_the_returned_rows_have_the_data(self):
        storage, writer = self.writing(4)
        for count, written in enumerate([2, 1, 4, 3, 9]):
            data = self.steps(10 * count, written)
            rows = writer.extend(data)

            assert rows.dtype == torch.int64
            assert rows.shape == (written,)
            assert len(rows[rows >= 0]) == min(written, 4)
            assert (storage.take(rows[rows >= 0]) == data[rows >= 0]).all()

    def test_single_writes_and_one_write_of_several_are_the_same(self):
        (one, writer), (several, other) = self.writing(4), self.writing(4)
        data = self.steps(0, 3)

        assert [int(writer.add(step)) for step in data] == other.extend(data).tolist() == [0, 1, 2]
        assert (one.get(slice(None)) == several.get(slice(None))).all()

    def test_writing_nothing_takes_no_rows(self):
        storage, writer = self.writing(4)
        writer.extend(self.steps(0, 3))

        assert writer.extend(self.steps(0, 0)).tolist() == []
        assert storage.write_count == len(storage) == 3

    def test_it_starts_again_after_it_was_emptied(self):
        storage, writer = self.writing(4)
        writer.extend(self.steps(0, 6))
        storage.empty()
        writer.empty()

        assert writer.extend(self.steps(0, 2)).tolist() == [0, 1]

    def test_without_a_storage_a_write_is_an_error(self):
        with pytest.raises(InvalidArgumentError, match="no storage"):
            self.make().extend(self.steps(0, 1))

    def test_a_pickled_writer_continues_at_the_same_row(self):
        """Buffers go to other processes."""
        _, writer = self.writing(4)
        writer.extend(self.steps(0, 3))
        other = pickle.loads(pickle.dumps(writer))

        assert other.extend(self.steps(5, 2)).tolist() == writer.extend(self.steps(5, 2)).tolist()


class TestRoundRobinWriter(Writes, WriterContract):
    def make(self):
        return RoundRobinWriter()


class TestTensorDictRoundRobinWriter(Writes, WriterContract):
    def make(self):
        return TensorDictRoundRobinWriter()


class TestTensorDictMaxValueWriter(Writes, WriterContract):
    def make(self):
        return TensorDictMaxValueWriter()


class TestWriterEnsemble(WriterContract):
    def make(self):
        return WriterEnsemble(RoundRobinWriter(), TensorDictMaxValueWriter())


class TestImmutableDatasetWriter(WriterContract):
    def make(self):
        return ImmutableDatasetWriter()

    @pytest.mark.parametrize("verb", ["add", "extend"])
    def test_writes_are_refused_with_a_remedy(self, verb):
        with pytest.raises(InvalidArgumentError, match=f"cannot {verb} dict: a dataset is read-only") as caught:
            getattr(self.make(), verb)({})
        assert "ReplayBuffer" in caught.value.hint

    def test_a_dataset_cannot_be_emptied(self):
        with pytest.raises(InvalidArgumentError, match="emptied"):
            self.make().empty()


@pytest.mark.parametrize(("module", "contract"), [(samplers, SamplerContract), (writers, WriterContract)])
def test_every_variant_has_its_contract_tested(module, contract):
    """A new module in the folder must have a subclass here."""
    # These use several storages: tests/samplers/test_ensemble.py, tests/test_mixing.py.
    base = {"Sampler", "SamplerEnsemble", "MixtureSampler", "Writer"}
    tested = {f"Test{name}" for name in set(module.__all__) - base}

    present = {one.__name__ for one in contract.__subclasses__()}
    assert tested == present, (
        f"add the classes {sorted(tested - present)} with a method make to this module, each derived from "
        f"{contract.__name__}; remove {sorted(present - tested)}"
    )
