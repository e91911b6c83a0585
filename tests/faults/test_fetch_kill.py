"""A download that is killed, interrupted or runs out of disk space never has wrong bytes, and can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from servers import File, IgnoresIfRange, Slow, Stall, serve

from datasets_rl.errors import DiskFullError
from datasets_rl.fetch import Asset, fetch
from datasets_rl.fetch.partial_download import PartialDownload
from datasets_rl.settings import Settings

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="signals and limits of POSIX"),
    pytest.mark.usefixtures("warm_python"),
]

MAGIC = b"\x89HDF\r\n\x1a\n"
DATA = MAGIC + random.Random(7).randbytes(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()

START = """
import os, sys, json, random, signal, time
from pathlib import Path
from datasets_rl.fetch import Asset, fetch, partial_download, plan, transfer
from datasets_rl.settings import Settings

folder, urls, split, known, seconds, kills, seed = json.loads(sys.argv[1])
partial_download.SAVE_EVERY = 0.01
transfer.SPLIT_FROM = split
dice = random.Random(seed)
settings = Settings(home=Path(folder), timeout=5, progress=False)
assets = [Asset((url,), f"{n}.hdf5", magic=bytes.fromhex("894844460d0a1a0a"), sha256=known) for n, url in enumerate(urls)]
"""

# The loop forks from a process that has imported every module, so that a child spends all its time in the download.
KILLS = (
    START
    + """
