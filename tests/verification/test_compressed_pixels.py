"""A second conversion compares pixels that are stored compressed as they are read, and names what differs."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from raw.atari_dqn import CASES
from stored_data import write_manifest_with_digest

from datasets_rl import download, verify
from datasets_rl.sources import Selection
from datasets_rl.store import version_folder

LENGTHS = [30, 1, 45]
STEPS = sum(LENGTHS)


def _write_raw(folder, frames):
    """Write a file of episodes with one more observation than actions."""
    rows = np.random.default_rng(0).normal(size=(STEPS, 2)).astype(np.float32)
    np.savez(
        folder / "a.npz",
        observations=frames,
        actions=rows,
        rewards=rows[:, 0],
        terminals=np.zeros(STEPS, np.bool_),
        lengths=np.array(LENGTHS),
    )


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The folder of a dataset of compressed images, that of its raw file, and the images, [N + E, 32, 32]."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    raw = tmp_path / "raw"
    raw.mkdir()
    frames = np.arange(STEPS + len(LENGTHS), dtype=np.uint8).repeat(32 * 32).reshape(-1, 32, 32).copy()
    _write_raw(raw, frames)
    (raw / "dataset.toml").write_text('[episodes]\nby = "lengths"\narray = "lengths"\n')
    folder = download("local/eyes", from_local=raw, selection=Selection(options={"images": "compressed"}))
    return version_folder(folder), raw, frames


def _problems(stored, row, column):
    """Return the problems of a deep verification after one pixel of the raw file changed, whose digest is made right."""
    folder, raw, frames = stored
    frames[row, 5, column] ^= 255
    _write_raw(raw, frames)
    data, document = (raw / "a.npz").read_bytes(), json.loads((folder / "manifest.json").read_text())
    (entry,) = (one for one in document["raw"] if one["path"].endswith("a.npz"))
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest_with_digest(folder, document)
    return verify(folder, deep=True).problems


def test_the_dataset_has_no_problems(stored):
    assert verify(stored[0], deep=True).problems == ()


@pytest.mark.parametrize(("row", "step"), [(0, 0), (29, 29), (31, 30), (33, 31), (77, 75)])
def test_another_pixel_of_a_step_is_named(stored, row, step):
    (problem,) = _problems(stored, row, 7)

    assert problem.startswith(f"observation at row {step} is ")
    assert problem.endswith("(1 such)")
    assert "a.npz has" in problem


@pytest.mark.parametrize(("row", "episode"), [(30, 0), (32, 1), (78, 2)])
def test_another_pixel_of_a_final_state_is_named(stored, row, episode):
    (problem,) = _problems(stored, row, 31)

    assert problem.startswith(f"the final observation at episode {episode} is ")
    assert problem.endswith("(1 such)")


@pytest.mark.skipif(sys.platform != "linux", reason="it needs the counts of Linux")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_no_pixels_are_written_to_the_disk(tmp_path, monkeypatch, case):
    """The temporary build had all pixels, which took a third of the time."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    (tmp_path / "tree").mkdir()
    case.write(tmp_path / "tree")
    chosen = Selection(options={"images": "compressed", **case.options})
    folder = download(case.id, from_local=tmp_path / "tree", selection=chosen)
    pixels = json.loads((version_folder(folder) / "manifest.json").read_text())["steps"] * 84 * 84

    before = _written()
    assert verify(folder, deep=True).problems == ()
    assert _written() - before < pixels // 4


def _written():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
