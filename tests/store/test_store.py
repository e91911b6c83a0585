"""A version replaces another in one step, and the next command that writes completes the work of a dead process."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from stored_data import columns, digest_by_hand, trajectory, write_dataset

from datasets_rl import disk, load, sources, store
from datasets_rl.datasets import experience_replay
from datasets_rl.downloading.run import download
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError, NotADatasetError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.store import DatasetPaths, locating

ID = "demo/pendulum"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(home):
    given = [trajectory(2 + number % 5, seed=number) for number in range(8)]
    return write_dataset(home / "demo" / "pendulum", given, columns(), id=ID).folder


def scaled(folder, factor, **how):
    return preprocess(folder, Recipe.inline([f"scale_rewards:{factor}"]), **how)


def rewards(folder):
    return StoredDataset(folder).column(("next", "reward")).sum()


def hidden(home):
    """Return the hidden files beside datasets, without empty work folders, which the next command deletes."""
    found = [path for path in home.rglob("*") if "/." in str(path) and (path.name != ".work" or any(path.iterdir()))]
    return sorted(path.relative_to(home).as_posix() for path in found)


def test_a_dataset_is_derived_by_default_and_reused(folder):
    before = disk.folder_identity(folder)
    made = scaled(folder, 3)

    assert made == folder.with_name("pendulum@scale_rewards-3")
    assert disk.folder_identity(folder) == before
    assert np.isclose(rewards(made), 3 * rewards(folder))
    assert StoredDataset(made).manifest.id == "demo/pendulum@scale_rewards-3"
    inode = made.stat().st_ino
    assert scaled(folder, 3) == made
    assert made.stat().st_ino == inode


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
    assert twice == folder.with_name("pendulum@scale_rewards-3@scale_rewards-3")
    assert np.isclose(rewards(twice), 9 * rewards(folder))


def test_in_place_the_same_recipe_is_applied_once(folder):
    before = rewards(folder)
    for _ in range(3):
        scaled(folder, 3, in_place=True)
    assert np.isclose(rewards(folder), 3 * before)
    scaled(folder, 3, in_place=True, force=True)
    assert np.isclose(rewards(folder), 9 * before)


def test_undo_steps_back_through_all_versions_down_to_the_download(folder, home):
    identities, before = [disk.folder_identity(folder)], rewards(folder)
    for factor in (2, 3, 5):
        scaled(folder, factor, in_place=True)
        identities.append(disk.folder_identity(folder))
    assert np.isclose(rewards(folder), 30 * before)
    paths = store.dataset_paths(ID)
    assert [disk.folder_identity(one.folder) for one in store.versions(paths)] == identities[:-1]

    for wanted in reversed(identities[:-1]):
        store.undo(folder)
        assert disk.folder_identity(folder) == wanted
    with pytest.raises(InvalidArgumentError, match="has no earlier version"):
        store.undo(folder)
    assert hidden(home) == []


def test_versions_are_pruned_on_request_and_counted(folder, home):
    scaled(folder, 2, in_place=True)
    size = sum(path.stat().st_size for path in (home / "demo" / ".versions").rglob("*") if path.is_file())

    assert store.prune(store.dataset_paths(ID), dry_run=True) == size
    assert len(store.versions(store.dataset_paths(ID))) == 1
    assert store.prune(store.dataset_paths(ID)) == size
    assert store.versions(store.dataset_paths(ID)) == []
    assert hidden(home) == []


@pytest.mark.usefixtures("home")
def test_a_download_keeps_the_version_that_was_preprocessed_in_place():
    folder = download(ID)
    raw = disk.folder_identity(folder)
    scaled(folder, 2, in_place=True)
    changed = disk.folder_identity(folder)
    download(ID, force=True)

    assert disk.folder_identity(folder) == raw
    assert [disk.folder_identity(one.folder) for one in store.versions(store.dataset_paths(ID))] == [raw, changed]
    store.undo(folder)
    assert disk.folder_identity(folder) == changed


def test_a_forced_download_of_equal_bytes_replaces_a_damaged_folder(home):
    folder = download(ID)
    good = (folder / "rows.npy").read_bytes()
    (folder / "rows.npy").write_bytes(good[:1000])

    download(ID, force=True)
    assert (folder / "rows.npy").read_bytes() == good
    assert hidden(home) == []


def test_removing_deletes_the_versions_and_keeps_derived_datasets(folder, home):
    scaled(folder, 2, in_place=True)
    made = scaled(folder, 3)
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    kept = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())

    assert store.remove(ID) == size - kept
    assert not folder.exists()
    assert StoredDataset(made).manifest.history
    assert hidden(home) == []
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
    with pytest.raises(IntegrityError, match="another version replaced it"):
        pickle.loads(pickle.dumps(opened))


def test_a_file_is_of_the_opened_version_even_during_an_undo_that_restores_it(folder):
    opened = StoredDataset(folder)
    found = []

    def read_during_a_change_and_its_undo(path):
        if not found:
            scaled(folder, 2, in_place=True)
        found.append(digest_by_hand(path.read_bytes()))
        if len(found) == 1:
            store.undo(folder)
        return found[-1]

    digests = {entry.path: entry.digest for entry in opened.manifest.files}
    assert opened.open_file("rows.npy", read_during_a_change_and_its_undo) == digests["rows.npy"]
    assert len(found) == 2


def test_a_file_of_the_opened_version_is_read_before_that_version_is_moved_to_the_earlier_ones(folder, monkeypatch):
    """After the exchange with the new version, the old one is in the work folder for a moment."""
    opened, seen, move = StoredDataset(folder), [], disk.move_path

    def read_and_move(path, target):
        seen.append(opened.open_file("rows.npy", lambda file: file.parent))
        move(path, target)

    monkeypatch.setattr(disk, "move_path", read_and_move)
    scaled(folder, 2, in_place=True)
    assert [path.name for path in seen] == ["build"]


def test_readers_find_one_version_or_the_other_during_replacements(folder):
    """A dataset is opened hundreds of times during 50 replacements; none fails or has files of two versions."""
    sums = {}
    ends = threading.Event()
    seen, wrong = [], []

    def look():
        while not ends.is_set():
            try:
                stored = StoredDataset(folder)
                seen.append(
                    (
                        stored.manifest.history[-1]["recipe"]["name"] if stored.manifest.history else "",
                        float(stored.column(("next", "reward")).sum()),
                    )
                )
            except Exception as error:  # noqa: BLE001 - any error is a failure
                wrong.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(25):
            factor = 2 + number
            scaled(folder, factor, in_place=True)
            sums[f"scale_rewards:{factor}"] = float(rewards(folder))
            store.undo(folder)
    finally:
        ends.set()
        reader.join()
    sums[""] = float(rewards(folder))
    assert wrong == []
    assert all(np.isclose(total, sums[name]) for name, total in seen)
    assert len(seen) > 25


@pytest.mark.parametrize("exchange", [True, False])
def test_without_an_exchange_two_renames_have_the_same_result(folder, home, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(disk, "exchange_folders", lambda *_: False)
    before = disk.folder_identity(folder)
    scaled(folder, 2, in_place=True)
    assert disk.folder_identity(folder) != before
    store.undo(folder)
    assert disk.folder_identity(folder) == before
    assert hidden(home) == []


@pytest.mark.parametrize("call", [1, 2])
def test_the_same_command_completes_a_replacement_that_stopped_between_two_renames(folder, home, monkeypatch, call):
    """On file systems without an atomic exchange, only a record exists between the two renames."""
    before, moves, move = disk.folder_identity(folder), [], disk.move_path

    def dies(path, target):
        moves.append(path)
        if len(moves) == call:
            raise KeyboardInterrupt
        move(path, target)

    monkeypatch.setattr(store, "_CHANGE_SECONDS", 0.0)  # nobody waits for the dead process, which is this one
    with monkeypatch.context() as patch:
        patch.setattr(disk, "exchange_folders", lambda *_: False)
        patch.setattr(disk, "move_path", dies)
        with pytest.raises(KeyboardInterrupt):
            scaled(folder, 2, in_place=True)
    assert folder.exists() is (call == 1)

    files = {path for path in home.rglob("*") if path.is_file()}
    if call == 1:
        assert disk.folder_identity(locating.locate(ID)) == before
    else:
        with pytest.raises(NotADatasetError, match="was killed before it was done") as caught:
            locating.locate(ID)
        assert "run the command of that process again" in caught.value.hint
    assert {path for path in home.rglob("*") if path.is_file()} == files

    scaled(folder, 2, in_place=True)
    assert disk.folder_identity(folder) != before
    assert len(store.versions(store.dataset_paths(ID))) == 1
    store.undo(folder)
    assert disk.folder_identity(folder) == before
    assert hidden(home) == []


def test_a_folder_without_an_id_is_recovered_by_a_command_that_writes_it(folder, home, monkeypatch):
    mine = scaled(folder, 2, out=home / "else" / "mine")
    move = disk.move_path

    def dies(path, target):
        move(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_CHANGE_SECONDS", 0.0)  # nobody waits for the dead process, which is this one
    with monkeypatch.context() as patch:
        patch.setattr(disk, "exchange_folders", lambda *_: False)
        patch.setattr(disk, "move_path", dies)
        with pytest.raises(KeyboardInterrupt):
            preprocess(mine, Recipe.inline(["keep_lengths:3"]), in_place=True)
    assert not mine.exists()
    with pytest.raises(NotADatasetError, match="was killed before it was done"):
        load(mine)
    preprocess(mine, Recipe.inline(["keep_lengths:3"]), in_place=True)
    assert len(StoredDataset(mine).manifest.history) == 2


@pytest.mark.parametrize("by", ["a sweep", "the same command"])
def test_an_interrupted_removal_is_dropped_if_the_user_restored_the_dataset(folder, home, monkeypatch, by):
    scaled(folder, 2, in_place=True)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_complete_change", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.remove(ID)
    copy = shutil.copytree(folder, folder.with_name("copy"))
    disk.remove_tree(folder)
    copy.rename(folder)

    if by == "a sweep":
        store.sweep(home / "demo")
        assert folder.exists()
        store.undo(folder)
        assert StoredDataset(folder).manifest.history == ()
    else:
        assert store.remove(ID) > 0
        assert not folder.exists()
        assert hidden(home) == []


def test_a_dataset_that_the_user_restored_is_never_replaced_by_a_record(folder, home, monkeypatch):
    """A record identifies folders by their identity, not by their path."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "_complete_change", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scaled(folder, 2, in_place=True)
    disk.remove_tree(folder)
    other = [trajectory(4, seed=77)]
    write_dataset(folder, other, columns(), id=ID)
    theirs = disk.folder_identity(folder)

    assert locating.locate(ID) == folder
    store.sweep(home / "demo")
    assert disk.folder_identity(folder) == theirs


