"""Every step in an environment: what a policy sees is what the dataset holds, or the step is refused by its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import datasets_rl
from datasets_rl import Recipe, RecordEpisodes, load, preprocess
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.preprocessing import DataStep, Step
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.recipe import shipped_recipes
from datasets_rl.preprocessing.steps import STEPS as ALL_STEPS
from datasets_rl.preprocessing.steps import step_class

STEPS = 5


class Lights(gymnasium.Env):
    """A room whose observations have every kind of field: numbers, images of two layouts, integers, flags and a text."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"at": spaces.Box(-4, 4, (2,), np.float64), "speed": spaces.Box(-np.inf, np.inf, (1,))}),
            "goal": spaces.Box(-1, 1, (2,), np.float32),
            "camera": spaces.Box(0, 255, (12, 16, 3), np.uint8),
            "lamp": spaces.Box(0, 1, (1, 6, 6), np.float32),
            "room": spaces.Discrete(5),
            "task": spaces.Text(20),
        }
    )
    action_space = spaces.Box(np.float32([-2, 0]), np.float32([2, 3]))

    def _observation(self):
        return {
            "arm": {"at": self.at.copy(), "speed": self.at[:1].astype(np.float32)},
            "goal": self.goal.copy(),
            "camera": self.np_random.integers(0, 256, (12, 16, 3), np.uint8),
            "lamp": self.np_random.random((1, 6, 6), np.float32),
            "room": np.int64(self.np_random.integers(5)),
            "task": "close" if self.at[0] > 0 else "open",
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.at = self.np_random.uniform(-1, 1, 2)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        self.action = np.array(action)
        self.count += 1
        self.at = np.clip(self.at + np.round(np.asarray(action, np.float64), 1), -4, 4)
        reward = -float(np.abs(self.at - self.goal).sum())
        return self._observation(), reward, False, self.count == STEPS, {}


class Levers(Lights):
    """The same room with an action of several parts."""

    action_space = spaces.Dict({"arm": spaces.Box(-2, 2, (1, 2), np.float64), "hand": spaces.Box(0, 1, ())})

    def step(self, action):
        result = super().step(action["arm"][0])
        self.action = action
        return result


class Swing(PendulumEnv):
    """Pendulum that keeps its last action, and rounds it as the recorded ones are."""

    def step(self, action):
        self.action = np.array(action)
        return super().step(action.round(1))


gymnasium.register("TestLights-v0", Lights)
gymnasium.register("TestSwing-v0", Swing, max_episode_steps=8)
gymnasium.register("TestLevers-v0", Levers)


class Clipping(dict):
    """Arguments with which a step clips actions, so that other observations follow than in the dataset."""


APPLIED: Mapping[str, tuple[dict[str, Any], ...]] = {
    "action_scaling": ({"loc": 0.5, "scale": 2.0}, {"loc": [0.0, 1.5], "scale": [2.0, 1.5], "standard_normal": False}),
    "cast": ({"dtype": "float16"}, {"dtype": "float32", "only": "float64"}, {"dtype": "int16", "keys": ["observation.room", "observation.camera"]}),
    "cat_frames": ({"N": 3}, {"N": 3, "in_keys": ["observation.goal", "observation.room"], "dim": -1, "padding": "zeros"}),
    "center_crop": ({"w": 4, "in_keys": ["observation.camera"]},),
    "clip": (Clipping({"in_keys": ["observation.goal", "action"], "low": -0.5, "high": 0.5}),),
    "concatenate": ({"key": "observation.arm"}, {"keys": ["observation.arm.at", "observation.goal"], "key": "observation.state"}, {"keys": ["observation.goal"], "key": "state", "dim": -1}),
    "crop": ({"w": 3, "top": 1},),
    "exclude": ({"keys": ["observation.arm", "next.nothing"][:1]}, {"keys": ["observation.task"]}),
    "flatten_observation": ({"first_dim": -3, "last_dim": -1, "in_keys": ["observation.camera"]},),
    "gray_scale": ({"in_keys": ["observation.camera"]}, {"in_keys": ["observation.camera"], "out_keys": ["observation.gray"]}),
    "normalize": ({"keys": ["observation.arm.at", "action"]},),
    "observation_norm": ({"in_keys": ["observation.goal", "observation.room"], "loc": 1.0, "scale": -2.0, "standard_normal": True}, {"in_keys": ["observation.arm.at", "action"], "loc": 0.5, "scale": 3.0}),
    "normalize_quantiles": (Clipping(), Clipping({"keys": ["observation.arm.at", "action"], "low": 0.1, "high": 0.8, "unchanged": [-1]})),
    "normalize_range": ({"keys": ["observation.arm.at", "action"]}, {"keys": ["observation.camera"]}),
    "permute": ({"dims": [-1, -3, -2], "in_keys": ["observation.camera"]},),
    "rename": ({"old": "observation.arm", "new": "observation.robot"}, {"old": "observation", "new": "state"}, {"old": "observation.goal", "new": "target"}, {"old": "action", "new": "control"}),
    "resize": ({"w": 5}, {"w": 4, "in_keys": ["observation.camera"]}),
    "select": ({"keys": ["observation.arm", "action"]}, {"keys": ["observation.goal", "observation.task", "action"]}),
    "sign": ({"in_keys": ["observation.goal"]},),
    "squeeze": ({"dim": -3, "in_keys": ["observation.lamp"]},),
    "stack": ({"in_keys": ["observation.goal", "observation.arm.at"], "out_key": "observation.both"},),
    "time_max_pool": ({"T": 2, "in_keys": ["observation.goal"]},),
    "to_tensor_image": ({"in_keys": ["observation.camera"]},),
    "to_uint8": ({"keys": ["observation.lamp"]},),
    "unsqueeze": ({"dim": -1, "in_keys": ["observation.goal"]},),
}  # fmt: skip
"""Steps that are applied to observations and actions."""
UNAFFECTED: Mapping[str, tuple[dict[str, Any], ...]] = {
    "action_chunk": ({"chunk_size": 3},),
    "binarize_reward": ({},),
    "compress_images": ({"keys": ["observation.camera"]},),
    "delay_rewards": ({},),
    "drop_episodes": ({"numbers": [1]},),
    "drop_timeouts": ({},),
    "drop_unknown_final": ({},),
    "hindsight_goals": ({"strategy": "final", "achieved": "observation.arm.at", "goal": "observation.goal"},),
    "init_tracker": ({},),
    "keep_episodes": ({"numbers": "0::2"},),
    "keep_lengths": ({"min": 2},),
    "keep_returns": ({},),
    "keep_steps": ({"span": "0:3"},),
    "keep_top_returns": ({"percent": 60.0},),
    "keep_where": ({"key": "next.reward", "test": "< 1"},),
    "linearise_rewards": ({"in_keys": ["next.reward"], "weights": [2.0]},),
    "n_step_targets": ({"n_steps": 3},),
    "returns_to_go": ({},),
    "reward_clipping": ({"clamp_max": 0.0},),
    "reward_sum": ({},),
    "scale_by_returns": ({"to": 10.0},),
    "reward_scaling": ({"scale": 2.0},),
    "split": ({"part": "train", "validation": 0.4},),
    "step_counter": ({},),
    "target_return": ({"target_return": 10.0},),
}
"""Steps that select steps or write rewards and targets: the environment needs none of them."""
NEEDS_MORE = {"gae", "td_lambda", "keep_success", "success_rewards", "expand_as", "discrete_action_projection"}
"""Steps of fields that this environment does not have; none of them changes observations."""
REFUSED: Mapping[str, tuple[tuple[dict[str, Any], str], ...]] = {
    "action_chunk": (({"chunk_size": 3, "chunk_key": "action"}, "action depends on other steps"),),
    "cat_frames": (({"N": 2, "in_keys": ["action"]}, "action depends on other steps"),),
    "fix_signs": (
        ({"key": "observation.arm.at"}, "an environment cannot repeat what the step does to observation.arm.at"),
    ),
    "fix_wraps": (
        ({"key": "observation.arm.at"}, "an environment cannot repeat what the step does to observation.arm.at"),
    ),
    "frame_skip": (({"n": 2}, "the dataset holds one of several actions"),),
    "sign": (({"in_keys": ["action"]}, "its actions have no inverse"),),
}
"""Steps that an environment cannot repeat, with the reason."""
CASES = [
    (name, arguments) for group in (APPLIED, UNAFFECTED) for name, several in group.items() for arguments in several
]


def record(env, dataset, root, **options):
    """Record three episodes; return the raw observations [T + 1], actions and rewards of each."""
    env, episodes = RecordEpisodes(env, dataset, root=root / "local", **options), []
    draw = np.random.default_rng(0)
    for seed in range(3):
        observations, actions, rewards, ended = [env.reset(seed=seed)[0]], [], [], False
        while not ended:
            low, high = (spaces.flatten(env.action_space, each) for each in bounds(env.action_space))
            actions.append(spaces.unflatten(env.action_space, draw.uniform(low, high).round(1)))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            ended = terminated or truncated
        episodes.append((observations, actions, rewards))
    env.close()
    return episodes


def bounds(space):
    if isinstance(space, spaces.Dict):
        pairs = {name: bounds(inner) for name, inner in space.items()}
        return tuple({name: pair[number] for name, pair in pairs.items()} for number in (0, 1))
    return space.low, space.high


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("rooms")
    for name in ("Lights", "Levers", "Swing"):
        record(gymnasium.make(f"Test{name}-v0"), f"local/{name.lower()}", root)
    return root


def derived(home, tmp_path, steps, name="lights"):
    recipe = Recipe.inline(steps) if isinstance(steps[0], str) else Recipe(steps)
    return datasets_rl.load(preprocess(home / "local" / name, recipe, out=tmp_path / "out"))


def leaves(value, key=()):
    if isinstance(value, dict):
        return {name: leaf for inner, each in value.items() for name, leaf in leaves(each, (*key, inner)).items()}
    return {key: value}


def stored_leaves(step, roots):
    """Return the observation of a stored step, nested as the environment gives it."""
    tree = {name: step.get(name).to_dict() if hasattr(step.get(name), "to_dict") else step.get(name) for name in roots}
    return leaves(tree[roots[0]] if len(roots) == 1 else tree)


def assert_plays_as_stored(dataset, raw_actions=None, roots=("observation",), action_key="action"):
    """Step the environment by the actions of the dataset, and compare every row."""
    env, seeds = dataset.make_env(), dataset.episodes["seed"]
    for episode, seed in zip(dataset.iterate_episodes(), seeds.tolist(), strict=True):
        observation, _ = env.reset(seed=seed)
        for row in range(len(episode)):
            assert env.observation_space.contains(observation)
            seen, stored = leaves(observation), stored_leaves(episode[row], roots)
            assert seen.keys() == stored.keys()
            for key, value in stored.items():
                if isinstance(seen[key], str):
                    assert seen[key] == dataset.texts((*roots[: len(roots) == 1], *key))[int(value)]
                else:
                    np.testing.assert_array_equal(seen[key], value.numpy(), str(key))
                    assert seen[key].dtype == value.numpy().dtype
            action = episode[row].get(action_key)
            action = action.to_dict() if hasattr(action, "to_dict") else action
            action = (
                {name: each.numpy() for name, each in action.items()} if isinstance(action, dict) else action.numpy()
            )
            observation, *_ = env.step(action)
            if raw_actions is None:
                break
            np.testing.assert_allclose(env.unwrapped.action, raw_actions[seed][row], rtol=1e-3, atol=1e-6)
    return env


@pytest.mark.first(1, of="name")
@pytest.mark.parametrize(
    ("name", "arguments"), CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(CASES)]
)
def test_a_policy_sees_what_the_dataset_holds(name, arguments, home, tmp_path):
    dataset = derived(home, tmp_path, [make_step(name, (), arguments)])
    raw = load("local/lights", root=home / "local")
    actions = {seed: episode["action"].numpy() for seed, episode in enumerate(raw.iterate_episodes())}
    roots = sorted({"observation", "state", "target"} & set(dataset[0].keys()))
    if isinstance(arguments, Clipping):
        actions = None
    if name == "hindsight_goals":
        return
    env = assert_plays_as_stored(
        dataset, actions, tuple(roots), "control" if arguments.get("new") == "control" else "action"
    )

    assert (type(env).__name__ == "PreprocessedEnv") == (name in APPLIED)


