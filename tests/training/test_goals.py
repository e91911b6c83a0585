"""Evaluation on the tasks of an environment with goals, which only the infos of a reset name, as in OGBench."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.training import Episodes, evaluate_tasks, goal_policy, play


class Line(gymnasium.Env):
    """A point on a line, whose goal is the number of the task; only `reset` names it."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = np.zeros(1, np.float32), np.full(1, (options or {}).get("task_id", 1), np.float32)
        return self.place.copy(), {"goal": self.goal}

    def step(self, action):
        self.place = self.place + np.clip(action, -1, 1).astype(np.float32)
        success = bool(np.abs(self.place - self.goal).max() < 0.1)
        return self.place.copy(), float(success), success, False, {"success": success}


@pytest.fixture
def run():
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.wrappers.TimeLimit(Line(), 3)] * 2)

    def episodes(policy, *, number, options):
        return play(envs, policy, [number, number + 1], options=options)

    yield SimpleNamespace(envs=envs, args=SimpleNamespace(tasks=4, dataset="local/line"), play=episodes)
    envs.close()


LEARNER = SimpleNamespace(as_batch=torch.as_tensor)


def test_the_goal_of_a_reset_holds_for_the_episode_and_each_task_has_its_rate_of_success(run):
    found = evaluate_tasks(run, lambda: goal_policy(LEARNER, lambda state, goal: goal - state))

    assert {name: rate for name, rate in found.items() if name.startswith("success_task")} == {
        "success_task1": 100,
        "success_task2": 100,
        "success_task3": 100,
        "success_task4": 0,  # four steps away, in episodes of three
    }
    assert found["success"] == 75


def test_nothing_is_evaluated_without_environments(run):
    run.envs = None

    assert evaluate_tasks(run, lambda: None) == {}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["gcbc", "gc_iql", "hiql"])
def test_an_environment_without_goals_is_refused_before_training(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    main = importlib.import_module(f"datasets_rl.recipes.train.{name}").main
    with pytest.raises(InvalidArgumentError, match=r"has no goals, expected info\['goal'\].*\n.*no_eval=True"):
        main(["--dataset", "demo/pendulum", "--eval-episodes", "1", "--hidden", "8", "--out", str(tmp_path)])

    assert not (tmp_path / "checkpoint.pt").exists()


def test_success_is_not_reported_where_the_environment_does_not_report_it(run):
    run.play = lambda _policy, **_: Episodes(np.zeros(2), None)

    assert "success_task1" not in evaluate_tasks(run, lambda: None)
