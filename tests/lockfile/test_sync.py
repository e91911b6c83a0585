"""A lock gives the same bytes again in another home, from every place that has the data, or refuses with the difference."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from servers import File, serve
from upstreams import PublicHub, publishing

from datasets_rl import (
    EpisodeWriter,
    Manifest,
    Recipe,
    Selection,
    download,
    load,
    load_mixture,
    preprocess,
    push,
    sources,
)
from datasets_rl.errors import (
    IntegrityError,
    InvalidArgumentError,
    LockMismatchError,
    NotADatasetError,
    OutdatedLockError,
)
from datasets_rl.lockfile import Lock, sync, syncing, write_lock
from datasets_rl.lockfile.syncing import Syncing
from datasets_rl.preprocessing import run as preprocessing_run
from datasets_rl.settings import Settings
from datasets_rl.store import dataset_paths, remove, version_folder, versions_of


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    """The folder of a project, which is the working directory, beside an empty home."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "rlds.toml").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("RLDS_LOCK", raising=False)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A function that makes another, empty home the home."""

    def change(name: str) -> Path:
        monkeypatch.setenv("RLDS_HOME", str(tmp_path / name))
        return tmp_path / name

    return change


def raw_file(seed: int = 0) -> bytes:
    """Return a file of two episodes of ten steps, with the arrays of D4RL."""
    rng = np.random.default_rng(seed)
    arrays = {
        "observations": rng.normal(size=(20, 3)).astype(np.float32),
        "actions": rng.normal(size=(20, 2)).astype(np.float32),
        "rewards": rng.normal(size=20).astype(np.float32),
        "terminals": np.arange(20) == 9,
        "timeouts": np.arange(20) == 19,
    }
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return stream.getvalue()


def h5_rewards(data: bytes) -> bytes:
    """Return the bytes of the rewards in a file."""
    with h5py.File(io.BytesIO(data)) as file:
        return file["rewards"][()].tobytes()


def record(name: str = "local/heater", first: float = 0.0) -> None:
    with EpisodeWriter(name) as writer:
        for episode in range(3):
            writer.start(np.full(2, first + episode, np.float32))
            for step in range(5):
                writer.step(np.zeros(1, np.float32), np.full(2, step, np.float32), 1.0, terminated=step == 4)


def digest(dataset: str) -> str:
    return Manifest.read(version_folder(dataset_paths(dataset).folder)).files_digest


def test_a_download_and_a_recipe_are_made_again_in_an_empty_home(home, project):
    preprocess(
        version_folder(download("demo/pendulum")).parent,
        Recipe.inline(["keep_top_returns:20", "normalize"]),
        name="best",
    )
    written = write_lock("demo/pendulum@best")
    before = digest("demo/pendulum@best")
    home("other")
    made = sync()

    assert [(one.id, one.origin) for one in made] == [
        ("demo/pendulum@best", "made by the recipe 'keep_top_returns:20, normalize' of demo/pendulum")
    ]
    assert digest("demo/pendulum@best") == before
    assert [one.origin for one in sync()] == ["present"]
    # The lock of the other home is the same file.
    assert write_lock().changed is False
    assert Lock.read(project / "rlds.lock") == written.lock
    assert [one.id for one in written.lock.datasets if one.is_parent] == ["demo/pendulum"]


def test_the_text_is_read_back_and_has_no_time_and_no_absolute_path(project):
    folder = download("demo/pendulum")
    preprocess(folder, "td3_bc", out=project / "data" / "mine")
    write_lock("demo/pendulum", "./data/mine")
    text = (project / "rlds.lock").read_text()
    lock = Lock.read(project / "rlds.lock")

    assert lock.text == text
    assert [one.id for one in lock.datasets] == ["./data/mine", "demo/pendulum"]
    assert str(project.parent) not in text
    assert "2026" not in text


def test_the_digest_covers_the_data_and_not_what_is_computed_from_the_data():
    """Another version of this package may compute other fingerprints of the same data."""
    manifest = Manifest.read(download("demo/pendulum"))

    def depends_on(path: str) -> bool:
        files = [replace(file, digest="0" * 64) if file.path == path else file for file in manifest.files]
        return replace(manifest, files=tuple(files)).files_digest != manifest.files_digest

    assert {file.path: depends_on(file.path) for file in manifest.files} == {
        "rows.npy": True,
        "episodes.npy": True,
        "final.npy": True,
        "fingerprints.npy": False,
        "sketches.npy": False,
        "digests.npy": False,
    }


