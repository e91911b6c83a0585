"""The contract of sources, on the cases of tests/raw, and what shared code does with them."""

from __future__ import annotations

import glob
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from exports import equal_bits, export_stored, read_back
from oracles import comparison
from raw.case import cases_of_sources
from servers import serve
from stored_data import reseal

from datasets_rl import Selection, load, sources, store, verification
from datasets_rl.build.journal import Journal
from datasets_rl.cli.app import main
from datasets_rl.datasets import dataset_class
from datasets_rl.errors import (
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    NotADatasetError,
    OfflineError,
)
from datasets_rl.exporting import FORMATS, Content, plan_export
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import StepReader, describe, episode_rows
from datasets_rl.ted.keys import EPISODE, ROOT_FLAGS, dotted_name
from datasets_rl.testing import SourceContract
from datasets_rl.testing.contract import only
from datasets_rl.testing.sources import check_beginning, content, leftovers, of_shared_code, per_source

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


@pytest.fixture
def rlds(capsys):
    """A function that runs ``rlds`` in this process, and returns its exit code, its JSON document and stderr."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


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


def test_every_source_has_cases():
    # The files of hf and url have the layout of another source, or are stored datasets: tests/sources/test_addresses.py, tests/hub.
    missing = sorted({*sources.source_names()} - {"hf", "url"} - {name for name, _, _ in cases_of_sources()})

    assert not missing, (
        f"write {', '.join(f'tests/raw/{name}.py' for name in missing)} with a list CASES; see raw/case.py"
    )


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


@pytest.fixture
def unreachable(monkeypatch):
    """A proxy to which every request to any host goes, and which has none of the files."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serve({}) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        yield proxy


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


class _Death(BaseException):
    """Simulates a kill; no handler in the code under test catches it."""


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


ALL = {f"{name}{number}": case for name, number, case in cases_of_sources()}
FIRST = [*{case.source: case for case in reversed(ALL.values())}.values()]
KINDS = {
    "demo": "a file of the package",
    "d4rl": "one file, whose size the upstream does not state",
    "minari": "one file that is cut into shards, beside files that all of them need",
    "gen_dgrl": "compressed images, and fields that are known before the download",
    "openx": "shards of whole files, encoded images, and options",
}
"""Sources that differ in what the shared code of downloads, conversions and checks distinguishes."""
DEFAULT = {"source": FIRST, "shared": [case for case in FIRST if case.source in KINDS]}
"""The cases of the default run: for what each source does itself, and its cases do alike, the first case of each source; for
what the code shared by all sources does, one source of each kind."""


