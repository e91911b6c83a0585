"""Runs of batches: the batches of `sample`, read many at a time."""

import pytest
import torch
from stored_data import columns, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SampledBatches,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import MultiStepTransform, RewardScaling


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stored dataset of episodes with 3 to 9 steps."""
    given = [trajectory(3 + number % 7, seed=number, known=number % 3 > 0) for number in range(40)]
    return write_dataset(tmp_path_factory.mktemp("home") / "toy" / "data", given, columns()).folder


def equal(first, second):
    """Return whether two batches have the same keys and values."""
    return set(first.keys(True, True)) == set(second.keys(True, True)) and bool((first == second).all())


def compared(folder, count, batch_size=16, **options):
    """Return the batches of `sample` and those of `batches`, both with the same seed."""
    runs = []
    for as_run in (False, True):
        dataset = load(folder, batch_size=batch_size, **{name: make() for name, make in options.items()})
        torch.manual_seed(3)
        runs.append(list(dataset.batches(count)) if as_run else [dataset.sample() for _ in range(count)])
    return runs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": SamplerWithoutReplacement},
        {"sampler": lambda: SliceSampler(slice_len=2)},
        {"sampler": lambda: PrioritizedSampler(1_000, alpha=0.6, beta=0.4)},
        {"transform": lambda: MultiStepTransform(3, 0.9)},
        {"transform": lambda: RewardScaling(0.0, 2.0)},
        {"transform": lambda: lambda batch: batch},
    ],
    ids=["uniform", "epochs", "slices", "priorities", "n-step", "scaled", "a function"],
)
def test_a_run_has_the_batches_of_sample(folder, options):
    sampled, run = compared(folder, 150, **options)

    assert len(run) == 150
    assert all(equal(one, other) for one, other in zip(sampled, run, strict=True))


def test_a_run_without_a_number_ends_with_the_epoch(folder):
    dataset = load(folder, batch_size=16, sampler=SamplerWithoutReplacement())
    for _ in range(2):
        batches = list(dataset.batches())
        assert [len(batch) for batch in batches[:-1]] == [16] * (len(batches) - 1)
        assert torch.cat([batch["index"] for batch in batches]).sort().values.tolist() == list(range(len(dataset)))


def test_batches_of_a_run_are_written_to_without_changing_each_other(folder):
    dataset = load(folder)
    first, second = dataset.batches(2, batch_size=8)
    before = second.clone()
    first["observation"].fill_(7)
    first["new"] = torch.zeros(8)

    assert equal(second, before)
    assert not (dataset[:]["observation"] == 7).all()


def test_a_ring_buffer_yields_what_it_holds_at_each_batch():
    ring = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    ring.extend(TensorDict({"x": torch.zeros(10)}, [10]))
    values = []
    for batch in ring.batches(5):
        values.append(batch["x"].max().item())
        ring.extend(TensorDict({"x": torch.full((10,), float(len(values)))}, [10]))

    assert values == [0, 1, 2, 3, 4]


def test_priorities_that_a_loop_sets_count_for_its_next_batch(folder):
    dataset = load(folder, sampler=PrioritizedSampler(1_000, alpha=1.0, beta=1.0))
    everything = torch.arange(len(dataset))
    dataset.update_priority(everything, torch.full((len(dataset),), 1e-12))
    for number, batch in enumerate(dataset.batches(10, batch_size=4)):
        assert number == 0 or set(batch["index"].tolist()) == {number - 1}
        dataset.update_priority(everything, (everything == number) + 1e-12)


def test_a_loader_yields_the_same_batches(folder):
    dataset = load(folder, batch_size=16)
    loaded = list(SampledBatches(dataset, batches=5).loader())
    assert len(loaded) == 5
    assert {len(batch) for batch in loaded} == {16}


def test_batches_need_a_size(folder):
    with pytest.raises(InvalidArgumentError, match="no batch size"):
        next(load(folder).batches(3))
    with pytest.raises(InvalidArgumentError, match="batch_size is 0"):
        next(load(folder).batches(3, batch_size=0))
    with pytest.raises(InvalidArgumentError, match="count is -1"):
        next(load(folder).batches(-1, batch_size=4))
    assert list(load(folder).batches(0, batch_size=4)) == []


class _Descending(RandomSampler):
    def sample(self, storage, batch_size):
        rows, info = super().sample(storage, batch_size)
        return rows.sort(descending=True).values, info


class _Ascending(SliceSampler):
    def sample(self, storage, batch_size):
        rows, info = super().sample(storage, batch_size)
        return rows, {**info, "rank": rows.argsort()}


@pytest.mark.parametrize("sampler", [_Descending, lambda: _Ascending(slice_len=2)])
def test_a_run_has_the_batches_of_a_sampler_that_changes_each_batch(folder, sampler):
    sampled, run = compared(folder, 40, sampler=sampler)

    assert all(equal(one, other) for one, other in zip(sampled, run, strict=True))


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SliceSampler(num_slices=4),
        lambda: SliceSampler(slice_len=8, strict_length=False),
        lambda: SliceSampler(slice_len=8, strict_length=False, pad_output=True),
        lambda: SliceSamplerWithoutReplacement(slice_len=2),
    ],
    ids=["by number", "short", "padded", "epochs"],
)
def test_a_run_has_the_slices_of_sample(folder, sampler):
    sampled, run = compared(folder, 40, sampler=sampler)

    assert all(equal(one, other) for one, other in zip(sampled, run, strict=True))
