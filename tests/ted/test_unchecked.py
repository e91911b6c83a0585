"""TensorDicts without the checks of tensordict, and what is done in a version with other private names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict, tensorclass

from datasets_rl import GoalSampler, LazyTensorStorage, load
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


@tensorclass
class _Step:
    observation: torch.Tensor
    label: torch.Tensor


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("kind", [_Step, TensorDict])
def test_a_storage_returns_what_was_written(kind):
    leaves = {"observation": torch.arange(12.0).view(4, 3), "label": torch.arange(4)}
    steps = TensorDict(leaves, [4], names=["time"])
    storage = LazyTensorStorage(4)
    storage.set(range(4), steps if kind is TensorDict else kind.from_tensordict(steps))

    batch = storage.get(torch.tensor([2, 0]))

    assert type(batch) is kind
    assert batch.batch_size == torch.Size([2])
    assert batch.names == ["time"]
    assert {name: batch.get(name).tolist() for name in leaves} == {
        name: leaf[[2, 0]].tolist() for name, leaf in leaves.items()
    }


def _renamed(monkeypatch, name):
    """Let TensorDict keep an attribute under another name, as another version may."""
    monkeypatch.setattr(TensorDict, name, property(lambda self: getattr(self, name + "_2")), raising=False)


def test_a_version_with_other_private_names_is_noticed(monkeypatch):
    init = TensorDict.__init__

    def init_with_more(self, *arguments, **options):
        init(self, *arguments, **options)
        self._more = None

    with monkeypatch.context() as patch:
        patch.setattr(TensorDict, "__init__", init_with_more)
        assert not unchecked._is_known()
    for name in ("_tensordict", "_batch_size", "_device", "_td_dim_names", "_is_locked"):
        with monkeypatch.context() as patch:
            _renamed(patch, name)
            assert not unchecked._is_known(), name
    assert unchecked._is_known()
