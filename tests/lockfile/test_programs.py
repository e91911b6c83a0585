"""The datasets that a program opens are found by its text, and nothing of the program is run."""

from __future__ import annotations

import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.lockfile.programs import read_program

PROGRAM = """
raise SystemExit("never run")
import json, sys, torch
import datasets_rl
import datasets_rl as rl
from datasets_rl import D4RLExperienceReplay, GenDGRLExperienceReplay as Dgrl, load, Member
from datasets_rl.datasets.loading import load as opened
from pathlib import Path
from other import mixture

DATASET: str = "demo/pendulum"
TWICE = "demo/a"
TWICE = "demo/b"

load(DATASET, batch_size=256)
opened("demo/c@td3_bc")
rl.load(dataset_id="demo/d")
datasets_rl.download("demo/e")
D4RLExperienceReplay("hopper-medium-v2", 8)
Dgrl("level")
load(Path("data/mine"))
rl.mixture(["demo/f", Member("demo/g", weight=2), DATASET], weights=[1, 2, 1])
rl.load_mixture("mix.toml")

load(TWICE)
load(sys.argv[1])
load(f"demo/{DATASET}")
torch.load("weights.pt")
json.load("x.json")
mixture(["demo/other"])

def train(DATASET):
    def load(name):
        return name
"""


def test_constants_in_calls_of_this_package_are_found(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    program = read_program(path)

    assert [(one.name, one.call) for one in program.opened if not one.is_mixture] == [
        ("demo/c@td3_bc", "load"),
        ("demo/d", "load"),
        ("demo/e", "download"),
        ("d4rl/hopper-medium-v2", "D4RLExperienceReplay"),
        ("gen_dgrl/level", "GenDGRLExperienceReplay"),
        ("data/mine", "load"),
        ("demo/f", "mixture"),
        ("demo/g", "Member"),
    ]
    assert [(one.name, one.line) for one in program.opened if one.is_mixture] == [("mix.toml", 23)]
    # A name that is set twice, or that is an argument somewhere, has no certain value.
    assert [one.name for one in program.computed] == [
        "DATASET",
        "DATASET",
        "TWICE",
        "sys.argv[1]",
        "f'demo/{DATASET}'",
    ]


def test_a_name_that_is_set_once_is_its_text(tmp_path):
    path = tmp_path / "train.py"
    path.write_text('from datasets_rl import load\nNAME = "demo/pendulum"\nload(NAME)\n')

    assert [(one.name, one.line) for one in read_program(path).opened] == [("demo/pendulum", 3)]


@pytest.mark.parametrize("text", ["def f(:", "x = '\0'", "(" * 300])
def test_a_file_that_is_no_program_is_refused(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"train\.py is not valid Python"):
        read_program(path)
