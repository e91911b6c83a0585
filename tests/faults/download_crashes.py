"""Kill downloads at their file-system events, and report the dataset on disk. The tests run this as a program.

argument    JSON: id, root, options of `download`, choices (options of the source), steps (the distance between events)
            or kills (about how many kills), about (the only events are of paths with this part; default all), part (fields of a selection that is stored before each download, which
            then adds the rest), random (number of kills at random times), jobs (default 1), small (lower values of
            constants, by dotted name), imports (modules to import before the children are forked)
output      a line of JSON per child: event, died, folder (whole, absent, or the error of opening it), digest, left (the
            names of what is in the folder of the dataset beside CURRENT and the version that it names)
"""

import hashlib
import importlib
import json
import os
import random
import shutil
import sys
from pathlib import Path

from crash import events_below, kills_at_random, run_killed_at

from datasets_rl import downloading, store
from datasets_rl.errors import DatasetsRLError
from datasets_rl.fetch.partial_download import digest_file
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
assert minari_reader  # imported here so that the children need not import it
for name in task.get("imports", []):
    importlib.import_module(name)
plain = {"RLDS_HOME": str(root.parent), "RLDS_NO_PROGRESS": "1", "RLDS_JOBS": str(task.get("jobs", 1))}
settings = Settings.from_env({**os.environ, **plain})
spot = store.dataset_paths(task["id"], root=root, settings=settings)


below = events_below(root)
about = task.get("about", "")


def counts(event, arguments):
    """Return whether an event concerns a path below the root, or opens a file descriptor."""
    if about and not any(about in str(one).removeprefix(str(root)) for one in arguments):
        return False
    return below(event, arguments) or (event == "open" and isinstance(arguments[0], int))


def work():
    """Download the dataset."""
    downloading.download(task["id"], root=root, settings=settings, **options)


def state():
    """Return what a reader finds, and a digest of all files if it finds a dataset."""
    if not spot.exists:
        return "absent", ""
    try:
        stored = StoredDataset(spot.folder)
        _ = stored.episodes
        files = [path for path in sorted(stored.folder.rglob("*")) if path.is_file()]
        # The manifest of a version that replaces another version states the digest of the other version.
        digests = [(path.name, digest_file(path).hexdigest()) for path in files if path.name != "manifest.json"]
        return "whole", hashlib.sha256(repr(digests).encode()).hexdigest()
    except DatasetsRLError as error:
        return f"broken: {error}", ""


def report(event, died):
    """Print the state after a child as a line of JSON."""
    folder, digest = state()
    left = [path.name for path in spot.entries() if path not in {spot.current, spot.exists and spot.version}]
    print(json.dumps({"event": event, "died": died, "folder": folder, "digest": digest, "left": left}), flush=True)


def clean():
    """Remove the dataset, and restore the part that is stored before each download."""
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

total = run_killed_at(0, work, counts)
report("first", died=False)
clean()
steps = max(1, total // task["kills"]) if task.get("kills") else task["steps"]
for fatal in range((steps + 1) // 2, total + 1, steps):
    died = run_killed_at(fatal, work, counts) is None
    report(fatal, died)
    run_killed_at(0, work, counts)
    report("again", died=False)
    clean()
dice = random.Random(0)
for died in kills_at_random(task["random"], work, clean):
    report("random", died)
    if died and dice.random() < 0.3:
        run_killed_at(0, work, counts)
        report("again", died=False)
        clean()
run_killed_at(0, work, counts)
report("last", died=False)
