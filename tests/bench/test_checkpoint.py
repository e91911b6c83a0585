"""What a dump costs: the first, one with nothing changed, one with a step changed, and the way back."""

import os
import shutil
import time

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, ReplayBuffer

GOALS = {"nothing changed": 0.75, "one step changed": 0.75}
"""At most that much of the time of the first dump; on a disk slower than the memory it is far less."""


@pytest.fixture(scope="module")
def steps():
    number = int(os.environ.get("RLDS_BENCH_STEPS", "1000000"))
    flag = torch.zeros(number, 1, dtype=torch.bool)
    observation, action = torch.randn(number, 17), torch.randn(number, 6)
    following = {"observation": observation + 1, "reward": action[:, :1] * 2, "done": flag, "terminated": flag}
    return TensorDict({"observation": observation, "action": action, "done": flag, "next": following}, [number])


def clock(taken, name, call, argument):
    start = time.perf_counter()
    call(argument)
    taken.setdefault(name, []).append(time.perf_counter() - start)


def settle(path):
    """Wait for what others leave in the cache, so that all pay for the disk; ours waits by itself."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def rounds(make, change, save, load, *, again):
    """Best of three runs, with the data written to the disk."""
    taken = {}
    for _ in range(3):
        buffer = make()
        clock(taken, "first", save, buffer)
        if again:
            clock(taken, "nothing changed", save, buffer)
            change(buffer)
            clock(taken, "one step changed", save, buffer)
        clock(taken, "load", load, make(filled=False))
    return {name: min(seconds) for name, seconds in taken.items()}


def test_a_dump_costs_what_changed(steps, tmp_path, show):
    def make(filled=True):
        shutil.rmtree(tmp_path / "ours", ignore_errors=True) if filled else None
        buffer = ReplayBuffer(storage=LazyTensorStorage(len(steps)))
        if filled:
            buffer.extend(steps)
        return buffer

    def change(buffer):
        buffer[12345]["observation"].fill_(0)

    ours = rounds(
        make, change, lambda one: one.dumps(tmp_path / "ours"), lambda one: one.loads(tmp_path / "ours"), again=True
    )

    def save(_):
        torch.save(steps.to_dict(), tmp_path / "saved.pt")
        settle(tmp_path / "saved.pt")

    def load(_):
        TensorDict(torch.load(tmp_path / "saved.pt", weights_only=True), [len(steps)])

    plain = rounds(lambda filled=True: filled, lambda _: None, save, load, again=False)
    theirs = torchrl(steps, tmp_path)

    size = sum(path.stat().st_size for path in (tmp_path / "ours").rglob("*")) / 1e6
    show(f"\n{len(steps):,} steps, {size:.0f} MB       ours  torch.save  TorchRL (seconds)")
    for name, seconds in ours.items():
        base = plain["load" if name == "load" else "first"]
        other = theirs.get(name, float("nan"))
        show(f"{name:18} {seconds:12.3f} {base:10.3f} {other:8.3f}    {seconds / base:.2f} of torch.save")
    for name, goal in GOALS.items():
        assert ours[name] / ours["first"] <= goal
    assert ours["load"] / plain["load"] <= 1


def torchrl(steps, folder):
    try:
        from torchrl.data import LazyTensorStorage, ReplayBuffer
    except ImportError:
        return {}

    def make(filled=True):
        shutil.rmtree(folder / "theirs", ignore_errors=True) if filled else None
        buffer = ReplayBuffer(storage=LazyTensorStorage(len(steps)))
        if filled:
            buffer.extend(steps)
        return buffer

    def save(buffer):
        buffer.dumps(folder / "theirs")
        settle(folder / "theirs")

    def change(buffer):
        buffer[12345]["observation"].fill_(0)

    return rounds(make, change, save, lambda one: one.loads(folder / "theirs"), again=True)
