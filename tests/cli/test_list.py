"""``rlds list``."""

from __future__ import annotations

import copy
import json
import random
import shutil

import numpy as np
import pytest
from stored_data import columns, trajectory, write_dataset
from upstreams import hub

from datasets_rl import load, sources
from datasets_rl.cli.output import size_text
from datasets_rl.store import DatasetPaths, version_folder


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


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "words",
    [("nothing-of-this-name",), ("hopper", "--tag", "nothing"), ("--env", "qqqqqq"), ("pendulum", "--max-size", "1B")],
)
def test_without_a_match_the_code_is_that_of_an_unknown_id(rlds, words):
    ran, document = rlds("list", *words), rlds("list", *words, "--json")

    assert (ran.code, ran.out) == (3, "")
    assert "no dataset matches" in ran.err
    assert (document.code, document.json["datasets"], document.json["total"]) == (3, [], 0)


@pytest.mark.first(2)
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

    assert (ran.code, ran.out) == (3, "")
    said = ran.err.partition("did you mean ")[2].rstrip("?\n").split(", ")
    assert meant in [one.lower() for one in said]
    assert said == rlds("list", pattern, "--json").json["nearest"]
    assert all(rlds("list", one).out for one in said)


def test_no_ids_are_suggested_where_another_option_excludes_the_matches(rlds):
    assert "did you mean" not in rlds("list", "pendulum", "--max-size", "1B").err
    assert "did you mean" not in rlds("list", "--downloaded").err


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


def test_unfinished_and_foreign_folders_are_not_listed_as_stored(rlds, home):
    (home / "demo" / "pendulum" / "build-01234567" / "version").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")

    assert ids(rlds("list", "--downloaded")) == []


def test_deprecated_ids_and_known_issues_are_marked(rlds):
    row = rlds("list", "d4rl/hopper-medium-v0").out.rstrip("\n").split("\t")

    assert row[:3] == ["d4rl/hopper-medium-v0", "-", "54258063"]
    assert row[-2:] == ["bytes exact, steps estimated, episodes recorded", "deprecated, 2 known issues"]


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_known_issues_are_counted_before_the_title(rlds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    assert "deprecated; 2 known issues; " in rlds("list", "d4rl/hopper-medium-v0").out


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
    while "estimated" not in lines.pop():
        pass  # the legend takes a line, or two

    known = sorted(f"{name}/{one}" for name in sources.source_names() for one in sources.get_source(name).ids())
    # An id that fills most of the width has a separate line.
    assert [line.split("  ")[0] for line in lines if line[0] != " "] == known
    assert [line for line in lines if len(line) > width] == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("--tag", "expet"), "expert"), (("--env", "hoper"), "Hopper-v2"), (("d4rl", "--tag", "humn"), "human")],
)
def test_similar_tags_and_environments_are_suggested(rlds, words, meant):
    ran = rlds("list", *words, "--json")

    assert (ran.code, meant in ran.json["nearest"]) == (3, True)


@pytest.mark.parametrize("words", [("--kind", "image"), ("--action", "both")])
def test_a_kind_that_does_not_exist_is_wrong_usage_with_the_kinds(rlds, words):
    ran = rlds("list", *words)

    assert ran.code == 2
    assert "expected one of" in ran.err


