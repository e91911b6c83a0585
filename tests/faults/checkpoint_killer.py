"""Kill dumps at each of their file-system events, and report what they left. Run as a program by the tests.

The method is that of `killer.py`: a forked child ends itself with SIGKILL at its n-th event.

    argument    JSON: folder, old (whether a state is there before the dump that dies)
    output      a line of JSON for each child: event, died, then what a reader finds, and the files there are, after the
                death and after the next dump
"""

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from datasets_rl import checkpoint
from datasets_rl.errors import BadArgument, DatasetsRLError

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

checkpoint._PIECE = 1 << 14
checkpoint._THREADS = 1  # so that the events come in the same order in every child
torch.set_num_threads(1)  # threads do not survive a fork

task = json.loads(sys.argv[1])
folder = Path(task["folder"])
ROWS = torch.arange(6000)
OLD = {"name": "old", "rows": checkpoint.pieces(ROWS), "other": torch.arange(100.0)}
NEW = {"name": "new", "rows": checkpoint.pieces(torch.where(ROWS == 5, -1, ROWS)), "more": torch.arange(200.0)}


def life(fatal):
    """Dump in a forked child that dies at its event number `fatal`; return the events it saw, or None."""
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
        if event in EVENTS and any(str(folder) in str(argument) for argument in arguments):
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    try:
        checkpoint.write(folder, "Test", NEW)
    except BaseException:  # noqa: BLE001 - whatever it is, this child must not live on
        traceback.print_exc()
        os._exit(1)
    os.write(writable, str(count).encode())
    os._exit(0)


def plain(state):
    """Return a state with lists in the place of tensors."""
    return pytree.tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, state)


def found():
    """Say which state a reader finds, to the last byte."""
    try:
        got = checkpoint.read(folder, deep=True)
    except BadArgument:
        return "absent"
    except DatasetsRLError as error:
        return f"broken: {error}"
    for state in (OLD, NEW):
        if plain(got) == plain(state):
            return state["name"]
    return "a mixture"


def files():
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    if task["old"]:
        checkpoint.write(folder, "Test", OLD)


prepare()
total = life(0)
whole = files()
for fatal in range(1, total + 1):
    prepare()
    died = life(fatal) is None
    after = found()
    life(0)
    print(json.dumps({"event": fatal, "died": died, "after": after, "again": found(), "clean": files() == whole}))
