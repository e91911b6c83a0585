"""Rewards of every dtype give the results of a slow float64 model, in every transform, step, recipe and sampler.

What depends on rewards is found by changing them: a transform or a step whose results then change needs an oracle here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conformance.test_steps import WRITTEN
from conformance.test_transforms import CASES
from tensordict import TensorDict

from datasets_rl import (
    GoalSampler,
    HERReplayBuffer,
    LazyTensorStorage,
    PrioritizedSliceSampler,
    Recipe,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    WindowSampler,
    traj,
)
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.recipe import shipped_recipes
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.testing import TransformCase as Case
from datasets_rl.testing import block_of, spec_of_steps
from datasets_rl.testing.contract import listed
from datasets_rl.testing.steps import fitted
from datasets_rl.transforms import (
    ClipTransform,
    Compose,
    LineariseRewards,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    SignTransform,
    StepCounter,
    Transform,
    VecNorm,
    VecNormV2,
)

REWARD = ("next", "reward")
NUMBERS = {
    "bool": [0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0],
    "uint8": [200, 100, 0, 3, 255, 1, 0, 7, 130, 2, 90, 40],
    "int64": [-3, 0, 5, 1, -1, 700, 0, 2, -40, 11, 0, 1],
    "float64": [-0.25, 0, 1.5, 3, -2, 0.125, 0, 1, 0.5, -1, 1e-3, 2],
}
"""Rewards of two rows of six steps: sums of uint8 exceed 255, and those of bool exceed 1."""
DTYPES = list(NUMBERS)
ROWS, STEPS = 2, 6
TERMINATED = np.array([[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]], bool)
DONE = np.array([[0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 1]], bool)

Values = Mapping[Any, Any]


def rewards_of(dtype: str) -> np.ndarray:
    return np.array(NUMBERS[dtype]).reshape(ROWS, STEPS).astype(dtype)


@cache
def _drawn() -> TensorDict:
    torch.manual_seed(5)
    data = spec_of_steps().rand([ROWS, STEPS])
    for name, flags in (("terminated", TERMINATED), ("done", DONE)):
        data["next", name] = torch.from_numpy(flags.copy())[..., None]
    return data


def batch_of(rewards: np.ndarray) -> TensorDict:
    """Return two rows of six steps, [2, 6], with two episodes each."""
    return _drawn().clone(recurse=False).set(REWARD, torch.from_numpy(rewards.copy())[..., None])


def leaves(data: Any) -> dict[Any, np.ndarray]:
    return {
        key: value.numpy().astype(np.float64)
        for key, value in data.items(include_nested=True, leaves_only=True)
        if isinstance(value, torch.Tensor)
    }


def in_batch(case: Case, rewards: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the entries of a transformed batch [2, 6]."""
    data = batch_of(rewards)
    torch.manual_seed(0)
    transform = case.make()
    return leaves(transform(transform.inv(data) if case.writes else data))


