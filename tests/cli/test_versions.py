"""Output of the commands for derived datasets and versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datasets_rl import LazyMemmapStorage, ReplayBuffer, disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.store import version_folder
from datasets_rl.store.layout import mark_folder

SCALE = ("-t", "reward_scaling:scale=3")


def test_every_command_accepts_a_derived_dataset(rlds, stored, tmp_path):
    made = rlds("preprocess", "demo/pendulum", *SCALE, "--as", "x")
    folder = stored.with_name("pendulum@x")
    assert (made.code, made.out) == (0, f"{folder}\n")
    assert "demo/pendulum@x: 15,000 steps in 75 episodes" in made.err

    assert rlds("path", "demo/pendulum@x").out == f"{folder}\n"
    assert rlds("verify", "demo/pendulum@x", "--deep").code == 0
    assert rlds("sample", "demo/pendulum@x", "-n", 2).code == 0
    assert rlds("info", "demo/pendulum@x", "--json").json["id"] == "demo/pendulum@x"
    assert rlds("score", "demo/pendulum@x", -600).code == 0
    assert "pendulum@x" in rlds("mix", "demo/pendulum", "demo/pendulum@x").out
    assert rlds("download", "demo/pendulum@x").code == 0
    both = rlds("preprocess", "demo/pendulum", "demo/pendulum@x", "-o", tmp_path / "both")
    assert both.code == 0
    assert len(StoredDataset(tmp_path / "both")) == 30_000
    deeper = rlds("preprocess", "demo/pendulum@x", "-t", "keep_top_returns:50", "--as", "best")
    assert deeper.out == f"{folder}@best\n"
    assert rlds("remove", "demo/pendulum@x", "-y", "-q").out == "demo/pendulum@x\n"
    assert not folder.exists()
    assert stored.exists()


def test_list_marks_derived_and_preprocessed_datasets(rlds, stored):
    rlds("preprocess", "demo/pendulum", *SCALE, "--as", "x")
    rlds("preprocess", "demo/pendulum", "-r", "td3_bc", "--in-place")

    shown = {one["id"]: one["preprocessed"] for one in rlds("list", "--downloaded", "--json").json["datasets"]}
    assert shown == {
        "demo/pendulum": "preprocessed in place: td3_bc",
        "demo/pendulum@x": "derived: reward_scaling:scale=3",
    }
    assert "preprocessed in place: td3_bc" in rlds("list", "--downloaded").out
    assert stored.exists()


def test_info_shows_the_chain_of_versions_and_undo_shortens_it(rlds, stored):
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:50", "--in-place")
    rlds("preprocess", "demo/pendulum", "-r", "td3_bc", "--in-place")

    chain = rlds("info", "demo/pendulum", "--json").json["versions"]
    assert [(one["number"], one["steps"], one["made_by"]) for one in chain] == [
        (1, 15_000, "download"),
        (2, 7_400, "keep_top_returns:50"),
        (3, 7_400, "td3_bc"),
    ]
    assert "versions" in rlds("info", "demo/pendulum").out
    for steps in (7_400, 15_000):
        assert rlds("use", "demo/pendulum", "--undo").code == 0
        assert len(StoredDataset(stored)) == steps
    ran = rlds("use", "demo/pendulum", "--undo")
    assert ran.code == 2
    assert "has no earlier version" in ran.err
    chain = rlds("info", "demo/pendulum", "--json").json["versions"]
    assert [(one["number"], one["current"]) for one in chain] == [(1, True), (2, False), (3, False)]


def test_use_makes_any_version_current_and_undo_the_one_that_it_was_made_of(rlds, stored):
    for recipe in ("keep_top_returns:50", "reward_scaling:scale=3"):
        rlds("preprocess", "demo/pendulum", "-t", recipe, "--in-place")
    names = sorted(path.name for path in stored.iterdir() if path.name != "CURRENT")

    for version, number in ((1, 1), (names[2], 3)):
        ran = rlds("use", "demo/pendulum", version)
        assert (ran.code, ran.out) == (0, f"{stored}\n")
        assert f"version {number} is current" in ran.err
        assert (stored / "CURRENT").read_text() == f"{names[number - 1]}\n"
    assert rlds("use", stored, "--undo", "--json").json["version"] == names[1]
    shown = [line.split() for line in rlds("info", "demo/pendulum").out.splitlines()]
    assert [line[0] for line in shown if line and line[-1] == "current"] == [names[1]]
    assert f"expected one of {', '.join(names)}" in rlds("use", "demo/pendulum", 7).err
    for words in ([], ["1", "--undo"], ["7"]):
        assert rlds("use", "demo/pendulum", *words).code == 2
    (stored / "CURRENT").write_text("nothing")
    assert "next: rlds use" in rlds("info", "demo/pendulum").err
    assert rlds("use", "demo/pendulum", 1).code == 0


def test_cache_prune_counts_and_deletes_versions_and_builds(rlds, stored, home):
    rlds("preprocess", "demo/pendulum", *SCALE, "--in-place")
    build = home / "d4rl" / "ant-medium-v2" / "build-01234567"
    build.mkdir(parents=True)
    (build / "journal.jsonl").write_text("x" * 100)
    mark_folder(build.parent)

    would = rlds("cache", "prune", "--versions", "--builds", "--dry-run", "--json").json["freed"]
    assert (would["unfinished builds"], would["other versions"] > 500_000) == (100, True)
    assert build.exists()
    refused = rlds("cache", "prune", "--versions", "--builds")
    assert (refused.code, build.exists()) == (10, True)
    done = rlds("cache", "prune", "--versions", "--builds", "--yes", "--json").json["freed"]
    assert {**would, "scratch folders": 0} == {**done, "scratch folders": 0}
    assert not build.exists()
    assert rlds("use", "demo/pendulum", "--undo").code == 2
    assert stored.exists()


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_cache_prune_names_a_linked_dataset_by_its_id(rlds, stored, tmp_path):
    rlds("preprocess", "demo/pendulum", *SCALE, "--in-place")
    stored.rename(tmp_path / "elsewhere")
    stored.symlink_to(tmp_path / "elsewhere")

    unnamed = rlds("cache", "prune", "--versions", "--yes")
    assert "nothing is deleted of demo/pendulum, to which links lead out of" in unnamed.err
    version = next((tmp_path / "elsewhere").glob("0001-*"))
    items = rlds("cache", "prune", "--versions", "demo/pendulum", "--yes", "--json").json["items"]
    (item,) = [one for one in items if one["id"]]
    assert (item["kind"], item["id"]) == ("other versions", "demo/pendulum")
    assert Path(item["path"]).name == version.name
    assert not version.exists()


@pytest.mark.skipif(os.name == "nt", reason="processes")
def test_cache_prune_deletes_files_of_dead_processes_and_other_commands_do_not(rlds, stored):
    dead = f"{disk.process_name().rpartition('-')[0]}-{2**22 + 1}"
    trash = stored / f"trash-{0:032x}"
    trash.mkdir()
    (trash / "rows.npy").write_text("x")
    (stored / ".lock").write_text("")
    (stored / f".CURRENT@{dead}.tmp").write_text("")
    build = stored / f"build-01234567@{dead}"
    (build / "version").mkdir(parents=True)
    (build / f".journal.jsonl@{dead}.tmp").write_text("")

    left = sorted(stored.parent.rglob("*"))
    assert rlds("list", "--downloaded").code == 0
    assert rlds("preprocess", stored, *SCALE, "--dry-run").code == 0
    assert sorted(stored.parent.rglob("*")) == left
    assert rlds("cache", "prune").code == 0
    kept = {"CURRENT", version_folder(stored).name, build.name}
    assert {path.name for path in stored.iterdir()} == kept
    assert [path.name for path in build.iterdir()] == ["version"]
    assert rlds("cache", "prune", "--builds", "--yes").code == 0
    assert not build.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("view", "demo/pendulum", "--force", "--export"),
        ("mix", "demo/pendulum", "demo/pendulum", "--force", "-o"),
        ("train", "--copy", "iql", "--out"),
        ("export", "demo/pendulum", "--to", "hdf5", "--force", "-o"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("name", ["new.txt", "manifest.json"])
def test_no_command_writes_a_file_into_a_version(rlds, stored, words, name):
    version = version_folder(stored)
    before = {path.name: path.read_bytes() for path in version.iterdir()}

    ran = rlds(*words, version / name)
    assert ran.code == 2
    assert f"{version / name} is inside a dataset" in ran.err
    assert {path.name: path.read_bytes() for path in version.iterdir()} == before


def test_no_buffer_writes_into_a_version(stored):
    version = version_folder(stored)
    before = sorted(version.iterdir())
    buffer = ReplayBuffer(storage=LazyMemmapStorage(3))

    with pytest.raises(InvalidArgumentError, match="inside a dataset"):
        buffer.dumps(version / "checkpoint")
    with pytest.raises(InvalidArgumentError, match="inside a dataset"):
        LazyMemmapStorage(3, scratch_dir=version / "steps")
    assert sorted(version.iterdir()) == before


@pytest.mark.parametrize("name", ["raw", "recorded", "build-01234567", f"trash-{'0' * 32}", "0001"])
def test_no_command_stores_anything_among_the_entries_of_a_dataset(rlds, stored, tmp_path, name):
    place = version_folder(stored) if name == "0001" else stored / name
    place.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(place)

    for words in (
        ("--root", tmp_path / "link", "download", "demo/pendulum"),
        ("preprocess", "demo/pendulum", *SCALE, "--out", place / "x"),
        ("export", "demo/pendulum", "--to", "npz", "-o", tmp_path / "link" / "x"),
    ):
        ran = rlds(*words)
        assert (ran.code, "is inside a dataset" in ran.err) == (2, True)
    assert name == "0001" or not any(place.iterdir())
