"""Preprocessing with a full disk, with another run at the same time, and with killed processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stored_data import columns, store_dataset, trajectory

from datasets_rl import disk
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.partial import remove_partial
from datasets_rl.errors import InvalidArgumentError, LockedError, PreprocessError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Function, Recipe, dry_run, make, preprocess
from datasets_rl.settings import Settings

FULL = """
import json, resource, signal, sys
from pathlib import Path
from datasets_rl.errors import DiskFullError
from datasets_rl.preprocessing import Function, Recipe, preprocess

# No file may grow beyond this.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
recipe = Recipe([Function(lambda batch: batch.set("more", batch["observation"].repeat(1, 9)), "batch")])
try:
    preprocess(Path(sys.argv[1]), recipe, num_parts=4, in_place=True)
except DiskFullError as error:
    print(json.dumps(str(error)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if len(sys.argv) > 2:
    preprocess(Path(sys.argv[1]), recipe, num_parts=4, in_place=True)
"""


@pytest.fixture
def folder(tmp_path):
    given = [trajectory(60, seed=number) for number in range(12)]
    return store_dataset(tmp_path / "toy" / "data", given, columns()).folder.parent


def doubled(batch):
    return batch.set("twice", batch["action"] * 2)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.skipif(os.name == "nt", reason="limits of files")
def test_a_file_that_may_not_grow_leaves_the_dataset_and_the_next_run_finishes(folder):
    before = StoredDataset(folder).manifest

    def run(*more):
        words = [sys.executable, "-c", FULL, str(folder), *more]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert f"a file at {folder} is too large" in json.loads(run())
    assert StoredDataset(folder).manifest == before
    run("again")
    assert StoredDataset(folder).schema[("more",)].shape == (27,)


def waited(path):
    """Wait until a file exists."""
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def test_of_two_runs_at_once_one_waits_and_finds_the_work_done(folder, tmp_path):
    # Files instead of lists and events, because the objects that a function references are a part of its digest.
    go_on, calls = tmp_path / "go on", tmp_path / "calls"

    def held(batch):
        with calls.open("a") as file:
            file.write(f"{len(batch)}\n")
        assert waited(go_on)
        return doubled(batch)

    recipe = Recipe([Function(held, "batch")])
    runs = [threading.Thread(target=preprocess, args=(folder, recipe), kwargs={"in_place": True}) for _ in range(2)]
    runs[0].start()
    assert waited(calls)
    with pytest.raises(LockedError, match="is locked by"):
        preprocess(folder, recipe, wait=0, in_place=True)
    runs[1].start()
    go_on.touch()
    for one in runs:
        one.join(30)

    stored = StoredDataset(folder)
    assert ("twice",) in stored.schema
    assert len(stored.manifest.history) == 1
    # Once for the dry run on the first episodes, and once for the run.
    assert sum(map(int, calls.read_text().split())) == 2 * len(stored) + 16


@pytest.mark.usefixtures("warm_python")
def test_a_worker_that_dies_ends_the_run_with_a_remedy(folder):
    before = StoredDataset(folder).manifest
    parent = os.getpid()

    def dies(batch):
        if os.getpid() != parent:
            os._exit(3)
        return batch

    with pytest.raises(
        PreprocessError, match=r"the process that preprocessed episodes 0 to 3 ended with 3(.|\n)*max_ram=\.\.\."
    ):
        preprocess(folder, Recipe([Function(dies, "batch")]), engine=LocalEngine(2), num_parts=4, in_place=True)
    assert StoredDataset(folder).manifest == before


INTERRUPTED = """
import sys, threading
from pathlib import Path
from datasets_rl.preprocessing import Function, Recipe, preprocess
from datasets_rl.build.engines.local import LocalEngine

recipe = Recipe([Function(lambda batch: batch, "batch")])
try:
    preprocess(Path(sys.argv[1]), recipe, engine=LocalEngine(2), num_parts=4)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
def test_workers_print_nothing_at_the_end_of_a_run(folder, how):
    """The terminal sends Ctrl-C to all processes, including those that still import modules."""
    words = [sys.executable, "-c", INTERRUPTED, str(folder)]
    env = {**os.environ, "RLDS_NO_PROGRESS": "1"}
    run = subprocess.Popen(words, stdout=-1, stderr=-1, text=True, start_new_session=True, env=env)
    while b"main(" not in b"".join(map(command_line, children(run.pid))):
        assert run.poll() is None
        time.sleep(0.01)
    if how == "Ctrl-C":
        os.killpg(run.pid, signal.SIGINT)
    else:
        run.kill()

    assert run.communicate(timeout=60) == ("interrupted\n" if how == "Ctrl-C" else "", "")
    assert StoredDataset(folder).manifest.history == ()


def children(process):
    return [one for path in Path("/proc").glob(f"{process}/task/*/children") for one in path.read_text().split()]


def command_line(process):
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_another_dtype_in_later_episodes_is_an_error_and_no_file_remains(folder, monkeypatch):
    before = StoredDataset(folder).manifest

    def odd(batch):
        return batch.set("action", batch["action"].double() if (batch["episode"] == 9).any() else batch["action"])

    monkeypatch.setattr(dry_run, "_BYTES", 1)
    with pytest.raises(PreprocessError, match="action as float64"):
        preprocess(folder, Recipe([Function(odd, "batch")]), num_parts=12, in_place=True)
    assert StoredDataset(folder).manifest == before
    assert not (folder.parent / ".work" / "data").exists()


@pytest.mark.usefixtures("warm_python")
def test_a_function_that_cannot_be_pickled_is_refused_for_several_processes(folder):
    held = threading.Lock()
    recipe = Recipe([Function(lambda batch: batch.set("free", batch["action"] * (not held.locked())), "batch")])

    with pytest.raises(InvalidArgumentError, match="cannot be sent to other processes"):
        preprocess(folder, recipe, jobs=2, num_parts=4, in_place=True)
    assert StoredDataset(preprocess(folder, recipe, jobs=1, in_place=True)).manifest.history


class Here(contextlib.nullcontext):
    """Runs tasks in this process, all of them before the first result is joined."""

    max_in_flight = 9

    def submit(self, make, task, report):
        said = make(task, report)
        return lambda: said


@pytest.mark.parametrize("dying", ["a part", "the parts of another run"])
def test_a_run_that_dies_while_it_deletes_partials_is_completed_by_the_next(folder, monkeypatch, dying):
    recipe = Recipe([Function(doubled, "batch")])
    remove, parts = disk.remove_tree, []

    def dies(path, *root):
        if (path / "commit.json").exists():
            parts.append(path)
        if len(parts) == 3 if dying == "a part" else path.parent.name == "partials":
            next(iter(sorted(path.rglob("rows.npy")))).unlink()
            raise KeyboardInterrupt
        remove(path, *root)

    if dying == "the parts of another run":
        preprocess_until_the_last_part(folder, recipe)
        assert [*folder.glob("build-*/partials/*/000002/commit.json")]
    monkeypatch.setattr(disk.deletion, "remove_tree", dies)
    with pytest.raises(KeyboardInterrupt):
        # With another number of partials, the existing ones cannot be reused.
        preprocess(folder, recipe, engine=Here(), num_parts=4 if dying == "a part" else 6, in_place=True)
    monkeypatch.setattr(disk.deletion, "remove_tree", remove)

    preprocess(folder, recipe, engine=Here(), num_parts=4, in_place=True)
    assert StoredDataset(folder).schema[("twice",)].shape == (2,)


def test_a_partial_is_renamed_before_it_is_deleted(tmp_path, monkeypatch):
    """A process of a killed run may still write the same partial."""
    part = tmp_path / "000000"
    part.mkdir()
    (part / "commit.json").touch()
    remove, found = disk.remove_tree, []
    monkeypatch.setattr(disk.deletion, "remove_tree", lambda path, *_: (found.append(part.exists()), remove(path)))

    remove_partial(part)
    remove_partial(part)
    assert found == [False]
    assert not [*tmp_path.iterdir()]


def preprocess_until_the_last_part(folder, recipe):
    def interrupted():
        raise KeyboardInterrupt

    class Interrupted(Here):
        def submit(self, make, task, report):
            wait = super().submit(make, task, report)
            return interrupted if task["first"] else wait

    with pytest.raises(KeyboardInterrupt):
        preprocess(folder, recipe, engine=Interrupted(), num_parts=4, in_place=True)


@pytest.mark.usefixtures("warm_python")
def test_an_error_of_a_worker_has_the_same_message(folder):
    def fails(batch):
        raise ValueError(f"{len(batch)} steps")

    recipe = Recipe([Function(lambda batch: fails(batch) if (batch["episode"] == 5).any() else batch, "batch")])
    told = []
    for engine in (None, LocalEngine(2)):
        with pytest.raises(PreprocessError) as caught:
            preprocess(folder, recipe, engine=engine, num_parts=6, in_place=True)
        told.append(str(caught.value))

    assert told[0] == told[1]
    assert "at episode 5, with fields" in told[0]
    assert "ValueError: 60 steps" in told[0]


def test_no_more_processes_are_started_than_memory_allows(folder, monkeypatch):
    monkeypatch.setattr(make, "_MIN_PARALLEL_SECONDS", 0.0)
    monkeypatch.setattr(make, "LocalEngine", lambda *_, **__: pytest.fail("processes were started"))
    settings = replace(Settings.from_env(), jobs=2)
    monkeypatch.setattr(make.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(make, "memory_bytes", lambda: 1000.0)
    preprocess(folder, Recipe.inline(["reward_scaling:scale=2"]), out=folder.parent / "little", settings=settings)

    monkeypatch.setattr(make, "memory_bytes", lambda: 1e9)
    with pytest.raises(pytest.fail.Exception, match="processes were started"):
        preprocess(folder, Recipe.inline(["reward_scaling:scale=2"]), out=folder.parent / "much", settings=settings)
