"""Kill preprocessing runs at their file-system events, and report what they left. Run as a program by the tests.

argument    JSON: folder (the dataset, which is replaced), how (direct, parts or several: who makes the parts), steps
            (how far the events lie apart), random (how many more, at any moment)
output      a line of JSON for each child: event, died, found (old, new, or what is wrong), undone (what `undo` brought)
"""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from crash import inside, life, only

from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.npy import file_sha256
from datasets_rl.format.reader import StoredDataset
from datasets_rl.pipeline.engines.local import Local
from datasets_rl.preprocessing import Function, Recipe, preprocess, undo
from datasets_rl.settings import Settings

task = json.loads(sys.argv[1])
folder = Path(task["folder"])
root = folder.parents[1]  # the id has a slash in its name
torch.set_num_threads(1)  # threads do not survive a fork
settings = Settings.from_env({**os.environ, "RLDS_NO_PROGRESS": "1"})


def scaled(batch):
    """Change every observation, and drop the episodes that begin with a large action."""
    return batch.set("observation", batch["observation"] * 3).set(
        ("next", "observation"), batch["next", "observation"] * 3
    )


RECIPE = Recipe(
    [Function(scaled, "batch"), Function(lambda episode: episode if episode["action"][0, 0] < 1.8 else None, "episode")]
)


class Here(contextlib.nullcontext):
    """Makes parts in this process, where its changes of the disk are counted."""

    max_in_flight = 1

    def submit(self, make, task, report):
        return functools.partial(make, task, report)


engine = {"direct": None, "parts": Here(), "several": Local(2)}[task["how"]]


def work():
    preprocess(folder, RECIPE, num_parts=4, engine=engine, settings=settings, in_place=True)


def digests():
    return sorted((str(path.relative_to(folder)), file_sha256(path)) for path in folder.rglob("*") if path.is_file())


def found():
    """Say which dataset a reader finds, to the last byte."""
    try:
        _ = StoredDataset(folder).episodes
    except DatasetsRLError as error:
        return "absent" if not folder.exists() else f"broken: {error}"
    return {json.dumps(OLD): "old", json.dumps(NEW): "new"}.get(json.dumps(digests()), "a mixture")


def restore():
    for hidden in (".work", ".versions", ".rlds-trash"):
        shutil.rmtree(root / hidden, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(backup, folder)


def report(event, died):
    print(json.dumps({"event": event, "died": died, "found": found()}), flush=True)


def finish(event):
    """Run it again, and look at what is left and at what `undo` brings back."""
    if life(0, work, counts) is None:
        raise SystemExit("the run behind a death died")
    report("again", died=False)
    # The owner file of a dead process is taken over by whoever needs it next; one who dies at that leaves it renamed.
    left = sorted(path.name for path in (root / ".work").rglob("*") if path.is_file() and ".lock" not in path.name)
    undo(folder)
    print(json.dumps({"event": f"undo after {event}", "died": False, "found": found(), "left": left}), flush=True)
    restore()


backup = root.parent / "backup"
shutil.copytree(folder, backup)
OLD = digests()
NEW = None
counts = inside(root)
total = life(0, work, counts)
NEW = digests()
report("first", died=False)
restore()
for fatal in range(1 + task["steps"] // 2, total + 1, task["steps"]):
    died = life(fatal, work, counts) is None
    report(fatal, died)
    finish(fatal)
start = time.monotonic()
life(0, work, counts)
whole = time.monotonic() - start
restore()
dice = random.Random(0)
for _ in range(task["random"]):
    child = os.fork()
    if not child:
        only(work)
        os._exit(0)
    time.sleep(dice.uniform(0, whole))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    report("random", died=os.WIFSIGNALED(status))
    if dice.random() < 0.3:
        finish("random")
