"""Former names of steps, arguments and recipes: accepted with a warning, and recognized in what they have made."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing import Function, Recipe, preprocess, preview, result_folder
from datasets_rl.preprocessing.former import with_present_names
from datasets_rl.preprocessing.naming import make_step, with_current_names
from datasets_rl.preprocessing.recipe import parse_inline
from datasets_rl.preprocessing.steps import fields, normalize, returns, rewards, steps_by_name
from datasets_rl.preprocessing.steps.keep import KeepReturns
from datasets_rl.preprocessing.transforms import SUPERSEDED, TransformStep, named_transforms
from datasets_rl.ted.episode_batch import EpisodeBatch

GOLDEN = Path(__file__).parents[1] / "golden" / "version_1"
CURRENT = ["normalize", "clip_rewards:min=-1,max=1"]
FORMER = ["normalise", "clip_rewards:least=-1,most=1"]


def episodes():
    draw = np.random.default_rng(0)
    ends = np.array([[False], [False], [True], [False], [True]])
    states = {("observation",): ((2,), "f8"), ("pixels",): ((2, 3, 3), "u1"), ("light",): ((2,), "f2")}

    def values(rows, shape, dtype):
        return (draw.random((rows, *shape)) * 200).astype(dtype)

    final_states = {key: values(2, *one) for key, one in states.items()}
    for array in final_states.values():
        array[1] = 0
    return EpisodeBatch(
        lengths=np.array([3, 2]),
        steps={
            ("action",): values(5, (2,), "f8"),
            ("next", "reward"): draw.normal(0, 1, (5, 1)).astype("f4"),
            ("next", "terminated"): ends & [[True], [True], [True], [False], [False]],
            ("next", "truncated"): ends & [[False], [False], [False], [True], [True]],
        },
        states={key: values(5, *one) for key, one in states.items()},
        final_states=final_states,
        final_known=np.array([True, False]),
        metadata={"source": np.arange(2)},
    )


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("normalise:observation", "normalize:observation"),
        ("normalise_range", "normalize_range"),
        ("multi_step:3,gamma=0.5", "n_step_targets:3,gamma=0.5"),
        ("flat_observation:key=goal", "concatenate:key=goal"),
        ("sparse_rewards:above=0.5", "binarize_rewards:threshold=0.5"),
        ("keep_returns:least=3", "keep_returns:min=3"),
        ("keep_lengths:least=3,most=4", "keep_lengths:min=3,max=4"),
        ("clip_rewards:most=4", "clip_rewards:max=4"),
        ("binarize_reward", "binarize_rewards"),
        ("reward_clipping:-1", "clip_rewards:min=-1,max=null"),
        ("reward_clipping:clamp_max=1,in_keys=next.reward", "clip_rewards:min=null,max=1"),
        ("reward_scaling:1,scale=0.1", "scale_rewards:scale=0.1,shift=1"),
        ("double_to_float", "cast:dtype=float32,only=float64"),
        ("double_to_float:action", "cast:dtype=float32,keys=[action]"),
        ("d_type_cast:float64,float16", "cast:dtype=float16,only=float64"),
        ("d_type_cast:uint8,float32,pixels", "cast:dtype=float32,keys=[pixels]"),
        ("cat_frames:3,-3", "stack_frames:n=3,keys=[pixels],dim=-3"),
        ("cat_frames:3,-4", "stack_frames:n=3,keys=[pixels],dim=-4"),
        (
            "cat_frames:N=2,dim=-1,in_keys=[observation,next.observation,action],padding=constant",
            "stack_frames:n=2,keys=[observation,action],dim=-1,padding=zeros",
        ),
    ],
)
def test_a_former_name_makes_the_step_of_the_present_one(former, present):
    with pytest.warns(DeprecationWarning, match="now") as caught:
        recipe = Recipe.inline([former])

    assert [str(one.message) for one in caught] == [f"the step {former} is written {present} now"]
    assert caught[0].filename == __file__
    assert recipe.to_json() == Recipe.inline([present]).to_json() | {"name": present}
    name, positional, named = parse_inline(former)
    if name not in SUPERSEDED or name == "multi_step":
        return
    # The step has the result that the transform had, to the last bit.
    step, batch = recipe.steps[0], episodes()
    of_step, of_transform = step(batch), TransformStep.from_arguments(name, positional, named)(batch)
    for kind in ("steps", "states", "final_states"):
        left, right = getattr(of_step, kind), getattr(of_transform, kind)
        assert left.keys() == right.keys()
        assert all(left[key].dtype == right[key].dtype for key in left)
        assert all(left[key].tobytes() == right[key].tobytes() for key in left)


@pytest.mark.parametrize(
    "former",
    [
        "observation_norm:1,2",
        "cat_tensors:in_keys=[observation,light]",
        "reward_scaling:1,2,standard_normal=true",
        "reward_scaling:1,2,in_keys=action",
        "reward_clipping:-1,1,out_keys=clipped",
        "binarize_reward:action",
        "d_type_cast:float64,int32,action",
        "cat_frames:2,-1,in_keys=observation,future=true",
    ],
)
def test_a_transform_with_arguments_that_its_step_lacks_stays_a_transform(former):
    name = former.partition(":")[0]
    with pytest.warns(DeprecationWarning, match=f"the step {name} is called {SUPERSEDED[name]} now"):
        (step,) = Recipe.inline([former]).steps

    assert isinstance(step.transform, named_transforms()[name])
    assert step.to_json()["use"] == name


def test_every_former_name_of_a_transform_has_a_step():
    assert SUPERSEDED.keys() <= named_transforms().keys()
    assert set(SUPERSEDED.values()) <= steps_by_name().keys()


def test_a_present_name_is_left_as_it_is():
    for text in ("keep_returns:min=3", "resize:64", "nothing:1"):
        assert with_present_names(parse_inline(text)) == parse_inline(text)


def test_two_names_of_one_argument_are_refused():
    with pytest.raises(InvalidArgumentError, match="no argument 'least'"):
        make_step("keep_returns", (), {"least": 1, "min": 2})
    with pytest.raises(TypeError, match="KeepReturns got least and min, which are one argument"):
        KeepReturns(least=1, min=2)


def test_classes_and_arguments_of_python_have_former_names():
    classes = [
        (fields, "FlatObservation", fields.Concatenate),
        (normalize, "Normalise", normalize.Normalize),
        (normalize, "NormaliseRange", normalize.NormalizeRange),
        (returns, "MultiStep", returns.NStepTargets),
        (rewards, "SparseRewards", rewards.BinarizeRewards),
    ]
    for module, former, cls in classes:
        with pytest.warns(DeprecationWarning, match=f"{former} is called {cls.__name__} now"):
            assert getattr(module, former) is cls
    with pytest.warns(DeprecationWarning, match="the argument least of KeepReturns is called min now"):
        assert KeepReturns(least=3) == KeepReturns(min=3)
    with pytest.warns(DeprecationWarning, match="the argument most of Function is called batch_size now"):
        assert Function(len, "batch", most=3) == Function(len, "batch", batch_size=3)


def test_a_recipe_has_its_former_name_and_key(tmp_path):
    with pytest.warns(DeprecationWarning, match="normalised_observation is called normalized_observation now"):
        assert Recipe.of("normalised_observation").to_json() == Recipe.of("normalized_observation").to_json()
    (tmp_path / "own.toml").write_text('purpose = "Short"\n[[step]]\nuse = "sparse_rewards"\nabove = 1.0\n')
    with pytest.warns(DeprecationWarning, match="now") as caught:
        recipe = Recipe.of(str(tmp_path / "own.toml"))

    assert recipe.summary == "Short"
    assert [str(one.message).split(" is ")[-1] for one in caught] == [
        "called summary now",
        "written binarize_rewards:threshold=1.0 now",
    ]


@pytest.fixture
def toy(tmp_path):
    """A dataset with a result that version 0.1 made under the names of that time."""
    for name in ("toy", "toy@scaled"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    return tmp_path / "toy"


def test_a_result_under_former_names_is_that_of_the_recipe_under_present_ones(toy):
    scaled = toy.with_name("toy@scaled")
    before = (scaled / "manifest.json").read_bytes()

    for steps in (CURRENT, ["normalize", "clip_rewards"], ["normalize:keys=observation", "reward_clipping:-1.0,1.0"]):
        if steps[1] == "reward_clipping:-1.0,1.0":
            with pytest.warns(DeprecationWarning, match="is written"):
                recipe = Recipe.inline(steps)
        else:
            recipe = Recipe.inline(steps)
        assert result_folder(toy, recipe) == preprocess(toy, recipe) == scaled
        assert preview(toy, recipe).present
    with pytest.warns(DeprecationWarning, match="is written"):
        recipe = Recipe.inline(FORMER)
    assert preprocess(toy, recipe) == scaled
    assert (scaled / "manifest.json").read_bytes() == before


def test_other_steps_or_another_input_make_another_result(toy):
    scaled = toy.with_name("toy@scaled")
    recipe = Recipe.inline(CURRENT)

    assert result_folder(toy, Recipe.inline(["normalize", "clip_rewards:min=-2,max=1"])) != scaled
    assert result_folder(toy, recipe, num_frames=3) != scaled
    assert result_folder(toy, recipe, seed=1) != scaled
    # The same recipe, applied to other files.
    manifest = Manifest.read(scaled)
    replace(manifest, history=({**manifest.history[0], "fingerprint": "0" * 64},)).write(scaled)
    assert result_folder(toy, recipe).name == "toy@normalize+clip_rewards-min=-1,max=1"


def test_a_recipe_under_former_names_is_not_applied_to_its_own_result(toy):
    scaled = toy.with_name("toy@scaled")

    with pytest.raises(InvalidArgumentError, match="is already the result of this recipe"):
        preprocess(scaled, Recipe.inline(CURRENT))
    assert preprocess(scaled, Recipe.inline(CURRENT), in_place=True) == scaled
    assert len(Manifest.read(scaled).history) == 1


def test_descriptions_in_manifests_are_read_under_present_names():
    assert with_current_names({"use": "normalise"}) == {"use": "normalize"}
    assert with_current_names({"use": "reward_scaling", "args": [0, 2]}) == {"use": "scale_rewards", "scale": 2}
    function = {"use": "function", "name": "f", "per": "batch", "digest": "0"}
    assert with_current_names({**function, "most": 3}) == {**function, "batch_size": 3}
    for unchanged in (
        {"use": "normalise", "digest": "0"},
        {"use": "keep_returns", "unknown": 1},
        {"use": "resize", "args": [64]},
        {"use": "observation_norm", "args": [1, 2]},
    ):
        assert with_current_names(unchanged) == unchanged
