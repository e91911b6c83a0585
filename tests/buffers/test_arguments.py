"""Constructors reject invalid arguments, and the message says what was expected."""

from __future__ import annotations

import pytest
import torch
from tensordict import MemoryMappedTensor, TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import Compose, DoubleToFloat


@pytest.mark.parametrize(
    ("made", "options", "says"),
    [
        (ReplayBuffer, {"dim_extend": "time"}, "dim_extend is 'time', expected an integer >= 0"),
        (ReplayBuffer, {"dim_extend": 0.5, "collate_fn": 5}, "dim_extend is 0.5.*collate_fn 5 is not callable"),
        (ReplayBuffer, {"generator": 5}, "generator is 5, expected a torch.Generator"),
        (LazyTensorStorage, {"max_size": 9, "device": "nope"}, "device is 'nope', expected"),
        (ListStorage, {"device": 3.5}, "device is 3.5, expected"),
        (LazyTensorStorage, {"max_size": 10**30}, "max_size is 1000.*expected an integer below"),
        (LazyMemmapStorage, {"max_size": 9, "scratch_dir": 5}, "scratch_dir is 5, expected a path"),
        (PrioritizedSampler, {"max_capacity": "9", "alpha": 1, "beta": 1}, "max_capacity is '9', expected an integer"),
        (PrioritizedSampler, {"max_capacity": 10**30, "alpha": 1, "beta": 1}, "max_capacity is 1000"),
        (PrioritizedSampler, {"max_capacity": 9, "alpha": 1, "beta": 1, "dtype": 5}, "dtype is 5, expected"),
        (SliceSampler, {"slice_len": "9"}, "^slice_len is '9', expected an integer >= 1$"),
        (SliceSampler, {"slice_len": 0}, "^slice_len is 0, expected an integer >= 1$"),
        (SliceSampler, {"slice_len": 2, "ends": [True]}, r"ends is \[True\], expected a tensor"),
        (SliceSampler, {"slice_len": 2, "traj_key": 5}, "5 is not a key"),
        (SamplerWithoutReplacement, {"rank": "0", "world_size": 2}, "rank is '0', expected"),
        (TensorDictMaxValueWriter, {"rank_key": 5}, "5 is not a key"),
    ],
)
def test_an_invalid_argument_is_refused(made, options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        made(**options)


@pytest.mark.parametrize(
    ("made", "parts", "options", "says"),
    [
        (ReplayBufferEnsemble, [5], {}, "5: expected instances of ReplayBuffer"),
        (StorageEnsemble, [LazyTensorStorage(1), 5], {}, "5: expected instances of Storage"),
        (SamplerEnsemble, [5], {"num_buffer_sampled": "1"}, "5 has no method sample.*num_buffer_sampled is '1'"),
        (SamplerEnsemble, [RandomSampler()], {"p": "a"}, "p is 'a', expected a number per sampler"),
    ],
    ids=["buffers", "storages", "samplers", "chances"],
)
def test_an_invalid_member_of_an_ensemble_is_refused(made, parts, options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        made(*parts, **options)


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_buffer_is_shared_from_the_start_if_asked(prefetch):
    rb = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=2, prefetch=prefetch, shared=True)

    rb.extend(torch.arange(5))

    assert rb.sample().shape == (2,)


def test_more_steps_than_fit_in_memory_are_refused_and_nothing_is_stored():
    rb = ReplayBuffer(storage=LazyTensorStorage(10**17))

    with pytest.raises(InvalidArgumentError, match=r"100,000,000,000,000,000 steps need 800,000.* bytes"):
        rb.extend(torch.zeros(3))

    assert len(rb) == 0


def test_tensors_without_values_are_refused():
    with pytest.raises(InvalidArgumentError, match="'a' is on the meta device"):
        ReplayBuffer(storage=LazyTensorStorage(9)).extend({"a": torch.zeros(3, device="meta")})


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_transform_that_returns_none_is_named(prefetch):
    def forgetful(batch):
        batch.set("more", torch.zeros(2))

    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=2, prefetch=prefetch, transform=forgetful)
    rb.extend(TensorDict({"a": torch.zeros(3)}, [3]))

    with pytest.raises(InvalidArgumentError, match=r"forgetful.* returned None"):
        rb.sample()


def test_memory_mapped_elements_of_a_list_can_be_saved(tmp_path):
    rb, again = ReplayBuffer(storage=ListStorage(3)), ReplayBuffer(storage=ListStorage(3))
    rb.extend([MemoryMappedTensor.from_tensor(torch.arange(4))])
    rb.dumps(tmp_path / "dump")

    again.loads(tmp_path / "dump")

    assert again[0].tolist() == [0, 1, 2, 3]


def test_a_key_is_refused_where_the_data_has_no_keys():
    rb = ReplayBuffer(storage=LazyTensorStorage(9))
    rb.extend(torch.zeros(3))

    with pytest.raises(KeyError, match="no key 'a' among none"):
        rb["a"]


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ("normalize", "transform 'normalize' is not callable, expected a transform or a function.*`derive`"),
        (["normalize", "x"], "'normalize' is not callable.*'x' is not callable"),
        (DoubleToFloat, r"the class DoubleToFloat, expected an instance, DoubleToFloat\(...\)"),
        ([DoubleToFloat], "the class DoubleToFloat"),
    ],
)
def test_a_name_and_a_class_are_not_transforms(transform, says):
    with pytest.raises(InvalidArgumentError, match=says):
        ReplayBuffer(transform=transform)
    rb = ReplayBuffer(storage=LazyTensorStorage(9), transform_factory=DoubleToFloat, batch_size=1)
    with pytest.raises(InvalidArgumentError, match=says):
        rb.append_transform(transform)
    if isinstance(transform, type):
        with pytest.raises(InvalidArgumentError, match=says):
            Compose(transform)
