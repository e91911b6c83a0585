"""The printer: the streams and the formats of the output."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from datasets_rl.cli.output import SCHEMA_VERSION, Facts, Lines, Printer, Result, Table, _page_lines, size_text

TABLE = Table(
    ("id", "size"), (("d4rl/a-very-long-name-of-a-dataset-that-no-window-holds-in-one-line-v2", "1 MB"), ("b", ""))
)
PAGE = Result({"a": float("nan")}, [Facts((("steps", "3"), ("none", ""))), TABLE], quiet=["x"])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (48_081_020, "48.1 MB"),
        (1_500_000_000, "1.5 GB"),
        (2_000_000_000_000_000, "2000.0 TB"),
    ],
)
def test_sizes_have_units(size, text):
    assert size_text(size) == text


def test_a_single_table_is_printed_to_a_pipe_as_tab_separated_rows(capsys):
    Printer(env={}).show("list", Result({}, [TABLE]))

    assert capsys.readouterr().out == "\n".join("\t".join(row) for row in TABLE.rows) + "\n"


def test_a_table_in_a_page_has_its_title_and_headings(capsys):
    Printer(env={}).show(
        "info", Result({}, [Facts((("a", "1"),)), Table(("key", "n"), (("long", "1"),), title="keys")])
    )

    assert capsys.readouterr().out == "a\t1\n\nkeys\nkey\tn\nlong\t1\n"


def test_facts_without_a_value_are_left_out(capsys):
    Printer(env={}).show("info", Result({}, [Facts((("steps", "3"), ("none", "")))]))

    assert capsys.readouterr().out == "steps\t3\n"


def test_json_is_one_document_with_a_version_and_no_nan(capsys):
    Printer(json=True, env={}).show("info", PAGE)

    assert json.loads(capsys.readouterr().out) == {"schema_version": SCHEMA_VERSION, "command": "info", "a": None}


def test_quiet_prints_the_essential(capsys):
    printer = Printer(quiet=True, env={})
    printer.show("info", PAGE)
    printer.note("talk")

    assert capsys.readouterr() == ("x\n", "")


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_the_table_has_headings_and_long_ids_are_folded_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [TABLE]))

    out = capsys.readouterr().out
    assert out.split()[0] == "id"
    assert TABLE.rows[0][0] in out.replace("\n", "").replace(" ", "")
    assert "…" not in out


WIDE = Table(
    ("name", "purpose", "n"),
    (("keep_top_returns", "the episodes with the highest returns, a share of them", "10"), ("a", "short", "2")),
)


def shown_at(columns, *blocks):
    """Return the lines of a page on a terminal of this width."""
    return _page_lines(blocks, columns, bold=False)


def test_a_table_that_fits_has_a_line_for_each_row_two_blanks_apart():
    text = WIDE.rows[0][1]

    assert shown_at(16 + 2 + len(text) + 2 + 2, WIDE) == [
        f"{'name':16}  {'purpose':{len(text)}}  n",
        f"{'keep_top_returns':16}  {text}  10",
        f"{'a':16}  {'short':{len(text)}}  2",
    ]


def test_the_widest_column_wraps_between_words_where_a_table_does_not_fit():
    assert shown_at(52, WIDE) == [
        f"{'name':16}  {'purpose':30}  n",
        "keep_top_returns  the episodes with the highest   10",
        "                  returns, a share of them",
        f"{'a':16}  {'short':30}  2",
    ]


def test_each_row_is_a_record_where_not_even_the_words_fit():
    assert shown_at(26, WIDE) == [
        "name",
        "  keep_top_returns",
        "purpose",
        "  the episodes with the",
        "  highest returns, a share",
        "  of them",
        "n",
        "  10",
        "",
        "name",
        "  a",
        "purpose",
        "  short",
        "n",
        "  2",
    ]


texts = st.text(st.sampled_from("ab /-語é "), max_size=60)
tables = st.integers(1, 5).flatmap(
    lambda n: st.builds(
        lambda header, rows, title, listing: Table(tuple(header), tuple(map(tuple, rows)), title, listing),
        st.lists(texts, min_size=n, max_size=n),
        st.lists(st.lists(texts, min_size=n, max_size=n), max_size=4),
        st.sampled_from(["", "keys"]),
        st.booleans(),
    )
)
facts = st.lists(st.tuples(texts, texts), max_size=4).map(lambda pairs: Facts(tuple(pairs), "stored"))


@given(tables | facts, st.integers(24, 200))
def test_no_line_of_any_table_is_wider_than_the_terminal(block, columns):
    assert [line for line in shown_at(columns, block) if cell_len(line) > columns] == []


@given(tables.filter(lambda one: not one.listing), st.integers(24, 200))
def test_no_letter_of_a_wrapped_table_is_lost(table, columns):
    shown = "".join(shown_at(columns, table))

    assert not Counter("".join(chain.from_iterable(table.rows)).replace(" ", "")) - Counter(shown)


@given(tables, st.sampled_from(["", "keys"]))
def test_a_table_in_a_pipe_has_as_many_cells_in_each_row_as_it_has_columns(table, title):
    lines = _page_lines([replace(table, title=title)], None, bold=False)

    assert {line.count("\t") for line in lines[bool(title) :]} <= {len(table.header) - 1}


@pytest.mark.parametrize(
    ("env", "no_color", "colours"),
    [
        ({"TERM": "xterm"}, False, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "CI": "1"}, False, False),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_colors_are_printed_only_on_terminals_that_support_them(capsys, env, no_color, colours):
    Printer(no_color=no_color, env=env).show("info", Result({}, [Lines(("text",), title="title")]))

    assert ("\x1b[" in capsys.readouterr().out) is colours


@pytest.mark.usefixtures("terminal")
def test_text_of_a_manifest_cannot_control_the_terminal(capsys):
    hostile = "MIT\x1b[2J\x07\nnext line"
    for env in ({}, {"TERM": "xterm", "NO_COLOR": "1"}):
        Printer(env=env).show(
            "info", Result({}, [Facts((("license", hostile),)), Lines((hostile,), hostile)], [hostile])
        )
        Printer(env=env, quiet=True).show("info", Result({}, quiet=[hostile]))
        Printer(env=env).note(hostile)

    out, err = capsys.readouterr()
    assert not {"\x07"} & set(out + err)
    assert "\x1b[2J" not in out + err
    assert "\\x1b[2J\\x07" in out


LISTING = Table(
    ("id", "size", "limit", "notes"),
    (
        ("a/short", "1 MB", "-", "a note that is much longer than the rest of the window"),
        ("a/name-of-a-dataset-that-is-wider-than-its-column", "20 MB", "-", ""),
        ("a/name-of-a-dataset-that-nearly-fills-the-whole-window-v2", "5 MB", "-", "old"),
        ("b", "unknown", "-", "brief"),
    ),
    listing=True,
)


@pytest.mark.usefixtures("terminal")
def test_a_listing_shortens_the_last_column_and_gives_an_id_that_is_too_long_its_own_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [LISTING]))

    # 60 - 20 for notes - 7 for sizes - two gaps leave 29 for ids; no dataset has a limit.
    assert capsys.readouterr().out.splitlines() == [
        f"{'id':29}  {'size':7}  notes",
        f"{'a/short':29}  {'1 MB':7}  a note that is much…",
        "a/name-of-a-dataset-that-is-wider-than-its-column  20 MB",
        "a/name-of-a-dataset-that-nearly-fills-the-whole-window-v2",
        f"{'':29}  {'5 MB':7}  old",
        f"{'b':29}  {'unknown':7}  brief",
    ]


@pytest.mark.usefixtures("terminal")
def test_the_headings_of_a_listing_stand_above_columns_that_all_rows_move_to_the_right(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"atari_dqn/Pong/{run}" for run in (1, 2)]
    rows = tuple((name, "14.1 GB", "PongNoFrameskip", "discrete[6]", "Atari Pong: run of DQN") for name in names)

    table = Table(("id", "size", "environment", "action", "title"), rows, listing=True)

    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [table]))

    head, *lines = capsys.readouterr().out.splitlines()
    assert [line.index("14.1 GB") for line in lines] == [head.index("size")] * 2
    assert [line.index("PongNo") for line in lines] == [head.index("environment")] * 2


@pytest.mark.usefixtures("terminal")
def test_a_listing_that_fits_is_not_shortened(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [LISTING]))

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("rest of the window")
    assert {line.find("MB") for line in lines[1:4]} == {len(LISTING.rows[2][0]) + 4, len(LISTING.rows[2][0]) + 5}


def test_a_listing_goes_into_a_pipe_with_all_its_columns(capsys):
    Printer(env={}).show("list", Result({}, [LISTING]))

    assert capsys.readouterr().out == "\n".join("\t".join(row) for row in LISTING.rows) + "\n"


@pytest.mark.usefixtures("terminal")
def test_a_listing_without_rows_is_its_headings(capsys):
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [Table(("id", "size"), (), listing=True)]))

    assert capsys.readouterr().out == "id\n"