CLIPPED, IMAGES = {"openvla_actions"}, {"atari_dqn", "vd4rl_64"}
NOT_PLAYED = {"corl_locomotion", "her_sparse", "success_only", "validation_split"}
"""Recipes that need other fields, or more steps than these."""


@pytest.mark.first(5)
@pytest.mark.parametrize("recipe", sorted({one.name for one in shipped_recipes()} - NOT_PLAYED))
def test_a_policy_sees_what_a_recipe_of_the_package_stored(recipe, home, tmp_path):
    name = "lights" if recipe in IMAGES else "swing"
    dataset = datasets_rl.load(preprocess(home / "local" / name, recipe, out=tmp_path / "out", max_ram=1 << 30))
    # The seed of an episode is its number: a recipe may drop episodes, and keep their seeds.
    actions = {
        seed: row["action"].numpy()
        for seed, row in enumerate(load(f"local/{name}", root=home / "local").iterate_episodes())
    }

    assert_plays_as_stored(dataset, None if recipe in CLIPPED else actions)


def test_the_suite_covers_every_step_that_an_environment_may_need():
    """The contract of steps shows of a `DataStep` that observations and actions stay."""
    tables = {
        "APPLIED": APPLIED,
        "UNAFFECTED": UNAFFECTED,
        "NEEDS_MORE": NEEDS_MORE,
        "REFUSED": REFUSED,
        "OF_ACTIONS": OF_ACTIONS,
    }
    known = {name for table in tables.values() for name in table}
    missing = sorted(name for name in ALL_STEPS if name not in known and not issubclass(step_class(name), DataStep))
    surplus = sorted(known - ALL_STEPS.keys())

    assert not missing, (
        f"add {', '.join(missing)} with arguments to APPLIED in tests/conformance/test_steps_in_environments.py if "
        "for_environment returns a step, to UNAFFECTED if it returns None, or to REFUSED if it raises an error"
    )
    assert not surplus, f"{', '.join(surplus)} are in {', '.join(tables)}, and are not steps; remove them"


