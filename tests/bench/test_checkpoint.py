"""What a dump costs: the first, after no change, after a change of a step, and the load, against torch.save."""

import os
import shutil

import torch
from bench_data import compare, seconds
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, ReplayBuffer


def transitions(count):
    flag = torch.zeros(count, 1, dtype=torch.bool)
    observation, action = torch.randn(count, 17), torch.randn(count, 6)
    following = {"observation": observation + 1, "reward": action[:, :1] * 2, "done": flag, "terminated": flag}
    return TensorDict({"observation": observation, "action": action, "done": flag, "next": following}, [count])


def files(folder):
    """Return what distinguishes each file, and its bytes."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def written(before, after):
    """Return the bytes of the files that are new, as a part of all."""
    return sum(one[2] for path, one in after.items() if before.get(path) != one) / sum(one[2] for one in after.values())


def once(data, folder):
    """Seconds of each call, once; of the loads, three times in turns."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(data)))
    buffer.extend(data)

    def save():
        with (folder / "saved.pt").open("wb") as stream:
            torch.save(data.to_dict(), stream)
            os.fsync(stream.fileno())  # as a dump does

    taken = {"first": seconds(lambda: buffer.dumps(folder / "dump"))}
    before = files(folder / "dump")
    taken["nothing changed"] = seconds(lambda: buffer.dumps(folder / "dump"))
    taken["bytes: nothing changed"] = written(before, before := files(folder / "dump"))
    buffer[123]["observation"].fill_(0)
    taken["a step changed"] = seconds(lambda: buffer.dumps(folder / "dump"))
    taken["bytes: a step changed"] = written(before, files(folder / "dump"))
    taken["torch.save"] = seconds(save)
    loads = {
        "load": lambda: ReplayBuffer(storage=LazyTensorStorage(len(data))).loads(folder / "dump"),
        "torch.load": lambda: TensorDict(torch.load(folder / "saved.pt", weights_only=True), [len(data)]),
    }
    # In a virtual machine, memory that was never used before costs the first of them four times as much.
    taken |= compare(loads, rounds=3, repeat=1)
    shutil.rmtree(folder / "dump")
    return taken


def test_a_dump_costs_what_changed(size, tmp_path, expect, expect_exactly):
    data = transitions(size(full=1_000_000, small=1_000))
    rounds = [once(data, tmp_path) for _ in range(size(full=3, small=1))]

    least = {name: min(one[name] for one in rounds) for name in rounds[0]}
    print(f"\n{ {name: round(value, 3) for name, value in least.items()} } s")
    # On a disk slower than the memory it is far less.
    for name in ("nothing changed", "a step changed"):
        expect(f"a dump with {name}, of the first", least[name] / least["first"], at_most=1)
    expect_exactly("bytes of a dump with nothing changed, of all", least["bytes: nothing changed"], at_most=0.01)
    expect_exactly("bytes of a dump with a step changed, of all", least["bytes: a step changed"], at_most=0.25)
    expect("a load, of torch.load", least["load"] / least["torch.load"], at_most=1)