def test_each_figure_of_a_document_says_how_well_it_is_known(rlds):
    (one,) = rlds("list", "hopper-expert-v2", "--json").json["datasets"]

    assert (one["wire_bytes"], one["steps"], one["episodes"]) == (152_427_435, 1_000_000, 1028)
    assert {name: basis["kind"] for name, basis in one["basis"].items()} == {
        "bytes": "exact",
        "steps": "estimated",
        "episodes": "recorded",
    }
    assert "TensorFlow Datasets" in one["basis"]["episodes"]["origin"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (40, ["id", "size", "steps"]),
        (80, ["id", "size", "steps", "obs", "action", "episodes"]),
        (200, ["id", "size", "steps", "obs", "action", "episodes", "environment", "for", "license", "title"]),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_on_a_narrow_terminal_the_last_columns_are_left_out(rlds, monkeypatch, width, columns):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    header, first, *others = rlds("list", "hopper-expert", "--source", "d4rl").out.splitlines()

    assert header.split() == columns
    assert first.split()[:3] == ["d4rl/hopper-expert-v0", "54.1", "MB"]
    assert max(map(len, [header, first, *others])) <= width
    assert ("~1.0M" in first, "1,029*" in first) == ("steps" in columns, "episodes" in columns)
    assert " ".join(others).endswith("~ estimated. * recorded once, the upstream may have changed. Others are exact")


def test_what_is_stored_is_listed_with_all_that_it_occupies(rlds, stored):
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:50", "--as", "best")
    raw = stored / "raw"
    raw.mkdir(parents=True)
    (raw / "pendulum.hdf5").write_bytes(b"0" * 2_000_000)
    ran, document = rlds("list", "--downloaded"), rlds("list", "--downloaded", "--json").json
    rows = [line.split("\t") for line in ran.out.splitlines()]
    bytes_on_disk = [
        sum(one.stat().st_size for one in version_folder(place).glob("*.npy"))
        for place in (stored, stored.with_name("pendulum@best"))
    ]

    assert [row[:4] for row in rows] == [
        ["demo/pendulum", str(bytes_on_disk[0]), "15000", "75"],
        ["demo/pendulum@best", str(bytes_on_disk[1]), "7400", "37"],
    ]
    assert [row[-1] for row in rows] == ["raw files kept: 2.0 MB", "derived: keep_top_returns:50"]
    assert f"total: {size_text(sum(bytes_on_disk))} on disk, 22,400 steps, 112 episodes" in ran.err
    assert "besides: 2.0 MB of raw files" in ran.err
    assert document["sums"] == {
        "disk_bytes": sum(bytes_on_disk),
        "raw_bytes": 2_000_000,
        "version_bytes": 0,
        "unfinished_bytes": 0,
        "steps": 22_400,
        "episodes": 112,
    }


@pytest.mark.usefixtures("stored")
def test_a_part_and_other_versions_are_named(rlds, tmp_path):
    rlds("download", "local/mine", "--from-local", own_files(tmp_path, 3), "--episodes", "0:2")
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:50", "--in-place")
    notes = {line.split("\t")[0]: line.split("\t")[-1] for line in rlds("list", "--downloaded").out.splitlines()}

    assert notes["local/mine"] == "part: episodes=0:2"
    assert notes["demo/pendulum"].startswith("preprocessed in place: ")
    assert "other versions: 6" in notes["demo/pendulum"]


def test_a_copy_whose_name_is_in_no_catalog_is_listed_with_the_folder_that_opens_it(rlds, stored):
    copied, own = stored.with_name("copied"), stored.parents[1] / "local" / "mine"
    for folder in (copied, own):
        shutil.copytree(stored, folder)
    notes = {line.split("\t")[0]: line.split("\t")[-1] for line in rlds("list", "--downloaded").out.splitlines()}

    of = "a copy of demo/pendulum"
    assert notes["demo/copied"] == f"{of}; not in the catalog, open the folder: {copied}"
    assert (notes["local/mine"], notes["demo/pendulum"]) == (of, "")
    for dataset in (copied, "local/mine"):
        assert rlds("verify", dataset).code == rlds("sample", dataset, "-n", 1).code == 0
    assert len(load("local/mine")) == len(load(copied)) == 15_000


def test_interrupted_downloads_and_raw_files_alone_are_reported(rlds, home):
    work, raw = home / "minari" / "lab" / "new-v1" / "build-01234567", home / "d4rl" / "pen-human-v1" / "raw"
    work.mkdir(parents=True)
    raw.mkdir(parents=True)
    (work / "journal.jsonl").write_text("0" * 100)
    (raw / "pen.hdf5.part").write_bytes(b"0" * 3000)
    for source, name in (("minari", "lab/new-v1"), ("d4rl", "pen-human-v1")):
        DatasetPaths(home / source, name).mark()
    ran, document = rlds("list", "--downloaded"), rlds("list", "--downloaded", "--json").json

    assert (ran.code, ran.out) == (0, "")
    assert "unfinished: d4rl/pen-human-v1, 3.0 kB; `rlds download d4rl/pen-human-v1` completes the dataset" in ran.err
    assert document["unfinished"] == [
        {"id": "d4rl/pen-human-v1", "bytes": 3000},
        {"id": "minari/lab/new-v1", "bytes": 100},
    ]


def own_files(folder, episodes):
    """Write a folder of npz files with a description, and return it."""
    (folder / "own").mkdir()
    for number in range(episodes):
        steps = np.arange(4, dtype=np.float32)
        np.savez(folder / "own" / f"{number}.npz", obs=steps[:, None], action=steps, reward=steps)
    (folder / "own" / "dataset.toml").write_text(
        'environment = "Gripper-v1"\n[score]\nlow = -10\nhigh = 30.0\norigin = "20 episodes each"'
    )
    return folder / "own"


def test_the_environment_of_own_data_is_found(rlds, tmp_path):
    rlds("download", "local/mine", "--from-local", own_files(tmp_path, 1))

    assert ids(rlds("list", "--env", "gripper")) == ["local/mine"]
    assert rlds("score", "local/mine", "20", "--percent", "-q").out == "75\n"
    assert "from 20 episodes each" in rlds("score", "local/mine", "20").err


HOSTILE = [
    "x",
    7,
    -1,
    1.5,
    True,
    None,
    [],
    ["x"],
    [7],
    [None],
    {},
    {"a": 1},
    {"low": "x", "high": [], "origin": 3},
    "9" * 5000,
]
"""Values that a manifest of other people may have at any place."""


def places(document, path=()):
    """Yield the path of every value in a JSON document."""
    if not isinstance(document, (dict, list)):
        return
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*path, key)
        yield from places(value, (*path, key))


