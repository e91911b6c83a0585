"""Conversion between specs and spaces, compared with Gymnasium and Minari."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import (
    BinaryDiscreteTensorSpec,
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
    from_gymnasium,
    from_minari,
    to_gymnasium,
)

spaces = pytest.importorskip("gymnasium.spaces")
serialization = pytest.importorskip("minari.serialization", reason="pip install minari, with Python 3.11")

INF = np.inf
SPACES = {
    "box": (
        lambda: spaces.Box(-1, 1, (3,), np.float32),
        BoundedTensorSpec(-1, 1, (3,)),
    ),
    "half a box": (
        lambda: spaces.Box(np.array([-INF, 0.0]), np.array([1.0, INF]), dtype=np.float64),
        BoundedTensorSpec([-INF, 0.0], [1.0, INF], dtype=torch.float64),
    ),
    "no box": (
        lambda: spaces.Box(-INF, INF, (2, 2), np.float64),
        UnboundedContinuousTensorSpec((2, 2), dtype=torch.float64),
    ),
    "image": (
        lambda: spaces.Box(0, 255, (4, 4, 3), np.uint8),
        BoundedTensorSpec(0, 255, (4, 4, 3), dtype=torch.uint8),
    ),
    "discrete": (lambda: spaces.Discrete(5), DiscreteTensorSpec(5)),
    "discrete from 3": (lambda: spaces.Discrete(5, start=3), BoundedTensorSpec(3, 7, (), dtype=torch.int64)),
    "multi-discrete": (lambda: spaces.MultiDiscrete([3, 2]), MultiDiscreteTensorSpec((3, 2))),
    "multi-discrete of rows": (
        lambda: spaces.MultiDiscrete([[3, 2], [4, 5]]),
        MultiDiscreteTensorSpec([[3, 2], [4, 5]]),
    ),
    "multi-binary": (lambda: spaces.MultiBinary(4), BinaryDiscreteTensorSpec(4)),
    "dict": (
        lambda: spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.MultiBinary(2))),
        CompositeSpec(a=DiscreteTensorSpec(2), b=CompositeSpec(c=BinaryDiscreteTensorSpec(2))),
    ),
}


@pytest.mark.parametrize(("make", "spec"), SPACES.values(), ids=list(SPACES))
def test_a_space_becomes_a_spec_and_the_spec_the_space(make, spec):
    space = make()

    assert from_gymnasium(space) == spec
    assert to_gymnasium(spec) == space
    for seed in range(3):
        space.seed(seed)
        assert spec.is_in(spec.encode(space.sample()))


@pytest.mark.parametrize(("make", "spec"), SPACES.values(), ids=list(SPACES))
def test_spaces_in_the_format_of_minari_are_read_without_minari(make, spec):
    text = serialization.serialize_space(make())

    assert from_minari(text) == spec
    assert from_minari(json.loads(text)) == spec


def test_spaces_that_are_not_restored_exactly():
    starts = spaces.MultiDiscrete([3, 2], start=[1, -1])
    pair = spaces.Tuple((spaces.Discrete(2), spaces.Text(5)))

    assert from_gymnasium(starts) == BoundedTensorSpec([1, -1], [3, 0], dtype=torch.int64)
    assert from_minari(serialization.serialize_space(starts)) == from_gymnasium(starts)
    assert from_gymnasium(pair) == CompositeSpec({"0": DiscreteTensorSpec(2), "1": NonTensorSpec((), example_data="")})
    assert from_minari(serialization.serialize_space(pair)) == from_gymnasium(pair)
    assert from_gymnasium(spaces.MultiBinary([2, 3])) == BinaryDiscreteTensorSpec(shape=(2, 3))


@pytest.mark.parametrize(
    "spec",
    [
        OneHotDiscreteTensorSpec(4),
        OneHotDiscreteTensorSpec(4, (2, 4), dtype=torch.float32),
        MultiOneHotDiscreteTensorSpec((3, 2)),
        DiscreteTensorSpec(4, (2, 3), dtype=torch.uint8),
        DiscreteTensorSpec(2, (1,), dtype=torch.bool),
        UnboundedDiscreteTensorSpec((2,), dtype=torch.uint8),
        UnboundedDiscreteTensorSpec((2,)),
        BoundedTensorSpec(-3, 5, (), dtype=torch.int64),
        BoundedTensorSpec(-3, 5, (2,), dtype=torch.float16),
        CompositeSpec(a=OneHotDiscreteTensorSpec(2, (3, 2)), shape=(3,)),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_samples_of_the_space_of_a_spec_can_be_encoded(spec):
    space = to_gymnasium(spec)
    for seed in range(5):
        space.seed(seed)
        assert spec.is_in(spec.encode(space.sample()))


def test_all_specs_without_a_space_are_reported():
    spec = CompositeSpec(
        a=DiscreteTensorSpec(2, mask=torch.tensor([True, False])),
        b=CompositeSpec(c=NonTensorSpec((1,), example_data="x"), d=None),
        e=DiscreteTensorSpec(2),
    )

    with pytest.raises(InvalidArgumentError) as error:
        to_gymnasium(spec)
    for part in ("a has a mask", "b.c is NonTensorSpec", "b.d is None"):
        assert part in str(error.value)


DEEP = {"type": "Discrete", "n": 2, "start": 0}
for _ in range(70):
    DEEP = {"type": "Tuple", "subspaces": [DEEP]}


@pytest.mark.parametrize(
    "document",
    [
        "no JSON",
        "[" * 100_000,
        "5",
        {},
        {"type": "Graph"},
        {"type": ["Box"]},
        {"type": "Box"},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0], "high": "1"},
        {"type": "Box", "shape": [2], "dtype": "load", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": 5, "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [3, 3], "high": [1, 1]},
        {"type": "Box", "shape": 2, "dtype": "float32", "low": 3, "high": 4},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Discrete", "n": "many", "start": 0},
        {"type": "MultiDiscrete", "nvec": [[2], [2, 3]], "start": 0},
        {"type": "MultiDiscrete", "nvec": [-2], "start": [0]},
        {"type": "MultiBinary"},
        {"type": "MultiBinary", "n": "x"},
        {"type": "Dict", "subspaces": 5},
        {"type": "Dict", "subspaces": {"a": 5}},
        DEEP,
    ],
    ids=lambda document: str(document)[:60],
)
def test_an_invalid_space_is_refused(document):
    with pytest.raises(InvalidArgumentError):
        from_minari(document)


def test_all_errors_are_reported_with_their_positions():
    with pytest.raises(InvalidArgumentError) as error:
        from_minari(
            {"type": "Dict", "subspaces": {"a": {"type": "Graph"}, "b": {"type": "Tuple", "subspaces": [None]}}}
        )

    assert "space['a'] is a Graph" in str(error.value)
    assert "space['b']['0'] is a NoneType" in str(error.value)


def test_a_space_that_has_no_spec_is_refused():
    with pytest.raises(InvalidArgumentError, match="is a Sequence"):
        from_gymnasium(spaces.Sequence(spaces.Discrete(2)))
