"""Kill preprocessing runs at their file-system events, and report the dataset on disk. The tests run this program.

argument    JSON: folder (the dataset, which is replaced), how (direct, parts or several: which engine), steps (the
            distance between events), random (number of kills at random times)
output      a line of JSON per child: event, died, found (old, new, or the error), left (work files after an undo)
"""

import contextlib
import functools
import json
import os
import random
import shutil
import sys
from pathlib import Path

import torch
from crash import events_below, kills_at_random, run_killed_at

from datasets_rl import store
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.errors import DatasetsRLError
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Function, Recipe, preprocess
from datasets_rl.settings import Settings
from datasets_rl.store import version_folder

task = json.loads(sys.argv[1])
folder = Path(task["folder"])
root = folder.parents[1]  # the id has a slash in its name
torch.set_num_threads(1)  # threads do not survive a fork
settings = Settings.from_env({**os.environ, "RLDS_NO_PROGRESS": "1"})


def scaled(batch):
    """Scale every observation by 3."""
    return batch.set("observation", batch["observation"] * 3).set(
        ("next", "observation"), batch["next", "observation"] * 3
    )


RECIPE = Recipe(
    [Function(scaled, "batch"), Function(lambda episode: episode if episode["action"][0, 0] < 1.8 else None, "episode")]
)


class Here(contextlib.nullcontext):
    """An engine that runs tasks in this process, so that their changes of the disk are counted."""

    max_in_flight = 1

    def submit(self, make, task, report):
        """Return a callable that runs the task."""
        return functools.partial(make, task, report)


engine = {"direct": None, "parts": Here(), "several": LocalEngine(2)}[task["how"]]


def work():
    """Preprocess the dataset in place."""
    preprocess(folder, RECIPE, num_parts=4, engine=engine, settings=settings, in_place=True)


def digests():
    """Return the path and the SHA-256 of every file of the dataset."""
    version = version_folder(folder)
    return sorted(
        (str(path.relative_to(version)), digest_file(path).hexdigest()) for path in version.rglob("*") if path.is_file()
    )


def found():
    """Return which dataset a reader finds, compared to the last byte."""
    try:
        _ = StoredDataset(folder).episodes
    except DatasetsRLError as error:
        return "absent" if not folder.exists() else f"broken: {error}"
    return {json.dumps(OLD): "old", json.dumps(NEW): "new"}.get(json.dumps(digests()), "a mixture")


def restore():
    """Restore the original dataset."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(backup, folder)


def report(event, died):
    """Print the state after a child as a line of JSON."""
    print(json.dumps({"event": event, "died": died, "found": found()}), flush=True)


def finish(event):
    """Run the preprocessing again, undo it, and report the state after each, with the remaining work files."""
    if run_killed_at(0, work, counts) is None:
        raise SystemExit("the run after a kill failed")
    report("again", died=False)
    left = sorted(path.name for path in folder.iterdir() if path.name.startswith(("build-", "trash-", ".")))
    store.restore(folder)
    print(json.dumps({"event": f"undo after {event}", "died": False, "found": found(), "left": left}), flush=True)
    restore()


backup = root.parent / "backup"
shutil.copytree(folder, backup)
OLD = digests()
NEW = None
counts = events_below(root)
total = run_killed_at(0, work, counts)
NEW = digests()
report("first", died=False)
restore()
for fatal in range(1 + task["steps"] // 2, total + 1, task["steps"]):
    died = run_killed_at(fatal, work, counts) is None
    report(fatal, died)
    finish(fatal)
dice = random.Random(0)
for died in kills_at_random(task["random"], work, restore):
    report("random", died)
    if died and dice.random() < 0.3:
        finish("random")