def test_a_folder_is_made_again_at_its_place_relative_to_the_lock(home, project):
    preprocess(download("demo/pendulum"), "td3_bc", out=project / "data" / "mine")
    write_lock("./data/mine")
    before = Manifest.read(project / "data" / "mine").files_digest
    shutil.rmtree(project / "data")
    home("other")
    sync()

    assert Manifest.read(project / "data" / "mine").files_digest == before
    assert len(load("data/mine", lock=True)) == 15_000


def test_recipes_in_place_are_applied_again_to_a_new_download(home):
    folder = download("demo/pendulum")
    preprocess(folder, Recipe.inline(["keep_top_returns:50"]), in_place=True)
    preprocess(folder, Recipe.inline(["cast:float64,observation"]), in_place=True)
    write_lock("demo/pendulum")
    before = digest("demo/pendulum")
    home("other")
    sync()

    assert digest("demo/pendulum") == before
    assert [run["recipe"]["name"] for run in Manifest.read(dataset_paths("demo/pendulum").version).history] == [
        "keep_top_returns:50",
        "cast:float64,observation",
    ]
    assert write_lock().changed is False


def test_a_merge_is_made_again_from_its_members(home, project):
    folder = download("demo/pendulum")
    best = preprocess(folder, Recipe.inline(["keep_top_returns:20"]), name="best")
    worst = preprocess(folder, Recipe.inline(["keep_lengths:200"]), name="rest")
    preprocess([best, worst], Recipe([]), out=project / "both")
    write_lock("both")
    before = Manifest.read(project / "both").files_digest
    shutil.rmtree(project / "both")
    home("other")
    sync()

    assert Manifest.read(project / "both").files_digest == before


@pytest.mark.slow
def test_a_parent_that_is_no_longer_stored_is_downloaded_again(home):
    preprocess(download("demo/pendulum"), "td3_bc")
    remove("demo/pendulum")
    written = write_lock("demo/pendulum@td3_bc")
    before = digest("demo/pendulum@td3_bc")
    assert [(one.id, bool(one.raw), one.files) for one in written.lock.datasets if one.is_parent] == [
        ("demo/pendulum", True, ())
    ]
    home("other")
    sync()

    assert digest("demo/pendulum@td3_bc") == before


def test_another_version_stays_and_the_locked_one_becomes_current():
    folder = download("demo/pendulum")
    write_lock("demo/pendulum")
    before = digest("demo/pendulum")
    preprocess(folder, "td3_bc", in_place=True)
    with pytest.raises(LockMismatchError, match=r"the recipe 'td3_bc' was applied, expected none"):
        load("demo/pendulum", lock=True)
    (made,) = sync()

    assert made.origin == "version 0001-" + made.folder.name[5:] + " is current again"
    assert digest("demo/pendulum") == before
    assert len(versions_of(dataset_paths("demo/pendulum"))) == 2
    assert len(load("demo/pendulum", lock=True)) == 15_000


def test_another_download_is_replaced_and_stays_as_a_version():
    """The present version may be the last copy of what an upstream had before."""
    with serve({"/a.hdf5": File(raw_file(1))}) as server:
        address = f"{server.url}/a.hdf5"
        download(address)
        write_lock(address)
        before = digest(address)
        remove(address)
        server.paths["/a.hdf5"] = File(raw_file(2))
        download(address)
        other = digest(address)
        server.paths["/a.hdf5"] = File(raw_file(1))
        sync()

    assert digest(address) == before
    assert {version.manifest.files_digest for version in versions_of(dataset_paths(address))} == {before, other}


@pytest.mark.parametrize("lost", ["a file", "the end of a file"])
def test_a_version_that_lost_data_is_not_as_locked_and_is_made_again(lost):
    download("demo/pendulum")
    lock = write_lock("demo/pendulum").lock
    rows = version_folder(dataset_paths("demo/pendulum").folder) / "rows.npy"
    rows.write_bytes(rows.read_bytes()[:1000])
    if lost == "a file":
        rows.unlink()

    (problem,) = Syncing(lock, Settings.from_env()).check(lock.datasets[0])
    (made,) = sync()

    expected = (
        "rows.npy is missing" if lost == "a file" else "rows.npy is 1,000 bytes, expected a file of 600,488 bytes"
    )
    assert (problem, made.origin) == (expected, "downloaded")
    assert Syncing(lock, Settings.from_env()).check(lock.datasets[0]) == []
    assert load("demo/pendulum", lock=True).stored.folder == made.folder
    assert len(versions_of(dataset_paths("demo/pendulum"))) == 2


