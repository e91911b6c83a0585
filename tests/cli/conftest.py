"""The real command in this process: what it returns, prints to stdout and says on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datasets_rl import downloading
from datasets_rl.cli.app import main
from datasets_rl.settings import Settings


@dataclass(frozen=True)
class Ran:
    """What a run of ``rlds`` left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Rlds = Callable[..., Ran]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty RLDS_HOME, and an environment that says nothing else."""
    for name in [name for name in os.environ if name.startswith("RLDS_")] + ["NO_COLOR", "CI", "TERM"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "home"


@pytest.fixture
def rlds(home, capsys) -> Rlds:  # noqa: ARG001 - it is there for what it does
    """Run ``rlds`` with some words."""

    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory) -> Path:
    """The home of a stored ``demo/pendulum``; not to be written to."""
    home = tmp_path_factory.mktemp("stored")
    downloading.download("demo/pendulum", settings=Settings(home=home, progress=False))
    return home


@pytest.fixture
def stored(pendulum, home) -> Path:
    """The folder of a ``demo/pendulum`` in RLDS_HOME, the test's own copy."""
    shutil.copytree(pendulum / "demo", home / "demo")
    return home / "demo" / "pendulum"


@pytest.fixture
def terminal(capsys, monkeypatch) -> None:
    """Make stdout and stderr of this process terminals, as far as programs ask."""
    del capsys  # it comes first: it puts other streams in their place
    for kind in {type(sys.stdout), type(sys.stderr)}:
        monkeypatch.setattr(kind, "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def command() -> str:
    """The installed command."""
    return str(Path(sys.executable).with_name("rlds"))


@pytest.fixture
def process_env(home) -> Mapping[str, str]:
    """The environment for a process of its own."""
    return {**os.environ, "RLDS_HOME": str(home)}
