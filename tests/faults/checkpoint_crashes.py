"""Kill dumps at each of their file-system events, and report what they left. Run as a program by the tests.

argument    JSON: folder, old (whether a state is there before the dump that dies)
output      a line of JSON for each child: event, died, then what a reader finds, and the files there are, after the
            death and after the next dump
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from crash import inside, life
from torch.utils import _pytree as pytree

from datasets_rl import checkpoint
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError

checkpoint._PIECE_BYTES = 1 << 14
checkpoint._THREADS = 1  # so that the events come in the same order in every child
torch.set_num_threads(1)  # threads do not survive a fork

task = json.loads(sys.argv[1])
folder = Path(task["folder"])
counts = inside(folder)
ROWS = torch.arange(6000)
OLD = {"name": "old", "rows": checkpoint.pieces(ROWS), "other": torch.arange(100.0)}
NEW = {"name": "new", "rows": checkpoint.pieces(torch.where(ROWS == 5, -1, ROWS)), "more": torch.arange(200.0)}


def work():
    checkpoint.write(folder, "Test", NEW)


def plain(state):
    """Return a state with lists in the place of tensors."""
    return pytree.tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, state)


def found():
    """Say which state a reader finds, to the last byte."""
    try:
        got = checkpoint.read(folder, deep=True)
    except InvalidArgumentError:
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
total = life(0, work, counts)
whole = files()
for fatal in range(1, total + 1, task["steps"]):
    prepare()
    died = life(fatal, work, counts) is None
    after = found()
    life(0, work, counts)
    print(json.dumps({"event": fatal, "died": died, "after": after, "again": found(), "clean": files() == whole}))
