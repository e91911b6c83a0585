"""``rlds remove``."""

from __future__ import annotations

import io
import shutil
import sys

import numpy as np
import pytest

from datasets_rl import disk
from datasets_rl.cli.output import size_text
from datasets_rl.store.layout import mark_folder


def test_without_a_terminal_there_is_no_prompt_and_nothing_is_deleted(rlds, stored):
    ran = rlds("remove", "demo/pendulum")

    assert ran.code == 10
    assert "--yes" in ran.err
    assert [path for path in stored.iterdir() if f"{path}\n" not in ran.err] == []
    assert stored.exists()


def test_yes_deletes(rlds, stored):
    size, paths = disk.tree_bytes(stored), sorted(map(str, stored.iterdir()))

    ran = rlds("remove", "demo/pendulum", "--yes", "--json")

    assert ran.json["datasets"] == [
        {
            "id": "demo/pendulum",
            "folder": str(stored),
            "bytes": size,
            "link_to": None,
            "kept": [],
            "paths": paths,
            "removed": True,
            "error": None,
        }
    ]
    assert not stored.exists()


def test_a_dry_run_deletes_nothing_and_needs_no_yes(rlds, stored):
    ran = rlds("remove", "demo/pendulum", "--dry-run")

    assert ran.code == 0
    assert "would be deleted" in ran.out
    assert stored.exists()


def test_a_missing_dataset_needs_no_yes_and_is_not_an_error(rlds):
    ran = rlds("remove", "demo/pendulum")

    assert (ran.code, ran.out) == (0, "demo/pendulum: nothing is stored\n")


def test_unfinished_files_are_deleted(rlds, home):
    part = home / "demo" / "pendulum" / "raw" / "pendulum.hdf5.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    mark_folder(home / "demo" / "pendulum")

    assert rlds("remove", "demo/pendulum", "-y").out == "demo/pendulum: 1.1 kB deleted\n"
    assert not part.exists()


@pytest.mark.parametrize("left", ["both", "the earlier one alone"])
def test_earlier_versions_are_counted_and_deleted(rlds, home, stored, left):
    rlds("preprocess", "demo/pendulum", "-t", "reward_scaling:scale=0.1", "--in-place")
    if left != "both":
        (stored / "CURRENT").unlink()
    size = disk.tree_bytes(home)

    would = rlds("remove", "demo/pendulum", "--dry-run", "--json").json["datasets"][0]
    done = rlds("remove", "demo/pendulum", "--yes", "--json").json["datasets"][0]

    assert (would["bytes"], done["bytes"]) == (size, size)
    assert disk.tree_bytes(home) == 0


def test_known_ids_are_deleted_beside_unknown_ones(rlds, stored):
    ran = rlds("remove", "demo/nothing", "demo/pendulum", "--yes", "-q")

    assert (ran.code, ran.out) == (1, "demo/pendulum\n")
    assert not stored.exists()


class Keyboard(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("typed", "code", "left"),
    [("y\n", 0, False), ("YES\n", 0, False), ("n\n", 10, True), ("\n", 10, True), ("", 10, True)],
)
def test_on_a_terminal_the_prompt_goes_to_stderr(rlds, stored, monkeypatch, typed, code, left):
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    size = size_text(disk.tree_bytes(stored))

    ran = rlds("remove", "demo/pendulum", "-q")

    assert ran.code == code
    assert ran.out == ("" if left else "demo/pendulum\n")
    assert f"delete demo/pendulum ({size})? [y/N] " in ran.err
    assert stored.exists() is left


