"""A dataset is what its place says: copied, linked or without a current version, commands find it and say what it is."""

from __future__ import annotations

import os
import shutil

import pytest

from datasets_rl import disk, info
from datasets_rl.cli.output import size_text

COPY = "local/mine"
READING = [("sample", "-n", "1"), ("verify",), ("describe",), ("audit",), ("describe", "--episode", "0"), ("info",)]


@pytest.fixture
def copied(stored, home):
    """The folder of a copy of ``demo/pendulum`` under another name."""
    shutil.copytree(stored, home / "local" / "mine")
    return home / "local" / "mine"


@pytest.fixture
def elsewhere(stored, home, tmp_path):
    """The folder of a dataset to which a link below the home leads."""
    (home / "local").mkdir()
    shutil.copytree(stored, tmp_path / "disk" / "pendulum")
    (home / "local" / "mine").symlink_to(tmp_path / "disk" / "pendulum")
    return tmp_path / "disk" / "pendulum"


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_dataset_whose_pointer_was_deleted_is_listed_and_described_with_the_remedy(rlds, stored):
    rlds("preprocess", "demo/pendulum", "-t", "reward_scaling:scale=2", "--in-place")
    (stored / "CURRENT").unlink()
    last = max(path.name for path in stored.iterdir())
    remedy = f"rlds use demo/pendulum {last} makes the last version current"

    listed, shown = rlds("list", "--downloaded"), rlds("info", "demo/pendulum")

    assert (listed.code, shown.code) == (0, 0)
    assert f"demo/pendulum: there is no file CURRENT, and 2 versions, none current, next: {remedy}" in listed.err
    assert [line.split("\t")[0] for line in listed.out.splitlines()] == ["demo/pendulum"]
    assert f"there is no file CURRENT, and 2 versions, none current; {remedy}" in shown.out
    assert "not downloaded" not in shown.out
    assert [one["current"] for one in rlds("info", "demo/pendulum", "--json").json["versions"]] == [False, False]
    assert [path.name for path in info("demo/pendulum").versions][-1] == last
    rlds("use", "demo/pendulum", last)
    assert "preprocessed in place" in rlds("list", "--downloaded").out


@pytest.mark.parametrize("words", READING)
def test_a_copied_folder_is_shown_by_the_id_of_its_place(rlds, copied, words):
    named = rlds(words[0], COPY, *words[1:])
    given = rlds(words[0], copied, *words[1:])

    assert (named.code, given.code) == (0, 0)
    for ran in (named, given):
        assert ran.out.startswith(COPY)
        assert "demo/pendulum" not in ran.out.partition("\n")[0]


def test_the_original_of_a_copy_is_beside_its_id(rlds, copied):
    del copied
    assert "original\tdemo/pendulum" in rlds("info", COPY).out
    assert "a copy of demo/pendulum" in rlds("list", "local").out
    shown = rlds("info", COPY, "--json").json
    assert (shown["id"], shown["stored"]["id"]) == (COPY, "demo/pendulum")
    assert rlds("cite", COPY).out == rlds("cite", "demo/pendulum").out
    assert "original\t" not in rlds("info", "demo/pendulum").out
    assert info(COPY).id == COPY


def test_a_damaged_copy_is_not_downloaded_again_over_its_original(rlds, copied):
    rows = next(copied.glob("0001-*")) / "rows.npy"
    with rows.open("ab") as stream:
        stream.write(b"more")

    ran = rlds("verify", COPY)

    assert ran.code == 5
    assert f"next: delete {copied}, and copy or download the dataset to that place again" in ran.out


def test_what_is_made_of_a_copy_is_shown_by_the_id_of_its_place(rlds, copied):
    del copied
    made = rlds("preprocess", COPY, "-t", "reward_scaling:scale=2", "--as", "x")

    assert made.err.startswith("local/mine@x: ")
    assert rlds("sample", "local/mine@x").out.startswith("local/mine@x")