def test_a_flipped_byte_of_the_upstream_is_refused_and_nothing_is_stored(home):
    data = raw_file()
    with serve({"/a.hdf5": File(data)}) as server:
        address = f"{server.url}/a.hdf5"
        download(address)
        write_lock(address)
        flipped = bytearray(data)
        flipped[data.index(h5_rewards(data))] ^= 1
        home("other")
        server.paths["/a.hdf5"] = File(bytes(flipped))
        with pytest.raises(IntegrityError) as refused:
            sync()

    assert "a.hdf5" in str(refused.value)
    assert "sha256" in str(refused.value)
    with pytest.raises(NotADatasetError):
        load(address, download=False)


def test_files_of_the_project_are_named_relative_to_the_lock(home, project):
    data = project / "data.hdf5"
    data.write_bytes(raw_file())
    preprocess(download("data.hdf5"), Recipe.inline(["cast:float64,observation"]), name="wide")
    lock = write_lock("data.hdf5", f"{store_id(data)}@wide").lock
    assert [one.id for one in lock.datasets] == ["./data.hdf5", "./data.hdf5@wide"]
    assert [one.raw[0].url for one in lock.datasets if one.raw] == [""]
    home("other")
    assert [one.origin.partition(" ")[0] for one in sync()] == ["downloaded", "made"]
    flipped = bytearray(raw_file())
    flipped[raw_file().index(h5_rewards(raw_file()))] ^= 1
    data.write_bytes(flipped)
    home("third")
    with pytest.raises(IntegrityError, match="sha256"):
        sync()


def store_id(path: Path) -> str:
    return sources.id_of_address(path)[0]


def test_a_folder_of_the_home_is_locked_by_its_id():
    folder = download("demo/pendulum")
    assert [one.id for one in write_lock(folder).lock.datasets] == ["demo/pendulum"]
    assert len(load(folder, lock=True)) == 15_000
    assert len(load(version_folder(folder), lock=True)) == 15_000


def test_another_part_another_recipe_and_another_argument_are_named(project):
    folder = download("demo/pendulum", selection=Selection(keys=("observation", "action")))
    preprocess(folder, Recipe.inline(["keep_top_returns:20"]), name="best")
    write_lock("demo/pendulum", "demo/pendulum@best")
    lock = project / "rlds.lock"
    text = lock.read_text()

    remove("demo/pendulum@best")
    preprocess(folder, Recipe.inline(["keep_top_returns:30"]), name="best")
    with pytest.raises(LockMismatchError, match=r"percent of step 0 \(keep_top_returns\) .* is 30, expected 20"):
        load("demo/pendulum@best", lock=lock)
    download("demo/pendulum")
    with pytest.raises(
        LockMismatchError, match=r"the selection is the whole dataset, expected keys=observation,action"
    ):
        load("demo/pendulum", lock=lock)
    # An argument that was changed in the lock gives other bytes than the digest of the lock.
    remove("demo/pendulum@best")
    lock.write_text(text.replace('"percent": 20', '"percent": 40'))
    assert lock.read_text() != text
    with pytest.raises(LockMismatchError, match=r"rows.npy has the digest \w+\.\.\., expected \w+") as refused:
        sync()
    assert "restore a copy, name a place that has the locked dataset with places=" in refused.value.hint
    assert not dataset_paths("demo/pendulum@best").exists


def test_another_version_of_the_package_is_named_only_if_the_bytes_differ(home):
    download("demo/pendulum")
    lock = write_lock("demo/pendulum").lock
    (dataset,) = lock.datasets
    home("other")
    replace(lock, datasets=(replace(dataset, package="0.0.1"),)).write()
    assert [one.origin for one in sync()] == ["downloaded"]
    replace(lock, datasets=(replace(dataset, package="0.0.1", digest="0" * 64, files=()),)).write()
    home("third")
    with pytest.raises(LockMismatchError, match=r"written by datasets-rl \S+, expected 0\.0\.1") as refused:
        sync()
    assert "install datasets-rl==0.0.1" in refused.value.hint
    assert not dataset_paths("demo/pendulum").exists


