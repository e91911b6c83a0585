"""Checks of contents: pauses, rewards, success and texts, and the conventions of mixtures."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import clean
import numpy as np
import planting
import pytest

from datasets_rl.auditing import audit, audit_mixture
from datasets_rl.auditing.checks.texts_of_other_tasks import _distances
from datasets_rl.auditing.checks.texts_unlike import _misspelled
from datasets_rl.cli.app import main

_TEXT = ("instruction",)
_CONTENT = ("idle_spans", "constant_rewards", "success_columns", "texts_unlike", "texts_of_other_tasks")
_CASES = [
    ("pause", "texts"),
    ("pause", "maze"),
    ("rewards_zero", "agents"),
    ("rewards_zero", "cartpole"),
    ("success_inverted", "maze"),
    ("success_never", "maze"),
    ("text_empty", "texts"),
    ("text_in_another_spelling", "texts"),
    ("text_of_another_task", "texts"),
]


def _record(kind: str, episodes: int = 40) -> clean.Recording:
    return clean.record(kind, episodes, images=kind not in {"arm", "teleop"})


@pytest.mark.parametrize(("fault", "kind"), _CASES)
def test_a_medium_fault_is_found_in_its_episodes_and_in_no_other(fault: str, kind: str) -> None:
    one = planting.load_faults()[fault]
    planted = one.plant(_record(kind), "medium", np.random.default_rng(1))
    findings = planting.audited(planted.recording, [one.check]).findings
    assert findings
    assert {episode for finding in findings for episode in finding.episodes} == planted.episodes


@pytest.mark.parametrize("kind", ["cheetah", "maze", "cartpole", "arm", "texts", "agents", "teleop"])
def test_nothing_is_found_in_clean_recordings(kind: str) -> None:
    assert planting.audited(_record(kind), list(_CONTENT)).findings == ()


def test_a_missing_letter_in_a_rare_text_is_a_hint() -> None:
    recording = _record("texts")
    first = recording.episodes[0]
    text = str(first.array(_TEXT)[0])
    longest = max(text.split(), key=len)
    changed = first.with_arrays({_TEXT: [text.replace(longest, longest[:2] + longest[3:])] * (len(first) + 1)})
    (finding,) = planting.audited(recording.replaced({0: changed}), ["texts_unlike"]).findings
    assert (finding.level, finding.episodes) == ("hint", (0,))
    changed = first.with_arrays({_TEXT: [text.replace("the", "teh") + " now"] * (len(first) + 1)})
    assert planting.audited(recording.replaced({0: changed}), ["texts_unlike"]).findings == ()


def _differ_by_a_letter(one: str, other: str) -> bool:
    return other in {
        one[:place] + letter + one[place + skip :]
        for place in range(len(one) + 1)
        for letter in ("", *"abc")
        for skip in (0, 1)
    }


def test_pairs_of_texts_are_those_that_a_comparison_of_all_texts_finds() -> None:
    rng = np.random.default_rng(0)
    words = {"".join(rng.choice([*"abc"], rng.integers(3, 7))) for _ in range(200)}
    counts = {f"open {word}": int(rng.integers(1, 30)) for word in sorted(words)}
    pairs = {
        (one, other)
        for one in counts
        for other in counts
        if one != other
        and min(len(one), len(other)) >= len("open ....")
        and 5 * counts[one] <= counts[other]
        and _differ_by_a_letter(one[5:], other[5:])
    }
    assert len(pairs) > 20
    assert set(_misspelled(counts)) == pairs


def _seconds(function: Callable[[], object]) -> float:
    def once() -> float:
        before = time.process_time()
        function()
        return time.process_time() - before

    return min(once() for _ in range(3))


def test_a_text_of_its_own_for_each_episode_takes_time_in_proportion_to_the_episodes() -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice([*"abcdefgh"], 10)) for _ in range(400)]
    counts = [dict.fromkeys(texts[:number], 5) for number in (50, 400)]
    few, many = (_seconds(lambda one=one: [*_misspelled(one)]) for one in counts)
    assert many < 25 * few  # 64 times if all texts are compared


def test_distances_from_many_texts_take_little_memory() -> None:
    states, own = np.random.default_rng(0).normal(size=(10_000, 3)), np.arange(10_000) % 200
    _distances(states[:200], own[:200], 200)  # the first call imports modules
    tracemalloc.start()
    try:
        _distances(states, own, 200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * states.nbytes  # 67 times with a distance from each text


def test_tasks_that_all_end_in_one_pose_have_no_text_of_another_task() -> None:
    recording = _record("texts")
    poses = {key: value for key, value in recording.episodes[0].states.items() if key != _TEXT}
    same = [
        one.with_arrays({key: np.tile(value[:1], (len(one) + 1, 1)) for key, value in poses.items()})
        for one in recording.episodes
    ]
    assert planting.audited(replace(recording, episodes=tuple(same)), ["texts_of_other_tasks"]).findings == ()


def test_numbers_in_texts_are_no_misspelling() -> None:
    recording = _record("texts")
    texts = ["go to shelf number 12", "go to shelf number 13"]
    episodes = tuple(
        one.with_arrays({_TEXT: [texts[number == 0]] * (len(one) + 1)}) for number, one in enumerate(recording.episodes)
    )
    assert planting.audited(replace(recording, episodes=episodes), ["texts_unlike"]).findings == ()


def test_a_reward_for_each_step_until_a_terminal_state_is_usual(tmp_path: Path) -> None:
    recording = _record("cartpole")
    assert any(one.terminated for one in recording.episodes)
    assert any(not one.terminated for one in recording.episodes)
    assert planting.audited(recording, ["constant_rewards"]).findings == ()
    endless = tuple(replace(one, terminated=False) for one in recording.episodes)
    (finding,) = planting.audited(replace(recording, episodes=endless), ["constant_rewards"]).findings
    assert finding.level == "strong"
    assert "rewards are 1" in finding.message


@pytest.mark.parametrize("place", ["at the start", "inside", "at the end"])
def test_a_pause_is_named_by_its_place_and_its_rows(place: str, tmp_path: Path) -> None:
    recording = _record("texts")
    one = recording.episodes[5]
    states = one.array(("observation", "state"))
    rows = {"at the start": slice(0, 30), "inside": slice(20, 50), "at the end": slice(len(one) - 30, len(one) + 1)}[
        place
    ]
    states[rows] = states[rows.start]
    recording.replaced({5: one.with_arrays({("observation", "state"): states})}).store(tmp_path / "dataset")
    (finding,) = audit(tmp_path / "dataset", checks=["idle_spans"]).findings
    first = sum(len(other) for other in recording.episodes[:5])
    assert place in finding.message
    assert finding.rows[0][0] == pytest.approx(first + rows.start, abs=2)
    assert finding.rows[0][1] == pytest.approx(first + rows.stop, abs=2)


_MIXTURES = [
    ("actions_in_another_unit", "cheetah"),
    ("rates_differ", "maze"),
    ("gripper_sign", "arm"),
    ("action_sign", "texts"),
]


@pytest.mark.parametrize(("fault", "kind"), _MIXTURES)
def test_a_member_with_another_convention_is_named(fault: str, kind: str, tmp_path: Path) -> None:
    one = planting.load_faults()[fault]
    planted = one.plant(_record(kind), "medium", np.random.default_rng(1))
    findings = planting.mixture_audited([planted.recording, *planted.others]).findings
    assert findings
    for finding in findings:
        assert finding.level == "strong"
        assert "member1" in finding.message


def test_cameras_with_other_names_are_named(tmp_path: Path) -> None:
    one = planting.load_faults()["cameras_named_otherwise"]
    planted = one.plant(clean.record("arm", 4), "weak", np.random.default_rng(1))
    (finding,) = planting.mixture_audited([planted.recording, *planted.others]).findings
    assert "observation.cam_high" in finding.message


@pytest.mark.parametrize("kind", ["cheetah", "maze", "cartpole", "arm", "texts", "agents", "teleop"])
def test_two_halves_of_a_recording_have_the_same_conventions(kind: str) -> None:
    whole = _record(kind)
    halves = [replace(whole, episodes=whole.episodes[part]) for part in (slice(0, 20), slice(20, 40))]
    assert planting.mixture_audited(halves).findings == ()


def test_the_odd_member_of_three_is_named(tmp_path: Path) -> None:
    whole = _record("cheetah")
    odd = [one.with_arrays({("action",): 50 * one.array(("action",))}) for one in whole.episodes[:10]]
    members = [
        replace(whole, episodes=tuple(odd), bounds=None),
        *(replace(whole, episodes=whole.episodes[start : start + 10]) for start in (10, 20)),
    ]
    (finding,) = planting.mixture_audited(members).findings
    assert "member0" in finding.message


def test_infinite_values_in_members_are_no_reason_to_warn() -> None:
    whole, key = _record("maze", 20), ("observation", "state")
    first = whole.episodes[0]
    values = first.array(key).copy()
    values[3:6] = np.inf
    halves = [
        replace(whole, episodes=(first.with_arrays({key: values}), *whole.episodes[1:10])),
        replace(whole, episodes=whole.episodes[10:]),
    ]
    assert planting.mixture_audited(halves).findings == ()


def test_a_mixture_of_one_member_is_skipped(tmp_path: Path) -> None:
    _record("maze", 4).store(tmp_path / "alone")
    found = audit_mixture([tmp_path / "alone"], name="mix.toml")
    assert found.id == "mix.toml"
    assert "conventions" in found.skipped


def test_the_command_reports_the_members_and_then_the_mixture(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    planted = planting.load_faults()["rates_differ"].plant(_record("maze"), "medium", np.random.default_rng(1))
    for number, one in enumerate([planted.recording, *planted.others]):
        one.store(tmp_path / f"member{number}")
    file = tmp_path / "mix.toml"
    file.write_text('[[member]]\ndataset = "member0"\n[[member]]\ndataset = "member1"\n', "utf-8")
    capsys.readouterr()
    assert main(["audit", str(file), "--fail-on", "strong", "--json"]) != 0
    document = json.loads(capsys.readouterr().out)
    *members, mixture, _ = document["datasets"]
    assert len(members) == 2
    assert [finding["check"] for finding in mixture["findings"]] == ["conventions"]
    assert mixture["id"] == str(file)
