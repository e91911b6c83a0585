"""The index of the fingerprints in the home folder: kept, listed, deleted, and made again after any damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from faults.crash import events_below, run_killed_at
from fingerprints import planted

from datasets_rl.identifying import identify
from datasets_rl.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork, pipes and links")
NAMES = ("noisy", "maze")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A home with three datasets, without an index."""
    home = tmp_path_factory.mktemp("original")
    for name in NAMES:
        planted.store(home / "local" / name, [getattr(planted, name)(seed) for seed in range(3)], f"local/{name}")
    planted.store(home / "local" / "copy", [planted.noisy(seed) for seed in (2, 5)], "local/copy")
    return home


@pytest.fixture
def home(tmp_path, original):
    """A copy of the home, which a test may change."""
    return shutil.copytree(original, tmp_path / "home")


def search(home: Path, dataset: str = "local/copy"):
    return identify(dataset, settings=Settings(home=home, progress=False, jobs=1))


def found(identity):
    return [(match.id, match.exact) for match in identity.matches]


def index_of(home: Path) -> Path:
    return home / ".identify" / "index"


def test_the_index_is_kept_and_serves_the_search_for_every_dataset(home):
    assert (found(search(home)), found(search(home, "local/noisy"))) == ([("local/noisy", 1)], [("local/copy", 1)])

    before = index_of(home).stat()
    for name in NAMES:
        search(home, f"local/{name}")

    assert (index_of(home).stat().st_ino, index_of(home).stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in index_of(home).parent.iterdir()] == ["index"]


def test_a_search_with_an_index_opens_the_datasets_with_the_episodes_alone(home, monkeypatch):
    search(home)
    opened = []
    monkeypatch.setattr(
        "datasets_rl.identifying.known.StoredDataset",
        lambda folder: opened.append(folder.name) or pytest.fail("opened"),
    )

    assert not search(home, "local/maze").known
    assert opened == []


@pytest.mark.parametrize("length", [0, 10, 96, 1000, -1])
def test_an_index_that_is_cut_is_made_again(home, length):
    search(home)
    content = index_of(home).read_bytes()
    index_of(home).write_bytes(content[:length])

    identity = search(home)

    assert (found(identity), identity.index_problem) == ([("local/noisy", 1)], "")
    assert index_of(home).read_bytes() == content


def test_an_index_with_other_bytes_never_makes_a_match(home):
    """Whatever the bytes are, the search ends, and what is found is compared with the datasets."""
    search(home)
    content = bytearray(index_of(home).read_bytes())
    generator = np.random.default_rng(0)
    for _ in range(5):
        places = generator.integers(0, len(content), 200)
        changed = content.copy()
        for place in places.tolist():
            changed[place] = int(generator.integers(256))
        index_of(home).write_bytes(changed)

        assert found(search(home)) in ([("local/noisy", 1)], [])
        assert not search(home, "local/maze").known


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parents[1] / "mine")])
def test_a_folder_a_pipe_or_a_link_in_the_place_of_the_index_is_not_read(home, make):
    (home / "mine").write_text("mine")
    index_of(home).parent.mkdir()
    make(index_of(home))

    identity = search(home)

    assert found(identity) == [("local/noisy", 1)]
    assert ("Is a directory" in identity.index_problem) != index_of(home).is_file()
    assert (home / "mine").read_text() == "mine"


def test_a_link_in_the_place_of_the_folder_is_not_followed(home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    index_of(home).parent.symlink_to(tmp_path / "elsewhere")

    identity = search(home)

    assert found(identity) == [("local/noisy", 1)]
    assert "symbolic link" in identity.index_problem
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_version_that_changes_below_the_index_is_searched_as_it_is(home):
    search(home)
    shutil.rmtree(home / "local" / "noisy")
    planted.store(home / "local" / "noisy", [planted.noisy(5)], "local/noisy")

    assert found(search(home)) == [("local/noisy", 1)]


def test_a_damaged_dataset_is_named_until_it_is_repaired(home):
    rows = home / "local" / "noisy" / "rows.npy"
    content = rows.read_bytes()
    rows.write_bytes(content[:100])

    for _ in range(2):
        identity = search(home)
        assert (found(identity), identity.searched, len(identity.damaged)) == ([], 1, 1)
        assert "rows.npy" in identity.damaged[0]
    rows.write_bytes(content)
    assert found(search(home)) == [("local/noisy", 1)]

    rows.unlink()  # after the index was made
    identity = search(home)
    assert (found(identity), identity.searched, len(identity.damaged)) == ([], 1, 1)


def test_two_searches_at_once_find_the_same(home):
    results = []
    threads = [threading.Thread(target=lambda: results.append(found(search(home)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [[("local/noisy", 1)]] * 4
    assert [path.name for path in index_of(home).parent.iterdir()] == ["index"]


@pytest.mark.slow
def test_commands_at_once_find_the_same(home):
    command = [sys.executable, "-m", "datasets_rl", "identify", "local/copy", "--json"]
    environment = {**os.environ, "RLDS_HOME": str(home)}
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]

    outputs = {one.communicate()[0] for one in running}

    assert [one.returncode for one in running] == [0] * 4
    (output,) = outputs
    assert json.loads(output)["matches"][0]["exact"] == 1
    assert [path.name for path in index_of(home).parent.iterdir()] == ["index"]


def test_a_search_that_is_killed_while_the_index_is_written_leaves_what_the_next_one_deletes(home, tmp_path):
    def work(folder):
        search(folder)

    events = run_killed_at(0, lambda: work(home), events_below(home / ".identify"))
    assert events >= 3
    for fatal in range(1, events + 1):
        folder = shutil.copytree(home, tmp_path / f"killed-{fatal}", ignore=shutil.ignore_patterns(".identify"))
        assert run_killed_at(fatal, lambda: work(folder), events_below(folder / ".identify")) is None  # noqa: B023
        assert found(search(folder)) == [("local/noisy", 1)]
        assert [path.name for path in (folder / ".identify").iterdir()] == ["index"]


def test_without_room_for_the_index_the_search_says_so_and_ends(home):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        identity = search(home)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert found(identity) == [("local/noisy", 1)]
    assert "is too large" in identity.index_problem
    assert [*index_of(home).parent.iterdir()] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_in_a_home_that_cannot_be_written_the_search_says_so_and_ends(home):
    home.chmod(0o500)
    try:
        identity = search(home)
    finally:
        home.chmod(0o700)

    assert found(identity) == [("local/noisy", 1)]
    assert "Permission denied" in identity.index_problem


def test_the_own_episodes_of_a_stored_dataset_do_not_hide_its_near_copies(home, monkeypatch):
    """More episodes of the dataset itself have the windows of an episode than are compared."""
    monkeypatch.setattr(sys.modules["datasets_rl.identifying.identify"], "_COMPARED", 4)
    planted.store(home / "local" / "alike", [planted.noisy(9)] * 6, "local/alike")
    planted.store(home / "local" / "one", planted.trimmed(planted.noisy(9)), "local/one")

    (match,) = search(home, "local/alike").matches

    assert (match.id, match.near) == ("local/one", 6)
