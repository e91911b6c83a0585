"""Every way to store a dataset gives rewards in floating point: float64 stays, all other dtypes become float32."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from raw import minari
from tensordict import TensorDict

from datasets_rl import EpisodeWriter, Recipe, RecordEpisodes, append_episodes, download, load, verify
from datasets_rl.errors import ConversionError, InvalidArgumentError, ManifestError
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing import preprocess
from datasets_rl.preprocessing.base import Step

NUMBERS = {
    "bool": [False, True, True, False, True],
    "uint8": [200, 100, 0, 3, 255],
    "uint32": [0, 1, 2**24, 3, 7],
    "int64": [-3, 0, 5, -(2**24), 700],
    "float16": [0.5, -2, 1 / 3, 0, 4],
    "float32": [0.1, -2, 3, 0, 4],
    "float64": [0.1, -2, 3, 0, 4],
}
"""Rewards of two episodes, of three and of two steps."""
EACH = pytest.mark.parametrize("dtype", NUMBERS)
ENDS = np.array([0, 0, 1, 0, 1], bool)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))


def rewards_of(dtype):
    return np.array(NUMBERS[dtype]).astype(dtype)


def check(dataset_id, rewards, *, repeats=1):
    """Check the rewards of a stored dataset in its batches, its schema, its specs, its episode table and its statistics."""
    dataset = load(dataset_id, download=False)
    expected = np.tile(rewards.astype(np.float64), repeats)
    wanted = np.dtype("float64" if rewards.dtype == np.float64 else "float32")
    found = dataset[:]["next", "reward"]

    assert str(found.dtype) == f"torch.{wanted.name}"
    assert found[:, 0].tolist() == expected.astype(wanted).tolist()
    assert dataset.stored.schema["next", "reward"].dtype == wanted
    assert dataset.stored.manifest.specs["next.reward"]["dtype"] == wanted.name
    assert dataset.specs["next", "reward"].dtype == found.dtype
    returns = [part.sum() for part in np.split(expected, np.flatnonzero(np.tile(ENDS, repeats))[:-1] + 1)]
    assert dataset.episodes["return"].tolist() == pytest.approx(returns)
    assert dataset.stored.manifest.statistics["next.reward"]["mean"] == pytest.approx([expected.mean()])
    assert verify(dataset_id, deep=True).problems == ()


def columns(rewards):
    return {
        "observation": np.arange(10, dtype=np.float32).reshape(5, 2),
        "action": np.zeros((5, 1), np.float32),
        "reward": rewards,
        "done": ENDS,
    }


def write_npz(folder, rewards):
    np.savez(folder / "steps.npz", **columns(rewards))


def write_hdf5(folder, rewards):
    with h5py.File(folder / "steps.hdf5", "w") as file:
        for name, values in columns(rewards).items():
            file[name] = values


def write_parquet(folder, rewards):
    table = {
        name: values.tolist() if values.ndim > 1 else pa.array(values) for name, values in columns(rewards).items()
    }
    parquet.write_table(pa.table(table), folder / "steps.parquet")


@pytest.mark.first(7)
@EACH
@pytest.mark.parametrize("write", [write_npz, write_hdf5, write_parquet])
def test_files_of_the_user(tmp_path, dtype, write):
    rewards = rewards_of(dtype)
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder, rewards)
    (folder / "dataset.toml").write_text('name = "Gripper"')
    download("local/gripper", from_local=folder)

    check("local/gripper", rewards)


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32", "bool"])
def test_minari(tmp_path, dtype):
    rewards = rewards_of(dtype)
    space = minari.SPACES["box"]
    given = minari.episodes(space, (3, 2))
    given = [
        minari.Given(
            one.observations, one.actions, part.tolist(), one.terminations, one.truncations, one.infos, one.seed
        )
        for one, part in zip(given, np.split(rewards, [3]), strict=True)
    ]
    written = minari.write(tmp_path / "cache", "lab/steps-v0", given, space=space)
    with h5py.File(next(written.rglob("main_data.hdf5")), "r") as file:
        stored = file["episode_0/rewards"].dtype
    download("minari/lab/steps-v0", from_local=written)

    assert stored == ("float64" if dtype.startswith("float") else dtype)
    check("minari/lab/steps-v0", rewards.astype(stored))


def transitions(rewards):
    """Return the five steps as a TensorDict [5]."""
    states = torch.arange(12.0).reshape(6, 2)
    return TensorDict(
        {
            "observation": states[:-1],
            "action": torch.zeros(5, 1),
            "next": {
                "observation": states[1:],
                "reward": rewards[:, None],
                "done": torch.from_numpy(ENDS.copy())[:, None],
            },
        },
        [5],
    )


@EACH
def test_appended_transitions_and_datasets(dtype):
    rewards = rewards_of(dtype)
    append_episodes("local/a", transitions(torch.from_numpy(rewards)))
    check("local/a", rewards)
    append_episodes("local/a", "local/a", again=True)
    check("local/a", rewards, repeats=2)


def test_appended_transitions_of_bfloat16():
    rewards = torch.tensor([0.5, -2, 0.25, 0, 4], dtype=torch.bfloat16)
    append_episodes("local/a", transitions(rewards))

    check("local/a", rewards.float().numpy())


def test_integers_fit_a_dataset_of_floats():
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("float32"))))
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("uint8"))))

    found = load("local/a")[:]["next", "reward"][:, 0].tolist()
    assert found == [*rewards_of("float32").tolist(), *NUMBERS["uint8"]]


@pytest.mark.parametrize("kind", [lambda value: value, torch.tensor, lambda value: torch.tensor([value]).bfloat16()])
def test_recorded_steps(kind):
    rewards = [True, 3, 0.5, -2, 0]
    with EpisodeWriter("local/robot") as writer:
        for step, reward in enumerate(rewards):
            if step in {0, 3}:
                writer.start(np.zeros(2, np.float32))
            writer.step(np.zeros(1, np.float32), np.ones(2, np.float32), kind(reward), terminated=bool(ENDS[step]))

    check("local/robot", np.array(rewards, np.float32))


class Counting(gymnasium.Env):
    """An environment whose rewards are integers."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **options):
        del options
        self.count = -1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        del action
        self.count += 1
        return np.zeros(2, np.float32), self.count * 3 - 3, self.count == 2, False, {}


