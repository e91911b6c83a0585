"""The built-in recipes and steps, with results for small episodes computed by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import FLAGS, Trajectory, store_dataset

from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Recipe, Step, preprocess
from datasets_rl.preprocessing.recipe import shipped_recipes
from datasets_rl.preprocessing.steps.images import apply_channels_first
from datasets_rl.preprocessing.steps.rewards import ScaleByReturns
from datasets_rl.progress import Report
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.transforms import (
    Compose,
    ObservationNorm,
    Resize,
    Reward2GoTransform,
    RewardSum,
    Transform,
    UnaryTransform,
    VecNorm,
)

REWARD = ("next", "reward")
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "goals_and_rewards.json").read_text())
"""Results of the functions of CORL and Cal-QL."""


def episodes(lengths, rewards=None, *, known=None, states=None, final_states=None, **steps):
    """Return episodes of a few numbers; the first is terminated, and the others are truncated."""
    lengths = np.array(lengths)
    count = int(lengths.sum())
    ends = np.zeros((count, 1), bool)
    ends[np.cumsum(lengths) - 1] = True
    terminated = ends & (np.arange(count) < lengths[0])[:, None]
    return EpisodeBatch(
        lengths=lengths,
        steps={
            REWARD: np.reshape(np.zeros(count) if rewards is None else rewards, (count, 1)).astype(np.float32),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ends & ~terminated,
            **{tuple(name.split("__")): np.asarray(values) for name, values in steps.items()},
        },
        states={key: np.asarray(values) for key, values in (states or {}).items()},
        final_states={key: np.asarray(values) for key, values in (final_states or {}).items()},
        final_known=np.ones(len(lengths), bool) if known is None else np.array(known),
        metadata={"source": np.arange(len(lengths))},
    )


def line(*numbers):
    """Return observations of one number each, [N, 1]."""
    return np.array(numbers, np.float32)[:, None]


def made(recipe, block):
    one = Recipe.of(recipe) if isinstance(recipe, str) else recipe
    one.fit(lambda: [block])
    return one(block)


def flat(values):
    return np.asarray(values).ravel().tolist()


def test_the_built_in_recipes_and_their_summaries():
    found = {one.name: one.summary for one in shipped_recipes()}

    assert len(found) == 21
    assert all(0 < len(summary) < 100 and "\n" not in summary for summary in found.values())


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("iql_antmaze", [-1, -1, 0, -1, -1]),
        ("cql_antmaze", [-2, -2, 2, -2, -2]),
        # Returns 1 and 0: their range is 1, which is scaled to 1000. The time-out is left out.
        ("iql_locomotion", [0, 0, 1000, 0]),
        ("delayed_rewards", [0, 0, 1, 0, 0]),
    ],
)
def test_rewards_of_a_maze(recipe, wanted):
    came = made(recipe, episodes([3, 2], [0, 0, 1, 0, 0]))

    assert flat(came.steps[REWARD]) == wanted
    assert came.steps[REWARD].dtype == np.float32


def test_iql_locomotion_scales_by_the_range_of_returns():
    """Without the time-out, the returns 1 + 2 + 3 = 6 and 4 have a range of 2, so rewards are multiplied by 500."""
    recipe = Recipe.of("iql_locomotion")
    came = made(recipe, episodes([3, 2], [1, 2, 3, 4, 4]))

    assert flat(came.steps[REWARD]) == [500, 1000, 1500, 2000]
    assert recipe.fitted == {
        "1.scale_by_returns/lowest": 4.0,
        "1.scale_by_returns/highest": 6.0,
    }


def test_returns_of_at_most_max_steps_are_those_of_corl():
    """The time-out after the last step ends no return; returns of 3 steps are 6 and 15."""
    golden = GOLDEN["corl_modify_reward"]
    limit = golden["max_episode_steps"]
    recipe = Recipe.inline([f"scale_by_returns:to={limit},max_steps={limit}"])
    came = made(recipe, episodes([3, 5], golden["rewards"]))

    assert flat(came.steps[REWARD]) == pytest.approx(golden["result"], abs=1e-6)
    assert recipe.fitted == {"0.scale_by_returns/lowest": 6.0, "0.scale_by_returns/highest": 15.0}


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), limit=st.integers(1, 5), seed=st.integers(0, 99))
def test_returns_of_at_most_max_steps_agree_with_a_loop(lengths, limit, seed):
    """The loop of CORL's `return_reward_range`, over batches of one episode."""
    batches = [
        episodes([length], np.random.default_rng([seed, number]).random(length))
        for number, length in enumerate(lengths)
    ]
    for number, batch in enumerate(batches):
        batch.steps["next", "terminated"] &= bool(number % 2)
    returns, total, count = [], 0.0, 0
    for batch in batches:
        for reward, end in zip(flat(batch.steps[REWARD]), flat(batch.steps["next", "terminated"]), strict=True):
            total, count = total + reward, count + 1
            if end or count == limit:
                returns.append(total)
                total, count = 0.0, 0
    step = ScaleByReturns(max_steps=limit)
    if len(returns) < 2:
        with pytest.raises(InvalidArgumentError, match=r"no return is complete|all episodes have the return"):
            step.fit(batches)
    else:
        step.fit(batches)
        assert step.fitted == pytest.approx({"lowest": min(returns), "highest": max(returns)})


