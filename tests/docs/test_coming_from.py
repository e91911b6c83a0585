"""The right-hand calls of docs/coming-from.md run as printed, one table after the other."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch

import datasets_rl
from datasets_rl import transforms
from datasets_rl.cli.app import main
from datasets_rl.cli.commands import command_names

PAGE = Path(datasets_rl.__file__).parents[1] / "docs" / "coming-from.md"
SECTIONS = re.findall(r"^## From (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
NOT_CALLS = {"RLDS_HOME", "demo/pendulum", "steps", 'device="cuda"'}
"""Code that names a setting, an id or an argument."""


class Names(dict):
    """The names that a call may use: those that earlier calls defined, and the public ones."""

    def __missing__(self, name):
        for home in (datasets_rl, transforms):
            if name in home.__all__:
                return getattr(home, name)
        raise KeyError(name)


def calls(section):
    """Return the code in the last column of the tables of a section."""
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [code for line in lines for code in re.findall(r"`([^`]+)`", line.rstrip("| ").rpartition(" | ")[2])]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with files of D4RL, Minari and RLDS, and an RLDS_HOME in which they are stored under public ids."""
    folder = tmp_path_factory.mktemp("coming")
    patch = pytest.MonkeyPatch()
    patch.setenv("RLDS_HOME", str(folder / "home"))
    patch.setenv("RLDS_CONFIG", str(folder / "config.toml"))
    patch.setenv("RLDS_OFFLINE", "1")
    patch.chdir(folder)
    datasets_rl.download("demo/pendulum")
    datasets_rl.export("demo/pendulum", "minari", folder / "door", lossy=True)
    metadata = folder / "door" / "data" / "metadata.json"
    metadata.write_text(metadata.read_text().replace("demo/pendulum-v0", "D4RL/door/human-v2"))
    datasets_rl.download("minari/D4RL/door/human-v2", from_local=folder / "door")
    datasets_rl.export("demo/pendulum", "rlds", folder / "pendulum-rlds", lossy=True)
    write_hopper(folder / "hopper.hdf5")
    datasets_rl.download("d4rl/hopper-medium-v2", from_local=folder / "hopper.hdf5", hash_check=False)
    yield folder
    patch.undo()


def write_hopper(path):
    """Write 5,000 steps with the shapes of Hopper, in D4RL's layout."""
    rng = np.random.default_rng(0)
    ends = np.arange(5000) % 250 == 249
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(5000, 11)).astype(np.float32)
        file["next_observations"] = np.roll(file["observations"][:], -1, 0)
        file["actions"] = rng.uniform(-1, 1, (5000, 3)).astype(np.float32)
        file["rewards"] = rng.normal(size=5000).astype(np.float32)
        file["terminals"] = ends & (np.arange(5000) % 500 == 499)
        file["timeouts"] = ends & (np.arange(5000) % 500 != 499)


def names_for(section, work):
    dataset = datasets_rl.load("demo/pendulum", batch_size=256)
    path = work / section.replace(" ", "-")
    path.mkdir()
    ring = datasets_rl.TensorDictReplayBuffer(storage=dataset.storage, batch_size=256)
    return Names(
        dataset=dataset,
        path=path if section != "torchrl" else path / "mapped",
        fn=lambda steps: steps.set("norm", steps["observation"].norm(dim=-1, keepdim=True)),
        a=ring,
        b=ring,
        env=gymnasium.make("Pendulum-v1"),
        spec=dataset.specs["action"],
        theirs=datasets_rl.to_torchrl(dataset.specs["action"]) if find_spec("torchrl") else None,
        steps=dataset[:100].exclude("index"),
        torch=torch,
    )


def is_run(code):
    possible = "_torchrl(" not in code or find_spec("torchrl") is not None
    return possible and code not in NOT_CALLS and not re.search(r"\b(ID|USER|NAME)\b", code)


@pytest.mark.parametrize("section", [name for name, _ in SECTIONS])
def test_the_calls_of_a_section_run(section, work, capsys):
    names = names_for(section, work)
    for code in filter(is_run, calls(dict(SECTIONS)[section])):
        if code.startswith("rlds "):
            status = main(shlex.split(code)[1:])
            assert status == 0, f"{code} ended with {status}: {capsys.readouterr().err}"
        else:
            exec(code, {}, names)


def test_commands_with_placeholders_exist():
    codes = [code for _, text in SECTIONS for code in calls(text) if code.startswith("rlds ")]

    assert len(codes) >= 20
    assert {code.split()[1] for code in codes} <= set(command_names())
