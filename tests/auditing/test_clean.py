"""Clean recordings of many kinds have no finding that is strong or a proof, and rules say why."""

from __future__ import annotations

from dataclasses import replace

import clean
import numpy as np
import planting
import pytest

from datasets_rl.auditing import audit
from datasets_rl.auditing.chance import at_least
from datasets_rl.auditing.finding import counted
from datasets_rl.errors import InvalidArgumentError

_IMAGES = {"atari", "pong", "grid", "arm", "teleop", "leader"}
_QUICK = ["frozen_lake", "stations", "explorer", "visits"]


def _strong(recording: clean.Recording, checks: list[str] | None = None) -> list[str]:
    found = planting.audited(recording, checks).of_level("strong")
    return [f"{one.check}: {one.message}" for one in found]


@pytest.mark.parametrize("kind", _QUICK)
def test_no_finding_is_strong_in_clean_recordings(kind: str) -> None:
    assert _strong(clean.record(kind, 30)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(clean.KINDS.keys() - _IMAGES - {*_QUICK}))
def test_no_finding_is_strong_in_clean_recordings_of_all_kinds(kind: str) -> None:
    assert _strong(clean.record(kind, 30)) == []


@pytest.mark.parametrize(("late", "found"), [(0, []), (1, []), (2, ["time_gaps"])])
def test_a_late_frame_is_a_gap_if_no_step_makes_up_for_it(late: int, found: list[str]) -> None:
    """No frame, a frame that is late by 0.7 steps, and a frame that is missing."""
    recording = clean.record("teleop", 12, images=False)
    one = recording.episodes[3]
    times = one.array(("timestamp",))
    if late == 1:
        times[20] += 0.7 / 30
    if late == 2:
        times[20:] += 1 / 30
    changed = recording.replaced({3: one.with_arrays({("timestamp",): times})})

    assert [finding.check for finding in planting.audited(changed, ["time_gaps"]).findings] == found


def test_rewards_that_the_upstream_does_not_have_are_no_finding() -> None:
    recording = clean.record("explorer", 10)
    found = planting.audited(recording, ["constant_rewards"])

    assert found.findings == ()
    assert "the upstream has no rewards" in found.skipped["constant_rewards"]
    assert planting.audited(replace(recording, rewarded=True), ["constant_rewards"]).findings


@pytest.mark.parametrize(("shorter", "level"), [(0, "hint"), (8, "strong")])
def test_ends_at_one_length_are_a_hint_if_no_episode_ends_before(shorter: int, level: str) -> None:
    episodes = clean.record("agents", 30).episodes
    ended = tuple(
        replace(one.part(0, 20 + number) if number < shorter else one, terminated=True)
        for number, one in enumerate(episodes)
    )
    (finding,) = planting.audited(clean.Recording("agents", ended), ["ends_at_limit"]).findings

    assert finding.level == level


def test_observations_that_rest_while_the_action_moves_are_a_hint() -> None:
    recording = clean.record("texts", 20)
    one, key = recording.episodes[5], ("observation", "state")
    states, actions = one.array(key), one.array(("action",))
    states[20:50], actions[20:50] = states[20], actions[20]
    held = recording.replaced({5: one.with_arrays({key: states})})
    paused = recording.replaced({5: one.with_arrays({key: states, ("action",): actions})})

    (finding,) = planting.audited(held, ["idle_spans"]).findings
    assert (finding.level, finding.episodes) == ("hint", (5,))
    assert "while the action goes on to change" in finding.message
    assert [one.level for one in planting.audited(paused, ["idle_spans"]).findings] == ["strong"]


def test_a_sensor_that_stuck_jumps_and_a_body_at_a_wall_does_not() -> None:
    recording = clean.record("cheetah", 12)
    one = recording.episodes[2]
    stuck, held = (np.array(one.states[("observation",)]) for _ in range(2))
    stop = 65 + int(np.abs(held[65:90, 1] - held[30, 1]).argmax())
    stuck[30:stop, 1] = stuck[30, 1]
    held[30:stop, 1], held[stop:, 1] = held[30, 1], held[stop:, 1] + held[30, 1] - held[stop, 1]
    levels = [
        [finding.level for finding in planting.audited(recording.replaced({2: changed}), ["stuck_elements"]).findings]
        for changed in (one.with_arrays({("observation",): values}) for values in (stuck, held))
    ]

    assert levels == [["strong"], ["hint"]]


def test_one_value_and_one_wrong_name_are_said_in_the_singular() -> None:
    recording = clean.record("agents", 10)
    actions = recording.episodes[4].array(("action",))
    actions[7, 0, 0] = np.nan
    changed = recording.replaced({4: recording.episodes[4].with_arrays({("action",): actions})})
    (finding,) = planting.audited(changed, ["not_finite"]).findings

    assert finding.message == "action has 1 value that is NaN or infinite, in 1 of 10 episodes, first in row 207"
    with pytest.raises(InvalidArgumentError, match="check is 'nope', expected one of action_shift, "):
        audit("demo/pendulum", checks=["nope"])
    assert (counted(1, "step"), counted(2000, "step")) == ("1 step", "2,000 steps")


def test_the_probability_of_so_many_events() -> None:
    assert at_least(0, 3.0) == 1
    assert at_least(1, 0.5) == pytest.approx(1 - np.exp(-0.5))
    assert at_least(3, 1.0) == pytest.approx(1 - np.exp(-1) * 2.5)