def test_calql_antmaze_scales_rewards_and_adds_returns_to_go():
    """Its rule with gamma 0.9 gives the results of Cal-QL's own function; the recipe has Cal-QL's 0.99."""
    golden = GOLDEN["calql_return_to_go"]
    batch = episodes([3, 3], [0, 0, 1, 0, 0, 0])
    came = made(Recipe.inline(["reward_scaling:-5,10", "returns_to_go:gamma=0.9,failure=-5"]), batch)
    assert flat(came.steps["returns_to_go",]) == pytest.approx(
        golden["success"]["result"] + golden["failure"]["result"]
    )

    came = made("calql_antmaze", batch)
    assert flat(came.steps[REWARD]) == [-5, -5, 5, -5, -5, -5]
    assert flat(came.steps["mc_returns",]) == pytest.approx([-5 - 0.99 * 0.05, -5 + 0.99 * 5, 5, -500, -500, -500])


def test_corl_locomotion_scales_rewards_and_normalizes_observations():
    """Without the time-outs, 1000 steps reach into the next episode: the returns are 1000 and 999 * 3 + 5 = 3002."""
    observations = np.repeat(line(1, 3, 1), 1000, axis=0)
    batch = episodes(
        [1000, 1000, 1000],
        np.repeat([1, 3, 5], 1000),
        states={("observation",): observations},
        final_states={("observation",): line(3, 3, 3)},
    )
    came = made("corl_locomotion", batch)

    assert came.lengths.tolist() == [1000, 999, 999]
    assert flat(came.steps[REWARD])[::1000][:3] == pytest.approx([1000 / 2002, 3000 / 2002, 5000 / 2002])
    kept = np.repeat([1, 3, 1], [1000, 999, 999])
    assert flat(came.states["observation",])[0] == pytest.approx((1 - kept.mean()) / (kept.std() + 1e-3), abs=1e-5)


def test_normalize_quantiles_is_the_rule_of_openvla():
    actions = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    actions[:, 1] = 0.25
    low, high = np.quantile(actions.astype(np.float64), [0.01, 0.99], axis=0)
    expected = np.clip(2 * (actions - low) / (high - low + 1e-8) - 1, -1, 1)
    expected[:, 1] = 0
    batch = episodes([120, 80], action=actions)

    assert np.allclose(made("openvla_actions", batch).steps["action",], expected, atol=1e-6)
    kept = made(Recipe.inline(["normalize_quantiles:unchanged=[-1]"]), batch).steps["action",]
    assert np.allclose(kept[:, :2], expected[:, :2], atol=1e-6)
    assert np.array_equal(kept[:, 2], actions[:, 2])


def test_normalize_range_only_shifts_elements_with_a_small_range():
    """The rule of Diffusion Policy, for ranges of 4, 0 and 0.00005."""
    states = np.array([[0, 7, 1], [4, 7, 1.00005]])
    batch = episodes([2], states={("observation",): states}, final_states={("observation",): states[:1]})
    came = made(Recipe.inline(["normalize_range:eps=1e-4"]), batch)

    assert np.allclose(came.states["observation",], [[-1, 0, 0], [1, 0, 0.00005]])


def test_iql_locomotion_refuses_equal_returns():
    with pytest.raises(PreprocessError, match="all episodes have the return 3"):
        made("iql_locomotion", episodes([1, 1], [3, 3]))


def test_top_10_percent_is_one_of_ten_and_keeps_ties():
    """Of the returns 0 to 9 the highest is kept; of two 9s, both are kept."""
    came = made("top_10_percent", episodes([1] * 10, [3, 1, 4, 9, 5, 0, 2, 6, 8, 7]))
    assert came.numbers.tolist() == [3]

    tied = made("top_10_percent", episodes([1] * 10, [9, 1, 4, 9, 5, 0, 2, 6, 8, 7]))
    assert tied.numbers.tolist() == [0, 3]


def test_top_returns_by_steps_keep_at_most_that_share_of_the_steps():
    """Half of 10 steps: the best episode has 3 steps; the second best has 4, which would exceed 5."""
    came = made(Recipe.inline(["keep_top_returns:50,of=steps"]), episodes([4, 3, 3], [0, 0, 0, 2, 1, 1, 1, 0, 0, 0]))

    assert came.numbers.tolist() == [1]


def test_success_only_reads_steps_and_final_states():
    in_steps = episodes([2, 2], success=np.array([[False], [True], [False], [False]]))
    assert made("success_only", in_steps).numbers.tolist() == [0]

    key = ("info", "success")
    in_states = episodes(
        [2, 2, 1], known=[True, True, False], states={key: np.zeros((5, 1))}, final_states={key: [[0], [1], [1]]}
    )
    assert made("success_only", in_states).numbers.tolist() == [1]
    with pytest.raises(PreprocessError, match="fields called success: none"):
        made("success_only", episodes([1]))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gamma", [1, 0.5])
def test_a_nonfinite_reward_affects_only_its_episode(odd, gamma):
    rewards = [1, 2, 4, odd, 4, 1, 2, 1]
    came = made(Recipe.inline([f"returns_to_go:{gamma}"]), episodes([2, 3, 2, 1], rewards))
    sums = flat(came.steps["returns_to_go",])

    assert sums[:2] == [1 + 2 * gamma, 2]
    assert np.array_equal(sums[2:4], [odd, odd], equal_nan=True)
    assert sums[4:] == [4, 1 + 2 * gamma, 2, 1]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(2,), ()])
