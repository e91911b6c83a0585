"""The audit finds episodes that are in the dataset twice, also where the copy is not exact."""

from __future__ import annotations

from dataclasses import replace

import clean
import edges
import numpy as np
import planting
import pytest

from datasets_rl.auditing import audit_parts

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


def test_two_datasets_name_the_episodes_that_are_in_both() -> None:
    recording = clean.record("texts")
    training = replace(recording, episodes=recording.episodes[:30])
    validation = replace(recording, episodes=(*recording.episodes[30:], recording.episodes[7], recording.episodes[3]))
    (finding,) = planting.mixture_audited([training, validation], audit_parts).findings

    assert (finding.check, finding.level, finding.evidence["pairs"]) == ("shared_episodes", "proof", [[3, 11], [7, 10]])
    assert "2 of 12 episodes" in finding.message
    assert "such as episode 11 of" in finding.message
    assert str(finding.remedy).startswith("-t drop_episodes:10,11 in ")


def test_two_datasets_without_a_common_episode_share_nothing() -> None:
    recording = clean.record("maze")
    halves = [replace(recording, episodes=recording.episodes[part]) for part in (slice(20), slice(20, 40))]
    found = planting.mixture_audited(halves, audit_parts)

    assert (found.findings, found.checked) == ((), ("shared_episodes",))


def test_datasets_with_other_fields_share_the_episodes_with_equal_actions() -> None:
    recording = clean.record("maze", 10)
    states = [
        replace(one, states={("observation", "far"): 3 * one.states["observation", "state"]})
        for one in recording.episodes[4:]
    ]
    (finding,) = planting.mixture_audited([recording, replace(recording, episodes=tuple(states))], audit_parts).findings

    assert (finding.level, finding.evidence["copies"], finding.evidence["pairs"][0]) == ("strong", 6, [4, 0])
    assert "are equal to episodes of" in finding.message
    assert "in action, such as episode 0 of" in finding.message


def test_episodes_of_two_datasets_with_another_goal_are_no_proof() -> None:
    recording = clean.record("maze", 10)
    moved = [
        replace(one, states={**one.states, ("observation", "goal"): one.states["observation", "goal"] + 1})
        for one in recording.episodes[:2]
    ]
    parts = [recording, replace(recording, episodes=(*moved, *recording.episodes[2:3]))]
    found = planting.mixture_audited(parts, audit_parts).findings

    assert [(one.level, one.evidence["copies"]) for one in found] == [("proof", 1), ("strong", 2)]
    assert (
        "in action and observation.state" in found[1].message or "in observation.state and action" in found[1].message
    )


def test_datasets_without_information_are_not_compared() -> None:
    members = [clean.record("visits", 10), clean.record("maze", 10)]
    assert (
        "no episode has enough information" in planting.mixture_audited(members, audit_parts).skipped["shared_episodes"]
    )


def test_a_copy_with_another_goal_is_a_near_copy() -> None:
    recording = clean.record("maze", 10)
    one = recording.episodes[2]
    other = replace(one, states={**one.states, ("observation", "goal"): one.states["observation", "goal"] + 1})
    (finding,) = planting.audited(replace(recording, episodes=(*recording.episodes, other)), CHECKS).findings

    assert (finding.check, finding.level, finding.episodes) == ("near_duplicates", "strong", (2, 10))


def test_equal_images_without_states_are_copies() -> None:
    recording = clean.record("grid", 8)
    twice = replace(recording, episodes=(*recording.episodes, recording.episodes[1]))
    (finding,) = planting.audited(twice, CHECKS).findings

    assert (finding.check, finding.level, finding.episodes) == ("duplicate_episodes", "proof", (1, 8))


def test_a_field_of_the_steps_names_the_parts_of_a_dataset() -> None:
    recording = clean.record("maze", 20)
    marked = [
        replace(one, steps={**one.steps, ("info", "split"): np.full((len(one), 1), number >= 15, np.int64)})
        for number, one in enumerate(recording.episodes)
    ]
    copy = marked[4].with_arrays({("info", "split"): np.ones((len(marked[4]), 1), np.int64)})
    (finding,) = planting.audited(replace(recording, episodes=(*marked, copy)), ["shared_splits"]).findings

    assert finding.episodes == (4, 20)
    assert "info.split is 0 and 1" in finding.message


def test_a_walk_over_few_places_that_repeats_is_no_copy() -> None:
    assert planting.audited(clean.record("frozen_lake"), CHECKS).findings == ()
