"""Specs inferred from data."""

from __future__ import annotations

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from datasets_rl.specs import (
    CompositeSpec,
    DiscreteTensorSpec,
    LazyStackedTensorSpec,
    NonTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
    spec_from_data,
)


def test_data_and_similar_data_are_in_the_inferred_spec():
    data = TensorDict(
        {"a": torch.rand(4, 3), "n": {"flag": torch.zeros(4, 1, dtype=torch.bool), "count": torch.arange(4)}}, [4]
    )
    spec = spec_from_data(data)

    assert spec == CompositeSpec(
        a=UnboundedContinuousTensorSpec((4, 3)),
        n=CompositeSpec(
            flag=DiscreteTensorSpec(2, (4, 1), dtype=torch.bool), count=UnboundedDiscreteTensorSpec((4,)), shape=(4,)
        ),
        shape=(4,),
    )
    assert spec.is_in(data)
    assert spec[0].is_in(data[1])
    assert spec.is_in(spec.rand())


def test_text_and_mappings_have_specs():
    data = TensorDict({"t": NonTensorData("hi", batch_size=[2]), "a": torch.zeros(2)}, [2])

    assert spec_from_data(data).is_in(data)
    assert spec_from_data({"a": {"b": torch.zeros(3)}, "t": "hi"}).is_in({"a": {"b": torch.ones(3)}, "t": "ho"})
    assert spec_from_data("hi") == NonTensorSpec(())
    assert spec_from_data(torch.zeros(2)) == UnboundedContinuousTensorSpec((2,))


def test_each_text_of_a_batch_has_a_spec():
    data = TensorDict({"t": ["a", "b"]}, [2])
    spec = spec_from_data(data)

    assert spec["t"].batched
    assert spec.is_in(data)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_data_of_different_shapes_has_a_stack():
    data = LazyStackedTensorDict(TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3)), stack_dim=0)
    spec = spec_from_data(data)

    assert spec.shape == (2,)
    assert spec["a"].shape == (2, -1)
    assert spec.is_in(data)
    nested = spec_from_data(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]))
    assert isinstance(nested, LazyStackedTensorSpec)
    assert nested.is_in(nested.rand())
