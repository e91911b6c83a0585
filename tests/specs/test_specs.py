"""A spec is a set of values: its draws are members, and values of other shapes, dtypes or keys are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import columns, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl.format.schema import Column
from datasets_rl.specs import (
    CompositeSpec,
    DiscreteTensorSpec,
    from_manifest,
)
from datasets_rl.storages import DatasetStorage


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
