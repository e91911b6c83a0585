"""Files and folders appear whole or not at all, locks have owners, and a full disk has a name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stored_data import trajectory, write_dataset

from datasets_rl import disk
from datasets_rl.errors import DiskFull, Locked

HOLDER = """
import sys, time
from pathlib import Path
from datasets_rl import disk
with disk.lock(Path(sys.argv[1]), "d4rl/x"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def folder_of(path: Path, text: str) -> Path:
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(text)
    (path / "deep").mkdir()
    (path / "deep" / "file").write_text(text)
    return path


def texts(path: Path) -> dict[str, str]:
    return {item.relative_to(path).as_posix(): item.read_text() for item in path.rglob("*") if item.is_file()}


@pytest.fixture
def holder():
    """Start real processes that hold a lock, and end them."""
    started = []

    def start(path: Path, seconds: float) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path), str(seconds)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_json_file_is_written_whole(tmp_path):
    disk.write_json(tmp_path / "a.json", {"a": [1, 2.5, None, "é"]})

    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5, None, "é"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()], ids=["nan", "inf", "object"])
def test_a_value_that_json_does_not_have_leaves_what_was_there(tmp_path, value):
    (tmp_path / "a.json").write_text("old")

    with pytest.raises((ValueError, TypeError)):
        disk.write_json(tmp_path / "a.json", value)
    assert texts(tmp_path) == {"a.json": "old"}


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "replace", refuse_from(1))

    with pytest.raises(OSError, match="killed"):
        disk.write_text(tmp_path / "a.txt", "new")
    assert texts(tmp_path) == {"a.txt": "old"}


def refuse_from(call: int):
    """os.replace that works until the given call, as if the process died there."""
    true, calls = os.replace, []

    def replace(*arguments, **options):
        calls.append(arguments)
        if len(calls) >= call:
            raise OSError("killed")
        return true(*arguments, **options)

    return replace


def test_a_folder_is_published_where_none_was(tmp_path):
    disk.publish_folder(folder_of(tmp_path / "build", "new"), tmp_path / "a" / "b", aside=tmp_path / "aside")

    assert texts(tmp_path) == {"a/b/manifest.json": "new", "a/b/deep/file": "new"}


def test_a_folder_takes_the_place_of_another(tmp_path):
    folder_of(tmp_path / "target", "old")
    folder_of(tmp_path / "aside", "older")
    disk.publish_folder(folder_of(tmp_path / "build", "new"), tmp_path / "target", aside=tmp_path / "aside")

    assert texts(tmp_path) == {"target/manifest.json": "new", "target/deep/file": "new"}


@pytest.mark.parametrize("call", [1, 2])
def test_a_crash_at_either_rename_loses_neither_folder(tmp_path, monkeypatch, call):
    """Between the two renames there is no dataset in its place; the old one must come back."""
    target, aside = folder_of(tmp_path / "target", "old"), tmp_path / "aside"
    build = folder_of(tmp_path / "build", "new")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse_from(call))
        with pytest.raises(OSError, match="killed"):
            disk.publish_folder(build, target, aside=aside)
    assert target.exists() == (call == 1)
    disk.recover_folder(target, aside=aside)

    assert texts(target)["deep/file"] == "old"
    assert texts(build)["deep/file"] == "new"
    assert not aside.exists()


def test_recovery_leaves_a_finished_replacement_alone(tmp_path):
    folder_of(tmp_path / "target", "new")
    folder_of(tmp_path / "aside", "old")
    disk.recover_folder(tmp_path / "target", aside=tmp_path / "aside")

    assert texts(tmp_path) == {"target/manifest.json": "new", "target/deep/file": "new"}


def test_recovery_of_nothing_does_nothing(tmp_path):
    disk.recover_folder(tmp_path / "target", aside=tmp_path / "aside")

    assert not list(tmp_path.iterdir())


