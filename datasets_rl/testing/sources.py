"""The contract of sources: each upstream gives a strict dataset, or a documented error."""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from datasets_rl import downloading, sources, store, verification
from datasets_rl.build import engines
from datasets_rl.build.engines import Engine
from datasets_rl.downloading import planning
from datasets_rl.downloading.target import DownloadOptions, Target
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, UnknownKeyError
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.format.check import check_rules
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.base import Listing, Selection
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key, dotted_name
from datasets_rl.testing.contract import Contract, listed, refusal

__all__ = ["Made", "SourceCase", "SourceContract", "SourceFault"]

_Test = TypeVar("_Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class SourceFault:
    """A corruption of the raw files that a conversion must reject."""

    corrupt: Callable[[Path], object]
    """Corrupts the raw files that `SourceCase.write` wrote to this folder."""
    message: str
    """Text that the error message contains."""


@dataclass(frozen=True)
class SourceCase:
    """A small dataset: raw files, a server of these files, and the episodes that the conversion must store."""

    id: str
    """The id with the name of the source: ``vd4rl/main/walker_walk/expert/64px``."""
    write: Callable[[Path], Sequence[Episode]]
    """Writes the raw files in the upstream's layout, as `from_local` expects files, and returns the episodes that
    the conversion must store, in order. The episodes are complete, have a known final state where the upstream has
    one, and are built from the generated data, not read from the files. The bytes are always the same. A source with
    shards gets at least two."""
    served: Callable[[Path], AbstractContextManager[Mapping[str, str]]] | None = None
    """Serves the raw files on loopback like the upstream, and yields the environment variables that select the server. By
    default, the files are read in place."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source, for example ``{"images": "encoded"}``."""
    faults: Mapping[str, SourceFault] = field(default_factory=dict)
    """Corruptions that the source must reject, by description: "a row with another number of fields"."""
    many: Callable[[Path, int], object] | None = None
    """Writes raw files of about this many bytes under the same id, to measure memory and speed."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Expected fields of the manifest: ``{"license": "MIT"}``."""
    episodes: bool = True
    """Whether a selection can choose episodes of this dataset before the download, if the source can select."""
    small: Mapping[str, int] = field(default_factory=dict)
    """Constants by dotted name that are lowered so that the dataset has several shards:
    ``{"datasets_rl.sources.minari._SHARD_BYTES": 10_000}``."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which the dataset class returns the stored values unchanged: ``{"totensor": False}``."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """Tolerances by dotted key, for values that are stored with a loss, such as JPEG images."""

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Made:
    """A case, with raw files that were written, served, and converted once."""

    case: SourceCase
    tree: Path
    golden: Sequence[Episode]
    stored: StoredDataset
    """The dataset that a single process converted. The raw files of the dataset were kept."""
    place: store.DatasetPaths
    contents: Listing

    @property
    def name(self) -> str:
        """The id within the source."""
        return self.case.id.partition("/")[2]

    @property
    def selection(self) -> Selection:
        """The selection of the options of the case."""
        return Selection(options=self.case.options)

    @property
    def words(self) -> list[str]:
        """The command-line options of the case."""
        return [word for name, value in self.case.options.items() for word in (f"--{name}", value)]

    def download(self, home: Path, *, jobs: int = 1, **options: Any) -> StoredDataset:
        """Download the case into another home folder. `part` has the fields of a selection."""
        settings = replace(Settings.from_env(), home=home, jobs=jobs)
        selection = replace(self.selection, **options.pop("part", {}))
        if self.case.served is None:
            options.setdefault("from_local", self.tree)
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

    @property
    def selects_episodes(self) -> bool:
        """Whether episodes can be selected before the download."""
        return self.case.episodes and "episodes" in sources.get_source(self.case.source).selects


def settle(environment: pytest.MonkeyPatch, home: Path, more: Mapping[str, str] = {}) -> None:
    """Set these environment variables, and remove all others of the library."""
    for name in [name for name in os.environ if name.startswith(("RLDS_", "HF_", "MINARI_"))]:
        environment.delenv(name)
    settings = {"RLDS_HOME": str(home), "RLDS_JOBS": "1", "RLDS_MAX_RETRIES": "0", "RLDS_NO_PROGRESS": "1"}
    for name, value in {"NO_PROXY": "*", **settings, **more}.items():
        environment.setenv(name, value)


def shrink(environment: pytest.MonkeyPatch, case: SourceCase) -> None:
    """Lower the shard size of the case, and the amount of work from which processes are used."""
    for name, value in case.small.items():
        environment.setattr(name, value)
    environment.setattr(engines, "MIN_PARALLEL_BYTES", 0)
    environment.setattr("os.cpu_count", lambda: 4)
    # A case is far smaller than the size that the catalog states.
    environment.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))


def content(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the digest of every file of a dataset, and its manifest without the digest of the manifest."""
    folder = store.version_folder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]  # the digest depends on the order of the lists
    manifest["raw"].sort(key=lambda one: one["path"])
    manifest["decisions"].sort(key=lambda one: one["rule"])
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    return {path.relative_to(folder).as_posix(): digest_file(path).hexdigest() for path in files}, manifest


