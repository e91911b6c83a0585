"""Goals of sampled steps: OGBench's own results, the strategies of hindsight experience replay, and rings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    DatasetStorage,
    GoalDraws,
    GoalSampler,
    LazyTensorStorage,
    Mixture,
    PrioritizedSampler,
    SliceSampler,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.transforms import CatFrames

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "goals_and_rewards.json").read_text())
"""Results of OGBench's own functions, with the configuration and the seed that they were called with."""


def steps(lengths, *, first=0):
    """Return consecutive episodes; the observation of a step is its number, and that of a final state is negative."""
    count = sum(lengths)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    numbers = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(1)
    following = torch.where(done, -numbers, numbers + 1)
    return TensorDict({"observation": numbers, "next": {"observation": following, "done": done}}, [count])


def ring(data, sampler, size=None):
    """Return a buffer with this data; a smaller size makes it wrap."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size or len(data)), sampler=sampler)
    buffer.extend(data)
    return buffer


def peer_draws(random, config, name):
    """Return the draws of OGBench's `sample_goals` for ten steps, in its order."""
    rows = random.randint(10, size=10)
    ahead = random.geometric(p=1 - config["discount"], size=10) if config[f"{name}_geom_sample"] else random.rand(10)
    p_current = config[f"{name}_p_curgoal"]
    is_random = random.rand(10) >= config[f"{name}_p_trajgoal"] / (1 - p_current)
    return GoalDraws(ahead, random.rand(10) < p_current, is_random, rows)


def peer_sampler(config, **options):
    """Return the sampler with OGBench's configuration."""
    value, actor = (
        [config[f"{name}_p_{kind}goal"] for kind in ("cur", "traj", "random")] for name in ("value", "actor")
    )
    geometric = [config["discount"] if config[f"{name}_geom_sample"] else None for name in ("value", "actor")]
    return GoalSampler(*value, geometric[0], actor=tuple(actor), actor_geometric=geometric[1], **options)


@pytest.fixture(params=["dataset", "ring"])
def two_of_five(request, tmp_path):
    """A storage with two trajectories of five steps, whose observations are their numbers."""
    if request.param == "ring":
        return ring(steps([5, 5]), None).storage
    numbered = [replace(trajectory(5), states={("observation",): first + NUMBERS}) for first in (0, 5)]
    return DatasetStorage(write_dataset(tmp_path, numbered))


SUBGOALS = ["low_actor_goal", "high_actor_goal", "high_actor_target"]
NUMBERS = np.repeat(np.arange(6, dtype=np.float32)[:, None], 3, 1)


def test_goals_and_rewards_are_those_of_ogbench_for_its_draws(two_of_five):
    golden = GOLDEN["GCDataset"]
    random, config = np.random.RandomState(golden["seed"]), golden["config"]
    value, actor = peer_draws(random, config, "value"), peer_draws(random, config, "actor")
    goals = peer_sampler(config).goals_of(two_of_five, torch.tensor(golden["idxs"]), value, actor)

    expected = golden["batch"]
    assert goals["value_goal"][:, 0].tolist() == goals["value_goal_index"].tolist() == expected["value_goals"]
    assert goals["actor_goal"][:, 0].tolist() == goals["actor_goal_index"].tolist() == expected["actor_goals"]
    assert goals["reward"][:, 0].tolist() == expected["rewards"]
    assert goals["mask"][:, 0].tolist() == expected["masks"]


def test_subgoals_are_those_of_ogbench_for_its_draws(two_of_five):
    golden = GOLDEN["HGCDataset"]
    random, config = np.random.RandomState(golden["seed"]), golden["config"]
    value = peer_draws(random, config, "value")
    # OGBench draws the distances of high-level goals before the random goals, and has no current goals here.
    distances, rows, choice = random.rand(10), random.randint(10, size=10), random.rand(10)
    actor = GoalDraws(distances, None, choice < config["actor_p_randomgoal"], rows)
    sampler = peer_sampler(config, subgoal_steps=config["subgoal_steps"])
    goals = sampler.goals_of(two_of_five, torch.tensor(golden["idxs"]), value, actor)

    expected = golden["batch"]
    assert goals["value_goal"][:, 0].tolist() == expected["value_goals"]
    assert goals["low_actor_goal"][:, 0].tolist() == expected["low_actor_goals"]
    assert goals["high_actor_goal"][:, 0].tolist() == expected["high_actor_goals"]
    assert goals["high_actor_target"][:, 0].tolist() == expected["high_actor_targets"]
    assert "actor_goal" not in goals


