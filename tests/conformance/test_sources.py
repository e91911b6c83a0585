"""Properties of every source, on the cases of tests/raw: each upstream gives a strict dataset or a documented error."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import html
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from exports import equal_bits, export_stored, read_back
from oracles import comparison
from PIL import Image
from raw.case import cases_of_sources
from servers import serve
from stored_data import reseal

from datasets_rl import Selection, downloading, load, sources, store, verification
from datasets_rl.build import engines
from datasets_rl.build.journal import Journal
from datasets_rl.cli.app import main
from datasets_rl.cli.errors import EXIT_CODES
from datasets_rl.datasets import dataset_class
from datasets_rl.downloading import DownloadOptions, planning
from datasets_rl.downloading.target import Target
from datasets_rl.errors import (
    DatasetsRLError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    NotADatasetError,
    OfflineError,
    UnknownKeyError,
)
from datasets_rl.exporting import FORMATS, Content, plan_export
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.format.check import check_rules
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import StepReader, describe, episode_rows
from datasets_rl.settings import Settings
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, ROOT_FLAGS, dotted_name

Key = tuple[str, ...]
KILLER = Path(__file__).parents[1] / "faults" / "download_crashes.py"
USED = (
    "datasets_rl.sources.",
    "datasets_rl.read.",
    "datasets_rl.fetch.",
    "h5py.",
    "httpx.",
    "pyarrow.parquet",
    "sklearn.datasets",
)
REFUSED = {row.code for row in EXIT_CODES if row.code in range(2, 9)}


CASES = [pytest.param(case, id=f"{name}{number}") for name, number, case in cases_of_sources()]
FAULTS = [
    pytest.param(one.values[0], fault, id=f"{one.id}-{name.replace(' ', '_')}")
    for one in CASES
    for name, fault in one.values[0].faults.items()
]
FIRST = [*{one.values[0].id.partition("/")[0]: one.values[0] for one in reversed(CASES)}.values()]
KINDS = {
    "demo": "a file of the package",
    "d4rl": "one file, whose size the upstream does not state",
    "minari": "one file that is cut into shards, beside files that all of them need",
    "gen_dgrl": "compressed images, and fields that are known before the download",
    "openx": "shards of whole files, encoded images, and options",
}
"""Sources that differ in what the shared code of downloads, conversions and checks distinguishes."""


def made_of(default: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with all cases; those which are not in ``default`` are slow."""
    found = [
        pytest.param(one.values[0], id=one.id, marks=[] if one.values[0] in default else pytest.mark.slow)
        for one in CASES
    ]
    return pytest.mark.parametrize("made", found, indirect=True, scope="module")


FIRST_OF_EACH = made_of(FIRST)
"""For what each source does itself, and its cases do alike: the default run has the first case of each source."""
ONE_OF_EACH_KIND = made_of([case for case in FIRST if case.id.partition("/")[0] in KINDS])
"""For what the code shared by all sources does: the default run has one source of each kind."""
MANY = [one for one in CASES if one.values[0].many is not None]


@dataclass(frozen=True)
class Made:
    """A case whose raw files are written, served, and converted once."""

    case: Any
    tree: Path
    golden: Sequence[Episode]
    stored: StoredDataset
    """The dataset that one process converted; its raw files were kept."""
    place: store.DatasetPaths
    contents: sources.Listing

    @property
    def name(self) -> str:
        return self.case.id.partition("/")[2]

    @property
    def selection(self) -> Selection:
        return Selection(options=self.case.options)

    @property
    def words(self) -> list[str]:
        """The command-line options of the case."""
        return [word for name, value in self.case.options.items() for word in (f"--{name}", value)]

    def download(self, home: Path, *, jobs: int = 1, **options: Any) -> StoredDataset:
        settings = dataclasses.replace(Settings.from_env(), home=home, jobs=jobs)
        selection = dataclasses.replace(self.selection, **options.pop("part", {}))
        return StoredDataset(downloading.download(self.case.id, settings=settings, selection=selection, **options))

    @property
    def paths(self) -> set[str]:
        """The files of all shards."""
        return {path for shard in self.contents.shards for path in shard.paths}

    @property
    def last(self) -> set[str]:
        """The files that only the last shard needs, if there are several shards."""
        *before, last = self.contents.shards
        needed = {path for shard in before for path in shard.paths} | set(self.contents.common)
        return set(last.paths) - needed if before else set()


def settled(environment: pytest.MonkeyPatch, home: Path, more: Mapping[str, str] = {}) -> None:
    """Set these environment variables, and remove all others of the library."""
    for name in [name for name in os.environ if name.startswith(("RLDS_", "HF_", "MINARI_"))]:
        environment.delenv(name)
    plain = {"RLDS_HOME": str(home), "RLDS_JOBS": "1", "RLDS_MAX_RETRIES": "0", "RLDS_NO_PROGRESS": "1"}
    for name, value in {"NO_PROXY": "*", **plain, **more}.items():
        environment.setenv(name, value)


