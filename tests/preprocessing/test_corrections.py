"""The steps that correct faults of single episodes, as an audit names them."""

from __future__ import annotations

import shlex
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from datasets_rl.auditing.remedy import Correction, drop, scale, shift
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.testing import StepCase, StepContract, block_of
from datasets_rl.testing.steps import FIVE, PIXELS, as_png, as_zstd


def case_of(name, **arguments):
    return StepCase(
        partial(make_step, name, (), arguments),
        ends_earlier=name in {"fix_shift", "trim_steps", "split_episodes"},
        corrects=name in {"fix_shift", "fix_unit"},
    )


class TestCorrections(StepContract):
    cases: ClassVar = {
        "shift": case_of("fix_shift", episodes=[0, 4], steps=1),
        "shift_forward": case_of("fix_shift", key="observation", steps=1),
        "shift_back": case_of("fix_shift", key="observation", steps=-2),
        "shift_images": case_of("fix_shift", episodes=["2:"], key="pixels", steps=-1),
        "unit": case_of("fix_unit", key="observation", factor=0.5),
        "unit_of_one": case_of("fix_unit", episodes=[0], factor=-3.0),
        "channels": case_of("fix_channels", key="pixels"),
        "channels_of_two": case_of("fix_channels", episodes=[0, 2], key="pixels"),
        "signs": case_of("fix_signs"),
        "wraps": case_of("fix_wraps", elements=[0, 2], turn=0.5),
        "ends": case_of("fix_ends"),
        "ends_of_two": case_of("fix_ends", episodes=["0:2"]),
        "trim": case_of("trim_steps", spans=["0/1:", "2/:2", "4/1:3"]),
        "split": case_of("split_episodes", places=["0/1", "2/1", "2/3"]),
    }


def episodes_of(batch, key):
    """Return the values of a field, of each episode, with the known final state of a state."""
    values = np.asarray(batch.steps[key] if key in batch.steps else batch.states[key])
    parts = [values[rows.start : rows.stop] for rows in batch.table]
    if key in batch.steps:
        return parts
    finals = np.asarray(batch.final_states[key])
    return [np.concatenate([part, finals[n : n + 1]]) if batch.final_known[n] else part for n, part in enumerate(parts)]


def applied(block, *steps):
    return Recipe.inline(list(steps))(block)


@pytest.mark.parametrize("steps", [1, 2, -1, -2])
def test_an_action_gets_the_value_of_another_step_and_steps_without_one_are_dropped(steps):
    """In the episodes of 3, 1, 4, 2 and 5 steps, of which the step of 1 has no neighbor."""
    block = block_of(FIVE)
    before, states = episodes_of(block, ("action",)), episodes_of(block, ("observation",))
    moved = applied(block, f"fix_shift:steps={steps}")
    long = [n for n, values in enumerate(before) if len(values) > abs(steps)]

    assert moved.numbers.tolist() == block.numbers[long].tolist()
    for after, rest, n in zip(episodes_of(moved, ("action",)), episodes_of(moved, ("observation",)), long, strict=True):
        count = len(before[n]) - abs(steps)
        kept = slice(0, count) if steps > 0 else slice(-steps, None)
        assert after.tolist() == before[n][steps:][:count].tolist() if steps > 0 else True
        assert after.tolist() == before[n][:count].tolist() if steps < 0 else True
        # The state after the last kept step is known now, except at the end of an episode.
        expected = states[n][: count + 1] if steps > 0 else states[n][kept.start :]
        assert rest.tolist() == expected.tolist()


@pytest.mark.parametrize("steps", [1, 2, -1, -2])
def test_a_moved_state_is_the_state_of_another_step_up_to_the_final_state(steps):
    block = block_of(FIVE)
    before = episodes_of(block, ("observation",))
    moved = applied(block, f"fix_shift:key=observation,steps={steps}")
    long = [n for n, length in enumerate(block.lengths.tolist()) if length > abs(steps)]

    for after, n in zip(episodes_of(moved, ("observation",)), long, strict=True):
        # Forward, the state of the last kept step is that before or at the final state. Backward, the final state is known.
        count = int(block.lengths[n]) - abs(steps)
        expected = before[n][steps:] if steps > 0 else before[n][: count + 1]
        assert after[:count].tolist() == expected[:count].tolist()
        if len(after) > count:
            assert after[count].tolist() == expected[count].tolist()