def test_recorded_environments():
    with RecordEpisodes(Counting(), "local/counting") as env:
        env.reset()
        for _ in range(3):
            env.step(0)

    assert load("local/counting")[:]["next", "reward"].tolist() == [[-3], [0], [3]]
    assert load("local/counting")[:]["next", "reward"].dtype == torch.float32


@dataclass
class IntegerRewards(Step):
    """A step of a user that returns integers."""

    def __call__(self, batch):
        steps = {**batch.steps, ("next", "reward"): np.arange(batch.count)[:, None]}
        return type(batch)(batch.lengths, steps, batch.states, batch.final_states, batch.final_known, batch.metadata)


def with_integers(steps):
    return steps.set(("next", "reward"), torch.full((1,), 3))


@pytest.mark.parametrize("step", [IntegerRewards(), with_integers], ids=["step", "function"])
def test_recipes_whose_steps_return_integers(step):
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("float32"))))
    result = load("local/a").derive(Recipe([step]), name="b")

    rewards = result[:]["next", "reward"]
    assert rewards.dtype == torch.float32
    assert rewards[:, 0].tolist() == ([0, 1, 2, 3, 4] if isinstance(step, Step) else [3] * 5)


def test_a_cast_leaves_rewards_in_a_dtype_that_sums_can_use():
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("float32"))))
    result = load("local/a").derive(Recipe.inline(["cast:float16"]), name="half")[:]

    assert result["observation"].dtype == torch.float16
    assert result["next", "reward"][:, 0].tolist() == rewards_of("float32").tolist()
    with pytest.raises(InvalidArgumentError, match=r"next\.reward cannot become float16, expected float32 or float64"):
        Recipe.inline(["cast:float16,next.reward"])


def test_merged_datasets_of_different_dtypes(tmp_path):
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("uint8"))))
    append_episodes("local/b", transitions(torch.from_numpy(rewards_of("bool"))))
    preprocess([load(name).data_path for name in ("local/a", "local/b")], Recipe([]), out=tmp_path / "both")

    found = load(tmp_path / "both")[:]["next", "reward"]
    assert found.dtype == torch.float32
    assert found[:, 0].tolist() == [*NUMBERS["uint8"], *NUMBERS["bool"]]


def test_integers_that_float32_would_round_are_refused_by_name(tmp_path):
    rewards = np.array([0, 1, 2**24 + 1, 3, 7])
    message = r"next\.reward.*: its int64 values are between 0 and 16,777,217"
    with pytest.raises(ConversionError, match=message):
        append_episodes("local/a", transitions(torch.from_numpy(rewards)))
    with EpisodeWriter("local/b") as writer:
        writer.start(np.zeros(2))
        with pytest.raises(ConversionError, match="give rewards as float64"):
            writer.step(np.zeros(1), np.zeros(2), 2**24 + 1)
    write_npz(tmp_path, rewards)
    (tmp_path / "dataset.toml").write_text('name = "Gripper"')
    with pytest.raises(ConversionError, match=message):
        download("local/gripper", from_local=tmp_path)

    append_episodes("local/a", transitions(torch.from_numpy(rewards.astype(np.float64))))
    check("local/a", rewards.astype(np.float64))


def test_a_manifest_with_integer_rewards_is_refused():
    append_episodes("local/a", transitions(torch.from_numpy(rewards_of("float64"))))
    folder = load("local/a").data_path
    document = Manifest.read(folder).to_json()
    for field in document["schema"]:
        field["dtype"] = "<i8" if field["key"] == ["next", "reward"] else field["dtype"]

    with pytest.raises(ManifestError, match=r"next\.reward is int64 \[1\], expected float32 or float64 \[1\]"):
        Manifest.from_json(document)