@pytest.mark.parametrize("name", [name for name in ALL_STEPS if issubclass(step_class(name), Step)])
def test_every_step_of_the_package_states_its_rule(name):
    assert step_class(name).for_environment is not Step.for_environment


@pytest.mark.parametrize(
    ("name", "arguments", "reason"), [(name, *case) for name, each in REFUSED.items() for case in each]
)
def test_a_step_that_an_environment_cannot_repeat_is_refused_by_its_name(name, arguments, reason, home, tmp_path):
    dataset = derived(home, tmp_path, [make_step(name, (), arguments)])

    with pytest.raises(InvalidArgumentError, match=rf"step 0 \({name}\) of .*: {reason}") as caught:
        dataset.make_env()
    assert "make_env(steps=False)" in str(caught.value.hint)
    plain = dataset.make_env(steps=False)
    assert plain.observation_space == Lights.observation_space
    assert plain.action_space == Lights.action_space


OF_ACTIONS = {
    "concatenate": {"keys": ["action.arm", "action.hand"], "key": "action"},
    "flatten_action": {"action_shape": [1, 2], "in_keys": ["action.arm"], "in_keys_inv": []},
    "rename": {"old": "action.hand", "new": "action.grip"},
    "normalize_range": {"keys": ["action.arm"]},
}


