"""The README, the page of the commands and the first pages agree with the command."""

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

ROOT = Path(datasets_rl.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
PAGES["README.md"] = README
BLOCKS = [
    (page, kind, text)
    for page, whole in PAGES.items()
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", whole, flags=re.MULTILINE | re.DOTALL)
]
# Sessions of other pages are run by the tests of their commands.
SESSIONS = [text for page, kind, text in BLOCKS if kind == "console" and page.startswith("docs/get-started/")]
PROGRAMS = [text for page, kind, text in BLOCKS if kind == "python" and page == "README.md"]
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


def rows(heading: str, page: str = COMMANDS) -> list[list[str]]:
    """Return the cells of the table under a heading, without its header rows."""
    section = re.split(rf"^#+ {heading}$", page, flags=re.MULTILINE)[1]
    lines = [line for line in section.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_table_of_commands_is_complete(options):
    shown = {cells[0].split()[1]: set(re.findall(r"`(-[-a-z]+)`", cells[2])) for cells in rows("All commands")}

    missing, surplus = sorted({*command_names()} - {*shown}), sorted({*shown} - {*command_names()})
    assert not missing + surplus, (
        f"in the table under 'All commands' of docs/commands.md, add rows for {missing}, and remove those for {surplus}"
    )
    for name, own in options.items():
        expected, named = long(own - GLOBAL_OPTIONS), long(shown[name])
        assert expected == named, (
            f"the row of rlds {name} in docs/commands.md names the options {named}; the command has {expected}"
        )


def long(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("--")}


def test_options_for_all_commands_are_named():
    assert [name for name in long(GLOBAL_OPTIONS) if f"`{name}`" not in COMMANDS] == []


def test_every_option_that_is_named_exists(options):
    known = GLOBAL_OPTIONS.union(*options.values())
    named = re.findall(r"(?<![-\w])--[a-z][-a-z]*", COMMANDS + PAGES["docs/sources/README.md"])

    assert [name for name in named if name not in known] == []


def test_every_command_that_is_named_anywhere_exists_and_takes_its_options(options):
    """In text and in blocks of all pages; `rlds` is also a word, and other programs have commands of that name."""
    found = {(page, line) for page, text in PAGES.items() for line in re.findall(r"`(rlds [^`\n]*)`", text)}
    found |= {
        (page, line)
        for page, kind, text in BLOCKS
        if kind in {"", "console"}
        for line in re.findall(r"^(?:\$ )?(rlds [^\n#]*)", text, flags=re.MULTILINE)
    }
    problems = []
    for page, line in sorted(found):
        words = re.split(r"[|;&>]|\s{2,}", line.replace("\\|", "/"))[0].split()[1:]
        name = next((word for word in words if not word.startswith("-")), "help")
        taken = {word.partition("=")[0] for word in words if word.startswith("--")}
        # The words after `rlds train` are those of the program.
        if name in options and name != "train" and not taken <= options[name] | GLOBAL_OPTIONS:
            problems.append(f"{page}: {line}: {taken - options[name] - GLOBAL_OPTIONS}")
        elif name not in options and re.fullmatch("[a-z]+", name):
            problems.append(f"{page}: {line}: there is no command {name}")

    assert problems == []
    assert len(found) > 100


def test_the_table_of_exit_codes_is_that_of_the_program():
    assert [(int(code), meaning) for code, meaning in rows("Exit codes")] == [
        (row.code, row.meaning) for row in EXIT_CODES
    ]


def test_the_table_of_environment_variables_is_that_of_the_program():
    assert [(name.strip("`"), meaning) for name, meaning in rows("Environment variables")] == list(_ENVIRONMENT)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {name for text in (*PAGES.values(), contributing()) for name in re.findall(r"`make ([a-z]+)", text)}

    assert [name for name in sorted(named) if f"\n{name}:" not in makefile] == []
    assert {"test", "docs"} <= named


def contributing() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_folders_of_the_layout_exist():
    named = [name for cells in rows("Layout", contributing()) for name in re.findall(r"`([\w/.]+)`", cells[0])]

    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "datasets_rl" / name).exists()] == []
    assert len(named) > 30


def steps(session: str) -> list[tuple[list[str], str]]:
    """Return the commands of a session with their output."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return [(shlex.split(words), shown) for words, shown in zip(parts[::2], parts[1::2], strict=True)]


SIZE = re.compile(r"\d[\d.]* [kMG]B")
"""The size of stored data, which the sessions show as it was."""


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions_have_the_output_of_the_commands(rlds, home, session, monkeypatch):
    # On a slow machine, a command that takes seconds would print its progress.
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    for words, shown in steps(session):
        if words[0] == "export":
            continue
        ran = rlds(*words[1:])
        got = SIZE.sub("SIZE", (ran.err + ran.out).replace(str(home), "/data"))
        beginning, dots, _ = SIZE.sub("SIZE", shown).partition("...\n")

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


def test_the_program_of_the_readme_is_that_of_the_page_whose_programs_run():
    page = PAGES["docs/get-started/first-policy.md"]

    shown = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert shown[:1] == PROGRAMS