def replaced(document, path, value):
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = replaced(document[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize("count", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_a_hostile_value_in_a_manifest_hides_no_other_dataset(rlds, home, count):
    given = [trajectory(3, seed=1)]
    folders = [write_dataset(home / "demo" / name, given, columns(), id=f"demo/{name}").folder for name in "ab"]
    manifest = json.loads((folders[0] / "manifest.json").read_bytes())
    manifest |= {"score": {"low": 0, "high": 1, "origin": "here"}, "selection": {"episodes": "0:5"}, "time_limit": 9}
    manifest |= {"known_issues": ["late"], "history": [{"recipe": {"name": "r"}}], "metadata": {"environment": "E"}}
    manifest["specs"]["action"] = {"kind": "bounded", "low": [-1], "high": [1], "dtype": "float32", "shape": [1]}
    # With another format, the folder is not a folder of this package.
    paths = [path for path in places(manifest) if path[0] not in {"format", "statistics"}]
    cases = [(path, value) for path in paths for value in HOSTILE]
    typical = [(("score",), "x"), (("score", "low"), []), (("selection",), 7), (("known_issues",), [7])]
    cases = cases if count is None else [*typical, *random.Random(0).sample(cases, count)]
    wrong = []
    for path, value in cases:
        (folders[0] / "manifest.json").write_text(json.dumps(replaced(manifest, path, value)))
        for words in (["list", "--downloaded"], ["list", "demo"]):
            ran = rlds(*words)
            if ran.code or "demo/b" not in ran.out or "demo/a" not in ran.out:
                wrong.append(f"{path} = {value!r:.60}: {' '.join(words)}: {ran.code} {ran.err}")
    assert wrong == []
