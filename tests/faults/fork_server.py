"""Run `rlds` in forked children that can be killed before any of their changes of the disk. The tests run this program.

stdin       a line of JSON per child: home (RLDS_HOME), commands (the words of each, which run in this order), fatal
            (the number of the change before which the child is killed with SIGKILL; 0 for none)
stdout      a line of JSON per child: died, changes (number of changes), ends (of each command, code and text: its exit code
            and its output)

A change is a call that creates, opens for writing, truncates, renames, links or deletes a path, which Python reports to
an audit hook before it happens, or a write to an open file: of the fatal write, the first half is written.
"""

import builtins
import contextlib
import gc
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import filelock
import torch

from datasets_rl.cli.app import main

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

WARMING = [
    ["download", "demo/pendulum", "--quiet"],
    ["preprocess", "demo/pendulum", "-t", "reward_scaling:scale=2", "--in-place"],
    ["append", "local/warm", "demo/pendulum"],
    ["sample", "demo/pendulum"],
    ["info", "demo/pendulum"],
    ["list", "--downloaded"],
    ["cache", "prune"],
]
"""Commands that import what others import."""


def changes(event, arguments, home):
    """Return whether an audit event changes a path below `home`; a relative path belongs to a deletion below `home`."""
    if event == "open":
        path, _, flags = arguments
        return isinstance(path, (str, bytes)) and home in os.fsdecode(path) and bool(flags & _WRITING)
    if event not in _CHANGES:
        return False
    paths = [path_of(one) for one in arguments if isinstance(one, (str, bytes, os.PathLike))]
    if event == "os.truncate":  # of a path, or of an open file
        paths = [path_of(arguments[0])]
    return any(home in path or not path.startswith(os.sep) for path in paths)


def path_of(file):
    """Return the path of a file that is given by its path or its descriptor."""
    return str(Path("/proc/self/fd", str(file)).readlink()) if isinstance(file, int) else os.fsdecode(file)


def counted_open(count, home):
    """Return a function like `open` whose files below `home` call `count` in the middle of every write."""
    plain = io.open

    class CountedFile(io.FileIO):
        def write(self, data):
            data = memoryview(data).cast("B")
            half = super().write(data[: len(data) // 2]) if len(data) > 1 else 0
            count()
            return half + super().write(data[half:])

    def opened(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if not set(mode) & set("wax+") or home not in path_of(file):
            return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = CountedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if not buffering:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline, buffering == 1)

    return opened


def child(task, writable):
    """Run the commands in this forked process, and report the exit code and the output of each, and the changes."""
    total = 0

    def count():
        nonlocal total
        total += 1
        if total == task["fatal"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event, arguments):
        if changes(event, arguments, task["home"]):
            count()

    os.environ["RLDS_HOME"] = task["home"]
    with tempfile.TemporaryFile("w+") as text:
        for stream in (1, 2):
            os.dup2(text.fileno(), stream)
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        sys.addaudithook(watch)
        builtins.open = io.open = counted_open(count, task["home"])
        shutil._USE_CP_SENDFILE = False  # so that a copy is written by the files above
        ends = []
        for argv in task["commands"]:
            try:
                code = main(argv)
            except BaseException:  # noqa: BLE001 - the child must exit after any error
                traceback.print_exc()
                code = -1
            sys.stdout.flush()
            sys.stderr.flush()
            made = total
            text.seek(0)
            ends.append({"code": code, "text": text.read()[-2000:]})
            text.seek(0)
            text.truncate()
        os.write(writable, json.dumps({"changes": made, "ends": ends}).encode())
    os._exit(0)


def serve(task):
    """Fork a child for a task, and return its report."""
    readable, writable = os.pipe()
    process = os.fork()
    if not process:
        os.close(readable)
        child(task, writable)
    os.close(writable)
    with os.fdopen(readable) as stream:
        said = stream.read()
    _, status = os.waitpid(process, 0)
    answer = json.loads(said) if said else {"changes": task["fatal"], "ends": [{"code": None, "text": ""}]}
    return {"died": os.WIFSIGNALED(status), **answer}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads do not survive a fork
    # What a child would import is imported here, once, by commands of each kind.
    os.environ |= {"RLDS_NO_PROGRESS": "1", "RLDS_JOBS": "1"}
    with (
        tempfile.TemporaryDirectory() as home,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(sys.stdout),
    ):
        os.environ["RLDS_HOME"] = home
        for argv in WARMING:
            assert main(argv) == 0, (argv, sys.stdout.getvalue())
    gc.freeze()  # a collection in a child would copy the memory of all objects
    if "lying" in sys.argv:
        # As locks of some network file systems do: the file is there, and nobody is kept out.
        filelock.FileLock.acquire = lambda *_, **__: None
        filelock.FileLock.release = lambda *_, **__: None
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
