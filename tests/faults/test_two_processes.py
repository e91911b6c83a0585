"""Two processes run random commands on the same folder: each ends as documented, and nothing is lost, mixed or left over.

It holds also where every lock succeeds at once, as on some network file systems: locks only save work.
RLDS_TEST_SECONDS is the duration of each run, by default 60.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from two_processes import DERIVED, ID, MONDAY, OWN, append, prune_all, sample

from datasets_rl import append_episodes, download, load, verify
from datasets_rl.preprocessing import Recipe, preprocess

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders that are open elsewhere cannot be renamed")

SECONDS = float(os.environ.get("RLDS_TEST_SECONDS", "60"))
FOREIGN = ("notes.txt", "demo/notes.txt", "demo/pendulum@mine.txt", "local/own/notes.txt", "local/own/mine/build-notes")


@pytest.fixture
def home(monkeypatch):
    """A folder of datasets in memory, with files of the user."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        home = Path(folder)
        monkeypatch.setenv("RLDS_HOME", folder)
        monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
        monkeypatch.setenv("RLDS_JOBS", "1")
        rows = load(ID)[:]
        np.savez(home / "original.npz", observation=rows["observation"], reward=rows["next", "reward"])
        append([1, 2])
        store_monday()
        for name in FOREIGN:
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text("mine")
        yield home


def store_monday():
    """Store a dataset with an episode of three steps."""
    observation = torch.tensor([[70.0], [71.0], [72.0]])
    done = torch.tensor([[False], [False], [True]])
    following = {"observation": observation + 1, "reward": torch.full((3, 1), 7.0), "done": done, "terminated": done}
    append_episodes(
        MONDAY, TensorDict({"observation": observation, "action": torch.zeros(3, 1), "next": following}, [3])
    )


def leftovers(home):
    """Return what a command left that a prune must delete: claims, trash, locks and temporary files."""
    marks = ("build-", "trash-", ".lock", ".CURRENT", "raw@", "recorded")
    found = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.name.startswith(marks)]
    return sorted(set(found) - set(FOREIGN))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("lying", [False, True], ids=["locks", "locks that lie"])
def test_random_commands_of_two_processes_end_as_documented_and_lose_nothing(home, lying):
    program = Path(__file__).parents[1] / "two_processes.py"
    tasks = [{"home": str(home), "seed": seed, "seconds": SECONDS, "lying": lying} for seed in (1, 2)]
    running = [
        subprocess.Popen([sys.executable, str(program), json.dumps(task)], stdout=subprocess.PIPE, text=True)
        for task in tasks
    ]
    reports = [json.loads(process.communicate()[0]) for process in running]
    counts = sum((Counter(report["counts"]) for report in reports), Counter())
    print(f"\n{counts.total():,} commands", json.dumps(dict(sorted(counts.items())), indent=1))
    wrong = [text for report in reports for text in report["wrong"]]
    assert not wrong, "\n\n".join(wrong)

    original = np.load(home / "original.npz")
    download(ID)
    preprocess(ID, Recipe.inline(["reward_scaling:scale=2"]), in_place=True)
    for name in DERIVED:
        preprocess(ID, Recipe.inline(["reward_scaling:scale=5"]), name=name.partition("@")[2], force=True)
    append([3, 4])
    append_episodes(OWN, MONDAY, again=True)
    prune_all(home)
    for name in (ID, *DERIVED, OWN):
        assert verify(name, deep=True).problems == ()
        sample(name, original)
    episodes = load(OWN, download=False)[:]["next", "reward"].flatten().long()[_firsts()]
    found = Counter(episodes.tolist())
    kept = [1, 2, 3, 4, *(number for report in reports for number in report["appended"])]
    assert {number: found[number] for number in kept} == dict.fromkeys(kept, 1)
    assert {number for number, count in found.items() if count > 1} <= {7}
    assert found.keys() <= {*kept, 7, *(number for report in reports for number in report["failed"])}
    assert leftovers(home) == []
    assert [(home / name).read_text() for name in FOREIGN] == ["mine"] * len(FOREIGN)


def _firsts():
    return load(OWN, download=False).episodes.starts.tolist()
