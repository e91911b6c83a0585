"""Hidden files that others planted beside a dataset: no command touches a file outside, and none waits for a pipe.

A folder of datasets may come from an archive, a clone or a shared disk, with whatever its hidden folders hold.
Commands that read change nothing at all. Commands that write either work, or end with an error that names the path.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import socket
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from stored_data import columns, store_dataset, trajectory

import datasets_rl
from datasets_rl.errors import RecordingWarning

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links, pipes and signals")

ID = "demo/pendulum"
SECONDS = 30
"""A command that takes longer is blocked; each takes a fraction of a second."""

FOLDERS = [
    "pendulum/build-01234567",
    "pendulum/build-01234567@node-9",
    "pendulum/build-01234567/version",
    "pendulum/0002-01234567",
    "pendulum/raw",
    "pendulum/raw@node-9",
    "pendulum/recorded",
    "pendulum/recorded/run",
    f"pendulum/trash-{0:032x}",
    f"pendulum/trash-{0:032x}/old",
    ".stream",
    ".stream/pendulum",
    ".stream/pendulum/0",
]
FILES = [
    "pendulum/.lock",
    "pendulum/.CURRENT@node-9.tmp",
    "pendulum/build-01234567/journal.jsonl",
    "pendulum/build-01234567/upstream.json",
    "pendulum/build-01234567/version/manifest.json",
    "pendulum/0002-01234567/manifest.json",
    "pendulum/raw/file.part",
    "pendulum/recorded/run/recording.json",
    "pendulum/recorded/run/journal.jsonl",
    f"pendulum/trash-{0:032x}/file",
    ".stream/pendulum/0.lock",
]
LINES = {"zeros": b"\0" * 64, "list": b"[]\n[]\n", "latin": b"\xe9\xff\n{}\n", "empty": b"", "deep": b"[" * 100_000}
KINDS = ["link", "link to a file", "dangling link", "pipe", "socket"]
PLANTS = [*itertools.product(FOLDERS + FILES, KINDS), *itertools.product(FILES, LINES)]
READING = [
    ["info", "{}"],
    ["list"],
    ["list", "--downloaded"],
    ["verify", "{}"],
    ["sample", "{}", "-n", "2"],
    ["audit", "{}"],
    ["describe", "{}"],
    ["describe", "{}", "-e", "0"],
    ["score", "{}", "-600", "--low", "-1000", "--high", "0"],
    ["cite", "{}"],
    ["path", "{}"],
    ["view", "{}", "--export", "{out}/page.html"],
    ["view", "{}", "{}", "--diff", "--export", "{out}/page.html"],
    ["export", "{}", "--to", "npz", "--out", "{out}/export", "--lossy"],
    ["preprocess", "{}", "-t", "reward_scaling:scale=2", "--dry-run"],
    ["remove", ID, "--dry-run"],
    ["cache", "ls"],
    ["cache", "verify"],
]
WRITING = [
    ["download", ID],
    ["download", ID, "--force"],
    ["preprocess", "{}", "-t", "reward_scaling:scale=2", "--in-place"],
    ["use", "{}", "--undo"],
    ["cache", "prune", "--versions", "--builds", "--raw", "--streams", "--dry-run"],
    ["cache", "prune", "--versions", "--builds", "--raw", "--streams", "--yes"],
    ["remove", ID, "--yes"],
]


class Blocked(BaseException):
    """A command did not end in time; not an exception that commands handle."""


@contextmanager
def limit():
    """Raise `Blocked` in the block after some time, also out of a call of the system."""

    def stop(*_):
        raise Blocked

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tree(folder):
    """Return the kind and the content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else oct(path.stat().st_mode)
    return found


