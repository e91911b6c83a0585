"""Owner files of processes that are killed while they create or delete them never block another process."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from datasets_rl import disk

path, fatal, kills = Path(sys.argv[1]), 0, int(sys.argv[2])
blocked, died, left = 0, 0, 0
changes = {"open", "os.link", "os.remove", "os.mkdir", "os.rename"}


def live(fatal):
    count = 0

    def watch(event, arguments):
        nonlocal count
        if event in changes and str(path.parent) in str(arguments[0]):
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with disk.lock(path, "it"):
        pass


for number in range(kills):
    fatal = fatal % 8 + 1
    child = os.fork()
    if not child:
        live(fatal)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    died += os.WIFSIGNALED(status)
    began = time.monotonic()
    with disk.lock(path, "it", wait=5):
        blocked += time.monotonic() - began > 1
    disk.free_owner_files(path.parent)
    left += len(list(path.parent.iterdir()))
print(json.dumps({"died": died, "blocked": blocked, "left": left}))
"""


def killed(tmp_path, kills):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "locks" / "x.lock"), str(kills)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_no_kill_around_the_creation_of_an_owner_file_blocks_the_next_process(tmp_path):
    found = killed(tmp_path, 200)

    assert found["died"] > 100
    assert (found["blocked"], found["left"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_none_of_thousands_of_kills_around_an_owner_file_blocks_the_next_process(tmp_path):
    found = killed(tmp_path, 2000)

    print(found)
    assert found["died"] > 1000
    assert (found["blocked"], found["left"]) == (0, 0)
