"""Kill downloads at each of their file-system events, and report what they left. Run as a program by the tests.

argument    JSON: id, root, options of `download`, choices (options of the source), steps (how far the events lie
            apart) or kills (how many there are about), part (fields of a selection that is stored before each download,
            which then grows to the whole), random (how many more), jobs (by default 1), small (what is set lower, by its dotted name),
                imports (what children would import, each of them anew)
output      a line of JSON for each child: event, died, folder (whole, absent, or why it does not open), digest
"""

import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from crash import inside, life, only

from datasets_rl import downloading, store
from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.npy import file_sha256
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.sources.minari import reader as minari_reader

task = json.loads(sys.argv[1])
root = Path(task["root"])
options = task["options"]
if task.get("choices"):
    options["selection"] = Selection(options=task["choices"])
for name, value in task["small"].items():
    module, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module), attribute, value)
assert minari_reader  # the children find it imported
for name in task.get("imports", []):
    importlib.import_module(name)
plain = {"RLDS_HOME": str(root.parent), "RLDS_NO_PROGRESS": "1", "RLDS_JOBS": str(task.get("jobs", 1))}
settings = Settings.from_env({**os.environ, **plain})
spot = store.dataset_paths(task["id"], root=root, settings=settings)


below = inside(root)


def counts(event, arguments):
    """Count what happens below the root, and the opening of what is already a descriptor."""
    return below(event, arguments) or (event == "open" and isinstance(arguments[0], int))


def work():
    downloading.download(task["id"], root=root, settings=settings, **options)


def state():
    """Say what a reader finds, and a digest of all files if it finds a dataset."""
    if not spot.exists:
        return "absent", ""
    try:
        stored = StoredDataset(spot.folder)
        _ = stored.episodes
        digests = [(path.name, file_sha256(path)) for path in sorted(spot.folder.rglob("*")) if path.is_file()]
        return "whole", hashlib.sha256(repr(digests).encode()).hexdigest()
    except DatasetsRLError as error:
        return f"broken: {error}", ""


def report(event, died):
    folder, digest = state()
    print(json.dumps({"event": event, "died": died, "folder": folder, "digest": digest}), flush=True)


def clean():
    if not task["keep"]:
        store.remove(task["id"], root=root, settings=settings)
    if task.get("part"):
        shutil.copytree(part, spot.folder)


if task.get("part"):
    part = root.parent / "part"
    stored = downloading.download(
        task["id"], root=root, settings=settings, **{**options, "selection": Selection(**task["part"])}
    )
    shutil.copytree(stored, part)
    report("part", died=False)

total = life(0, work, counts)
report("first", died=False)
clean()
steps = max(1, total // task["kills"]) if task.get("kills") else task["steps"]
for fatal in range((steps + 1) // 2, total + 1, steps):
    died = life(fatal, work, counts) is None
    report(fatal, died)
    life(0, work, counts)
    report("again", died=False)
    clean()
dice = random.Random(0)
whole = 0.0
if task["random"]:
    start = time.monotonic()
    life(0, work, counts)
    whole = time.monotonic() - start
    clean()
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
        life(0, work, counts)
        report("again", died=False)
        clean()
life(0, work, counts)
report("last", died=False)