done, marks = 0, set()
while done < kills:
    child = os.fork()
    if not child:
        fetch(assets, Path(folder), settings=settings)
        os._exit(0)
    time.sleep(dice.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    done += os.WIFSIGNALED(status)
    # On a busy machine a life must be longer before anything comes of it. A life that comes to its end was too long.
    sidecar = Path(folder, "0.hdf5.part.json")
    mark = sidecar.stat().st_mtime_ns if sidecar.exists() else None
    seconds *= 0.7 if not os.WIFSIGNALED(status) else 1.3 if mark is None or mark in marks else 1
    marks.add(mark)
    print(int(os.WIFSIGNALED(status)), flush=True)
    sys.stdin.readline()
"""
)

ONCE = (
    START
    + """
partial_download.SAVE_EVERY = 0.0
print("ready", flush=True)
fetch(assets, Path(folder), settings=settings)
"""
)


def child(code, folder, urls, *, split=1 << 40, known=None, seconds=0.0, kills=0, seed=0, **options):
    arguments = json.dumps([str(folder), urls, split, known, seconds, kills, seed])
    return subprocess.Popen(
        [sys.executable, "-c", code, arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_PROXY": "*"},
        **options,
    )


def judge(folder):
    """Check that the file in the folder is a prefix of the expected bytes, or all of them."""
    target = folder / "0.hdf5"
    if target.exists():
        assert target.read_bytes() == DATA
    part = PartialDownload.load(target)
    if part.done:
        came = part.path.read_bytes()
        for span in part.spans:
            assert came[span.start : span.at] == DATA[span.start : span.at]


def kill_often(folder, url, kills, **options):
    with child(KILLS, folder, [url], kills=kills, **options) as loop:
        for line in loop.stdout:
            judge(folder)
            if line == "0\n":
                # It finished before the kill: start again.
                assert (folder / "0.hdf5").exists()
                (folder / "0.hdf5").unlink()
            loop.stdin.write("\n")
            loop.stdin.flush()
        assert loop.wait() == 0, loop.stderr.read()


def killed_and_resumed(tmp_path, kills, split, known):
    with serve({"/a": Slow(DATA, rate=3e6)}) as server:
        url = server.url + "/a"
        kill_often(tmp_path, url, kills, split=split, known=known, seconds=0.3, seed=kills)
        server.paths["/a"] = DATA
        (came,) = fetch([Asset((url,), "0.hdf5", magic=MAGIC)], tmp_path, settings=Settings(tmp_path, progress=False))

    assert came.sha256 == SHA256 == hashlib.sha256(came.path.read_bytes()).hexdigest()
    # Each process continued after the bytes of the previous process. Some were killed before their first request.
    resumed = [int(re.match(r"bytes=(\d+)", each)[1]) for each in server.ranges]
    assert len([start for start in resumed if start > 0]) > kills / 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.hdf5", "0.hdf5.fetched.json"]


@pytest.mark.first(1)
@pytest.mark.parametrize(("split", "known"), [(1 << 40, None), (500_000, SHA256)], ids=["one stream", "ranges"])
def test_a_download_killed_5_times_has_the_right_bytes(tmp_path, split, known):
    killed_and_resumed(tmp_path, 5, split, known)


@pytest.mark.slow
@pytest.mark.parametrize("known", [None, SHA256], ids=["digest unknown", "digest known"])
@pytest.mark.parametrize("split", [1 << 40, 500_000], ids=["one stream", "ranges"])
def test_a_download_killed_100_times_has_the_right_bytes(tmp_path, split, known):
    killed_and_resumed(tmp_path, 100, split, known)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "behaviour", [Slow(DATA, rate=1e6), Stall(DATA, after=200_000, times=9)], ids=["slow", "stalled"]
)
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("split", [1 << 40, 500_000], ids=["one stream", "ranges"])
def test_ctrl_c_ends_at_once_and_keeps_the_received_bytes(tmp_path, split, files, behaviour):
    """Also while connections stall, in threads that cannot be interrupted."""
    with serve({"/a": replace(behaviour)}) as server:
        with child(ONCE, tmp_path, [server.url + "/a"] * files, split=split) as process:
            process.stdout.readline()
            wait_for(lambda: any(PartialDownload.load(tmp_path / f"{n}.hdf5").done > 100_000 for n in range(files)))
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            errors = process.communicate()[1]

            assert time.monotonic() - began < 10
        assert "KeyboardInterrupt" in errors
        assert process.returncode in (1, 130, -signal.SIGINT)
        judge(tmp_path)
        server.paths["/a"] = DATA
        assets = [Asset((server.url + "/a",), f"{n}.hdf5", magic=MAGIC) for n in range(files)]
        server.requests.clear()
        for came in fetch(assets, tmp_path, settings=Settings(tmp_path, progress=False)):
            assert came.path.read_bytes() == DATA
    assert server.ranges


@pytest.mark.parametrize(
    ("first", "then"),
    [(None, None), ('W/"1"', 'W/"1"'), ('"strong"', None)],
    ids=["no mark", "weak ETag", "strong, then none"],
)
def test_a_file_that_changes_after_a_kill_is_not_appended_to_the_old_bytes(tmp_path, first, then):
    """The server ignores If-Range, and the two versions have the same length."""
    edited = DATA[:2_500_000] + b"edited" + DATA[2_500_006:]
    with serve({"/a": Stall(edited, after=2_600_000, etag=first)}) as server:
        with child(ONCE, tmp_path, [server.url + "/a"]) as process:
            wait_for(lambda: PartialDownload.load(tmp_path / "0.hdf5").done > 2_550_000)
            process.kill()
        server.paths["/a"] = IgnoresIfRange(DATA, etag=then)
        asset = Asset((server.url + "/a",), "0.hdf5", magic=MAGIC)
        (came,) = fetch([asset], tmp_path, settings=Settings(tmp_path, progress=False))

    assert came.sha256 == SHA256


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


FULL = (
    START
    + """
import resource
from datasets_rl.errors import DiskFullError
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    fetch(assets, Path(folder), settings=settings)
except DiskFullError as error:
    print(error.path, error.hint)
"""
)


@pytest.mark.parametrize("split", [1 << 40, 500_000], ids=["one stream", "ranges"])
def test_a_full_disk_is_reported_and_the_received_bytes_are_kept(tmp_path, split):
    """A limit on file sizes simulates the full disk."""
    with serve({"/a": DATA}) as server:
        with child(FULL, tmp_path, [server.url + "/a"], split=split) as process:
            said, errors = process.communicate()

        assert "0.hdf5" in said, errors
        assert "raise the limit (`ulimit -f` shows it) and run it again to continue" in said
        assert 0 < PartialDownload.load(tmp_path / "0.hdf5").done <= 1_000_000
        judge(tmp_path)
        (came,) = fetch(
            [Asset((server.url + "/a",), "0.hdf5", magic=MAGIC)], tmp_path, settings=Settings(tmp_path, progress=False)
        )

    assert came.sha256 == SHA256


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110 - evaluated at import
def test_a_device_without_space_is_reported(tmp_path):
    (tmp_path / "a.part").symlink_to("/dev/full")
    with serve({"/a": File(DATA)}) as server, pytest.raises(DiskFullError, match="No space left"):
        fetch([Asset((server.url + "/a",), "a")], tmp_path, settings=Settings(tmp_path, progress=False))
