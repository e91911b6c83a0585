"""``rlds identify``, and what ``rlds cache`` says of its index."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from datasets_rl import disk

DEMO = "demo/pendulum"


@pytest.fixture
def copied(stored, home):
    """The home with a copy of the dataset under another id."""
    shutil.copytree(stored, home / "local" / "copy")
    return home / ".identify" / "index"


def write_file(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def constant(path):
    ends = np.arange(40) % 10 == 9
    return write_file(
        path,
        observations=np.ones((40, 3)),
        actions=np.zeros((40, 2)),
        rewards=np.ones(40),
        terminals=ends,
        timeouts=ends,
    )


def test_a_folder_elsewhere_is_shown_by_its_path(rlds, stored, tmp_path, monkeypatch):
    """Its manifest has the id of a dataset that is searched."""
    shutil.copytree(stored, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    shown = rlds("identify", "./mine", "--exact")

    assert shown.out.startswith("75 of 75 episodes of ./mine are in 1 dataset, of 1 dataset that was searched\n")
    assert rlds("identify", "./mine", "--exact", "--json").json["id"] == "./mine"


def test_the_index_is_listed_and_can_be_deleted(rlds, copied):
    assert rlds("cache", "ls", "--json").json["index_bytes"] == 0
    ran = rlds("identify", DEMO)
    assert (ran.code, ran.out.splitlines()[0]) == (
        0,
        "75 of 75 episodes of demo/pendulum are in 1 dataset, of 1 dataset that was searched",
    )
    size = copied.stat().st_size

    listed = rlds("cache", "ls", "--json").json
    assert (listed["index_bytes"], listed["other_bytes"]) == (size, 0)
    assert "index of fingerprints" in rlds("cache", "ls").err
    assert rlds("cache", "prune", "--json").json["freed"] == {"scratch folders": 0, "left by killed commands": 0}
    assert rlds("cache", "prune", "--index", "--dry-run", "--json").json["freed"]["index of fingerprints"] == size
    assert rlds("cache", "prune", "--index").code == 10
    assert copied.exists()
    assert rlds("cache", "prune", "--index", "--yes", "--json").json["freed"]["index of fingerprints"] == size
    assert not copied.parent.exists()


def test_prune_deletes_what_a_killed_search_left(rlds, copied):
    rlds("identify", DEMO)
    left = copied.with_name(f".index@{disk.process_name().partition('-')[0]}-999999999.tmp")
    left.write_bytes(bytes(100))
    (copied.parent / "notes").write_text("mine")

    assert rlds("cache", "prune", "--json").json["freed"]["left by killed commands"] == 100
    assert sorted(path.name for path in copied.parent.iterdir()) == ["index", "notes"]


def test_a_move_of_the_data_folder_leaves_no_index(rlds, copied, home, tmp_path):
    rlds("identify", DEMO)

    assert rlds("--root", str(home), "cache", "move", str(tmp_path / "moved")).code == 0
    assert rlds("--root", str(tmp_path / "moved"), "cache", "move", str(tmp_path / "moved")).code == 0
    assert not copied.exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("./nothing", 3, "next: correct the path, or name an id or an address"),
        ("./empty", 3, "why: the folder is empty\n  next: name a file, or the folder of the files"),
        ("local/nope", 3, "why: it has no data"),
        ("d4rl/hoper-medium-v2", 3, "did you mean d4rl/hopper-medium-v2"),
        ("http://127.0.0.1:9/data.npz", 4, "next: check the address and the network, or name files on this machine"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_with_the_next_step(rlds, tmp_path, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()

    ran = rlds("identify", words)

    assert (ran.code, ran.out) == (code, "")
    assert text in ran.err
    assert "--mirror" not in ran.err


def test_a_home_without_datasets_and_episodes_without_evidence_are_named(rlds, home, tmp_path):
    path = constant(tmp_path / "flat.hdf5")

    ran = rlds("identify", str(path))

    assert ran.code == 12
    assert ran.out.splitlines() == [
        f"no other dataset is stored in {home}: `rlds list` shows what can be downloaded, and --root names another folder",
        "all 4 episodes are constant, scripted or very short, and no evidence: equal episodes are no copies",
    ]
    assert not home.exists()


@pytest.mark.usefixtures("stored")
def test_a_file_is_named_as_the_user_names_it(rlds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    constant(tmp_path / "flat.hdf5")

    ran = rlds("identify", "flat.hdf5", "--json")

    assert (ran.code, ran.json["id"], ran.json["uninformative"], ran.json["searched"]) == (12, "flat.hdf5", 4, 1)


@pytest.mark.usefixtures("stored")
def test_a_copied_folder_is_named_as_the_user_names_it(rlds, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "demo" / "pendulum", "my données")

    ran = rlds("identify", "./my données")

    assert ran.code == 0
    assert ran.out.startswith("75 of 75 episodes of ./my données are in 1 dataset")


def test_an_index_that_cannot_be_kept_is_named(rlds, copied):
    copied.mkdir(parents=True)

    ran = rlds("identify", DEMO)

    assert ran.code == 0
    assert "the index of the stored datasets is not kept, so that each search makes the index: " in ran.out