class Place:
    """A data folder with a stored dataset, and beside it what belongs to somebody else."""

    def __init__(self, folder, rlds):
        self.rlds, self.home, self.out = rlds, folder / "home", folder / "out"
        self.root = self.home / "demo"
        self.stored = self.root / "pendulum"
        self.outside = folder / "outside"
        given = [trajectory(2 + number % 3, seed=number) for number in range(4)]
        store_dataset(self.stored, given, columns(), id=ID)
        for name in ("a.txt", "version/b.txt", "run/c.txt", "0002-01234567/d.txt", "old/e.txt", "0/raw/f"):
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        shutil.copytree(self.stored, self.outside / "dataset")
        self.expected = tree(self.outside)
        shutil.copytree(self.home, folder / "clean")
        self.clean = folder / "clean"

    def restore(self):
        """Delete what was planted."""
        shutil.rmtree(self.home)
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.clean, self.home)
        self.out.mkdir()

    def plant(self, name, kind):
        """Put a link, a pipe, a socket or lines at a hidden place; the folders above it are plain."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kind in LINES:
            path.write_bytes(LINES[kind])
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                before = Path.cwd()
                os.chdir(path.parent)  # the names of sockets are short
                listening.bind(path.name)
                os.chdir(before)
        else:
            to = {"link": self.outside, "link to a file": self.outside / "a.txt", "dangling link": self.out / "none"}
            path.symlink_to(to[kind])

    def words(self, command, name):
        return [word.replace("{}", str(name)).replace("{out}", str(self.out)) for word in command]

    def run(self, command, name):
        """Run a command; return its result, and sentences about what it did to others."""
        with limit():
            done = self.rlds(*self.words(command, name))
        wrong = [] if tree(self.outside) == self.expected else ["it changed files outside"]
        return done, wrong

    def load(self, name):
        """Open and sample the dataset; return sentences about what this did to others."""
        with limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordingWarning)
            assert len(datasets_rl.load(name, batch_size=3).sample()) == 3
        return [] if tree(self.outside) == self.expected else ["it changed files outside"]


@pytest.fixture
def place(tmp_path, rlds):
    return Place(tmp_path, rlds)


def problems_of_readers(place, commands=READING):
    """Run the commands that read, by id and by path; yield a sentence for each that fails or changes something."""
    before = tree(place.home)
    for command, name in itertools.product(commands, (ID, place.stored)):
        if "{}" not in command and name is not ID:
            continue
        shutil.rmtree(place.out, ignore_errors=True)
        place.out.mkdir()
        done, wrong = place.run(command, name)
        is_damaged_version = command == ["cache", "verify"] and "0002-01234567" in done.out + done.err
        if done.code and not is_damaged_version:
            wrong.append(f"it ends with {done.code}: {done.err}")
        if tree(place.home) != before:
            wrong.append("it changed the data folder")
        yield from (f"{' '.join(command)} of {name}: {one}" for one in wrong)
    for name in (ID, place.stored):
        yield from (f"load of {name}: {one}" for one in place.load(name))
        if tree(place.home) != before:
            yield f"load of {name} changed the data folder"


def problems_of_writers(place, restore, planted):
    """Run the commands that write; yield a sentence for each that touches others or has an error without the path."""
    for command in WRITING:
        restore()
        before = tree(place.home)
        done, wrong = place.run(command, ID)
        if "--dry-run" in command and tree(place.home) != before:
            wrong.append("it changed the data folder")
        # Without an earlier version, an undo ends with 2.
        is_named = any(str(place.root / name) in done.err for name in planted)
        if done.code and not is_named and not ("--undo" in command and done.code == 2):
            wrong.append(f"it ends with {done.code} and does not name it: {done.err}")
        if "fault of rlds" in done.err:
            wrong.append(done.err)
        yield from (f"{' '.join(command)}: {one}" for one in wrong)


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", [*KINDS, "zeros", "latin", "deep"])
def test_planted_files_in_all_hidden_places_do_not_reach_a_command_that_reads(place, kind):
    place.restore()
    deepest = [name for name in FOLDERS if not any(other.startswith(f"{name}/") for other in FOLDERS + FILES)]
    for name in FILES if kind in LINES else deepest + [name for name in FILES if name not in deepest]:
        place.plant(name, kind)

    assert list(problems_of_readers(place)) == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_hidden_folders_that_are_links_or_pipes_do_not_reach_a_command(place, kind):
    top = [name for name in FOLDERS if name.count("/") == 1 and name.startswith("pendulum/")]

    def restore():
        place.restore()
        for name in top:
            place.plant(name, kind)

    restore()
    assert list(problems_of_readers(place, READING[:3])) == []
    assert list(problems_of_writers(place, restore, top)) == []


@pytest.mark.slow
def test_no_planted_file_in_any_hidden_place_reaches_any_command(place):
    problems, runs = [], 0
    for name, kind in PLANTS:

        def restore(name=name, kind=kind):
            place.restore()
            place.plant(name, kind)

        restore()
        problems += [f"{name} as {kind}: {one}" for one in problems_of_readers(place)]
        problems += [f"{name} as {kind}: {one}" for one in problems_of_writers(place, restore, [name])]
        runs += 2 * sum("{}" in command for command in READING) + sum("{}" not in command for command in READING)
        runs += 2 + len(WRITING)
    print("", *problems, sep="\n")
    print(f"{len(PLANTS)} plants, {runs:,} commands, {len(problems)} problems")
    assert problems == []


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_a_pointer_that_is_not_a_file_is_an_error_that_names_it(place, rlds, kind):
    place.plant("pendulum/CURRENT", kind)

    for words in (["info", place.stored], ["info", ID], ["download", ID], ["use", ID, "--undo"]):
        with limit():
            ran = rlds(*words)
        assert (ran.code, "CURRENT" in ran.err) != (0, False)
    assert tree(place.outside) == place.expected


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["pendulum/build-01234567", "pendulum/recorded", f"pendulum/trash-{0:032x}"])
def test_a_folder_of_a_dataset_that_is_a_link_is_refused_by_name(place, rlds, name):
    place.plant(name, "link")

    for words in (["info", place.stored], ["list"], ["info", ID]):
        assert rlds(*words).code == 0
    assert place.load(ID) == place.load(place.stored) == []
    refused = rlds("preprocess", place.stored, "-t", "reward_scaling:scale=2", "--in-place")
    assert refused.code == 5
    assert f"{place.root / name} is not as expected" in refused.err
    assert "the path is a symbolic link, expected a plain folder" in refused.err
    assert tree(place.outside) == place.expected


def test_the_sampled_values_are_those_of_the_dataset_whatever_is_planted(place):
    before = datasets_rl.load(place.stored)[:]["next", "reward"].numpy()
    for name in FILES:
        place.plant(name, "zeros")

    with pytest.warns(RecordingWarning):
        assert np.array_equal(datasets_rl.load(ID)[:]["next", "reward"].numpy(), before)


@pytest.mark.parametrize("words", [["info", "/"], ["preprocess", "/", "-t", "reward_scaling:scale=2"], ["verify", "/"]])
def test_the_root_of_the_file_system_is_not_a_dataset(rlds, words):
    ran = rlds(*words)

    assert ran.code == 3
    assert "/ is not a dataset" in ran.err


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_cache_ls_counts_no_versions_that_are_links_or_pipes(place, rlds, kind):
    place.plant("pendulum/0002-01234567", kind)

    (listed,) = rlds("cache", "ls", "--json").json["datasets"]
    assert (listed["id"], listed["versions"], listed["others"]) == (ID, 0, 0)


def test_a_damaged_version_does_not_become_the_current_one(place, rlds):
    place.plant("pendulum/0002-01234567/manifest.json", "zeros")
    before = tree(place.home)

    refused = rlds("use", ID, 2)
    assert refused.code == 5
    assert "0002-01234567" in refused.err
    assert tree(place.home) == before
