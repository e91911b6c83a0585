"""How long it takes to write steps into a buffer's storage, in turns with TorchRL."""

import pytest
import torch
from bench_data import compare
from tensordict import TensorDict

from datasets_rl import writers
from datasets_rl.storages import LazyMemmapStorage, LazyTensorStorage

SLOTS = 200_000
EXTEND_GOAL = 1.5
ADD_GOAL = 1.0


def half_cheetah(steps):
    def state():
        flags = {name: torch.zeros(steps, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        return {"observation": torch.randn(steps, 17), **flags}

    following = TensorDict({**state(), "reward": torch.randn(steps, 1)}, [steps])
    root = {"action": torch.randn(steps, 6), "episode": torch.zeros(steps, dtype=torch.int64)}
    return TensorDict({**state(), **root, "next": following}, [steps])


def writing(writer, storage):
    writer.register_storage(storage)
    for _ in range(SLOTS // 1000):  # memory that has been touched, as it is after the first round
        writer.extend(half_cheetah(1000))
    return writer


@pytest.fixture(params=["LazyTensorStorage", "LazyMemmapStorage"])
def pair(request):
    """Our writer over our storage, and TorchRL's over its own."""
    theirs = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    own = {"LazyTensorStorage": LazyTensorStorage, "LazyMemmapStorage": LazyMemmapStorage}[request.param]
    return (
        writing(writers.RoundRobinWriter(), own(SLOTS)),
        writing(theirs.RoundRobinWriter(), getattr(theirs, request.param)(SLOTS)),
    )


@pytest.mark.parametrize(("count", "goal"), [(1000, EXTEND_GOAL), (1, ADD_GOAL)], ids=["extend 1000", "add"])
@pytest.mark.filterwarnings("ignore")
def test_writing_is_faster_than_torchrl(pair, count, goal, show):
    ours, theirs = pair
    data = half_cheetah(count)
    one = data[0]
    calls = {
        name: (lambda writer=writer: writer.extend(data)) if count > 1 else (lambda writer=writer: writer.add(one))
        for name, writer in (("ours", ours), ("torchrl", theirs))
    }
    rows = torch.empty(data.bytes(), dtype=torch.uint8)
    took = compare({**calls, "memcpy": rows.clone}, repeat=200)

    micro = {name: round(value * 1e6) for name, value in took.items()}
    ratio = took["torchrl"] / took["ours"]
    show(f"\n{type(ours._storage).__name__}, {count} steps: {micro} us; {ratio:.1f} times faster than TorchRL")
    assert ratio >= goal
