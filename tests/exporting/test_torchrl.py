"""Memory-mapped TensorDicts: loaded by tensordict and, where it is installed, by TorchRL."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from exports import export_stored, write_robot
from stored_data import Model, plain, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import load
from datasets_rl.exporting import Content, run_export

EPISODES = [trajectory(4, terminated=True), trajectory(1, seed=1, known=False), trajectory(3, seed=2)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("stored"), EPISODES)


def test_tensordict_loads_every_key_of_ted(stored, tmp_path):
    folder = run_export(Content(stored), "torchrl", tmp_path / "out", show=False)

    steps = plain(TensorDict.load_memmap(str(folder)))

    model = Model(EPISODES)
    assert set(steps) == set(model.rows)
    for key in model.rows:
        assert np.array_equal(steps[key], model.column(key)), key


def test_images_and_nested_keys_are_those_of_the_dataset(tmp_path):
    robot = write_robot(tmp_path / "stored")
    steps = TensorDict.load_memmap(str(export_stored(robot, "torchrl", tmp_path / "out")))

    whole = load(robot.folder)[:]
    for key in whole.keys(include_nested=True, leaves_only=True):
        if key != "task":
            assert torch.equal(steps[key], whole[key]), key
    texts = json.loads((tmp_path / "out" / "rlds-export.json").read_text())["texts"]["task"]
    assert [texts[code] for code in steps["task"][:3].tolist()] == ['pick up "0"', 'pick up "0"', "café"]


def test_torchrl_samples_from_it_and_its_storage_loads_it(stored, tmp_path):
    data = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    folder = tmp_path / "out"
    load(stored.folder, final_unknown="keep").export("torchrl", folder)
    buffer = data.TensorDictReplayBuffer(storage=data.TensorStorage(TensorDict.load_memmap(str(folder))))

    assert buffer.sample(5)["next", "observation"].shape == (5, 3)
    storage = data.LazyMemmapStorage(8)
    storage.loads(folder)
    assert len(storage) == 8
    assert np.array_equal(storage[:]["next", "reward"], Model(EPISODES).column(("next", "reward")))