@pytest.mark.parametrize("name", OF_ACTIONS)
def test_actions_of_several_parts_are_mapped_back(name, home, tmp_path):
    arguments = OF_ACTIONS[name]
    if name == "concatenate":
        with pytest.raises(PreprocessError, match=r"action\.hand would stay nested below action"):
            derived(home, tmp_path, [make_step("concatenate", (), {"keys": ["action.arm"], "key": "action"})], "levers")
    dataset = derived(home, tmp_path, [make_step(name, (), arguments)], "levers")
    raw = load("local/levers", root=home / "local")
    env = dataset.make_env()
    env.reset(seed=0)
    for row in range(STEPS):
        action = dataset[row].get("action")
        action = (
            {key: each.numpy() for key, each in action.to_dict().items()} if name != "concatenate" else action.numpy()
        )
        assert env.action_space.contains(action)
        env.step(action)
        for part, value in raw[row]["action"].items():
            np.testing.assert_allclose(env.unwrapped.action[part], value.numpy(), atol=1e-6)
            assert env.unwrapped.action[part].shape == value.shape


def test_bounds_of_actions_are_those_of_the_environment_in_units_of_the_dataset(home, tmp_path):
    env = derived(home, tmp_path, ["observation_norm:1,2,in_keys=action,standard_normal=true"]).make_env()

    np.testing.assert_array_equal(env.action_space.low, np.float32([-1.5, -0.5]))
    np.testing.assert_array_equal(env.action_space.high, np.float32([0.5, 1.0]))
    env.reset(seed=0)
    env.step(env.action_space.high)
    np.testing.assert_array_equal(env.unwrapped.action, np.float32([2, 3]))


