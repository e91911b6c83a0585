"""The README and the command agree."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

import datasets_rl
from datasets_rl.cli.commands import command_names
from datasets_rl.cli.commands.help import _ENVIRONMENT
from datasets_rl.cli.errors import EXIT_CODES
from datasets_rl.cli.frame import make_app
from datasets_rl.cli.options import GLOBALS

README = (Path(datasets_rl.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
SESSIONS = [text for kind, text in BLOCKS if kind == "console"]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
GLOBAL_OPTIONS = {name for _, names, _, _ in GLOBALS.values() for name in names} | {"--help", "-h"}


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Return the options of every command, as Typer parses them."""
    import typer

    root = typer.main.get_command(make_app())
    return {
        name: {
            option
            for one in (command, *getattr(command, "commands", {}).values())
            for parameter in one.params
            for option in parameter.opts
            if option.startswith("-")
        }
        for name, command in root.commands.items()
    }


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its header rows."""
    section = re.split(rf"^#+ {heading}$", README, flags=re.MULTILINE)[1]
    lines = [line for line in section.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_two_commands_of_a_fresh_machine_come_first():
    assert BLOCKS[0][1].startswith("make demo")
    assert BLOCKS[0][1].splitlines()[1].startswith("make test")


def test_the_table_of_commands_is_complete(options):
    shown = {cells[0].split()[1]: set(re.findall(r"`(-[-a-z]+)`", cells[2])) for cells in rows("Commands")}

    assert sorted(shown) == sorted(command_names())
    assert {name: long(own - GLOBAL_OPTIONS) for name, own in options.items()} == {
        name: long(named) for name, named in shown.items()
    }


def long(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("--")}


def test_options_for_all_commands_are_named():
    assert [name for name in long(GLOBAL_OPTIONS) if f"`{name}`" not in README] == []


def test_every_option_that_is_named_anywhere_exists(options):
    known = GLOBAL_OPTIONS.union(*options.values())

    assert [name for name in re.findall(r"(?<![-\w])--[a-z][-a-z]*", README) if name not in known] == []


def test_every_command_that_is_named_anywhere_exists_and_takes_its_options(options):
    lines = re.findall(r"(?:^\$ |`|\"\$\()(rlds [^`\n)]*)", README, flags=re.MULTILINE)
    for line in lines:
        _, name, *rest = line.replace("\\|", "|").split()
        assert name in options, line
        assert {word for word in rest if word.startswith("--")} <= options[name] | GLOBAL_OPTIONS, line
    assert len(lines) > 15


def test_the_table_of_exit_codes_is_that_of_the_program():
    assert [(int(code), meaning) for code, meaning in rows("Exit codes")] == [
        (row.code, row.meaning) for row in EXIT_CODES
    ]


def test_the_table_of_environment_variables_is_that_of_the_program():
    assert [(name.strip("`"), meaning) for name, meaning in rows("Environment variables")] == list(_ENVIRONMENT)


def test_make_targets_exist():
    makefile = (Path(datasets_rl.__file__).parents[1] / "Makefile").read_text(encoding="utf-8")

    assert [name for name in re.findall(r"make ([a-z]+)", README) if f"\n{name}:" not in makefile] == []


def test_folders_of_the_layout_exist():
    root = Path(datasets_rl.__file__).parents[1]
    named = [name for cells in rows(r"Where does this go\?") for name in re.findall(r"`([\w/.]+)`", cells[0])]

    assert [name for name in named if not (root / name).exists() and not (root / "datasets_rl" / name).exists()] == []


def steps(session: str) -> list[tuple[list[str], str]]:
    """Return the commands of a session with their output."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return [(shlex.split(words), shown) for words, shown in zip(parts[::2], parts[1::2], strict=True)]


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions_have_the_output_of_the_commands(rlds, home, session, monkeypatch):
    # On a slow machine, a command that takes seconds would print its progress.
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    for words, shown in steps(session):
        if words[0] == "export":
            continue
        ran = rlds(*words[1:])
        got = (ran.err + ran.out).replace(str(home), "/data")
        beginning, dots, _ = shown.partition("...\n")

        assert ran.code == 0
        assert (got[: len(beginning)] if dots else got) == beginning


@pytest.mark.parametrize("program", PROGRAMS)
def test_names_that_programs_import_are_public(program):
    used = {
        node.attr for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Attribute) and named_so(node.value)
    }
    imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
    used |= {alias.name for node in imports for alias in node.names}

    assert used
    assert used <= set(datasets_rl.__all__)


def named_so(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "datasets_rl"


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("program", [text for text in PROGRAMS if "demo/pendulum" in text])
def test_programs_on_built_in_data_run(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
