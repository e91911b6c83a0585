"""What the benchmarks share: timing in turns, and one file as our dataset and as TorchRL's."""

import statistics
import time
from pathlib import Path

import pytest

from datasets_rl.library import download
from datasets_rl.settings import Settings

NAME = "halfcheetah-medium-v2"


def seconds(call, *, rounds, repeat):
    """Seconds of one call, once for each round."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        taken.append((time.perf_counter() - start) / repeat)
    return taken


def compare(calls, *, rounds=15, repeat=100):
    """Median seconds of each call; the calls take turns, so that all see the same machine."""
    for call in calls.values():
        seconds(call, rounds=1, repeat=repeat)
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name] += seconds(call, rounds=1, repeat=repeat)
    return {name: statistics.median(values) for name, values in taken.items()}


def converted(raw, root):
    settings = Settings.from_env({"RLDS_HOME": str(root), "RLDS_NO_PROGRESS": "1"})
    return download(f"d4rl/{NAME}", root=root, from_local=raw, hash_check=False, settings=settings)


def torchrl_dataset(raw, root):
    """TorchRL's own dataset class on the same file, its download replaced by a link."""
    d4rl = pytest.importorskip("torchrl.data.datasets.d4rl", reason="pip install --no-deps torchrl hoptorch")

    def linked(_url, folder):
        path = Path(folder, "raw.hdf5")
        path.symlink_to(raw)
        return str(path)

    patch = pytest.MonkeyPatch()
    patch.setattr(d4rl, "_download_dataset_from_url", linked)
    try:
        return d4rl.D4RLExperienceReplay(NAME, batch_size=None, root=root, direct_download=True)
    finally:
        patch.undo()
