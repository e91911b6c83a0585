"""What it costs a buffer that processes share to record each write, in turns with the same buffer without the record."""

import statistics

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyMemmapStorage, TensorDictReplayBuffer
from datasets_rl.storages.ledger import Ledger

CALLS = ("extend 1000", "add", "sample 256")
"""A record takes 2 microseconds, on a busy machine 4; to add a single step takes 40, to extend by 1,000 steps 80."""


class Unrecorded(Ledger):
    """A ledger that only counts, as buffers had it before writes were recorded."""

    unfinished = False

    def begin(self, where):
        pass

    def commit(self, counts, where):  # noqa: ARG002 - as the method that it replaces
        self.head[0], self.head[1], self.head[2] = counts


def steps(count):
    def state():
        flags = {name: torch.zeros(count, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        return {"observation": torch.randn(count, 17), **flags}

    following = TensorDict({**state(), "reward": torch.randn(count, 1)}, [count])
    root = {"action": torch.randn(count, 6), "episode": torch.zeros(count, dtype=torch.int64)}
    return TensorDict({**state(), **root, "next": following}, [count])


def filled(capacity, folder, *, recorded):
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(capacity, scratch_dir=folder), batch_size=256)
    buffer.extend(steps(1))
    if not recorded:
        buffer.storage._use_ledger(Unrecorded(buffer.storage._ledger.words, capacity))
    for _ in range(capacity // 1000):
        buffer.extend(steps(1000))
    return buffer


@pytest.mark.parametrize("call", CALLS)
def test_no_call_is_noticeably_slower_with_the_record_of_writes(call, tmp_path, size, compare, expect):
    capacity = size(full=200_000, small=1_000)
    buffers = {
        "recorded": filled(capacity, tmp_path / "recorded", recorded=True),
        "unrecorded": filled(capacity, tmp_path / "unrecorded", recorded=False),
    }
    data = {"extend 1000": steps(1000), "add": steps(1)[0]}.get(call)
    calls = {
        name: {
            "extend 1000": lambda buffer=buffer: buffer.extend(data),
            "add": lambda buffer=buffer: buffer.add(data),
            "sample 256": buffer.sample,
        }[call]
        for name, buffer in buffers.items()
    }
    runs = [compare(calls) for _ in range(size(full=9, small=1))]

    ratio = statistics.median(run["recorded"] / run["unrecorded"] for run in runs)
    expect(f"{call}, of the time without a record", ratio, at_most=1)
