"""The lines of docs/in-your-trainer.md that change in the programs of other projects: each gives what the program reads.

The programs are not here. What they do with the lines is done by small functions with the same interface.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import datasets_rl
from datasets_rl import sources
from datasets_rl.testing.stored_data import trajectory, write_dataset

PAGE = Path(datasets_rl.__file__).parents[1] / "docs/in-your-trainer.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def lines(section):
    """Return the lines that replace others in each program of a section."""
    blocks = re.findall(r"^```diff\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    added = (re.findall(r"^\+(.*)$", block, re.MULTILINE) for block in blocks)
    return [textwrap.dedent("\n".join(block)) for block in added]


class Loader:
    """`load` for ids of the catalog, which returns the same small dataset for each."""

    def __init__(self, folder):
        episodes = [trajectory(steps, seed=seed, terminated=seed == 1) for seed, steps in enumerate((4, 3, 6))]
        self.dataset = datasets_rl.load(str(write_dataset(folder / "stored", episodes).folder))
        self.ids = []

    def __call__(self, dataset_id):
        assert sources.find(dataset_id) is not None, dataset_id
        self.ids.append(dataset_id)
        return self.dataset


@pytest.fixture
def load(tmp_path):
    return Loader(tmp_path)


def run(program, load, **names):
    names["load"] = load
    exec(program, names)
    return names


def test_every_project_of_the_table_has_a_section():
    table = re.findall(r"^\| \[([\w3]+)\]\(#([\w-]+)\)", TEXT, re.MULTILINE)

    anchors = {title.lower().replace(" ", "-") for title in SECTIONS}
    assert len(table) == 8
    assert {anchor for _, anchor in table} <= anchors


def test_the_program_for_lerobot_passes_its_configuration_to_this_package(monkeypatch):
    (program,) = lines("LeRobot")
    policy = SimpleNamespace(action_delta_indices=[0, 1], observation_delta_indices=None, reward_delta_indices=None)
    own = SimpleNamespace(enable=False)
    options = {"repo_id": "demo/pendulum", "root": None, "episodes": None, "eval_split": 0.1, "streaming": False}
    cfg = SimpleNamespace(
        dataset=SimpleNamespace(**options, use_imagenet_stats=True, image_transforms=own), trainable_config=policy
    )
    package, scripts, script = (ModuleType(name) for name in ("lerobot", "lerobot.scripts", "lerobot_train"))
    scripts.lerobot_train, made = script, []
    script.main = lambda: made.append(script.make_train_eval_datasets(cfg))
    monkeypatch.setitem(sys.modules, "lerobot", package)
    monkeypatch.setitem(sys.modules, "lerobot.scripts", scripts)

    exec(program, {"__name__": "__main__"})

    train, held_out = made[0]
    assert train[0]["action"].shape == (2,)
    assert (train.num_episodes, held_out.num_episodes) == (67, 8)


def ogbench_module(calls):
    """Return OGBench's function that makes only the environment."""

    def make(name, *, env_only):
        assert env_only
        calls.append(name)
        return f"environment of {name}"

    return SimpleNamespace(make_env_and_datasets=make)


def test_ogbench_gets_a_row_for_each_observation(load):
    calls = []
    (program,) = lines("OGBench")
    made = run(program, load, ogbench=ogbench_module(calls), dataset_name="antmaze-large-navigate-v0")

    assert calls == ["antmaze-large-navigate-v0"]
    assert load.ids == ["ogbench/antmaze-large-navigate-v0", "ogbench/antmaze-large-navigate-v0-val"]
    data, rows = made["train_dataset"], load.dataset[:]
    assert {len(values) for values in data.values()} == {13 + 3}
    valid = np.flatnonzero(data["valids"] > 0)  # the rows that OGBench draws
    assert np.array_equal(data["observations"][valid], rows["observation"].numpy())
    assert np.array_equal(data["observations"][valid + 1], rows["next", "observation"].numpy())
    assert np.array_equal(data["actions"][valid], rows["action"].numpy())
    assert np.array_equal(data["masks"][valid], 1 - rows["next", "terminated"][:, 0].numpy())
    assert data["terminals"][-1] == 1
    for values in data.values():
        values.setflags(write=False)  # as Dataset.create


def test_corl_copies_the_arrays_to_its_buffer(load):
    q_learning, sequences = lines("CORL")
    data = run(q_learning, load, config=SimpleNamespace(env="hopper-medium-v2"))["dataset"]

    rows = load.dataset[:]
    kept = ~rows["next", "truncated"][:, 0]
    buffer = [
        torch.tensor(data[name], dtype=torch.float32) for name in ("observations", "actions", "next_observations")
    ]
    buffer += [torch.tensor(data[name][..., None], dtype=torch.float32) for name in ("rewards", "terminals")]
    keys = ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "terminated"))
    for values, key in zip(buffer, keys, strict=True):
        assert torch.equal(values, rows[key][kept].float())
    trajectories = run(sequences, load, env_name="hopper-medium-v2")["dataset"]
    ends = np.flatnonzero(trajectories["terminals"] | trajectories["timeouts"]) + 1
    assert ends.tolist() == [4, 7, 13]
    assert load.ids == ["d4rl/hopper-medium-v2"] * 2


