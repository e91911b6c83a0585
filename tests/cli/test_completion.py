"""The tab key: candidates for every place of a command line, and the scripts in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datasets_rl import sources
from datasets_rl.cli import candidates
from datasets_rl.cli.commands import command_names
from datasets_rl.cli.shells import SHELLS


@pytest.fixture
def complete(rlds, monkeypatch):
    """Return what a shell gets for the words of a line, the last of which is completed."""

    def run(*words, shell="bash"):
        line = " ".join(["rlds", *words])
        for name, value in {
            "_RLDS_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words)),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }.items():
            monkeypatch.setenv(name, value)
        lines = sorted(filter(None, rlds().out.split("\n")))
        monkeypatch.delenv("_RLDS_COMPLETE")
        return lines

    return run


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], ["preprocess"]),
        (["audit", "x", "--fail-on", ""], ["hint", "proof", "strong"]),
        (["audit", "x", "--checks", "duplicate_e"], ["duplicate_episodes"]),
        (["audit", "x", "--checks", "shared_"], ["shared_episodes", "shared_splits"]),
        (["cache", "m"], ["move"]),
        (["cache", "move", ""], []),
        (["help", "exi"], ["exit-codes"]),
        (["list", "--so"], ["--sort", "--source"]),
        (["list", "--sort", ""], ["name", "size"]),
        (["list", "--sort=s"], ["size"]),
        (["list", "--source", "d"], ["d4rl", "demo", "dsrl"]),
        (["download", "d"], ["d4rl/", "demo/", "dsrl/"]),
        (["download", "de"], ["demo/pendulum"]),
        (["download", "--jobs", "2", "demo/p"], ["demo/pendulum"]),
        (["download", "demo/pendulum", "d4rl/hopper-medium-v"], [f"d4rl/hopper-medium-v{n}" for n in range(3)]),
        (["preprocess", "x", "-r", "iql"], ["iql_antmaze", "iql_locomotion"]),
        (["preprocess", "x", "--transform", "keep_to"], ["keep_top_returns"]),
        (["completion", "install", "b"], ["bash"]),
        (["config", "set", "j"], ["jobs"]),
    ],
    ids=" ".join,
)
def test_candidates_fit_the_place(complete, words, expected):
    assert complete(*words) == expected


def test_every_command_is_a_candidate(complete):
    assert complete("") == list(command_names())


@pytest.mark.usefixtures("stored")
def test_commands_for_stored_datasets_complete_these_only(complete, home, tmp_path):
    shutil.copytree(home / "demo" / "pendulum", home / "demo" / "pendulum@twice")
    home.rename(tmp_path / "other")

    assert complete("sample", "") == []
    assert complete("--root", str(tmp_path / "other"), "sample", "") == ["demo/pendulum", "demo/pendulum@twice"]
    assert "demo/pendulum@twice" in complete("--root", str(tmp_path / "other"), "info", "demo/")


@pytest.mark.usefixtures("home")
def test_ids_are_those_of_the_catalogs(complete):
    origin = sources.get_source("d4rl")

    assert complete("download", "d4rl/") == sorted(f"d4rl/{name}" for name in origin.ids())


def test_steps_and_recipes_are_found_without_importing_them():
    from datasets_rl.preprocessing import recipe
    from datasets_rl.preprocessing.naming import describe_steps

    assert candidates.step_names() == [one.name for one in describe_steps()]
    assert sorted(candidates.recipe_names()) == sorted(one.name for one in recipe.shipped_recipes())


def test_options_bring_their_help(complete):
    assert complete("list", "--js", shell="fish") == ["--json\tPrint a single JSON document."]


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["sample", ""], ["download", "d4rl/"], ["preprocess", "x", "-t", ""]], ids=" ".join)
def test_completion_imports_neither_torch_nor_numpy_nor_httpx(words, process_env):
    program = (
        "import sys; from datasets_rl.cli.frame import run; run([]);"
        "print(sorted({'torch', 'numpy', 'httpx', 'h5py', 'huggingface_hub'} & set(sys.modules)), file=sys.stderr)"
    )
    asked = {
        "_RLDS_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["rlds", *words]),
        "COMP_CWORD": str(len(words)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", program], env=process_env | asked, capture_output=True, text=True, check=True
    )

    assert ran.stderr == "[]\n"
    assert ran.stdout


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_installing_twice_changes_nothing_and_uninstalling_restores_the_files(shell, rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("ZDOTDIR", raising=False)
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    for name in (".bashrc", ".zshrc"):
        (tmp_path / name).write_text("alias l=ls\n")
        (tmp_path / name).chmod(0o600)

    installed = rlds("completion", "install")
    again = rlds("completion", "install", shell)
    assert (installed.code, again.out) == (0, "")
    assert all(Path(line).is_file() for line in installed.out.splitlines())
    assert rlds("completion", "uninstall", shell).code == 0
    files = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {".bashrc": "alias l=ls\n", ".zshrc": "alias l=ls\n"}
    assert (tmp_path / ".bashrc").stat().st_mode & 0o777 == 0o600


def test_other_lines_of_a_start_up_file_keep_their_bytes(rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    start = tmp_path / ".bashrc"
    before = b"# completion of rlds: mine\nalias l=ls\r\nPS1='\x0c\x85\x1e\xe2\x80\xa8\xff'\r\n\n"
    start.write_bytes(before)

    rlds("completion", "install", "bash")
    rlds("completion", "install", "bash")
    assert start.read_bytes().startswith(before)
    assert start.read_bytes().count(b"\n") == before.count(b"\n") + 1
    rlds("completion", "uninstall", "bash")
    assert start.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [".bashrc"]


def test_a_script_of_the_user_is_neither_replaced_nor_deleted(rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    script = tmp_path / "fish" / "completions" / "rlds.fish"
    script.parent.mkdir(parents=True)
    script.write_text("complete -c rlds -a mine\n")

    ran = rlds("completion", "install", "fish")
    assert (ran.code, rlds("completion", "uninstall", "fish").code) == (2, 0)
    assert f"{script} is not replaced\n  why: the file is not a script of rlds" in ran.err
    assert script.read_text() == "complete -c rlds -a mine\n"


def test_an_unknown_shell_is_refused_with_the_known_ones(rlds, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/csh")
    ran = rlds("completion", "install")

    assert ran.code == 2
    assert "'csh'\n  why: expected bash, fish, zsh" in ran.err


ARGUMENTS = {"bash": ["--norc", "--noprofile", "-i"], "fish": ["--no-config", "-i"], "zsh": ["-f", "-i"]}


@pytest.mark.first(1)
@pytest.mark.skipif(os.name == "nt", reason="terminals")
@pytest.mark.parametrize(
    ("shell", "word"),
    [
        ("bash", "demo/pendulum@tw"),
        ("fish", "demo/pen"),
        pytest.param("zsh", "demo/pen", marks=pytest.mark.slow),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("bash", "demo/pen"), ("fish", "demo/pendulum@tw"))),
        pytest.param("zsh", "demo/pendulum@tw", marks=pytest.mark.slow),
    ],
)
def test_the_tab_key_completes_an_id_in_a_real_shell(shell, word, rlds, stored, process_env, command, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    name = "pendulum@twice" if "@" in word else "pendulum"
    if name != "pendulum":
        shutil.copytree(stored, stored.with_name(name))
    script = tmp_path / f"script.{shell}"
    script.write_text(rlds("completion", "show", shell).out)
    env = {**process_env, "PATH": f"{Path(command).parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    child, terminal = pty.fork()
    if child == 0:
        os.execve(program, [program, *ARGUMENTS[shell]], env)
    try:
        os.write(terminal, f". {script}\n".encode())
        os.write(terminal, b"echo re''ady\n")
        read_until(terminal, "ready")
        os.write(terminal, f"rlds path {word}\t".encode())
        os.write(terminal, b"\n")
        assert f"{stored.with_name(name)}" in read_until(terminal, f"{stored.with_name(name)}")
    finally:
        os.kill(child, 9)
        os.close(terminal)
        os.waitpid(child, 0)


def read_until(terminal, text):
    """Return what a shell prints up to a text."""
    shown, deadline = b"", time.monotonic() + 60
    while (
        text not in shown.decode(errors="replace").replace("\r", "").replace("\n", "") and time.monotonic() < deadline
    ):
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536)
    return shown.decode(errors="replace").replace("\r", "").replace("\n", "")
