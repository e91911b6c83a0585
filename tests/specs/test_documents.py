"""JSON documents of specs: compact, exact, and validated like untrusted input."""

from __future__ import annotations

import json
import math

import pytest
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import (
    BoundedTensorSpec,
    ChoiceSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    TensorSpec,
    UnboundedContinuousTensorSpec,
)


def test_a_document_describes_the_spec():
    spec = CompositeSpec(
        action=BoundedTensorSpec(-1, [1.0, math.inf], (2,)),
        flag=DiscreteTensorSpec(2, (1,), dtype=torch.bool),
        nothing=None,
    )

    assert spec.to_json() == {
        "kind": "composite",
        "shape": [],
        "specs": {
            "action": {"kind": "bounded", "shape": [2], "dtype": "float32", "low": -1.0, "high": [1.0, "inf"]},
            "flag": {"kind": "discrete", "shape": [1], "dtype": "bool", "n": 2},
            "nothing": None,
        },
    }


def test_bounds_that_repeat_are_written_once():
    """A bound per channel of an image is stored as one number per channel."""
    low = torch.arange(3.0).reshape(3, 1, 1).expand(3, 64, 64)
    spec = BoundedTensorSpec(low, 255, (3, 64, 64))
    document = spec.to_json()

    assert document["low"] == [[[0.0]], [[1.0]], [[2.0]]]
    assert document["high"] == 255.0
    assert TensorSpec.from_json(document) == spec
    assert MultiDiscreteTensorSpec((3, 2), (4, 2)).to_json()["nvec"] == [[3, 2]]


@pytest.mark.parametrize("bound", [0.1, 1e-45, 16777217, 3.4028234663852886e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_bit_of_a_bound_is_restored(bound, dtype):
    spec = BoundedTensorSpec([-bound, 0.0], [bound, math.inf], dtype=dtype)

    assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_every_bit_of_an_integer_is_restored():
    spec = BoundedTensorSpec([-(2**63), 0], [2**63 - 1, 2**53 + 1], dtype=torch.int64)

    assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.high.tolist() == [2**63 - 1, 2**53 + 1]


FLOATS = {"kind": "bounded", "shape": [2], "dtype": "float32", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {"kind": "__class__"},
        {"kind": ["bounded"]},
        {"kind": "tensor", "shape": []},
        {**FLOATS, "dtype": "load"},
        {**FLOATS, "dtype": 5},
        {**FLOATS, "dtype": "complex64"},
        {**FLOATS, "shape": 2},
        {**FLOATS, "shape": [-2]},
        {**FLOATS, "shape": [2.0]},
        {**FLOATS, "shape": [True]},
        {**FLOATS, "shape": [1 << 40, 1 << 40]},
        {**FLOATS, "low": None},
        {**FLOATS, "low": "nan"},
        {**FLOATS, "low": math.nan},
        {**FLOATS, "low": "1"},
        {**FLOATS, "low": [0, 0, 0]},
        {**FLOATS, "low": [[0], [0, 1]]},
        {**FLOATS, "low": True},
        {**FLOATS, "low": 2},
        {**FLOATS, "low": 10**400},
        {**FLOATS, "dtype": "int8", "high": 300},
        {**FLOATS, "dtype": "int8", "high": 1.5},
        {**FLOATS, "further": 1},
        {"kind": "discrete", "shape": [], "dtype": "int64"},
        {"kind": "discrete", "shape": [], "dtype": "int64", "n": -2},
        {"kind": "discrete", "shape": [], "dtype": "int64", "n": 2, "mask": [1, 0]},
        {"kind": "discrete", "shape": [], "dtype": "int64", "n": 2, "mask": [True] * 3},
        {"kind": "one_hot", "shape": [3], "dtype": "bool", "n": 4},
        {"kind": "multi_discrete", "shape": [2], "dtype": "int64", "nvec": [2, -1]},
        {"kind": "multi_discrete", "shape": [2], "dtype": "int64", "nvec": [2, 2, 2]},
        {"kind": "multi_one_hot", "shape": [4], "dtype": "bool", "nvec": []},
        {"kind": "composite", "shape": [], "specs": []},
        {"kind": "composite", "shape": [], "specs": {"a": 5}},
        {"kind": "composite", "shape": [3], "specs": {"a": FLOATS}},
        {"kind": "composite", "shape": [3], "specs": {}, "names": [{}]},
        {"kind": "composite", "shape": [3], "specs": {}, "names": ["a", "b"]},
        {"kind": "choice", "choices": []},
        {"kind": "choice", "choices": [FLOATS, {**FLOATS, "shape": [3]}]},
        {"kind": "stacked", "dim": 7, "specs": [FLOATS]},
        {"kind": "stacked", "dim": 0, "specs": [{"kind": "composite", "shape": [], "specs": {}}]},
        {"kind": "stacked_composite", "dim": 0, "specs": [FLOATS]},
        {"kind": "non_tensor", "shape": [], "feature_dims": 2},
    ],
    ids=lambda document: str(document)[:80],
)
def test_a_document_that_describes_no_spec_is_refused(document):
    with pytest.raises(InvalidArgumentError, match="does not describe a spec"):
        TensorSpec.from_json(document)


def test_all_errors_are_reported_at_once_with_their_positions():
    document = {
        "kind": "composite",
        "shape": [],
        "specs": {"a": {**FLOATS, "low": "x"}, "b": {"kind": "discrete", "shape": [1], "dtype": "float3", "n": -2}},
    }

    with pytest.raises(InvalidArgumentError) as error:
        TensorSpec.from_json(document)
    for place in ("spec.specs['a'].low is 'x'", "spec.specs['b'].dtype is 'float3'", "spec.specs['b'].n is -2"):
        assert place in str(error.value)


def test_a_document_deeper_than_python_can_follow_is_refused():
    document = {"kind": "unbounded", "shape": [], "dtype": "float32"}
    for _ in range(20_000):
        document = {"kind": "composite", "shape": [], "specs": {"a": document}}
    lists = []
    for _ in range(20_000):
        lists = [lists]

    with pytest.raises(InvalidArgumentError, match="at most 64"):
        TensorSpec.from_json(document)
    with pytest.raises(InvalidArgumentError, match=r"spec\.low"):
        TensorSpec.from_json({**FLOATS, "low": lists})
    while document.get("specs"):  # unnest it level by level: Python cannot free a deeply nested object
        document = document["specs"].pop("a")


def test_a_huge_shape_takes_no_memory():
    spec = TensorSpec.from_json({**FLOATS, "shape": [1 << 20, 1 << 20]})

    assert spec.shape == (1 << 20, 1 << 20)
    assert spec.low.untyped_storage().nbytes() == 4


def test_a_mask_and_a_device_are_restored():
    spec = OneHotDiscreteTensorSpec(3, (2, 3), mask=torch.tensor([[True, False, True], [True, True, True]]))
    document = json.loads(json.dumps(spec.to_json()))

    assert TensorSpec.from_json(document) == spec
    assert TensorSpec.from_json(document, "meta").device == torch.device("meta")


@pytest.mark.parametrize(
    "example", [{1: 2}, (1, 2), object(), math.nan, torch.zeros(2)], ids=lambda one: type(one).__name__
)
def test_an_example_that_json_would_change_is_refused(example):
    with pytest.raises(InvalidArgumentError, match="JSON"):
        NonTensorSpec((), example_data=example).to_json()


def test_a_choice_is_restored():
    spec = ChoiceSpec([UnboundedContinuousTensorSpec((2,)), UnboundedContinuousTensorSpec((2,))])

    assert TensorSpec.from_json(spec.to_json()) == spec
