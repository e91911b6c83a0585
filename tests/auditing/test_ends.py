"""The audit finds ends of episodes that are marked in another way than the episodes end."""

from __future__ import annotations

from dataclasses import replace

import clean
import edges
import planting
import pytest

CHECKS = ["ends_at_limit", "missing_ends", "final_is_reset"]
FAULTS = planting.load_faults()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("limits_are_terminal", "agents"),
        ("limits_are_terminal", "maze"),
        ("ends_unmarked", "maze"),
        ("ends_unmarked", "texts"),
        ("final_of_the_next_episode", "cheetah"),
        ("final_of_the_next_episode", "maze"),
    ],
)
def test_a_planted_end_is_found_in_the_right_episodes(fault: str, kind: str) -> None:
    planted, found, false = planting.measure(FAULTS[fault], kind, "medium")
    assert (found, false) == (planted, 0)


@pytest.mark.parametrize("kind", ["cheetah", "maze", "cartpole", "texts", "agents"])
def test_a_clean_recording_has_right_ends(kind: str) -> None:
    assert planting.audited(clean.record(kind), CHECKS).findings == ()


@pytest.mark.parametrize("name", edges.RECORDINGS)
def test_an_unusual_recording_has_right_ends(name: str) -> None:
    assert planting.audited(edges.RECORDINGS[name], CHECKS).findings == ()


def test_a_dataset_without_any_terminal_flag_is_found_by_the_states_at_the_ends() -> None:
    poles = clean.record("cartpole", 12)
    # A pole that falls further than the others do inside an episode ends the episode.
    fallen = []
    for number, one in enumerate(poles.episodes):
        part = one.part(0, 40 + number)
        states = part.array(("observation",))
        if number % 2:
            states[-1, 2] = 0.5
        fallen.append(replace(part.with_arrays({("observation",): states}), terminated=False))
    (finding,) = planting.audited(replace(poles, episodes=tuple(fallen)), ["missing_ends"]).findings
    assert finding.episodes == (1, 3, 5, 7, 9)
    assert "observation[2] is above" in finding.message


def test_an_episode_that_goes_on_in_the_next_one_is_no_reset() -> None:
    recording = clean.record("agents", 10)
    episodes = [part for one in recording.episodes for part in (one.part(0, 25), one.part(25, 50))]
    parts = replace(recording, episodes=tuple(episodes))
    assert planting.audited(parts, ["final_is_reset"]).findings == ()