def shrunk(environment: pytest.MonkeyPatch, case: Any) -> None:
    """Lower the shard size of the case, and the amount of work from which processes are used."""
    for name, value in case.small.items():
        environment.setattr(name, value)
    environment.setattr(engines, "MIN_PARALLEL_BYTES", 0)
    environment.setattr("os.cpu_count", lambda: 4)
    # A case is far smaller than the dataset whose size the catalog states.
    environment.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function that writes the raw files of a case, once, and returns their folder and the episodes."""

    @functools.cache
    def write(number):
        folder = tmp_path_factory.mktemp("tree")
        return folder, CASES[number].values[0].write(folder)

    return lambda case: write([one.values[0] for one in CASES].index(case))


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory, written):
    case = request.param
    home = tmp_path_factory.mktemp("home")
    tree, golden = written(case)
    with pytest.MonkeyPatch.context() as environment, case.served(tree) as variables:
        settled(environment, home, variables)
        shrunk(environment, case)
        place = store.dataset_paths(case.id)
        selection = Selection(options=case.options)
        folder = downloading.download(case.id, selection=selection, keep_raw=True)
        target = Target.find(case.id, DownloadOptions(selection=selection))
        aside = tmp_path_factory.mktemp("aside")
        request = planning.DownloadRequest(target, selection, place.raw, aside / "none")
        contents = planning.find_files(request, aside=aside)
        yield Made(case, tree, golden, StoredDataset(folder), place, contents)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def rlds(capsys):
    """A function that runs ``rlds`` in this process, and returns its exit code, its JSON document and stderr."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


def content(folder):
    """Return the digest of every file, and the manifest without its digest."""
    folder = store.version_folder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]  # the digest depends on the order of the lists
    manifest["raw"].sort(key=lambda one: one["path"])
    manifest["decisions"].sort(key=lambda one: one["rule"])
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    return {path.relative_to(folder).as_posix(): digest_file(path).hexdigest() for path in files}, manifest


def unsharded(folder):
    """Return `content` without what depends on the shard size: counts of files, the last bits of sums, dictionaries."""
    files, manifest = content(folder)
    trained = [".".join(field["key"]) for field in manifest["schema"] if field.get("form") == "compressed"]
    others = {*files} - {
        name for name in files for field in trained if name.removeprefix("final.").startswith(f"{field}.")
    }
    others -= {"digests.npy"} if trained else set()
    stated = [one for one in manifest["files"] if one["path"] in others]
    decisions = [{**one, "count": 0} for one in manifest["decisions"]]
    return {name: files[name] for name in others}, {
        **manifest,
        "files": stated,
        "decisions": decisions,
        "statistics": {},
    }


def differing(left, right):
    return [(name, left.get(name), right.get(name)) for name in left | right if left.get(name) != right.get(name)]


def leftovers(root):
    """Return the files in a source's folder that are not part of a finished dataset."""
    entries = [path for paths in store.dataset_places(root) for path in paths.entries()]
    unfinished = [path for path in entries if path.name.startswith(("build-", "raw", "trash-"))]
    return sorted(path.relative_to(root) for folder in unfinished for path in folder.rglob("*"))


def test_every_source_has_cases():
    there = {one.values[0].id.partition("/")[0] for one in CASES}

    # Their files have the layout of another source, or are stored datasets: tests/sources/test_addresses.py, tests/hub.
    assert there == set(sources.source_names()) - {"hf", "url"}