@pytest.mark.usefixtures("stored", "terminal")
def test_there_is_no_prompt_where_stdin_is_a_pipe(rlds, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    assert rlds("remove", "demo/pendulum").code == 10


def test_a_path_is_refused_with_the_command_that_removes_it(rlds, stored, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(stored, mine)

    of_an_id, own, nothing = (rlds("remove", str(path), "--yes") for path in (stored, mine, tmp_path / "nothing"))

    assert {of_an_id.code, own.code, nothing.code} == {2}
    assert f"{stored} is a path\n  why: expected the id of a dataset" in of_an_id.err
    assert "next: rlds remove demo/pendulum" in of_an_id.err
    assert f"rm -r {mine}" in own.err
    assert "rm -r" not in nothing.err
    assert stored.exists()
    assert mine.exists()


def test_files_of_others_in_the_folder_stay_and_are_named(rlds, stored):
    (stored / "notes.txt").write_text("mine")

    text = rlds("remove", "demo/pendulum", "--yes").out

    assert "deleted, and notes.txt stays: not a part of the dataset" in text
    assert [path.name for path in stored.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("converted", [True, False])
def test_the_only_copy_of_own_files_is_not_deleted(rlds, home, converted):
    raw = home / "local" / "gripper" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "episode.npz", observation=np.zeros((3, 2)), action=np.zeros((2, 1)), reward=np.zeros(2))
    (raw / "dataset.toml").write_text('name = "gripper"')
    if converted:
        assert rlds("download", "local/gripper", "--from-local", raw).code == 0

    words = [["remove", "local/gripper", "--yes"]]
    words += [["cache", "prune", "--raw", "local/gripper", "--yes"]] if converted else []
    refused = [rlds(*one) for one in words]
    assert rlds("cache", "prune", "--raw", "--yes").code == 0
    assert rlds("list", "--downloaded").err.count("unfinished") == 0

    assert {one.code for one in refused} == {2}
    assert all(f"{raw} may have the only copy of your files" in one.err for one in refused)
    assert sorted(path.name for path in raw.iterdir()) == ["dataset.toml", "episode.npz"]
    shutil.move(raw, home.parent / "files")
    assert rlds("remove", "local/gripper", "--yes").code == 0
    assert not (home / "local" / "gripper").exists()


def test_raw_files_that_no_download_has_put_there_are_not_deleted(rlds, stored, home):
    mine = [
        stored / "raw" / "a.csv",
        home / "d4rl" / "hopper-medium-v2" / "raw" / "b.csv",
        stored / "raw@old" / "c.csv",
    ]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (stored / "raw" / "pendulum.h5.part").write_text("partial")

    assert rlds("cache", "prune", "--raw", "--yes").code == 0
    refused = [rlds("remove", "demo/pendulum", "--yes"), rlds("cache", "prune", "--raw", stored, "--yes")]
    refused += [rlds("remove", "d4rl/hopper-medium-v2", "--yes")]
    assert [one.code for one in refused] == [2, 2, 2]
    assert rlds("download", "demo/pendulum", "--force").code == 0
    assert [path.read_text() for path in mine] == ["mine"] * 3


def test_own_files_are_read_and_kept_through_a_link_to_their_folder(rlds, home, tmp_path):
    raw = home / "local" / "gripper" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "episode.npz", observation=np.zeros((3, 2)), action=np.zeros((2, 1)), reward=np.zeros(2))
    (raw / "dataset.toml").write_text('name = "gripper"')
    (tmp_path / "link").symlink_to(raw)

    assert rlds("download", "local/gripper", "--from-local", tmp_path / "link").code == 0
    assert rlds("remove", "local/gripper", "--yes").code == 2
    assert rlds("cache", "prune", "--raw", "--yes").code == 0
    assert sorted(path.name for path in raw.iterdir()) == ["dataset.toml", "episode.npz"]


def test_what_others_put_beside_recordings_is_not_deleted(rlds, stored):
    recorded = stored / "recorded"
    (recorded / "takes").mkdir(parents=True)
    (recorded / "takes" / "a.txt").write_text("mine")
    (recorded / "notes.txt").write_text("mine")

    ran = rlds("remove", "demo/pendulum", "--yes")
    assert ran.code == 2
    assert f"holds files that are not the dataset's\n  why: {recorded / 'notes.txt'}, {recorded / 'takes'}" in ran.err
    assert (recorded / "takes" / "a.txt").read_text() == (recorded / "notes.txt").read_text() == "mine"
    recorded.rename(stored.parent / "mine")
    assert rlds("remove", "demo/pendulum", "--yes").code == 0
