"""Temporary folders are deleted when the last process that uses them ends in any way; other folders are kept."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from datasets_rl import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from datasets_rl.disk import ScratchFolder, sweep_scratch
from datasets_rl.errors import InvalidArgumentError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork, flock and SIGKILL")

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty folder that is the system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ScratchFolder, "_swept", False)
    return tmp_path


def make(kind, pipe):
    if kind == "memmap":
        storage = LazyMemmapStorage(100_000)
        storage.set(range(90_000), torch.zeros(90_000, 8))
    else:
        storage = LazyTensorStorage(10)
        buffer = ReplayBuffer(storage=storage)
        buffer.extend(torch.zeros(10, 2))
        buffer.share()
    pipe.send("made")
    pipe.recv()


def alone(function, *arguments):
    """Call a function in a forked child, without the threads of torch."""
    torch.set_num_threads(1)
    function(*arguments)


def started(function, *arguments):
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=alone, args=(function, *arguments, theirs))
    process.start()
    answer = ours.recv()
    return process, ours, answer


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["memmap", "shared memory"])
def test_the_next_process_removes_what_a_killed_one_left(place, kind, by):
    process, _, _ = started(make, kind)
    (left,) = place.iterdir()
    assert sweep_scratch() == {}
    assert left.exists()

    os.kill(process.pid, by)
    process.join()
    assert left.exists()
    storage = LazyMemmapStorage(10)

    assert [*place.iterdir()] == [storage.scratch_dir]


def test_a_sweep_returns_the_freed_bytes(place):
    process, _, _ = started(make, "memmap")
    process.kill()
    process.join()
    freed = sum(sweep_scratch().values())

    assert 90_000 * 32 <= freed < 2 * 90_000 * 32
    assert [*place.iterdir()] == []
    assert sweep_scratch() == {}


def test_a_reused_process_id_does_not_keep_a_folder(place):
    """The owner of a folder is identified only by a lock that the kernel releases."""
    process, _, _ = started(make, "memmap")
    (left,) = place.iterdir()
    process.kill()
    process.join()

    assert (left / "owner.lock").read_bytes() == b""
    sweep_scratch()
    assert not left.exists()


def adopt(kept, pipe):
    storage = pickle.loads(kept) if isinstance(kept, bytes) else kept
    pipe.send(float(storage.get(0)[0]))
    pipe.recv()


def lend(how, pipe):
    """Make a storage, pass it to a child process, and wait to be killed."""
    storage = LazyMemmapStorage(10)
    storage.set(0, torch.tensor([5.0]))
    process, ours, value = started(adopt, pickle.dumps(storage) if how == "pickle" else storage)
    pipe.send((process.pid, value, str(storage.scratch_dir)))
    pipe.recv()
    del ours


@pytest.mark.first(1)
@pytest.mark.parametrize("how", ["fork", "pickle"])
def test_a_folder_is_kept_while_any_process_with_the_storage_runs(how):
    maker, _, (pid, value, folder) = started(lend, how)
    maker.kill()
    maker.join()
    sweep_scratch()
    assert value == 5
    assert Path(folder).exists()

    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while Path(folder).exists() and time.monotonic() < end:
        sweep_scratch()
    assert not Path(folder).exists()


def test_a_process_that_opens_the_folder_of_another_one_keeps_it(place):
    process, _, _ = started(make, "memmap")
    (left,) = place.iterdir()
    storage = LazyMemmapStorage(100_000, scratch_dir=left, existsok=True)
    process.kill()
    process.join()
    sweep_scratch()
    assert left.exists()
    assert storage.filled_count == 90_000

    del storage
    gc.collect()
    sweep_scratch()
    assert not left.exists()


KEEP = """
import os, signal, sys, tempfile, torch
tempfile.tempdir = sys.argv[1]
from datasets_rl import LazyMemmapStorage
kept = [LazyMemmapStorage(3, auto_cleanup=False), LazyMemmapStorage(3, scratch_dir=sys.argv[1] + "/datasets_rl_scratch_mine")]
for one in kept:
    one.set(0, torch.zeros(1))
print(*[one.scratch_dir for one in kept], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("warm_python")
def test_a_folder_with_autosave_is_kept(place):
    done = subprocess.run([sys.executable, "-c", KEEP, str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (place / "datasets_rl_notes").mkdir()
    (place / "datasets_rl_scratch_file").write_text("mine")
    before = sorted(place.iterdir())
    sweep_scratch()

    assert len(done.stdout.split()) == 2
    assert sorted(place.iterdir()) == before


def test_a_folder_whose_process_died_before_locking_it_is_deleted(place):
    (place / "datasets_rl_scratch_abcdefgh").mkdir()
    sweep_scratch()

    assert [*place.iterdir()] == []


def test_a_link_is_not_followed(place, tmp_path_factory):
    target = tmp_path_factory.mktemp("elsewhere")
    (target / "owner.lock").touch()
    (place / "datasets_rl_scratch_abcdefgh").symlink_to(target)
    sweep_scratch()

    assert (target / "owner.lock").exists()


def churn():
    for _ in range(60):
        folder = ScratchFolder()
        (folder.path / "data").write_text("x")
        sweep_scratch()
        assert (folder.path / "data").read_text() == "x"


@pytest.mark.slow
def test_processes_that_create_and_sweep_concurrently_keep_their_folders(place):
    processes = [FORK.Process(target=alone, args=(churn,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    sweep_scratch()

    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [*place.iterdir()] == []


def test_a_pickle_whose_temporary_folder_was_deleted_names_what_keeps_the_data():
    storage = LazyMemmapStorage(10)
    storage.set(range(3), torch.zeros(3, 8))
    pickled, folder = pickle.dumps(storage), storage.scratch_dir
    del storage
    gc.collect()

    with pytest.raises(InvalidArgumentError, match=f"{folder}, the temporary folder .* was deleted") as caught:
        pickle.loads(pickled)
    assert "dumps" in caught.value.hint
    assert "scratch_dir" in caught.value.hint
