"""What a dump costs: the first, one with nothing changed, one with a step changed, and the load, against torch.save."""

import os
import shutil

import torch
from bench_data import seconds
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, ReplayBuffer


def transitions(count):
    flag = torch.zeros(count, 1, dtype=torch.bool)
    observation, action = torch.randn(count, 17), torch.randn(count, 6)
    following = {"observation": observation + 1, "reward": action[:, :1] * 2, "done": flag, "terminated": flag}
    return TensorDict({"observation": observation, "action": action, "done": flag, "next": following}, [count])


def test_a_dump_costs_what_changed(size, tmp_path, expect):
    data = transitions(size(full=1_000_000, small=1_000))
    taken = {}

    def clock(name, call):
        taken.setdefault(name, []).append(seconds(call))

    def save():
        with (tmp_path / "saved.pt").open("wb") as stream:
            torch.save(data.to_dict(), stream)
            os.fsync(stream.fileno())  # as a dump does

    for _ in range(size(full=5, small=1)):
        shutil.rmtree(tmp_path / "dump", ignore_errors=True)
        buffer, other = (ReplayBuffer(storage=LazyTensorStorage(len(data))) for _ in range(2))
        buffer.extend(data)
        clock("first", lambda: buffer.dumps(tmp_path / "dump"))
        clock("nothing changed", lambda: buffer.dumps(tmp_path / "dump"))
        buffer[123]["observation"].fill_(0)
        clock("a step changed", lambda: buffer.dumps(tmp_path / "dump"))
        clock("load", lambda: other.loads(tmp_path / "dump"))
        clock("torch.save", save)
        clock("torch.load", lambda: TensorDict(torch.load(tmp_path / "saved.pt", weights_only=True), [len(data)]))

    least = {name: min(values) for name, values in taken.items()}
    print(f"\n{ {name: round(value, 3) for name, value in least.items()} } s")
    # On a disk slower than the memory it is far less.
    expect("a dump with nothing changed, of the first", least["nothing changed"] / least["first"], at_most=0.75)
    expect("a dump with a step changed, of the first", least["a step changed"] / least["first"], at_most=0.75)
    expect("a load, of torch.load", least["load"] / least["torch.load"], at_most=1)
