"""Remedies of the library name options and commands on the command line, and only there."""

from __future__ import annotations

import ast
import gc
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from datasets_rl.cli.commands import command_names, subcommand_names
from datasets_rl.cli.frame import make_command
from datasets_rl.cli.remedies import COMMANDS, OPTIONS, spell_action
from datasets_rl.errors import Argument, Call
from datasets_rl.recipes.train import program_files
from datasets_rl.sources import Selection

LIBRARY = Path(__file__).parents[2] / "datasets_rl"
TYPED = {
    option
    for one in make_command().commands.values()
    for parameter in one.params
    for option in parameter.opts
    if option.startswith("--")
}
PARSER = LIBRARY / "training" / "arguments.py"
PROGRAMS = [PARSER, *program_files().values()]
OF_PROGRAMS = {option for path in PROGRAMS for option in re.findall(r'"(--[\w-]+)"', path.read_text("utf-8"))}
"""Options of the training programs, which `PARSER` and the programs themselves define."""
SHELL = re.compile(rf"(?<![\w-])({'|'.join(sorted(TYPED))}|-vv)\b|\brlds ({'|'.join(command_names())})\b")


@cache
def nodes_by_file() -> dict[Path, list[ast.AST]]:
    """Return the nodes of the kinds that tests ask for."""
    kinds = (ast.Constant, ast.Call, ast.Attribute)
    gc.disable()  # looking for garbage among the nodes, again and again, would take most of the time
    found = {
        path: [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, kinds)]
        for path in sorted(LIBRARY.rglob("*.py"))
    }
    gc.freeze()
    gc.enable()
    return found


@cache
def nodes(kind: type[ast.AST]) -> list[tuple[str, ast.AST]]:
    return [
        (f"{path.relative_to(LIBRARY.parent)}:{node.lineno}", node)
        for path, found in nodes_by_file().items()
        for node in found
        if isinstance(node, kind)
    ]


def made(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield where the library creates an `Argument` or a `Call`."""
    for place, node in nodes(ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == name and "errors.py" not in place:
            yield place, node


def function(name: str):
    return pkgutil.resolve_name(f"datasets_rl.{name}")


@pytest.mark.parametrize("text", ["with --force", "`rlds list` shows", "rlds preprocess x", "-vv shows"])
def test_the_words_of_the_shell_are_recognized(text):
    assert SHELL.search(text)


def test_no_text_of_the_library_names_an_option_or_a_command_of_rlds():
    """Docstrings are texts, too: users of Python read them."""
    found = [
        f"{place}: {match[0]}"
        for place, node in nodes(ast.Constant)
        if isinstance(node.value, str) and (match := SHELL.search(node.value)) and PARSER.name not in place
    ]

    assert not found, "\n".join(["", *found])


def test_the_library_never_copies_the_python_words_of_another_error():
    """What is copied is the remedy, which the command line can spell."""
    copied = [
        place
        for place, node in nodes(ast.Attribute)
        if node.attr == "hint" and isinstance(node.ctx, ast.Load) and "errors.py" not in place
    ]

    assert not copied, "\n".join(["", *copied])


def test_every_text_of_a_remedy_has_a_place_for_each_action():
    wrong = []
    for place, node in made("Remedy"):
        text, *actions = node.args
        if isinstance(text, ast.Constant) and text.value.count("{}") != len(actions):
            wrong.append(place)

    assert list(made("Remedy"))
    assert not wrong, "\n".join(["", *wrong])


def test_every_call_in_a_remedy_is_one_of_a_public_function_and_a_command():
    calls = [
        (place, node.args[0].value, node.args[1:], [one.arg for one in node.keywords])
        for place, node in made("Call")
        if isinstance(node.args[0], ast.Constant) and all(one.arg for one in node.keywords)
    ]

    assert len({name for _, name, _, _ in calls}) > 5
    for place, name, values, named in calls:
        inspect.signature(function(name)).bind_partial(*values, **dict.fromkeys(named))
        # Commands take a selection as options, and an id where Python takes the folder.
        assert name in {*COMMANDS, "Selection", "locate"}, place
        assert set(named) <= {*OPTIONS, "selection", "options"}, place


def test_every_argument_in_a_remedy_is_one_of_a_public_function_and_an_option():
    names = (
        "append_episodes",
        "download",
        "export",
        "preprocess",
        "mixture",
        "list_datasets",
        "lockfile.sync",
        "normalized_score",
        "Selection",
    )
    functions = [function(name) for name in names]
    parameters = {name for one in functions for name in inspect.signature(one).parameters}
    named = {node.args[0].value: place for place, node in made("Argument") if isinstance(node.args[0], ast.Constant)}

    assert len(named) > 5
    assert {*named} <= parameters | {option.strip("-").replace("-", "_") for option in OF_PROGRAMS}
    assert {*named} <= {*OPTIONS, "selection"}


def test_every_option_and_command_of_a_remedy_exists():
    assert {option for option, *_ in OPTIONS.values()} <= TYPED | OF_PROGRAMS
    assert {words[0] for words in COMMANDS.values()} <= set(command_names())
    below = {word for words in COMMANDS.values() for word in subcommand_names(words[0])}
    assert {word for words in COMMANDS.values() for word in words[1:]} <= TYPED | below


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Argument("force", True), "--force"),
        (Argument("hash_check", False), "--no-hash-check"),
        (Argument("from_local"), "--from-local PATH"),
        (Argument("from_local", Path("/my data")), "--from-local '/my data'"),
        (Argument("jobs", 1), "--jobs 1"),
        (Argument("of_another_package", "two three"), "--of-another-package 'two three'"),
        (Argument("selection", Call("Selection", keys=...)), "--keys KEY,..."),
        (Argument("selection", Call("Selection", exclude=("*.a", "b"))), "--exclude '*.a' --exclude b"),
        (Call("list_datasets", downloaded=True), "rlds list --downloaded"),
        (Call("download", "roboset/DAPG(human)"), "rlds download 'roboset/DAPG(human)'"),
        (Call("preprocess", Call("locate", "a/b"), recipe=...), "rlds preprocess a/b --recipe NAME"),
        (Call("preprocess", ..., force=True), "rlds preprocess ... --force"),
        (Call("preprocessing.naming.describe_steps"), "rlds preprocess --list"),
        (
            Call("download", "a/b", selection=Selection("0:5", ("x", "y"), 99, options={"images": "encoded"}).call()),
            "rlds download a/b --episodes 0:5 --keys x,y --max-size 99 --images encoded",
        ),
        ("/my data", "/my data"),
    ],
)
def test_an_action_is_what_the_user_types(action, words):
    assert spell_action(action) == words


def test_commands_repeat_the_root_that_was_given():
    assert spell_action(Call("download", "a/b"), Path("/my data")) == "rlds --root '/my data' download a/b"
    assert spell_action(Argument("force", True), Path("/data")) == "--force"
