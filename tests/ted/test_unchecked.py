"""TensorDicts without the checks of tensordict, and what is done in a version with other private names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import GoalSampler, load
from datasets_rl.ted import unchecked
from datasets_rl.transforms import MultiStepTransform

LEAVES = {("next", "info", "x"): torch.ones(3, 1), ("a",): np.arange(3), ("next", "b"): torch.zeros(3)}


@pytest.fixture(params=[True, False], ids=["private names", "public names"])
def names(request, monkeypatch):
    assert unchecked.KNOWN, "this version of tensordict has other private names: batches are slower, see unchecked.py"
    monkeypatch.setattr(unchecked, "KNOWN", request.param)
    return request.param


@pytest.mark.usefixtures("names")
def test_leaves_are_nested_as_by_the_constructor():
    expected = TensorDict({"a": torch.arange(3), "next": {"b": torch.zeros(3), "info": {"x": torch.ones(3, 1)}}}, [3])

    built = unchecked.nest_leaves(LEAVES, torch.Size((3,)))

    assert set(built.keys(True, True)) == set(expected.keys(True, True))
    assert (built == expected).all()
    assert built.batch_size == built["next", "info"].batch_size == torch.Size([3])
    assert np.shares_memory(built["a"].numpy(), LEAVES["a",])
    built["next", "c"] = torch.zeros(3, 2)  # it can be changed, and checks what is added
    with pytest.raises(RuntimeError, match="batch"):
        built["d"] = torch.zeros(2)


def test_only_a_tensordict_that_is_not_locked_has_entries_to_change(names):
    batch = TensorDict({"a": torch.zeros(2)}, [2])

    assert (unchecked.entries_of(batch) is not None) == names
    assert unchecked.entries_of(batch.lock_()) is None
    assert unchecked.entries_of({"a": 1}) is None


def test_batches_are_the_same_without_the_private_names(tmp_path, monkeypatch):
    write_dataset(tmp_path, [trajectory(4, terminated=True), trajectory(5, seed=2, known=False)])
    datasets = [
        load(tmp_path, 6, final_unknown="keep"),
        load(tmp_path, 6, final_unknown="keep", sampler=GoalSampler(final_states=True)),
        load(tmp_path, 6, final_unknown="keep", transform=MultiStepTransform(2, 0.9)),
    ]

    def batches():
        torch.manual_seed(0)
        return [dataset.sample() for dataset in datasets for _ in range(3)]

    fast = batches()
    monkeypatch.setattr(unchecked, "KNOWN", False)

    for batch, other in zip(fast, batches(), strict=True):
        assert set(batch.keys(True, True)) == set(other.keys(True, True))
        assert (batch == other).all()


def test_a_version_with_other_private_names_is_noticed(monkeypatch):
    monkeypatch.setattr(TensorDict, "_new_unsafe", lambda **_: {"a": 1})
    assert not unchecked._is_known()
    monkeypatch.delattr(TensorDict, "_new_unsafe")
    assert not unchecked._is_known()