def test_other_episodes_stay_whole_when_one_is_moved():
    block = block_of(FIVE)
    moved = applied(block, "fix_shift:4,key=action,steps=1")

    assert moved.lengths.tolist() == [3, 1, 4, 2, 4]
    for one, other in zip(episodes_of(moved, ("action",))[:4], episodes_of(block, ("action",))[:4], strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("form", [as_png, as_zstd], ids=["encoded", "compressed"])
def test_images_are_moved_without_decoding_them(form):
    block = form(block_of(FIVE))
    moved = applied(block, "fix_shift:key=pixels,steps=1")
    raw = applied(block_of(FIVE), "fix_shift:key=pixels,steps=1")

    assert type(moved.states[PIXELS]) is type(block.states[PIXELS])
    assert np.asarray(moved.states[PIXELS]).tolist() == np.asarray(raw.states[PIXELS]).tolist()


def test_a_text_is_moved_with_its_words():
    block = block_of(FIVE)
    moved = applied(block, "fix_shift:0,key=text,steps=1")

    assert moved.vocabulary == block.vocabulary
    assert episodes_of(moved, ("text",))[0].tolist() == episodes_of(block, ("text",))[0][1:].tolist()


def test_a_unit_is_corrected_in_the_named_episodes_and_in_known_final_states():
    block = block_of(FIVE)
    fixed = applied(block, "fix_unit:0,2,key=observation,factor=10")

    for n, (after, before) in enumerate(
        zip(episodes_of(fixed, ("observation",)), episodes_of(block, ("observation",)), strict=True)
    ):
        np.testing.assert_allclose(after, before * (10 if n in {0, 2} else 1), rtol=1e-6)
    assert not fixed.final_states["observation",][~block.final_known].any()
    assert fixed.states["observation",].dtype == np.float32


@pytest.mark.parametrize("form", [as_png, as_zstd, lambda block: block], ids=["encoded", "compressed", "pixels"])
def test_red_and_blue_are_exchanged_in_the_named_episodes(form):
    block = block_of(FIVE)
    fixed = applied(form(block), "fix_channels:1,3,key=pixels")

    for n, (after, before) in enumerate(zip(episodes_of(fixed, PIXELS), episodes_of(block, PIXELS), strict=True)):
        assert (after == (before[..., ::-1] if n in {1, 3} else before)).all()


def test_a_quaternion_keeps_the_sign_of_the_one_before_up_to_the_final_state():
    block = block_of([(4, True, True)])
    states = np.tile(np.float32([0.5, 0.5, 0.5, 0.5]), (4, 1)) * np.float32([[1], [-1], [-1], [1]])
    block.states["pose",], block.final_states["pose",] = states, -states[:1]
    (fixed,) = episodes_of(applied(block, "fix_signs:0,pose"), ("pose",))

    assert fixed.tolist() == [[0.5] * 4] * 5


def test_an_angle_grows_past_a_turn_instead_of_jumping():
    block = block_of([(5, True, True)])
    angles = np.float32([[170], [178], [-174], [-166], [-158]])
    block.states["joint",], block.final_states["joint",] = angles, np.float32([[-150]])
    (fixed,) = episodes_of(applied(block, "fix_wraps:0,key=joint,turn=360"), ("joint",))

    assert fixed[:, 0].tolist() == [170, 178, 186, 194, 202, 210]


def test_the_first_angle_of_each_episode_is_moved_within_half_a_turn_of_an_angle():
    block = block_of([(3, True, True), (3, True, True)])
    block.states["joint",] = np.float32([[170], [178], [-174], [-178], [174], [170]])
    block.final_states["joint",] = np.float32([[-166], [166]])
    fixed = episodes_of(applied(block, "fix_wraps:0,key=joint,turn=360,around=[180]"), ("joint",))

    assert [one[:, 0].tolist() for one in fixed] == [[170, 178, 186, 194], [182, 174, 170, 166]]


def test_an_angle_is_given_for_each_element_or_for_none():
    with pytest.raises(InvalidArgumentError, match="around has 1 angles, expected an angle for each of 2 elements"):
        make_step("fix_wraps", (), {"elements": [0, 2], "around": [1.0]})


def test_terminated_episodes_become_truncated_and_are_not_both():
    block = block_of(FIVE)
    fixed = applied(block, "fix_ends:0,1")
    last = block.table.stops - 1

    assert block.steps["next", "terminated"][last, 0].tolist() == [True, True, False, False, True]
    assert fixed.steps["next", "terminated"][last, 0].tolist() == [False, False, False, False, True]
    assert fixed.steps["next", "truncated"][last, 0].tolist() == [True, True, True, True, False]


def test_idle_ends_are_cut_and_the_state_after_the_cut_is_known():
    block = block_of(FIVE)
    cut = applied(block, "trim_steps:2/1:,4/:2")
    states = episodes_of(block, ("observation",))

    assert cut.lengths.tolist() == [3, 1, 3, 2, 2]
    assert episodes_of(cut, ("observation",))[2].tolist() == states[2][1:].tolist()
    assert episodes_of(cut, ("observation",))[4].tolist() == states[4][:3].tolist()


def test_an_episode_is_divided_and_both_parts_keep_its_number_and_metadata():
    block = block_of(FIVE)
    divided = applied(block, "split_episodes:4/2,0/1")

    assert divided.lengths.tolist() == [1, 2, 1, 4, 2, 2, 3]
    assert divided.numbers.tolist() == [0, 0, 1, 2, 3, 4, 4]
    assert divided.metadata["source"].tolist() == [0, 0, 3, 6, 9, 12, 12]
    assert divided.final_known.tolist() == [False, True, True, False, True, False, True]
    last = divided.table.stops - 1
    assert divided.steps["next", "truncated"][last, 0].tolist() == [True, False, False, True, True, True, False]
    assert divided.steps["next", "terminated"][last, 0].tolist() == [False, True, True, False, False, False, True]
    assert not divided.final_states["observation",][~divided.final_known].any()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("fix_shift:steps=0", "steps is 0"),
        ("fix_shift:x", "'x' is not"),
        ("fix_unit:factor=0", "factor is 0"),
        ("trim_steps:4", "spans is (4,), expected EPISODE/START:STOP"),
        ("trim_steps:4/9:3", "'4/9:3' is not a part of an episode"),
        ("split_episodes:4/0", "'4/0' is not a place in an episode"),
        ("split_episodes:rows=3", "it has no argument 'rows'"),
    ],
)
def test_a_place_that_cannot_be_read_is_named_with_an_example(step, said):
    with pytest.raises(InvalidArgumentError) as caught:
        Recipe.inline([step])

    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["fix_signs", "fix_wraps"])