def test_the_target_on_the_way_to_a_random_goal_stays_in_the_trajectory():
    buffer = ring(steps([5, 5]), GoalSampler(actor=(0, 0, 1), subgoal_steps=2))
    draws = GoalDraws(np.zeros(2), None, np.ones(2, bool), np.array([9, 0]))
    goals = buffer.sampler.goals_of(buffer.storage, torch.tensor([3, 5]), draws, draws)

    assert goals["high_actor_goal"].flatten().tolist() == [9, 0]
    assert goals["high_actor_target"].flatten().tolist() == [4, 7]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("interpolate", {1: 1 / 6, 2: 1 / 3, 3: 1 / 3, 4: 1 / 6}),
        ("future", {1: 1 / 4, 2: 1 / 4, 3: 1 / 4, 4: 1 / 4}),
        ("final", {4: 1.0}),
        ("episode", {0: 1 / 5, 1: 1 / 5, 2: 1 / 5, 3: 1 / 5, 4: 1 / 5}),
    ],
)
def test_each_strategy_has_its_distribution(strategy, expected):
    """The distribution of the goals of the first of five steps, by a regular grid instead of random numbers."""
    buffer = ring(steps([5, 3]), GoalSampler(0, 1, 0, strategy=strategy, actor=None))
    grid = (np.arange(6000) + 0.5) / 6000
    goals = buffer.sampler.goals_of(buffer.storage, torch.zeros(6000, dtype=torch.int64), GoalDraws(grid))
    values, counts = goals["value_goal_index"].unique(return_counts=True)

    assert dict(zip(values.tolist(), (counts / 6000).tolist(), strict=True)) == pytest.approx(expected, abs=2e-3)


def test_geometric_goals_have_the_geometric_distribution():
    torch.manual_seed(0)
    sampler = GoalSampler(0, 1, 0, 0.5, actor=None)
    buffer = ring(steps([100]), sampler)
    batch = buffer.sample(20_000)
    ahead = (batch["value_goal"] - batch["observation"])[batch["observation"] < 80]

    assert float(ahead.min()) == 1
    for count in (1, 2, 3):
        assert float((ahead == count).float().mean()) == pytest.approx(0.5**count, abs=0.02)


