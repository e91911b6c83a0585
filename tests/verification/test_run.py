"""``verify --deep`` recomputes the values of manifests and episode tables, and detects any change."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracles import comparison
from raw.d4rl import CASES
from raw.minari import CASES as MINARI
from stored_data import columns, reseal, store_dataset, trajectory, write_dataset, write_manifest_with_digest

from datasets_rl import downloading, verify
from datasets_rl.build.conversion import specs_of_schema
from datasets_rl.errors import IntegrityError
from datasets_rl.format import integrity
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.settings import Settings
from datasets_rl.store import version_folder
from datasets_rl.store.find import paths_of
from datasets_rl.store.versions import prune_builds
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.verification import reconversion

FREE = {"converter", "revision", "url", "etag", "checked", "request"}
"""Fields that cannot be recomputed: the version that wrote the dataset, and the download of its raw files."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A home folder with a small dataset that has decisions, metadata, bounds and its raw file."""
    (case,) = CASES
    tree, home = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("home")
    case.write(tree)
    settings = Settings(home=home / "home", progress=False, jobs=1)
    return downloading.download(case.id, from_local=tree, settings=settings)


@pytest.fixture
def folder(converted, tmp_path):
    """A copy of the dataset for the test; the raw file is not copied."""
    return shutil.copytree(version_folder(converted), tmp_path / "copy")


