"""The same bytes in other processes: other locales, time zones, hash seeds, orders of listings, numbers of jobs, and on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lock_conversions as conversions
import lock_rebuild as rebuild
import numpy as np
import pytest

from datasets_rl import EpisodeWriter, Manifest, Recipe, download, preprocess
from datasets_rl.lockfile import Lock, write_lock
from datasets_rl.store import dataset_paths

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "utf-8": {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"},
    "posix": {"LC_ALL": "C", "TZ": "Pacific/Apia", "PYTHONHASHSEED": "12345"},
    "ascii": {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "TZ": "Asia/Kolkata",
        "PYTHONHASHSEED": "7",
    },
    "plain processor": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONHASHSEED": "1",
    },
}
"""Locale, time zone and order of sets of a process. The last has the loops for a processor without AVX2."""


OTHER_PYTHON = os.environ.get("RLDS_OTHER_PYTHON", "")
"""The Python of an environment with other versions of numpy, torch or other libraries, with which results are compared."""


def run(program: str, *words: object, python: str = sys.executable, **environment: str) -> Any:
    """Return the JSON that a program of this folder prints."""
    done = subprocess.run(
        [python, str(TESTS / program), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RLDS_NO_PROGRESS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """The raw files of all cases of all sources."""
    folder = tmp_path_factory.mktemp("raw")
    for name, case in conversions.cases([]):
        (folder / name).mkdir()
        case.write(folder / name)
    return folder


@pytest.fixture(scope="module")
def expected(raw, tmp_path_factory) -> Any:
    return run(
        "lock_conversions.py", "convert", raw, tmp_path_factory.mktemp("home"), 1, "listed", **ENVIRONMENTS["utf-8"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "jobs", "order"),
    [("posix", 3, "reversed"), ("ascii", 1, "listed"), ("plain processor", 1, "listed")],
)
def test_every_conversion_and_recipe_gives_the_same_bytes(raw, expected, tmp_path, environment, jobs, order):
    found = run("lock_conversions.py", "convert", raw, tmp_path, jobs, order, **ENVIRONMENTS[environment])

    assert len(found) > 70
    assert [name for name in expected if found.get(name) != expected[name]] == []


@pytest.mark.slow
@pytest.mark.skipif(not OTHER_PYTHON, reason="RLDS_OTHER_PYTHON names no Python with other libraries")
def test_other_versions_of_libraries_give_the_same_bytes(raw, expected, tmp_path):
    found = run(
        "lock_conversions.py", "convert", raw, tmp_path, 1, "listed", python=OTHER_PYTHON, **ENVIRONMENTS["utf-8"]
    )

    made = {name: files for name, files in found.items() if isinstance(files, dict)}
    assert len(made) > 70
    assert [name for name in made if made[name] != expected[name]] == []


@pytest.fixture
def project(tmp_path, monkeypatch) -> Iterator[Path]:
    """A project with a download of several shards, a recipe, a mixture and a recording, and its lock."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "rlds.toml").touch()
    monkeypatch.chdir(folder)
    raw = tmp_path / "raw"
    raw.mkdir()
    rebuild.CASE.write(raw)
    with rebuild.CASE.served(raw) as served:
        for name, value in {
            "RLDS_HOME": str(tmp_path / "home"),
            "RLDS_NO_PROGRESS": "1",
            "NO_PROXY": "*",
            **served,
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("RLDS_LOCK", raising=False)
        for dotted, value in rebuild.CASE.small.items():
            monkeypatch.setattr(dotted, value)
        preprocess(download("demo/pendulum"), Recipe.inline(["keep_top_returns:60", "normalize"]), name="best")
        download(rebuild.CASE.id)
        with EpisodeWriter("local/heater") as writer:
            for episode in range(4):
                writer.start(np.full(2, episode, np.float32))
                for step in range(6):
                    writer.step(np.zeros(1, np.float32), np.full(2, step, np.float32), 1.0, terminated=step == 5)
        (folder / "mix.toml").write_text(
            f'[[member]]\ndataset = "demo/pendulum"\nweight = 0.5\n[[member]]\ndataset = "{rebuild.CASE.id}"\nweight = 0.5\n'
        )
        (folder / "train.py").write_text('from datasets_rl import load_mixture\nload_mixture("mix.toml")\n')
        write_lock("demo/pendulum@best", "local/heater", "train.py")
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "jobs", "engine"),
    [("posix", 1, "local"), ("ascii", 3, "local"), ("plain processor", 1, "local"), ("utf-8", 2, "ray")],
)
def test_a_project_of_four_datasets_is_made_again_in_an_empty_home(project, tmp_path, environment, jobs, engine):
    if engine == "ray":
        pytest.importorskip("ray")
    ids = [one.id for one in Lock.read(project / "rlds.lock").datasets]
    assert ids == ["demo/pendulum", "demo/pendulum@best", "local/heater", rebuild.CASE.id]
    expected = {name: Manifest.read(dataset_paths(name).version).files_digest for name in ids}
    made = run(
        "lock_rebuild.py",
        *(project / "rlds.lock", tmp_path / "home" / "local" / "heater", jobs, engine),
        **{**ENVIRONMENTS[environment], "RLDS_HOME": str(tmp_path / "other")},
    )

    assert made["unchanged"]
    assert {name: digest for name, (_, digest) in made["digests"].items()} == expected
    assert {name: origin.partition(" ")[0] for name, (origin, _) in made["digests"].items()} == {
        "demo/pendulum": "downloaded",
        "demo/pendulum@best": "made",
        "local/heater": "copied",
        rebuild.CASE.id: "downloaded",
    }
