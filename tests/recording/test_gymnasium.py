"""Recording the episodes of Gymnasium environments."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from datasets_rl import RecordEpisodes, RecordVectorEpisodes, load, verify


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))


class Counter(gymnasium.Env):
    """An environment whose observation is the number of steps and whose episodes have 2, 3, 4, ... steps in turn."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, offset=0):
        self.offset, self.length = offset, 1

    def reset(self, *, seed=None, options=None):
        """Start an episode that is longer than the one before by a step."""
        super().reset(seed=seed, options=options)
        self.length, self.time = self.length + 1, 0
        return self._observation(), {"time": 0}

    def _observation(self):
        return np.array([self.offset + self.time], np.float32)

    def step(self, action):
        """Count a step; the reward is the action."""
        self.time += 1
        return self._observation(), float(action), self.time == self.length, False, {"time": self.time}


def test_an_environment_is_recorded_with_its_spaces_seeds_and_specification():
    env = RecordEpisodes(gymnasium.make("Pendulum-v1", max_episode_steps=4), "local/a")
    seen = []
    for seed in (3, None):
        observation, _ = env.reset(seed=seed)
        seen.append(observation)
        for _ in range(4):
            observation, *_ = env.step(env.action_space.sample())
            seen.append(observation)
    env.reset()
    env.close()

    dataset = load("local/a")
    data = dataset[:]
    assert np.array_equal(data["observation"], np.stack([*seen[:4], *seen[5:9]]))
    assert np.array_equal(data["next", "observation"], np.stack([*seen[1:5], *seen[6:]]))
    assert dataset.episodes["seed"].tolist() == [3, -1]
    assert data["next", "truncated"][:, 0].tolist() == [False, False, False, True] * 2
    assert json.loads(dataset.metadata["env_spec"])["id"] == "Pendulum-v1"
    assert dataset.stored.manifest.specs["action"] == {
        "kind": "bounded",
        "shape": [1],
        "dtype": "float32",
        "low": -2.0,
        "high": 2.0,
    }
    assert verify("local/a", deep=True).problems == ()


def test_an_episode_that_a_reset_interrupts_is_truncated_there():
    env = RecordEpisodes(Counter(), "local/a", infos=["time"])
    env.reset()
    env.step(1)
    env.reset()
    for _ in range(3):
        env.step(2)
    env.close()

    data = load("local/a")[:]
    assert data["next", "truncated"][:, 0].tolist() == [True, False, False, False]
    assert data["next", "terminated"][:, 0].tolist() == [False, False, False, True]
    assert data["next", "info", "time"].tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_are_recorded_without_the_steps_that_reset_them(mode):
    envs = gymnasium.vector.SyncVectorEnv([lambda: Counter(0), lambda: Counter(50)], autoreset_mode=mode)
    env = RecordEpisodes(envs, "local/a", infos=["time"])
    assert isinstance(env, RecordVectorEpisodes)
    env.reset(seed=5)
    ended = np.zeros(2, bool)
    for _ in range(6):
        if mode is AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})
        _, _, terminated, truncated, _ = env.step(np.array([1, 2]))
        ended = terminated | truncated
    env.close()

    dataset = load("local/a")
    steps = 6 - 1 if mode is AutoresetMode.NEXT_STEP else 6
    assert sorted(dataset.episodes.lengths.tolist()) == sorted([2, 3, steps - 5] * 2) if steps > 5 else [2, 2, 3, 3]
    assert dataset.episodes["seed"][:2].tolist() == [5, 6]
    for episode in dataset.episodes:
        data = dataset[episode.start : episode.stop]
        time = np.arange(episode.stop - episode.start)
        first = data["observation"][0].item()
        assert first in {0, 50}
        assert np.array_equal(data["observation"][:, 0], first + time)
        assert np.array_equal(data["next", "observation"][:, 0], first + time + 1)
        assert np.array_equal(data["next", "info", "time"], time + 1)
        assert set(data["action"].tolist()) == {1 if first == 0 else 2}
    assert verify("local/a", deep=True).problems == ()