def test_the_line_for_d3rlpy_names_a_method(load):
    (program,) = lines("d3rlpy")

    assert program == 'dataset = load("d4rl/hopper-medium-v2").as_d3rlpy()'
    assert callable(load.dataset.as_d3rlpy)


def test_robomimic_makes_sequences_with_its_own_arguments(load):
    factory, loop = lines("robomimic")
    given = {"obs_keys": ("observation",), "action_keys": ("actions",), "dataset_keys": ("actions", "rewards", "dones")}
    given |= {"action_config": {"actions": {}}, "load_next_obs": True, "frame_stack": 2, "seq_length": 3}
    given |= {"pad_frame_stack": True, "pad_seq_length": True, "get_pad_mask": False, "goal_mode": None}
    given |= {"hdf5_path": "low_dim.hdf5", "hdf5_cache_mode": "all", "hdf5_use_swmr": True, "hdf5_normalize_obs": False}
    given |= {"filter_by_attribute": None, "demo_limit": None, "lang": None}

    made = run(f"arguments = dict({factory})", load)["arguments"]["ds_class"](**given)
    same = run(f"{loop}**given)", load, given=given)["dataset"]

    assert len(made) == len(same) == 13
    assert np.array_equal(made[5]["actions"], same[5]["actions"])
    assert made[5]["actions"].shape == (4, 2)


def test_rlpd_and_qc_index_the_arrays(load):
    rlpd, qc = lines("RLPD and QC")
    flags = SimpleNamespace(env_name="hopper-medium-v2")
    data = run(rlpd, load, Dataset=lambda arrays: arrays, FLAGS=flags)["ds"]

    rows = load.dataset[:]
    kept = ~rows["next", "truncated"][:, 0]
    assert {len(values) for values in data.values()} == {int(kept.sum())}
    assert np.array_equal(data["observations"], rows["observation"][kept].numpy())
    assert np.flatnonzero(data["dones"]).tolist() == [2, 5, 10]
    calls = []
    made = run(qc, load, ogbench=ogbench_module(calls), env_name="cube-triple-play-singletask-task2-v0")[
        "train_dataset"
    ]
    sequences = np.arange(3)[:, None] + np.arange(4)  # as sample_sequence
    assert np.array_equal(made["actions"][sequences], rows["action"].numpy()[sequences])
    assert np.flatnonzero(made["terminals"]).tolist() == [3, 6, 12]
    assert load.ids[-1] == "ogbench/cube-triple-play-singletask-task2-v0-val"


def test_the_imports_for_torchrl_take_the_arguments_of_its_programs():
    imports, _ = lines("TorchRL")
    names = {}
    exec(imports, names)
    given = {"split_trajs": False, "batch_size": 64, "prefetch": 4, "direct_download": True}

    # What the programs pass, to the class of the source that needs no download.
    data = names["D4RLExperienceReplay"]
    assert given.keys() | {"dataset_id", "sampler"} <= inspect.signature(data).parameters.keys()
    sampler = names["SamplerWithoutReplacement"](drop_last=True)
    buffer = datasets_rl.load("demo/pendulum", batch_size=64, sampler=sampler, split_trajs=False, prefetch=4)
    buffer.append_transform(datasets_rl.transforms.DoubleToFloat())
    buffer.append_transform(lambda batch: batch.to("cpu"))
    assert buffer.sample()["observation"].shape == (64, 3)


def test_decision_transformer_of_torchrl_gets_a_copy_of_the_whole_episodes():
    _, changed = lines("TorchRL")
    imports, in_keys, copied = (line.strip() for line in changed.strip().splitlines())
    names = {
        "TensorDictReplayBuffer": datasets_rl.TensorDictReplayBuffer,
        "TensorStorage": datasets_rl.TensorStorage,
        "r2g": datasets_rl.transforms.Reward2GoTransform,
        "data_memmap": datasets_rl.load("demo/pendulum", split_trajs=True)[:],
        "rb_cfg": SimpleNamespace(batch_size=4),
    }

    exec(imports, names)
    exec(f"data_memmap = r2g({in_keys} out_keys=[('next', 'return_to_go'), 'return_to_go']).inv(data_memmap)", names)
    exec(copied, names)

    batch = names["data"].sample()
    assert torch.equal(batch["return_to_go"], batch["next", "return_to_go"])
    assert torch.equal(batch["return_to_go"][:, -1], batch["next", "reward"][:, -1])
