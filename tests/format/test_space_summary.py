"""Spaces in short, from the schema of a stored dataset."""

from __future__ import annotations

import math

import pytest

from datasets_rl.format.space_summary import SpaceSummary, summarize_action, summarize_states


def field(key, dtype="<f4", shape=(3,), *, shared=True, **more):
    return {"key": key.split("."), "dtype": dtype, "shape": list(shape), "shared": shared, **more}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([field("observation"), field("info.qpos", shape=(2,))], SpaceSummary("state", (3,))),
        ([field("pixels", "|u1", (84, 84))], SpaceSummary("pixels", (84, 84))),
        ([field("observation", "|u1", (3, 64, 64))], SpaceSummary("pixels", (3, 64, 64))),
        ([field("observation", "|u1", (64, 64, 3), form="encoded")], SpaceSummary("pixels", (64, 64, 3))),
        ([field("observation.image", "|u1", (7, 7, 3)), field("observation.way", "<i8", ())], SpaceSummary("state")),
        ([field("observation.camera", "|u1", (32, 32, 3)), field("observation.arm")], SpaceSummary("pixels+state")),
        ([field("pixels", "|u1", (64, 64, 3)), field("state.speed")], SpaceSummary("pixels", (64, 64, 3))),
        ([field("goal"), field("info.x")], SpaceSummary("state", (3,))),
        ([field("observation", shared=False), field("info.x")], None),
    ],
)
def test_images_are_pixels_and_other_states_are_state(fields, expected):
    assert summarize_states(fields) == expected


@pytest.mark.parametrize(
    ("fields", "spec", "expected"),
    [
        ([field("action")], {}, SpaceSummary("continuous", (3,))),
        ([field("action")], {"low": -1.0, "high": [1.0, 1.0, 0.5]}, SpaceSummary("continuous", (3,), None, -1, 1)),
        ([field("action")], {"low": "-inf", "high": 1.0}, SpaceSummary("continuous", (3,))),
        ([field("action", "<i8", ())], {"n": 4}, SpaceSummary("discrete", (), 4)),
        ([field("action.arm"), field("action.button", "<i8", ())], {}, SpaceSummary("continuous+discrete")),
        ([field("observation")], {}, None),
    ],
)
def test_fractions_are_continuous_actions_and_integers_are_discrete_ones(fields, spec, expected):
    assert summarize_action(fields, {"action": spec}) == expected


@pytest.mark.parametrize(
    ("space", "text", "short"),
    [
        (SpaceSummary("state", (11,)), "state [11]", "state[11]"),
        (SpaceSummary("pixels", (84, 84)), "pixels [84, 84]", "pixels[84x84]"),
        (SpaceSummary("discrete", None, 18), "discrete, 18 values", "disc[18]"),
        (SpaceSummary("continuous", (3,), None, -1, 1), "continuous [3], from -1 to 1", "cont[3]"),
        (SpaceSummary("pixels+state"), "pixels+state", "pixels+state"),
    ],
)
def test_a_space_is_written_in_full_and_for_a_column(space, text, short):
    assert (space.text, space.short) == (text, short)


def test_nothing_is_not_a_bound():
    assert summarize_action([field("action")], {"action": {"low": [], "high": math.inf}}).low is None
