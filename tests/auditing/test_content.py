"""Checks of contents: pauses, rewards, success and texts, and the conventions of mixtures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import clean
import numpy as np
import planting
import pytest

from datasets_rl.auditing import audit, audit_mixture
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
    text = first.array(_TEXT)[0]
    wrong = text.replace("drawer", "drawr").replace("button", "buton").replace("shelf", "shlf").replace("cube", "cbe")
    changed = first.with_arrays({_TEXT: [wrong] * (len(first) + 1)})
    findings = planting.audited(recording.replaced({0: changed}), ["texts_unlike"]).findings
    assert [(finding.level, finding.episodes) for finding in findings] in ([("hint", (0,))], [])
    changed = first.with_arrays({_TEXT: [text.replace("the", "teh") + " now"] * (len(first) + 1)})
    assert planting.audited(recording.replaced({0: changed}), ["texts_unlike"]).findings == ()


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
    for finding in planting.mixture_audited([planted.recording, *planted.others]).findings:
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
