"""What a command costs before it does anything."""

import subprocess
import sys
import time

import pytest

COMMANDS = {
    "python": ["-c", "pass"],
    "import datasets_rl": ["-c", "import datasets_rl"],
    "rlds --help": ["-m", "datasets_rl.cli", "--help"],
    "rlds list": ["-m", "datasets_rl.cli", "list"],
    "rlds info": ["-m", "datasets_rl.cli", "info", "d4rl/hopper-medium-v2"],
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_start_up_is_short(name, show, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, *COMMANDS[name]], check=True, capture_output=True)
        taken.append(time.perf_counter() - start)

    show(f"\n{name}: {sorted(taken)[3] * 1000:.0f} ms")
    assert sorted(taken)[3] < 0.5
