"""Pickles and expert files of users: structures that are certain, and programs that convert pickles with objects."""

from __future__ import annotations

import collections
import importlib
import json
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from layouts import (
    ACTION,
    ACTIONS,
    EPISODES,
    LAST,
    LENGTHS,
    NEXT_OBS,
    OBS,
    REWARD,
    REWARDS,
    STATES,
    STEPS,
    TERMINATED,
    TRUNCATED,
    padded,
)
from layouts_tables import OF_EPISODE, TUPLES, objects

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.local.files import check_files


def arrays_of(path, value):
    path.write_bytes(pickle.dumps(value))
    with open_arrays(path, "pickle", path.name) as file:
        return {name: file.read_all(name) for name in file.arrays}


def test_the_steps_of_each_episode_are_an_episode(tmp_path):
    lists = arrays_of(tmp_path / "a.pkl", [[TUPLES[row] for row in rows] for rows in OF_EPISODE])

    for number, rows in enumerate(OF_EPISODE):
        np.testing.assert_array_equal(lists[f"episode_{number}/observation"], OBS[rows])
        np.testing.assert_array_equal(lists[f"episode_{number}/next_observation"], NEXT_OBS[rows])
        np.testing.assert_array_equal(lists[f"episode_{number}/reward"], REWARD[rows])
        np.testing.assert_array_equal(lists[f"episode_{number}/done"], LAST[rows])


def test_tuples_of_six_have_both_flags(tmp_path):
    steps = [(*one[:4], bool(end), bool(cut)) for one, end, cut in zip(TUPLES, TERMINATED, TRUNCATED, strict=True)]

    values = arrays_of(tmp_path / "a.pkl", steps)

    np.testing.assert_array_equal(values["terminated"], TERMINATED)
    np.testing.assert_array_equal(values["truncated"], TRUNCATED)


def test_tuples_of_several_observations_are_steps(tmp_path):
    steps = [({"x": o}, a, r, {"x": n}, d) for o, a, r, n, d in TUPLES]
    values = arrays_of(tmp_path / "a.pkl", steps)
    np.testing.assert_array_equal(values["next_observation/x"], NEXT_OBS)
    with pytest.raises(ConversionError, match="expected a step"):
        arrays_of(tmp_path / "a.pkl", [({"x": o}, a, r, {"y": n}, d) for o, a, r, n, d in TUPLES])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([TUPLES[:2], [*TUPLES[2:4], (1, 2)]], "expected a list of dicts, or of tuples"),
        ([TUPLES[:4], []], "expected a list of dicts, or of tuples"),
        ([[(o, a, r, d, n) for o, a, r, n, d in TUPLES]], "expected a step"),
        ([(o, a) for o, a, *_ in TUPLES], "expected a list of dicts, or of tuples"),
        ([[*TUPLES[:2], (*TUPLES[2][:4], False, True)]], "differs from the first element"),
        ({"obs": [OBS[:4], OBS[4:]], "actions": [ACTION[:4], ACTION[4:10], ACTION[10:]]}, "expected an array for each"),
    ],
)
def test_steps_of_other_kinds_are_refused(tmp_path, value, problem):
    with pytest.raises(ConversionError, match=problem):
        arrays_of(tmp_path / "a.pkl", value)


def test_names_without_numbers_are_refused_until_they_are_stated_as_episodes(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(dict(zip(("left", "right", "both"), EPISODES, strict=True))))
    with pytest.raises(ConversionError, match="which array is the observation"):
        check_files(tmp_path / "a.pkl")
    (tmp_path / "dataset.toml").write_text('[episodes]\nby = "group"\narray = "*"')
    assert check_files(tmp_path).steps == STEPS


@pytest.mark.parametrize("name", ["a.pkl", "a.json"])
def test_integers_that_floats_do_not_hold_are_not_rounded(tmp_path, name):
    value = {"obs": [2**53 + 1, 0.5], "actions": [1, 2], "rewards": [2.0**60, 1e300], "dones": [0, 1]}
    (tmp_path / name).write_bytes(json.dumps(value).encode() if name == "a.json" else pickle.dumps(value))
    with pytest.raises(ConversionError, match="which array is the observation"):
        check_files(tmp_path / name)
    value["obs"] = [2**60, 0.5]
    (tmp_path / name).write_bytes(json.dumps(value).encode() if name == "a.json" else pickle.dumps(value))
    with open_arrays(tmp_path / name, "json" if name == "a.json" else "pickle", name) as file:
        assert file.read_all("obs").tolist() == [2**60, 0.5]


def test_a_dict_with_defaults_is_a_dict(tmp_path):
    runs = collections.defaultdict(list)
    for episode in EPISODES:
        for name, values in episode.items():
            runs[name].append(values)
    values = arrays_of(tmp_path / "a.pkl", runs)
    assert len(values["episode_1/observations"]) == LENGTHS[1]
    nested = collections.defaultdict(dict, {"episode_0": EPISODES[0], "episode_1": EPISODES[1]})
    assert len(arrays_of(tmp_path / "a.pkl", nested)) == 8
    with pytest.raises(ConversionError, match="is not allowed"):
        arrays_of(tmp_path / "a.pkl", collections.defaultdict(np.zeros))


