"""Kill children at each of their file-system events, and report what they left. Run as a program by the tests.

A child is forked from this process, which has everything imported, and ends itself with SIGKILL at its n-th event:
an open, a rename, a removal, a new folder. So every moment between two changes of the disk is met, not only those
that a clock happens to hit.

    argument    JSON: id, root, options of `download`, choices (options of the source), steps (how far the events lie
                apart) or kills (how many there are about), random (how many more), small (what is set lower, by its dotted name)
    output      a line of JSON for each child: event, died, folder (whole, absent, or why it does not open), digest
"""

import hashlib
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from datasets_rl import library
from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.npy import file_sha256
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, _minari_recording

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}

task = json.loads(sys.argv[1])
root = Path(task["root"])
options = task["options"]
if task.get("choices"):
    options["selection"] = Selection(options=task["choices"])
for name, value in task["small"].items():
    module, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module), attribute, value)
assert _minari_recording  # the children find it imported
settings = Settings.from_env({**os.environ, "RLDS_HOME": str(root.parent), "RLDS_NO_PROGRESS": "1", "RLDS_JOBS": "1"})
spot = library.place(task["id"], root=root, settings=settings)


def life(fatal):
    """Download in a forked child that dies at its event number `fatal`; return the events it saw, or None."""
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        with os.fdopen(readable) as stream:
            seen = stream.read()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) and not seen:
            raise SystemExit(f"the child that was to die at {fatal} failed by itself")
        return None if os.WIFSIGNALED(status) else int(seen)
    os.close(readable)
    count = 0

    def watch(event, arguments):
        nonlocal count
        inside = event in EVENTS and any(str(root) in str(argument) for argument in arguments)
        if inside or (event == "open" and isinstance(arguments[0], int)):
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    work()
    os.write(writable, str(count).encode())
    os._exit(0)


def work():
    """Download in a child; an error ends it, so that it does not go on as its parent would."""
    try:
        library.download(task["id"], root=root, settings=settings, **options)
    except BaseException:  # noqa: BLE001 - whatever it is, this child must not live on
        traceback.print_exc()
        os._exit(1)


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
        library.remove(task["id"], root=root, settings=settings)


total = life(0)
report("first", died=False)
clean()
steps = max(1, total // task["kills"]) if task.get("kills") else task["steps"]
for fatal in range((steps + 1) // 2, total + 1, steps):
    died = life(fatal) is None
    report(fatal, died)
    life(0)
    report("again", died=False)
    clean()
dice = random.Random(0)
start = time.monotonic()
life(0)
whole = time.monotonic() - start
clean()
for _ in range(task["random"]):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    time.sleep(dice.uniform(0, whole))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    report("random", died=os.WIFSIGNALED(status))
    if dice.random() < 0.3:
        life(0)
        report("again", died=False)
        clean()
life(0)
report("last", died=False)