@pytest.mark.parametrize("step", ["normalize", "normalize_range", "normalize_quantiles"])
def test_a_nonfinite_value_does_not_count_for_the_scale_of_the_others(step, shape, odd):
    key = ("observation",)
    finite = np.random.default_rng(0).normal(size=(7, *shape))
    values = np.insert(finite, 2, odd, axis=0)
    scaled = [
        made(Recipe.inline([f"{step}:observation"]), episodes(lengths, states={key: rows}, final_states={key: ends}))
        for lengths, rows, ends in (([4, 4], values, values[[0, 2]]), ([3, 4], finite, finite[:2]))
    ]

    others, expected = (one.states[key] for one in scaled)
    assert np.allclose(np.delete(others, 2, axis=0), expected, rtol=0, atol=1e-12)
    limit = {"normalize_quantiles": 1}.get(step, np.inf)
    assert np.array_equal(others[2], np.clip(values[2], -limit, limit), equal_nan=True)


def test_an_element_without_finite_values_does_not_change_the_others():
    key = ("observation",)
    states = np.array([[0, np.nan], [4, np.nan]])
    batch = episodes([2], states={key: states}, final_states={key: states[:1]})
    for step in ("normalize:eps=0", "normalize_range", "normalize_quantiles:keys=[observation],low=0.0,high=1.0"):
        came = made(Recipe.inline([step]), batch).states[key]
        assert np.allclose(came[:, 0], [-1, 1])
        assert np.isnan(came[:, 1]).all()


@pytest.mark.parametrize("step", ["scale_by_returns:10", "scale_by_returns:10,max_steps=2"])
def test_a_nonfinite_return_does_not_count_for_the_scale_of_rewards(step):
    """Returns 3, NaN and 1: a difference of 2 becomes 10."""
    came = made(Recipe.inline([step]), episodes([2, 2, 2], [1, 2, np.nan, 4, 1, 0]))

    assert np.array_equal(flat(came.steps["next", "reward"]), [5, 10, np.nan, 20, 5, 0], equal_nan=True)
    with pytest.raises(PreprocessError, match="no return is finite"):
        made(Recipe.inline([step]), episodes([2], [1, np.inf]))


def test_returns_to_go_are_sums_of_the_remaining_rewards():
    came = made("returns_to_go", episodes([3, 2], [1, 2, 4, 8, 16]))
    assert flat(came.steps["returns_to_go",]) == [7, 6, 4, 24, 16]

    discounted = made(Recipe.inline(["returns_to_go:0.5"]), episodes([3, 2], [1, 2, 4, 8, 16]))
    assert flat(discounted.steps["returns_to_go",]) == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]


def test_td3_bc_standardizes_observations_invertibly():
    """Values 1, 3, 1, 3 have mean 2 and standard deviation 1, plus 1e-3. Final observations are excluded."""
    key = ("observation",)
    block = episodes([3, 1], known=[True, False], states={key: line(1, 3, 1, 3)}, final_states={key: line(5, 0)})
    recipe = Recipe.of("td3_bc")
    came = made(recipe, block)

    assert flat(came.states[key]) == pytest.approx([-1 / 1.001, 1 / 1.001, -1 / 1.001, 1 / 1.001])
    assert flat(came.final_states[key]) == pytest.approx([3 / 1.001, 0])
    shift, scale = (recipe.fitted[f"0.normalize/observation/{name}"] for name in ("shift", "scale"))
    assert flat(came.states[key] * scale + shift) == pytest.approx([1, 3, 1, 3])


def test_merged_moments_of_batches_equal_those_of_all_values():
    """Batches of one, two and five values, far from zero, where naive sums of squares lose all digits."""
    values = np.random.default_rng(0).normal(1e6, 1.0, 8)
    key = ("observation",)
    blocks = [
        episodes([len(one)], states={key: one[:, None]}, final_states={key: [[0.0]]})
        for one in np.split(values, [1, 3])
    ]
    recipe = Recipe.inline(["normalize:observation"])
    recipe.fit(lambda: blocks)

    found = recipe.fitted
    assert flat(found["0.normalize/observation/shift"]) == pytest.approx([values.mean()], rel=1e-12)
    assert flat(found["0.normalize/observation/scale"]) == pytest.approx([values.std() + 1e-3], rel=1e-6)


def test_normalized_observations_range_from_minus_1_to_1():
    key = ("observation",)
    block = episodes([3], states={key: np.array([[0, 7], [1, 7], [4, 7]], "f4")}, final_states={key: [[8.0, 7.0]]})
    came = made("normalized_observation", block)

    assert came.states[key].tolist() == [[-1, 0], [-0.75, 0], [0, 0]]
    assert came.final_states[key].tolist() == [[1, 0]]


def test_diffusion_policy_chunks_the_actions_of_an_episode():
    key = ("observation",)
    block = episodes([3, 1], states={key: line(0, 1, 2, 2)}, final_states={key: line(2, 2)}, action=line(0, 1, 2, 2))
    came = made("diffusion_policy", block)

    assert came.steps["action_chunk",].shape == (4, 16, 1)
    assert came.steps["action_chunk",][1, :4, 0].tolist() == [0, 1, 1, 1]
    assert came.steps["action_is_pad",][1, :4].tolist() == [False, False, True, True]
    assert flat(came.states[key]) == [-1, 0, 1, 1]


