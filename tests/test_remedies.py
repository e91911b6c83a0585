"""Remedies are data: Python code in Python, and any other spelling by a function."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from datasets_rl.errors import Argument, Call, ConversionError, DatasetsRLError, Remedy
from datasets_rl.sources import Selection

AGAIN = Remedy("download {} again with {}", "{d4rl}/x", Argument("force", True))


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (Argument("force", True), "force=True"),
        (Argument("from_local"), "from_local=..."),
        (Argument("root", Path("/data")), "root='/data'"),
        (Call("download", "d4rl/it's", force=True), """datasets_rl.download("d4rl/it's", force=True)"""),
        (Call("preprocess", ..., recipe=...), "datasets_rl.preprocess(..., recipe=...)"),
        (
            Call("download", "a/b", selection=Selection(episodes="0:5", options={"images": "encoded"}).call()),
            "datasets_rl.download('a/b', selection=datasets_rl.Selection(episodes='0:5', options={'images': 'encoded'}))",
        ),
    ],
)
def test_actions_are_python_code(action, code):
    assert str(action) == code
    compile(f"f({code})", "hint", "eval")


def test_the_hint_of_an_error_is_its_remedy_as_python_code():
    error = DatasetsRLError("it broke", hint=AGAIN)

    assert error.hint == "download {d4rl}/x again with force=True"
    assert str(error) == f"it broke\n{error.hint}"
    assert error.remedy == AGAIN


def test_a_text_and_a_remedy_can_be_assigned_to_the_hint():
    error = ConversionError("x", ["it is cut"])
    assert not error.remedy

    error.hint = error.remedy or "give {another} file"
    assert error.hint == "give {another} file"
    error.hint = Remedy("{}; {}", AGAIN, "or wait")
    assert error.hint == "download {d4rl}/x again with force=True; or wait"


def test_a_remedy_of_another_process_is_the_same():
    assert pickle.loads(pickle.dumps(DatasetsRLError("it broke", hint=AGAIN))).remedy == AGAIN


def test_a_remedy_inside_a_remedy_is_spelled_by_the_same_function():
    assert Remedy("{}!", AGAIN).text_with(lambda action: f"<{type(action).__name__}>") == (
        "download <str> again with <Argument>!"
    )


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (Argument("no_eval", True), ["--no-eval"]),
        (Argument("steps"), ["--steps", "..."]),
        (Argument("mirrors", ["a", "b"]), ["--mirrors", "a", "--mirrors", "b"]),
    ],
)
def test_an_argument_is_spelled_as_an_option(argument, words):
    assert argument.option_words() == words
