"""Examples of TorchRL's pages on replay buffers, with the imports changed to this library.

The examples whose behavior has a test of its own are not repeated here.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import multiprocessing as mp
from torch.utils._pytree import tree_map

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)


def test_data_of_any_type():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=ListStorage(100), collate_fn=lambda x: x)
    buffer.extend(["a", 1, None])

    assert buffer.sample(3) == [None, "a", None]


def test_a_pytree_with_a_callable_transform():
    def transform(x):
        return tree_map(lambda y: y * 0, x)

    rb = ReplayBuffer(storage=LazyMemmapStorage(100), transform=transform)
    data = {
        "a": torch.randn(3),
        "b": {"c": (torch.zeros(2), [torch.ones(1)])},
        30: -torch.ones(()),
    }
    rb.add(data)
    s = rb.sample(10)

    def assert0(x):
        assert (x == 0).all()

    tree_map(assert0, s)
    assert s["a"].shape == (10, 3)
    assert s["b"]["c"][1][0].shape == (10, 1)
    assert s[30].shape == (10,)


def test_adding_along_the_time_axis_is_extending():
    data = torch.arange(12.0).reshape(3, 4)
    added, extended = (ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=1) for _ in range(2))
    for d in data.unbind(1):
        added.add(d)
    extended.extend(data)

    assert torch.equal(added[:], extended[:])
    assert torch.equal(added[:], data.T)


def worker(rb):
    td = TensorDict({"a": torch.ones(10)}, [10])
    rb.extend(td)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_extends_a_shared_buffer(method):
    rb = TensorDictReplayBuffer(storage=LazyMemmapStorage(21))
    td = TensorDict({"a": torch.zeros(10)}, [10])
    rb.extend(td)
    proc = mp.get_context(method).Process(target=worker, args=(rb,))
    proc.start()
    proc.join()

    assert proc.exitcode == 0
    assert len(rb) == 20
    assert (rb["_data", "a"][:10] == 0).all()
    assert (rb["_data", "a"][10:20] == 1).all()
