"""A damaged video is read or refused; it ends no process, and takes neither all memory nor all time.

One of them is read alone by its seed: ``python tests/read/hostile_videos.py '{"codec": ..., "seed": ..., "videos": 1, ...}'``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("av", reason="pip install av")
TESTS = Path(__file__).parents[1]


def check_videos(folder, codec, seed, videos):
    task = json.dumps({"codec": codec, "seed": seed, "videos": videos, "folder": str(folder)})
    program = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2); del sys.argv[0]; "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", program, TESTS / "read/hostile_videos.py", task]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (
        f"{codec}, seed {lines[-1] if lines else seed}: {done.returncode}\n{done.stderr[-3000:]}"
    )
    counts = json.loads(lines[-1])
    assert counts["read"] + counts["refused"] == videos
    assert counts["refused"] > videos / 4


@pytest.mark.skipif(os.name == "nt", reason="the limit of memory")
def test_damaged_videos_are_read_or_refused(tmp_path):
    check_videos(tmp_path, "libx264", 0, 40)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the limit of memory")
@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libsvtav1"])
def test_thousands_of_damaged_videos_are_read_or_refused(tmp_path, codec):
    check_videos(tmp_path, codec, 1_000_000, 3_000)