def in_buffer(case: Case, rewards: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the entries of all steps of a buffer, [12, ...] as [2, 6, ...]."""
    data = batch_of(rewards).reshape(-1)
    torch.manual_seed(0)
    transform = case.make()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS * STEPS))
    buffer.extend(transform.inv(data) if case.writes else data)
    buffer.append_transform(transform)
    entries = leaves(buffer.sample(rows=range(ROWS * STEPS)))
    return {key: value.reshape(ROWS, STEPS, *value.shape[1:]) for key, value in entries.items() if key != "index"}


WAYS = {"batch": in_batch, "buffer": in_buffer}


def episodes_of_rows() -> list[tuple[int, int, int]]:
    """Return the row, the first step and the end of each episode."""
    return [
        (row, start, stop)
        for row in range(ROWS)
        for start, stop in pairwise([0, *(np.flatnonzero(DONE[row]) + 1).tolist()])
    ]


def along_episodes(function: Callable[[np.ndarray], Any], rewards: np.ndarray) -> np.ndarray:
    """Return the results of a function for the rewards of each episode, as a column: [2, 6, ..., 1]."""
    parts = [np.asarray(function(rewards[row, start:stop]), np.float64) for row, start, stop in episodes_of_rows()]
    joined = np.concatenate(parts)
    return joined.reshape(ROWS, STEPS, *joined.shape[1:])[..., None]


def to_go(rewards: Any, gamma: float = 1.0) -> list[float]:
    return [sum(gamma**k * r for k, r in enumerate(rewards[i:])) for i in range(len(rewards))]


def n_step(n: int, gamma: float) -> Callable[[np.ndarray], list[float]]:
    return lambda rewards: [to_go(rewards[i : i + n], gamma)[0] for i in range(len(rewards))]


def so_far(rewards: np.ndarray) -> list[float]:
    return [sum(rewards[: i + 1]) for i in range(len(rewards))]


def windowed(before: int, after: int) -> Callable[[np.ndarray], list[list[float]]]:
    """Return windows of rewards, padded with the first and the last one."""

    def windows(rewards: np.ndarray) -> list[list[float]]:
        last = len(rewards) - 1
        return [[rewards[min(max(i + k, 0), last)] for k in range(-before, after + 1)] for i in range(last + 1)]

    return windows


def column(values: np.ndarray) -> np.ndarray:
    return values[..., None]


def advantages(gamma: float, lmbda: float, *, lambda_returns: bool, network: bool = False) -> Callable[..., Values]:
    """Return the oracle of GAE, or of TD(lambda): the sums of their definitions, from the last step to the first."""

    def estimates(rewards: np.ndarray, entries: Values) -> tuple[np.ndarray, np.ndarray]:
        def values(*prefix: str) -> np.ndarray:
            key = (*prefix, "observation" if network else "state_value")
            found = entries[key if prefix else key[0]]
            return np.linalg.norm(found, axis=-1) if network else found[..., 0]

        value, following = values(), values("next")
        advantage = np.zeros_like(rewards)
        for row, start, stop in episodes_of_rows():
            after = 0.0
            for step in range(stop - 1, start - 1, -1):
                error = (
                    rewards[row, step] + gamma * following[row, step] * (not TERMINATED[row, step]) - value[row, step]
                )
                last = step == stop - 1
                if lambda_returns:
                    target = error + value[row, step]
                    if not last:
                        target += gamma * lmbda * (after - following[row, step])
                    advantage[row, step], after = target - value[row, step], target
                else:
                    advantage[row, step] = after = error + (0 if last else gamma * lmbda * after)
        return column(advantage), column(advantage + value)

    def oracle(rewards: np.ndarray, entries: Values) -> Values:
        return dict(zip(("advantage", "value_target"), estimates(rewards, entries), strict=True))

    return oracle


def q_chunks(size: int, gamma: float) -> Callable[[np.ndarray], list[list[float]]]:
    def sums(rewards: np.ndarray) -> list[list[float]]:
        return [[to_go(rewards[i : i + k + 1], gamma)[0] for k in range(size)] for i in range(len(rewards))]

    return sums


def sequence(length: int, scale: float, *, left: bool, extra: bool) -> Callable[[np.ndarray], list[list[float]]]:
    """Return the returns to go of the sequences of a Decision Transformer, padded with zeros."""

    def sequences(rewards: np.ndarray) -> list[list[float]]:
        all_to_go = to_go(rewards)
        result = []
        for i in range(len(rewards)):
            count = min(length, len(rewards) - i)
            real = [value * scale for value in [*all_to_go, 0.0][i : i + count + extra]]
            padding = [0.0] * (length - count)
            result.append([*padding, *real] if left else [*real, *padding])
        return result

    return sequences


def dense(rewards: np.ndarray) -> Values:
    return {("next", "dense"): along_episodes(lambda r: to_go(r, 0.9), rewards)}


EXTRA: dict[str, Callable[[], Transform]] = {
    "clip of rewards": lambda: ClipTransform([REWARD], low=-0.5, high=1.5),
    "clipping at fractions": lambda: RewardClipping(-0.5, 0.5),
    "clipping at zero": lambda: RewardClipping(clamp_max=0.0),
    "weighted rewards of a step": lambda: LineariseRewards([REWARD], weights=[0.25]),
    "sum of rewards of a step": lambda: LineariseRewards([REWARD]),
    "normal rewards": lambda: RewardScaling(0.5, 4.0, standard_normal=True),
    "rewards scaled by integers": lambda: RewardScaling(torch.tensor(-1), torch.tensor(3)),
    "observation norm of rewards": lambda: ObservationNorm(1.5, 0.5, [REWARD]),
    "vec norm of rewards": lambda: VecNorm([REWARD], decay=1.0),
    "vec norm with fixed statistics": lambda: VecNormV2([REWARD], decay=0.9, reduce_batch_dims=True),
    "signs": lambda: SignTransform([REWARD]),
    "scaled, then counted": lambda: Compose(RewardScaling(0.0, 0.1), StepCounter()),
}
"""Transforms of the rewards themselves, whose cases in `CASES` are about other entries."""
TRANSFORMS = {**CASES, **{name: Case(make) for name, make in EXTRA.items()}}


def reward(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Values]:
    return lambda rewards, _: {REWARD: column(function(rewards))}


def of_episodes(**results: Callable[[np.ndarray], Any]) -> Callable[..., Values]:
    """Return an oracle of entries that follow from the rewards of an episode; `next_x` is x under next."""
    keys = {name: ("next", name[5:]) if name.startswith("next_") else name for name in results}
    return lambda rewards, _: {keys[name]: along_episodes(one, rewards) for name, one in results.items()}


def _target(target: float) -> Callable[..., Values]:
    return of_episodes(
        target_return=lambda r: target - np.array(so_far(r)) + r,
        next_target_return=lambda r: target - np.array(so_far(r)),
    )


def _sequences(length: int, scale: float, *, left: bool, extra: bool) -> Callable[..., Values]:
    return of_episodes(returns_to_go=sequence(length, scale, left=left, extra=extra))


def _normalized(rewards: np.ndarray, _: Values) -> Values:
    return {REWARD: column((rewards - rewards.mean()) / max(rewards.std(), 1e-4))}


ORACLES: dict[str, Callable[[np.ndarray, Values], Values]] = {
    "rename": lambda rewards, _: {("next", "r"): column(rewards)},
    "reward scaling": reward(lambda r: 0.1 * r - 1),
    "reward clipping": reward(lambda r: np.clip(r, -1, 1)),
    "binarize": reward(lambda r: r > 0),
    "sign": reward(np.sign),
    "reward to go": of_episodes(next_reward=lambda r: to_go(r, 0.9)),
    "returns to go": of_episodes(returns_to_go=lambda r: np.array(to_go(r, 0.9)) / 2),
    "target return": _target(10.0),
    "reward sum": of_episodes(next_episode_reward=so_far),
    "advantages": advantages(0.9, 0.8, lambda_returns=False),
    "advantages, network": lambda rewards, entries: {
        ("deep", "advantage"): advantages(0.9, 0.8, lambda_returns=False, network=True)(rewards, entries)["advantage"]
    },
    "lambda-returns": lambda rewards, entries: {
        "to_go": advantages(0.9, 1.0, lambda_returns=True)(rewards, entries)["value_target"]
    },
    "multi step": of_episodes(next_reward=n_step(3, 0.9)),
    "multi step, collector": of_episodes(next_reward=n_step(3, 0.9)),
    "windows": of_episodes(next_reward=windowed(1, 1)),
    "preset, seconds": of_episodes(next_reward=lambda r: r[np.minimum(np.arange(len(r)) + 2, len(r) - 1)]),
    "sequences": _sequences(3, 1e-3, left=True, extra=True),
    "sequences, padding on the right": _sequences(2, 1e-3, left=False, extra=False),
    "q chunks": lambda rewards, _: {("chunk", "reward"): along_episodes(q_chunks(3, 0.9), rewards)[..., 0]},
    "q chunks, one action": lambda rewards, _: {("deep", "chunk", "reward"): column(rewards)},
    "dense rewards": lambda rewards, _: dense(rewards),
    "compose, frames of frames": lambda rewards, _: {
        REWARD: along_episodes(n_step(2, 0.5), np.clip(rewards, -1, 1)),
    },
    "clip of rewards": reward(lambda r: np.clip(r, -0.5, 1.5)),
    "clipping at fractions": reward(lambda r: np.clip(r, -0.5, 0.5)),
    "clipping at zero": reward(lambda r: np.minimum(r, 0)),
    "weighted rewards of a step": reward(lambda r: r / 4),
    "sum of rewards of a step": reward(lambda r: r),
    "normal rewards": reward(lambda r: (r - 0.5) / 4),
    "rewards scaled by integers": reward(lambda r: 3 * r - 1),
    "observation norm of rewards": reward(lambda r: r * 0.5 + 1.5),
    "vec norm of rewards": _normalized,
    "signs": reward(np.sign),
    "scaled, then counted": reward(lambda r: 0.1 * r),
}
"""The entries that follow from rewards, [2, 6, ...], computed in float64 from the rewards, [2, 6], and the batch."""
ONLY_COMPARED = {"vec norm with fixed statistics", "random crop"}
"""Transforms whose results are compared only with those for float64: tests of their own have an oracle."""
NOT_IN_A_BUFFER = {"dense rewards"} | {name for name, case in CASES.items() if case.axes}
"""Transforms that need consecutive steps [B, T] in a batch."""


def equal(found: np.ndarray, expected: Any) -> bool:
    wanted = np.asarray(expected, np.float64)
    return found.size == wanted.size and np.allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


def differences(one: Values, other: Values) -> list[Any]:
    return [key for key in {**one, **other} if key not in one or key not in other or not equal(one[key], other[key])]


@pytest.mark.first(1, of="name")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_for_every_dtype_what_the_oracle_computes(name, way):
    if way == "buffer" and name in NOT_IN_A_BUFFER:
        return
    run = partial(WAYS[way], TRANSFORMS[name])
    numbers = rewards_of("float64")
    of_floats = run(numbers)
    if name not in {*ORACLES, *ONLY_COMPARED}:
        copied = {REWARD} if REWARD in of_floats and equal(of_floats[REWARD], numbers) else set()
        changed = {*differences(of_floats, run(numbers[:, ::-1] * 3 + 1))} - copied
        assert not changed, (
            f"{name} computes {listed(changed)} from rewards: add a slow float64 model of it to ORACLES in "
            "tests/conformance/test_rewards.py"
        )
        return
    entries = leaves(batch_of(numbers))
    for dtype in DTYPES:
        rewards = rewards_of(dtype)
        result = run(rewards)
        assert differences(result, run(rewards.astype(np.float64))) == [], dtype
        expected = ORACLES[name](rewards.astype(np.float64), entries) if name in ORACLES else {}
        assert [key for key, value in expected.items() if not equal(result[key], value)] == [], dtype


SHAPES = [(3, True, True), (1, True, False), (4, True, False), (2, True, True), (2, True, False)]
"""Twelve steps in five episodes, given as in `block_of`; with the rewards of `NUMBERS`, in their order."""
LENGTHS = [shape[0] for shape in SHAPES]
OUTCOME = np.array([shape[2] for shape in SHAPES])
STOPS = np.cumsum(LENGTHS)
EXTRA_STEPS: list[tuple[str, dict[str, Any]]] = [
    ("clip", {"in_keys": ["next.reward"], "low": -0.5, "high": 1.5}),
    ("keep_where", {"key": "next.reward", "test": "> 0.5"}),
    ("normalize", {"keys": ["next.reward"], "eps": 0.0}),
    ("normalize_range", {"keys": ["next.reward"], "eps": 0.0}),
    ("normalize_quantiles", {"keys": ["next.reward"], "low": 0.0, "high": 1.0}),
    ("cat_frames", {"N": 2, "in_keys": ["next.reward"]}),
    ("keep_returns", {"min": 0.5, "max": 300.5}),
    ("cast", {"dtype": "float64", "keys": ["next.reward"]}),
    ("select", {"keys": ["observation"]}),
]
STEP_CASES = [*((name, one) for name, several in WRITTEN.items() for one in several), *EXTRA_STEPS]


def episodes(dtype: str, as_: str | None = None) -> EpisodeBatch:
    block = block_of(SHAPES, seed=2)
    return replace(block, steps={**block.steps, REWARD: rewards_of(dtype).reshape(-1, 1).astype(as_ or dtype)})


def per_episode(function: Callable[[np.ndarray], Any], rewards: np.ndarray) -> np.ndarray:
    """Return the results of a function for the rewards of each episode, [12, 1]."""
    return np.concatenate([np.asarray(function(part), np.float64) for part in np.split(rewards, STOPS[:-1])])[:, None]


def kept(mask: Any, rewards: np.ndarray) -> dict[Any, np.ndarray]:
    return {REWARD: rewards[np.repeat(mask, LENGTHS)][:, None]}


def sums(rewards: np.ndarray) -> np.ndarray:
    return np.array([part.sum() for part in np.split(rewards, STOPS[:-1])])


def top(rewards: np.ndarray, percent: float, of: str = "episodes") -> dict[Any, np.ndarray]:
    """Return the rewards of the best episodes: by number, or while their steps do not exceed the share."""
    returns = sums(rewards)
    best = sorted(range(len(returns)), key=lambda number: -returns[number])
    count = int(len(returns) * percent / 100)
    if of == "steps":
        count = sum(sum(LENGTHS[number] for number in best[: i + 1]) <= 12 * percent / 100 for i in range(len(best)))
    return kept(returns >= returns[best[max(count, 1) - 1]], rewards)


def with_failure(gamma: float, failure: float) -> Callable[[np.ndarray], list[float]]:
    return lambda r: [failure / (1 - gamma)] * len(r) if (r == failure).all() else to_go(r, gamma)


def skipped(n: int) -> Callable[[np.ndarray], list[float]]:
    return lambda r: [r[i : i + n].sum() for i in range(0, len(r), n)]


def values_of_states(block: EpisodeBatch) -> tuple[np.ndarray, np.ndarray]:
    value = block.states["state_value",][:, 0].astype(np.float64)
    following = np.append(value[1:], 0)
    following[STOPS - 1] = block.final_states["state_value",][:, 0]
    return value, following


def step_advantages(rewards: np.ndarray, gamma: float, lmbda: float, names: tuple[Any, Any]) -> dict[Any, np.ndarray]:
    """Return GAE; the lambda-return is the advantage plus the value, for one lambda."""
    value, following = values_of_states(block_of(SHAPES, seed=2))
    advantage = np.zeros(12)
    for stop, length, terminal in zip(STOPS, LENGTHS, OUTCOME, strict=True):
        after = 0.0
        for step in range(stop - 1, stop - length - 1, -1):
            alive = not (terminal and step == stop - 1)
            after = rewards[step] + gamma * following[step] * alive - value[step] + gamma * lmbda * after
            advantage[step] = after
    return {names[0]: advantage[:, None], names[1]: (advantage + value)[:, None]}


IN_TIME = ~np.isin(np.arange(12), STOPS[~OUTCOME] - 1)
"""Steps other than time-outs; the episode of one step is nothing but a time-out."""


def limited_returns(rewards: np.ndarray, limit: int, kept_steps: Any = slice(None)) -> list[float]:
    """Return the sums between terminations, of at most `limit` steps, step by step as `return_reward_range` of CORL."""
    terminals, found, total, steps = np.isin(np.arange(12), STOPS[OUTCOME] - 1)[kept_steps], [], 0.0, 0
    for number, terminal in zip(rewards, terminals, strict=True):
        total, steps = total + number, steps + 1
        if terminal or steps == limit:
            found.append(total)
            total, steps = 0.0, 0
    return found


def scaled_by(returns: Any, to: float, rewards: np.ndarray) -> dict[Any, np.ndarray]:
    return {REWARD: (rewards * to / (max(returns) - min(returns)))[:, None]}


def changed_rewards(function: Callable[..., Any]) -> Callable[..., dict[Any, np.ndarray]]:
    return lambda rewards, **arguments: {REWARD: np.asarray(function(rewards, **arguments), np.float64)[:, None]}


def _gae(rewards: np.ndarray, gamma: float = 0.99, lmbda: float = 0.95, **names: str) -> dict[Any, np.ndarray]:
    keys = (tuple(names.get("advantage_key", "advantage").split(".")), (names.get("value_target_key", "value_target"),))
    return step_advantages(rewards, gamma, lmbda, keys)


def _returns_to_go(rewards: np.ndarray, gamma: float = 1.0, failure: float | None = None) -> dict[Any, np.ndarray]:
    oracle = (lambda r: to_go(r, gamma)) if failure is None else with_failure(gamma, failure)
    return {("returns_to_go",): per_episode(oracle, rewards)}


def _n_steps(rewards: np.ndarray, n_steps: int, gamma: float = 0.99) -> dict[Any, np.ndarray]:
    def powers(r: np.ndarray) -> list[float]:
        return [gamma ** min(n_steps, len(r) - i) for i in range(len(r))]

    return {
        ("n_step", "reward"): per_episode(n_step(n_steps, gamma), rewards),
        ("n_step", "gamma"): per_episode(powers, rewards),
    }


def _scale_by_returns(rewards: np.ndarray, to: float = 1000.0, max_steps: int | None = None) -> dict[Any, np.ndarray]:
    return scaled_by(sums(rewards) if max_steps is None else limited_returns(rewards, max_steps), to, rewards)


def _target_return(rewards: np.ndarray, target_return: float) -> dict[Any, np.ndarray]:
    after = per_episode(lambda r: target_return - np.array(so_far(r)), rewards)
    return {("state", "target_return"): after + rewards[:, None]}


def _hindsight(rewards: np.ndarray, strategy: str = "future", within: float = 0.05, **keys: Any) -> dict[Any, Any]:
    """Return the rewards of goals of the final state; other strategies draw goals, and are only compared."""
    del rewards
    if strategy != "final":
        return {}
    block, key = block_of(SHAPES, seed=2), tuple(keys["achieved"].split("."))
    following = np.append(block.states[key][1:], np.zeros((1, 2)), 0)
    following[STOPS - 1] = block.final_states[key]
    distances = np.linalg.norm(following - np.repeat(block.final_states[key], LENGTHS, 0), axis=-1)
    return {REWARD: np.where(distances <= within, 0.0, -1.0)[:, None]}


def _success(rewards: np.ndarray, otherwise: float = 0.0, at: float = 1.0) -> dict[Any, np.ndarray]:
    del rewards
    hits = block_of(SHAPES, seed=2).steps["success",][:, 0]
    return {REWARD: np.where(hits, at, otherwise)[:, None]}


STEP_ORACLES: dict[str, Callable[..., Mapping[Any, Any]]] = {
    "binarize_reward": changed_rewards(lambda r, threshold=0.0: r > threshold),
    "clip": lambda r, in_keys, low, high: (
        {REWARD: np.clip(r, low, high)[:, None]} if in_keys == ["next.reward"] else {}
    ),
    "delay_rewards": lambda r: {REWARD: per_episode(lambda part: [0.0] * (len(part) - 1) + [part.sum()], r)},
    "frame_skip": lambda r, n: {REWARD: per_episode(skipped(n), r)},
    "gae": _gae,
    "hindsight_goals": _hindsight,
    "keep_returns": lambda r, **limits: kept(
        (sums(r) >= limits.get("min", -np.inf)) & (sums(r) <= limits.get("max", np.inf)), r
    ),
    "keep_top_returns": top,
    "keep_where": lambda r, key, test, **_: (
        kept([(part > float(test[1:])).any() for part in np.split(r, STOPS[:-1])], r) if key == "next.reward" else {}
    ),
    "linearise_rewards": changed_rewards(lambda r, weights, **_: r * weights[0]),
    "n_step_targets": _n_steps,
    "normalize": lambda r, keys=(), **_: (
        {REWARD: ((r - r.mean()) / r.std())[:, None]} if keys == ["next.reward"] else {}
    ),
    "normalize_quantiles": lambda r, keys=("action",), **_: _between(r, keys),
    "normalize_range": lambda r, keys=("observation",), **_: _between(r, keys),
    "returns_to_go": _returns_to_go,
    "reward_clipping": changed_rewards(lambda r, clamp_min=-np.inf, clamp_max=np.inf: np.clip(r, clamp_min, clamp_max)),
    "reward_sum": lambda r: {("next", "episode_reward"): per_episode(so_far, r)},
    "scale_by_returns": _scale_by_returns,
    "reward_scaling": changed_rewards(lambda r, scale=1.0, loc=0.0: r * scale + loc),
    "sign": changed_rewards(lambda r, **_: np.sign(r)),
    "cat_frames": lambda r, N, in_keys=(), **_: (  # noqa: N803  # the name in the reference
        {REWARD: np.concatenate([windowed(N - 1, 0)(part) for part in np.split(r, STOPS[:-1])])}
        if in_keys == ["next.reward"]
        else {}
    ),
    "success_rewards": _success,
    "target_return": _target_return,
    "td_lambda": _gae,
}
"""The fields that follow from rewards, [N, 1], computed in float64 from the rewards, [12], and the arguments of the step."""

CHOOSE_ROWS = {"drop_episodes", "drop_timeouts", "keep_episodes", "keep_lengths", "keep_steps", "keep_success", "split"}
"""Steps that choose rows by other fields than the reward."""


def _between(rewards: np.ndarray, keys: Any) -> dict[Any, np.ndarray]:
    if list(keys) != ["next.reward"]:
        return {}
    return {REWARD: (2 * (rewards - rewards.min()) / np.ptp(rewards) - 1)[:, None]}


def fields(block: EpisodeBatch | None) -> dict[Any, np.ndarray]:
    if block is None:
        return {}
    steps = {key: np.asarray(values).astype(np.float64) for key, values in block.steps.items()}
    states = {("state", *key): np.asarray(values).astype(np.float64) for key, values in block.states.items()}
    return {**steps, **states, "lengths": block.lengths.astype(np.float64)}


@pytest.mark.parametrize(
    ("name", "arguments"), STEP_CASES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(STEP_CASES)]
)
def test_a_step_gives_for_every_dtype_what_the_oracle_computes(name, arguments):
    for dtype in DTYPES:
        numbers = rewards_of(dtype).reshape(-1).astype(np.float64)
        block, twin = episodes(dtype), episodes(dtype, "float64")
        result = fields(fitted(make_step(name, (), arguments), block)(block))
        assert differences(result, fields(fitted(make_step(name, (), arguments), twin)(twin))) == [], dtype
        expected = STEP_ORACLES[name](numbers, **arguments) if name in STEP_ORACLES else {}
        assert [key for key, value in expected.items() if not equal(result[key], value)] == [], dtype

    other = replace(twin, steps={**twin.steps, REWARD: twin.steps[REWARD][::-1] * 3 + 1})
    changed = differences(result, fields(fitted(make_step(name, (), arguments), other)(other)))
    copied = len(numbers) == len(result[REWARD]) and equal(result[REWARD], numbers)
    if name in CHOOSE_ROWS:
        assert {*changed} == {REWARD}
        assert {*result[REWARD][:, 0].tolist()} <= {*numbers.tolist()}
    else:
        computed = {*changed} - ({REWARD} if copied else set())
        assert not computed or name in STEP_ORACLES, (
            f"{name} computes {listed(computed)} from rewards: add a slow float64 model of it to STEP_ORACLES in "
            "tests/conformance/test_rewards.py"
        )


DICT = ("flat_observation", "her_sparse")
"""Recipes for observations of several parts."""


def recipe_block(name: str, dtype: str, as_: str | None = None) -> EpisodeBatch:
    """Return episodes that have what the recipe reads: an observation of several parts, or of one."""
    block = episodes(dtype, as_)
    if name not in DICT:
        return block
    moved = {("observation",): ("observation", "position"), ("goal", "achieved"): ("observation", "achieved_goal")}

    def renamed(values: Mapping[Any, Any]) -> dict[Any, Any]:
        return {moved.get(key, key): value for key, value in values.items()}

    return replace(block, states=renamed(block.states), final_states=renamed(block.final_states))


def _success_only(rewards: np.ndarray) -> dict[Any, np.ndarray]:
    hits = block_of(SHAPES, seed=2).steps["success",][:, 0]
    return kept([part.any() for part in np.split(hits, STOPS[:-1])], rewards)


RECIPES: dict[str, Callable[[np.ndarray], Mapping[Any, Any]]] = {
    "atari_dqn": lambda r: {REWARD: np.clip(r, -1, 1)[:, None]},
    "calql_antmaze": lambda r: {
        REWARD: (10 * r - 5)[:, None],
        ("mc_returns",): per_episode(with_failure(0.99, -5.0), 10 * r - 5),
    },
    "corl_locomotion": lambda r: scaled_by(limited_returns(r[IN_TIME], 1000, IN_TIME), 1000.0, r[IN_TIME]),
    "cql_antmaze": lambda r: {REWARD: (4 * r - 2)[:, None]},
    "delayed_rewards": STEP_ORACLES["delay_rewards"],
    "iql_antmaze": lambda r: {REWARD: (r - 1)[:, None]},
    "iql_locomotion": lambda r: scaled_by(sums(r * IN_TIME)[[0, 2, 3, 4]], 1000.0, r[IN_TIME]),
    "n_step_3": lambda r: _n_steps(r, 3, 0.99),
    "returns_to_go": _returns_to_go,
    "success_only": _success_only,
    "top_10_percent": lambda r: top(r, 10.0),
}
"""The fields that follow from rewards, by recipe."""
NO_REWARDS = {
    "diffusion_policy",
    "flat_observation",
    "float32",
    "normalized_observation",
    "openvla_actions",
    "td3_bc",
    "vd4rl_64",
}
NEW_REWARDS = {"her_sparse", "train_split", "validation_split"}
"""Recipes that replace rewards whatever they are, or choose episodes by their number."""


@pytest.mark.parametrize("recipe", list(shipped_recipes()), ids=lambda recipe: recipe.name)
def test_a_recipe_gives_for_every_dtype_what_the_oracle_computes(recipe):
    for dtype in DTYPES:
        numbers = rewards_of(dtype).reshape(-1).astype(np.float64)
        results = []
        for block in (recipe_block(recipe.name, dtype), recipe_block(recipe.name, dtype, "float64")):
            own = Recipe.of(recipe.name)
            own.fit(lambda block=block: iter([block]))
            results.append(fields(own(block)))
        assert differences(*results) == [], dtype
        expected = RECIPES.get(recipe.name, lambda r: {REWARD: r[:, None]} if recipe.name in NO_REWARDS else {})(
            numbers
        )
        assert [key for key, value in expected.items() if not equal(results[0][key], value)] == [], dtype
    assert recipe.name in {*RECIPES, *NO_REWARDS, *NEW_REWARDS}, (
        f"add {recipe.name} to RECIPES with the rewards that it makes, or to NO_REWARDS if it leaves them as they are"
    )


SAMPLERS: dict[str, Callable[[], Any]] = {
    "goals": lambda: GoalSampler(0.2, 0.5, 0.3, geometric=0.9, negative=True, reward="next"),
    "prioritized slices": lambda: PrioritizedSliceSampler(12, 0.7, 0.5, slice_len=2, strict_length=False),
    "slices": lambda: SliceSampler(slice_len=2, strict_length=False),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=2, strict_length=False),
    "windows": lambda: WindowSampler(before=1, after=1),
}
"""Samplers of several steps and of goals; the contract of samplers draws single steps."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_leave_rewards_alone_and_what_they_compute_does_not_depend_on_the_dtype(name, dtype):
    batches = []
    for rewards in (rewards_of(dtype), rewards_of(dtype).astype(np.float64)):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12), sampler=SAMPLERS[name](), batch_size=6)
        buffer.extend(batch_of(rewards).reshape(-1))
        torch.manual_seed(0)
        batches.append(leaves(buffer.sample()))
    rows = batches[0]["index"].astype(int)

    assert differences(*batches) == []
    assert equal(batches[0][REWARD], rewards_of(dtype).reshape(-1).astype(np.float64)[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_hindsight_rewards_keep_their_fractions_beside_rewards_of_any_dtype(dtype):
    def reward_fn(steps):
        return (steps["desired_goal"] - steps["achieved_goal"]).abs().sum(-1, keepdim=True) * 0.25 - 1

    data = batch_of(rewards_of(dtype)).reshape(-1)
    for name in ("achieved_goal", "desired_goal"):
        data[name] = torch.arange(12.0)[:, None] + (name == "desired_goal")
    buffer = HERReplayBuffer(reward_fn, storage=LazyTensorStorage(12), her_ratio=0.5, batch_size=12)
    buffer.extend(data)
    batch = buffer.sample()
    rows, goals = batch["index"].numpy(), batch["goal_index"].numpy()
    expected = np.where(goals >= 0, np.abs(goals - rows) * 0.25 - 1, rewards_of(dtype).reshape(-1)[rows])

    assert equal(batch[REWARD][:, 0].numpy(), expected)
    assert batch[REWARD].dtype == (torch.float64 if dtype == "float64" else torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_trajectories_are_ranked_and_queried_by_their_exact_returns(dtype):
    rewards = rewards_of(dtype).astype(np.float64)
    returns = [rewards[row, start:stop].sum() for row, start, stop in episodes_of_rows()]
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12))
    data = batch_of(rewards_of(dtype)).reshape(-1)
    data["episode"] = torch.from_numpy(np.repeat(range(4), [stop - start for _, start, stop in episodes_of_rows()]))
    buffer.extend(data)
    limit = sorted(returns)[1]

    found = [int(one.episode[0]) for one in buffer.query(traj.total_reward > limit)]
    assert found == [number for number, value in enumerate(returns) if value > limit]
    assert [float(one.total_reward) for one in buffer.query()] == pytest.approx(returns)

    best = ReplayBuffer(storage=LazyTensorStorage(1), writer=TensorDictMaxValueWriter())
    best.extend(batch_of(rewards_of(dtype)))
    assert np.array_equal(best[:][REWARD][0, :, 0].numpy(), rewards_of(dtype)[rewards.sum(1).argmax()])
