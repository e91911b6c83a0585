"""``rlds cache``: the data folder is listed, pruned, checked and moved."""

from __future__ import annotations

import json
import shutil
import tempfile

import pytest
from stored_data import write_manifest_with_digest

from datasets_rl import disk
from datasets_rl.store import version_folder
from datasets_rl.store.layout import MARK_FILE, mark_folder
from datasets_rl.store.usage import take_inventory


@pytest.fixture
def full(stored, home, tmp_path, monkeypatch):
    """A home with a version, a derived dataset, raw files, partial downloads, builds, trash and a foreign file."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # scratch folders of others are not counted
    shutil.copytree(stored, home / "demo" / "pendulum@twice")
    shutil.copytree(version_folder(stored), stored / "0002-0123abcd")
    other = json.loads((stored / "0002-0123abcd" / "manifest.json").read_text())
    write_manifest_with_digest(stored / "0002-0123abcd", {**other, "citation": "another version"})
    for name, size in (
        ("demo/pendulum/raw/pendulum.hdf5", 1000),
        ("minari/D4RL/door/expert-v2/raw/data/main.hdf5.part", 2000),
        ("minari/D4RL/door/expert-v2/raw/data/main.hdf5.part.json", 10),
        ("d4rl/hopper-medium-v2/build-01234567/journal.jsonl", 300),
        ("notes.txt", 5),
    ):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    for name in ("minari/D4RL/door/expert-v2", "d4rl/hopper-medium-v2"):
        mark_folder(home / name)
    return home


def test_ls_shows_what_is_kept_of_each_dataset(rlds, full):
    shown = rlds("cache", "ls", "--json").json

    rows = {one["id"]: one for one in shown["datasets"]}
    assert list(rows) == ["d4rl/hopper-medium-v2", "demo/pendulum", "demo/pendulum@twice", "minari/D4RL/door/expert-v2"]
    one = rows["demo/pendulum"]
    pointer = len("0001-01234567\n")
    size = disk.tree_bytes(version_folder(full / "demo" / "pendulum"))
    assert one["versions"] == disk.tree_bytes(full / "demo" / "pendulum" / "0002-0123abcd")
    assert one["dataset"] == rows["demo/pendulum@twice"]["dataset"] == size + pointer
    assert (one["others"], one["raw"], one["unfinished"]) == (1, 1000, 0)
    mark = disk.tree_bytes(full / "d4rl" / "hopper-medium-v2" / MARK_FILE)
    assert rows["minari/D4RL/door/expert-v2"]["unfinished"] == 2010 + mark
    assert rows["d4rl/hopper-medium-v2"]["unfinished"] == 300 + mark
    assert (shown["other_bytes"], shown["bytes"]) == (5, disk.tree_bytes(full))
    assert sum(one["bytes"] for one in shown["datasets"]) + 5 == shown["bytes"]


def test_ls_counts_what_dead_processes_were_deleting(full):
    path = full / "demo" / "pendulum" / f"trash-{0:032x}" / "rows.npy"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(40))

    assert take_inventory(full).trash == 40


def test_ls_of_an_empty_folder_is_empty(rlds):
    ran = rlds("cache", "ls")

    assert (ran.code, ran.out) == (0, "")


def test_prune_shows_sizes_first_and_deletes_only_after_a_confirmation(rlds, full):
    words = ["cache", "prune", "--raw", "--versions", "--builds"]
    marks = 2 * disk.tree_bytes(
        full / "d4rl" / "hopper-medium-v2" / MARK_FILE
    )  # of two folders in which nothing is left
    before = disk.tree_bytes(full)

    would = rlds(*words, "--dry-run", "--json").json
    assert {(one["kind"], one["id"]) for one in would["items"]} == {
        ("other versions", "demo/pendulum"),
        ("raw files", "demo/pendulum"),
        ("raw files", "minari/D4RL/door/expert-v2"),
        ("unfinished builds", "d4rl/hopper-medium-v2"),
    }
    assert sorted(one["path"] for one in would["items"]) == [
        str(full / name)
        for name in (
            "d4rl/hopper-medium-v2/build-01234567",
            "demo/pendulum/0002-0123abcd",
            "demo/pendulum/raw",
            "minari/D4RL/door/expert-v2/raw",
        )
    ]
    assert (would["freed"]["raw files"], would["freed"]["unfinished builds"]) == (3010, 300)
    refused = rlds(*words)
    assert refused.code == 10
    assert [one["path"] for one in would["items"] if one["path"] not in refused.err] == []
    assert f"raw files of demo/pendulum: 1.0 kB in {full / 'demo' / 'pendulum' / 'raw'}" in refused.err
    assert disk.tree_bytes(full) == before
    done = rlds(*words, "--yes", "--json").json
    assert {**done["freed"], "scratch folders": 0} == {**would["freed"], "scratch folders": 0}
    assert before - disk.tree_bytes(full) == marks + sum(one["bytes"] for one in would["items"])
    assert rlds("cache", "verify").code == 0


def test_shards_of_streams_are_counted_and_deleted_unless_a_stream_is_open(rlds, full):
    for name in ("openx/.stream/bridge/0/shards/ab", "openx/.stream/bridge/1/shards/cd", ".stream/1f/0/raw"):
        (full / name).mkdir(parents=True)
        (full / name / "rows.npy").write_bytes(bytes(50))
        mark_folder((full / name).parents[0 if name.endswith("raw") else 1])
    mark = disk.tree_bytes(full / "openx" / ".stream" / "bridge" / "0" / MARK_FILE)
    assert rlds("cache", "ls", "--json").json["stream_bytes"] == 150 + 3 * mark
    with disk.lock(full / "openx" / ".stream" / "bridge" / "1.lock", "openx/bridge"):
        freed = rlds("cache", "prune", "--streams", "--yes", "--json").json["freed"]

    assert freed["shards of streams"] == 100 + 2 * mark
    assert [path.name for path in full.rglob("rows.npy") if ".stream" in path.parts] == ["rows.npy"]
    assert (full / "openx" / ".stream" / "bridge" / "1" / "shards" / "cd" / "rows.npy").exists()


def test_prune_deletes_nothing_in_folders_that_are_no_source(rlds, full):
    """A data folder may be shared with other projects, which have folders of the same names."""
    names = ["imagenet/v1/raw/a.jpg", "imagenet/v1/build-01234567/b", "projects/x/recorded/c"]
    for name in names:
        (full / name).parent.mkdir(parents=True)
        (full / name).write_text("mine")

    assert rlds("cache", "prune", "--raw", "--versions", "--builds", "--streams", "--yes").code == 0

    assert [name for name in names if not (full / name).exists()] == []
    assert rlds("cache", "ls", "--json").json["other_bytes"] == 5 + 3 * len("mine")


def test_prune_deletes_no_version_with_files_of_others(rlds, full):
    notes = full / "demo" / "pendulum" / "0002-0123abcd" / "notes.txt"
    notes.write_text("mine")

    for more in (["--dry-run"], ["--yes"]):
        ran = rlds("cache", "prune", "--versions", *more)
        assert ran.code == 2
        assert f"{notes.parent} holds files that are not the dataset's\n  why: notes.txt" in ran.err

    assert notes.read_text() == "mine"


def test_prune_of_named_datasets_leaves_the_others(rlds, full):
    rlds("cache", "prune", "--raw", "demo/pendulum", "--yes")

    assert not (full / "demo" / "pendulum" / "raw").exists()
    assert (full / "minari" / "D4RL" / "door" / "expert-v2" / "raw").exists()


def test_verify_checks_everything_that_is_stored_and_finds_a_flipped_bit_in_an_earlier_version(rlds, full):
    whole = rlds("cache", "verify", "--json")
    assert (whole.code, len(whole.json["datasets"])) == (0, 3)
    damaged = full / "demo" / "pendulum" / "0002-0123abcd" / "rows.npy"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)

    ran = rlds("cache", "verify", "--json")
    assert ran.code == 1
    assert [one["folder"] for one in ran.json["datasets"] if not one["intact"]] == [str(damaged.parent)]


def test_move_copies_and_deletes_the_old_files_once_the_setting_names_the_new_place(rlds, full, tmp_path, monkeypatch):
    (full / "notes.txt").unlink()
    before = rlds("cache", "ls").out
    new = tmp_path / "new disk" / "rl"

    assert rlds("cache", "move", new, "--dry-run").out == f"{new}\n"
    assert not new.exists()
    ran = rlds("cache", "move", new)
    assert (ran.code, ran.out) == (0, f"{new}\n")
    assert f"RLDS_HOME names the old place: use RLDS_HOME={new}" in ran.err
    assert rlds("cache", "ls").out == before
    monkeypatch.setenv("RLDS_HOME", str(new))
    rlds("cache", "move", new)
    assert not full.exists()
    assert rlds("cache", "ls").out == before
    assert rlds("cache", "verify").code == 0
    assert rlds("cache", "move", new).err == "the data folder is there already\n"


def test_move_changes_the_setting_in_the_file_of_the_user(rlds, full, tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text(f"jobs = 2\nhome = {json.dumps(str(full))}\n")
    monkeypatch.setenv("RLDS_CONFIG", str(file))
    monkeypatch.delenv("RLDS_HOME")

    ran = rlds("cache", "move", tmp_path / "new")

    assert (ran.code, ran.out) == (0, f"{tmp_path / 'new'}\n")
    assert f"{full} has other files, which are not of datasets" in ran.err
    assert file.read_text() == f"jobs = 2\nhome = {json.dumps(str(tmp_path / 'new'))}\n"
    assert list(full.rglob("*")) == [full / "notes.txt"]
    assert rlds("cache", "verify").code == 0


def test_move_into_a_folder_with_files_is_refused(rlds, full, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()

    ran = rlds("cache", "move", tmp_path / "mine")
    assert ran.code == 2
    assert "exists already" in ran.err
    assert (full / "demo").is_dir()
