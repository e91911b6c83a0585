"""A spec is a set of values: its draws are members, and values of other shapes, dtypes or keys are not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from stored_data import columns, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError, ManifestError
from datasets_rl.format.schema import Column
from datasets_rl.specs import (
    CompositeSpec,
    DiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
    from_manifest,
)
from datasets_rl.storages import DatasetStorage

SPECS = [
    DiscreteTensorSpec(5),
    DiscreteTensorSpec(2, (1,), dtype=torch.bool),
    DiscreteTensorSpec(3, (2, 2), dtype=torch.uint8),
    UnboundedContinuousTensorSpec((3,)),
    UnboundedContinuousTensorSpec((), dtype=torch.float64),
    UnboundedDiscreteTensorSpec((2, 3), dtype=torch.uint8),
    UnboundedDiscreteTensorSpec((4,), dtype=torch.int64),
    CompositeSpec({"a": DiscreteTensorSpec(5), "b": {"c": UnboundedContinuousTensorSpec((2,))}}),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_draws_and_zeros_are_in_the_spec(spec, shape):
    assert spec.is_in(spec.rand(shape))
    assert spec.is_in(spec.zero(shape))
    assert tuple(spec.rand(shape).shape[: len(shape)]) == shape


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_generator_reproduces_draws(spec):
    first, second = (spec.rand((9,), generator=torch.Generator().manual_seed(1)) for _ in range(2))

    assert (first == second).all()


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_spec_equals_only_itself(spec):
    twin = copy.deepcopy(spec)

    assert spec == twin
    assert hash(spec) == hash(twin)
    assert [other for other in SPECS if other == spec] == [spec]


def test_other_shapes_dtypes_and_values_are_outside():
    spec = DiscreteTensorSpec(3, (2,))

    assert not spec.is_in(torch.tensor([0, 3]))
    assert not spec.is_in(torch.tensor([-1, 0]))
    assert not spec.is_in(torch.tensor([0, 1, 2]))
    assert not spec.is_in(torch.tensor(0))
    assert not spec.is_in(torch.tensor([0.0, 1.0]))
    with pytest.raises(InvalidArgumentError, match="n is -2"):
        DiscreteTensorSpec(-2)


def test_every_number_of_a_dtype_is_drawn_including_the_largest():
    drawn = UnboundedDiscreteTensorSpec((), dtype=torch.uint8).rand((20_000,))

    assert set(drawn.tolist()) == set(range(256))


def test_a_composite_requires_every_key_and_allows_others():
    spec = SPECS[-1]
    value = spec.zero((3,))

    assert spec.is_in(value.set("more", torch.zeros(3)))
    assert not spec.is_in(value.exclude("a"))
    assert not spec.is_in(TensorDict({"a": value["a"], "b": torch.zeros(3)}, [3]))


def test_a_composite_is_indexed_by_key():
    spec = SPECS[-1]

    assert spec["b", "c"].shape == (2,)
    assert spec["b"]["c"] is spec["b", "c"]
    assert list(spec) == ["a", "b"]
    assert "a" in spec
    assert len(spec) == 2
    for key in ("nothing", ("b", "nothing"), ("a", "c")):
        with pytest.raises(KeyError):
            _ = spec[key]


def test_equal_composites_have_equal_hashes_in_any_order():
    left = CompositeSpec({"a": DiscreteTensorSpec(5), "b": DiscreteTensorSpec(2)})
    right = CompositeSpec({"b": DiscreteTensorSpec(2), "a": DiscreteTensorSpec(5)})

    assert left == right
    assert hash(left) == hash(right)


def described(**kinds):
    return {name: {"kind": kind, "dtype": dtype, "shape": shape} for name, (kind, dtype, shape) in kinds.items()}


@pytest.fixture
def stored(tmp_path):
    specs = described(
        observation=("unbounded", "float32", [3]),
        action=("unbounded", "float32", [2]),
        count=("unbounded", "int64", []),
    )
    specs |= described(episode=("unbounded", "int64", []))
    for name in ("next.terminated", "next.truncated", "next.done"):
        specs |= {name: {"kind": "discrete", "dtype": "bool", "shape": [1]}}
    specs["next.reward"] = {"kind": "unbounded", "dtype": "float32", "shape": [1]}
    whole = trajectory(3)
    whole = type(whole)({**whole.steps, ("count",): np.arange(3)}, whole.states)
    return write_dataset(tmp_path, [whole], columns(Column(("count",), np.dtype("i8"), ())), specs=specs)


def test_every_step_of_a_dataset_is_in_its_spec(stored):
    spec = from_manifest(stored.manifest)
    batch = DatasetStorage(stored).get([0, 1, 2])

    assert spec.is_in(batch)
    assert set(spec.zero().keys(True, True)) == set(batch.keys(True, True))
    assert spec["next", "observation"] == spec["observation"]


def test_the_spec_has_the_dtype_that_fields_are_read_as(stored):
    spec = from_manifest(stored.manifest, {("count",): torch.float32, ("next", "reward"): None})

    assert spec.is_in(TensorDict({"count": torch.zeros(4), "next": {"reward": torch.zeros(4, 1)}}, [4]))
    assert spec["count"].rand((4,)).dtype == torch.float32
    assert list(spec) == ["count", "next"]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "unbounded",
        {"kind": "discrete", "dtype": "nn", "shape": [1]},
        {"kind": "discrete", "dtype": "load", "shape": [1]},
        {"kind": "unbounded", "dtype": "object", "shape": [1]},
        {"kind": "unbounded", "dtype": "float32", "shape": 1},
        {"kind": "unbounded", "dtype": "float32", "shape": [1e999]},
        {"kind": "discrete", "dtype": "int64", "shape": [], "n": -2},
    ],
    ids=repr,
)
def test_an_invalid_spec_is_a_manifest_error(stored, entry):
    specs = {**stored.manifest.specs, "action": entry}
    broken = type(stored.manifest)(
        id="toy/data",
        steps=3,
        episodes=1,
        final_unknown=0,
        schema=stored.schema,
        files=stored.manifest.files,
        specs=specs,
    )

    with pytest.raises(ManifestError, match=r"specs\.action"):
        from_manifest(broken)
