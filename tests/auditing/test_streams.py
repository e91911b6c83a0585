"""A stream of a published dataset has the audit of the stored dataset, and the stream goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import clean
from planting import load_faults
from servers import serve

from datasets_rl import Selection, audit, load
from datasets_rl.datasets import remote

CHECKS = ["not_finite", "frozen_frames"]


def filmed(episode, rng):
    """Return an episode with small images of a gray wall with noise, which never repeat."""
    camera = rng.integers(100, 110, (len(episode) + 1, 48, 48, 3)).astype(np.uint8)
    return replace(episode, states={**episode.states, ("observation", "wrist"): camera})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder of a dataset with images and two broken episodes."""
    recording, rng = clean.record("teleop", 16, images=False), np.random.default_rng(4)
    recording = replace(recording, episodes=tuple(filmed(one, rng) for one in recording.episodes))
    for fault in ("nan_in_actions", "camera_freezes"):
        recording = load_faults()[fault].plant(recording, "strong", np.random.default_rng(3)).recording
    return recording.store(tmp_path_factory.mktemp("lab") / "arm").folder


@pytest.fixture
def served(stored, tmp_path, monkeypatch):
    """The folder of the dataset, and the address of a server with its files."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(remote, "_SMALL_BLOCK_BYTES", 1)
    with serve({f"/lab/arm/{path.name}": path for path in stored.iterdir() if path.is_file()}) as server:
        yield stored, f"{server.url}/lab/arm"


def test_a_stream_has_the_findings_of_the_stored_dataset_and_goes_on(served, tmp_path):
    folder, address = served
    stream = load(address, batch_size=7, streaming=True, shuffle=False)
    batches = iter(stream)
    first = next(batches)
    found = audit(stream, checks=CHECKS)

    assert {one.check for one in found.findings} == set(CHECKS)
    assert found.findings == audit(folder, checks=CHECKS).findings
    assert found.id == address
    rest = sum(len(batch["action"]) for batch in batches)
    assert len(first["action"]) + rest == found.steps
    assert not [*(tmp_path / "home").rglob("written")]
    stream.close()


def test_a_stream_that_was_killed_while_it_was_stored_is_stored_again_with_the_same_digest(served):
    """The digest names the measures that a killed audit left."""
    folder, address = served
    stream = load(address, streaming=True)
    digests = []
    for _ in range(2):
        left = stream.stream._folder / "written"
        left.mkdir()
        (left / "rows.npy").write_bytes(b"half")
        with stream.stream.written() as stored:
            digests.append(stored.manifest.digest)
            assert len(stored) == len(load(folder))
    stream.close()

    assert digests[0] == digests[1]


def test_selected_episodes_of_a_stream_are_audited_under_their_place_in_the_stream(served):
    folder, address = served
    selection = Selection(episodes="2:11")
    with_stream = load(address, streaming=True, selection=selection)

    found = audit(with_stream, checks=CHECKS)
    assert found.findings == audit(load(folder, selection=selection), checks=CHECKS).findings
    with_stream.close()
