"""``rlds list``."""

from __future__ import annotations

import shutil

import pytest
from upstreams import hub

from datasets_rl import sources


def ids(ran):
    return [line.split("\t")[0] for line in ran.out.splitlines()]


def test_every_id_of_every_source_is_listed_by_name(rlds):
    everything = [f"{name}/{one}" for name in sources.source_names() for one in sources.get_source(name).ids()]

    assert ids(rlds("list")) == sorted(everything)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("hopper-medium-v2", ["d4rl/hopper-medium-v2"]),
        ("HOPPER-MEDIUM-V2", ["d4rl/hopper-medium-v2"]),
        ("hopper-medium-v?", ["d4rl/hopper-medium-v0", "d4rl/hopper-medium-v1", "d4rl/hopper-medium-v2"]),
        ("demo/*", ["demo/pendulum"]),
        ("pend*", ["demo/pendulum"]),
        ("*opper-medium-v[2]", ["d4rl/hopper-medium-v2"]),
    ],
)
def test_a_pattern_is_a_part_of_the_id_or_a_glob_over_it(rlds, pattern, found):
    assert ids(rlds("list", pattern)) == found


def test_a_pattern_without_a_match_is_not_an_error(rlds):
    ran = rlds("list", "nothing-of-this-name")

    assert (ran.code, ran.out) == (0, "")
    assert "no dataset matches\n" in ran.err


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("hoper", "hopper"),
        ("hoper-*", "hopper"),
        ("d4rl/hoper", "hopper"),
        ("pendulm", "demo/pendulum"),
        ("DEMO/PENDULM", "demo/pendulum"),
        ("hopper-medum-v2", "d4rl/hopper-medium-v2"),
    ],
)
def test_similar_ids_are_suggested_where_nothing_matches(rlds, pattern, meant):
    ran = rlds("list", pattern)

    assert (ran.code, ran.out) == (0, "")
    said = ran.err.partition("no dataset matches; did you mean ")[2].rstrip("?\n").split(", ")
    assert meant in said
    assert all(rlds("list", one).out for one in said)


def test_no_ids_are_suggested_where_another_option_excludes_the_matches(rlds):
    assert "did you mean" not in rlds("list", "pendulum", "--max-size", "1B").err
    assert "did you mean" not in rlds("list", "--downloaded").err


def test_the_option_source_lists_one_source(rlds):
    assert ids(rlds("list", "--source", "demo")) == ["demo/pendulum"]


def test_an_unknown_source_is_an_unknown_id_with_the_nearest(rlds):
    ran = rlds("list", "--source", "d4r")

    assert ran.code == 3
    assert "did you mean d4rl" in ran.err


def test_max_size_is_inclusive_and_excludes_unknown_sizes(rlds):
    size = sources.find("demo/pendulum").bytes

    assert ids(rlds("list", "pendulum", "--max-size", size)) == ["demo/pendulum"]
    assert ids(rlds("list", "pendulum", "--max-size", size - 1)) == []
    assert all(one["wire_bytes"] <= 10**8 for one in rlds("list", "--max-size", "100MB", "--json").json["datasets"])


def test_sorted_by_size_unknown_sizes_come_last(rlds):
    sizes = [one["wire_bytes"] for one in rlds("list", "--sort", "size", "--json").json["datasets"]]
    known = [size for size in sizes if size is not None]

    assert known == sorted(known)
    assert sizes == known + [None] * (len(sizes) - len(known))


def test_limit_shortens_the_list_and_reports_it(rlds):
    ran = rlds("list", "hopper", "--limit", 2, "--json")

    assert len(ran.json["datasets"]) == 2
    assert f"2 of {ran.json['total']} datasets shown" in ran.err


@pytest.mark.usefixtures("stored")
def test_stored_datasets_are_marked(rlds):
    assert ids(rlds("list", "--downloaded")) == ["demo/pendulum"]
    assert "\tyes\t" in rlds("list", "demo").out
    assert "\tyes\t" not in rlds("list", "d4rl/").out


def test_a_stored_dataset_outside_of_the_catalogs_is_listed(rlds, stored):
    shutil.copytree(stored, stored.with_name("mine"))

    assert ids(rlds("list", "--downloaded")) == ["demo/mine", "demo/pendulum"]


def test_unfinished_and_foreign_folders_are_not_listed_as_stored(rlds, home):
    (home / "demo" / ".work" / "pendulum" / "build").mkdir(parents=True)
    (home / "demo" / "pendulum").mkdir()
    (home / "notes.txt").write_text("mine")

    assert ids(rlds("list", "--downloaded")) == []


def test_deprecated_ids_and_known_issues_are_marked(rlds):
    row = rlds("list", "d4rl/hopper-medium-v0").out.rstrip("\n").split("\t")

    assert row == ["d4rl/hopper-medium-v0", "54.3 MB", "1000", "-", "deprecated, 2 known issues"]


def test_quiet_prints_ids(rlds):
    assert rlds("list", "hopper-medium-v2", "-q").out == "d4rl/hopper-medium-v2\n"


def test_ids_of_unknown_size_that_a_limit_leaves_out_are_counted(rlds):
    assert "of unknown size left out" in rlds("list", "--max-size", "1GB").err


def test_the_upstream_is_requested_only_with_an_option(rlds, tmp_path, monkeypatch):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "namespace_metadata.json").write_text('{"datasets": ["lab/new-v7"]}')
    with hub({"farama-minari/lab": tmp_path / "lab"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        before = ids(rlds("list", "--source", "minari"))
        asked = len(server.requests)
        after = ids(rlds("list", "--remote", "--source", "minari"))

    assert asked == 0
    assert set(after) - set(before) == {"minari/lab/new-v7"}
    assert "minari/D4RL/door/human-v2" in before


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_each_dataset_is_a_line_that_fits(rlds, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")

    _, *lines = rlds("list").out.splitlines()

    known = sorted(f"{name}/{one}" for name in sources.source_names() for one in sources.get_source(name).ids())
    # An id that fills most of the width has a separate line.
    assert [line.split("  ")[0] for line in lines if line[0] != " "] == known
    assert [line for line in lines if len(line) > width] == []
