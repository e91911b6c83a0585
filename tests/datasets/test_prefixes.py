"""Datasets by ids with the prefix of their source."""

from __future__ import annotations

import pytest

import datasets_rl as rl
from datasets_rl.datasets import prefixes
from datasets_rl.errors import InvalidArgumentError, UnknownIdError


@pytest.fixture(autouse=True)
def no_registrations(monkeypatch):
    """Registrations of a test end with it."""
    monkeypatch.setattr(prefixes, "_registered", {})


def test_a_source_is_a_prefix(tmp_path):
    dataset = rl.load("Demo:pendulum", root=tmp_path, batch_size=3)

    assert isinstance(dataset, rl.DemoExperienceReplay)
    assert dataset.sample().batch_size == (3,)


def test_a_registered_class_gets_the_rest_of_the_id():
    rl.register_dataset("toy", lambda name, **options: (name, options))
    rl.register_dataset("later", "collections:Counter")

    assert rl.load("toy:a:b", batch_size=4) == ("a:b", {"batch_size": 4})
    assert rl.load("later:aab") == {"a": 2, "b": 1}


def test_a_prefix_that_exists_is_replaced_only_on_request():
    rl.register_dataset("d4rl", str.upper, replace=True)
    assert rl.load("d4rl:x") == "X"
    with pytest.raises(KeyError, match="'d4rl' is already registered"):
        rl.register_dataset("d4rl", str.lower)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rl.register_dataset("a:b", dict), "expected letters, digits and underscores"),
        (lambda: rl.register_dataset("toy", "module"), "expected 'module:name', a module and the name"),
        (lambda: rl.register_dataset("toy", 3), "dataset is a int, expected a class"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_an_unknown_prefix_is_an_unknown_id():
    with pytest.raises(UnknownIdError, match="nowhere"):
        rl.load("nowhere:pendulum")