def test_a_field_that_is_not_a_vector_is_refused_with_its_shape(name):
    with pytest.raises(PreprocessError, match=r"pixels has the shape \[6, 8, 3\] at each step, expected a vector"):
        Recipe([make_step(name, (), {"key": "pixels"})])(block_of(FIVE))


@pytest.mark.parametrize("name", ["fix_unit", "fix_channels", "fix_signs", "fix_wraps", "fix_shift"])
def test_a_field_that_is_missing_is_named(name):
    with pytest.raises(PreprocessError, match="there is no field arm"):
        Recipe([make_step(name, (), {"key": "arm"})])(block_of(FIVE))


@pytest.mark.parametrize(
    "correction",
    [
        drop([3, 17, 18, 19, 20, 4]),
        shift("observation.image.top", -3, [5]),
        shift("action", 1),
        scale("observation", 180 / np.pi, [1, 2, 3]),
        Correction("split_episodes", ("4/31", "7/2")),
        Correction("trim_steps", ("4/12:", "7/:80")),
        Correction("fix_wraps", (0, 2), {"key": "observation", "turn": 6.283185307179586, "around": [3.14, 0.0]}),
        Correction("fix_signs", (), {"first": 3, "key": "pose"}),
        Correction("fix_ends"),
    ],
    ids=str,
)
def test_the_text_of_a_correction_is_the_step_of_its_document(correction):
    """The option of the command, and the table of a recipe."""
    document = correction.to_json()
    _, text = shlex.split(str(correction))
    (step,) = Recipe.inline([text]).steps

    assert step.to_json() == make_step(document.pop("use"), (), document).to_json()


def test_episodes_are_written_as_numbers_and_ranges():
    assert str(drop([3, 17, 18, 19, 20, 4, 30, 31, 32])) == "-t drop_episodes:3,4,17:21,30:33"
    assert str(shift("camera", 2, [4])) == "-t fix_shift:4,key=camera,steps=2"


def test_an_environment_is_left_as_it_is_by_a_correction_of_recorded_values():
    fields = block_of([(1, False, False)])

    for name in ("fix_shift", "fix_unit", "fix_channels", "fix_ends"):
        assert make_step(name, (), {}).for_environment(fields) is None
    for name in ("fix_signs", "fix_wraps"):
        assert make_step(name, (), {"key": "joint"}).for_environment(fields) is None
        with pytest.raises(
            InvalidArgumentError, match="an environment cannot repeat what the step does to observation"
        ):
            make_step(name, (), {}).for_environment(fields)