def leftovers(root: Path) -> list[Path]:
    """Return the files in a source's folder that are not part of a finished dataset."""
    entries = [path for paths in store.dataset_places(root) for path in paths.entries()]
    unfinished = [path for path in entries if path.name.startswith(("build-", "raw", "trash-"))]
    return sorted(path.relative_to(root) for folder in unfinished for path in folder.rglob("*"))


def texts_of(stored: StoredDataset, key: Key) -> NDArray[Any]:
    """Return a column, with text as strings."""
    values = stored.column(key)
    return np.array(stored.texts(key))[values] if stored.schema[key].text else values


class Nodes(contextlib.nullcontext[None]):
    """An engine like a cluster of one node: tasks and results are JSON, and tasks run at submission."""

    max_in_flight = 3

    def submit(self, make: Any, task: Any, report: Any) -> Callable[[], Any]:
        """Run a task, and return a function that returns the result."""
        result = json.dumps(make(json.loads(json.dumps(task)), report))
        return lambda: json.loads(result)


def per_source(test: _Test) -> _Test:
    """Mark a test of behavior that all cases of a source share."""
    test.scope = "source"  # type: ignore[attr-defined]  # read by the suite of the sources of this package
    return test


def of_shared_code(test: _Test) -> _Test:
    """Mark a test of what the code that all sources share does with the listing and the reader of a source."""
    test.scope = "shared"  # type: ignore[attr-defined]  # the same
    return test


def rows_of(values: Any, start: int, stop: int) -> Any:
    """Return rows of a field of an episode."""
    if isinstance(values, TextStates):
        return TextStates(values.codes[start:stop], values.vocabulary)
    if isinstance(values, EncodedImages):
        return EncodedImages(values.images[start:stop])
    return values[start:stop]


def following(values: Any, steps: int) -> Any:
    """Return the values after each step, or zeros or an empty string where the last value is unknown."""
    if len(values) > steps:
        return rows_of(values, 1, steps + 1)
    if isinstance(values, TextStates):
        return TextStates(np.append(values.codes[1:], len(values.vocabulary)), (*values.vocabulary, ""))
    rest = pixels_of(rows_of(values, 1, steps)) if steps > 1 else pixels_of(rows_of(values, 0, 1))[:0]
    return np.concatenate([rest, np.zeros((1, *pixels_of(rows_of(values, 0, 1)).shape[1:]), rest.dtype)])


def pixels_of(values: Any) -> NDArray[Any]:
    """Return encoded images as pixels, decoded by pillow, and other values as an array."""
    if not isinstance(values, EncodedImages):
        return np.asarray(values)
    from PIL import Image

    decoded = [np.asarray(Image.open(io.BytesIO(bytes(one)))) for one in values.images]
    return np.stack([one if one.ndim == 3 else one[..., None] for one in decoded])


def check_values(made: Made, key: Key, start: int, stop: int, values: Any) -> None:
    """Compare stored rows of a field with the values of an episode."""
    name = f"{dotted_name(key)} of the steps {start} to {stop - 1}"
    found = made.stored.column(key, start, stop)
    if isinstance(values, TextStates):
        texts = made.stored.texts(key)
        read, written = [texts[number] for number in found], [values.vocabulary[code] for code in values.codes]
        assert read == written, f"{name} is {read}. The case wrote {written}"
        return
    expected = pixels_of(values)
    lossy = made.case.lossy
    off = lossy.get(dotted_name(key), lossy.get(dotted_name(key[1:]), 0) if key[0] == "next" else 0)
    assert found.shape == expected.shape, f"{name} has the shape {found.shape}. The case wrote {expected.shape}"
    assert found.dtype.kind == expected.dtype.kind, f"{name} is {found.dtype}. The case wrote {expected.dtype}"
    if off:
        most = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
        assert most <= off, f"{name} is off by up to {most}. The case allows {off}"
        return
    wrong = found != expected
    if expected.dtype.kind == "f":
        wrong &= ~(np.isnan(found) & np.isnan(expected))
    rows = np.flatnonzero(wrong.reshape(len(expected), -1).any(1))
    assert not len(rows), (
        f"{dotted_name(key)} of step {start + rows[0]} is {found[rows[0]]}. The case wrote {expected[rows[0]]}: correct the"
        " reader, or the episodes that the case returns"
    )


