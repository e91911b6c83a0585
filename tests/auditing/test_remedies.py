"""The remedies of findings, and the recipe of an audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import clean
import numpy as np
import pytest
from planting import audited, load_faults
from stored_data import trajectory, write_dataset

from datasets_rl import Audit, Finding, Recipe, audit
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.remedy import (
    Correction,
    align_signs,
    doubted,
    drop,
    end_by_truncation,
    keep_rows,
    recipe_of,
    scale,
    shift,
    split_at,
    unwrap,
    without_seams,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.look.steps import StepReader
from datasets_rl.preprocessing import preprocess


def found(check, remedy, *, level="strong", message="it is wrong"):
    return Finding(check, level, message, remedy=remedy)


def steps_of(text, tmp_path: Path):
    file = tmp_path / "recipe.toml"
    file.write_text(text, "utf-8")
    return [step.to_json() for step in Recipe.of(str(file)).steps]


@pytest.fixture
def data(tmp_path):
    """Episodes of 10, 20 and 30 steps: episode 1 has the rows 10 to 29."""
    episodes = [trajectory(count, seed=count) for count in (10, 20, 30)]
    return Data(StepReader(write_dataset(tmp_path / "toy", episodes)))


def test_rows_become_places_in_the_episodes_of_the_source(data):
    assert split_at(data, [13, 45]).places == ("1/3", "2/15")
    assert keep_rows(data, 14, 30).places == ("1/4:",)
    assert keep_rows(data, 10, 22).places == ("1/:12",)
    assert keep_rows(data, 12, 22).places == ("1/2:12",)


def test_steps_of_one_check_that_differ_in_the_episodes_are_one_step_with_the_reasons(tmp_path):
    findings = [found("outliers", drop([number]), message=f"episode {number}") for number in (3, 9, 4, 5)]
    (step,) = steps_of(recipe_of("lab/arm", findings), tmp_path)

    assert step["numbers"] == ["3:6", 9]
    assert step["reason"] == "outliers: episode 3; episode 9; episode 4; and 1 more"


def test_the_order_of_steps_keeps_the_numbers_of_the_source(tmp_path):
    findings = [
        found("angle_wraps", unwrap("observation", [0], 360, [180])),
        found("terminated", end_by_truncation([2])),
        found("units", scale("observation", 0.5, [1])),
        found("lag", shift("camera", 2, [1])),
        found("idle", Correction("trim_steps", ("2/4:",))),
        found("joined", Correction("split_episodes", ("1/3",))),
        found("twice", drop([0])),
    ]

    assert [step["use"] for step in steps_of(recipe_of("lab/arm", findings), tmp_path)] == [
        *("drop_episodes", "split_episodes", "trim_steps", "fix_shift", "fix_unit", "fix_wraps", "fix_ends")
    ]


def test_nothing_else_is_done_to_an_episode_that_is_dropped(tmp_path):
    findings = [found("twice", drop([4, 5])), found("joined", Correction("split_episodes", ("4/3", "7/2"))), found("units", scale("action", 2, [5]))]  # fmt: skip
    drops, splits = steps_of(recipe_of("lab/arm", findings), tmp_path)

    assert (drops["numbers"], splits["places"]) == ([4, 5], ["7/2"])


def test_an_episode_that_is_divided_is_not_trimmed_and_the_file_says_so(tmp_path):
    findings = [
        found("joined", Correction("split_episodes", ("4/30",))),
        found("idle", Correction("trim_steps", ("4/12:",))),
        found("idle", Correction("trim_steps", ("5/12:",))),
    ]
    text = recipe_of("lab/arm", without_seams(findings))

    assert [step.get("spans") for step in steps_of(text, tmp_path)] == [None, ["5/12:"]]
    assert "# idle: it is wrong: episode 4 is divided after another finding" in text


def test_an_episode_that_is_divided_is_not_dropped_and_not_divided_there_again():
    joined, gap, flip, nan = without_seams(
        [
            found("joined", Correction("split_episodes", ("4/30",))),
            found("gap", Correction("split_episodes", ("4/31", "4/60", "5/30"))),
            found("flip", drop([4])),
            found("nan", drop([3, 4, 5, 8])),
        ]
    )

    assert str(joined.remedy) == "-t split_episodes:4/30"
    assert str(gap.remedy) == "-t split_episodes:4/60,5/30"
    assert "episode 4 is divided after another finding" in flip.remedy
    assert str(nan.remedy) == "-t drop_episodes:3,8"
    again = without_seams([joined, found("gap", Correction("split_episodes", ("4/31",)))])
    assert again[1].remedy == "episode 4 is divided there after another finding"


def of(check, remedy, *episodes, key=""):
    return replace(found(check, remedy), episodes=episodes, key=key)


def test_an_episode_whose_angle_wraps_or_quaternion_flips_is_not_divided_where_it_jumps():
    wraps = of("angle_wraps", unwrap("observation", [0], 360.0, [0.0]), 4)
    flips = of("quaternions", align_signs("observation", 3), 5)
    norms = of("quaternions", drop([6]), 6)
    jumps = [of("joined_episodes", Correction("split_episodes", (f"{one}/30",)), one) for one in (4, 5, 6)]
    *others, wrapped, flipped, jumped = doubted([wraps, flips, norms, *jumps])

    assert others == [wraps, flips, norms]
    assert wrapped.remedy.startswith("an angle jumps by a full turn in the episode, which may be the reason")
    assert flipped.remedy.startswith("a quaternion changes its sign in the episode, which may be the reason")
    assert jumped == jumps[2]


def test_actions_seem_shifted_where_the_states_of_some_episodes_are_in_another_unit():
    shifted = of("action_shift", shift("action", 2, [1, 2]), 1, 2, key="action")
    of_states, of_actions = (of("unit_changes", scale(key, 0.1, [8]), 8, key=key) for key in ("observation", "action"))

    assert doubted([shifted, of_actions])[0] == shifted
    assert (doubted([shifted, of_states])[0].level, doubted([shifted, of_states])[1]) == ("hint", of_states)
    assert "states are in another unit in some episodes" in doubted([shifted, of_states])[0].remedy


def test_a_hint_of_a_seam_keeps_no_surer_finding_from_its_remedy():
    findings = [found("flip", drop([4])), found("joined", Correction("split_episodes", ("4/30",)), level="hint")]

    assert without_seams(findings) == findings

    same = [replace(finding, rows=rows) for finding, rows in zip(findings, [((80, 81),), ((79, 81),)], strict=True)]
    assert "episode 4 is divided" in without_seams(same)[0].remedy


@pytest.mark.parametrize("strength", ["medium", "strong"])
def test_episodes_that_are_joined_are_divided_whatever_else_their_seam_looks_like(strength):
    recording = clean.record("teleop", 40, 1, images=False)
    joined = load_faults()["episodes_joined"].plant(recording, strength, np.random.default_rng(1))
    findings = audited(joined.recording).findings
    named = {number for finding in findings for number in finding.episodes if finding.check != "joined_episodes"}
    sure = [finding for finding in findings if finding.level != "hint"]
    divided = {str(place) for one in sure for place in getattr(one.remedy, "places", ()) if "/" in str(place)}

    assert named & joined.episodes
    assert {int(place.split("/")[0]) for place in divided} == joined.episodes
    assert not [one for one in sure if set(one.episodes) & joined.episodes and "drop" in str(one.remedy)]


def test_a_step_that_drops_more_than_half_of_the_episodes_is_a_comment():
    findings = (found("normalized", drop(range(6))), found("twice", drop(range(5))))
    text = Audit("lab/arm", 100, 10, findings, ("normalized", "twice"), {}).remedies()

    assert "# normalized: it is wrong: -t drop_episodes:0:6 drops 6 of 10 episodes" in text
    assert 'numbers = ["0:5"]' in text


def test_actions_outside_the_space_are_clipped_by_the_recipe(tmp_path):
    planted = load_faults()["actions_too_large"].plant(clean.record("maze", 16, 5), "strong", np.random.default_rng(1))
    planted.recording.store(tmp_path / "maze")
    report = audit(tmp_path / "maze", checks=["actions_outside_space"])
    (tmp_path / "r.toml").write_text(report.remedies())
    preprocess(tmp_path / "maze", Recipe.of(str(tmp_path / "r.toml")), out=tmp_path / "out")

    assert set(report.findings[0].episodes) == planted.episodes
    assert not audit(tmp_path / "out", checks=["actions_outside_space"]).findings


def test_a_remedy_in_words_is_a_comment_and_any_message_can_be_read_again(tmp_path):
    findings = [
        found("rewards", "write better\nrewards"),
        found("texts", drop([1]), message='the text is "öffne\\die\n[[step]]"'),
        found("none", ""),
    ]
    text = recipe_of("lab/arm", findings)
    (step,) = steps_of(text, tmp_path)

    assert step["reason"] == 'texts: the text is "öffne\\die\n[[step]]"'
    assert "# rewards: it is wrong: write better rewards" in text
    assert "# none: it is wrong: nothing corrects this" in text


def test_the_recipe_has_the_findings_of_a_level():
    findings = (found("twice", drop([1]), level="proof"), found("limits", drop([2]), level="hint"))
    report = Audit("lab/arm", 10, 3, findings, ("twice", "limits"), {})

    assert "limits" not in report.remedies()
    assert "limits" in report.remedies("hint")
    with pytest.raises(InvalidArgumentError, match="level is 'sure', expected one of proof, strong, hint"):
        report.remedies("sure")


def test_a_finding_as_plain_data_has_the_text_and_the_step():
    assert found("twice", drop([1, 2, 3])).to_json()["remedy"] == "-t drop_episodes:1:4"
    assert found("twice", drop([1, 2, 3])).to_json()["step"] == {"use": "drop_episodes", "numbers": ["1:4"]}
    assert found("rewards", "write better rewards").to_json()["step"] is None


def test_a_recipe_divides_and_drops_by_the_numbers_of_the_source(tmp_path, data):
    findings = [
        found("twice", drop([0])),
        found("joined", split_at(data, [13])),
        found("idle", keep_rows(data, 35, 60)),
    ]
    (tmp_path / "r.toml").write_text(recipe_of("toy", findings))
    made = preprocess(tmp_path / "toy", Recipe.of(str(tmp_path / "r.toml")), out=tmp_path / "out")
    steps = StepReader(_stored(made))

    assert steps.episodes.lengths.tolist() == [3, 17, 25]
    np.testing.assert_array_equal(steps.read(("action",), 0, 20), data.steps.read(("action",), 10, 30))
    np.testing.assert_array_equal(steps.read(("action",), 20, 45), data.steps.read(("action",), 35, 60))


def _stored(folder):
    from datasets_rl.format.reader import StoredDataset

    return StoredDataset(folder)


@pytest.mark.slow
def test_images_that_are_late_get_the_images_that_were_stored_later():
    recording = clean.record("teleop", 20, 1)
    # With a reward in the last step alone, the remedy drops the episodes.
    unrewarded = [one.with_arrays({clean.REWARD: 0 * one.array(clean.REWARD)}) for one in recording.episodes]
    recording = recording.replaced(dict(enumerate(unrewarded)))
    late = load_faults()["images_late"].plant(recording, "strong", np.random.default_rng(1))
    remedies = {
        finding.episodes: finding.remedy
        for finding in audited(late.recording, ["video_lag"]).findings
        if set(finding.episodes) & late.episodes
    }

    assert remedies
    assert all(one.step == "fix_shift" and one.arguments["steps"] > 0 for one in remedies.values())
    assert all(one.places == episodes for episodes, one in remedies.items())