def test_clipped_actions_are_those_between_the_quantiles(home, tmp_path):
    raw = load("local/lights", root=home / "local")[:]["action"].numpy()
    env = derived(home, tmp_path, ["normalize_quantiles:low=0.1,high=0.9"]).make_env()

    np.testing.assert_array_equal(env.action_space.high, np.ones(2, np.float32))
    env.reset(seed=0)
    for action, quantile in ((-np.ones(2), 0.1), (np.ones(2), 0.9)):
        env.step(action.astype(np.float32))
        np.testing.assert_allclose(
            env.unwrapped.action, np.quantile(raw.astype(np.float64), quantile, axis=0), rtol=1e-6
        )


def test_several_derivations_apply_in_order_and_a_description_needs_no_dataset(home, tmp_path):
    first = preprocess(
        home / "local" / "lights",
        Recipe.inline(["keep_top_returns:67", "gray_scale:in_keys=[observation.camera]"]),
        out=tmp_path / "first",
    )
    second = preprocess(
        first,
        Recipe.inline(
            [
                "resize:w=6,in_keys=[observation.camera]",
                "cat_frames:N=2,in_keys=observation.camera",
                "reward_scaling:scale=3",
                "normalize:observation.goal",
            ]
        ),
        out=tmp_path / "second",
    )
    dataset = datasets_rl.load(second)
    assert_plays_as_stored(dataset)

    description = json.loads(json.dumps(dataset.describe_env()))
    alone, beside = datasets_rl.make_env(description), gymnasium.vector.SyncVectorEnv([dataset.make_env] * 2)
    observation, _ = alone.reset(seed=4)
    several, _ = beside.reset(seed=4)
    assert observation["camera"].shape == (6, 6, 2)
    np.testing.assert_array_equal(several["camera"][0], observation["camera"])
    observation, reward, *_ = alone.step(np.float32([0, 1]))
    several, rewards, *_ = beside.step(np.float32([[0, 1], [0, 1]]))
    np.testing.assert_array_equal(several["goal"][0], observation["goal"])
    assert reward == rewards[0] == -np.abs(alone.unwrapped.at - alone.unwrapped.goal).sum()


def test_frames_of_the_episode_before_are_not_stacked(home, tmp_path):
    env = derived(home, tmp_path, ["cat_frames:N=3,in_keys=observation.goal"]).make_env()
    env.reset(seed=0)
    env.step(np.float32([0, 1]))
    observation, _ = env.reset(seed=1)

    np.testing.assert_array_equal(observation["goal"], np.tile(env.unwrapped.goal, 3))


@dataclass
class Bonus(DataStep):
    """Add 1 to rewards."""

    def __call__(self, batch):
        return replace(batch, steps={**batch.steps, ("next", "reward"): batch.steps["next", "reward"] + 1})


@dataclass
class Shift(Step):
    """Add 1 to goals."""

    def __call__(self, batch):
        return replace(batch, states={**batch.states, ("observation", "goal"): batch.states["observation", "goal"] + 1})