def test_a_discarded_folder_is_never_half_there(tmp_path, monkeypatch):
    """Readers that list the place while it is deleted find all of it or nothing."""
    target = folder_of(tmp_path / "target", "old")
    seen = []
    monkeypatch.setattr(disk, "remove_tree", lambda path: seen.append((path.name, target.exists())))
    disk.discard_folder(target, by_way_of=tmp_path / "work" / "removed")

    assert seen == [("removed", True), ("removed", False)]


def test_links_are_deleted_and_never_followed(tmp_path):
    outside = folder_of(tmp_path / "outside", "mine")
    (tmp_path / "link").symlink_to(outside)
    inside = folder_of(tmp_path / "tree", "x")
    (inside / "link").symlink_to(outside)
    disk.remove_tree(tmp_path / "link")
    disk.remove_tree(inside)
    disk.remove_tree(tmp_path / "nothing")

    assert texts(tmp_path) == {"outside/manifest.json": "mine", "outside/deep/file": "mine"}


def test_sizes_are_sums_and_room_is_asked_of_the_nearest_folder_that_exists(tmp_path):
    folder_of(tmp_path / "a", "12345")

    assert disk.tree_bytes(tmp_path) == 10
    assert disk.free_bytes(tmp_path / "not" / "there") > 0
    disk.require_free(tmp_path / "not" / "there", 1)
    with pytest.raises(DiskFull, match="the dataset"):
        disk.require_free(tmp_path, 1 << 60, "the dataset")


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, leave: int) -> None:
    """Take all room but about `leave` bytes."""
    with (place / "filler").open("wb", buffering=0) as stream:
        stream.write(bytes(disk.free_bytes(place) - leave))


def test_a_full_disk_is_named_and_the_old_file_stays(small_disk):
    (small_disk / "a.txt").write_text("old")
    fill(small_disk, 8192)

    with pytest.raises(DiskFull, match="small"):
        disk.write_text(small_disk / "a.txt", "x" * 100_000)
    assert texts(small_disk)["a.txt"] == "old"
    assert {path.name for path in small_disk.iterdir()} == {"a.txt", "filler"}


@pytest.mark.parametrize("room", [*range(0, 53248, 4096), 81920])
def test_a_dataset_that_does_not_fit_says_so_wherever_the_disk_is_full(small_disk, room):
    """Also where the last bytes wait in a buffer until the file is closed."""
    (small_disk / "toy").mkdir()
    fill(small_disk, room)

    failed = None
    try:
        write_dataset(small_disk / "toy", [trajectory(400, seed=seed) for seed in range(3)])
    except DiskFull as error:
        failed = error.path
    assert failed == (small_disk / "toy" if room < 53_248 else None)
    assert (small_disk / "toy" / "manifest.json").exists() == (failed is None)


def test_a_lock_is_waited_for_and_the_owner_is_named(tmp_path, holder):
    process = holder(tmp_path / "x.lock", 60)
    waited = []
    began = time.monotonic()

    lock = disk.lock(tmp_path / "x.lock", "d4rl/x", wait=0.3, waiting=waited.append)
    with pytest.raises(Locked, match=rf"process {process.pid} on ") as caught, lock:
        pytest.fail("two owners")
    assert time.monotonic() - began >= 0.3
    assert waited == [caught.value.owner]
    assert str(tmp_path / "x.lock") in caught.value.hint


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    """After a power cut or an out-of-memory kill, the next run must not wait an hour for nobody."""
    process = holder(tmp_path / "x.lock", 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / "x.lock").exists()

    with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=5):
        assert (tmp_path / "x.lock").read_text().startswith(f"{os.getpid()}\n")
    assert not (tmp_path / "x.lock").exists()


def test_a_lock_passes_on_when_its_owner_ends(tmp_path, holder):
    holder(tmp_path / "x.lock", 0.5)

    with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=20):
        pass


def test_a_lock_is_let_go_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError, match="work"), disk.lock(tmp_path / "a" / "x.lock", "d4rl/x"):
        raise RuntimeError("work")
    assert not (tmp_path / "a" / "x.lock").exists()