def test_a_recording_comes_from_a_shared_folder_or_not_at_all(home, tmp_path):
    record()
    written = write_lock("local/heater")
    before = digest("local/heater")
    assert written.lock.datasets[0].is_recorded
    home("other")
    with pytest.raises(
        NotADatasetError, match="recorded episodes cannot be made again; the lock has no address of a copy"
    ):
        sync()
    record(first=7.0)
    with pytest.raises(LockMismatchError, match=r"the recordings are .*recorded episodes cannot be made again"):
        sync()
    other = digest("local/heater")
    (made,) = sync(places=[tmp_path / "home"])

    assert made.origin == f"copied from {tmp_path / 'home'}"
    assert digest("local/heater") == before
    # The other recording is not lost.
    assert {version.manifest.files_digest for version in versions_of(dataset_paths("local/heater"))} == {before, other}


def test_a_damaged_shared_copy_is_refused(home, tmp_path):
    record()
    write_lock("local/heater")
    rows = version_folder(dataset_paths("local/heater").folder) / "rows.npy"
    data = bytearray(rows.read_bytes())
    data[-50] ^= 1
    rows.write_bytes(data)
    home("other")
    with pytest.raises(NotADatasetError, match=r"rows.npy"):
        sync(places=[tmp_path / "home"])

    assert not dataset_paths("local/heater").exists


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[PublicHub]:
    with publishing(tmp_path / "hub") as (server, there):
        for name, value in {"HF_ENDPOINT": server.url, "HF_TOKEN": there.token, "RLDS_MAX_RETRIES": "1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False, raising=False)
        yield there


@pytest.mark.usefixtures("hub")
def test_a_recording_comes_from_its_copy_on_the_hub_at_the_locked_commit(home, project):
    record()
    first = push("local/heater", "hf://me/heater")
    written = write_lock("local/heater", copies=["hf://me/heater"])
    before = digest("local/heater")
    record(first=7.0)
    push("local/heater", "hf://me/heater")
    home("other")
    record(first=3.0)
    (made,) = sync()

    assert written.lock.datasets[0].copies == (f"hf://datasets/me/heater@{first.commit}",)
    assert made.origin == f"copied from hf://datasets/me/heater@{first.commit}"
    assert digest("local/heater") == before
    assert Manifest.read(dataset_paths("local/heater").version).id == "local/heater"
    text = (project / "rlds.lock").read_text()
    assert write_lock().lock.text.splitlines() == text.splitlines()
    # The address alone now leads to another dataset.
    with pytest.raises(LockMismatchError, match=r"there are 30 steps, expected 15"):
        write_lock(copies=["hf://me/heater"])


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_a_published_dataset_is_taken_at_the_locked_commit(home):
    record()
    push("local/heater", "hf://me/heater")
    download("hf://me/heater")
    write_lock("hf://me/heater")
    before = digest("hf/me/heater")
    record(first=7.0)
    push("local/heater", "hf://me/heater")
    home("other")
    sync()

    assert digest("hf/me/heater") == before


def test_raw_files_on_the_hub_are_taken_at_the_locked_commit(hub, home, project):
    commit = hub._add_commit("me/arm", "main", {"a.hdf5": raw_file(1)})
    download("hf://me/arm")
    written = write_lock("hf://me/arm")
    text, before = (project / "rlds.lock").read_text(), digest("hf/me/arm")
    hub._add_commit("me/arm", "main", {"a.hdf5": raw_file(2)})
    home("other")
    sync()

    assert [(one.revision, one.selection) for one in written.lock.datasets] == [(commit, {})]
    assert digest("hf/me/arm") == before
    assert write_lock().lock.text == text


def test_members_of_a_mixture_are_locked_with_their_shares(project):
    preprocess(download("demo/pendulum"), "td3_bc")
    mix = project / "mix.toml"
    mix.write_text(
        'batch_size = 8\n[[member]]\ndataset = "demo/pendulum"\nweight = 3\n[[member]]\ndataset = "demo/pendulum@td3_bc"\nweight = 1\n'
    )
    write_lock("mix.toml")
    assert len(load_mixture(mix, lock=project / "rlds.lock").sample()) == 8
    mix.write_text(mix.read_text().replace("weight = 3", "weight = 4"))

    with pytest.raises(OutdatedLockError, match=r"weight of demo/pendulum in ./mix.toml is 4, expected 3"):
        sync(locked=True)
    assert [one.origin for one in sync()] == ["present", "present"]
    assert write_lock(check=True).changed


def test_a_program_that_opens_another_dataset_makes_the_lock_outdated(project):
    download("demo/pendulum")
    program = project / "train.py"
    program.write_text('from datasets_rl import load\nload("demo/pendulum")\n')
    write_lock("train.py")
    program.write_text('from datasets_rl import load\nload("demo/pendulum@best")\n')

    with pytest.raises(OutdatedLockError, match=r"train.py:2 opens demo/pendulum@best.*no input opens demo/pendulum"):
        sync(locked=True)


def test_load_makes_a_locked_dataset_and_refuses_one_that_is_not_in_the_lock(home, monkeypatch):
    download("demo/pendulum")
    write_lock("demo/pendulum")
    home("other")
    monkeypatch.setenv("RLDS_LOCK", "rlds.lock")

    assert len(load("demo/pendulum")) == 15_000
    with pytest.raises(OutdatedLockError, match="the lock has no dataset demo/pendulum@td3_bc"):
        load("demo/pendulum@td3_bc")
    with pytest.raises(InvalidArgumentError, match="streaming=True reads only parts of the dataset"):
        load("demo/pendulum", streaming=True)
    with pytest.raises(InvalidArgumentError, match="download='force' replaces"):
        load("demo/pendulum", download="force")
    home("third")
    with pytest.raises(NotADatasetError):
        load("demo/pendulum", download=False)
    assert len(load("demo/pendulum", lock=False)) == 15_000


def test_code_of_the_user_is_not_run_for_a_lock(home):
    preprocess(download("demo/pendulum"), Recipe([lambda step: step], name="mine"), num_frames=400)
    write_lock("demo/pendulum@mine")
    home("other")

    with pytest.raises(InvalidArgumentError, match="was made by code of the user: function"):
        sync()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("version = 1", "version = 2"), "has version 2, expected 1"),
        (("[[dataset]]", "<<<<<<< HEAD\n[[dataset]]"), "has conflicts of a merge"),
        (("steps = 15000", "steps = "), "is not valid TOML"),
        (("steps = 15000", 'steps = "many"'), "steps of demo/pendulum is 'many', expected an integer"),
        (('digest = "', 'digits = "'), "demo/pendulum has the unknown key 'digits'; demo/pendulum has no digest"),
        (
            ('digest = "', 'digest = "0'),
            r"digest of demo/pendulum is 0\w+\.\.\., expected \w+\.\.\., the digest of its files",
        ),
        (
            ("[[dataset]]", '[[dataset]]\nid = "demo/pendulum"\ndigest = "1"\n\n[[dataset]]'),
            "2 datasets demo/pendulum, expected 1",
        ),
    ],
)
def test_a_lock_that_is_damaged_is_refused_with_the_place(project, change, problem):
    download("demo/pendulum")
    write_lock("demo/pendulum")
    lock = project / "rlds.lock"
    lock.write_text(lock.read_text().replace(*change, 1))

    with pytest.raises(InvalidArgumentError, match=problem):
        Lock.read(lock)