def test_a_step_of_the_user_is_refused_unless_it_is_one_of_data(home, tmp_path):
    sys.modules.setdefault(__name__, sys.modules[Bonus.__module__])
    assert derived(home, tmp_path / "bonus", [Bonus()]).make_env().observation_space == Lights.observation_space
    with pytest.raises(InvalidArgumentError, match=r"step 0 \(shift\) of .*: the manifest has a digest of its code"):
        derived(home, tmp_path / "shift", [Shift()]).make_env()
    with pytest.raises(InvalidArgumentError, match=r"step 0 \(function\) of .*: the manifest has a digest of its code"):
        derived(home, tmp_path / "function", [lambda steps: steps]).make_env()


def test_fields_that_the_environment_does_not_have_are_named(home, tmp_path):
    def add(steps):
        return steps.set(("observation", "extra"), steps["observation", "goal"][..., :1])

    dataset = derived(home, tmp_path, [add, make_step("normalize", ("observation.goal",), {})])
    description = dataset.describe_env()
    description["steps"] = description["steps"][1:]
    with pytest.raises(
        InvalidArgumentError, match=r"the dataset has observation.extra \[1\], and the environment has no such field"
    ):
        datasets_rl.make_env(description)


def test_a_merge_of_datasets_with_different_steps_is_refused_and_one_with_the_same_is_not(home, tmp_path):
    texts = {
        "one": "normalize:observation.goal",
        "two": "normalize:observation.goal,eps=1",
        "three": "normalize:observation.goal",
    }
    one, two, three = (
        preprocess(home / "local" / "lights", Recipe.inline([text]), out=tmp_path / name)
        for name, text in texts.items()
    )
    mixed = datasets_rl.load(preprocess([one, two], Recipe([]), out=tmp_path / "mixed"))
    same = datasets_rl.load(preprocess([one, three], Recipe([]), out=tmp_path / "same"))
    for dataset in (mixed, same):
        object.__setattr__(dataset.manifest, "metadata", {**dataset.manifest.metadata, "environment": "TestLights-v0"})

    with pytest.raises(InvalidArgumentError, match="is a merge of datasets with different steps"):
        mixed.make_env()
    assert_plays_as_stored(same)


def test_data_that_is_recorded_in_a_preprocessed_environment_names_its_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    raw = record(gymnasium.make("Pendulum-v1", max_episode_steps=6), "local/plain", tmp_path)
    env = load("local/plain").derive("td3_bc").make_env()
    played = record(env, "local/online", tmp_path)
    again = (
        load("local/online")
        .derive(Recipe.inline(["observation_norm:0,2,in_keys=action,standard_normal=true"]), name="half")
        .make_env()
    )

    for seed, (observations, actions, rewards) in enumerate(played):
        np.testing.assert_array_equal(again.reset(seed=seed)[0], observations[0])
        for row, action in enumerate(actions):
            observation, reward, *_ = again.step((action / 2).astype(np.float32))
            np.testing.assert_allclose(observation, observations[row + 1], atol=1e-5)
            assert reward == pytest.approx(rewards[row], abs=1e-4)
            assert rewards[row] == pytest.approx(raw[seed][2][row], abs=1e-4)

    inside = RecordEpisodes(gymnasium.wrappers.ClipReward(env, -1, 0), "local/inside", root=tmp_path / "local")
    inside.reset(seed=0)
    inside.step(inside.action_space.sample())
    inside.close()
    with pytest.raises(
        InvalidArgumentError, match="local/inside was recorded with wrappers around a preprocessed environment"
    ):
        load("local/inside").make_env()


@pytest.mark.parametrize(
    "entry",
    [{}, 5, {"step": 5}, {"step": {"use": "nothing"}, "fitted": {}}, {"step": {"use": "normalize"}, "fitted": 5}],
)
def test_a_hostile_description_is_refused_in_a_sentence(entry, home):
    description = load("local/swing", root=home / "local").describe_env() | {"steps": [entry]}

    with pytest.raises(InvalidArgumentError, match="local/swing is preprocessed, and its environment cannot be: "):
        datasets_rl.make_env(description)


def test_scores_of_a_derived_dataset_are_those_of_its_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    load("demo/pendulum").derive("td3_bc")

    assert datasets_rl.normalized_score("demo/pendulum@td3_bc", [-167.13]) == datasets_rl.normalized_score(
        "demo/pendulum", [-167.13]
    )