def test_ids_with_slashes_never_share_a_work_folder(tmp_path):
    one, other = DatasetPaths(tmp_path, "a"), DatasetPaths(tmp_path, "a/build")

    assert other.work.parent == one.work.parent
    assert not other.work.is_relative_to(one.work)
    assert len(DatasetPaths(tmp_path, "x/" * 90 + "y").work.name) < 200


def test_the_paths_of_a_folder_are_those_of_its_id_if_it_ends_with_the_id(home):
    deep = write_dataset(home / "mine" / "a" / "b", [trajectory(3)], columns(), id="minari/a/b").folder
    alone = write_dataset(home / "copy", [trajectory(3)], columns(), id="minari/a/b").folder

    assert store.paths_of(deep) == DatasetPaths(home / "mine", "a/b")
    assert store.paths_of(alone) == DatasetPaths(home, "copy")


@pytest.mark.usefixtures("home")
def test_a_missing_dataset_is_an_error_with_the_command_that_creates_it():
    with pytest.raises(NotADatasetError, match="it is not downloaded") as caught:
        locating.locate(ID)
    assert caught.value.hint == "datasets_rl.download('demo/pendulum')"
    with pytest.raises(NotADatasetError, match="it was not made"):
        load(f"{ID}@none")
    with pytest.raises(UnknownIdError):
        locating.locate("demo/none@x")