def test_probabilities_choose_between_current_trajectory_and_random_goals():
    torch.manual_seed(0)
    batch = ring(steps([50, 50_000]), GoalSampler(0.2, 0.5, 0.3, 0.9, actor=None)).sample(20_000)
    ahead = (batch["value_goal"] - batch["observation"]).flatten()

    assert float((ahead == 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    assert float(((ahead > 0) & (ahead < 200)).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert torch.equal(batch["reward"].flatten(), (ahead == 0).float() - 1)
    assert torch.equal(batch["mask"].flatten(), (ahead != 0).float())


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_probability_of_one_gives_goals_of_one_kind(kind):
    probabilities = [float(kind == number) for number in range(3)]
    batch = ring(steps([5, 5]), GoalSampler(*probabilities, strategy="final", actor=None)).sample(200)
    goals = [batch["observation"], batch["observation"] // 5 * 5 + 4]

    if kind == 2:
        assert set(batch["value_goal"].flatten().tolist()) == set(range(10))
    else:
        assert torch.equal(batch["value_goal"], goals[kind])


def test_final_states_are_goals_on_request_only():
    """Final states are negative here."""
    data = steps([3, 1, 4])
    assert not (ring(data, GoalSampler(0, 1, 0, strategy="final")).sample(100)["value_goal"] < 0).any()

    sampler = GoalSampler(0, 1, 0, strategy="final", final_states=True, reward="next", negative=False, actor=None)
    batch = ring(data, sampler).sample(100)
    assert (batch["value_goal"] <= 0).all()
    assert batch["value_goal_final"].all()
    assert set(batch["value_goal_index"].tolist()) == {2, 3, 7}
    assert torch.equal(batch["reward"].bool(), batch["next", "done"])
    assert torch.equal(
        batch["value_goal"][batch["reward"].bool()], batch["next", "observation"][batch["reward"].bool()]
    )


def test_a_next_state_that_is_the_goal_is_a_success_if_rewards_are_those_of_next_states():
    torch.manual_seed(0)
    sampler = GoalSampler(0.2, 0.8, 0, strategy="future", final_states=True, reward="next", negative=False)
    batch = ring(steps([4, 2, 5]), sampler).sample(500)

    assert torch.equal(batch["reward"].bool(), batch["value_goal"] == batch["next", "observation"])


def test_an_unknown_final_state_is_no_goal(tmp_path):
    storage = DatasetStorage(write_dataset(tmp_path, [trajectory(3), trajectory(4, known=False)]))
    sampler = GoalSampler(0, 1, 0, strategy="final", final_states=True, actor=None)
    rows, info = sampler.sample(storage, 200)

    assert torch.equal(info["value_goal_final"], rows < 3)


def test_a_ring_that_has_wrapped_has_goals_of_the_same_trajectory():
    """Rows 0 to 3 hold steps 10 to 13: the trajectory of steps 8 to 12 is in rows 8, 9, 0, 1 and 2."""
    buffer = ring(steps([8, 5, 5]), GoalSampler(0, 1, 0, strategy="future"), size=10)
    buffer.extend(steps([2], first=18))
    batch = buffer.sample(300)
    ends = {**dict.fromkeys(range(8, 13), 12), **dict.fromkeys(range(13, 18), 17), 18: 19, 19: 19}

    for name in ("value_goal", "actor_goal"):
        assert torch.equal(buffer.storage[batch[f"{name}_index"]]["observation"], batch[name])
        for number, goal in zip(batch["observation"].flatten().tolist(), batch[name].flatten().tolist(), strict=True):
            assert min(number + 1, ends[number]) <= goal <= ends[number]


def test_another_sampler_may_choose_the_steps():
    data = steps([6, 6])
    buffer = ring(data, GoalSampler(geometric=0.9, sampler=PrioritizedSampler(12, 1.0, 1.0)))
    buffer.update_priority(torch.arange(12), torch.tensor([1.0] + [0.0] * 11) + 1e-12)
    batch = buffer.sample(50)
    assert set(batch["index"].tolist()) == {0}
    assert "priority_weight" in batch.keys()  # noqa: SIM118 - a TensorDict iterates over its steps

    batch = ring(data, GoalSampler(0, 1, 0, strategy="final", sampler=SliceSampler(slice_len=3))).sample(12)
    assert batch["observation"].reshape(4, 3).diff(dim=1).eq(1).all()
    assert batch["value_goal"].remainder(6).eq(5).all()


def test_priorities_are_those_of_the_sampler_of_the_steps():
    inner = PrioritizedSampler(12, 1.0, 1.0)
    buffer = ring(steps([6, 6]), GoalSampler(sampler=inner))
    buffer.update_priority(torch.arange(12), 5.0)

    assert buffer.sampler.default_priority == inner.default_priority
    assert buffer.sampler.default_priority > 1


def test_runs_of_batches_have_the_goals_of_single_batches(tmp_path):
    write_dataset(tmp_path, [trajectory(9), trajectory(6)])
    runs = []
    for single in (True, False):
        dataset = load(tmp_path, 4, sampler=GoalSampler(generator=torch.Generator().manual_seed(0)))
        runs.append([dataset.sample() for _ in range(5)] if single else [*dataset.batches(5)])

    assert all((one == other).all() for one, other in zip(*runs, strict=True))


def test_prefetched_batches_and_mixtures_have_goals():
    buffers = [ring(steps([5, 5]), GoalSampler(geometric=0.9)) for _ in range(2)]
    batch = Mixture(*buffers, batch_size=8, prefetch=2).sample()

    assert batch["value_goal"].shape == (8, 1)
    assert batch["mask"].shape == batch["reward"].shape == (8, 1)


def test_invalid_arguments_are_refused():
    for arguments, message in [
        ({"p_current": 0.9}, "sum 1"),
        ({"geometric": 1.0}, r"\(0, 1\)"),
        ({"actor": (1.0, 1.0, 0.0)}, "sum 1"),
        ({"strategy": "past"}, "strategy is 'past'"),
        ({"reward": "last"}, "reward is 'last'"),
        ({"subgoal_steps": 0}, "subgoal_steps is 0"),
        ({"frame_stack": 0}, "frame_stack is 0"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            GoalSampler(**arguments)
    with pytest.raises(UnknownKeyError, match="state"):
        ring(steps([3]), GoalSampler(goal_key="state")).sample(4)


def stacks_of_ogbench(compact, rows, count):
    """Return the stacks of OGBench's `get_stacked_observations` for rows of a compact dataset.

    OGBench takes the last state of an episode for an episode of its own, because its files mark the state before as well.
    """
    (ends,) = np.nonzero(compact["valids"] == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    first = starts[np.searchsorted(starts, rows, side="right") - 1]
    stacks = [compact["observations"][np.maximum(rows - ago, first)] for ago in reversed(range(count))]
    return np.concatenate(stacks, axis=-1)


@pytest.mark.parametrize("subgoal_steps", [None, 2])
def test_stacks_of_goals_and_of_observations_are_those_of_ogbench(tmp_path, subgoal_steps):
    given = [trajectory(2 + number % 6, seed=number) for number in range(30)]
    write_dataset(tmp_path / "toy" / "data", given)
    stacks = CatFrames(3, -1, in_keys=["observation", ("next", "observation")])
    goals = GoalSampler(0.2, 0.5, 0.3, 0.9, final_states=True, frame_stack=3, subgoal_steps=subgoal_steps)
    dataset = load(tmp_path / "toy" / "data", 300, sampler=goals, transform=stacks)
    compact = dataset.as_dict("ogbench", compact=True)

    def compact_rows(rows, final):
        return rows.numpy() + dataset.storage.episodes.episode_of(rows.numpy()) + np.asarray(final)

    torch.manual_seed(0)
    batch = dataset.sample()
    names = ["value_goal", *(["actor_goal"] if subgoal_steps is None else SUBGOALS)]
    for name in names:
        rows = compact_rows(batch[f"{name}_index"], batch[f"{name}_final"])
        assert np.array_equal(batch[name].numpy(), stacks_of_ogbench(compact, rows, 3)), name
    assert batch["value_goal_final"].any()
    assert not batch["value_goal_final"].all()
    for final, key in enumerate(["observation", ("next", "observation")]):
        rows = compact_rows(batch["index"], final)
        assert np.array_equal(batch[key].numpy(), stacks_of_ogbench(compact, rows, 3)), key


def test_images_of_goals_are_stacked_along_their_channels():
    data = steps([3, 4])
    data["observation"], data["next", "observation"] = (
        data.get(key).view(7, 1, 1, 1).repeat(1, 2, 3, 2) for key in ("observation", ("next", "observation"))
    )
    buffer = ring(data, GoalSampler(0, 0, 1, actor=None, frame_stack=3))
    draws = GoalDraws(np.zeros(4), None, np.ones(4, bool), np.array([0, 2, 3, 6]))
    goals = buffer.sampler.goals_of(buffer.storage, torch.tensor([0, 0, 0, 0]), draws)

    assert goals["value_goal"].shape == (4, 2, 3, 6)
    expected = [[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2], [3, 3, 3, 3, 3, 3], [4, 4, 5, 5, 6, 6]]
    assert goals["value_goal"][:, 1, 2].tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"geometric": 0.9},
        {"final_states": True, "reward": "next", "strategy": "future"},
        {"final_states": True, "subgoal_steps": 2, "actor": (0.1, 0.5, 0.4), "strategy": "episode"},
        {"subgoal_steps": 3, "negative": False, "strategy": "final"},
        {"actor": None, "p_current": 1.0, "p_trajectory": 0.0, "p_random": 0.0},
        {"goal_key": "action"},
        {"sampler": lambda: SliceSampler(slice_len=2)},
        {"frame_stack": 3, "geometric": 0.9},
        {"frame_stack": 4, "final_states": True, "subgoal_steps": 2, "actor": (0.1, 0.5, 0.4)},
    ],
    ids=lambda options: ", ".join(map(str, options)) or "default",
)
def test_goals_that_are_read_in_one_pass_equal_those_that_are_located(tmp_path, options, monkeypatch):
    given = [trajectory(2 + number % 6, seed=number, known=number % 3 > 0) for number in range(30)]
    storage = DatasetStorage(write_dataset(tmp_path / "toy" / "data", given))

    def batches():
        torch.manual_seed(0)
        made = {**options, **({"sampler": options["sampler"]()} if "sampler" in options else {})}
        buffer = TensorDictReplayBuffer(storage=storage, sampler=GoalSampler(**made), batch_size=200)
        return [buffer.sample() for _ in range(3)]

    read = batches()
    monkeypatch.setattr(DatasetStorage, "record_access", lambda *_: None)

    for batch, located in zip(read, batches(), strict=True):
        assert set(batch.keys(True, True)) == set(located.keys(True, True))
        for key, value in located.items(True, True):
            assert batch[key].dtype == value.dtype
            assert torch.equal(batch[key], value), key
    goals = GoalSampler(0, 0, 1, actor=None)
    monkeypatch.undo()
    with pytest.raises(IndexError, match="out of range"):
        goals.goals_of(storage, torch.tensor([0]), GoalDraws(np.zeros(1), None, np.ones(1, bool), np.array([10**6])))
