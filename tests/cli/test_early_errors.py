"""A wrong id or a wrong value is reported before torch is loaded, which takes seconds: in every command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from datasets_rl.cli.commands import command_names, subcommand_names
from datasets_rl.recipes.train import program_files

PROGRAM = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout

import datasets_rl.exporting.formats, datasets_rl.preprocessing.plan, datasets_rl.verification.run
from datasets_rl.cli.app import main

with redirect_stdout(io.StringIO()):
    main(["list"])  # what most commands import is imported once
for words in json.load(sys.stdin):
    if os.fork() == 0:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = main(words)
        print(json.dumps([words, code, "torch" in sys.modules]), flush=True)
        os._exit(0)
    os.wait()
"""

UNKNOWN = {
    command: [*command.split(), *before, "demo/pendulm", *after]
    for command, before, after in [
        ("append", ["local/mine"], []),
        ("audit", [], []),
        ("bench", [], []),
        ("cite", [], []),
        ("describe", [], []),
        ("digest", [], []),
        ("doctor", [], []),
        ("download", [], []),
        ("export", [], ["--to", "hdf5"]),
        ("identify", [], []),
        ("info", [], []),
        ("mix", ["demo/pendulum"], []),
        ("path", [], []),
        ("preprocess", [], ["--recipe", "td3_bc"]),
        ("push", [], ["hf://me/mine"]),
        ("remove", [], []),
        ("sample", [], []),
        ("score", [], ["-150"]),
        ("train", ["bc", "--dataset"], []),
        ("use", [], ["1"]),
        ("verify", [], ["--deep"]),
        ("view", [], ["--no-open"]),
    ]
}
"""An id that does not exist, for each command that takes an id."""

WRONG = [
    ["audit", "demo/pendulum", "--checks", "idle_span"],
    ["audit", "demo/pendulum", "--fail-on", "weak"],
    ["append", "local/mine", "--agian"],
    ["bench", "demo/pendulum", "--batch-size", "many"],
    ["cache", "ls", "--size"],
    ["cache", "move"],
    ["cache", "prune", "--older"],
    ["cache", "verify", "--depe"],
    ["cite", "demo/pendulum", "--bibtex"],
    ["completion", "install", "fishy"],
    ["completion", "show", "fishy"],
    ["completion", "uninstall", "fishy"],
    ["config", "path", "--home"],
    ["config", "set", "jobs", "many"],
    ["config", "trust", "--all"],
    ["config", "unset"],
    ["describe", "demo/pendulum", "--bins", "many"],
    ["describe", "demo/pendulum", "--keys", "observatoin"],
    ["describe", "demo/pendulum", "--episode", "700"],
    ["diff", "demo/pendulum", "demo/pendulum", "--deep"],
    ["digest", "demo/pendulum", "--sha"],
    ["doctor", "--fast"],
    ["download", "demo/pendulum", "--jobs", "many"],
    ["download", "demo/pendulum", "--limit-rate", "fast"],
    ["download", "demo/pendulum", "--force", "--episodes", "all"],
    ["export", "demo/pendulum", "--to", "csv"],
    ["export", "demo/pendulum", "--to", "lerobot", "--images", "gif"],
    ["help", "dowload"],
    ["identify", "demo/pendulum", "--nera"],
    ["info", "demo/pendulum", "--layuot", "d4rl"],
    ["init", "nothing.npz", "--check"],
    ["init", "demo", "--chekc"],
    ["list", "--max-size", "big"],
    ["lock", "demo/pendulum", "--chekc"],
    ["mix", "demo/pendulum", "--weights", "a"],
    ["mix", "demo/pendulum", "--batch-size", "many"],
    ["mix", "demo/pendulum", "-t", "resiz:64"],
    ["mix", "demo/pendulum", "-t", "resize:abc"],
    ["mix", "demo/pendulum", "-t", "reward_scaling:0,large"],
    ["mix", "demo/pendulum", "-t", "cat_frames:4,dimension=-3"],
    ["mix", "demo/pendulum", "-t", "keep_top_returns:20"],
    ["path", "demo/pendulum", "--raw"],
    ["preprocess", "demo/pendulum", "--recipe", "top_10_precent"],
    ["preprocess", "demo/pendulum", "-t", "keep_top_return:20"],
    ["preprocess", "demo/pendulum", "-t", "keep_top_returns:many"],
    ["preprocess", "demo/pendulum", "-t", "resize:abc"],
    ["preprocess", "demo/pendulum", "-t", "reward_sum:in_keys=3"],
    ["preprocess", "demo/pendulum", "-t", "keep_top_returns:20", "--max-ram", "big"],
    ["preprocess", "demo/pendulum", "-t", "keep_top_returns:20", "--as", "a/b"],
    ["push", "demo/pendulum", "me/mine"],
    ["remove", "demo/pendulum", "--force"],
    ["sample", "demo/pendulum", "--keys", "observatoin"],
    ["sample", "demo/pendulum", "--delta-timestamps", "now"],
    ["score", "demo/pendulum", "high"],
    ["sync", "--lokced"],
    ["train", "sac", "--dataset", "demo/pendulum"],
    ["train", "bc", "--dataset", "./demo"],
    ["train", "bc", "--dataset", "demo/pendulum@best"],
    ["train", "bc", "--dataset", "demo/pendulum", "--device", "gpu"],
    *(["train", name, "--dataset", "demo/pendulum", "--lr", "fast"] for name in program_files()),
    ["use", "demo/pendulum", "17"],
    ["verify", "demo/pendulum", "--depe"],
    ["view", "demo/pendulum", "--port", "any"],
    ["view", "demo/pendulum", "--diff"],
    ["view", "demo/pendulum", "--episode", "3"],
]


def ends(lines, env):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def named(words):
    command, *rest = words
    return " ".join([command, *(one for one in rest[:1] if one in subcommand_names(command))])


@pytest.mark.usefixtures("stored")
def test_an_unknown_id_and_a_wrong_value_are_reported_before_torch_is_loaded(process_env):
    lines = [*UNKNOWN.values(), *WRONG]

    found = ends(lines, process_env)

    assert [words for words, *_ in found] == lines
    assert [words for words, code, _ in found if code not in {2, 3}] == []
    assert [words for words, _, slow in found if slow] == []


def test_each_command_has_a_wrong_value_here():
    every = {" ".join(filter(None, (one, below))) for one in command_names() for below in subcommand_names(one) or [""]}

    assert every - {named(words) for words in WRONG} == set()


def test_the_help_of_a_training_program_is_printed_before_torch_is_loaded(process_env):
    assert ends([["train", "iql", "--help"]], process_env) == [[["train", "iql", "--help"], 0, False]]