def test_a_dataset_derives_another_and_opens_it(folder):
    dataset = load(ID, batch_size=4)
    made = dataset.derive(Recipe.inline(["scale_rewards:3"]), name="x", batch_size=4)

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


def test_a_change_waits_seconds_for_another_one_and_names_its_process(folder):
    program = "import sys, time\nfrom pathlib import Path\nfrom datasets_rl import store\nspot = store.paths_of(Path(sys.argv[1]))\nwith store.transaction(spot, 'x', []):\n    print('in', flush=True)\n    time.sleep(60)\n"
    other = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(LockedError, match=f"process {other.pid} on "):
            store.undo(folder)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    scaled(folder, 2, in_place=True)
    store.undo(folder)


@pytest.mark.skipif(os.name == "nt", reason="permissions")
def test_sweeping_ignores_read_only_folders(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "demo" / ".work").mkdir(parents=True)
    (tmp_path / "demo").chmod(0o500)
    store.sweep(tmp_path / "demo")
    (tmp_path / "demo").chmod(0o700)


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

    made = load(ID).derive(Recipe.inline(["scale_rewards:3"]), name="x")
    assert made.data_path == home / "demo" / "pendulum@x"
    assert locating.locate(f"{ID}@x") == made.data_path
    scaled(folder, 2, in_place=True)
    assert folder.is_symlink()
    assert store.dataset_paths(ID) == DatasetPaths(elsewhere.parent, "pend", link=folder)
    assert len(store.versions(store.dataset_paths(ID))) == 1
    download(ID, force=False)
    store.remove(ID)
    assert not elsewhere.exists()


