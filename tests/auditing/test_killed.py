"""Audits that are killed at random moments, and run again: the same report, nothing left over, and nothing of others deleted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import clean
from planting import load_faults
from servers import serve

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"),
    pytest.mark.usefixtures("warm_python"),
]

ROUNDS = 6
PROGRAM = """
import json, sys
from datasets_rl.auditing import run
from datasets_rl.datasets import remote

run._NARROW_BYTES, run._WIDE_BYTES, run._KEEP_AFTER, run._PARTS = 1 << 13, 1 << 20, 0.0, 1_000
remote._BLOCK_BYTES = remote._SMALL_BLOCK_BYTES = 1
if sys.argv[1] == "stream":
    from datasets_rl import audit, load
    stream = load(sys.argv[2], streaming=True)
    print(json.dumps(audit(stream).to_json()))
    stream.close()
else:
    from datasets_rl.cli.app import main
    sys.exit(main(["audit", *sys.argv[2:], "--json"]))
"""
"""An audit with small parts, each of which is kept at once: by the command, or of a stream, which the command does not open."""


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the content of each file by its path. A folder, and a note of when a file was fetched, have no content."""
    return {
        str(path.relative_to(folder)): b""
        if path.is_dir() or path.name.endswith(".fetched.json")
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def broken(kind: str, faults: list[str], folder: Path, *, images: bool = False) -> Path:
    """Store a recording with faults."""
    recording = clean.record(kind, 16, images=images)
    for fault in faults:
        recording = load_faults()[fault].plant(recording, "strong", np.random.default_rng(3)).recording
    recording.store(folder)
    return folder


@pytest.fixture
def subject(request, tmp_path):
    """The words after the program."""
    data = tmp_path / "data"
    with ExitStack() as held:
        if request.param in {"images", "stream"}:
            folder = broken("teleop", ["nan_in_actions", "camera_freezes", "images_late"], data / "arm", images=True)
            if request.param == "images":
                yield ["command", str(folder)]
                return
            served = {f"/lab/arm/{path.name}": path for path in folder.iterdir() if path.is_file()}
            yield ["stream", f"{held.enter_context(serve(served)).url}/lab/arm"]
            return
        one = broken("teleop", ["nan_in_actions", "episodes_twice"], data / "one")
        other = broken("teleop", ["states_in_degrees"], data / "other")
        if request.param == "datasets":
            yield ["command", str(one), str(other)]
            return
        mixture = data / "mix.toml"
        mixture.write_text("".join(f"[[member]]\ndataset = {json.dumps(str(member))}\n" for member in (one, other)))
        yield ["command", str(mixture)]


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["datasets", "mixture", "stream", "images"], indirect=True)
def test_an_audit_that_is_killed_at_any_moment_and_run_again_gives_the_same_report(subject, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / ".audit" / "notes").mkdir(parents=True)
    (home / ".audit" / "notes" / "mine.txt").write_text("of a user")
    (home / "mine").mkdir()
    monkeypatch.setenv("RLDS_HOME", str(home))
    program = [sys.executable, "-c", PROGRAM, *subject]
    dice, killed, kept = random.Random(7), 0, 0

    def run() -> tuple[dict[str, object], float]:
        started = time.monotonic()
        ran = subprocess.run(program, capture_output=True, check=False, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout), time.monotonic() - started

    run()  # fetches what a stream keeps, and compiles
    expected, duration = run()
    files = files_below(tmp_path)
    assert not [name for name in files if name.endswith(".npz") or "/written" in name]

    for _ in range(ROUNDS):
        # An audit that was killed is killed again before it is run to its end.
        for _ in range(dice.randint(1, 3)):
            running = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(dice.uniform(0, duration))
            running.send_signal(signal.SIGKILL)
            killed += running.wait() == -signal.SIGKILL
            kept += bool(list(home.glob(".audit/*/*.npz")))
        assert run()[0] == expected
        assert files_below(tmp_path) == files

    assert killed >= ROUNDS
    assert kept
