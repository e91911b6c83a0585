"""`BatchItems`: what the loader of torch makes of it is what it makes of a list of the same items."""

from __future__ import annotations

import pickle
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from datasets_rl import load
from datasets_rl.adapters.items import BatchItems, Item

OPTIONS = {
    "robomimic": {"seq_length": 3, "frame_stack": 2, "get_pad_mask": True, "goal_mode": "last"},
    "lerobot": {"delta_timestamps": {"observation.state": [-0.1, 0.0], "action": [0.0, 0.1, 0.4]}, "fps": 10},
}


def items_of(project):
    dataset = load("demo/pendulum")
    if project == "lerobot":
        return dataset.as_lerobot(**OPTIONS["lerobot"])
    return dataset.as_robomimic(["observation"], ("actions", "action", "rewards", "absent"), **OPTIONS["robomimic"])


def leaves(batch, prefix=""):
    found = {}
    for name, value in batch.items():
        found |= leaves(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return found


def check_equal(batch, expected):
    batch, expected = leaves(batch), leaves(expected)
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert (batch[name].dtype, batch[name].stride()) == (value.dtype, value.stride()), name
            assert torch.equal(batch[name], value), name
        else:
            assert batch[name] == value, name


@pytest.mark.parametrize("project", list(OPTIONS))
def test_a_collated_batch_is_that_of_single_items(project):
    items = items_of(project)
    rows = [0, 7, len(items) - 1, 7]
    expected = default_collate([{**items[row]} for row in rows])

    check_equal(default_collate(items.__getitems__(rows)), expected)
    check_equal(default_collate([*items.__getitems__(rows)]), expected)
    check_equal(next(iter(DataLoader(Subset(items, rows), batch_size=4))), expected)


@pytest.mark.parametrize("project", list(OPTIONS))
def test_tensors_of_a_batch_share_no_memory(project):
    """A training program may write to them."""
    batch = leaves(default_collate(items_of(project).__getitems__([3, 4, 300])))

    spans = {
        name: (value.data_ptr(), value.data_ptr() + value.nbytes)
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    shared = [
        (a, b) for a, b in combinations(spans, 2) if max(spans[a][0], spans[b][0]) < min(spans[a][1], spans[b][1])
    ]
    assert not shared


def test_a_position_a_slice_and_a_pass_give_the_same_items():
    items = BatchItems(
        {"x": torch.arange(6).reshape(3, 2), "text": ["a", "b", "c"], "obs": {"y": np.arange(3.0)}, "n": [5, 6, 7]}, 3
    )

    assert len(items) == 3
    assert [item["n"] for item in items] == [item["n"] for item in items[:]] == [5, 6, 7]
    assert all(isinstance(item, Item) for item in items)
    last = items[-1]
    assert (last["x"].tolist(), last["text"], last["obs"]["y"], last["n"]) == ([4, 5], "c", 2.0, 7)
    assert pickle.loads(pickle.dumps(last))["text"] == "c"
    with pytest.raises(IndexError):
        items[3]
