"""Commands that need no extra work without the libraries of the extras."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from datasets_rl.sources import source_names

EXTRAS = ("av", "gymnasium", "joblib", "minari", "pandas", "scipy", "sklearn", "starlette", "tensorstore", "uvicorn")
NEED_EXTRAS = {"openml", "og_marl"}
"""Sources whose reader needs an extra, which the error has to name."""
WITH_CASES = [name for name in source_names() if importlib.util.find_spec(f"raw.{name}")]
BLOCKED = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # a module that is None cannot be imported
from datasets_rl.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def rlds(tmp_path):
    """Run a command in a process that lacks the libraries of all extras but pyarrow."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RLDS_", "HF_", "MINARI_"))}
        own = {"RLDS_HOME": str(tmp_path / "home"), "RLDS_NO_PROGRESS": "1", "RLDS_JOBS": "1"}
        command = [sys.executable, "-c", BLOCKED, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env | own)

    return run


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "words",
    [("--help",), ("list",), ("list", "openml/"), ("info", "openml/magic"), ("info", "og_marl/core/smac_v1/3m/Good")],
)
def test_commands_without_extras_work_without_their_libraries(rlds, words):
    done = rlds(*words)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WITH_CASES if name not in NEED_EXTRAS])
def test_every_other_source_converts_without_extras(rlds, tmp_path, name):
    case = importlib.import_module(f"raw.{name}").CASES[0]
    (tmp_path / "tree").mkdir()
    golden = case.write(tmp_path / "tree")
    options = [word for option, value in case.options.items() for word in (f"--{option}", value)]

    done = rlds("download", case.id, "--from-local", tmp_path / "tree", "--keep-raw", *options)
    checked = rlds("verify", case.id, "--deep", "--json")

    assert done.returncode == 0, done.stderr
    assert checked.returncode == 0, checked.stderr
    assert f'"episodes": {len(golden)}' in rlds("info", case.id, "--json").stdout


def test_openml_names_the_extra_that_it_needs(rlds, tmp_path):
    case = importlib.import_module("raw.openml").CASES[0]
    case.write(tmp_path / "tree")

    done = rlds("download", case.id, "--from-local", tmp_path / "tree")

    assert done.returncode == 7
    assert f"{case.id} needs pandas" in done.stderr
    assert "pip install 'datasets-rl[openml]'" in done.stderr


@pytest.mark.slow
def test_og_marl_names_the_extra_that_it_needs_before_it_downloads(rlds, tmp_path):
    case = importlib.import_module("raw.og_marl").CASES[0]
    case.write(tmp_path / "tree")

    done = rlds("download", case.id, "--from-local", tmp_path / "tree")

    assert done.returncode == 7
    assert "reading vaults needs tensorstore" in done.stderr
    assert "pip install 'datasets-rl[vault]'" in done.stderr