@pytest.mark.usefixtures("warm_python")
@ONE_OF_EACH_KIND
def test_the_command_converts_it(made, home, rlds, tmp_path):
    """In a separate process for one case per source."""
    words = ["download", made.case.id, "--json", *made.words]
    if made.case in FIRST:
        command = [sys.executable, "-m", "datasets_rl.cli", *words]
        environment = {**os.environ, "RLDS_HOME": str(home)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        code, document, err = done.returncode, json.loads(done.stdout or "{}"), done.stderr
    else:
        code, document, err = rlds(*words)

    assert code == 0, err
    (told,) = document["datasets"]
    assert (told["id"], told["steps"], told["error"]) == (made.case.id, sum(map(len, made.golden)), None)
    files, manifest = unsharded(Path(told["folder"]))
    wanted = unsharded(made.stored.folder)
    assert files == wanted[0]
    assert differing(manifest, wanted[1]) == []
    for field in (field for field in made.stored.schema if field.compressed):
        assert np.array_equal(StoredDataset(Path(told["folder"])).column(field.key), made.stored.column(field.key))
    assert leftovers(tmp_path / "home" / made.case.id.partition("/")[0]) == []


@pytest.mark.usefixtures("warm_python")
@ONE_OF_EACH_KIND
def test_the_class_converts_it_to_the_same_with_two_processes(made, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_JOBS", "2")
    options = {**made.case.plain, **({"selection": made.selection} if made.case.options else {})}
    before = sockets()

    dataset = dataset_class(made.place.root.name)(made.name, root=tmp_path / "root", download=True, **options)

    assert content(dataset.data_path) == content(made.stored.folder)
    assert len(dataset) == len(made.stored)
    shows_the_rows(dataset, made.stored)
    assert leftovers(tmp_path / "root") == []
    assert settles(lambda: sockets() <= before)


@pytest.mark.parametrize(
    "to", ["hdf5", pytest.param("npz", marks=pytest.mark.slow), pytest.param("parquet", marks=pytest.mark.slow)]
)
@ONE_OF_EACH_KIND
def test_its_export_is_read_back_bit_for_bit(made, to, tmp_path):
    back = read_back(made.stored, to, tmp_path)

    equal_bits(made.stored, back)


@pytest.mark.slow
@FIRST_OF_EACH
def test_each_format_holds_it_or_names_a_reason(made, tmp_path):
    for to in FORMATS:
        plan = plan_export(Content(made.stored), to, tmp_path / to)
        if not plan.problems:
            assert export_stored(made.stored, to, tmp_path / to).exists()
    assert {"hdf5", "npz", "parquet", "torchrl"} <= {path.name for path in tmp_path.iterdir()}


class Nodes(contextlib.nullcontext):
    """An engine like a cluster of one node: tasks and results are JSON, and tasks run at submission."""

    max_in_flight = 3

    def submit(self, make, task, report):
        said = json.dumps(make(json.loads(json.dumps(task)), report))
        return lambda: json.loads(said)


@ONE_OF_EACH_KIND
def test_a_cluster_that_writes_each_shard_separately_makes_the_same(made, home):
    assert content(made.download(home, engine=Nodes()).folder) == content(made.stored.folder)
    assert leftovers(home / made.case.id.partition("/")[0]) == []


def shows_the_rows(dataset, stored):
    whole = dataset[:]
    shown = {key if isinstance(key, tuple) else (key,): leaf for key, leaf in whole.items(True, True)}
    known = set(stored.keys())
    assert len(set(shown) & known) >= 5
    for key in set(shown) & known:
        wanted = stored.column(key)
        got = shown[key].numpy()
        assert got.shape == wanted.shape
        assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f"), dotted_name(key)


def sockets():
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        try:
            found += str(path.readlink()).startswith("socket:")
        except OSError:
            continue
    return found


def settles(holds):
    """The server's threads need some time to close their sockets."""
    end = time.monotonic() + 5
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def test_it_is_strict_ted_and_has_the_generated_values(made):
    stored = made.stored
    table = stored.episodes

    assert check_rules(stored.schema, table, stored.column).problems == []
    assert table.lengths.tolist() == [len(one) for one in made.golden]
    assert table["final_known"].tolist() == [one.final_known for one in made.golden]
    assert stored.manifest.steps == len(stored) == sum(map(len, made.golden))
    assert stored.manifest.final_unknown == sum(not one.final_known for one in made.golden)
    wanted = {*made.golden[0].steps, *made.golden[0].states, ("next", "done"), ("episode",)}
    assert {field.key for field in stored.schema} == wanted
    for name in made.golden[0].metadata:
        assert table[name].tolist() == [np.asarray(one.metadata[name]).item() for one in made.golden], name
    for row, (start, one) in enumerate(zip(table.starts.tolist(), made.golden, strict=True)):
        rows = slice(start, start + len(one))
        for key, values in one.steps.items():
            same(made, key, rows, values)
        for key, values in one.states.items():
            same(made, key, rows, of(values, 0, len(one)))
            same(made, ("next", *key), rows, following(values, len(one)))
        ends = np.arange(len(one)) == len(one) - 1
        assert np.array_equal(stored.column(("next", "done"), start, rows.stop)[:, 0], ends)
        assert (stored.column(("episode",), start, rows.stop) == row).all()
        reward = np.asarray(one.steps["next", "reward"], np.float64).sum()
        assert np.isclose(table["return"][row], reward, equal_nan=True, atol=1e-3, rtol=1e-5)


def of(values, start, stop):
    """Return rows of a column."""
    if isinstance(values, TextStates):
        return TextStates(values.codes[start:stop], values.vocabulary)
    if isinstance(values, EncodedImages):
        return EncodedImages(values.images[start:stop])
    return values[start:stop]


def following(values, steps):
    """Return the values after each step; zeros or an empty string where the last one is unknown."""
    if len(values) > steps:
        return of(values, 1, steps + 1)
    if isinstance(values, TextStates):
        return TextStates(np.append(values.codes[1:], len(values.vocabulary)), (*values.vocabulary, ""))
    rest = plain(of(values, 1, steps)) if steps > 1 else plain(of(values, 0, 1))[:0]
    return np.concatenate([rest, np.zeros((1, *plain(of(values, 0, 1)).shape[1:]), rest.dtype)])


def plain(values):
    """Return encoded images as pixels, decoded by pillow."""
    if not isinstance(values, EncodedImages):
        return np.asarray(values)
    decoded = [np.asarray(Image.open(io.BytesIO(bytes(one)))) for one in values.images]
    return np.stack([one if one.ndim == 3 else one[..., None] for one in decoded])


def same(made, key, rows, values):
    got = made.stored.column(key, rows.start, rows.stop)
    if isinstance(values, TextStates):
        texts = made.stored.texts(key)
        assert [texts[number] for number in got] == [values.vocabulary[code] for code in values.codes], dotted_name(key)
        return
    wanted = plain(values)
    off = made.case.lossy.get(dotted_name(key), made.case.lossy.get(dotted_name(key[1:]), 0) if key[0] == "next" else 0)
    assert got.shape == wanted.shape, dotted_name(key)
    assert got.dtype.kind == wanted.dtype.kind, dotted_name(key)
    if off:
        assert np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() <= off, dotted_name(key)
    else:
        assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f"), dotted_name(key)


def test_the_manifest_records_the_raw_files(made):
    manifest = made.stored.manifest

    assert manifest.id == made.case.id
    assert manifest.license
    assert manifest.citation or manifest.homepage
    assert manifest.raw
    for file in manifest.raw:
        assert len(file.sha256) == 64
        assert file.bytes > 0
        assert ":" in file.url
    assert len({file.path for file in manifest.raw}) == len(manifest.raw)
    for name, value in made.case.manifest.items():
        assert getattr(manifest, name) == value, name


@FIRST_OF_EACH
def test_a_dry_run_reports_the_bytes_of_the_download_and_writes_nothing(made, home, rlds, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, document, _ = rlds("download", made.case.id, "--dry-run", "--json", *made.words)

    (told,) = document["datasets"]
    raw = {file.path: file.bytes for file in made.stored.manifest.raw}
    in_place = all(url.startswith(("file:", "package:")) for file in told["files"] for url in file["urls"])
    assert code == 0
    assert {file["path"] for file in told["files"]} == set(raw)
    if None in {file["bytes"] for file in told["files"]}:
        # Not every upstream has lists; an unknown number is None.
        assert told["wire_bytes"] is None
    else:
        assert told["wire_bytes"] == (0 if in_place else sum(raw.values()))
    assert not home.exists()
    assert [*tmp_path.iterdir()] == []


@ONE_OF_EACH_KIND
def test_verify_compares_it_with_the_raw_files(made, rlds):
    code, document, _ = rlds("verify", made.stored.folder, "--deep", "--json")

    (told,) = document["datasets"]
    assert (code, told["intact"], told["problems"]) == (0, True, [])
    assert told["checked"][-1].startswith("every converted value against")


def test_its_values_are_those_that_the_oracle_reads(made):
    stored = made.stored
    files = comparison.raw_files_of(stored)

    assert comparison.compare(made.case.id, files, comparison.column_of(stored), stored.episodes) == []


@ONE_OF_EACH_KIND
def test_verify_converts_the_selected_part_again(made, tmp_path, rlds):
    """The files that are kept are not all files of the upstream, whose list is kept with them."""
    if not made.case.episodes or "episodes" not in sources.get_source(made.case.id.partition("/")[0]).selects:
        pytest.skip("episodes cannot be selected")
    stored = made.download(tmp_path / "home", keep_raw=True, part={"episodes": "1:"})

    code, document, _ = rlds("verify", stored.folder, "--deep", "--json")

    (told,) = document["datasets"]
    assert stored.episodes["source"].min() == 1
    assert (code, told["problems"]) == (0, [])
    assert told["checked"][-1].startswith("every converted value against")


@ONE_OF_EACH_KIND
def test_verify_finds_a_byte_that_was_changed(made, tmp_path, rlds):
    copy = shutil.copytree(made.stored.folder, tmp_path / "copy")
    place = copy / max(made.stored.manifest.files, key=lambda file: file.bytes).path
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)

    code, document, _ = rlds("verify", copy, "--json")

    assert code == 5
    assert any(place.name in problem for problem in document["datasets"][0]["problems"])


@ONE_OF_EACH_KIND
def test_verify_finds_changed_metadata_of_an_episode_with_a_valid_digest(made):
    """Start, length and return are recomputed from the rows; the rest is compared with the raw files."""
    folder = made.stored.folder
    before = {name: (folder / name).read_bytes() for name in ("episodes.npy", "digests.npy", "manifest.json")}
    table = np.load(folder / "episodes.npy")
    missed = []
    try:
        for name in table.dtype.names:
            other = table.copy()
            value = other[name][-1:]
            value[:] = ~value if value.dtype.kind == "b" else value + 1
            np.save(folder / "episodes.npy", other)
            reseal(folder)
            if not verification.verify(folder, deep=True).problems:
                missed.append(name)
    finally:
        for name, data in before.items():
            (folder / name).write_bytes(data)

    assert missed == []


@ONE_OF_EACH_KIND
def test_verify_finds_a_changed_final_state_with_a_valid_digest(made):
    """A known final state is compared with the raw files; an unknown one must be zeros."""
    folder = made.stored.folder
    fields = [field for field in made.stored.schema if field.shared and not field.wide]
    if not fields:
        pytest.skip("no field is carried in the record")
    before = {name: (folder / name).read_bytes() for name in ("final.npy", "digests.npy", "manifest.json")}
    records = np.load(folder / "final.npy")
    missed = []
    try:
        for field in fields:
            other = records.copy()
            value = other[field.name][-1:]
            value[...] = ~value if value.dtype.kind == "b" else (0 if field.text and value.any() else value + 1)
            np.save(folder / "final.npy", other)
            reseal(folder)
            if not verification.verify(folder, deep=True).problems:
                missed.append(field.name)
    finally:
        for name, data in before.items():
            (folder / name).write_bytes(data)

    assert missed == []


@pytest.fixture
def unreachable(monkeypatch):
    """A proxy to which every request to any host goes, and which has none of the files."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serve({}) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        yield proxy


@pytest.mark.usefixtures("home")
@ONE_OF_EACH_KIND
def test_a_dataset_that_is_not_downloaded_asks_no_network(made, unreachable, monkeypatch):
    kind = dataset_class(made.case.id.partition("/")[0])
    for missing in (lambda: kind(made.name, download=False), lambda: load(made.case.id, download=False)):
        with pytest.raises(NotADatasetError):
            missing()
    root, selection = made.place.root, made.selection
    monkeypatch.setenv("RLDS_HOME", str(root.parent))
    opened = [
        kind(made.name, root=root, download=False, selection=selection),
        load(made.case.id, download=False, selection=selection),
    ]

    assert [len(dataset) for dataset in opened] == [len(made.stored)] * 2
    assert len(opened[0].sample(3)) == 3
    assert unreachable.requests == []


def test_the_proxy_of_these_tests_sees_requests_to_any_host(unreachable, home, monkeypatch):
    monkeypatch.setenv("RLDS_MAX_RETRIES", "0")
    for dataset in ("d4rl/hopper-medium-v2", "hf/me/data"):
        with pytest.raises(FetchError):
            load(dataset, root=home)

    assert len(unreachable.requests) >= 2


@ONE_OF_EACH_KIND
def test_verify_finds_a_changed_value_with_a_valid_digest(made, rlds):
    """The dataset stays in its folder beside the raw files, and is restored afterwards."""
    folder, field = made.stored.folder, changeable(made)
    before = {name: (folder / name).read_bytes() for name in (field.file, "digests.npy", "manifest.json")}
    values = np.lib.format.open_memmap(folder / field.file, mode="r+")
    one = values if field.wide else values[field.name]
    middle = len(one) // 2
    one[middle] = one[middle] ^ 1 if one.dtype.kind in "iub" else -one[middle] - 1
    values.flush()
    reseal(folder)
    try:
        code, document, _ = rlds("verify", folder, "--deep", "--json")
    finally:
        for name, data in before.items():
            (folder / name).write_bytes(data)

    assert code == 5
    names = "|".join(re.escape(file.path.rpartition("/")[2]) for file in made.stored.manifest.raw)
    text = rf"{re.escape(field.name)} at row {middle:,} is .*; ({names}).* has .* \(1 such\)"
    problems = document["datasets"][0]["problems"]
    assert any(re.fullmatch(text, problem) for problem in problems), problems


def changeable(made):
    """Return a numeric field that is stored unchanged: the action, if there is one."""
    known = ("episode", "next.reward", "next.terminated", "next.truncated", "next.done")
    fields = [
        field
        for field in made.stored.schema
        if not (field.name in known or field.text or field.encoded or field.name in made.case.lossy)
    ]
    fields = fields or [field for field in made.stored.schema if field.key == ("action",)]
    return min(fields, key=lambda field: (field.key[0] != "action", field.shared))


@FIRST_OF_EACH
def test_only_selected_fields_are_stored(made, home):
    names = sorted({dotted_name(key) for key in made.golden[0].steps if key[0] != "next"} or {"observation"})
    kept = made.download(home, part={"keys": (names[0],)})

    added = {"next.reward", "next.terminated", "next.truncated", "next.done", "episode"}
    assert {field.name for field in kept.schema} == {names[0], *added}
    for name in (names[0], "next.reward", "next.done"):
        key = tuple(name.split("."))
        assert np.array_equal(words(kept, key), words(made.stored, key), equal_nan=kept.column(key).dtype.kind == "f")


def words(stored, key):
    """Return a column, with text as strings."""
    values = stored.column(key)
    return np.array(stored.texts(key))[values] if stored.schema[key].text else values


@ONE_OF_EACH_KIND
def test_an_unknown_field_is_refused(made, home, rlds):
    code, document, err = rlds("download", made.case.id, "--json", "--keys", "no_such_field", *made.words)

    assert code == 2
    assert "no_such_field" in err
    assert document["datasets"][0]["folder"] is None
    assert [*store.stored_folders(home)] == []


@ONE_OF_EACH_KIND
def test_files_are_selected_by_globs(made, home):
    if not made.last:
        with pytest.raises(InvalidArgumentError, match="include and exclude match none"):
            made.download(home, part={"include": ("*.no-such-file",)})
        return
    patterns = tuple(glob.escape(path) for path in sorted(made.last))

    less = made.download(home / "exclude", part={"exclude": patterns})
    assert 0 < len(less) < len(made.stored)
    begins_with(made.stored, less)
    others = tuple(glob.escape(path) for path in made.paths - made.last)
    rest = made.download(home / "include", part={"include": others})
    assert content(rest.folder)[0] == content(less.folder)[0]


def begins_with(stored, less):
    assert np.array_equal(less.column(("next", "reward")), stored.column(("next", "reward"), 0, len(less)))
    lengths = stored.episodes.lengths[: len(less.episodes) - 1]
    assert np.array_equal(less.episodes.lengths[:-1], lengths)


@ONE_OF_EACH_KIND
def test_the_first_files_that_fit_are_selected(made, home):
    sizes = {file.path: file.bytes for file in made.stored.manifest.raw}
    unsized = None in {asset.size for asset in made.contents.assets}
    if not made.last or unsized:
        with pytest.raises(InvalidArgumentError, match="is not known" if unsized else "the first shard alone has"):
            made.download(home, part={"max_size": 1})
        return
    most = sum(sizes[path] for path in sizes if path not in made.last)

    less = made.download(home, part={"max_size": most})
    assert 0 < len(less) < len(made.stored)
    begins_with(made.stored, less)


@FIRST_OF_EACH
def test_episodes_are_selected_before_the_download(made, home):
    if not (made.case.episodes and "episodes" in sources.get_source(made.place.root.name).selects):
        with pytest.raises(InvalidArgumentError, match="episodes"):
            made.download(home, part={"episodes": "0:1"})
        return
    wanted = made.stored.episodes["source"]
    first = int(wanted[0])

    less = made.download(home, part={"episodes": str(first)})
    rows = np.repeat(wanted == first, made.stored.episodes.lengths)
    assert 0 < len(less) == rows.sum()
    assert set(less.episodes["source"].tolist()) == {first}
    assert np.array_equal(less.column(("next", "reward")), made.stored.column(("next", "reward"))[rows])


def parts(made):
    """Return the types of partial downloads that the dataset supports, as fields of a selection."""
    names = sorted({dotted_name(key) for key in made.golden[0].steps if key[0] != "next"} or {"observation"})
    yield {"keys": (names[0],)}
    origin = sources.get_source(made.place.root.name)
    if made.case.episodes and "episodes" in origin.selects:
        yield {"episodes": str(made.stored.episodes["source"][0])}
    if made.last:
        yield {"exclude": tuple(glob.escape(path) for path in sorted(made.last))}
    if any(option.name == "checkpoints" for option in origin.options):
        yield {"options": {**made.case.options, "checkpoints": "0"}}
    if {field.form for field in made.stored.schema} > {"raw"}:
        yield {"options": {**made.case.options, "images": "raw"}}


@pytest.fixture(scope="module")
def downloaded_parts(made, tmp_path_factory):
    """Every type of partial download: its selection, its home folder and its dataset; read-only."""
    homes = [(part, tmp_path_factory.mktemp("part")) for part in parts(made)]
    return [(part, home, made.download(home, part=part)) for part, home in homes]


@ONE_OF_EACH_KIND
def test_its_values_are_described_and_its_episodes_are_shown(made):
    steps = StepReader(made.stored)

    found = describe(steps)

    assert (found.steps, found.episodes) == (len(made.stored), len(made.golden))
    for field in found.fields:
        read = (field.sampled or len(steps)) * int(np.prod(field.shape)) // max(len(field.elements), 1)
        assert {one.count + one.not_finite for one in field.elements} <= {read}, field.key
        assert field.elements or sum(count for _, count in field.texts) == len(steps)
    for number in (0, -1):
        shown, one = episode_rows(steps, number), made.golden[number]
        assert (len(shown.rows), shown.final_known, shown.final is None) == (
            len(one),
            one.final_known,
            not one.final_known,
        )
        for field in made.stored.schema.narrow:
            if field.key != EPISODE and not field.text:
                got = np.stack([row.values[field.name] for row in shown.rows])
                wanted = made.stored.column(field.key, shown.start, shown.start + shown.length)
                assert np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"), field.name


@ONE_OF_EACH_KIND
def test_every_type_of_part_opens_without_options_and_reports_its_selection(
    made, downloaded_parts, home, monkeypatch, rlds
):
    kind = dataset_class(made.place.root.name)
    for _, place, stored in downloaded_parts:
        monkeypatch.setenv("RLDS_HOME", str(place))
        selection = Selection.from_json(stored.manifest.selection)
        monkeypatch.setenv("RLDS_OFFLINE", "1")

        for dataset in (load(made.case.id), kind(made.name), load(stored.folder), kind(made.name, download=False)):
            assert len(dataset) == len(stored)
            assert dataset.selection == selection
            assert str(selection) in repr(dataset)
            assert html.escape(str(selection)) in dataset._repr_html_()
            assert len(dataset.sample(3)) == 3
        monkeypatch.delenv("RLDS_OFFLINE")
    home.mkdir()
    code, document, _ = rlds("info", made.case.id, "--json")
    assert (code, document["stored"]["selection"]) == (0, selection.to_json())
    out = home / "preprocessed"
    for words in (["path"], ["sample"], ["verify"], ["mix", "-o", home / "mix.toml"]):
        code, _, err = rlds(words[0], made.case.id, *words[1:], "--json")
        assert code == 0, err
    code, _, err = rlds("preprocess", made.case.id, "-t", "reward_scaling:scale=2", "-o", out, "--json")
    assert code == 0, err
    assert str(selection) in repr(load(out))


@ONE_OF_EACH_KIND
def test_a_part_shows_a_smaller_selection_and_refuses_a_different_one(made, downloaded_parts):
    kind = dataset_class(made.place.root.name)
    for part, _, stored in downloaded_parts:
        root = stored.folder.parents[made.name.count("/") + 1]
        selection = Selection.from_json(stored.manifest.selection)

        assert len(kind(made.name, root=root, selection=selection, download=False)) == len(stored)
        less = kind(
            made.name, root=root, selection=Selection(keys=("next.reward",)).completed_from(selection), download=False
        )
        fields = less.storage.keys()
        assert {key for key in fields if key[0] != "next"} <= {*ROOT_FLAGS, EPISODE, ("X",), ("y",)}
        if "images" in part.get("options", {}):
            asked = Selection(options={"images": "compressed"})
            with pytest.raises(InvalidArgumentError, match=r"was downloaded with images=.*: images=.* was requested"):
                kind(made.name, root=root, selection=asked)
            continue
        more = {"keys": ("no_such_field",), "episodes": ":", "exclude": ("nothing",), "options": {"checkpoints": "0:9"}}
        ((name, _),) = part.items()
        with pytest.raises(InvalidArgumentError, match=r"holds .*: .* was requested"):
            kind(made.name, root=root, selection=Selection(**{name: more[name]}), download=False)


@ONE_OF_EACH_KIND
def test_a_download_without_options_completes_a_part(made, downloaded_parts, home, rlds, monkeypatch):
    root = made.place.root.name
    for number, (part, place, stored) in enumerate(downloaded_parts):
        if "images" in part.get("options", {}):
            continue  # another option is not a smaller part
        shutil.copytree(place, home / str(number))
        monkeypatch.setenv("RLDS_HOME", str(home / str(number)))
        folder = home / str(number) / stored.folder.parent.relative_to(place)
        shown = load(made.case.id)
        first = shown[0]["next", "reward"]

        code, document, err = rlds("download", made.case.id, "--json")

        assert code == 0, err
        (result,) = document["datasets"]
        assert (result["present"], result["selection"]) == (False, made.selection.to_json())
        assert content(folder)[0] == content(made.stored.folder)[0]
        assert leftovers(home / str(number) / root) == []
        if any(field.form == "video" for field in stored.schema):
            with pytest.raises(IntegrityError, match="another version replaced the opened one"):
                shown[0]  # videos are opened when frames are read
        else:
            assert torch.equal(shown[0]["next", "reward"], first)  # an open buffer continues to read the old part
        code, document, err = rlds("download", made.case.id, "--json")
        assert (code, document["datasets"][0]["present"]) == (0, True)


@ONE_OF_EACH_KIND
def test_other_episodes_and_fields_are_added_to_a_part(made, home):
    if not (made.case.episodes and "episodes" in sources.get_source(made.place.root.name).selects):
        pytest.skip("it gives whole files")
    names = sorted({dotted_name(key) for key in made.golden[0].steps if key[0] != "next"} or {"observation"})
    numbers = made.stored.episodes["source"]
    first, last = int(numbers[0]), int(numbers[-1])
    made.download(home, part={"episodes": str(first), "keys": (names[0],)})

    grown = made.download(home, part={"episodes": str(last), "keys": ("next.reward",)})

    rows = np.repeat(np.isin(numbers, [first, last]), made.stored.episodes.lengths)
    assert set(grown.episodes["source"].tolist()) == {first, last}
    assert np.array_equal(grown.column(("next", "reward")), made.stored.column(("next", "reward"))[rows])
    assert Selection.from_json(grown.manifest.selection).keys == (names[0],)
    kind = dataset_class(made.place.root.name)
    root = home / made.place.root.name
    view = kind(made.name, root=root, download=False, selection=Selection(episodes=str(last), keys=(names[0],)))
    assert set(view.episodes["source"].tolist()) == {last}


class _Death(BaseException):
    """Simulates a kill; no handler in the code under test catches it."""


@ONE_OF_EACH_KIND
def test_committed_shards_are_not_fetched_again(made, home, monkeypatch):
    if len(made.contents.shards) < 2:
        pytest.skip("it is one shard")
    began, asked = Journal.append, []
    fetch = Fetcher.fetch

    def dies(self, entry):
        began(self, entry)
        raise _Death

    def watched(self, assets, cancel=None):
        asked.extend(asset.path for asset in assets)
        return fetch(self, assets, cancel)

    monkeypatch.setattr(Fetcher, "fetch", watched)
    monkeypatch.setattr(Journal, "append", dies)
    lives = []
    for _ in made.contents.shards[1:]:
        asked.clear()
        with pytest.raises(_Death):
            made.download(home)
        lives.append(list(asked))
    monkeypatch.setattr(Journal, "append", began)
    asked.clear()
    stored = made.download(home)

    assert content(stored.folder) == content(made.stored.folder)
    shards = made.contents.shards
    for life, committed in ((lives[1:], 1), ([list(asked)], len(shards) - 1)):
        done = {path for shard in shards[:committed] for path in shard.paths}
        needed = {path for shard in shards[committed:] for path in shard.paths} | set(made.contents.common)
        assert not set().union(*map(set, life)) & (done - needed)


def killed(made, tmp_path, **task):
    root = tmp_path / "home" / made.place.root.name
    plain = {
        "options": {},
        "keep": False,
        "random": 0,
        "kills": 0,
        "small": dict(made.case.small),
        "choices": made.case.options,
    }
    imports = [name for name in sys.modules if name.startswith(USED)]
    argument = json.dumps({"id": made.case.id, "root": str(root), "imports": imports, **plain, **task})
    done = subprocess.run([sys.executable, str(KILLER), argument], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert {life["folder"] for life in lives} <= {"whole", "absent"}
    assert all(life["folder"] == "whole" for life in lives if not life["died"] and life["event"] != "random")
    assert len({life["digest"] for life in lives if life["folder"] == "whole"}) == 1
    assert leftovers(root) == []
    assert content(root / made.name) == content(made.stored.folder)
    return sum(life["died"] for life in lives)


@FIRST_OF_EACH
def test_fields_known_before_the_download_are_those_that_are_stored(made, home):
    if not made.contents.keys:
        pytest.skip("the files tell")
    assert {*made.contents.keys} == {field.key for field in made.stored.schema} - {NEXT_DONE, EPISODE}
    with pytest.raises(UnknownKeyError):
        made.download(home, part={"keys": ("observatoin",)})
    assert not [
        path for path in home.rglob("*") if path.is_file() and path.name in {Path(one).name for one in made.paths}
    ]


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize(
    "made",
    [pytest.param(one, id=one.id) for one in FIRST if one.id.startswith("minari/")],
    indirect=True,
    scope="module",
)
def test_a_killed_download_is_resumed(made, tmp_path):
    assert killed(made, tmp_path, kills=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("made", [one for one in CASES if one.values[0] in FIRST], indirect=True, scope="module")
def test_a_download_that_is_killed_many_times_is_resumed(made, tmp_path):
    assert killed(made, tmp_path, kills=80, random=20) >= 10


@ONE_OF_EACH_KIND
def test_without_a_network_stored_data_opens_and_the_rest_is_an_error(made, home, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    kind = dataset_class(made.place.root.name)
    options = {"selection": made.selection} if made.case.options else {}

    assert len(kind(made.name, root=made.place.root, **options)) == len(made.stored)
    asset = made.contents.assets[0]
    if asset.urls and asset.urls[0].startswith("package:"):
        assert len(made.download(home)) == len(made.stored)
        return
    with pytest.raises(OfflineError):
        made.download(home)
    assert [*store.stored_folders(home)] == []
    root = home / made.place.root.name
    assert {path.name for path in leftovers(root) if (root / path).is_file()} <= {"journal.jsonl"}


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A case without a conversion."""
    settled(monkeypatch, tmp_path / "home")
    return tmp_path


@pytest.mark.first(4, of="case")
@pytest.mark.parametrize(("case", "fault"), FAULTS)
def test_corrupted_files_are_refused_and_nothing_is_stored(case, fault, written, alone, monkeypatch, rlds):
    shrunk(monkeypatch, case)
    tree = shutil.copytree(written(case)[0], alone / "tree")
    fault.corrupt(tree)

    options = [word for name, value in case.options.items() for word in (f"--{name}", value)]
    code, document, err = rlds("download", case.id, "--json", "--from-local", tree, *options)

    (told,) = document["datasets"]
    assert code in REFUSED, err
    assert issubclass(getattr(importlib.import_module("datasets_rl.errors"), told["error"]["kind"]), DatasetsRLError)
    assert fault.message in err
    assert told["folder"] is None
    assert [*store.stored_folders(alone / "home")] == []


MEASURED = """
import json, sys
from pathlib import Path
from datasets_rl import downloading, sources, store
from datasets_rl.build import engines
from datasets_rl.settings import Settings
import datasets_rl.build.conversion, datasets_rl.build.shards

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

name, tree, home, options, warm = json.loads(sys.argv[1])
selection = sources.Selection(options=options)
downloading.download(name, from_local=warm, settings=Settings(home=Path(home) / "warm", progress=False), selection=selection)
idle = peak()
downloading.download(name, from_local=tree, settings=Settings(home=Path(home), progress=False, jobs=1), selection=selection)
print(peak() - idle)
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY)
def test_memory_does_not_grow_with_the_dataset(case, alone):
    many, few = alone / "many", alone / "few"
    for folder, size in ((many, 300_000_000), (few, 100_000)):
        folder.mkdir()
        case.many(folder, size)
    task = [case.id, str(many), str(alone / "home"), dict(case.options), str(few)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(task)], capture_output=True, text=True, check=True
    )

    assert float(done.stdout) < 500