def test_n_step_3_uses_three_steps_and_never_crosses_an_end():
    key = ("observation",)
    block = episodes([4, 1], [1, 2, 4, 8, 16], states={key: line(0, 1, 2, 3, 10)}, final_states={key: line(4, 11)})
    came = made("n_step_3", block)
    g = 0.99

    wanted = [1 + 2 * g + 4 * g**2, 2 + 4 * g + 8 * g**2, 4 + 8 * g, 8, 16]
    assert flat(came.steps["n_step", "reward"]) == pytest.approx(wanted)
    assert flat(came.steps["n_step", "observation"]) == [3, 4, 4, 4, 11]
    assert flat(came.steps["n_step", "gamma"]) == pytest.approx([g**3, g**3, g**2, g, g])
    assert flat(came.steps["n_step", "nonterminal"]) == [True, False, False, False, True]
    assert flat(came.steps[REWARD]) == [1, 2, 4, 8, 16]


def goals(**more):
    achieved, desired = ("observation", "achieved_goal"), ("observation", "desired_goal")
    return episodes(
        [3, 2],
        states={achieved: line(0, 1, 2, 10, 11), desired: line(9, 9, 9, 9, 9)},
        final_states={achieved: line(3, 0), desired: line(9, 0)},
        known=[True, False],
        **more,
    )


def test_her_sparse_draws_later_goals():
    came = made("her_sparse", goals())
    chosen = came.steps["observation", "desired_goal"]

    assert np.array_equal(chosen, came.steps["next", "observation", "desired_goal"])
    reached = [1, 2, 3, 11, 11]
    assert all(
        goal in {1: (1, 2, 3), 2: (2, 3), 3: (3,), 11: (11,)}[now]
        for goal, now in zip(flat(chosen), reached, strict=True)
    )
    # A state after the last step that is unknown is never a goal.
    hits = [0.0 if goal == now else -1.0 for goal, now in zip(flat(chosen), reached, strict=True)]
    assert flat(came.steps[REWARD]) == [*hits[:4], -1.0]


def test_hindsight_goals_of_the_future_are_all_drawn():
    draws = [
        flat(made(Recipe.inline([f"hindsight_goals:seed={seed}"]), goals()).steps["observation", "desired_goal"])
        for seed in range(200)
    ]
    counts = {goal: sum(one[0] == goal for one in draws) for goal in (1, 2, 3)}

    assert sum(counts.values()) == 200
    assert min(counts.values()) > 40


def test_the_final_goal_is_the_final_state():
    came = made(Recipe.inline(["hindsight_goals:final"]), goals())
    key = ("observation", "desired_goal")

    assert flat(came.states[key]) == [3, 3, 3, 11, 11]
    assert flat(came.final_states[key]) == [3, 0]
    assert flat(came.steps[REWARD]) == [-1, -1, 0, 0, -1]


def test_float32_casts_all_floats_and_nothing_else():
    block = episodes(
        [1],
        states={("observation",): np.ones((1, 2))},
        final_states={("observation",): np.ones((1, 2))},
        n=np.array([3]),
    )
    came = made("float32", block)

    assert came.states["observation",].dtype == came.final_states["observation",].dtype == np.float32
    assert came.steps["n",].dtype == np.int64
    with pytest.raises(PreprocessError, match=r"n holds 3000, which does not fit uint8"):
        made(Recipe.inline(["cast:uint8,n"]), episodes([1], n=np.array([3000])))
    with pytest.raises(PreprocessError, match=r"x holds numbers that do not fit float16"):
        made(Recipe.inline(["cast:float16,x"]), episodes([1], x=np.array([1e9])))
    with pytest.raises(PreprocessError, match=r"x holds 0\.5, which does not fit int8"):
        made(Recipe.inline(["cast:int8,x"]), episodes([1], x=np.array([0.5])))
    endless = made(Recipe.inline(["cast:float16,x"]), episodes([2], x=np.array([np.inf, np.nan]))).steps["x",]
    assert np.array_equal(endless, [np.inf, np.nan], equal_nan=True)


def test_flat_observation_concatenates_by_name_and_records_the_order():
    states = {("observation", "velocity"): [[3.0]], ("observation", "place"): [[1.0, 2.0]]}
    recipe = Recipe.of("flat_observation")
    came = made(
        recipe, episodes([1], states=states, final_states={key: np.add(value, 3) for key, value in states.items()})
    )

    assert came.states["observation",].tolist() == [[1, 2, 3]]
    assert came.final_states["observation",].tolist() == [[4, 5, 6]]
    assert recipe.fitted["0.concatenate/order"] == "observation.place 2, observation.velocity 1"


WIDE = ["o0", "o1", "o2", "o9", "o10", "o11", "o100"]


