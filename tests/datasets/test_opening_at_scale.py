"""Opening a dataset and its first batches take neither memory nor time that grows with the number of steps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from stored_data import trajectory, write_dataset
from view_data import sparse_dataset

from datasets_rl import load
from datasets_rl.transforms import SequenceTransform, returns

MEASURED = """
import sys, time
import datasets_rl
from datasets_rl.transforms import SequenceTransform

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

def opened(folder):
    start = time.process_time()
    sampler = None
    if kind == "epoch":
        sampler = datasets_rl.SamplerWithoutReplacement()
    if kind == "slices":
        sampler = datasets_rl.SliceSampler(slice_len=8)
    if kind in {"priorities", "slices by priority"}:
        arguments = dict(max_capacity=10**9, alpha=0.7, beta=0.5)
        sampler = datasets_rl.PrioritizedSampler(**arguments)
        if kind == "slices by priority":
            sampler = datasets_rl.PrioritizedSliceSampler(**arguments, slice_len=8)
    options = {}
    if kind == "without unknown finals":
        options = {"final_unknown": "drop_truncated"}
    if kind == "selected episodes":
        options = {"selection": datasets_rl.Selection(episodes="1:")}
    dataset = datasets_rl.load(folder, batch_size=32, sampler=sampler, **options)
    if kind == "sequences":
        dataset.append_transform(SequenceTransform.dt_corl(20))
    if kind != "load":
        batch = dataset.sample()
    if kind == "priorities":
        dataset.update_priority(batch["index"], batch["index"] + 1.0)
        dataset.sample()
    return time.process_time() - start

small, large, kind = sys.argv[1:]
opened(small)
before = min(opened(small) for _ in range(3))
memory = peak()
after = opened(large)
print(peak() - memory, after, before)
"""


CASES = [
    ("load", 100),
    ("epoch", 250),
    ("sequences", 350),
    ("slices", 250),
    ("priorities", 250),
    ("slices by priority", 350),
    ("without unknown finals", 350),
    ("selected episodes", 350),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Datasets of ten thousand steps and of a billion, a hole of 32 GB."""
    folder = tmp_path_factory.mktemp("scale")
    for name, episodes, length in (("small", 1000, 10), ("large", 1_000_000, 1000)):
        for unknown, folder_name in ((0, name), (10, f"{name}, unknown finals")):
            (folder / folder_name).mkdir()
            sparse_dataset(folder / folder_name, episodes, length, unknown=unknown)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("kind", "megabytes"), CASES)
def test_a_billion_steps_open_without_memory_and_time_for_each(folders, kind, megabytes):
    """8 bytes a step would be 8 GB. The table of a million episodes has 33 MB, and is read by the first batch."""
    ending = ", unknown finals" if kind == "without unknown finals" else ""
    folders_of_kind = [str(folders / f"{name}{ending}") for name in ("small", "large")]
    arguments = [sys.executable, "-c", MEASURED, *folders_of_kind, kind]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    grown, after, before = map(float, printed.split())

    assert grown < megabytes
    if kind == "load":
        assert after < 20 * before


def test_sums_by_trajectory_are_those_of_all_steps(tmp_path, monkeypatch):
    write_dataset(tmp_path, [trajectory(length, seed=length) for length in (7, 1, 12, 30, 5)])

    def sequences() -> list[torch.Tensor]:
        dataset = load(tmp_path, batch_size=6)
        dataset.append_transform(SequenceTransform.dt_corl(4))
        torch.manual_seed(0)
        return [dataset.sample(6)[name] for _ in range(20) for name in ("returns_to_go", "timesteps")]

    at_once = sequences()
    monkeypatch.setattr(returns, "_AT_ONCE", 0)

    assert all(torch.equal(*pair) for pair in zip(sequences(), at_once, strict=True))
