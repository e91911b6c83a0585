"""Selections: their syntax, and whether a stored part includes a requested part."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.sources import Option, Selection, get_source, read_numbers
from datasets_rl.sources.selection import Numbers

KEYS = [("observation", "a"), ("observation", "b"), ("action",), ("next", "reward"), ("next", "observation", "c")]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [*range(10)]),
        ("0:3", [0, 1, 2]),
        ("0:9:4", [0, 4, 8]),
        ("1,5,9", [1, 5, 9]),
        ("5,1,1:3", [1, 2, 5]),
        ("-2:", [8, 9]),
        ("-1", [9]),
        ("8:100", [8, 9]),
    ],
)
def test_numbers_are_written_as_slices_and_lists(text, numbers):
    assert read_numbers(text, 10) == numbers


@pytest.mark.parametrize("text", ["a", "1-3", "0:3:0", "10", "-11", "20:30", "[0, 1]", "1,,2", "0:1:2:3"])
def test_invalid_episode_numbers_are_reported(text):
    with pytest.raises(InvalidArgumentError, match="episodes are"):
        read_numbers(text, 10)


@pytest.mark.parametrize(
    ("text", "numbers", "last"),
    [("0:3", {0, 1, 2}, 2), ("7,1", {1, 7}, 7), ("1:8:3,0", {0, 1, 4, 7}, 7), ("3,6:", {3, *range(6, 12)}, None)],
)
def test_numbers_may_have_no_end_where_the_count_is_unknown(text, numbers, last):
    read = Numbers.read(text)

    assert {number for number in range(12) if number in read} == numbers
    assert read.last == last or last is None
    assert (sys.maxsize - 1 in read) is (last is None)
    assert Numbers.read("") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [("-1", "not known"), ("0:-2", "not known"), ("3:1", "selects no episode"), ("1-3", "expected numbers")],
)
def test_negative_numbers_are_refused_where_the_count_is_unknown(text, says):
    with pytest.raises(InvalidArgumentError, match=f"episodes are {text!r}.*{says}"):
        Numbers.read(text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([0, 1], "0:2"),
        ((9, 3, 3, 4, 5), "3:6,9"),
        (range(100), "0:100"),
        (range(1, 9, 3), "1:9:3"),
        (range(9, 6, -1), "7:10"),
        (np.arange(5), "0:5"),
        (torch.tensor([2, 0]), "0,2"),
        ({7}, "7"),
        (7, "7"),
        (np.int64(0), "0"),
        (torch.tensor(3), "3"),
        ([-1, 0], "0,-1"),
        ("0:100", "0:100"),
    ],
    ids=repr,
)
def test_episodes_are_given_as_integers_as_well(given, text):
    selection = Selection(episodes=given)

    assert selection.episodes == text
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection
    assert replace(selection, keys="action").episodes == text
    assert isinstance(given, (str, set)) or read_numbers(text, 100) == np.unique(np.asarray(given) % 100).tolist()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "selects none"),
        (range(0), "selects none"),
        ([0.5], "expected numbers as integers"),
        (None, "expected numbers as integers"),
        ([0, "1"], "expected numbers as integers"),
        (np.zeros((2, 2), int), "expected numbers as integers"),
        (True, "expected numbers as integers"),
        (np.array([True, False]), "expected numbers as integers"),
        (torch.tensor([True]), "expected numbers as integers"),
    ],
    ids=repr,
)
def test_what_is_not_a_number_of_an_episode_is_refused(given, says):
    with pytest.raises(InvalidArgumentError, match=says) as raised:
        Selection(episodes=given)
    assert ("flatnonzero" in raised.value.hint) is ("bool" in str(getattr(given, "dtype", type(given))))


def test_one_name_is_not_a_list_of_letters():
    assert Selection(keys="observation", include="*.npz", exclude=["a", "b"]) == Selection(
        keys=("observation",), include=("*.npz",), exclude=("a", "b")
    )
    with pytest.raises(TypeError, match=r"keys has \('next', 'reward'\), expected text, a name such as"):
        Selection(keys=[("next", "reward")])


@pytest.mark.parametrize("text", ["", ":", "5:", "0:100000000000:2"])
def test_more_numbers_than_fit_into_the_memory_are_refused_by_name(text):
    with pytest.raises(InvalidArgumentError, match="selects more than 10,000,000 of 1,000,000,000,000,000"):
        read_numbers(text, 10**15)
    assert read_numbers("-1", 10**15) == [10**15 - 1]


def test_a_key_includes_all_keys_below_it_and_under_next():
    kept = Selection(keys=("observation",)).kept_keys(KEYS)

    assert kept == {("observation", "a"), ("observation", "b"), ("next", "reward"), ("next", "observation", "c")}
    assert Selection().kept_keys(KEYS) == set(KEYS)
    with pytest.raises(UnknownKeyError, match="no key 'observatoin'"):
        Selection(keys=("observatoin",)).kept_keys(KEYS)


OPTIONS = (
    Option("images", "", "decoded", choices=("decoded", "encoded")),
    Option("checkpoints", "", numbers=True),
)
ENCODED = Selection(options={"images": "encoded"})
SOME = Selection(options={"checkpoints": "0:3"})


@pytest.mark.parametrize(
    ("stored", "asked", "covers"),
    [
        (Selection(), Selection(episodes="0:5", keys=("action",)), True),
        (Selection(episodes="0:5"), Selection(episodes="0:5"), True),
        (Selection(episodes="0:5"), Selection(episodes="0:5", keys=("action",)), True),
        (Selection(episodes="0:5"), Selection(), False),
        (Selection(episodes="0:5"), Selection(episodes="0:6"), False),
        (Selection(episodes="0:5"), Selection(episodes="1,3:5"), True),
        (Selection(episodes="0:3,3:5"), Selection(episodes="1:5"), True),
        (Selection(episodes="0:10:2"), Selection(episodes="4"), True),
        (Selection(episodes="0:10:2"), Selection(episodes="4:6"), False),
        (Selection(episodes="0:5"), Selection(episodes="-1"), False),
        (Selection(keys=("info", "action")), Selection(keys=("info.qpos", "next.info", "next.reward")), True),
        (Selection(keys=("info.qpos",)), Selection(keys=("info",)), False),
        (Selection(keys=("observation",)), Selection(keys=("observations",)), False),
        (Selection(max_size=9), Selection(max_size=8), True),
        (Selection(max_size=9), Selection(max_size=10), False),
        (Selection(include=("a", "b")), Selection(include=("b",), exclude=("c",)), True),
        (Selection(exclude=("c",)), Selection(include=("b",)), False),
        (ENCODED, Selection(), True),
        (ENCODED, Selection(options={"images": "decoded"}), False),
        (Selection(), Selection(options={"images": "decoded"}), True),
        (Selection(), ENCODED, False),
        (SOME, Selection(options={"checkpoints": "2"}), True),
        (SOME, Selection(options={"checkpoints": "3"}), False),
        (SOME, Selection(), False),
    ],
)
def test_a_stored_part_covers_a_request_if_nothing_is_missing_and_options_are_equal(stored, asked, covers):
    assert stored.covers(asked, OPTIONS) is covers


@pytest.mark.parametrize(
    ("stored", "asked", "joined"),
    [
        (Selection(episodes="0:3"), Selection(episodes="5:8"), Selection(episodes="0:3,5:8")),
        (Selection(episodes="0:3"), Selection(episodes="2,3"), Selection(episodes="0:4")),
        (Selection(episodes="0:3"), Selection(), Selection()),
        (Selection(episodes="2:"), Selection(episodes=":2"), Selection()),
        (Selection(episodes="0:3"), Selection(episodes="-2:"), Selection(episodes="0:3,-2:")),
        (Selection(episodes="0:3"), Selection(keys=("action",)), Selection()),
        (Selection(keys=("a.b", "c")), Selection(keys=("a",)), Selection(keys=("c", "a"))),
        (Selection(include=("x", "y")), Selection(include=("z",)), Selection(include=("x", "y", "z"))),
        (Selection(exclude=("x", "y")), Selection(exclude=("y", "z")), Selection(exclude=("y",))),
        (Selection(max_size=9), Selection(max_size=10), Selection(max_size=10)),
        (ENCODED, Selection(episodes="0:3"), ENCODED),
        (SOME, Selection(options={"checkpoints": "7"}), Selection(options={"checkpoints": "0:3,7"})),
        (SOME, Selection(), Selection()),
    ],
)
def test_two_selections_join_to_the_smallest_one_that_has_both(stored, asked, joined):
    assert stored.union(asked, OPTIONS) == joined


pieces = st.one_of(
    st.integers(0, 12).map(str),
    st.builds("{}:{}".format, st.integers(0, 6), st.integers(7, 14)),
    st.builds("{}:{}:{}".format, st.integers(0, 6), st.integers(7, 14), st.integers(1, 4)),
    st.builds("{}:".format, st.integers(0, 14)),
)
numbers = st.lists(pieces, min_size=1, max_size=4).map(",".join)


@given(numbers, numbers)
@example("4:7:3", "0,4")
def test_joined_numbers_are_the_union(left, right):
    here, there = ({*read_numbers(text, 20)} for text in (left, right))
    stored, asked = Selection(episodes=left), Selection(episodes=right)
    joined = stored.union(asked)

    assert {*read_numbers(joined.episodes, 20)} == here | there
    assert joined.covers(stored)
    assert joined.covers(asked)
    assert joined.union(asked) == joined
    if stored.covers(asked):
        assert there <= here


def test_a_selection_is_restored_from_the_manifest_and_shows_its_fields():
    one = Selection("0:5", ("a", "b"), 99, ("*.x",), ("y", "z"), {"images": "encoded"})

    assert Selection.from_json(one.to_json()) == one
    assert str(one) == "episodes=0:5 keys=a,b max_size=99 include=*.x exclude=y,z images=encoded"
    assert eval(str(one.call()).replace("datasets_rl.", "")) == one
    assert (Selection().to_json(), str(Selection())) == ({}, "the whole dataset")


@pytest.mark.parametrize("document", [{"episodes": 3}, {"keys": "a"}, {"steps": "0:3"}, {"options": []}])
def test_an_invalid_selection_in_a_document_is_refused_by_name(document):
    (name,) = document
    with pytest.raises(InvalidArgumentError, match=f"a selection has {name} = "):
        Selection.from_json(document)


def test_a_selection_without_options_adopts_those_of_a_stored_part():
    part = Selection("0:3", ("a",), include=("x",), options={"images": "encoded"})

    assert Selection(keys=("b",)).completed_from(part) == replace(part, keys=("b",))
    assert Selection(options={"split": "test"}).completed_from(part).options == {"images": "encoded", "split": "test"}
    assert Selection().completed_from(part) == part


def test_a_source_reports_all_unsupported_selections_at_once():
    with pytest.raises(
        InvalidArgumentError,
        match=r"d4rl can select whole files, but not episodes; d4rl has no option 'split', only images$",
    ):
        get_source("d4rl").check(Selection(episodes="0:5", options={"split": "test"}))