def test_a_version_that_is_current_already_stays_so_and_nothing_is_written(rlds, stored):
    before = (stored / "CURRENT").stat()

    ran = rlds("use", "demo/pendulum", "1")

    assert (ran.code, ran.out) == (0, f"{stored}\n")
    assert "version 1 is current already" in ran.err
    assert (stored / "CURRENT").stat().st_ino == before.st_ino


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
@pytest.mark.parametrize("words", READING)
def test_commands_that_read_follow_a_link_to_a_dataset_and_to_the_home(rlds, elsewhere, home, tmp_path, words):
    (tmp_path / "linked").symlink_to(home)
    before = files_below(elsewhere)

    for where in ((), ("--root", tmp_path / "linked")):
        ran = rlds(words[0], COPY, *words[1:], *where)
        assert (ran.code, ran.out.partition("\n")[0].partition(":")[0].partition(",")[0]) == (0, COPY)
    assert files_below(elsewhere) == before


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
def test_removing_a_linked_dataset_leaves_what_others_put_beside_its_files(rlds, elsewhere, home):
    (elsewhere / "notes.txt").write_text("mine")
    (elsewhere.parent / "beside").mkdir()

    assert rlds("remove", COPY, "--yes").code == 0

    assert files_below(elsewhere.parent) == {"pendulum/notes.txt"}
    assert (elsewhere.parent / "beside").is_dir()
    assert (home / "demo" / "pendulum" / "CURRENT").exists()


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
def test_removing_a_second_name_of_a_dataset_removes_the_link_alone(rlds, stored, home):
    (home / "local").mkdir()
    (home / "local" / "mine").symlink_to(stored)
    before = files_below(stored)

    assert rlds("remove", COPY, "--yes").code == 0

    assert not (home / "local" / "mine").is_symlink()
    assert files_below(stored) == before
    assert rlds("verify", "demo/pendulum").code == 0


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
def test_remove_names_the_disk_to_which_a_link_leads(rlds, elsewhere):
    size = size_text(disk.tree_bytes(elsewhere))
    refused = rlds("remove", COPY)
    would = rlds("remove", COPY, "--dry-run", "--json").json["datasets"][0]

    assert refused.code == 10
    assert f"delete {COPY} at {elsewhere} ({size})" in refused.err
    assert (would["link_to"], would["bytes"] > 0) == (str(elsewhere), True)
    assert rlds("remove", COPY, "--yes").out == f"{COPY}: {size} in {elsewhere} deleted\n"


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
@pytest.mark.parametrize("target", ["a second name", "a single version"])
def test_remove_of_a_link_whose_target_stays_says_so(rlds, stored, home, tmp_path, target):
    place = stored
    if target == "a single version":
        place = tmp_path / "version"
        shutil.copytree(next(stored.glob("0001-*")), place)
    (home / "local").mkdir()
    (home / "local" / "mine").symlink_to(place)
    before = files_below(place)

    assert f"delete the link {COPY}, without the target {place} requires" in rlds("remove", COPY).err
    assert rlds("remove", COPY, "--dry-run").out == f"{COPY}: link would be deleted, and {place} stays\n"
    assert rlds("remove", COPY, "--yes", "-q").out == f"{COPY}\n"
    assert not (home / "local" / "mine").is_symlink()
    assert files_below(place) == before


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege")
@pytest.mark.parametrize("linked", ["home", "home/demo", "home/demo/pendulum"])
def test_cache_ls_counts_what_is_behind_a_link(rlds, stored, tmp_path, linked):
    size = disk.tree_bytes(stored)
    (tmp_path / "disk").mkdir()
    shutil.move(tmp_path / linked, tmp_path / "disk" / "moved")
    (tmp_path / linked).symlink_to(tmp_path / "disk" / "moved")

    shown = rlds("cache", "ls", "--json").json

    assert [one["bytes"] for one in shown["datasets"]] == [size]
    assert (shown["bytes"], shown["other_bytes"]) == (size, 0)