@pytest.mark.parametrize("recipe", ["flat_observation", "concatenate:keys=[observation]", "concatenate:[observation]"])
def test_numbers_in_names_count_as_numbers_in_the_order_of_a_vector(recipe):
    states = {("observation", name): [[float(name[1:])]] for name in sorted(WIDE)}
    recipe = Recipe.inline([recipe]) if ":" in recipe else Recipe.of(recipe)
    came = made(recipe, episodes([1], states=states, final_states=states))

    assert came.states["observation",].tolist() == [[0, 1, 2, 9, 10, 11, 100]]
    assert recipe.fitted["0.concatenate/order"] == ", ".join(f"observation.{name} 1" for name in WIDE)


def test_a_group_is_concatenated_without_its_images_and_beside_other_fields():
    images = np.zeros((1, 4, 4, 3), np.uint8)
    states = {("info", "b"): [[2.0]], ("info", "a"): [[1.0]], ("info", "eye"): images, ("observation",): [[3.0]]}
    came = made(
        Recipe.inline(["concatenate:[observation,info],key=state"]), episodes([1], states=states, final_states=states)
    )

    assert came.states["state",].tolist() == [[3, 1, 2]]
    assert ("info", "eye") in came.states


@pytest.mark.parametrize("layout", ["HW", "CHW", "HWC"])
def test_atari_dqn_stacks_gray_frames_of_84(layout):
    shape = {"HW": (10, 12), "CHW": (3, 10, 12), "HWC": (10, 12, 3)}[layout]
    frames = np.stack([np.full(shape, value, np.uint8) for value in (10, 20, 30, 40, 50)])
    key = ("observation",)
    came = made("atari_dqn", episodes([5], [0, 2, -7, 0.5, 1], states={key: frames}, final_states={key: frames[:1]}))

    stacks = came.states[key] if layout != "HWC" else np.moveaxis(came.states[key], -1, 1)
    assert stacks.shape == (5, 4, 84, 84)
    seen = stacks[:, :, 40, 40].tolist()
    # Of three channels: 0.2989 + 0.587 + 0.114 is less than 1, and the result is truncated, as in torchvision.
    seen = (np.array(seen) + (layout != "HW")).tolist()
    assert seen == [[10] * 4, [10, 10, 10, 20], [10, 10, 20, 30], [10, 20, 30, 40], [20, 30, 40, 50]]
    final = came.final_states[key] if layout != "HWC" else np.moveaxis(came.final_states[key], -1, 1)
    assert final[0, :, 40, 40].tolist() == [one - (layout != "HW") for one in (30, 40, 50, 10)]
    assert flat(came.steps[REWARD]) == [0, 1, -1, 0.5, 1]


def test_vd4rl_64_scales_every_image_and_nothing_else():
    key, other = ("pixels",), ("observation",)
    states = {key: np.full((2, 84, 84, 3), 7, np.uint8), other: line(1, 2)}
    came = made("vd4rl_64", episodes([2], states=states, final_states={k: v[:1] for k, v in states.items()}))

    assert came.states[key].shape == (2, 64, 64, 3)
    assert (came.states[key] == 7).all()
    assert came.states[other] is states[other]


def test_the_two_splits_have_no_episode_in_common_and_together_all():
    block = episodes([1] * 200)
    train, validation = (made(name, block).numbers.tolist() for name in ("train_split", "validation_split"))

    assert sorted(train + validation) == list(range(200))
    assert len(validation) == 20
    # Also for tasks that alternate every ten episodes.
    assert 1 <= sum(number % 10 == 0 for number in validation) <= 3


def test_frame_skip_sums_rewards_and_keeps_ends():
    key = ("observation",)
    block = episodes(
        [5, 2],
        [1, 2, 4, 8, 16, 32, 64],
        states={key: line(0, 1, 2, 3, 4, 10, 11)},
        final_states={key: line(5, 12)},
        action=line(*range(7)),
    )
    came = made(Recipe.inline(["frame_skip:2"]), block)

    assert came.lengths.tolist() == [3, 1]
    assert flat(came.states[key]) == [0, 2, 4, 10]
    assert flat(came.next_states(key)) == [2, 4, 5, 12]
    assert flat(came.steps["action",]) == [0, 2, 4, 5]
    assert flat(came.steps[REWARD]) == [3, 12, 16, 96]
    assert flat(came.steps["next", "terminated"]) == [False, False, True, False]
    assert flat(came.steps["next", "truncated"]) == [False, False, False, True]


def test_frame_skip_sums_costs_and_the_rewards_of_agents():
    numbers = np.array([[1, 0], [2, 0], [4, 1]], np.float32)
    fields = {
        "next__cost": numbers[:, :1],
        "next__agents__reward": numbers[..., None],
        "next__success": numbers[:, 1:] > 0,
    }
    came = made(Recipe.inline(["frame_skip:2"]), episodes([3], [1, 2, 4], **fields))

    assert came.steps["next", "cost"].tolist() == [[3], [4]]
    assert came.steps["next", "agents", "reward"].tolist() == [[[3], [0]], [[4], [1]]]
    assert came.steps["next", "success"].tolist() == [[False], [True]]


