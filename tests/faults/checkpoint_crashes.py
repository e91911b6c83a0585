"""Kill dumps at each of their file-system events, and report the state on disk. The tests run this as a program.

argument    JSON: folder, old (whether a state exists before the dump that is killed), steps (distance between events)
output      a line of JSON per child: event, died, after (the state that a reader finds after the kill), again (the
            state after the next dump), clean (whether the next dump leaves the expected files)
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from crash import events_below, run_killed_at
from torch.utils import _pytree as pytree

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.format import checkpoint

checkpoint._PIECE_BYTES = 1 << 14
checkpoint._THREADS = 1  # so that all children have the same order of events
torch.set_num_threads(1)  # threads do not survive a fork

task = json.loads(sys.argv[1])
folder = Path(task["folder"])
counts = events_below(folder)
ROWS = torch.arange(6000)
OLD = {"name": "old", "rows": checkpoint.row_chunks(ROWS), "other": torch.arange(100.0)}
NEW = {"name": "new", "rows": checkpoint.row_chunks(torch.where(ROWS == 5, -1, ROWS)), "more": torch.arange(200.0)}


def work():
    """Write the new state."""
    checkpoint.write_state(folder, "Test", NEW)


def plain(state):
    """Return a state with lists instead of tensors."""
    return pytree.tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, state)


def found():
    """Return which state a reader finds, compared to the last byte."""
    try:
        got = checkpoint.read_state(folder, deep=True)
    except InvalidArgumentError:
        return "absent"
    except DatasetsRLError as error:
        return f"broken: {error}"
    for state in (OLD, NEW):
        if plain(got) == plain(state):
            return state["name"]
    return "a mixture"


def files():
    """Return the names of the files in the folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def prepare():
    """Empty the folder, and write the old state of the task, if any."""
    shutil.rmtree(folder, ignore_errors=True)
    if task["old"]:
        checkpoint.write_state(folder, "Test", OLD)


prepare()
total = run_killed_at(0, work, counts)
whole = files()
for fatal in range(1, total + 1, task["steps"]):
    prepare()
    died = run_killed_at(fatal, work, counts) is None
    after = found()
    run_killed_at(0, work, counts)
    print(json.dumps({"event": fatal, "died": died, "after": after, "again": found(), "clean": files() == whole}))
