"""The printer: what goes where, in which form."""

from __future__ import annotations

import json

import pytest

from datasets_rl.cli.output import SCHEMA_VERSION, Facts, Lines, Printer, Result, Table, size_text

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
def test_sizes_read_as_people_write_them(size, text):
    assert size_text(size) == text


def test_a_table_alone_goes_into_a_pipe_as_tab_separated_rows(capsys):
    Printer(env={}).show("list", Result({}, [TABLE]))

    assert capsys.readouterr().out == "\n".join("\t".join(row) for row in TABLE.rows) + "\n"


def test_a_table_in_a_page_has_its_title_and_headings(capsys):
    Printer(env={}).show(
        "info", Result({}, [Facts((("a", "1"),)), Table(("key", "n"), (("long", "1"),), title="keys")])
    )

    assert capsys.readouterr().out == "a  1\n\nkeys\n  key   n\n  long  1\n"


def test_facts_without_a_value_are_left_out(capsys):
    Printer(env={}).show("info", Result({}, [Facts((("steps", "3"), ("none", "")))]))

    assert capsys.readouterr().out == "steps  3\n"


def test_json_is_one_document_with_a_version_and_no_nan(capsys):
    Printer(json=True, env={}).show("info", PAGE)

    assert json.loads(capsys.readouterr().out) == {"schema_version": SCHEMA_VERSION, "command": "info", "a": None}


def test_quiet_prints_the_essential(capsys):
    printer = Printer(quiet=True, env={})
    printer.show("info", PAGE)
    printer.note("talk")

    assert capsys.readouterr() == ("x\n", "")


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_the_table_has_headings_and_long_ids_are_folded_not_cut(capsys):
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [TABLE]))

    out = capsys.readouterr().out
    assert out.split()[:2] == ["id", "size"]
    assert TABLE.rows[0][0] in out.replace("\n", "").replace(" ", "")
    assert "…" not in out


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
def test_colours_come_only_where_they_are_welcome(capsys, env, no_color, colours):
    Printer(no_color=no_color, env=env).show("info", Result({}, [Lines(("text",), title="title")]))

    assert ("\x1b[" in capsys.readouterr().out) is colours


@pytest.mark.usefixtures("terminal")
def test_what_a_manifest_says_does_not_steer_the_terminal(capsys):
    hostile = "MIT\x1b[2J\x07\nnext line"
    for env in ({}, {"TERM": "xterm", "NO_COLOR": "1"}):
        Printer(env=env).show(
            "info", Result({}, [Facts((("licence", hostile),)), Lines((hostile,), hostile)], [hostile])
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
        ("a/short", "1 MB", "-", "a note that is much longer than what is left of the window"),
        ("a/name-of-a-dataset-that-is-wider-than-its-column", "20 MB", "-", ""),
        ("b", "unknown", "-", "brief"),
    ),
    listing=True,
)


@pytest.mark.usefixtures("terminal")
def test_a_listing_has_a_line_a_row_and_cuts_the_last_column_only(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [LISTING]))

    # 60 - 20 for notes - 7 for sizes - two gaps leave 29 for ids; nobody has a limit.
    assert capsys.readouterr().out.splitlines() == [
        f"{'id':29}  {'size':7}  notes",
        f"{'a/short':29}  {'1 MB':7}  a note that is much…",
        "a/name-of-a-dataset-that-is-wider-than-its-column  20 MB",
        f"{'b':29}  {'unknown':7}  brief",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_listing_with_room_is_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [LISTING]))

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("left of the window")
    assert {line.find("MB") for line in lines[1:3]} == {len(LISTING.rows[1][0]) + 4, len(LISTING.rows[1][0]) + 5}


def test_a_listing_goes_into_a_pipe_with_all_its_columns(capsys):
    Printer(env={}).show("list", Result({}, [LISTING]))

    assert capsys.readouterr().out == "\n".join("\t".join(row) for row in LISTING.rows) + "\n"


@pytest.mark.usefixtures("terminal")
def test_a_listing_without_rows_is_its_headings(capsys):
    Printer(env={"TERM": "xterm", "NO_COLOR": "1"}).show("list", Result({}, [Table(("id", "size"), (), listing=True)]))

    assert capsys.readouterr().out == "id\n"