def test_a_range_of_steps_ends_with_a_known_next_state():
    key = ("observation",)
    block = episodes(
        [4, 1, 2],
        states={key: line(0, 1, 2, 3, 10, 20, 21)},
        final_states={key: line(4, 11, 0)},
        known=[True, True, False],
    )
    came = made(Recipe.inline(["keep_steps:1:3"]), block)

    assert came.numbers.tolist() == [0, 2]
    assert flat(came.next_states(key)) == [2, 3, 0]
    assert came.final_known.tolist() == [True, False]
    assert flat(came.steps["next", "truncated"]) == [False, True, True]
    assert not came.steps["next", "terminated"].any()


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ("keep_episodes:1:4", [1, 2, 3]),
        ("keep_episodes:1::2", [1, 3]),
        ("keep_episodes:2", [2]),
        ("drop_episodes:2", [0, 1, 3, 4]),
        ("drop_episodes:0,3:", [1, 2]),
        ("drop_episodes:numbers=[1,3]", [0, 2, 4]),
        ("keep_where:x,> 2", [2, 3, 4]),
        ("keep_where:x,> 2,over=all", [3, 4]),
        ("keep_where:x,<=1.0,over=first", [0, 1]),
        ("keep_where:x,== 3,over=last", [2]),
        ("keep_where:episode,!= 3", [0, 1, 2, 4]),
        ("keep_where:episode,<2", [0, 1]),
        ("keep_where:next.done,== true,last", [0, 1, 2, 3, 4]),
        ("keep_where:next.done,== true,first", [4]),
        ("keep_where:next.terminated,==false,all", [1, 2, 3, 4]),
        ("keep_returns:5,7", [2, 3]),
        ("keep_lengths:2,2", [0, 1, 2, 3]),
    ],
)
def test_episodes_are_kept_by(step, kept):
    """Two steps per episode, and one in the last: x is 0 1, 1 2, 2 3, 3 4, 4, and the reward equals x."""
    numbers = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert made(Recipe.inline([step]), episodes([2, 2, 2, 2, 1], numbers, x=numbers)).numbers.tolist() == kept


def test_success_rewards_use_the_next_state():
    key = ("info", "success")
    block = episodes([2, 2], states={key: [[0], [0], [0], [1]]}, final_states={key: [[1], [0]]}, known=[True, False])
    came = made(Recipe.inline(["success_rewards:at=10,otherwise=-1"]), block)

    assert flat(came.steps[REWARD]) == [-1, 10, 10, -1]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("keep_lengths:3,2", "expected max to be at least as large as min"),
        ("keep_lengths:few", "min is 'few', expected an integer"),
        ("keep_returns:min=true", "min is True, expected a number"),
        ("keep_top_returns:0", "percent is 0"),
        ("keep_top_returns:5,of=rows", "of is 'rows', expected 'episodes' or 'steps'"),
        ("keep_where:x,3", "expected a comparison with a number, true, false or a text, as in '> 0.5', '== true'"),
        ("keep_where:next.done,false", "test is False, expected a comparison with a number, true, false or a text"),
        ("reward_scaling:scale=Infinity", "scale is inf, expected a finite number"),
        ("reward_scaling:loc=NaN", "loc is nan, expected a finite number"),
        ("target_return:Infinity", "target_return is inf, expected a finite number"),
        ("keep_episodes:a", "'a' is not a range"),
        ("keep_episodes:4:4", "'4:4' is an empty range"),
        ("drop_episodes:1,a", "'a' is not a range"),
        ("drop_episodes:-1", "'-1' is not a range"),
        ("drop_episodes", "numbers is missing"),
        ("drop_episodes:true", r"numbers is \(True,\), expected numbers and ranges START:STOP from 0"),
        ("keep_episodes:[0,1]", r"numbers is \[0, 1\], expected a range START:STOP or START:STOP:STEP from 0"),
        ("keep_steps:[0,1]", r"span is \[0, 1\], expected a range START:STOP from 0"),
        ("keep_steps:0:9:2", "expected START:STOP"),
        ("split:half", "part is 'half', expected 'train' or 'validation'"),
        ("split:train,1.5", "validation is 1.5"),
        ("frame_skip:0", "n is 0"),
        ("cat_frames:0", "N is 0"),
        ("cat_frames:2,dim=0", "dim is 0, expected a negative axis"),
        ("cat_frames:2,padding=none", "padding is 'none', expected 'same', 'constant' or 'zeros'"),
        ("reward_clipping:None,None", "clamp_min and clamp_max are both missing"),
        ("cast:float32,only=double", "only is 'double', expected one of bool"),
        ("concatenate:dim=1", "dim is 1, expected a negative axis"),
        ("concatenate:[x,next.reward]", "next.reward cannot be concatenated: every dataset has this field"),
        ("observation_norm:0,[1,0],standard_normal=true", r"scale is \[1\.0, 0\.0\], expected numbers other than 0"),
        ("gae:gamma=few", "gamma is 'few', expected a number"),
        ("n_step_targets:0,gamma=2", "n_steps is 0, expected at least 1; gamma is 2"),
        ("returns_to_go:2", "gamma is 2"),
        ("reward_clipping:1,0", "expected clamp_max to be at least as large as clamp_min"),
        ("cast:float8", "dtype is 'float8'"),
        ("cast:int8", "keys is empty"),
        ("exclude:next.reward", "next.reward cannot be excluded: every dataset has this field"),
        ("normalize:[]", "keys is empty"),
        ("select", "keys is missing"),
        ("reward_scaling:by=2", "it has no argument 'by'"),
        ("delay_rewards:1", "expected at most 0 arguments"),
        ("resize", "w is missing"),
        ("rezise:64", r"there is no step 'rezise' \(did you mean resize"),
        ("d_type_cast:float64,float16", r"there is no step 'd_type_cast' \(did you mean cast\?"),
    ],
)
def test_invalid_arguments_are_refused_before_any_read(step, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        Recipe.inline([step])


def test_an_unknown_recipe_is_an_error_with_a_suggestion():
    with pytest.raises(InvalidArgumentError, match="did you mean iql_locomotion"):
        Recipe.of("iql_locomtion")


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("select:y", "there is no field y"),
        ("exclude:y", "there is no field y"),
        ("rename:x,next.reward", "the field next.reward exists already"),
        ("rename:next.reward,r", "next.reward cannot be renamed: every dataset has this field"),
        ("keep_where:x,== open", "x holds numbers, expected a number, true or false after =="),
        ("hindsight_goals:achieved=x", "x is not a state"),
        ("resize:4", "no state holds images"),
        ("to_uint8:x", "x holds int64, expected floating point"),
        ("cat_frames:2,-3,x", r"dim is -3, expected at least -1 for frames of shape \[\]"),
        ("observation_norm:[1,2],1,x", r"ObservationNorm cannot be applied to x, torch.float64 \[\]: .* shape \[2\]"),
        ("concatenate:[x,y]", "there is no field y"),
    ],
)
def test_data_that_a_step_cannot_use_is_reported(step, problem):
    with pytest.raises((PreprocessError, InvalidArgumentError), match=problem):
        made(Recipe.inline([step]), episodes([2], x=np.array([1, 2])))


