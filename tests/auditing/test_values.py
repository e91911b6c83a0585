"""Checks of values: each finds its planted fault, and nothing in clean recordings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import clean
import numpy as np
import planting
import pytest

from datasets_rl import Settings, download, preprocess
from datasets_rl.auditing import CHECKS, audit
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.checks import check_class
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.run import _joined
from datasets_rl.look.steps import StepReader
from datasets_rl.preprocessing.recipe import Recipe

_VALUES = [
    "not_finite",
    "outliers",
    "saturated_actions",
    "actions_outside_space",
    "angle_wraps",
    "stuck_elements",
    "constant_fields",
    "unit_changes",
    "normalized_twice",
    "quaternions",
    "time_gaps",
    "time_jitter",
]
_CASES = [
    ("nan_in_actions", "cheetah"),
    ("infinite_states", "texts"),
    ("spikes_in_states", "maze"),
    ("spikes_in_actions", "texts"),
    ("actions_clipped", "texts"),
    ("actions_too_large", "maze"),
    ("unknown_actions", "cartpole"),
    ("heading_wraps", "teleop"),
    ("joint_wraps", "texts"),
    ("sensor_sticks", "agents"),
    ("actuator_sticks", "texts"),
    ("sensor_missing", "maze"),
    ("actuator_missing", "cartpole"),
    ("states_in_degrees", "cheetah"),
    ("actions_in_tenths", "texts"),
    ("states_normalized", "texts"),
    ("actions_normalized", "agents"),
    ("part_normalized", "teleop"),
    ("part_in_degrees", "maze"),
    ("norms_off", "teleop"),
    ("signs_flip", "teleop"),
    ("frames_missing", "teleop"),
    ("time_goes_back", "teleop"),
    ("clock_jitters", "teleop"),
    ("all_clocks_jitter", "teleop"),
]


def _record(kind: str, episodes: int = 40) -> clean.Recording:
    return clean.record(kind, episodes, images=kind not in {"arm", "teleop"})


@pytest.mark.parametrize(("fault", "kind"), _CASES)
def test_a_medium_fault_is_found_in_its_episodes_and_in_no_other(fault: str, kind: str) -> None:
    one = planting.load_faults()[fault]
    assert kind in one.kinds
    planted = one.plant(_record(kind), "medium", np.random.default_rng(1))
    findings = planting.audited(planted.recording, [one.check]).findings
    assert findings
    assert {episode for finding in findings for episode in finding.episodes} == planted.episodes


@pytest.mark.parametrize("kind", ["cheetah", "maze", "cartpole", "arm", "texts", "agents", "teleop"])
def test_nothing_strong_is_found_in_clean_recordings(kind: str) -> None:
    assert planting.audited(_record(kind), _VALUES).of_level("strong") == ()


def test_each_fault_of_values_names_a_check() -> None:
    assert {planting.load_faults()[fault].check for fault, _ in _CASES} == set(_VALUES)


def _changed(recording: clean.Recording, key: tuple[str, ...], array: Any) -> clean.Recording:
    return replace(recording, episodes=tuple(one.with_arrays({key: array(one)}) for one in recording.episodes))


@pytest.mark.parametrize(
    ("name", "recording"),
    [
        ("one episode", lambda: _record("texts", 1)),
        ("three steps", lambda: replace(_record("texts", 1), episodes=(_record("texts", 1).episodes[0].part(0, 3),))),
        (
            "episodes of one step",
            lambda: replace(_record("texts"), episodes=tuple(one.part(0, 1) for one in _record("texts").episodes)),
        ),
        (
            "no states",
            lambda: replace(
                _record("cheetah"),
                episodes=tuple(
                    replace(one, states={("observation",): np.zeros((len(one) + 1, 2), np.bool_)})
                    for one in _record("cheetah").episodes
                ),
            ),
        ),
        (
            "NaN everywhere",
            lambda: _changed(
                _record("cheetah"), ("observation",), lambda one: np.full_like(one.array(("observation",)), np.nan)
            ),
        ),
        (
            "integer states",
            lambda: _changed(
                _record("cheetah"),
                ("observation",),
                lambda one: (100 * one.array(("observation",))).astype(np.int32),
            ),
        ),
        (
            "float16 states",
            lambda: _changed(
                _record("cheetah"), ("observation",), lambda one: one.array(("observation",)).astype(np.float16)
            ),
        ),
    ],
)
def test_unusual_recordings_are_audited(name: str, recording: Any, tmp_path: Path) -> None:
    recording().store(tmp_path / "dataset")
    found = audit(tmp_path / "dataset", checks=[*_VALUES, "idle_spans", "saturated_actions"])
    assert {finding.check for finding in found.of_level("strong")} <= ({"not_finite"} if "NaN" in name else set())


def _measured(data: Data, edges: list[int], check: Any, key: Any) -> Mapping[str, Any]:
    parts = []
    for start, stop in pairwise(edges):
        block = Block(data, start, stop)
        parts.append({"episode": block.episodes, **check.measure(block, key)})
    return _joined(check.merges, parts)


@pytest.mark.parametrize("name", [*_VALUES, "idle_spans", "constant_rewards"])
def test_a_long_episode_in_several_blocks_has_the_measures_of_one_block(name: str, tmp_path: Path) -> None:
    recording = _record("teleop", 12)
    long = replace(recording.episodes[0], **_repeated(recording.episodes))
    spoilt = long.array(("action",))
    spoilt[::7] = np.minimum(spoilt[::7], 0.1)
    spoilt[300, 2] = np.nan
    spoilt[:, 0] = np.minimum(spoilt[:, 0], 0.3)
    heading = (3 * long.array(("observation", "heading")) + np.pi) % (2 * np.pi) - np.pi
    long = long.with_arrays({("action",): spoilt, ("observation", "heading"): heading})
    whole = replace(recording, episodes=(recording.episodes[0], long, *recording.episodes[1:]), bounds=(-1.0, 1.0))
    data = Data(StepReader(whole.store(tmp_path / "dataset")))
    check = check_class(name)()
    targets = check.targets(data)
    assert not isinstance(targets, str)
    start, stop = int(data.episodes.starts[1]), int(data.episodes.stops[1])
    cut = [0, start + 200, start + 201, start + 700, stop - 1, len(data)]
    for key in targets:
        one, several = (_measured(data, edges, check, key) for edges in ([0, len(data)], cut))
        for measure in one:
            np.testing.assert_allclose(several[measure], one[measure], rtol=1e-5, atol=1e-6, err_msg=measure)


def _repeated(episodes: tuple[clean.Recorded, ...]) -> dict[str, Any]:
    """Return the states and the steps of episodes in a row, as those of one episode."""
    return {
        "states": {
            key: np.concatenate([*(one.states[key][:-1] for one in episodes), episodes[-1].states[key][-1:]])
            for key in episodes[0].states
        },
        "steps": {key: np.concatenate([one.steps[key] for one in episodes]) for key in episodes[0].steps},
    }


def test_values_at_the_limit_of_a_part_do_not_count_if_another_part_goes_further(tmp_path: Path) -> None:
    """The first half of an episode ends at 0.5 in each step, and the second goes up to 1 once."""
    recording = _record("texts", 8)
    first = recording.episodes[0]
    actions = np.full_like(first.array(("action",)), 0.5)
    actions[-1] = 1.0
    whole = recording.replaced({0: first.with_arrays({("action",): actions})})
    data = Data(StepReader(whole.store(tmp_path / "dataset")))
    measures = _measured(data, [0, len(first) // 2, len(data)], check_class("saturated_actions")(), ("action",))
    assert measures["at_high"][0].tolist() == [1] * 6
    assert measures["at_low"][0].tolist() == [len(first) - 1] * 6


def test_a_message_names_the_element_the_row_and_the_numbers(tmp_path: Path) -> None:
    recording = _record("cheetah")
    states = recording.episodes[3].array(("observation",))
    states[20, 4] = 1e6
    recording.replaced({3: recording.episodes[3].with_arrays({("observation",): states})}).store(tmp_path / "dataset")
    (finding,) = audit(tmp_path / "dataset", checks=["outliers"]).findings
    assert finding.message.startswith("observation[4] is 1e+06 in row 320 of episode 3")
    assert finding.rows == ((320, 321),)


def test_a_remedy_corrects_whole_episodes_and_drops_episodes_with_two_units(tmp_path: Path) -> None:
    recording = _record("cheetah")
    key, changed = ("observation",), {}
    for number, first in ((3, 0), (7, 50)):
        states = recording.episodes[number].array(key)
        states[first:] *= np.float32(180 / np.pi)
        changed[number] = recording.episodes[number].with_arrays({key: states})
    recording.replaced(changed).store(tmp_path / "dataset")
    whole, part = audit(tmp_path / "dataset", checks=["unit_changes"]).findings
    assert str(whole.remedy) == "-t fix_unit:3,key=observation,factor=0.0174533"
    assert str(part.remedy) == "-t drop_episodes:7"


@pytest.mark.parametrize(
    ("fault", "kind", "step"),
    [
        ("part_in_degrees", "texts", "fix_unit"),
        ("signs_flip", "teleop", "fix_signs"),
        ("joint_wraps", "texts", "fix_wraps"),
        ("frames_missing", "teleop", "split_episodes"),
        ("actions_too_large", "maze", "clip"),
    ],
)
def test_a_remedy_is_a_step_of_a_recipe(fault: str, kind: str, step: str) -> None:
    one = planting.load_faults()[fault]
    planted = one.plant(_record(kind), "strong", np.random.default_rng(1))
    findings = planting.audited(planted.recording, [one.check]).findings
    assert findings
    for finding in findings:
        _, text = shlex.split(str(finding.remedy))
        assert text.startswith(f"{step}:")
        assert len(Recipe.inline([text]).steps) == 1


def test_all_checks_have_a_rule_a_reason_and_limits() -> None:
    for name in CHECKS:
        one = check_class(name)
        assert one.name == name
        assert one.rule.endswith(".")
        assert one.why.endswith(".")
        assert one.limits.endswith(".")


def test_a_dataset_that_a_recipe_normalized_is_no_fault(tmp_path):
    """The policies of demo/pendulum move in three ways, of which two look like the third after a normalization."""
    settings = Settings(home=tmp_path, progress=False)
    folder = preprocess(
        download("demo/pendulum", settings=settings), Recipe.inline(["normalize"]), name="n", settings=settings
    )
    assert not audit(folder, checks=["normalized_twice"], settings=settings).findings
