"""Batches from several buffers."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
)
from datasets_rl.storages import LazyTensorStorage, StorageEnsemble


def filled(count):
    storage = LazyTensorStorage(max(count, 1))
    storage.set(range(count), torch.arange(count))
    return storage


@pytest.fixture
def storages():
    return StorageEnsemble(filled(3), filled(5), filled(7))


def three(**kwargs):
    return SamplerEnsemble(RandomSampler(), RandomSampler(), RandomSampler(), **kwargs)


def test_every_part_has_the_number_of_its_buffer(storages):
    index, info = three(num_buffer_sampled=4).sample(storages, 20)

    assert index["index"].shape == (4, 5)
    assert index.batch_size == (4,)
    assert info["buffer_ids"].tolist() == index["buffer_ids"].tolist()
    for number, rows in zip(index["buffer_ids"].tolist(), index["index"].tolist(), strict=True):
        assert max(rows) < (3, 5, 7)[number]


def test_the_index_reads_from_the_storages(storages):
    index, _ = three(sample_from_all=True).sample(storages, 6)

    read = storages.get(index)
    assert [number for number, _ in read] == [0, 1, 2]
    assert [data.tolist() for _, data in read] == index["index"].tolist()


def trajectories(count, length):
    steps = torch.arange(count)
    done = ((steps + 1) % length == 0).unsqueeze(1)
    storage = LazyTensorStorage(count)
    storage.set(range(count), TensorDict({"obs": steps, "next": {"done": done, "truncated": done}}, [count]))
    return storage


def test_entries_of_some_samplers_are_not_lost():
    """Steps of samplers without weights have the weight 1, and marks stay at their steps."""
    storages = StorageEnsemble(trajectories(8, 8), trajectories(8, 8), trajectories(3, 1))
    by_priority = PrioritizedSampler(8, 1.0, 1.0)
    by_priority.update_priority(range(8), range(1, 9))
    slices = SliceSampler(slice_len=2, strict_length=False, pad_output=True)
    sampler = SamplerEnsemble(RandomSampler(), by_priority, slices, sample_from_all=True)
    index, info = sampler.sample(storages, 12)

    weights, rows = info["priority_weight"], index["index"][1].double()
    assert weights.dtype == torch.float32
    assert weights[[0, 2]].tolist() == [[1.0] * 4] * 2
    torch.testing.assert_close(weights[1].double(), 1 / (rows + 1), rtol=1e-6, atol=0)
    assert info["slice_id"].tolist() == [[-1] * 4, [-1] * 4, [2, 2, 5, 5]]
    assert info["collector", "mask"].tolist() == [[True] * 4, [True] * 4, [True, False] * 2]
    nothing, neither, marks = info["next", "truncated"]
    assert nothing is neither is None
    assert marks.squeeze(1).tolist() == [True, False, True, False]


def test_two_buffers_give_no_slice_the_same_number():
    storages = StorageEnsemble(trajectories(8, 4), trajectories(8, 4))
    sampler = SamplerEnsemble(SliceSampler(slice_len=2), SliceSampler(slice_len=2), num_buffer_sampled=6)
    drawn = [sampler.sample(storages, 24)[1]["slice_id"] for _ in range(3)]

    assert len(torch.cat(drawn).unique()) == 3 * 12


def test_a_part_with_too_few_steps_is_refused():
    """Otherwise slices of another length would silently fill it."""
    sampler = SamplerEnsemble(SliceSampler(num_slices=2, strict_length=False))
    with pytest.raises(InvalidArgumentError, match=r"returned 6 of 8 steps, .*same number"):
        sampler.sample(StorageEnsemble(trajectories(9, 3)), 8)


def test_all_buffers_give_a_part_by_default(storages):
    sampler = three(sample_from_all=True, num_buffer_sampled=1)

    assert sampler.sample(storages, 9)[0]["buffer_ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "p", [[1.0, 0.0, 3.0], torch.tensor([2, 0, 6]), (0.25, 0, 0.75)], ids=["list", "tensor", "tuple"]
)
def test_buffers_are_drawn_with_unnormalized_probabilities(storages, p):
    """Chi-square with 1 degree of freedom exceeds 10.8 once in a thousand runs; this run is seeded."""
    torch.manual_seed(0)
    sampler = three(p=p, num_buffer_sampled=10_000)
    counts = torch.bincount(sampler.sample(storages, 10_000)[0]["buffer_ids"], minlength=3).tolist()

    assert counts[1] == 0
    assert (counts[0] - 2500) ** 2 / 2500 + (counts[2] - 7500) ** 2 / 7500 < 10.8
    assert sampler.p.tolist() == [0.25, 0.0, 0.75]


def test_the_probabilities_can_be_set_later(storages):
    sampler = three()
    sampler.p = [0, 1, 0]
    assert set(sampler.sample(storages, 30)[0]["buffer_ids"].tolist()) == {1}
    sampler.p = None
    sampler.num_buffer_sampled = 300
    assert set(sampler.sample(storages, 300)[0]["buffer_ids"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([1.0, -1.0, 1.0], "expected finite numbers >= 0"),
        ([1.0, float("nan"), 1.0], "nan"),
        ([1.0, float("inf"), 1.0], "inf"),
        ([0.0, 0.0, 0.0], "at least one above 0"),
        ([1.0, 1.0], r"shape \[2\], expected \[3\]"),
    ],
    ids=repr,
)
def test_invalid_probabilities_are_refused(p, message):
    with pytest.raises(InvalidArgumentError, match=message):
        three(p=p)
    sampler = three(p=[1, 2, 1])
    with pytest.raises(InvalidArgumentError, match=message):
        sampler.p = p
    assert sampler.p.tolist() == [0.25, 0.5, 0.25]


def test_arguments_that_exclude_each_other_are_refused(storages):
    with pytest.raises(InvalidArgumentError, match="mutually exclusive"):
        three(p=[1, 1, 1], sample_from_all=True)
    with pytest.raises(InvalidArgumentError, match="no sampler"):
        SamplerEnsemble()
    with pytest.raises(InvalidArgumentError, match="num_buffer_sampled is 0"):
        three(num_buffer_sampled=0)
    with pytest.raises(InvalidArgumentError, match="batch_size is 10, expected a multiple of num_buffer_sampled, 3"):
        three().sample(storages, 10)
    with pytest.raises(InvalidArgumentError, match="3 samplers for no storages"):
        three().sample(filled(3), 3)


def test_the_info_of_the_samplers_is_divided_by_part(storages):
    both = SamplerEnsemble(PrioritizedSampler(3, 1.0, 1.0), PrioritizedSampler(5, 1.0, 1.0), sample_from_all=True)

    assert both.sample(storages[:2], 8)[1]["priority_weight"].shape == (2, 4)


def test_a_part_at_the_end_of_an_epoch_is_filled_from_the_next(storages):
    sampler = SamplerEnsemble(*(SamplerWithoutReplacement() for _ in range(3)), sample_from_all=True)
    first = sampler.sample(storages, 12)[0]["index"]

    assert sorted(set(first[0].tolist())) == [0, 1, 2]
    assert sampler.ran_out
    assert len(set(first[1].tolist())) == 4


def test_a_generator_of_the_ensemble_is_that_of_its_samplers(storages):
    generator = torch.Generator().manual_seed(1)
    sampler = three(generator=generator)
    assert all(one.generator is generator for one in sampler.samplers)
    state = sampler.state_dict()
    expected = [sampler.sample(storages, 6)[0]["index"].tolist() for _ in range(3)]
    other = three()
    other.load_state_dict(state)

    assert [other.sample(storages, 6)[0]["index"].tolist() for _ in range(3)] == expected


def test_generators_of_the_samplers_stay_their_own(storages):
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6, 7)]
    sampler = SamplerEnsemble(*map(RandomSampler, generators), sample_from_all=True)
    sampler.sample(storages, 6)
    state = sampler.state_dict()
    expected = [sampler.sample(storages, 6)[0]["index"].tolist() for _ in range(3)]
    other = three(sample_from_all=True)
    other.load_state_dict(state)

    assert [other.sample(storages, 6)[0]["index"].tolist() for _ in range(3)] == expected


def test_changed_probabilities_are_saved():
    sampler = three()
    sampler.p = [0, 1, 3]
    other = three()
    other.load_state_dict(sampler.state_dict())

    assert other.p.tolist() == [0.0, 0.25, 0.75]
    for p in ([1.0, 2.0], "a", [float("nan")] * 3):
        with pytest.raises(InvalidArgumentError, match="p: "):
            other.load_state_dict(sampler.state_dict() | {"p": p})
    assert other.p.tolist() == [0.0, 0.25, 0.75]
    other.load_state_dict(three().state_dict())
    assert other.p is None


@pytest.mark.parametrize("samplers", [None, 3, [1, 2, 3]], ids=repr)
def test_an_invalid_state_is_refused(samplers):
    with pytest.raises(InvalidArgumentError, match="samplers are not a list of states"):
        three().load_state_dict({"samplers": samplers})


def test_a_state_of_other_samplers_is_refused_with_all_reasons():
    sampler = SamplerEnsemble(PrioritizedSampler(2, 1.0, 1.0), SamplerWithoutReplacement())

    with pytest.raises(InvalidArgumentError, match="the state has 1 samplers, expected 2"):
        sampler.load_state_dict({"samplers": [{}]})
    with pytest.raises(
        InvalidArgumentError, match=r"sampler 0: priorities are not a float64 tensor.*sampler 1: held is None"
    ):
        sampler.load_state_dict({"samplers": [{}, {}]})


def test_samplers_are_indexed_by_number_and_slice():
    sampler = three(p=[1, 1, 2])

    assert len(sampler) == 3
    assert sampler[1] is sampler.samplers[1]
    assert sampler[1:].samplers == sampler.samplers[1:]
    assert sampler[1:].p.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert repr(sampler[:1]) == "SamplerEnsemble(RandomSampler())"


def test_after_emptying_all_samplers_start_again(storages):
    members = [PrioritizedSampler(3, 1.0, 1.0), SamplerWithoutReplacement()]
    sampler = SamplerEnsemble(*members, sample_from_all=True)
    sampler.sample(storages[:2], 4)
    sampler.empty()

    assert len(members[0].priorities) == 0
    assert len(sampler.sample(storages[:2], 10)[0]["index"][1].unique()) == 5


def test_every_sampler_is_given_its_storage_and_may_refuse(storages):
    SamplerEnsemble(RandomSampler(), PrioritizedSampler(5, 1.0, 1.0), RandomSampler()).attach(storages)

    with pytest.raises(InvalidArgumentError, match="3 samplers for 2 storages"):
        three().attach(storages[:2])


@pytest.mark.parametrize(("p", "drawn"), [(None, {0, 2}), ([1, 5, 0], {0}), ([3, 9, 1], {0, 2})])
def test_an_empty_buffer_is_drawn_once_it_has_steps(p, drawn):
    late = LazyTensorStorage(5)
    storages, sampler = StorageEnsemble(filled(3), late, filled(7)), three(p=p, num_buffer_sampled=1000)
    numbers = set(sampler.sample(storages, 1000)[0]["buffer_ids"].tolist())
    late.set(range(5), torch.arange(5))

    assert numbers == drawn
    assert set(sampler.sample(storages, 1000)[0]["buffer_ids"].tolist()) == drawn | {1}


def test_without_a_step_in_any_buffer_that_may_be_drawn_there_is_no_batch():
    storages = StorageEnsemble(filled(3), LazyTensorStorage(5), LazyTensorStorage(5))

    with pytest.raises(InvalidArgumentError, match="every buffer that may be drawn is empty"):
        three(p=[0, 1, 1]).sample(storages, 3)
