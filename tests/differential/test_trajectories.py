"""Bounds of trajectories, and queries for them, with TorchRL and with this library."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from tensordict import TensorDict

import datasets_rl as ours
from datasets_rl.buffers import Sequence

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.data.replay_buffers import samplers as _samplers
    from torchrl.data.replay_buffers import scheduler as _schedulers

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of TorchRL


def test_bounds_of_rings_are_the_same():
    for seed in range(200):
        torch.manual_seed(seed)
        ndim, slots = int(torch.randint(1, 4, ())), int(torch.randint(1, 9, ()))
        shape = [slots, *torch.randint(1, 4, (ndim - 1,)).tolist()]
        signal = {"trajectory": torch.randint(3, shape)} if seed % 3 else {"end": torch.rand(shape) < 0.3}
        cursor = [None, int(torch.randint(slots, ())), range(slots), torch.randint(slots, (3,))][seed % 4]
        arguments = {**signal, "at_capacity": bool(torch.rand(()) < 0.6), "cursor": cursor}
        mine, other = (library.find_start_stop_traj(**arguments) for library in (ours, theirs))

        assert all(torch.equal(one, two) for one, two in zip(mine, other, strict=True)), arguments


def test_windows_of_rings_are_the_same():
    for seed in range(100):
        torch.manual_seed(seed)

        def number(low, high):
            return int(torch.randint(low, high, ()))

        slots, ndim = number(6, 20), 1 + seed % 2
        parts = [number(3, slots + 1), number(1, 6)]
        lead = [3] * (ndim - 1)
        writes = [TensorDict({"next": {"done": torch.rand(*lead, part, 1) < 0.25}}, [*lead, part]) for part in parts]
        anchors = torch.randint(min(slots, sum(parts)), (7,)), torch.randint(3, (7,))
        arguments = {"length": number(1, 6), "burn_in": number(0, 4), "bootstrap": number(0, 3)}
        arguments |= {"dilation": number(1, 4), "episode_boundary": ["pad", "stop", "include_reset"][seed % 3]}
        arguments |= {} if seed % 5 else {"done_key": None}
        results = []
        for library, sequence in ((ours, Sequence), (theirs, theirs.Sequence)):
            rb = library.ReplayBuffer(storage=library.LazyTensorStorage(slots * 3 ** (ndim - 1), ndim=ndim))
            for write in writes:
                rb.extend(write.clone())
            index = anchors[0] if ndim == 1 else anchors if library is ours else torch.stack(anchors, -1)
            index, info = sequence(**arguments).expand(index, {"weight": torch.arange(7.0)}, rb.storage)
            results.append({"index": torch.stack(index, -1) if isinstance(index, tuple) else index, **info})
        mine, other = results

        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[key], other[key]) for key in other), arguments


@pytest.mark.parametrize("by", ["ids", "flags"])
def test_queries_of_a_wrapped_ring_are_the_same(by):
    def program(library):
        rb = library.TensorDictReplayBuffer(storage=library.LazyTensorStorage(30))
        for number in range(9):
            done = torch.arange(5 + number % 3)[:, None] == 4 + number % 3
            data = {"collector": {"traj_ids": torch.full((len(done),), number)}, "reward": torch.rand(len(done), 1)}
            steps = TensorDict({**data, "next": {"done": done}}, [len(done)])
            rb.extend(steps if by == "ids" else steps.exclude("collector"))
        traj = library.traj
        conditions = [None, traj.length > 5, traj.reward.sum() > 3, ~(traj.reward > 0.9).any() | (traj.length == 5)]
        return [[one["reward"].flatten().tolist() for one in rb.query(condition)] for condition in conditions]

    results = []
    for library in (ours, theirs):
        torch.manual_seed(0)
        results.append(program(library))
    assert results[0] == results[1]
    assert len(results[0][0]) > 3


def test_schedules_are_the_same():
    arguments = {
        "LinearScheduler": {"final_value": 1.0, "num_steps": 4},
        "StepScheduler": {"gamma": 0.1, "n_steps": 2, "mode": "additive", "max_value": 0.85},
        "LambdaScheduler": {"lambda_fn": lambda step: 0.9**step, "min_value": 0.4},
    }
    for name, options in arguments.items():
        found = []
        for schedulers, samplers in ((ours, ours), (_schedulers, _samplers)):
            sampler = samplers.RandomSampler()
            sampler.beta = 0.6
            scheduler = getattr(schedulers, name)(sampler, "beta", **options)
            found.append([])
            for _ in range(6):
                scheduler.step()
                found[-1].append(float(sampler.beta))
        assert found[0] == pytest.approx(found[1]), name


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_hindsight_batches_are_the_same_under_a_seed(strategy):
    """Rings that wrapped are left out: TorchRL takes the first goals of such a ring from another episode."""

    def distance(steps):
        return (steps["achieved_goal"] - steps["desired_goal"]).norm(dim=-1, keepdim=True)

    torch.manual_seed(0)
    done = torch.arange(30)[:, None] % 11 == 10
    goals = {"desired_goal": torch.rand(30, 3), "achieved_goal": torch.rand(30, 3)}
    data = TensorDict({**goals, "next": {**goals, "reward": torch.rand(30, 1), "done": done}}, [30])
    batches = []
    for library in (ours, theirs):
        torch.manual_seed(1)
        arguments = {"storage": library.LazyTensorStorage(50), "strategy": strategy, "her_ratio": 0.6}
        rb = library.HERReplayBuffer(distance, **arguments, batch_size=64)
        rb.extend(data.clone())
        batches.append(torch.cat([rb.sample() for _ in range(3)]))
    mine, other = batches

    assert all(torch.equal(mine[key], other[key]) for key in other.keys(include_nested=True, leaves_only=True))


def test_torchrl_takes_goals_of_a_wrapped_ring_from_another_episode():
    """Steps 4 and 5 end an episode; steps 6 to 13 are the next one, which continues at the start of the ring."""

    def program(library):
        t = torch.arange(14)
        goals = {"desired_goal": -torch.ones(14, 1), "achieved_goal": t.float()[:, None]}
        following = {"reward": torch.zeros(14, 1), "done": ((t == 5) | (t == 13))[:, None]}
        arguments = {"storage": library.LazyTensorStorage(10), "strategy": "final", "her_ratio": 1.0}
        rb = library.HERReplayBuffer(lambda steps: torch.zeros(len(steps), 1), **arguments, batch_size=200)
        for part in TensorDict({"t": t, **goals, "next": following}, [14]).split([10, 4]):
            rb.extend(part.clone())
        batch = rb.sample()
        return set(zip(batch["t"].tolist(), batch["desired_goal"][:, 0].int().tolist(), strict=True))

    mine, other = program(ours), program(theirs)
    assert mine == {(4, 5), (5, 5), *((step, 13) for step in range(6, 14))}
    assert mine - other == {(step, 13) for step in range(6, 10)}
    assert other - mine == {(step, 5) for step in range(6, 10)}


def test_torchrl_copies_steps_of_a_dataset_with_replacement():
    """Here, a whole dataset is copied in its order, and keeps its episodes."""

    def program(library, prefill):
        torch.manual_seed(0)
        source, target = (library.ReplayBuffer(storage=library.LazyTensorStorage(50)) for _ in range(2))
        source.extend(TensorDict({"t": torch.arange(50)}, [50]))
        return prefill(target, source)[:]["t"].tolist()

    assert program(ours, ours.prefill_replay_buffer) == list(range(50))
    copied = program(theirs, theirs.prefill_replay_buffer)
    assert len(copied) == 50
    assert len(set(copied)) < 50


def test_an_end_flag_divides_an_id_and_torchrl_ignores_it():
    """An episode that ends cannot continue, whatever its id says."""

    def program(library):
        rb = library.TensorDictReplayBuffer(storage=library.LazyTensorStorage(6))
        done = torch.arange(6)[:, None] == 2
        rb.extend(TensorDict({"episode": torch.zeros(6, dtype=torch.int64), "next": {"done": done}}, [6]))
        return [one.length for one in rb.query()]

    assert program(ours) == [3, 3]
    assert program(theirs) == [6]