def test_a_record_of_a_removal_does_not_delete_a_restored_copy(folder, home, monkeypatch, tmp_path_factory):
    backup = tmp_path_factory.mktemp("backup") / "pendulum"
    shutil.copytree(folder, backup)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_complete_change", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.remove(ID)
    disk.remove_tree(folder)
    shutil.copytree(backup, folder)

    store.sweep(home / "demo")
    assert folder.exists()


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
    store.undo(out)
    store.settle(store.paths_of(out))
    assert note.read_text() == "mine"
    assert home.exists()


def test_a_damaged_derived_dataset_blocks_no_other(folder):
    made = scaled(folder, 3, name="x")
    (made / "manifest.json").write_text("{}")

    assert scaled(folder, 4).exists()
    scaled(folder, 3, name="x", force=True)
    assert np.isclose(rewards(made), 3 * rewards(folder))


def test_a_derived_dataset_is_not_downloaded(folder):
    scaled(folder, 3, name="x")
    with pytest.raises(InvalidArgumentError, match="cannot be downloaded"):
        download(f"{ID}@x", force=True)


def test_concurrent_sweeps_do_not_fail_a_removal(folder, home):
    backup = StoredDataset(folder).manifest
    ends = threading.Event()

    def sweep():
        while not ends.is_set():
            store.sweep(home / "demo")

    other = threading.Thread(target=sweep)
    other.start()
    try:
        for number in range(40):
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
    for thread in [threading.Thread(target=store.undo, args=(folder,)) for _ in range(2)]:
        thread.start()
        thread.join()
    assert len(store.versions(store.dataset_paths(ID))) == 1


def test_readers_wait_while_a_replacement_uses_two_renames(folder, monkeypatch):
    monkeypatch.setattr(disk, "exchange_folders", lambda *_: False)
    ends = threading.Event()
    wrong, seen = [], []

    def look():
        while not ends.is_set():
            try:
                seen.append(len(StoredDataset(locating.locate(ID))))
            except Exception as error:  # noqa: BLE001 - any error is a failure
                wrong.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(15):
            scaled(folder, 2 + number, in_place=True)
            store.undo(folder)
    finally:
        ends.set()
        reader.join()
    assert (wrong, len(seen) > 5) == ([], True)


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

    monkeypatch.setattr(experience_replay, "StoredDataset", Replaced)
    dataset = load(ID, batch_size=4)
    assert len(opened) == 2
    assert np.isclose(float(dataset[:]["next", "reward"].sum()), 3 * before)
