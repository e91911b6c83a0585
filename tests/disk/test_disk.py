"""Files and folders appear completely or not at all, locks have owners, and a full disk is reported."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from stored_data import trajectory, write_dataset

from datasets_rl import disk
from datasets_rl.errors import DiskFullError, IntegrityError, InvalidArgumentError, LockedError, NotWritableError

pathlib_calls_os = pytest.mark.skipif(sys.version_info < (3, 11), reason="pathlib of 3.10 keeps mkdir of its import")
HOLDER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
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
    """A function that starts processes which hold a lock; they end with the test."""
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


def test_a_json_file_is_written_completely(tmp_path):
    disk.write_json(tmp_path / "a.json", {"a": [1, 2.5, None, "é"]})

    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5, None, "é"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()], ids=["nan", "inf", "object"])
def test_an_invalid_json_value_keeps_the_existing_file(tmp_path, value):
    (tmp_path / "a.json").write_text("old")

    with pytest.raises((ValueError, TypeError)):
        disk.write_json(tmp_path / "a.json", value)
    assert texts(tmp_path) == {"a.json": "old"}


def refuse(*_arguments, **_options):
    raise OSError("killed")


def test_a_failed_write_keeps_the_existing_file(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "replace", refuse)

    with pytest.raises(OSError, match="killed"):
        disk.write_text(tmp_path / "a.txt", "new")
    assert texts(tmp_path) == {"a.txt": "old"}


def test_a_folder_is_published_at_a_new_path(tmp_path):
    disk.publish_folder(folder_of(tmp_path / "build", "new"), tmp_path / "a" / "b")

    assert texts(tmp_path) == {"a/b/manifest.json": "new", "a/b/deep/file": "new"}


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_replaces_another(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(disk.exchange, "exchange_folders", lambda *_: False)
    folder_of(tmp_path / "target", "old")
    disk.publish_folder(folder_of(tmp_path / "build", "new"), tmp_path / "target")

    assert texts(tmp_path) == {"target/manifest.json": "new", "target/deep/file": "new"}


@pytest.mark.parametrize("least", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_a_folder_exists_at_every_moment_of_an_exchange(tmp_path, least):
    one, other = folder_of(tmp_path / "one", "1"), folder_of(tmp_path / "other", "2")
    ends = threading.Event()
    seen = set()

    def look():
        while not ends.is_set():
            seen.add((one / "manifest.json").read_text())

    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(look) for _ in range(2)]
        pairs = 0
        # On a busy machine the readers may not run for a while.
        while pairs < least or (len(seen) < 2 and not any(done.done() for done in looks)):
            assert disk.exchange_folders(one, other)
            assert disk.exchange_folders(one, other)
            pairs += 1
        ends.set()
        for done in looks:
            done.result()
    assert seen == {"1", "2"}
    assert texts(one)["deep/file"] == "1"


def test_without_support_an_exchange_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EINVAL)
    one, other = folder_of(tmp_path / "one", "1"), folder_of(tmp_path / "other", "2")

    assert not disk.exchange_folders(one, tmp_path / "missing")
    assert (texts(one)["deep/file"], texts(other)["deep/file"]) == ("1", "2")


def test_an_exchange_with_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        disk.exchange_folders(folder_of(tmp_path / "one", "1"), tmp_path / "missing")


def test_a_discarded_folder_is_never_incomplete(tmp_path, monkeypatch):
    """A reader that lists the path during the deletion finds the complete folder or none."""
    target = folder_of(tmp_path / "target", "old")
    seen = []
    monkeypatch.setattr(disk.deletion, "remove_tree", lambda path, _: seen.append((path.name, target.exists())))
    disk.discard(target, tmp_path)

    ((name, exists),) = seen
    assert (bool(disk.TRASH_NAME.fullmatch(name)), exists) == (True, False)


def test_what_is_needed_after_all_gets_its_name_back(tmp_path):
    target = folder_of(tmp_path / "target", "old")
    disk.discard(target, tmp_path, unless=lambda: not target.exists())

    assert texts(tmp_path) == {"target/manifest.json": "old", "target/deep/file": "old"}


def test_discarding_nothing_does_nothing(tmp_path):
    disk.discard(tmp_path / "none", tmp_path)

    assert not list(tmp_path.iterdir())


def test_links_are_deleted_and_never_followed(tmp_path):
    outside = folder_of(tmp_path / "outside", "mine")
    (tmp_path / "link").symlink_to(outside)
    inside = folder_of(tmp_path / "tree", "x")
    (inside / "link").symlink_to(outside)
    disk.remove_tree(tmp_path / "link")
    disk.remove_tree(inside)
    disk.remove_tree(tmp_path / "nothing")

    assert texts(tmp_path) == {"outside/manifest.json": "mine", "outside/deep/file": "mine"}


def test_sizes_are_sums_and_free_space_is_that_of_the_nearest_existing_folder(tmp_path):
    folder_of(tmp_path / "a", "12345")

    assert disk.tree_bytes(tmp_path) == 10
    assert disk.free_bytes(tmp_path / "not" / "there") > 0
    disk.require_free(tmp_path / "not" / "there", 1)
    with pytest.raises(DiskFullError, match="the dataset"):
        disk.require_free(tmp_path, 1 << 60, "the dataset")


def fill(place: Path, leave: int) -> None:
    """Fill the file system until about `leave` bytes remain."""
    with (place / "filler").open("wb", buffering=0) as stream:
        stream.write(bytes(disk.free_bytes(place) - leave))


def test_a_full_disk_is_reported_and_the_old_file_is_kept(small_disk):
    (small_disk / "a.txt").write_text("old")
    fill(small_disk, 8192)

    with pytest.raises(DiskFullError, match="small"):
        disk.write_text(small_disk / "a.txt", "x" * 100_000)
    assert texts(small_disk)["a.txt"] == "old"
    assert {path.name for path in small_disk.iterdir()} == {"a.txt", "filler"}


@pytest.mark.parametrize("room", [*range(0, 53248, 4096), 81920])
def test_a_dataset_that_does_not_fit_is_reported_wherever_the_disk_fills(small_disk, room):
    """Also if the last bytes are buffered until the file is closed."""
    (small_disk / "toy").mkdir()
    fill(small_disk, room)

    failed = None
    try:
        write_dataset(small_disk / "toy", [trajectory(400, seed=seed) for seed in range(3)])
    except DiskFullError as error:
        failed = error.path
    assert failed == (small_disk / "toy" if room < 53_248 else None)
    assert (small_disk / "toy" / "manifest.json").exists() == (failed is None)


def test_waiting_for_a_lock_times_out_with_its_owner(tmp_path, holder):
    process = holder(tmp_path / "x.lock", 60)
    waited = []
    began = time.monotonic()

    lock = disk.lock(tmp_path / "x.lock", "d4rl/x", wait=0.3, waiting=waited.append)
    with pytest.raises(LockedError, match=rf"process {process.pid} on ") as caught, lock:
        pytest.fail("two owners")
    assert time.monotonic() - began >= 0.3
    assert waited == [caught.value.owner]
    assert str(tmp_path / "x.lock") in caught.value.hint


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    """After a power cut or an out-of-memory kill, the next run must not wait an hour for a dead process."""
    process = holder(tmp_path / "x.lock", 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / "x.lock").exists()

    with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=5):
        assert (tmp_path / "x.lock").read_text().startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / "x.lock").exists()


def test_a_lock_passes_to_the_next_process_when_its_owner_ends(tmp_path, holder):
    holder(tmp_path / "x.lock", 0.5)

    with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=20):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_folder_in_which_nothing_can_be_created_is_an_error():
    with pytest.raises(OSError, match="/proc/lock"), disk.lock(Path("/proc/lock"), "the work", wait=0):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="a file system that nobody may write to")
def test_a_folder_in_which_no_lock_can_be_created_is_named_without_the_lock():
    with pytest.raises(NotWritableError, match=r"^/sys cannot be written: "), disk.lock(Path("/sys/.lock"), "x"):
        pass


def test_a_lock_is_released_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError, match="work"), disk.lock(tmp_path / "a" / "x.lock", "d4rl/x"):
        raise RuntimeError("work")
    assert not (tmp_path / "a" / "x.lock").exists()


def test_a_lock_that_another_process_holds_by_now_stays_when_its_folder_was_deleted_under_the_first(tmp_path):
    folder = tmp_path / "set"
    with ExitStack() as second:
        with disk.lock(folder / ".lock", "d4rl/x"):
            folder.rename(tmp_path / "trash")  # as a removal does while it holds the lock
            second.enter_context(disk.lock(folder / ".lock", "d4rl/x", wait=0))
        assert disk.is_locked(folder / ".lock")
        with pytest.raises(LockedError), disk.lock(folder / ".lock", "d4rl/x", wait=0):
            pass
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize(
    "search", [disk.temporary_files, lambda folder: disk.claims_of(folder / "raw"), disk.files_below]
)
def test_a_folder_that_is_deleted_while_it_is_searched_has_nothing(tmp_path, monkeypatch, search):
    """Another process deletes it between two looks."""
    folder = tmp_path / "set"
    (folder / "raw").mkdir(parents=True)
    scandir, listdir = os.scandir, os.listdir

    def deleted(look):
        def after(path):
            folder.rename(tmp_path / "trash")
            return look(path)

        return after

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", deleted(scandir))
        patched.setattr(os, "listdir", deleted(listdir))
        assert [*search(folder)] == []


def test_a_file_that_no_process_has_locked_locks_nothing(tmp_path):
    (tmp_path / "x.lock").write_text(f"process {os.getpid()} on here")

    with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=0):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_forked_child_does_not_hold_the_lock_of_its_dead_parent(tmp_path):
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom datasets_rl import disk\n"
        "with disk.lock(Path(sys.argv[1]), 'x'):\n"
        "    if not os.fork():\n        print('forked', flush=True)\n        time.sleep(30)\n        os._exit(0)\n"
        "    time.sleep(30)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "x.lock")]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout.readline() == b"forked\n"
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        with disk.lock(tmp_path / "x.lock", "d4rl/x", wait=2):
            pass
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.slow
def test_of_many_processes_that_find_a_dead_owner_one_takes_the_lock(tmp_path):
    lock, log = tmp_path / "x.lock", tmp_path / "log"
    lock.write_text("process 1 on here")
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom datasets_rl import disk\n"
        "for _ in range(40):\n"
        "    with disk.lock(Path(sys.argv[1]), 'x'):\n"
        "        with open(sys.argv[2], 'a') as log: log.write('in ')\n"
        "        time.sleep(0.001)\n"
        "        with open(sys.argv[2], 'a') as log: log.write('out ')\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(lock), str(log)]) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0, 0, 0, 0]

    words = log.read_text().split()
    assert words == ["in", "out"] * 160
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def claim_of(folder, process):
    """Put a folder with a file under the name of its claim by a process."""
    return folder_of(folder.with_name(f"{folder.name}@{process}"), process)


HOST = disk.process_name().rpartition("-")[0]
DEAD = f"{HOST}-{2**22 + 1}"


def test_a_folder_is_claimed_by_one_process_and_given_back(tmp_path):
    folder_of(tmp_path / "build", "work")
    claimed = disk.claim(tmp_path / "build")

    assert claimed.name == f"build@{disk.process_name()}"
    assert texts(claimed)["deep/file"] == "work"
    assert not disk.is_abandoned(claimed)
    other = disk.claim(tmp_path / "build")
    assert (other != claimed, list(other.iterdir())) == (True, [])
    other.rmdir()
    assert disk.release(claimed) == tmp_path / "build"
    assert texts(tmp_path) == {"build/manifest.json": "work", "build/deep/file": "work"}


@pytest.mark.parametrize(
    ("process", "seconds", "taken"),
    [
        (DEAD, 0, True),
        (f"{HOST}-SELF", 0, True),  # of an earlier process with this number
        (f"{HOST}-1", 0, False),
        (f"{HOST}-1t{10**15}", 0, True),  # of an earlier process with the number of one that runs
        (f"{HOST}-SELFt{10**15}", 0, True),
        ("node3-77", 0, False),
        ("node3-77", 500, False),
        ("node3-77", 700, True),
        ("node3-77.1", 700, True),
    ],
)
def test_the_claim_of_a_dead_process_is_taken_over_and_that_of_another_host_if_it_does_not_grow(
    tmp_path, process, seconds, taken
):
    left = claim_of(tmp_path / "build", process.replace("SELF", str(os.getpid())))
    for path in [left, *left.rglob("*")]:
        os.utime(path, (time.time() - seconds,) * 2)

    assert disk.is_abandoned(left) is taken
    claimed = disk.claim(tmp_path / "build")
    assert (claimed / "deep" / "file").exists() is taken
    disk.release(claimed)


def test_a_process_of_another_container_does_not_take_what_one_of_this_host_has_claimed(tmp_path):
    """Containers may share the name of the host, and the PID of a process there is of none, or of another one, here."""
    claimed = disk.claim(tmp_path / "build")
    library = ctypes.CDLL(None, use_errno=True)
    outer = os.fork()
    if not outer:
        if not hasattr(library, "unshare") or library.unshare(0x10000000 | 0x20000000):  # of users, and of PIDs
            os._exit(77)
        inner = os.fork()
        if not inner:
            disk.processes._host.cache_clear()
            is_other = disk.process_name().rpartition("-")[0] != HOST
            os._exit(0 if is_other and not disk.is_abandoned(claimed) else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    code = os.waitstatus_to_exitcode(os.waitpid(outer, 0)[1])
    disk.release(claimed)
    if code == 77:
        pytest.skip("the system lets no process make a PID namespace")
    assert code == 0


def test_a_forked_child_does_not_take_what_its_parent_has_claimed(tmp_path):
    claimed = disk.claim(tmp_path / "build")
    child = os.fork()
    if not child:
        os._exit(int(disk.is_abandoned(claimed)))
    assert os.waitpid(child, 0)[1] == 0
    disk.release(claimed)


@pytest.mark.parametrize("inside", ["", "manifest.json"])
def test_what_has_a_link_in_it_is_not_claimed(tmp_path, inside):
    outside = folder_of(tmp_path / "outside", "mine")
    if inside:
        (folder_of(tmp_path / "build", "x") / "link").symlink_to(outside / inside)
    else:
        (tmp_path / "build").symlink_to(outside)
    with pytest.raises(IntegrityError, match="the path is a symbolic link"):
        disk.claim(tmp_path / "build")
    assert texts(outside)["deep/file"] == "mine"


def test_temporary_files_of_dead_processes_alone_are_deleted(tmp_path):
    for process in (DEAD, f"{HOST}-1", "node3-77"):
        (tmp_path / f".a.json@{process}.tmp").touch()
    (tmp_path / ".mail@work.tmp").touch()
    disk.free_temporary_files(tmp_path)

    left = {f".a.json@{HOST}-1.tmp", ".a.json@node3-77.tmp", ".mail@work.tmp"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_lock_of_another_program_is_neither_taken_nor_deleted(tmp_path):
    path = tmp_path / ".lock"
    path.write_text("4711\n")
    with pytest.raises(IntegrityError, match="the file is of another program"), disk.lock(path, "mine"):
        pass
    assert path.read_text() == "4711\n"
    for left in ("", "\0" * 40, "process 1 on node3"):  # by a kill, a power cut, another host
        path.write_text(left)
        with disk.lock(path, "mine"):
            assert path.read_text().startswith("process ")
        assert not path.exists()


def test_a_folder_that_is_deleted_while_its_bytes_are_counted_has_none(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "kept").write_bytes(b"123")
    scandir = os.scandir

    def deleted_meanwhile(path):
        if Path(path).name == "gone":
            (tmp_path / "gone").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deleted_meanwhile)
    assert disk.tree_bytes(tmp_path) == 3


@pathlib_calls_os
def test_a_folder_is_claimed_although_another_process_deletes_its_empty_parent(tmp_path, monkeypatch):
    make, calls = os.mkdir, []

    def mkdir(path, *mode):
        calls.append(path)
        if len(calls) == 3:  # after the parent was created
            (tmp_path / "parent").rmdir()
        make(path, *mode)

    monkeypatch.setattr(os, "mkdir", mkdir)

    assert disk.claim(tmp_path / "parent" / "work").is_dir()
    assert len(calls) > 3


@pathlib_calls_os
def test_a_lock_is_acquired_although_another_process_deletes_the_empty_folder_that_was_found(tmp_path, monkeypatch):
    make, found = os.mkdir, []

    def mkdir(path, *mode):
        try:
            make(path, *mode)
        except FileExistsError:
            if not found:
                (tmp_path / "toy").rmdir()
            found.append(path)
            raise

    (tmp_path / "toy").mkdir()
    monkeypatch.setattr(os, "mkdir", mkdir)

    with disk.lock(tmp_path / "toy" / ".lock", "toy", wait=0):
        assert (tmp_path / "toy").is_dir()
    assert found


def test_a_tilde_is_the_home_folder_only_at_the_beginning_of_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # Windows

    assert disk.expand_home("~/x") == tmp_path / "x"
    assert disk.expand_home("x/~nobody-here") == Path("x/~nobody-here")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no list of users")
@pytest.mark.parametrize("path", ["~nobody-here/x", Path("~nobody-here")])
def test_the_home_folder_of_nobody_is_refused_by_name(path):
    with pytest.raises(InvalidArgumentError, match="there is no user nobody-here") as refused:
        disk.expand_home(path)

    assert refused.value.hint == f"write the whole path, or ./{path} for a folder of that name"


def test_a_path_through_links_is_the_path_of_the_folder_and_a_link_to_a_file_keeps_its_name(tmp_path):
    home = tmp_path.resolve()
    (home / "runs" / "blobs").mkdir(parents=True)
    (home / "runs" / "blobs" / "0f3a").write_bytes(b"x")
    (home / "runs" / "data.npz").symlink_to("blobs/0f3a")
    (home / "link").symlink_to("runs")
    (home / "loop").symlink_to("loop")

    assert disk.real_path(home / "link") == home / "runs"
    assert disk.real_path(home / "link" / ".." / "link" / "data.npz") == home / "runs" / "data.npz"
    assert disk.real_path(home / "runs" / "blobs" / "..") == home / "runs"
    assert disk.real_path(home / "loop" / "gone") == home / "loop" / "gone"
