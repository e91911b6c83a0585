"""The Python that starts at once: see `warm_python.py`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_client_that_is_gone_before_its_task_is_sent_ends_no_other_program(warm_executable):
    if warm_executable == sys.executable:
        pytest.skip("this system cannot fork")
    size = (100).to_bytes(8, "big")
    for sent in (b"", size[:3], size, size + b"a half"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(Path(warm_executable).with_name("socket")))
            client.sendall(sent)

    ran = subprocess.run([warm_executable, "-c", "print(7)"], capture_output=True, check=False, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "7\n", "")