def test_no_field_remains_below_a_flattened_observation():
    states = {("observation", "place"): [[1.0]], ("observation", "image"): np.zeros((1, 4, 4, 3), np.uint8)}
    with pytest.raises(PreprocessError, match=r"observation.image would stay nested below observation"):
        made("flat_observation", episodes([1], states=states, final_states=states))


def test_a_custom_step_is_identified_by_its_code_and_arguments():
    def step_of(number):
        @dataclass
        class Add(Step):
            summary = "rewards plus a number"

            def __call__(self, block):
                return replace(block, steps={**block.steps, REWARD: block.steps[REWARD] + number})

        return Add()

    one, same, other = (Recipe([step_of(number)]).to_json() for number in (1, 1, 2))
    assert one == same
    assert one != other
    assert one["steps"][0]["use"] == "add"
    assert flat(made(Recipe([step_of(5)]), episodes([1], [2])).steps[REWARD]) == [7]


def test_the_range_includes_known_final_states():
    states, final_states = {("observation",): line(1, 2, 3, 2)}, {("observation",): line(5, 0)}
    came = made(
        Recipe.inline(["normalize_range"]),
        episodes([2, 2], known=[True, False], states=states, final_states=final_states),
    )

    # The range is 1 to 5: the zeros of unknown states are excluded and stay 0.
    assert flat(came.states["observation",]) == [-1, -0.5, 0, -0.5]
    assert flat(came.final_states["observation",]) == [1, 0]


def test_the_range_of_info_leaves_out_final_states_which_read_as_zeros():
    """D4RL's newer files have the final observation, and not the info beside it: zeros are no height of a robot."""
    key = ("info", "height")
    batch = episodes([2, 1], states={key: line(1, 3, 2)}, final_states={key: line(0, 0)})

    assert flat(made(Recipe.inline(["normalize_range:info.height"]), batch).states[key]) == [-1, 1, 0]


def test_the_mean_is_over_the_steps():
    states, final_states = {("observation",): line(1, 3)}, {("observation",): line(100)}
    came = made(Recipe.inline(["normalize:eps=0.0"]), episodes([2], states=states, final_states=final_states))

    assert flat(came.states["observation",]) == [-1, 1]
    assert flat(came.final_states["observation",]) == [98]


PIXELS = ("pixels",)


def film():
    """Two episodes with images [5, 6, 3]; the final state of the second one is unknown."""
    frames = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3)).astype(np.uint8)
    frames[6] = 0
    states, final_states = {PIXELS: frames[:5]}, {PIXELS: frames[5:]}
    return episodes([3, 2], [1, 2, 4, 8, 16], known=[True, False], states=states, final_states=final_states)


def test_a_transform_equals_the_step_of_its_name():
    for transform in (RewardSum(), RewardSum):
        came = made(Recipe([transform]), film())
        assert flat(came.steps["next", "episode_reward"]) == [1, 3, 7, 8, 24]

    wanted = made(Recipe.inline(["resize:[2,3]", "reward_sum"]), film())
    at_both = Resize((2, 3), in_keys=["pixels", ("next", "pixels")])
    for steps in ([Resize((2, 3)), RewardSum()], [at_both, RewardSum()], [Compose(Resize((2, 3)), RewardSum())]):
        came = made(Recipe(steps), film())
        assert came.states[PIXELS].shape == (5, 2, 3, 3)
        assert np.array_equal(came.states[PIXELS], wanted.states[PIXELS])
        assert np.array_equal(came.final_states[PIXELS], wanted.final_states[PIXELS])
        assert np.array_equal(came.steps["next", "episode_reward"], wanted.steps["next", "episode_reward"])


