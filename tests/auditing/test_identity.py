"""The audit finds episodes that are in the dataset twice, also where the copy is not exact."""

from __future__ import annotations

from dataclasses import replace

import clean
import edges
import numpy as np
import planting
import pytest

CHECKS = ["duplicate_episodes", "near_duplicates", "repeated_seeds", "shared_splits"]
FAULTS = planting.load_faults()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("episodes_twice", "maze"),
        ("copies_changed", "cheetah"),
        ("copies_changed", "maze"),
        ("copies_changed", "texts"),
        ("seeds_again", "agents"),
        ("copies_in_validation", "texts"),
    ],
)
def test_a_planted_copy_is_found_with_its_original(fault: str, kind: str) -> None:
    planted, found, false = planting.measure(FAULTS[fault], kind, "medium")
    assert (found, false) == (planted, 0)


@pytest.mark.parametrize("kind", ["cheetah", "maze", "cartpole", "texts"])
def test_a_clean_recording_has_no_copies(kind: str) -> None:
    assert planting.audited(clean.record(kind), CHECKS).findings == ()


@pytest.mark.parametrize("name", edges.RECORDINGS)
def test_an_unusual_recording_has_no_copies(name: str) -> None:
    assert planting.audited(edges.RECORDINGS[name], CHECKS).findings == ()


def test_a_copy_that_begins_later_is_found_with_the_number_of_steps() -> None:
    recording = clean.record("texts")
    episode = recording.episodes[3]
    late = replace(recording, episodes=(*recording.episodes, episode.part(4, len(episode))))
    (finding,) = planting.audited(late, ["near_duplicates"]).findings
    assert finding.episodes == (3, 40)
    assert finding.evidence["offset"] == -4


def test_an_exact_copy_is_not_a_near_copy() -> None:
    recording = clean.record("texts")
    twice = replace(recording, episodes=(*recording.episodes, recording.episodes[3]))
    assert [one.check for one in planting.audited(twice, CHECKS).findings] == ["duplicate_episodes"]


def test_a_scripted_motion_that_all_episodes_share_is_no_copy() -> None:
    """A phase runs through each episode in the same way, and a sensor has noise of its own."""
    rng = np.random.default_rng(0)
    phase = np.sin(np.linspace(0, 9, 61))[:, None]
    episodes = tuple(
        clean.Recorded(
            states={("observation",): np.hstack([phase, phase**2, rng.normal(size=(61, 1))]).astype(np.float32)},
            steps={("action",): phase[1:].astype(np.float32), clean.REWARD: np.zeros((60, 1), np.float32)},
        )
        for _ in range(20)
    )
    assert planting.audited(clean.Recording("script", episodes), ["near_duplicates"]).findings == ()


def test_a_script_with_few_starts_is_a_hint_at_most() -> None:
    rng = np.random.default_rng(0)
    motion = np.cumsum(rng.normal(size=(4, 61, 3)), axis=1)
    episodes = tuple(
        clean.Recorded(
            states={("observation",): (motion[number % 4] + 1e-5 * rng.normal(size=(61, 3))).astype(np.float32)},
            steps={("action",): np.zeros((60, 1), np.float32), clean.REWARD: np.zeros((60, 1), np.float32)},
        )
        for number in range(20)
    )
    findings = planting.audited(clean.Recording("script", episodes), ["near_duplicates"]).findings
    assert [one.level for one in findings] == ["hint"]


def test_the_same_number_in_a_column_of_seeds_is_found() -> None:
    recording = clean.record("agents", 20)
    seeded = replace(
        recording,
        episodes=tuple(
            replace(one, metadata={"seed": 4 if number == 9 else number})
            for number, one in enumerate(recording.episodes)
        ),
    )
    (finding,) = planting.audited(seeded, ["repeated_seeds"]).findings
    assert finding.episodes == (4, 9)