TENSORS = {
    "obs": torch.tensor(OBS),
    "action": torch.tensor(ACTION),
    "reward": torch.tensor(REWARD),
    "done": torch.tensor(LAST),
}
KINDS = """
import collections, dataclasses
Step = collections.namedtuple("Step", "obs action reward done")

@dataclasses.dataclass
class Transition:
    obs: object
    action: object
    reward: float
    done: bool
"""
OBJECTS = {
    "a namedtuple": lambda kinds: [kinds.Step(o, a, float(r), d) for o, a, r, _, d in TUPLES],
    "a dataclass": lambda kinds: [kinds.Transition(o, torch.tensor(a), float(r), d) for o, a, r, _, d in TUPLES],
    "tensors": lambda _: TENSORS,
    "a frame": lambda _: pd.DataFrame({"obs": [*OBS], "action": [*ACTION], "reward": REWARD, "done": LAST}),
}


def converted(tmp_path, error):
    """Run the program of a hint, and return what the only new file gives."""
    program = str(error.hint).split("\n\n")[1]
    assert len(program.strip().splitlines()) == 3
    before = {*tmp_path.iterdir()}
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (new,) = {*tmp_path.iterdir()} - before
    return new


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["a frame", "a dataclass", "a namedtuple", "tensors"])
def test_a_pickle_of_objects_is_refused_with_a_program_that_converts_it(tmp_path, name, monkeypatch):
    (tmp_path / "kinds.py").write_text(KINDS)
    monkeypatch.syspath_prepend(tmp_path)
    kinds = importlib.import_module("kinds")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(OBJECTS[name](kinds)))
    del sys.modules["kinds"]
    with pytest.raises(ConversionError, match="is not allowed") as caught:
        check_files(tmp_path / "a.pkl")

    new = converted(tmp_path, caught.value)

    found = check_files(new)
    assert (found.steps, found.episodes) == (STEPS, 3)
    with open_arrays(new, "pickle" if new.suffix == ".pkl" else "parquet", new.name) as file:
        np.testing.assert_array_equal(file.read_all("obs"), OBS)
        np.testing.assert_array_equal(file.read_all("action"), ACTION)


@pytest.mark.first(1)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_refused_with_a_program_that_converts_it(tmp_path, zipped):
    torch.save(TENSORS, tmp_path / "a.pkl", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ConversionError, match=r"torch\.save wrote the file") as caught:
        check_files(tmp_path / "a.pkl")
    assert check_files(converted(tmp_path, caught.value)).episodes == 3


BUFFERS = '''
class ReplayBuffer:
    """The attributes of stable-baselines3 2.9."""
'''


@pytest.mark.slow
def test_the_line_that_a_refusal_of_a_checkpoint_has_for_tensors_runs(tmp_path):
    torch.save(TENSORS, tmp_path / "a.pt")
    with pytest.raises(ConversionError, match="a checkpoint of a policy or a network") as caught:
        check_files(tmp_path / "a.pt")
    program = str(caught.value.hint).split('python -c "')[1].partition('"`')[0].replace("NAME", "a.pt")
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert check_files(tmp_path / "episodes.pkl").episodes == 3


@pytest.mark.first(1)
@pytest.mark.parametrize("size", [10, 64])
def test_a_buffer_of_stable_baselines3_is_refused_with_a_program_that_converts_it(tmp_path, monkeypatch, size):
    package = tmp_path / "packages" / "stable_baselines3" / "common"
    package.mkdir(parents=True)
    (package / "buffers.py").write_text(BUFFERS)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    draw = np.random.default_rng(0)
    steps, copies = 24, 2
    obs = draw.normal(size=(steps + 1, copies, 3)).astype(np.float32)
    ends = np.zeros((steps, copies), np.float32)
    ends[[4, 11, 20], [0, 1, 0]] = 1
    after = obs[1:].copy()
    after[ends == 1] += 1  # the first state of the next episode is another state
    cut = ends * (np.arange(steps)[:, None] == 11)
    buffer = buffers.ReplayBuffer()
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    columns = (obs[:-1], after, draw.normal(size=(steps, copies, 2)), draw.normal(size=(steps, copies)), ends, cut)
    for name, values in zip(names, columns, strict=True):
        stored = np.zeros((size, *values.shape[1:]), np.float32)
        for row in range(steps):
            stored[row % size] = values[row]
        setattr(buffer, name, stored)
    buffer.pos, buffer.full, buffer.buffer_size = steps % size if size < steps else steps, size < steps, size
    (tmp_path / "replay_buffer.pkl").write_bytes(pickle.dumps(buffer))
    for module in [name for name in sys.modules if name.startswith("stable_baselines3")]:
        del sys.modules[module]
    with pytest.raises(ConversionError, match="ReplayBuffer is not allowed") as caught:
        check_files(tmp_path / "replay_buffer.pkl")

    new = converted(tmp_path, caught.value)

    kept = min(size, steps)
    with np.load(new) as values:
        for name, array in zip(names[:4], columns[:4], strict=True):
            own = array[-kept:].swapaxes(0, 1)
            np.testing.assert_array_equal(values[name], own.reshape(-1, *own.shape[2:]).astype(np.float32))
    found = check_files(new)
    marked = ends[-kept:].sum() + copies
    assert (found.steps, found.episodes) == (kept * copies, marked)


