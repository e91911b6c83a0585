"""Parts of datasets: how they are written, and when what is stored has what is asked for."""

from __future__ import annotations

import sys

import pytest

from datasets_rl.errors import BadArgument, UnknownKey
from datasets_rl.sources import Selection, read_numbers, source
from datasets_rl.sources._selection import Numbers

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
def test_what_is_none_of_them_is_told(text):
    with pytest.raises(BadArgument, match="episodes are"):
        read_numbers(text, 10)


@pytest.mark.parametrize(
    ("text", "numbers", "last"),
    [("0:3", {0, 1, 2}, 2), ("7,1", {1, 7}, 7), ("1:8:3,0", {0, 1, 4, 7}, 7), ("3,6:", {3, *range(6, 12)}, None)],
)
def test_numbers_may_have_no_end_where_nobody_knows_it(text, numbers, last):
    read = Numbers.read(text)

    assert {number for number in range(12) if number in read} == numbers
    assert read.last == last or last is None
    assert (sys.maxsize - 1 in read) is (last is None)
    assert Numbers.read("") is None


@pytest.mark.parametrize(
    ("text", "says"), [("-1", "not known"), ("0:-2", "not known"), ("3:1", "none"), ("1-3", "expected numbers")]
)
def test_numbers_from_an_end_that_nobody_knows_are_refused(text, says):
    with pytest.raises(BadArgument, match=f"episodes are {text!r}.*{says}"):
        Numbers.read(text)


def test_a_key_stands_for_all_below_it_and_for_what_follows():
    kept = Selection(keys=("observation",)).kept_keys(KEYS)

    assert kept == {("observation", "a"), ("observation", "b"), ("next", "reward"), ("next", "observation", "c")}
    assert Selection().kept_keys(KEYS) == set(KEYS)
    with pytest.raises(UnknownKey, match="no key 'observatoin'"):
        Selection(keys=("observatoin",)).kept_keys(KEYS)


@pytest.mark.parametrize(
    ("stored", "asked", "covers"),
    [
        (Selection(), Selection(episodes="0:5", keys=("action",)), True),
        (Selection(episodes="0:5"), Selection(episodes="0:5"), True),
        (Selection(episodes="0:5"), Selection(episodes="0:5", keys=("action",)), True),
        (Selection(episodes="0:5"), Selection(), False),
        (Selection(episodes="0:5"), Selection(episodes="0:6"), False),
        (Selection(options={"images": "encoded"}), Selection(), False),
        (Selection(), Selection(options={"images": "encoded"}), False),
    ],
)
def test_what_is_stored_covers_what_restricts_it_in_the_same_way_or_further(stored, asked, covers):
    assert stored.covers(asked) is covers


def test_a_selection_survives_the_manifest_and_reads_as_it_is_typed():
    one = Selection("0:5", ("a", "b"), 99, ("*.x",), ("y", "z"), {"images": "encoded"})

    assert Selection.from_json(one.to_json()) == one
    assert str(one) == (
        "--episodes 0:5 --max-size 99 --keys a,b --include *.x --exclude y --exclude z --images encoded"
    )
    assert (Selection().to_json(), str(Selection())) == ({}, "the whole dataset")


def test_a_source_refuses_what_it_cannot_give_all_at_once():
    with pytest.raises(
        BadArgument, match=r"d4rl gives whole files, and no episodes; d4rl has no option 'images'; it has none$"
    ):
        source("d4rl").check(Selection(episodes="0:5", options={"images": "encoded"}))