def test_a_conflict_of_a_merge_is_resolved_by_writing_the_lock_again(project):
    folder = download("demo/pendulum")
    preprocess(folder, "td3_bc")
    preprocess(folder, Recipe.inline(["keep_top_returns:20"]), name="best")
    lock = project / "rlds.lock"
    write_lock("demo/pendulum@td3_bc")
    ours = lock.read_text()
    write_lock("demo/pendulum@best")
    theirs = lock.read_text()
    one, two = '  "demo/pendulum@td3_bc",\n', '  "demo/pendulum@best",\n'
    assert (one in ours, two in theirs) == (True, True)
    lock.write_text(ours.replace(one, f"<<<<<<< HEAD\n{one}=======\n{two}>>>>>>> other\n"))

    assert write_lock().lock.inputs == ("demo/pendulum@best", "demo/pendulum@td3_bc")
    assert len(Lock.read(lock).datasets) == 3
    lock.write_text("<<<<<<< HEAD\n" + ours)
    with pytest.raises(InvalidArgumentError, match="has conflicts of a merge"):
        Lock.read(lock)


def test_a_lock_that_was_edited_by_hand_is_written_again_and_a_newer_one_is_not(project):
    download("demo/pendulum")
    write_lock("demo/pendulum")
    lock = project / "rlds.lock"
    text = lock.read_text()
    lock.write_text(text.replace('digest = "', 'digest = "0', 1))
    assert write_lock().changed
    assert lock.read_text() == text
    lock.write_text(text.replace("version = 1", "version = 2"))
    for targets in ([], ["demo/pendulum"]):
        with pytest.raises(InvalidArgumentError, match="has version 2, expected 1"):
            write_lock(*targets)
    # Version control may write the ends of lines of the system.
    lock.write_text(text, newline="\r\n")
    assert not write_lock(check=True).changed


