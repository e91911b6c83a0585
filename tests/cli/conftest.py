"""Fixtures that run the real `rlds` command in this process, with its exit code, stdout and stderr."""

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
class CommandResult:
    """Exit code and captured output of a run of ``rlds``."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        return json.loads(self.out)


Rlds = Callable[..., CommandResult]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty RLDS_HOME; no other variable that affects ``rlds`` is set."""
    for name in [name for name in os.environ if name.startswith("RLDS_")] + ["NO_COLOR", "CI", "TERM"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "home"


@pytest.fixture
def rlds(home, capsys) -> Rlds:  # noqa: ARG001 - requested for its side effects
    """A function that runs ``rlds`` with the given arguments and returns a `CommandResult`."""

    def run(*words: object) -> CommandResult:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory) -> Path:
    """A home folder that contains ``demo/pendulum``, shared by all tests; read-only."""
    home = tmp_path_factory.mktemp("stored")
    downloading.download("demo/pendulum", settings=Settings(home=home, progress=False))
    return home


@pytest.fixture
def stored(pendulum, home) -> Path:
    """The folder of a private copy of ``demo/pendulum`` in RLDS_HOME."""
    shutil.copytree(pendulum / "demo", home / "demo")
    return home / "demo" / "pendulum"


@pytest.fixture
def terminal(capsys, monkeypatch) -> None:
    """Make `isatty` of stdout and stderr return True, with 80 columns."""
    del capsys  # requested because it must replace the streams before this fixture changes them
    for kind in {type(sys.stdout), type(sys.stderr)}:
        monkeypatch.setattr(kind, "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def command() -> str:
    """The path of the installed ``rlds`` command."""
    return str(Path(sys.executable).with_name("rlds"))


@pytest.fixture
def process_env(home) -> Mapping[str, str]:
    """The environment variables for a new process."""
    return {**os.environ, "RLDS_HOME": str(home)}