def test_a_function_among_transforms_is_given_batches():
    seen = []

    def noted(batch):
        seen.append(len(batch))
        return batch

    made(Recipe([Compose(RewardSum(), noted)]), film())
    assert seen == [5]


def test_a_custom_transform_may_read_other_keys():
    class Weighed(Transform):
        def transform_batch(self, batch):
            return batch.set("weighed", batch["x"] * batch["next", "reward"])

    block = episodes([2], [1, 2], states={("x",): line(3, 4)}, final_states={("x",): line(5)})
    assert flat(made(Recipe([Weighed("x")]), block).steps["weighed",]) == [3, 8]


def test_a_transform_is_identified_by_its_code_and_state():
    def told(transform):
        return Recipe([transform]).to_json()["steps"]

    # Too long for its repr to have all numbers.
    loc, other = torch.zeros(2000), torch.zeros(2000)
    other[1000] = 1
    norm = [told(ObservationNorm(one, 2.0, in_keys=["x"])) for one in (loc, loc.clone(), other)]
    assert norm[0] == norm[1] != norm[2]
    assert norm[0][0].keys() == {"use", "name", "digest"}
    twice = [told(UnaryTransform(["x"], fn=lambda x, by=by: x * by)) for by in (1, 1, 2)]
    assert twice[0] == twice[1] != twice[2]


@pytest.mark.parametrize(("given", "step"), [(Reward2GoTransform(), "returns_to_go"), (VecNorm(["x"]), "normalize")])
def test_a_transform_for_buffers_is_refused_with_the_name_of_the_step(given, step):
    with pytest.raises(InvalidArgumentError, match=f"{type(given).__name__} is for buffers") as caught:
        Recipe([given])
    assert step in caught.value.hint


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A dataset of eleven episodes with goals, images and success; every third has no final state."""
    draw = np.random.default_rng(0)
    states = {
        ("observation", "achieved_goal"): Column(("observation", "achieved_goal"), np.dtype("f8"), (2,), shared=True),
        ("observation", "desired_goal"): Column(("observation", "desired_goal"), np.dtype("f8"), (2,), shared=True),
        ("pixels",): Column(("pixels",), np.dtype("u1"), (9, 12, 3), shared=True),
    }

    def one(steps, known):
        last = (np.arange(steps) == steps - 1)[:, None]
        given = {
            ("action",): draw.random((steps, 2)),
            ("success",): draw.random((steps, 1)) > 0.8,
            REWARD: draw.random((steps, 1)),
            ("next", "terminated"): last & known,
            ("next", "truncated"): last & (not known),
        }
        values = {
            key: draw.integers(0, 255, (steps + known, *one.shape)).astype(one.dtype) for key, one in states.items()
        }
        return Trajectory(given, values)

    of = [
        *states.values(),
        Column(("action",), np.dtype("f8"), (2,)),
        Column(("success",), np.dtype(bool), (1,)),
        Column(REWARD, np.dtype("f8"), (1,)),
        *FLAGS,
    ]
    trajectories = [one(1 + 3 * number % 7, number % 3 > 0) for number in range(11)]
    return store_dataset(tmp_path_factory.mktemp("toy") / "toy" / "data", trajectories, of).folder.parent


FLAT = {"corl_locomotion", "diffusion_policy", "normalized_observation", "td3_bc"}
"""Recipes that require an observation of one vector."""


@pytest.mark.parametrize("name", [one.name for one in shipped_recipes()])
def test_a_built_in_recipe_writes_a_strict_dataset_for_any_division_into_batches(name, stored, tmp_path):
    recipe = [*Recipe.of("flat_observation").steps] if name in FLAT else []
    recipe += Recipe.of(name).steps
    one, four = (preprocess(stored, Recipe(recipe), out=tmp_path / f"{n}", num_parts=n) for n in (1, 4))

    made = StoredDataset(one)
    assert not check_files(one, Report())
    assert not check_rules(made.schema, made.episodes, made.column).problems
    assert made.manifest.files == StoredDataset(four).manifest.files
    assert made.schema["pixels",].shared


def test_a_recipe_file_that_fails_is_named(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(InvalidArgumentError, match=r"broken\.py cannot be imported: ModuleNotFoundError"):
        Recipe.of(f"{tmp_path / 'broken.py'}:fn")


def test_all_errors_of_a_recipe_file_are_reported_at_once(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("""
        [steps]
        [[step]]
        use = "keep_lengths"
        max = "few"
        [[step]]
        use = "nothing"
    """)

    with pytest.raises(InvalidArgumentError) as raised:
        Recipe.of(str(file))
    assert "it has 'steps', expected summary and step" in str(raised.value)
    assert "step 0 (keep_lengths): max is 'few'" in str(raised.value)
    assert "step 1 (nothing): there is no step" in str(raised.value)


@pytest.mark.parametrize("shape", [(1, 8, 8, 1), (2, 8, 8, 3), (1, 8, 8), (2, 3, 8, 8)], ids=str)
def test_steps_may_write_to_images(shape):
    """Torch warns about read-only arrays; with one channel, a permutation of the axes does not copy."""
    values = np.zeros(shape, np.uint8)
    values.flags.writeable = False

    came = apply_channels_first(values, lambda images: np.add(images, 1, out=images))

    assert came.shape == shape
    assert (came == 1).all()
    assert not values.any()