def expert(**arrays):
    whole = {
        "obs": padded([states[:-1] for states in STATES]),
        "acs": padded(ACTIONS),
        "rews": padded(REWARDS),
        "ep_rets": np.array([rewards.sum() for rewards in REWARDS]),
    }
    return {**whole, **arrays}


def test_an_expert_file_of_equal_lengths_has_the_returns_as_evidence(tmp_path):
    draw = np.random.default_rng(1)
    whole = {"obs": draw.normal(size=(3, 5, 2)), "acs": draw.normal(size=(3, 5, 1)), "rews": draw.normal(size=(3, 5))}
    np.savez(tmp_path / "a.npz", **whole, ep_rets=whole["rews"].sum(1))
    found = check_files(tmp_path / "a.npz")
    assert (found.episodes, found.lengths["min"], found.description.by) == (3, 5, "axis")

    np.savez(tmp_path / "a.npz", **whole, ep_rets=whole["rews"].sum(1) + 1)
    with pytest.raises(ConversionError, match="the second axis may count rows, or agents"):
        check_files(tmp_path / "a.npz")


@pytest.mark.parametrize("last", ["zeros", "repeated"])
def test_padding_of_an_expert_file_is_refused_until_the_lengths_are_stored(tmp_path, last):
    arrays = expert()
    if last == "repeated":
        for number, length in enumerate(LENGTHS):
            for name in ("obs", "acs"):
                arrays[name][number, length:] = arrays[name][number, length - 1]
        arrays["rews"][:, -2:] = 0
        arrays["ep_rets"] = arrays["rews"].sum(1)
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ConversionError, match="which may be padding") as caught:
        check_files(tmp_path / "a.npz")
    assert "lengths" in str(caught.value.hint)

    np.savez(tmp_path / "a.npz", **arrays, lengths=LENGTHS)
    assert check_files(tmp_path / "a.npz").steps == STEPS


def test_arrays_of_objects_of_equal_episodes_are_arrays_of_numbers(tmp_path):
    draw = np.random.default_rng(1)
    obs, acs = draw.normal(size=(3, 5, 2)), draw.normal(size=(3, 5, 1))
    np.savez(tmp_path / "a.npz", obs=obs.astype(object), acs=acs.astype(object), lengths=[5, 5, 5])
    with open_arrays(tmp_path / "a.npz", "npz", "a.npz") as file:
        np.testing.assert_array_equal(file.read_all("obs"), obs)


def test_arrays_of_objects_that_are_not_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", obs=objects([{"a": 1}, {"b": 2}]), acs=np.ones(2))
    with pytest.raises(ConversionError, match="which array is the observation"):
        check_files(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", obs=objects([OBS[:4], OBS[4:]]), acs=objects([ACTION[:4], ACTION[4:9]]))
    with pytest.raises(ConversionError, match="in episode 1"):
        check_files(tmp_path / "a.npz")


def dataset_of_d3rlpy(path, **more):
    with h5py.File(path, "w") as file:
        for name, values in {
            "observations": OBS,
            "actions": ACTION,
            "rewards": REWARD,
            "terminals": TERMINATED.astype(np.float32),
            "episode_terminals": LAST.astype(np.float32),
            "discrete_action": False,
            **more,
        }.items():
            file[name] = values


def test_a_dataset_of_d3rlpy_0_is_refused_until_the_alignment_is_stated(tmp_path):
    dataset_of_d3rlpy(tmp_path / "a.h5", create_mask=False, mask_size=1)
    with pytest.raises(ConversionError, match=r"d3rlpy 0\.x wrote the file"):
        check_files(tmp_path / "a.h5")
    (tmp_path / "dataset.toml").write_text('alignment = "same-row"')
    assert check_files(tmp_path).episodes == 3


def test_a_moved_end_of_a_dataset_of_d3rlpy_is_refused(tmp_path):
    ends = LAST.astype(np.float32)
    ends[[3, 4]] = ends[[4, 3]]
    dataset_of_d3rlpy(tmp_path / "a.h5", episode_terminals=ends)
    with pytest.raises(ConversionError, match="within an episode"):
        check_files(tmp_path / "a.h5")
