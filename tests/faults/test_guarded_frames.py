"""No damage of compressed frames makes a read or a write outside of the buffers: pages beside them end the process.

A batch that fails is run alone by its seed: ``python tests/faults/guarded_frames.py '{"what": ..., "seed": ..., "images": 1}'``.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BATCHES = ("patches", "zstd", "dictionaries", "offsets", "columns", "rings")
TOUCHES = ("read after", "read before", "write after", "write before")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="mprotect by way of the C library"),
    pytest.mark.usefixtures("warm_python"),
]


def run(what, seed=0, images=0):
    task = json.dumps({"what": what, "seed": seed, "images": images})
    command = [sys.executable, Path(__file__).with_name("guarded_frames.py"), task]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("what", TOUCHES)
def test_to_touch_a_byte_outside_of_guarded_memory_ends_the_process(what):
    assert run(what).returncode == -signal.SIGSEGV


def check_images(what, seed, images):
    done = run(what, seed, images)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{what}, seed {lines[-1] if lines else seed}: {done.returncode}\n{done.stderr}"
    counts = json.loads(lines[-1])
    assert counts["images"] >= images
    assert 0.1 < counts["refused"] / counts["batches"] < 0.98


@pytest.mark.parametrize("what", BATCHES)
def test_damaged_frames_are_refused_or_read_inside_of_the_buffers(what):
    check_images(what, 0, 400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1_000_000, 2_000_000])
@pytest.mark.parametrize("what", BATCHES)
def test_a_quarter_of_a_million_damaged_frames_are_refused_or_read_inside_of_the_buffers(what, seed):
    check_images(what, seed, 21_000)
