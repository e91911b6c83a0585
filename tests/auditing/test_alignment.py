"""The audit finds actions, rewards and observations that do not belong to the step with which they are stored."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import clean
import edges
import numpy as np
import planting
import pytest

from datasets_rl import audit, load
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.checks import check_class
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.run import _joined
from datasets_rl.look.steps import StepReader

CHECKS = ["action_shift", "reward_shift", "observation_shift", "joined_episodes"]
FAULTS = planting.load_faults()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("actions_shifted", "maze"),
        ("actions_shifted", "cartpole"),
        ("all_actions_shifted", "agents"),
        ("rewards_shifted", "agents"),
        ("rewards_early", "maze"),
        ("all_rewards_early", "cheetah"),
        ("observations_after", "texts"),
        ("episodes_joined", "maze"),
        ("episodes_joined", "texts"),
    ],
)
def test_a_planted_shift_is_found_in_the_right_episodes(fault: str, kind: str) -> None:
    planted, found, false = planting.measure(FAULTS[fault], kind, "medium")
    assert (found, false) == (planted, 0)


@pytest.mark.parametrize("kind", ["cheetah", "maze", "texts"])
def test_a_clean_recording_has_no_shift(kind: str) -> None:
    assert planting.audited(clean.record(kind), CHECKS).findings == ()


@pytest.mark.parametrize("name", edges.RECORDINGS)
def test_an_unusual_recording_has_no_shift(name: str) -> None:
    assert planting.audited(edges.RECORDINGS[name], CHECKS).findings == ()


def test_actions_a_step_late_are_reported_with_the_step_that_corrects_them() -> None:
    recording = clean.record("agents")
    episode = recording.episodes[7]
    late = np.concatenate([episode.steps["action",][:1], episode.steps["action",][:-1]])
    changed = recording.replaced({7: episode.with_arrays({("action",): late})})
    (finding,) = planting.audited(changed, ["action_shift"]).findings
    assert (finding.level, finding.episodes, finding.evidence["steps"]) == ("strong", (7,), 1)
    assert str(finding.remedy) == "-t fix_shift:7,key=action,steps=1"


def test_a_shift_in_the_second_half_names_the_rows_of_this_half() -> None:
    recording = clean.record("agents")
    episode = recording.episodes[7]
    late = episode.array(("action",))
    late[25:] = episode.steps["action",][24:-1]
    (finding,) = planting.audited(
        recording.replaced({7: episode.with_arrays({("action",): late})}), ["action_shift"]
    ).findings
    assert finding.rows == ((7 * 50 + 25, 8 * 50),)


def test_a_goal_that_changes_inside_an_episode_is_a_seam() -> None:
    recording = clean.record("maze")
    number, episode = next((number, one) for number, one in enumerate(recording.episodes) if len(one) == 200)
    goals = episode.array(("observation", "goal"))
    goals[90:] += 1
    changed = recording.replaced({number: episode.with_arrays({("observation", "goal"): goals})})
    (finding,) = planting.audited(changed, ["joined_episodes"]).findings
    start = sum(len(one) for one in recording.episodes[:number])
    assert finding.episodes == (number,)
    assert finding.evidence["row"] == start + 89
    assert "observation.goal[0]" in finding.message
    assert str(finding.remedy) == f"-t split_episodes:{number}/90"


@pytest.mark.parametrize("name", ["action_shift", "reward_shift", "joined_episodes"])
def test_an_episode_in_several_blocks_has_the_measures_of_one_block(tmp_path: Path, name: str) -> None:
    data = Data(StepReader(clean.record("cheetah").store(tmp_path / "dataset")))
    check = check_class(name)()
    (key,) = check.targets(data)
    edges_of_blocks = [0, 130, 270, 1_000, len(data)]
    blocks = [Block(data, start, stop) for start, stop in pairwise(edges_of_blocks)]
    parts = [{"episode": block.episodes, **check.measure(block, key)} for block in blocks]
    joined = _joined(check.merges, parts)
    whole = check.measure(Block(data, 0, len(data)), key)
    for measure in check.merges:
        np.testing.assert_allclose(joined[measure], whole[measure], rtol=1e-4, atol=1e-4)


def test_a_pendulum_that_swings_fast_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps follow from products of the sine and the speed, and its speed is clipped."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    load("demo/pendulum")
    assert audit("demo/pendulum", checks=CHECKS).findings == ()
