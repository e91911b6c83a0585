"""A transform in a recipe stores what it computes for the batches of a buffer, and is stored by its arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance.test_steps import WRITTEN
from preprocessing.test_advantages import episodes

from datasets_rl import Recipe, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.steps import step_class
from datasets_rl.testing.steps import block_of, differences
from datasets_rl.transforms import (
    GAE,
    CatFrames,
    ClipTransform,
    ObservationNorm,
    Resize,
    ReturnsToGo,
    RewardClipping,
    RewardScaling,
    SignTransform,
    TDLambda,
    Transform,
    VecNormV2,
)

OBSERVATIONS = ["observation", ("next", "observation")]
FROM_PYTHON = {
    "reward_scaling": (lambda: RewardScaling(-1.0, 0.1), {"loc": -1.0, "scale": 0.1}),
    "observation_norm": (
        lambda: ObservationNorm(torch.tensor([1.0, 2.0, 4.0]), 0.5, standard_normal=True),
        {"loc": [1.0, 2.0, 4.0], "scale": 0.5, "standard_normal": True},
    ),
    "cat_frames": (
        lambda: CatFrames(3, -1, OBSERVATIONS, padding="zeros"),
        {"N": 3, "dim": -1, "in_keys": ["observation", "next.observation"], "padding": "zeros"},
    ),
    "returns_to_go": (lambda: ReturnsToGo(0.9, failure=-1.0), {"gamma": 0.9, "failure": -1.0}),
    "reward_clipping": (lambda: RewardClipping(-1, 0), {"clamp_min": -1, "clamp_max": 0}),
    "sign": (lambda: SignTransform(["action", ("next", "reward")]), {"in_keys": ["action", "next.reward"]}),
}


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return load("demo/pendulum", root=tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("name", FROM_PYTHON)
def test_a_recipe_stores_the_values_of_the_batches_and_the_arguments(name, pendulum, tmp_path):
    make, arguments = FROM_PYTHON[name]
    stored = pendulum.preprocess(Recipe([make()]), dest=tmp_path / "out")
    buffer = load(pendulum.data_path, transform=make())
    rows = torch.arange(0, len(buffer), 7)
    wanted = buffer.sample(rows=rows)

    (step,) = stored.stored.manifest.history[0]["recipe"]["steps"]
    assert step == {"use": name, **arguments}
    assert make_step(name, (), arguments).to_json() == step
    came = stored[rows]
    for key, value in came.items(include_nested=True, leaves_only=True):
        assert value.dtype == wanted[key].dtype
        assert torch.equal(value, wanted[key]), key


def test_an_environment_repeats_a_transform_from_python(pendulum, tmp_path):
    pendulum.preprocess(
        Recipe([ObservationNorm(1.0, 0.5, OBSERVATIONS), CatFrames(2, -1, OBSERVATIONS), RewardScaling(0.0, 0.1)]),
        dest=tmp_path / "out",
    )
    env, plain = load(tmp_path / "out").make_env(), pendulum.make_env()

    observation, _ = env.reset(seed=3)
    raw, _ = plain.reset(seed=3)
    np.testing.assert_array_equal(observation, np.tile(raw * np.float32(0.5) + np.float32(1), 2))


@pytest.mark.parametrize("name", ["gae", "td_lambda"])
def test_stored_advantages_are_those_of_slices_of_whole_episodes(name):
    draw = np.random.default_rng(0)
    batch = episodes([3, 4], draw.normal(size=7), values=draw.normal(size=7), final_values=draw.normal(size=2))
    transform = {"gae": GAE, "td_lambda": TDLambda}[name](0.9, 0.8)
    (one,), (two,) = (Recipe(steps).steps for steps in ([transform], [make_step(name, (0.9, 0.8), {})]))

    assert one.to_json() == {"use": name, "gamma": 0.9, "lmbda": 0.8}
    for key in ("advantage", "value_target"):
        assert np.array_equal(one(batch).steps[key,], two(batch).steps[key,])
    assert [*one(batch).steps] == [*batch.steps, ("advantage",), ("value_target",)]


TRANSFORMS = [
    (name, arguments)
    for name, several in WRITTEN.items()
    for arguments in several
    if issubclass(step_class(name), Transform)
]


@pytest.mark.parametrize(
    ("name", "arguments"), TRANSFORMS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(TRANSFORMS)]
)
def test_every_transform_of_recipes_can_be_given_from_python(name, arguments):
    step = make_step(name, (), arguments)
    (again,) = Recipe([step.transform.clone()]).steps
    block = block_of([(3, True, True), (4, False, False), (2, True, False)])
    told = again.to_json()

    if not isinstance(step.transform, CatFrames) and step.transform.of_images and "in_keys" not in arguments:
        assert told == {**step.to_json(), "in_keys": ["pixels"]}
        return
    assert "digest" not in told
    assert differences(again(block), make_step(told.pop("use"), (), told)(block)) == []


def test_stacks_of_later_frames_cannot_be_repeated_by_an_environment(pendulum, tmp_path):
    pendulum.preprocess(Recipe([CatFrames(2, -1, ["observation"], future=True)]), dest=tmp_path / "out")

    with pytest.raises(InvalidArgumentError, match="observation depends on other steps"):
        load(tmp_path / "out").make_env()


def changed(transform):
    transform.loc = transform.loc + 1
    return transform


class Doubled(RewardScaling):
    """A transform of the user."""


@pytest.mark.parametrize(
    "transform",
    [
        changed(RewardScaling(0.0, 0.1)),
        GAE(value_network=lambda states: states["observation"][..., :1]),
        Doubled(0.0, 2.0),
        ObservationNorm(torch.zeros(2000), 1.0),
    ],
    ids=["changed", "network", "subclass", "large"],
)
def test_what_arguments_do_not_describe_is_stored_as_a_digest(transform):
    (step,) = Recipe([transform]).to_json()["steps"]

    assert step.keys() == {"use", "name", "digest"}


def test_a_transform_from_python_names_its_keys_where_a_recipe_would_take_all_images():
    assert Recipe([Resize(4)]).to_json()["steps"] == [{"use": "resize", "w": 4, "in_keys": ["pixels"]}]


def test_a_transform_of_states_and_of_actions_changes_states_at_both_times():
    block = block_of([(3, True, True), (4, False, False)])
    both = Recipe([ClipTransform(["observation", "action"], low=-0.5, high=0.5)])(block)
    alone = Recipe.inline([f"clip:in_keys=[{key}],low=-0.5,high=0.5" for key in ("observation", "action")])(block)

    assert np.array_equal(both.states["observation",], alone.states["observation",])
    assert np.array_equal(both.final_states["observation",], alone.final_states["observation",])
    assert np.array_equal(both.steps["action",], alone.steps["action",])
    assert [*both.steps] == [*block.steps]


def test_running_statistics_are_refused_with_the_name_of_the_step():
    with pytest.raises(InvalidArgumentError, match="VecNormV2 is for buffers") as caught:
        Recipe([VecNormV2(["observation"])])
    assert "normalize" in caught.value.hint


@pytest.mark.parametrize("padding", ["same", "zeros"])
@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "axis"),
    [
        ((6, 7, 1), "u1", None, 3),
        ((6, 7, 3), "u1", None, 3),
        ((6, 7, 4), "u1", None, 3),
        ((6, 7, 3), "f4", None, 3),
        ((6, 7, 1), "f8", None, 3),
        ((3, 6, 7), "u1", None, 1),
        ((6, 7), "u1", None, 0),
        ((), "i8", None, 0),
        ((5,), "f4", None, 1),
        ((1,), "?", -1, 1),
        ((6, 7, 3), "u1", -2, 2),
        ((6, 7, 3), "u1", -4, 0),
    ],
)
def test_stacks_are_those_of_a_slow_model(shape, dtype, dim, axis, padding):
    lengths, draw = [3, 1, 6], np.random.default_rng(0)
    state, final = (draw.integers(0, 250, (count, *shape)).astype(dtype) for count in (10, 3))
    batch = episodes(lengths, np.zeros(10))
    batch = replace(batch, states={("x",): state}, final_states={("x",): final})
    came = Recipe([CatFrames(4, dim, ["x"], padding=padding)])(batch)

    for episode, rows in enumerate(np.split(np.arange(10), np.cumsum(lengths)[:-1])):
        frames = [*state[rows], final[episode]]
        before = frames[0] if padding == "same" else np.zeros_like(frames[0])
        for step in range(len(frames)):
            stack = [frames[step - back] if step >= back else before for back in (3, 2, 1, 0)]
            wanted = np.stack(stack) if axis == 0 else np.concatenate(stack, axis - 1)
            made = came.final_states["x",][episode] if step == len(rows) else came.states["x",][rows[step]]
            assert made.dtype == state.dtype
            assert np.array_equal(made, wanted)


def test_a_transform_of_the_user_that_overrides_one_hook_is_applied_to_each_state():
    class Twice(Transform):
        def _apply_transform(self, obs):
            return obs * 2

    block = block_of([(3, True, True)])
    came = Recipe([Twice(["observation"])])(block)

    assert np.array_equal(came.states["observation",], block.states["observation",] * 2)
    assert np.array_equal(came.final_states["observation",], block.final_states["observation",] * 2)
