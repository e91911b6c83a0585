"""A pointer names the current version of a dataset: it changes in a single step, and nothing is lost until a prune."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stored_data import columns, store_dataset, trajectory, write_dataset

from datasets_rl import EpisodeWriter, append_episodes, disk, load, sources, store
from datasets_rl.datasets import opening
from datasets_rl.downloading.run import download
from datasets_rl.errors import (
    DiskFullError,
    IntegrityError,
    InvalidArgumentError,
    LockedError,
    ManifestError,
    NotADatasetError,
    NotWritableError,
    UnknownIdError,
)
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.store import DatasetPaths, layout, locate, publish, versions

ID = "demo/pendulum"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(home):
    given = [trajectory(2 + number % 5, seed=number) for number in range(8)]
    store_dataset(home / "demo" / "pendulum", given, columns(), id=ID)
    return home / "demo" / "pendulum"


def scaled(folder, factor, **how):
    return preprocess(folder, Recipe.inline([f"reward_scaling:scale={factor}"]), **how)


def rewards(folder):
    return StoredDataset(folder).column(("next", "reward")).sum()


def current(folder):
    """Return the name of the current version."""
    return (folder / "CURRENT").read_text().strip()


def names(paths):
    return [version.name for version in store.versions_of(paths)]


def leftovers(home):
    """Return what no finished dataset has: builds, trash, locks and temporary files."""
    marks = ("build-", "trash-", ".lock", ".tmp", "@")
    found = [path.relative_to(home) for path in home.rglob("*")]
    return sorted(path.as_posix() for path in found if path.name.startswith(marks[:3]) or path.name.endswith(".tmp"))


def test_a_dataset_is_derived_by_default_and_reused(folder):
    before = current(folder)
    made = scaled(folder, 3)

    assert made == folder.with_name("pendulum@reward_scaling-scale=3")
    assert current(folder) == before
    assert np.isclose(rewards(made), 3 * rewards(folder))
    assert StoredDataset(made).manifest.id == "demo/pendulum@reward_scaling-scale=3"
    version = current(made)
    assert scaled(folder, 3) == made
    assert current(made) == version


def test_a_derived_dataset_is_reused_under_its_given_name(folder):
    made = scaled(folder, 3, name="big")

    assert scaled(folder, 3) == made == folder.with_name("pendulum@big")


def test_the_name_of_another_result_is_refused_without_force(folder):
    made = scaled(folder, 3, name="x")
    with pytest.raises(InvalidArgumentError, match="holds the result of another recipe"):
        scaled(folder, 4, name="x")
    assert np.isclose(rewards(made), 3 * rewards(folder))
    scaled(folder, 4, name="x", force=True)
    assert np.isclose(rewards(made), 4 * rewards(folder))


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b", "x" * 101, "a@", "7", "x@8"])
def test_names_that_cannot_be_a_folder_are_refused(folder, name):
    with pytest.raises((InvalidArgumentError, UnknownIdError)):
        store.dataset_paths(f"{ID}@{name}")
    if name:
        with pytest.raises(InvalidArgumentError, match="cannot name a derived dataset"):
            scaled(folder, 3, name=name)


def test_a_result_has_only_one_destination(folder, tmp_path):
    with pytest.raises(InvalidArgumentError, match="several destinations"):
        scaled(folder, 3, out=tmp_path / "out", in_place=True)


def test_a_recipe_is_not_applied_to_its_own_result_without_force(folder):
    made = scaled(folder, 3)
    with pytest.raises(InvalidArgumentError, match="is already the result of this recipe"):
        scaled(made, 3)
    twice = scaled(made, 3, force=True)
    assert twice == folder.with_name("pendulum@reward_scaling-scale=3@reward_scaling-scale=3")
    assert np.isclose(rewards(twice), 9 * rewards(folder))


def test_in_place_the_same_recipe_is_applied_once(folder):
    before = rewards(folder)
    for _ in range(3):
        scaled(folder, 3, in_place=True)
    assert np.isclose(rewards(folder), 3 * before)
    scaled(folder, 3, in_place=True, force=True)
    assert np.isclose(rewards(folder), 3 * before)
    assert len(names(store.dataset_paths(ID))) == 2
    preprocess(folder, Recipe.inline(["reward_scaling:scale=3", "reward_scaling:scale=3"]), in_place=True)
    assert np.isclose(rewards(folder), 27 * before)


def test_a_recipe_is_made_again_only_while_the_version_that_it_was_made_of_is_there(folder):
    scaled(folder, 3, in_place=True)
    store.prune(store.dataset_paths(ID))
    with pytest.raises(InvalidArgumentError, match="the version that it was made of was pruned"):
        scaled(folder, 3, in_place=True, force=True)


def test_undo_steps_back_through_all_versions_down_to_the_download(folder, home):
    identities, before = [current(folder)], rewards(folder)
    for factor in (2, 3, 5):
        scaled(folder, factor, in_place=True)
        identities.append(current(folder))
    assert np.isclose(rewards(folder), 30 * before)
    paths = store.dataset_paths(ID)
    assert names(paths) == identities

    for wanted in reversed(identities[:-1]):
        store.restore(folder)
        assert current(folder) == wanted
    with pytest.raises(InvalidArgumentError, match="has no earlier version"):
        store.restore(folder)
    assert names(paths) == identities
    assert leftovers(home) == []


def test_any_version_becomes_the_current_one_by_its_number_or_its_name(folder):
    for factor in (2, 3):
        scaled(folder, factor, in_place=True)
    first, second, third = names(store.dataset_paths(ID))

    for version, expected in ((1, first), ("3", third), (second, second)):
        store.restore(folder, version)
        assert current(folder) == expected
    for version in (4, "0001", "../0001-01234567"):
        if version != "0001":
            with pytest.raises(InvalidArgumentError, match="has no version"):
                store.restore(folder, version)
    assert current(folder) == second


def test_the_same_recipe_after_an_undo_finds_the_version_that_it_has_made(folder):
    scaled(folder, 2, in_place=True)
    made = current(folder)
    store.restore(folder)
    scaled(folder, 2, in_place=True)
    assert current(folder) == made
    assert len(names(store.dataset_paths(ID))) == 2


def test_versions_are_pruned_on_request_and_counted(folder, home):
    scaled(folder, 2, in_place=True)
    paths = store.dataset_paths(ID)
    size = disk.tree_bytes(store.versions_of(paths)[0].folder)

    assert sum(store.prune(store.dataset_paths(ID), dry_run=True).values()) == size
    assert len(names(paths)) == 2
    assert sum(store.prune(paths).values()) == size
    assert names(paths) == [current(folder)]
    assert leftovers(home) == []


@pytest.mark.usefixtures("home")
def test_a_download_keeps_the_version_that_was_preprocessed_in_place():
    folder = download(ID)
    raw = current(folder)
    scaled(folder, 2, in_place=True)
    changed = current(folder)
    download(ID, force=True)

    assert StoredDataset(folder).manifest.history == ()
    assert names(store.dataset_paths(ID)) == [raw, changed, current(folder)]
    store.restore(folder)
    assert current(folder) == changed


def test_a_forced_download_of_equal_bytes_replaces_a_damaged_folder(home):
    folder = download(ID)
    rows = store.version_folder(folder) / "rows.npy"
    good = rows.read_bytes()
    rows.write_bytes(good[:1000])

    download(ID, force=True)
    assert (store.version_folder(folder) / "rows.npy").read_bytes() == good
    assert not rows.exists()
    assert leftovers(home) == []


def test_removing_deletes_the_versions_and_keeps_derived_datasets(folder, home):
    scaled(folder, 2, in_place=True)
    made = scaled(folder, 3)
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    kept = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())

    assert store.remove(ID) == size - kept
    assert not folder.exists()
    assert StoredDataset(made).manifest.history
    assert leftovers(home) == []
    assert store.remove(ID) == 0


def test_an_open_dataset_does_not_change_when_it_is_replaced(folder):
    opened = StoredDataset(folder)
    scaled(folder, 2, in_place=True)
    now = StoredDataset(folder)

    assert np.allclose(now.column(("next", "reward")), 2 * opened.column(("next", "reward")))
    assert len(opened.episodes) == len(now.episodes)


def test_other_processes_receive_the_opened_version_of_a_dataset(folder):
    opened = StoredDataset(folder)
    scaled(folder, 2, in_place=True)
    sent = pickle.loads(pickle.dumps(opened))
    assert np.array_equal(sent.column(("next", "reward")), opened.column(("next", "reward")))

    store.prune(store.dataset_paths(ID))
    with pytest.raises(IntegrityError, match="another version replaced the opened version, which was deleted"):
        pickle.loads(pickle.dumps(opened))


@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_readers_find_one_version_or_the_other_during_replacements(folder, rounds):
    """A dataset is opened again and again during its replacements; none fails or has files of two versions."""
    sums = {}
    ends, looked = threading.Event(), threading.Event()
    seen, wrong = set(), []

    def look():
        while not ends.wait(0.001):
            try:
                stored = StoredDataset(folder)
                history = stored.manifest.history
                recipe = history[-1]["recipe"]["name"] if history else ""
                seen.add((recipe, float(stored.column(("next", "reward")).sum())))
            except Exception as error:  # noqa: BLE001 - any error is a failure
                wrong.append(error)
            looked.set()

    def wait_for_a_look():
        for _ in range(2):  # the first look may have begun before
            looked.clear()
            assert looked.wait(60)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(rounds):
            factor = 2 + number
            scaled(folder, factor, in_place=True)
            sums[f"reward_scaling:scale={factor}"] = float(rewards(folder))
            wait_for_a_look()
            store.restore(folder)
    finally:
        ends.set()
        reader.join()
    sums[""] = float(rewards(folder))
    assert wrong == []
    assert all(np.isclose(total, sums[name]) for name, total in seen)
    assert {name for name, _ in seen} >= sums.keys() - {""}


def test_the_paths_of_a_folder_are_those_of_its_id_if_it_ends_with_the_id(home):
    deep = write_dataset(home / "mine" / "a" / "b", [trajectory(3)], columns(), id="minari/a/b").folder
    alone = write_dataset(home / "copy", [trajectory(3)], columns(), id="minari/a/b").folder

    assert store.paths_of(deep) == DatasetPaths(home / "mine", "a/b")
    assert store.paths_of(alone) == DatasetPaths(home, "copy")


@pytest.mark.usefixtures("home")
def test_a_missing_dataset_is_an_error_with_the_command_that_creates_it():
    with pytest.raises(NotADatasetError, match="it is not downloaded") as caught:
        locate(ID)
    assert caught.value.hint == "datasets_rl.download('demo/pendulum')"
    with pytest.raises(NotADatasetError, match=r"the files at /data/arm are not converted yet"):
        locate("url/file/data/arm")
    with pytest.raises(NotADatasetError, match="it was not made"):
        load(f"{ID}@none")
    with pytest.raises(UnknownIdError):
        locate("demo/none@x")


@pytest.mark.parametrize("by", ["its id", "its folder"])
def test_a_dataset_whose_pointer_was_deleted_is_an_error_with_the_command_that_points_again(folder, by):
    scaled(folder, 2, in_place=True)
    (folder / "CURRENT").unlink()
    name = names(store.dataset_paths(ID))[-1]
    with pytest.raises(NotADatasetError, match="there is no file CURRENT, and 2 versions, none current") as caught:
        load(ID if by == "its id" else folder, download=False)
    dataset = ID if by == "its id" else str(folder)
    assert caught.value.hint == f"datasets_rl.restore({dataset!r}, {name!r}) makes the last version current"
    store.restore(dataset, name)
    assert current(folder) == name


def test_a_full_disk_is_named_by_the_folder_of_the_dataset_and_leaves_nothing(home, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    folder = store.dataset_paths(ID).folder
    with pytest.raises(DiskFullError, match=f"not enough disk at {folder}: .* 1,000 bytes free"):
        download(ID)
    assert not folder.exists()
    assert leftovers(home) == []


def test_sampling_goes_on_after_the_opened_version_was_pruned(folder):
    scaled(folder, 2, in_place=True)
    dataset = load(ID, batch_size=4)
    before = float(dataset[:]["next", "reward"].sum())
    store.restore(folder, 1)
    store.prune(store.dataset_paths(ID))

    assert not dataset.stored.folder.exists()
    assert dataset.sample()["next", "reward"].shape == (4, 1)
    assert float(dataset[:]["next", "reward"].sum()) == before
    with pytest.raises(IntegrityError, match="another version replaced the opened version, which was deleted"):
        pickle.loads(pickle.dumps(dataset))


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_a_folder_on_another_disk_is_changed_where_it_is(folder, home, tmp_path):
    before = rewards(folder)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")

    scaled(folder, 2, in_place=True)
    assert np.isclose(rewards(folder), 2 * before)
    download(ID, force=True)
    assert len(StoredDataset(folder)) == 15_000
    assert folder.is_symlink()
    store.remove(ID)
    assert not folder.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    assert leftovers(home) == []


def test_a_dataset_derives_another_and_opens_it(folder):
    dataset = load(ID, batch_size=4)
    made = dataset.derive(Recipe.inline(["reward_scaling:scale=3"]), name="x", batch_size=4)

    assert made.dataset_id == "pendulum@x"
    assert np.isclose(rewards(made.data_path), 3 * rewards(folder))
    assert made.sample().shape == (4,)
    assert load(f"{ID}@x").data_path == made.data_path
    made.delete()
    assert not made.data_path.exists()
    assert folder.exists()


def test_a_dataset_is_replaced_only_on_request(folder):
    dataset = load(ID)
    with pytest.raises(InvalidArgumentError, match="neither was given"):
        dataset.preprocess(lambda step: step)
    with pytest.raises(InvalidArgumentError, match="both was given"):
        dataset.preprocess(lambda step: step, dest=folder.parent / "x", in_place=True)


def test_a_change_waits_seconds_for_another_one_and_names_its_process(folder, monkeypatch):
    monkeypatch.setattr(versions, "SHORT_WAIT", 0.3)
    program = "import sys, time\nfrom pathlib import Path\nfrom datasets_rl import store\nfrom datasets_rl.store.publish import locked\nspot = store.paths_of(Path(sys.argv[1]))\nwith locked(spot, 'x'):\n    print('in', flush=True)\n    time.sleep(60)\n"
    other = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(LockedError, match=f"process {other.pid} on "):
            store.restore(folder)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    scaled(folder, 2, in_place=True)
    store.restore(folder)


@pytest.mark.skipif(os.name == "nt", reason="permissions")
def test_sweeping_ignores_read_only_folders(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "demo" / "x" / "build-01234567").mkdir(parents=True)
    (tmp_path / "demo" / "x").chmod(0o500)
    for paths in store.dataset_places(tmp_path / "demo"):
        store.sweep_dataset(paths)
    (tmp_path / "demo" / "x").chmod(0o700)


@pytest.fixture
def read_only(folder, home):
    """The home folder of a dataset, mounted so that nobody may write to it."""
    scaled(folder, 2, in_place=True)
    mounts = [["mount", "--bind", home, home], ["mount", "-o", "remount,bind,ro", home]]
    if os.name == "nt" or any(subprocess.run(mount, capture_output=True, check=False).returncode for mount in mounts):
        pytest.skip("mounting needs root")
    yield home
    subprocess.run(["umount", "--lazy", home], check=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda: download(ID, force=True),
        lambda: append_episodes("local/mine", ID),
        lambda: scaled(ID, 3, name="x"),
        lambda: store.restore(ID),
        lambda: store.remove(ID),
    ],
    ids=["download", "append", "preprocess", "restore", "remove"],
)
def test_a_home_that_nobody_may_write_to_is_named_with_what_to_do(read_only, change):
    with pytest.raises(NotWritableError, match=r"^\S+ cannot be written: ") as caught:
        change()
    assert caught.value.path.is_relative_to(read_only)
    assert "choose another place with root=..., out=... or RLDS_HOME" in caught.value.hint


def test_a_merge_needs_no_step_and_names_each_dataset_once(folder, home):
    made = scaled(folder, 3)
    both = preprocess([folder, made], Recipe([], "merge"), out=home / "else" / "both")

    assert len(StoredDataset(both)) == 2 * len(StoredDataset(folder))
    with pytest.raises(InvalidArgumentError, match="is named twice"):
        preprocess([folder, folder], Recipe([], "merge"), out=Path(home / "else" / "twice"))
    with pytest.raises(InvalidArgumentError, match="has no step"):
        preprocess(folder, Recipe([], "nothing"), out=home / "else" / "same")


@pytest.mark.parametrize(
    ("dataset_id", "split"),
    [
        ("demo/pendulum", ("demo/pendulum", "")),
        ("demo/pendulum@x", ("demo/pendulum", "x")),
        ("demo/pendulum@x@y", ("demo/pendulum", "x@y")),
        ("openml/iris@1", ("openml/iris@1", "")),
        ("openml/iris@1@x", ("openml/iris@1", "x")),
        ("openml/iris@12x", ("openml/iris", "12x")),
    ],
)
def test_a_derived_dataset_is_named_after_the_id_including_a_version_of_openml(dataset_id, split):
    assert sources.split_derived(dataset_id) == split


def test_a_dataset_derived_from_a_linked_one_is_stored_beside_the_link(folder, home, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("disk") / "pend"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)

    made = load(ID).derive(Recipe.inline(["reward_scaling:scale=3"]), name="x")
    assert made.data_path == home / "demo" / "pendulum@x"
    assert locate(f"{ID}@x") == made.data_path
    scaled(folder, 2, in_place=True)
    assert folder.is_symlink()
    assert len(names(store.dataset_paths(ID))) == 2
    download(ID, force=False)
    store.remove(ID)
    assert not elsewhere.exists()
    assert not folder.is_symlink()


@pytest.mark.parametrize(
    "mine", [".trash/note.md", ".work/project/build/main.c", ".work/editor.lock", ".rlds-work/x", ".Trash/y"]
)
def test_hidden_folders_of_other_programs_are_not_changed(folder, home, tmp_path_factory, mine):
    room = tmp_path_factory.mktemp("user")
    note = room / mine
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    out = scaled(folder, 3, out=room / "out")
    scaled(out, 2, in_place=True)
    store.restore(out)
    store.sweep_dataset(store.paths_of(out))
    assert note.read_text() == "mine"
    assert home.exists()


def test_a_damaged_derived_dataset_blocks_no_other(folder):
    made = scaled(folder, 3, name="x")
    (store.version_folder(made) / "manifest.json").write_text("{}")

    assert scaled(folder, 4).exists()
    scaled(folder, 3, name="x", force=True)
    assert np.isclose(rewards(made), 3 * rewards(folder))


def test_a_derived_dataset_is_not_downloaded(folder):
    scaled(folder, 3, name="x")
    with pytest.raises(InvalidArgumentError, match="cannot be downloaded"):
        download(f"{ID}@x", force=True)


@pytest.mark.usefixtures("home")
def test_a_sweep_leaves_no_folder_where_another_process_begins_and_ends_meanwhile(monkeypatch):
    paths = store.dataset_paths(f"{ID}@x")
    derived = paths.folder
    paths.mark()
    remove_empty, mark, began = disk.remove_empty, DatasetPaths.mark, []

    def other_begins(path):
        if path == derived and not began:
            began.append(path)
            (path / ".lock").touch()
        return remove_empty(path)

    def other_ends(paths):
        if began and (paths.folder / ".lock").exists():
            (paths.folder / ".lock").unlink()
            paths.folder.rmdir()
        mark(paths)

    monkeypatch.setattr(disk, "remove_empty", other_begins)
    monkeypatch.setattr(DatasetPaths, "mark", other_ends)
    store.sweep_dataset(paths)

    assert began
    assert not derived.exists()


@pytest.mark.usefixtures("home")
def test_a_sweep_passes_over_a_dataset_that_another_process_is_deleting(monkeypatch):
    paths = store.dataset_paths(f"{ID}@x")
    paths.mark()

    def deleted(paths):
        (paths.folder / ".lock").touch()
        paths.mark_file.unlink()
        return []

    monkeypatch.setattr(versions, "leftovers", deleted)
    assert store.sweep_dataset(paths) == {}
    assert [path.name for path in paths.folder.iterdir()] == [".lock"]


@pytest.mark.usefixtures("home")
def test_a_dataset_begins_where_another_process_deletes_one_at_that_moment(monkeypatch):
    """The other process has created its lock, and restores the mark that this process has deleted."""
    paths = store.dataset_paths(f"{ID}@x")
    paths.mark()
    (paths.folder / ".lock").touch()
    paths.mark_file.unlink()
    looked = []

    def is_locked(path):
        looked.append(path)
        if len(looked) == 2:
            paths.mark()
        return False

    monkeypatch.setattr(disk, "is_locked", is_locked)
    paths.check_changeable()
    assert len(looked) == 2


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_concurrent_sweeps_do_not_fail_a_removal(folder, home, rounds):
    backup = StoredDataset(folder).manifest
    ends = threading.Event()

    def sweep():
        while not ends.is_set():
            for paths in store.dataset_places(home / "demo"):
                store.sweep_dataset(paths)

    other = threading.Thread(target=sweep)
    other.start()
    try:
        for number in range(rounds):
            scaled(folder, 2 + number, name="x", force=True)
            store.remove(f"{ID}@x")
    finally:
        ends.set()
        other.join()
    assert StoredDataset(folder).manifest == backup
    assert not (home / "demo" / "pendulum@x").exists()


def test_concurrent_undos_of_two_threads_are_two_steps(folder):
    for factor in (2, 3, 5):
        scaled(folder, factor, in_place=True)
    for thread in [threading.Thread(target=store.restore, args=(folder,)) for _ in range(2)]:
        thread.start()
        thread.join()
    assert store.current_version(store.dataset_paths(ID)).number == 2


def test_load_opens_the_new_version_if_another_one_replaces_it_meanwhile(folder, monkeypatch):
    """The version that was opened first is deleted before its rows are mapped."""
    before, opened = rewards(folder), []

    class Replaced(StoredDataset):
        def __init__(self, path):
            super().__init__(path)
            opened.append(path)
            if len(opened) == 1:
                scaled(folder, 3, in_place=True)
                store.prune(store.paths_of(folder))

    monkeypatch.setattr(opening, "StoredDataset", Replaced)
    dataset = load(ID, batch_size=4)
    assert len(opened) == 2
    assert np.isclose(float(dataset[:]["next", "reward"].sum()), 3 * before)


def test_the_same_command_completes_a_version_that_was_published_and_not_pointed_at(folder, home, monkeypatch):
    before, made = current(folder), []
    with monkeypatch.context() as patch:
        patch.setattr(publish, "point_to", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scaled(folder, 2, in_place=True)
    assert current(folder) == before
    monkeypatch.setattr(publish, "publish", made.append)

    scaled(folder, 2, in_place=True)
    assert (current(folder), made) == (names(store.dataset_paths(ID))[1], [])
    assert np.isclose(rewards(folder), 2 * rewards(store.versions_of(store.dataset_paths(ID))[0].folder))
    assert leftovers(home) == []


def test_a_copy_of_a_version_is_read_and_never_changed(folder, tmp_path):
    copy = shutil.copytree(store.version_folder(folder), tmp_path / "copy")

    assert len(load(copy)) == len(StoredDataset(folder))
    with pytest.raises(InvalidArgumentError, match="is a single version of a dataset"):
        scaled(copy, 2, in_place=True)
    with pytest.raises(InvalidArgumentError, match="is a single version of a dataset"):
        store.restore(copy)
    assert scaled(copy, 2, out=tmp_path / "out") == tmp_path / "out"


def test_a_copy_of_the_folder_of_a_dataset_has_everything_of_it(folder, tmp_path):
    scaled(folder, 2, in_place=True)
    copy = shutil.copytree(folder, tmp_path / "copy")
    store.restore(copy)

    assert np.isclose(2 * rewards(copy), rewards(folder))


@pytest.mark.parametrize("text", ["", "../0001-01234567\n", "0001-0123456\n", "9999-01234567\n", "x" * 10_000, "\0"])
def test_a_pointer_that_names_no_version_is_an_error_with_a_remedy(folder, text):
    (folder / "CURRENT").write_text(text)
    with pytest.raises((ManifestError, NotADatasetError), match="CURRENT") as caught:
        StoredDataset(folder)
    assert "datasets_rl.restore(" in str(caught.value.hint)
    store.restore(folder, 1)
    assert len(StoredDataset(folder))


def test_what_an_interrupted_copy_left_blocks_no_download(folder):
    (version,) = store.versions_of(store.dataset_paths(ID))
    (version.folder / "manifest.json").unlink()
    rows = (version.folder / "rows.npy").read_bytes()

    download(ID, force=True)
    assert len(StoredDataset(folder))
    assert (version.folder / "rows.npy").read_bytes() == rows
    assert store.remove(ID) > 0
    assert not folder.exists()


def test_datasets_may_be_inside_each_other_and_are_removed_one_by_one(home):
    outer = store_dataset(home / "local" / "a", [trajectory(3)], id="local/a").folder.parent
    inner = store_dataset(outer / "b", [trajectory(4)], id="local/a/b").folder.parent
    (outer / "notes.txt").write_text("mine")

    assert list(store.stored_folders(home)) == [outer, inner]
    assert list(DatasetPaths(home / "local", "a").foreign()) == [outer / "notes.txt"]
    store.remove_folder(outer)
    assert list(store.stored_folders(home)) == [inner]
    assert [path.name for path in sorted(outer.iterdir())] == ["b", "notes.txt"]
    store.remove_folder(inner)
    assert [path.name for path in outer.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "name", ["raw", "recorded", "CURRENT", "0001-01234567", "build-x", "trash-0", "a/raw", "a/raw/b"]
)
def test_a_dataset_cannot_have_the_name_of_an_entry_of_another_one(home, name):
    with pytest.raises(InvalidArgumentError, match="cannot name a dataset"):
        store.dataset_paths(f"local/{name}")
    assert home.exists()


def test_a_prune_and_another_command_without_a_lock_lose_no_current_version(folder, monkeypatch):
    """The version becomes the current version between the listing of a prune and its renaming."""
    scaled(folder, 2, in_place=True)
    paths = store.dataset_paths(ID)
    first, _ = store.versions_of(paths)
    discard = disk.discard

    def used_meanwhile(path, root, **options):
        if path == first.folder:
            publish.point_to(paths, first)
        discard(path, root, **options)

    monkeypatch.setattr(disk, "discard", used_meanwhile)
    store.prune(paths)
    assert current(folder) == first.name
    assert len(StoredDataset(folder))


def test_a_dataset_for_which_a_process_records_is_not_removed(home):
    with EpisodeWriter("local/own") as writer:
        writer.start([0.0])
        writer.step([0.0], [1.0], 1.0, terminated=True)
        with pytest.raises(LockedError, match=r"the process that works on .*recorded") as caught:
            store.remove("local/own")
        assert "delete" not in caught.value.hint
    assert len(load("local/own", download=False)) == 1
    assert store.remove("local/own") > 0
    assert not (home / "local" / "own").exists()


def test_a_superseded_version_that_becomes_current_without_the_lock_is_kept(folder, monkeypatch):
    """Another process points at the former version between the listing of what is superseded and its deletion."""
    paths = store.dataset_paths(ID)
    download(ID, force=True)
    former = store.current_version(paths)
    superseded = publish._superseded

    def used_meanwhile(*args):
        found = superseded(*args)
        publish.point_to(paths, former)
        return found

    monkeypatch.setattr(publish, "_superseded", used_meanwhile)
    download(ID, force=True)
    assert current(folder) == former.name
    assert len(StoredDataset(folder))


def test_two_processes_without_a_lock_may_publish_the_same_version(folder, monkeypatch):
    made = scaled(folder, 2, name="x")
    version = store.version_folder(made)
    store.remove(f"{ID}@x")
    move = disk.move_path

    def moved_meanwhile(path, target):
        shutil.copytree(path, target)
        move(path, target)

    monkeypatch.setattr(disk, "move_path", moved_meanwhile)
    assert scaled(folder, 2, name="x") == made
    assert store.version_folder(made) == version
    assert [path.name for path in made.iterdir() if path.name.startswith(("build-", "trash-"))] == []


def test_a_folder_that_is_removed_before_it_is_changed_is_no_foreign_one(folder, monkeypatch):
    """Another process removes the dataset while the command looks whether its folder is a dataset."""
    paths = store.dataset_paths(ID)
    (folder / "CURRENT").unlink()
    lexists = os.path.lexists

    def removed_meanwhile(path):
        found = lexists(path)
        if Path(path) == folder:
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(os.path, "lexists", removed_meanwhile)
    paths.check_changeable()


def test_a_version_that_another_process_has_deleted_has_no_foreign_files(folder):
    version = store.version_folder(folder)
    (version / "notes.txt").write_text("mine")
    assert publish.foreign_files(version) == ["notes.txt"]
    shutil.rmtree(version)
    assert publish.foreign_files(version) == []


def test_the_next_download_releases_the_raw_files_that_a_killed_one_claimed(folder):
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    claimed = folder / f"raw@{disk.process_name().rpartition('-')[0]}-{process.pid}"
    claimed.mkdir()
    (claimed / "a.h5").write_text("upstream")

    download(ID)

    assert not claimed.exists()
    assert (folder / "raw" / "a.h5").read_text() == "upstream"


def test_a_dataset_that_is_removed_without_the_lock_before_a_version_becomes_current_is_missing(folder):
    paths = store.paths_of(folder)
    version = publish.current_version(paths)
    shutil.rmtree(folder)

    with pytest.raises(NotADatasetError, match="another process has just removed it"):
        publish.point_to(paths, version)


@pytest.mark.usefixtures("home")
def test_a_dataset_that_another_process_begins_is_not_taken_for_files_of_others():
    """The mark is missing for a moment, because a third process has deleted the folder when there was no lock."""
    paths = store.dataset_paths(ID)
    paths.folder.mkdir(parents=True)
    with disk.lock(paths.lock, ID):
        other = threading.Timer(0.2, paths.mark)
        other.start()

        paths.check_changeable()

        assert paths.is_own
        other.join()


@pytest.mark.usefixtures("home")
def test_a_dataset_that_another_process_begins_is_not_taken_for_files_that_remain(monkeypatch):
    """Its files are listed after this process has looked for the mark."""
    paths = store.dataset_paths(ID)
    looks = []

    def is_own(folder):
        looks.append(folder)
        if len(looks) == 1:
            paths.mark()
            (paths.folder / f"build-{'0' * 8}").mkdir()
            return False
        return layout.is_marked(folder)

    monkeypatch.setattr(layout, "is_own_folder", is_own)

    paths.check_changeable()
