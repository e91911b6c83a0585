"""Kill exports at their file-system events, and report what is on disk. The tests run this program.

argument    JSON: folder (the dataset), out (the target), to (the format), force (whether the target exists before), steps
            (the distance between events), random (number of kills at random times)
output      a line of JSON per child: died, found (absent, old, new or other), again (the same after another run), left
"""

import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import h5py
from crash import events_below, run_killed_at, run_or_exit

from datasets_rl.exporting import Content, run_export
from datasets_rl.exporting.formats import get_format
from datasets_rl.format.reader import StoredDataset

task = json.loads(sys.argv[1])
folder, out, to = Path(task["folder"]), Path(task["out"]), task["to"]
get_format(to)  # imported once, before the forks


def export():
    """Export all episodes; in a batch each, so that there are many moments."""
    Content.batches.__defaults__ = (1,)
    run_export(Content(StoredDataset(folder)), to, out, lossy=True, force=task["force"], show=False)


def digest():
    """Return a digest of the target."""
    if not os.path.lexists(out):
        return "absent"
    paths = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.name.encode() + content(path) for path in paths)).hexdigest()


def content(path):
    """Return the bytes of a file, or what an HDF5 file has: before 2.0, HDF5 also stores the second of a write."""
    if not h5py.is_hdf5(path):
        return path.read_bytes()
    with h5py.File(path) as file:
        found = [("", sorted(file.attrs.items()))]
        file.visititems(
            lambda name, item: found.append(
                (name, sorted(item.attrs.items()), item[()] if isinstance(item, h5py.Dataset) else None)
            )
        )
    return pickle.dumps(found)


def reset():
    """Restore the state before the export: no target, or an export of another part of the dataset."""
    shutil.rmtree(out.parent)
    out.parent.mkdir()
    if task["force"]:
        run_export(
            Content(StoredDataset(folder), episodes=Content(StoredDataset(folder)).episodes[:1]),
            to,
            out,
            lossy=True,
            show=False,
        )


def state():
    """Return which export the target is."""
    return {old: "old", new: "new", "absent": "absent"}.get(digest(), "other")


def judge(died):
    """Report the target after a kill, and after the same export has run again."""
    found = state()
    run_or_exit(export)
    left = [path.name for path in out.parent.iterdir() if path != out]
    print(json.dumps({"died": died, "found": found, "again": state(), "left": left}), flush=True)


reset()
old = digest() if task["force"] else "none"
export()
new = digest()
counts = events_below(out.parent)
reset()
total = run_killed_at(0, export, counts)
for event in range(1, total + 1, task["steps"]):
    reset()
    judge(run_killed_at(event, export, counts) is None)
began = time.perf_counter()
reset()
export()
seconds = time.perf_counter() - began
for _ in range(task["random"]):
    reset()
    child = os.fork()
    if not child:
        run_or_exit(export)
        os._exit(0)
    time.sleep(random.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    judge(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