def test_a_place_that_does_not_exist_is_named_at_once(project):
    download("demo/pendulum")
    write_lock("demo/pendulum")
    with pytest.raises(InvalidArgumentError, match="nowhere is not a folder"):
        sync(places=["nowhere"])
    for name, problem in [("nothing.lock", "there is no lock"), ("rlds.toml", "rlds.toml is not a lock")]:
        with pytest.raises(InvalidArgumentError, match=problem):
            sync(name)
    for path, problem in [(project, "is a folder, expected"), (project / "new" / "a.lock", "there is no folder")]:
        with pytest.raises(InvalidArgumentError, match=problem):
            write_lock("demo/pendulum", path=path)


def test_a_recipe_without_its_input_names_both_and_tries_the_input_once(home, project, monkeypatch):
    preprocess(download("demo/pendulum"), Recipe.inline(["keep_top_returns:20"]), name="best")
    write_lock("demo/pendulum", "demo/pendulum@best")
    lock = project / "rlds.lock"
    text = lock.read_text()
    lock.write_text(text.replace('sha256 = "28', 'sha256 = "38'))
    home("other")
    making = Syncing(Lock.read(lock), Settings.from_env())
    downloads = []
    monkeypatch.setattr(Syncing, "_download", lambda *args, real=Syncing._download: downloads.append(1) or real(*args))
    messages = []
    for locked in making.lock.datasets:
        with pytest.raises(LockMismatchError, match=r"pendulum\.hdf5 has the sha256 28\w+ at the upstream") as refused:
            making.make(locked)
        messages.append(str(refused.value))
    assert ["demo/pendulum@best is made of demo/pendulum" in message for message in messages] == [False, True]
    assert len(downloads) == 1
    # A step that this version does not have is named with its place.
    lock.write_text(text.replace('"percent": 20', '"share": 20'))
    with pytest.raises(
        InvalidArgumentError, match=r"step 0 \(keep_top_returns\) of the recipe .* of demo/pendulum@best"
    ):
        sync()


@pytest.mark.parametrize("way", ["recipe", "copy"])
def test_what_another_process_has_just_made_is_not_made_a_second_time(home, tmp_path, monkeypatch, way):
    preprocess(download("demo/pendulum"), Recipe.inline(["keep_top_returns:20"]), name="best")
    write_lock("demo/pendulum@best")
    home("other")
    places = [tmp_path / "home"] if way == "copy" else []
    module, name = {"recipe": (preprocessing_run, "make_result"), "copy": (syncing, "require_locked")}[way]
    real = getattr(module, name)

    def with_another_process(*args, **options):
        monkeypatch.setattr(module, name, real)
        sync(places=places)
        return real(*args, **options)

    monkeypatch.setattr(module, name, with_another_process)
    if way == "copy":
        monkeypatch.setattr(syncing, "holding", lambda *_, **__: nullcontext())  # a file system without locks
    (made,) = sync(places=places)

    assert made.origin == "present"
    assert len(versions_of(dataset_paths("demo/pendulum@best"))) == 1


def test_a_lock_of_what_is_not_stored_is_refused():
    with pytest.raises(NotADatasetError, match="it is not downloaded"):
        write_lock("demo/pendulum")
    with pytest.raises(InvalidArgumentError, match="there is no lock"):
        write_lock()