class SourceContract(Contract):
    """What every source must do. A subclass has `cases`, each with raw files in the layout of the upstream and their episodes."""

    cases: ClassVar[dict[str, SourceCase]] = {}
    example = 'cases = {"reach": SourceCase("arm/reach", write)}'

    @classmethod
    def fault_params(cls) -> Sequence[Any]:
        """Return the faults of all cases, each as a `pytest.param` of a case and a fault."""
        return [
            pytest.param(case, fault, id=f"{name}-{description.replace(' ', '_')}")
            for name, case in cls.cases.items()
            for description, fault in case.faults.items()
        ]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test with the cases, or with the faults of the cases. Pytest calls this for each test of the class."""
        if "fault" in metafunc.fixturenames:
            metafunc.parametrize(("case", "fault"), self.fault_params(), scope="class")
        else:
            super().pytest_generate_tests(metafunc)

    @pytest.fixture(scope="class")
    @classmethod
    def written(
        cls, tmp_path_factory: pytest.TempPathFactory
    ) -> Callable[[SourceCase], tuple[Path, Sequence[Episode]]]:
        """A function that writes the raw files of a case, once, and returns the folder and the episodes."""

        @functools.cache
        def write(number: int) -> tuple[Path, Sequence[Episode]]:
            folder = tmp_path_factory.mktemp("tree")
            return folder, known[number].write(folder)

        known = list(cls.cases.values())
        return lambda case: write(known.index(case))

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, case: SourceCase, tmp_path_factory: pytest.TempPathFactory, written: Any) -> Iterator[Made]:
        """The case, converted once."""
        home = tmp_path_factory.mktemp("home")
        tree, golden = written(case)
        served = contextlib.nullcontext({}) if case.served is None else case.served(tree)
        local = tree if case.served is None else None
        with pytest.MonkeyPatch.context() as environment, served as variables:
            assert isinstance(variables, Mapping), (
                f"served of the case {case.id} yields {type(variables).__name__}. Yield the environment variables that select the"
                ' server as a dict, such as {"RLDS_MIRRORS": "arm=http://127.0.0.1:8000"}'
            )
            settle(environment, home, variables)
            shrink(environment, case)
            place = store.dataset_paths(case.id)
            selection = Selection(options=case.options)
            folder = downloading.download(case.id, selection=selection, keep_raw=True, from_local=local)
            target = Target.find(case.id, DownloadOptions(selection=selection, from_local=local))
            aside = tmp_path_factory.mktemp("aside")
            request = planning.DownloadRequest(target, selection, place.raw, aside / "none")
            contents = planning.find_files(request, aside=aside)
            yield Made(case, tree, golden, StoredDataset(folder), place, contents)

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An empty home folder."""
        monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
        return tmp_path / "home"

    @pytest.fixture
    def alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder and an environment for a case that is not converted yet."""
        settle(monkeypatch, tmp_path / "home")
        return tmp_path

    def test_it_is_strict_ted_and_has_the_generated_values(self, made: Made) -> None:
        stored, table = made.stored, made.stored.episodes
        problems = check_rules(stored.schema, table, stored.column).problems

        assert not problems, f"the stored dataset breaks rules of TED: {'; '.join(problems)}"
        lengths = [len(one) for one in made.golden]
        assert table.lengths.tolist() == lengths, (
            f"the episodes have {table.lengths.tolist()} steps. The case wrote {lengths}"
        )
        known = [one.final_known for one in made.golden]
        assert table["final_known"].tolist() == known, (
            f"final_known is {table['final_known'].tolist()}. The case wrote {known}: give T + 1 states where the last state is"
            " known, and T where the last state is unknown"
        )
        assert stored.manifest.steps == len(stored) == sum(lengths), "the manifest has another number of steps"
        assert stored.manifest.final_unknown == known.count(False), (
            "the manifest has another number of unknown final states"
        )
        expected = {*made.golden[0].steps, *made.golden[0].states, ("next", "done"), ("episode",)}
        fields = {stored_field.key for stored_field in stored.schema}
        assert fields == expected, f"the stored fields and the fields of the case differ in {listed(fields ^ expected)}"
        for name in made.golden[0].metadata:
            metadata = [np.asarray(one.metadata[name]).item() for one in made.golden]
            assert table[name].tolist() == metadata, (
                f"the metadata {name} is {table[name].tolist()}. The case wrote {metadata}"
            )
        for row, (start, one) in enumerate(zip(table.starts.tolist(), made.golden, strict=True)):
            self.check_episode(made, row, start, one)

    def check_episode(self, made: Made, row: int, start: int, one: Episode) -> None:
        """Compare the stored rows of an episode with the episode of the case."""
        stored, stop = made.stored, start + len(one)
        for key, values in one.steps.items():
            check_values(made, key, start, stop, values)
        for key, values in one.states.items():
            check_values(made, key, start, stop, rows_of(values, 0, len(one)))
            check_values(made, ("next", *key), start, stop, following(values, len(one)))
        ends = np.arange(len(one)) == len(one) - 1
        assert np.array_equal(stored.column(("next", "done"), start, stop)[:, 0], ends), (
            f"next.done of episode {row} is not True in the last step only. Set terminated or truncated there"
        )
        assert bool((stored.column(("episode",), start, stop) == row).all()), (
            f"the steps of episode {row} have another number"
        )
        reward = np.asarray(one.steps["next", "reward"], np.float64).sum()
        found = stored.episodes["return"][row]
        assert np.isclose(found, reward, equal_nan=True, atol=1e-3, rtol=1e-5), (
            f"the return of episode {row} is {found}. The rewards of the case sum to {reward}"
        )

    def test_the_manifest_records_the_raw_files(self, made: Made) -> None:
        manifest = made.stored.manifest

        assert manifest.id == made.case.id, f"the id of the manifest is {manifest.id}"
        if sources.get_source(made.case.source).ids():  # the files of a user need not state what they are
            assert manifest.license, "the manifest has no license. State `license` in the catalog"
            assert manifest.citation or manifest.homepage, "the manifest has no origin. State `homepage` in the catalog"
        assert manifest.raw, "the manifest names no raw files. Return these files as `assets` of the listing"
        for file in manifest.raw:
            assert len(file.sha256) == 64, f"the digest of {file.path} is {file.sha256!r}, expected a SHA-256"
            assert file.bytes > 0, f"{file.path} has {file.bytes} bytes"
            assert ":" in file.url, f"{file.path} comes from {file.url!r}, expected an address"
        paths = [file.path for file in manifest.raw]
        assert len({*paths}) == len(paths), f"the manifest names a raw file more than once: {paths}"
        for name, value in made.case.manifest.items():
            found = getattr(manifest, name)
            assert found == value, f"{name} of the manifest is {found!r}. The case expects {value!r}"

    @per_source
    def test_its_entry_says_what_the_dataset_is(self, case: SourceCase) -> None:
        """An id that the catalog does not list, as of a file of the user, has no entry before the download."""
        entry = sources.find(case.id)
        if entry.name not in sources.get_source(case.source).ids():
            return
        stated = {"title": entry.title, "description": entry.description, "license": entry.license}
        missing = [name for name, value in stated.items() if not value]

        assert not missing, (
            f"the entry of {case.id} has no {' and no '.join(missing)}. State these in catalog.json, for all ids in `defaults`"
        )

    @of_shared_code
    def test_a_deep_verification_converts_it_to_the_same(self, made: Made) -> None:
        result = verification.verify(made.stored.folder, deep=True)

        assert not result.problems, (
            f"a second conversion of the same files differs: {'; '.join(result.problems)}. Decide nothing by time, chance, or"
            " the order of a set"
        )

    @of_shared_code
    def test_a_cluster_that_writes_each_shard_separately_makes_the_same(self, made: Made, home: Path) -> None:
        engine: Engine = Nodes()  # type: ignore[assignment]  # what the conversion calls of an engine
        again = made.download(home, engine=engine)
        differ = [
            name
            for one, other in zip(content(again.folder), content(made.stored.folder), strict=True)
            for name in one | other
            if one.get(name) != other.get(name)
        ]

        assert not differ, (
            f"{listed(differ)} differs if each shard is converted separately, from JSON. Let `part` of a shard and `params`"
            " of the listing be JSON values, and read nothing of another shard"
        )
        assert leftovers(home / made.case.source) == [], "the conversion leaves temporary files"

    @per_source
    def test_only_selected_fields_are_stored(self, made: Made, home: Path) -> None:
        names = sorted({dotted_name(key) for key in made.golden[0].steps if key[0] != "next"} or {"observation"})
        kept = made.download(home, part={"keys": (names[0],)})
        expected = {names[0], "next.reward", "next.terminated", "next.truncated", "next.done", "episode"}
        found = {stored_field.name for stored_field in kept.schema}

        assert found == expected, f"with keys={names[0]}, {listed(found)} are stored, expected {listed(expected)}"
        for name in (names[0], "next.reward", "next.done"):
            key = tuple(name.split("."))
            is_equal = np.array_equal(
                texts_of(kept, key), texts_of(made.stored, key), equal_nan=kept.column(key).dtype.kind == "f"
            )
            assert is_equal, (
                f"{name} has other values if only {names[0]} is selected. Read a field alike with any `keys`"
            )

    @of_shared_code
    def test_files_are_selected_by_globs(self, made: Made, home: Path) -> None:
        if not made.last:
            with refusal(
                InvalidArgumentError, "include and exclude match none", "a selection without files must be refused"
            ):
                made.download(home, part={"include": ("*.no-such-file",)})
            return
        patterns = tuple(glob.escape(path) for path in sorted(made.last))
        less = made.download(home / "exclude", part={"exclude": patterns})

        assert 0 < len(less) < len(made.stored), (
            f"without the files of the last shard, {len(less)} of {len(made.stored)} steps are stored. Give each shard the"
            " paths that the file is read from"
        )
        check_beginning(made.stored, less)
        others = tuple(glob.escape(path) for path in made.paths - made.last)
        rest = made.download(home / "include", part={"include": others})
        assert content(rest.folder)[0] == content(less.folder)[0], (
            "include and exclude of the same files store other values"
        )

    @per_source
    def test_episodes_are_selected_before_the_download(self, made: Made, home: Path) -> None:
        if not made.selects_episodes:
            with refusal(InvalidArgumentError, "episodes", "a selection of episodes must be refused without `selects`"):
                made.download(home, part={"episodes": "0:1"})
            return
        numbers = made.stored.episodes["source"]
        first = int(numbers[0])
        less = made.download(home, part={"episodes": str(first)})
        rows = np.repeat(numbers == first, made.stored.episodes.lengths)

        assert 0 < len(less) == rows.sum(), (
            f"of episodes={first}, {len(less)} steps are stored, expected {rows.sum()}: yield only the selected episodes, or"
            " state the numbers in the listing"
        )
        assert set(less.episodes["source"].tolist()) == {first}, (
            f"of episodes={first}, the numbers {less.episodes['source'].tolist()} are stored. Give each episode the number"
            " upstream as metadata['source']"
        )
        assert np.array_equal(less.column(("next", "reward")), made.stored.column(("next", "reward"))[rows]), (
            f"episode {first} has other rewards if the selection has no other episode"
        )

    @per_source
    def test_fields_known_before_the_download_are_those_that_are_stored(self, made: Made, home: Path) -> None:
        if not made.contents.keys:
            return  # the files tell
        stated = {*made.contents.keys}
        found = {stored_field.key for stored_field in made.stored.schema} - {NEXT_DONE, EPISODE}

        assert stated == found, f"`keys` of the listing and the stored fields differ in {listed(stated ^ found)}"
        with refusal(UnknownKeyError, "observatoin", "an unknown field must be refused before the download"):
            made.download(home, part={"keys": ("observatoin",)})
        names = {Path(one).name for one in made.paths}
        fetched = [path.name for path in home.rglob("*") if path.is_file() and path.name in names]
        assert not fetched, f"{listed(fetched)} are fetched although the selection names an unknown field"

    def test_corrupted_files_are_refused_and_nothing_is_stored(
        self, case: SourceCase, fault: SourceFault, written: Any, alone: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shrink(monkeypatch, case)
        tree = shutil.copytree(written(case)[0], alone / "tree")
        fault.corrupt(tree)

        with refusal(
            DatasetsRLError,
            re.escape(fault.message),
            "the corrupted files must raise a ConversionError that names the file and all problems",
        ):
            downloading.download(case.id, from_local=tree, selection=Selection(options=case.options))
        assert [*store.stored_folders(alone / "home")] == [], "a dataset is stored of the corrupted files"


def check_beginning(stored: StoredDataset, less: StoredDataset) -> None:
    """Check that the steps of a part are the first steps of the whole dataset."""
    rewards = less.column(("next", "reward")), stored.column(("next", "reward"), 0, len(less))
    assert np.array_equal(*rewards), (
        "without the last shard, other steps are stored. List the shards in the order of the rows"
    )
    lengths = less.episodes.lengths[:-1], stored.episodes.lengths[: len(less.episodes) - 1]
    assert np.array_equal(*lengths), "without the last shard, the episodes have other lengths"