def document_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def leaves(node: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value of a document, including empty lists and objects."""
    inner = [*node.items()] if isinstance(node, dict) else [*enumerate(node)] if isinstance(node, list) else []
    for name, value in inner:
        yield from leaves(value, (*path, name))
    if path and not inner:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    return {list: ["x"], dict: {"x": 1}}.get(type(value)) or (value + "x" if isinstance(value, str) else value + 1)


def with_changed(document: dict, path: tuple) -> dict:
    document = copy.deepcopy(document)
    node = document
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = changed(node[path[-1]])
    return document


def is_found(folder) -> bool:
    try:
        return bool(verify(folder, deep=True).problems)
    except IntegrityError:
        return True


def test_a_converted_dataset_is_intact(converted):
    found = verify(converted, deep=True)

    assert found.problems == ()
    assert found.checked[-2:] == (
        "description, metadata, decisions and the episode table against the raw files",
        "every converted value against bullet-hopper_medium.hdf5",
    )


NAMES = (
    *("format", "format_version", "id", "steps", "episodes", "final_unknown", "record_bytes", "schema", "files", "raw"),
    *(
        "decisions",
        "known_issues",
        "statistics",
        "specs",
        "metadata",
        "license",
        "citation",
        "homepage",
        "time_limit",
        "score",
    ),
)


@pytest.mark.first(6)
@pytest.mark.parametrize(
    ("name", "numbers"),
    [*((name, "last") for name in NAMES), pytest.param("statistics", "every", marks=pytest.mark.slow)],
)
def test_every_value_of_a_manifest_that_can_be_recomputed_is(folder, name, numbers):
    """Each value in turn is changed, with a valid digest, as a faulty conversion would do.

    Of the statistics, which are lists with a number per element, it is the last number of each list or every one.
    """
    document = document_of(folder)
    assert set(NAMES) == document.keys() - FREE - {"digest"}
    paths = [path for path in leaves(document) if path[0] == name and not FREE & set(path)]
    if name == "statistics" and numbers == "last":
        paths = [*{path[:-1] if isinstance(path[-1], int) else path: path for path in paths}.values()]
    missed = []
    for path in paths:
        write_manifest_with_digest(folder, with_changed(document, path))
        if not is_found(folder):
            missed.append(path)

    assert paths
    assert missed == []


@pytest.mark.parametrize("name", ["decisions", "known_issues", "metadata", "specs", "statistics"])
def test_an_entry_of_a_manifest_that_is_missing_or_added_is_found(folder, name):
    document = document_of(folder)
    entries = document[name]
    fewer = entries[1:] if isinstance(entries, list) else dict([*entries.items()][1:])
    more = [*entries, *entries[:1]] if isinstance(entries, list) else {**entries, "mood": {}}
    for other in (fewer, more):
        if other != entries and not (name == "decisions" and other is more):
            write_manifest_with_digest(folder, {**document, name: other})
            assert is_found(folder), other


@pytest.mark.parametrize("name", ["license", "citation", "homepage", "known_issues", "score", "time_limit"])
def test_without_raw_files_the_description_is_compared_with_the_catalog(folder, name):
    document = {**document_of(folder), "raw": []}
    write_manifest_with_digest(folder, document)
    assert verify(folder, deep=True).problems == ()
    write_manifest_with_digest(folder, with_changed(document, ("score", "low") if name == "score" else (name,)))

    assert any(one.startswith(f"{name} is ") for one in verify(folder, deep=True).problems)


def test_the_catalog_of_another_version_is_not_compared(folder):
    write_manifest_with_digest(folder, {**document_of(folder), "converter": "0.0.1", "license": "mine"})

    found = verify(folder, deep=True)

    assert found.problems == ()
    assert any("written by datasets-rl 0.0.1" in one for one in found.remarks)


def written(folder, steps: np.ndarray):
    """Write a dataset of one episode with these actions, [T, 2]."""
    one = trajectory(len(steps))
    of = [*columns()[:1], Column(("action",), steps.dtype, (2,)), *columns()[2:]]
    stored = write_dataset(folder, [replace(one, steps={**one.steps, ("action",): steps})], of)
    replace(stored.manifest, specs=specs_of_schema(stored.schema, {})).write(folder)
    return folder


def test_a_mean_may_differ_only_by_the_rounding_of_its_sum(tmp_path):
    folder = written(tmp_path / "toy", np.random.default_rng(0).normal(size=(50, 2)))
    document = document_of(folder)
    mean = document["statistics"]["action"]["mean"]
    mean[0] = float(np.nextafter(mean[0], 9))
    write_manifest_with_digest(folder, document)
    assert verify(folder, deep=True).problems == ()
    mean[0] += 1e-7
    write_manifest_with_digest(folder, document)

    (problem,) = verify(folder, deep=True).problems
    assert problem.startswith("statistics.action.mean[0] is ")


@pytest.mark.parametrize("values", [[np.nan], [np.inf, 1.0], [1e300, -1e300], [0.0]], ids=str)
def test_statistics_of_nonfinite_values_are_recomputed(tmp_path, values):
    steps = np.zeros((40, 2))
    steps[: len(values), 0] = values

    assert verify(written(tmp_path / "toy", steps), deep=True).problems == ()


@pytest.mark.first(1)
@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_recomputed_statistics_do_not_depend_on_the_block_size(tmp_path, monkeypatch, rows):
    steps = np.random.default_rng(0).normal(1e6, 1e-3, size=(5000, 2))
    folder = written(tmp_path / "toy", steps)
    monkeypatch.setattr("datasets_rl.format.statistics._BLOCK_BYTES", 16 * rows)

    assert verify(folder, deep=True).problems == ()


@pytest.mark.parametrize("number", [0, -1])
def test_every_value_of_an_episode_table_is_compared_with_the_raw_file(folder, number):
    """The digest is valid, so only the comparison with the raw file can detect the change."""
    path = folder / "episodes.npy"
    table = np.load(path)
    document = document_of(folder)
    for name in table.dtype.names:
        other = table.copy()
        other[name][number] = not other[name][number] if other[name].dtype == bool else other[name][number] + 1
        np.save(path, other)
        reseal(folder, document)

        assert is_found(folder), name


@pytest.mark.parametrize("name", ["source", "repaired"])
def test_the_independent_comparison_covers_the_episode_table(converted, name):
    """It shares no code with the reader, so that it detects errors of the reader."""
    stored = StoredDataset(converted)
    files = comparison.raw_files_of(stored)
    records = stored.episodes.records.copy()
    assert comparison.compare(stored.manifest.id, files, stored.column, stored.episodes) == []
    records[name][1] = not records[name][1] if name == "repaired" else 7

    (problem,) = comparison.compare(stored.manifest.id, files, stored.column, EpisodeTable(records))
    assert problem.startswith(f"{name} at episode 1 ")


def test_a_changed_raw_file_with_equal_values_is_found(converted, tmp_path, monkeypatch):
    """A byte is appended, which HDF5 ignores."""
    home = shutil.copytree(converted.parents[1], tmp_path / "home")
    folder = home / converted.relative_to(converted.parents[1])
    document = document_of(version_folder(folder))
    (raw,) = document["raw"]
    kept = folder / "raw" / raw["path"]
    kept.parent.mkdir(parents=True)
    shutil.copyfile(raw["url"].removeprefix("file://"), kept)
    monkeypatch.setenv("RLDS_HOME", str(home))
    assert verify(folder, deep=True).problems == ()
    with kept.open("ab") as stream:
        stream.write(b"\0")

    (problem,) = verify(folder, deep=True).problems
    assert problem.startswith(f"the raw file {kept} is ")


KILLED = """
import os, signal, sys
from pathlib import Path
from datasets_rl import verify
from datasets_rl.settings import Settings
from datasets_rl.verification import reconversion

reconversion._Reconversion._compare_build = lambda _: os.kill(os.getpid(), signal.SIGKILL)
verify(Path(sys.argv[1]), deep=True, settings=Settings(home=Path(sys.argv[1]).parents[1], progress=False))
"""


def builds_in(folder):
    return [path for path in folder.iterdir() if path.name.startswith("build-")]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL")
@pytest.mark.first(1)
@pytest.mark.parametrize("then", ["verify", "prune"])
def test_a_killed_verification_leaves_a_build_that_the_next_one_or_a_prune_deletes(converted, tmp_path, then):
    home = shutil.copytree(converted.parents[1], tmp_path / "home")
    folder = home / converted.relative_to(converted.parents[1])
    before = {path.name: path.read_bytes() for path in version_folder(folder).iterdir() if path.is_file()}
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = builds_in(folder)
    assert (left / "version" / "rows.npy").exists()

    if then == "verify":
        assert verify(folder, deep=True).problems == ()
    else:
        prune_builds(paths_of(folder))
    assert builds_in(folder) == []
    assert {path.name: path.read_bytes() for path in version_folder(folder).iterdir() if path.is_file()} == before


def test_a_copy_of_a_version_is_verified_without_a_file_beside_it(folder, tmp_path):
    assert verify(folder, deep=True).checked[-1].startswith("every converted value against")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert builds_in(folder) == []


@pytest.mark.parametrize("changed_field", ["action", "observation"])
def test_a_dataset_of_many_builds_is_compared_to_its_last_row(tmp_path, monkeypatch, changed_field):
    """A build is compared after each episode; the numbers of rows and episodes go on."""
    case = MINARI[0]
    (tmp_path / "raw").mkdir()
    case.write(tmp_path / "raw")
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    folder = version_folder(downloading.download(case.id, from_local=tmp_path / "raw", settings=settings))
    monkeypatch.setattr(reconversion, "_BUILD_BYTES", -1)
    finish, finished = DatasetWriter.finish, []
    monkeypatch.setattr(DatasetWriter, "finish", lambda self: finished.append(finish(self)) or finished[-1])
    assert verify(folder, deep=True, settings=settings).problems == ()
    stored = StoredDataset(folder)
    assert [one.episodes for one in finished] == [1] * len(stored.episodes)

    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="r+")
    (name,) = [name for name in rows.dtype.names if name.startswith(changed_field)][:1]
    rows[name][-1] += 1
    rows.flush()
    reseal(folder)
    problems = verify(folder, deep=True, settings=settings).problems
    assert any(one.startswith(f"{name} at row {len(stored) - 1:,} is ") and "(1 such)" in one for one in problems)


MEASURED = """
import json, sys, threading, time
from pathlib import Path
from datasets_rl import downloading, verify
from datasets_rl.settings import Settings

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

name, few, many = sys.argv[1:]
settings = Settings(home=Path(few).parent, progress=False)
verify(Path(few), deep=True, settings=settings)
idle, peak, over = anonymous(), [0.0], threading.Event()

def watch():
    while not over.wait(0.002):
        peak[0] = max(peak[0], anonymous())

thread = threading.Thread(target=watch)
thread.start()
found = verify(Path(many), deep=True, settings=settings)
over.set()
thread.join()
print(json.dumps([peak[0] - idle, found.problems]))
"""


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(60_000_000, id="60MB", marks=pytest.mark.slow),
        pytest.param(400_000_000, id="400MB", marks=pytest.mark.slow),
    ],
)
def test_memory_is_bounded_for_any_size_of_the_files(tmp_path, size):
    """Measures anonymous memory above that of a process that has verified a small dataset."""
    (case,) = CASES
    folders = []
    for name, bytes_of_file in (("few", 100_000), ("many", size)):
        (tmp_path / name).mkdir()
        case.many(tmp_path / name, bytes_of_file)
        settings = Settings(home=tmp_path / f"home-{name}", progress=False, jobs=1)
        folders.append(downloading.download(case.id, from_local=tmp_path / name, settings=settings))
    words = [case.id, *map(str, folders)]
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=True)

    more, problems = json.loads(done.stdout)
    assert problems == []
    assert more < 150


@pytest.mark.slow
def test_a_version_that_is_replaced_while_it_is_verified_is_not_reported_as_damaged(tmp_path, monkeypatch):
    """The version is deleted after its manifest was read, and another one is current."""
    folder = tmp_path / "own"
    former = store_dataset(folder, [trajectory(3)]).folder
    check_files = integrity.check_files

    def replaced_meanwhile(version, advance):
        if version == former:
            shutil.rmtree(former)
            store_dataset(folder, [trajectory(4)])
        return check_files(version, advance)

    monkeypatch.setattr(integrity, "check_files", replaced_meanwhile)
    assert verify(folder).problems == ()
    assert not former.exists()


def test_a_missing_spec_is_one_problem(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3)], columns(), specs={})
    fields = [field.name for field in stored.schema if field.name not in stored.manifest.specs]

    problems = verify(stored.folder, deep=True).problems

    assert "action" in fields
    assert [one for one in problems if "specs." in one] == [f"specs.{name} is missing" for name in sorted(fields)]


def test_a_dataset_of_the_tests_has_the_specs_that_verification_expects(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3)])

    assert verify(stored.folder, deep=True).problems == ()
