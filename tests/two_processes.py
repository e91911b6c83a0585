"""Run random commands on a folder of datasets for a while, beside another process that does so. The tests run this program.

argv[1]   JSON: home (RLDS_HOME), seed, seconds, lying (whether every lock succeeds)
stdout    JSON: counts (of each command's outcomes), wrong (a text for each other outcome), appended (the numbers of the
          episodes that were appended, and of those whose command failed)

The observation of row i of the dataset is that of row i of the original in every version, and its reward that of the
original times the factors in the manifest. So each sampled row shows whether it is of the version that was opened.
"""

import json
import math
import os
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import filelock
import numpy as np
import torch
from tensordict import TensorDict

from datasets_rl import append_episodes, download, info, list_datasets, load, remove, store, verify
from datasets_rl.errors import InvalidArgumentError, LockedError, ManifestError, NotADatasetError, RecordingWarning
from datasets_rl.preprocessing import Recipe, preprocess

ID, OWN, MONDAY = "demo/pendulum", "local/own", "local/monday"
DERIVED = (f"{ID}@x", f"{ID}@y")
EXPECTED = (
    "has no earlier version",
    "has no version",
    "holds the result of another recipe",
    "is already the result of this recipe",
    "the version that it was made of was pruned",
)


def recipe(draw):
    return Recipe.inline([f"reward_scaling:scale={draw.choice([2, 3])}"])


def factor(manifest):
    return math.prod(int(run["recipe"]["name"].rpartition(":")[2]) for run in manifest.history)


def sample(name, original):
    """Open a dataset, and check the rows of some batches."""
    dataset = load(name, batch_size=64, download=False)
    for _ in range(3):
        batch = dataset.sample()
        reward, observation = batch["next", "reward"].numpy(), batch["observation"].numpy()
        if name == OWN:
            number = reward.astype(int)
            step = observation.astype(int) - 10 * number
            assert ((step >= 0) & (step < 10)).all(), "an appended row is of another episode"
            assert (batch["next", "observation"] == batch["observation"] + 1).all()
            continue
        rows = batch["index"].numpy()
        times = factor(dataset.manifest)
        assert np.array_equal(observation, original["observation"][rows]), "rows of another version"
        assert np.allclose(reward, times * original["reward"][rows]), "rewards of another version"


def prune_all(home):
    """Do what ``rlds cache prune --versions --builds --raw`` does."""
    for root in store.source_folders(home):
        for paths in store.dataset_places(root):
            store.sweep_dataset(paths)
            store.prune_builds(paths)
            store.prune(paths)
            store.prune_raw(paths)


def append(numbers):
    """Append two episodes, in which each observation is ten times the reward plus the number of the step."""
    steps = np.concatenate([np.arange(4), np.arange(3)])
    reward = np.repeat(np.array(numbers, np.float32), [4, 3])
    observation = torch.tensor(10 * reward + steps, dtype=torch.float32)[:, None]
    done = torch.tensor(np.isin(np.arange(7), [3, 6]))[:, None]
    episodes = TensorDict(
        {
            "observation": observation,
            "action": torch.zeros(7, 1),
            "next": {
                "observation": observation + 1,
                "reward": torch.tensor(reward)[:, None],
                "done": done,
                "terminated": done,
                "truncated": torch.zeros_like(done),
            },
        },
        [7],
    )
    append_episodes(OWN, episodes)


class Commands:
    """The random commands of one process."""

    def __init__(self, task):
        self.draw = random.Random(task["seed"])
        self.home, self.next = Path(task["home"]), 1 + 100_000 * task["seed"]
        self.original = np.load(self.home / "original.npz")
        self.appended, self.failed = [], []

    def any_dataset(self):
        return self.draw.choice([ID, ID, *DERIVED])

    def download(self):
        download(ID, wait=30)

    def download_force(self):
        download(ID, force=True, wait=30)

    def preprocess_in_place(self):
        preprocess(ID, recipe(self.draw), in_place=True, wait=30)

    def preprocess_in_place_force(self):
        preprocess(ID, recipe(self.draw), in_place=True, force=True, wait=30)

    def derive(self):
        preprocess(ID, recipe(self.draw), name=self.draw.choice("xy"), wait=30)

    def derive_force(self):
        preprocess(ID, recipe(self.draw), name=self.draw.choice("xy"), force=True, wait=30)

    def undo(self):
        store.restore(ID)

    def use(self):
        existing = [version.name for version in store.versions_of(store.dataset_paths(ID))]
        store.restore(ID, self.draw.choice([*existing, 1]))

    def prune(self):
        prune_all(self.home)

    def remove(self):
        remove(self.draw.choice([ID, *DERIVED, *DERIVED, *DERIVED]))

    def append(self):
        numbers = [self.next, self.next + 1]
        self.next += 2
        try:
            append(numbers)
        except BaseException:
            self.failed += numbers
            raise
        self.appended += numbers

    def append_stored(self):
        append_episodes(OWN, MONDAY)

    def append_recorded(self):
        append_episodes(OWN)

    def verify(self):
        found = verify(name := self.draw.choice([ID, *DERIVED, OWN]))
        assert found.problems == (), (name, found.problems)

    def info(self):
        info(self.any_dataset())

    def list(self):
        list_datasets(downloaded=True)

    def sample(self):
        sample(self.draw.choice([ID, ID, *DERIVED, OWN, OWN]), self.original)


NAMES = [name for name in vars(Commands) if name[0] != "_" and name != "any_dataset"]


def outcome(commands, name, *, lying):
    """Run a command, and return its outcome, and the text of an unexpected one."""
    try:
        getattr(commands, name)()
    except (LockedError, NotADatasetError) as error:
        return type(error).__name__, ""
    except InvalidArgumentError as error:
        found = [text for text in EXPECTED if text in str(error)]
        return (found[0], "") if found else ("wrong", traceback.format_exc())
    except ManifestError as error:
        # A prune without the lock has renamed the version that has just become current, and is about to rename it back.
        is_passing = lying and "which is not there" in str(error)
        return ("which is not there", "") if is_passing else ("wrong", traceback.format_exc())
    except Exception:  # noqa: BLE001 - the test shows it
        return "wrong", traceback.format_exc()
    return "done", ""


def main(task):
    if task["lying"]:
        # As locks of some network file systems do: the file is there, and no other process is kept out.
        filelock.FileLock.acquire = lambda *_, **__: None
        filelock.FileLock.release = lambda *_, **__: None
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RecordingWarning)
    os.fsync = lambda handle: None  # noqa: ARG005 - the name of the argument is that of os.fsync
    commands, counts, wrong = Commands(task), Counter(), []
    end = time.monotonic() + task["seconds"]
    while time.monotonic() < end:
        name = commands.draw.choice(NAMES)
        found, text = outcome(commands, name, lying=task["lying"])
        counts[f"{name}: {found}"] += 1
        wrong += [f"{name}: {text}"] * bool(text)
    print(
        json.dumps({"counts": counts, "wrong": wrong, "appended": commands.appended, "failed": commands.failed}),
        flush=True,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