class TestSources(SourceContract):
    cases = ALL

    @classmethod
    def params(cls, test):
        default = DEFAULT.get(getattr(test, "scope", ""), [*ALL.values()])
        return [
            one if one.values[0] in default else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
            for one in super().params(test)
        ]

    @pytest.mark.first(2, of="case")
    def test_corrupted_files_are_refused_and_nothing_is_stored(self, case, fault, written, alone, monkeypatch):
        super().test_corrupted_files_are_refused_and_nothing_is_stored(case, fault, written, alone, monkeypatch)

    @pytest.mark.usefixtures("warm_python")
    @of_shared_code
    def test_the_command_converts_it(self, made, home, rlds, tmp_path):
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
    @of_shared_code
    def test_the_class_converts_it_to_the_same_with_two_processes(self, made, tmp_path, monkeypatch):
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
    @of_shared_code
    def test_its_export_is_read_back_bit_for_bit(self, made, to, tmp_path):
        back = read_back(made.stored, to, tmp_path)

        equal_bits(made.stored, back)

    @pytest.mark.slow
    @per_source
    def test_each_format_holds_it_or_names_a_reason(self, made, tmp_path):
        for to in FORMATS:
            plan = plan_export(Content(made.stored), to, tmp_path / to)
            if not plan.problems:
                assert export_stored(made.stored, to, tmp_path / to).exists()
        assert {"hdf5", "npz", "parquet", "torchrl"} <= {path.name for path in tmp_path.iterdir()}

    @per_source
    def test_a_dry_run_reports_the_bytes_of_the_download_and_writes_nothing(
        self, made, home, rlds, tmp_path, monkeypatch
    ):
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

    def test_its_values_are_those_that_the_oracle_reads(self, made):
        stored = made.stored
        files = comparison.raw_files_of(stored)

        assert comparison.compare(made.case.id, files, comparison.column_of(stored), stored.episodes) == []

    @of_shared_code
    def test_verify_converts_the_selected_part_again(self, made, tmp_path, rlds):
        """The files that are kept are not all files of the upstream, whose list is kept with them."""
        if not made.case.episodes or "episodes" not in sources.get_source(made.case.id.partition("/")[0]).selects:
            pytest.skip("episodes cannot be selected")
        stored = made.download(tmp_path / "home", keep_raw=True, part={"episodes": "1:"})

        code, document, _ = rlds("verify", stored.folder, "--deep", "--json")

        (told,) = document["datasets"]
        assert stored.episodes["source"].min() == 1
        assert (code, told["problems"]) == (0, [])
        assert told["checked"][-1].startswith("every converted value against")

    @of_shared_code
    def test_verify_finds_a_byte_that_was_changed(self, made, tmp_path, rlds):
        copy = shutil.copytree(made.stored.folder, tmp_path / "copy")
        place = copy / max(made.stored.manifest.files, key=lambda file: file.bytes).path
        data = bytearray(place.read_bytes())
        data[len(data) // 2] ^= 1
        place.write_bytes(data)

        code, document, _ = rlds("verify", copy, "--json")

        assert code == 5
        assert any(place.name in problem for problem in document["datasets"][0]["problems"])

    @of_shared_code
    def test_verify_finds_changed_metadata_of_an_episode_with_a_valid_digest(self, made):
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

    @of_shared_code
    def test_verify_finds_a_changed_final_state_with_a_valid_digest(self, made):
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

    @pytest.mark.usefixtures("home")
    @of_shared_code
    def test_a_dataset_that_is_not_downloaded_asks_no_network(self, made, unreachable, monkeypatch):
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

    def test_the_proxy_of_these_tests_sees_requests_to_any_host(self, unreachable, home, monkeypatch):
        monkeypatch.setenv("RLDS_MAX_RETRIES", "0")
        for dataset in ("d4rl/hopper-medium-v2", "hf/me/data"):
            with pytest.raises(FetchError):
                load(dataset, root=home)

        assert len(unreachable.requests) >= 2

    @of_shared_code
    def test_verify_finds_a_changed_value_with_a_valid_digest(self, made, rlds):
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
        text = rf"{re.escape(field.name)} at row {middle:,} is .*, but ({names}).* has .* \(1 such\)"
        problems = document["datasets"][0]["problems"]
        assert any(re.fullmatch(text, problem) for problem in problems), problems

    @of_shared_code
    def test_an_unknown_field_is_refused(self, made, home, rlds):
        code, document, err = rlds("download", made.case.id, "--json", "--keys", "no_such_field", *made.words)

        assert code == 2
        assert "no_such_field" in err
        assert document["datasets"][0]["folder"] is None
        assert [*store.stored_folders(home)] == []

    @of_shared_code
    def test_the_first_files_that_fit_are_selected(self, made, home):
        sizes = {file.path: file.bytes for file in made.stored.manifest.raw}
        unsized = None in {asset.size for asset in made.contents.assets}
        if not made.last or unsized:
            with pytest.raises(InvalidArgumentError, match="is not known" if unsized else "the first shard alone has"):
                made.download(home, part={"max_size": 1})
            return
        most = sum(sizes[path] for path in sizes if path not in made.last)

        less = made.download(home, part={"max_size": most})
        assert 0 < len(less) < len(made.stored)
        check_beginning(made.stored, less)

    @pytest.fixture(scope="class")
    @classmethod
    def downloaded_parts(cls, made, tmp_path_factory):
        """Every type of partial download: its selection, its home folder and its dataset; read-only."""
        homes = [(part, tmp_path_factory.mktemp("part")) for part in parts(made)]
        return [(part, home, made.download(home, part=part)) for part, home in homes]

    @of_shared_code
    def test_its_values_are_described_and_its_episodes_are_shown(self, made):
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

    @of_shared_code
    def test_every_type_of_part_opens_without_options_and_reports_its_selection(
        self, made, downloaded_parts, home, monkeypatch, rlds
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

    @of_shared_code
    def test_a_part_shows_a_smaller_selection_and_refuses_a_different_one(self, made, downloaded_parts):
        kind = dataset_class(made.place.root.name)
        for part, _, stored in downloaded_parts:
            root = stored.folder.parents[made.name.count("/") + 1]
            selection = Selection.from_json(stored.manifest.selection)

            assert len(kind(made.name, root=root, selection=selection, download=False)) == len(stored)
            less = kind(
                made.name,
                root=root,
                selection=Selection(keys=("next.reward",)).completed_from(selection),
                download=False,
            )
            fields = less.storage.keys()
            assert {key for key in fields if key[0] != "next"} <= {*ROOT_FLAGS, EPISODE, ("X",), ("y",)}
            if "images" in part.get("options", {}):
                asked = Selection(options={"images": "compressed"})
                with pytest.raises(
                    InvalidArgumentError, match=r"was downloaded with images=.*: images=.* was requested"
                ):
                    kind(made.name, root=root, selection=asked)
                continue
            more = {
                "keys": ("no_such_field",),
                "episodes": ":",
                "exclude": ("nothing",),
                "options": {"checkpoints": "0:9"},
            }
            ((name, _),) = part.items()
            with pytest.raises(InvalidArgumentError, match=r"holds .*: .* was requested"):
                kind(made.name, root=root, selection=Selection(**{name: more[name]}), download=False)

    @of_shared_code
    def test_a_download_without_options_completes_a_part(self, made, downloaded_parts, home, rlds, monkeypatch):
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
                with pytest.raises(IntegrityError, match="another version replaced the opened version"):
                    shown[0]  # videos are opened when frames are read
            else:
                assert torch.equal(shown[0]["next", "reward"], first)  # an open buffer continues to read the old part
            code, document, err = rlds("download", made.case.id, "--json")
            assert (code, document["datasets"][0]["present"]) == (0, True)

    @of_shared_code
    def test_other_episodes_and_fields_are_added_to_a_part(self, made, home):
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

    @of_shared_code
    def test_committed_shards_are_not_fetched_again(self, made, home, monkeypatch):
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

    @pytest.mark.usefixtures("warm_python")
    @only(lambda case: case in FIRST and case.source == "minari")
    def test_a_killed_download_is_resumed(self, made, tmp_path):
        assert killed(made, tmp_path, kills=1) == 1

    @pytest.mark.slow
    @only(lambda case: case in FIRST)
    def test_a_download_that_is_killed_many_times_is_resumed(self, made, tmp_path):
        assert killed(made, tmp_path, kills=80, random=20) >= 10

    @of_shared_code
    def test_without_a_network_stored_data_opens_and_the_rest_is_an_error(self, made, home, monkeypatch):
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

    @pytest.mark.slow
    @only(lambda case: case.many is not None)
    def test_memory_does_not_grow_with_the_dataset(self, case, alone):
        many, few = alone / "many", alone / "few"
        for folder, size in ((many, 300_000_000), (few, 100_000)):
            folder.mkdir()
            case.many(folder, size)
        task = [case.id, str(many), str(alone / "home"), dict(case.options), str(few)]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, json.dumps(task)], capture_output=True, text=True, check=True
        )

        assert float(done.stdout) < 500
