"""A test that ends or blocks its process fails, and the other tests of the run go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROGRAM = """
import os, signal, time

import pytest


@pytest.mark.parametrize("number", range(4))
def test_ends(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(1)
@pytest.mark.parametrize("number", range(4))
def test_blocks(number):
    if number == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as compiled code that waits
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_test_that_ends_or_blocks_its_process_fails_alone(tmp_path):
    (tmp_path / "test_ends.py").write_text(PROGRAM)
    (tmp_path / "test_more.py").write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('n', range(9))\ndef test(n): ...\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-n", "2"]
    command += [
        "--dist",
        "loadfile",
        "-c",
        str(TESTS.parent / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert "2 failed, 15 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "crashed while running 'test_ends.py::test_ends[1]'" in ended.stdout
    assert "crashed while running 'test_ends.py::test_blocks[1]'" in ended.stdout
