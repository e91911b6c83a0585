"""What a command costs before it does anything, against the import of torch, which none of these needs."""

import subprocess
import sys

import pytest
from bench_data import seconds

COMMANDS = {
    "import datasets_rl": ["-c", "import datasets_rl"],
    "rlds --help": ["-m", "datasets_rl.cli", "--help"],
    "rlds list": ["-m", "datasets_rl.cli", "list"],
    "rlds info": ["-m", "datasets_rl.cli", "info", "d4rl/hopper-medium-v2"],
}


@pytest.mark.slow
def test_looking_takes_less_than_half_of_the_import_of_torch(size, expect, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    commands = {"import": ["-c", f"import {size(full='torch', small='sys')}"]} | COMMANDS
    took = {name: [] for name in commands}
    for _ in range(size(full=7, small=1)):
        for name, words in commands.items():
            run = [sys.executable, *words]
            took[name].append(seconds(lambda run=run: subprocess.run(run, check=True, capture_output=True)))

    best = {name: min(values) for name, values in took.items()}
    for name in COMMANDS:
        expect(f"{name}, of the import of torch", best[name] / best["import"], at_most=0.5)
