"""Conversion of several shards: in order, in bounded space, with the same result for any engine and interruption."""

from __future__ import annotations

import contextlib
import json
import os
import threading

import numpy as np
import pytest
from raw.minari import SPACES, episodes, write
from upstreams import hub

from datasets_rl import Selection, downloading, verification
from datasets_rl.build import engines
from datasets_rl.build import partial as part
from datasets_rl.build.engines import WorkerDiedError
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.partial import prepare_partials
from datasets_rl.errors import ConversionError, InvalidArgumentError, LibraryError
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.parallel import Limiter
from datasets_rl.fetch.partial_download import digest_file
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.progress import Report
from datasets_rl.settings import Settings
from datasets_rl.sources import minari
from datasets_rl.store import version_folder

NAME = "test/things/drawn-v3"
ID = f"minari/{NAME}"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A dataset of 20 episodes with text, one table per episode."""
    root = tmp_path_factory.mktemp("raw")
    dice = np.random.default_rng(1)
    lengths = dice.integers(1, 9, 20).tolist()
    write(root, NAME, episodes(SPACES["text"], lengths, seeds=range(20)), space=SPACES["text"], data_format="parquet")
    return root


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(minari, "_SHARD_BYTES", 10_000)
    monkeypatch.setattr(engines, "MIN_PARALLEL_BYTES", 0)
    monkeypatch.setattr(engines.os, "cpu_count", lambda: 4)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("MINARI_REMOTE", raising=False)


@pytest.fixture
def get(raw, tmp_path):
    def run(place="home", *, jobs=1, **options):
        settings = Settings(home=tmp_path / place, jobs=jobs, progress=False, retries=0)
        return downloading.download(ID, **{"from_local": raw, **options}, settings=settings)

    return run


def content(folder):
    """Return the digest of every file, and the manifest without the fields that depend on the run."""
    folder = version_folder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for one in manifest["raw"]:
        del one["url"], one["etag"], one["checked"]
    manifest.pop("revision", None)
    del manifest["digest"]
    return {
        path.name: digest_file(path).hexdigest() for path in folder.glob("*") if path.name != "manifest.json"
    }, manifest


class _Death(BaseException):
    """Simulates a kill; no handler in the code under test catches it."""


@pytest.fixture
def dies_at(monkeypatch):
    """A function that raises `_Death` when shard number n, from 1, is opened; returns the files that were opened."""

    def run(number):
        pieces, read = minari.Minari.open, []

        def dies(self, name, files, facts=None):
            read.append(sorted(files))
            if len(read) == number:
                raise _Death
            return pieces(self, name, files, facts)

        monkeypatch.setattr(minari.Minari, "open", dies)
        return read

    return run


@pytest.mark.usefixtures("warm_python")
def test_the_result_does_not_depend_on_the_engine(get):
    one, several = get("one"), get("several", jobs=3)

    assert content(one) == content(several)
    assert len(StoredDataset(one)) > 20


def test_a_killed_conversion_resumes_after_the_last_shard(get, monkeypatch):
    whole = content(get("whole"))
    read, life = [], []
    pieces = minari.Minari.open

    def watched(self, name, files, facts=None):
        if len(life) and len(read) - life[-1] == 3:
            raise _Death
        read.append(sorted(files))
        return pieces(self, name, files, facts)

    monkeypatch.setattr(minari.Minari, "open", watched)
    for _ in range(20):
        life.append(len(read))
        try:
            folder = get()
        except _Death:
            continue
        break

    assert len(life) >= 3
    assert content(folder) == whole
    shards = [tuple(files) for files in read]
    assert len(set(shards)) == len(shards)


def test_a_truncated_line_of_the_journal_is_written_again(get, dies_at, tmp_path):
    whole = content(get("whole"))
    dies_at(4)
    with pytest.raises(_Death):
        get()
    journal = next((tmp_path / "home" / "minari" / NAME).glob("build-*")) / "journal.jsonl"
    text = journal.read_text()
    journal.write_text(text[: len(text) - 30])

    assert content(get()) == whole
    assert len(text.splitlines()) == 4


def test_a_journal_without_its_rows_is_ignored(get, dies_at, tmp_path):
    whole = content(get("whole"))
    dies_at(3)
    with pytest.raises(_Death):
        get()
    build = next((tmp_path / "home" / "minari" / NAME).glob("build-*"))
    (build / "version" / "rows.npy").write_bytes(b"")

    assert content(get()) == whole


def test_user_files_that_changed_between_runs_are_read_again(get, raw, dies_at):
    whole = content(get("whole"))
    read = dies_at(4)
    with pytest.raises(_Death):
        get()
    first = next(path for path in raw.rglob("*.parquet") if path.name in str(read[0]))
    os.utime(first, (1, 1))
    assert content(get()) == whole

    assert read[4] == read[0]


def test_another_selection_does_not_resume_an_unfinished_conversion(get, dies_at):
    dies_at(3)
    with pytest.raises(_Death):
        get()

    stored = StoredDataset(get(selection=Selection(episodes="5:9")))
    assert stored.episodes["source"].tolist() == [5, 6, 7, 8]


@pytest.mark.usefixtures("warm_python")
def test_an_error_of_another_process_has_the_same_message(raw, get, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(raw, copy)
    (copy / NAME / "data" / "17" / "metadata.json").write_text('{"total_steps": 99}')
    told = []
    for jobs in (1, 3):
        with pytest.raises(ConversionError, match=r"episode 17: it has . steps, but the metadata states 99") as caught:
            get(f"home{jobs}", jobs=jobs, from_local=copy)
        told.append(caught.value.problems)

    assert told[0] == told[1]


class Here(contextlib.nullcontext):
    """Runs tasks in this process at submission; the task with number `fatal` raises an error."""

    max_in_flight = 3

    def __init__(self, fatal=-1, error=None):
        super().__init__(self)
        self._fatal, self._error, self._begun = fatal, error, 0

    def submit(self, make, task, report):
        said = make(task, report)
        self._begun += 1
        return self._fails if self._begun == self._fatal else lambda: said

    def _fails(self):
        raise self._error


def test_a_process_that_dies_is_reported(get):
    with pytest.raises(ConversionError, match="the process that read its files ended with -9"):
        get(engine=Here(3, WorkerDiedError("ended with -9")))


def test_a_failed_shard_is_read_again_so_that_its_error_has_the_numbers_of_the_dataset(get):
    assert content(get("here", engine=Here(3, ConversionError(ID, ["row 2 of the part"])))) == content(get())


@pytest.mark.usefixtures("warm_python")
def test_progress_counts_every_step_once(get, dies_at, monkeypatch):
    class Counting(Report):
        def __init__(self):
            self.steps = 0

        def __call__(self, units):
            self.steps += units

    counts = []

    @contextlib.contextmanager
    def counted(*_, unit="B", **__):
        count = Counting()
        counts.extend([count] if unit == " steps" else [])
        yield count

    monkeypatch.setattr(downloading.run, "report", counted)
    steps = len(StoredDataset(get()))
    get("parts", engine=Here())
    get("failed", engine=Here(3, ConversionError(ID, ["row 2"])))
    get("several", jobs=3)
    assert [one.steps for one in counts] == [steps] * 4

    dies_at(4)
    with pytest.raises(_Death):
        get("resumed")
    get("resumed", engine=Here())
    assert counts[-1].steps == steps


@pytest.mark.usefixtures("warm_python")
def test_few_partials_exist_at_once_and_none_remains(get, tmp_path, monkeypatch):
    append_partial, there = DatasetWriter.append_partial, []

    def watched(self, folder, commit):
        there.append(len([*folder.parent.iterdir()]))
        append_partial(self, folder, commit)

    monkeypatch.setattr(DatasetWriter, "append_partial", watched)
    get(jobs=3)

    assert len(there) > 8
    assert max(there) <= LocalEngine(3).max_in_flight
    assert [*tmp_path.rglob("partials")] == []


def test_partials_are_reused_and_those_of_another_conversion_are_deleted(tmp_path):
    made = prepare_partials(tmp_path / "parts", "one")
    (made / "000000").mkdir()
    (made / ".000001.begun").mkdir()

    assert prepare_partials(tmp_path / "parts", "one") == made
    assert [path.name for path in made.iterdir()] == ["000000"]
    other = prepare_partials(tmp_path / "parts", "two")
    assert [*(tmp_path / "parts").iterdir()] == [other]
    assert [*other.iterdir()] == []


def test_partials_are_discarded_after_a_crash_of_the_machine(tmp_path, monkeypatch):
    boot = tmp_path / "boot"
    monkeypatch.setattr(part, "_BOOT", boot)
    made = []
    for one in ("first", "first", "second"):
        boot.write_text(one)
        made.append(prepare_partials(tmp_path / "parts", "key"))
    boot.unlink()
    made += [prepare_partials(tmp_path / "parts", "key") for _ in range(2)]

    assert made[0] == made[1]
    assert len(set(made)) == 4


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, 3])
def test_raw_files_are_deleted_when_their_rows_are_stored_and_never_exist_all_at_once(
    raw, get, tmp_path, monkeypatch, jobs
):
    seen = []
    place = tmp_path / "home" / "minari" / NAME
    drop = Fetcher.drop

    def watched(*arguments):
        seen.append(len([*place.rglob("*.parquet")]))
        drop(*arguments)

    monkeypatch.setattr(Fetcher, "drop", watched)
    with hub({"farama-minari/test": raw / "test"}, page=100) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        folder = get(from_local=None, jobs=jobs)

    sizes = [path.stat().st_size for path in (raw / NAME).rglob("*.parquet")]
    assert len(sizes) == 20
    assert max(seen) < 20
    assert [*place.rglob("*.parquet")] == []
    assert content(folder) == content(get("local"))


def test_all_shards_share_one_rate_limit(raw, get, monkeypatch):
    taken = []
    monkeypatch.setattr(Limiter, "delay", lambda self, size: taken.append((id(self), size)) or 0.0)
    with hub({"farama-minari/test": raw / "test"}, page=100) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        get(from_local=None, limit_rate=10**9)

    tables = sum(path.stat().st_size for path in (raw / NAME).rglob("*.parquet"))
    shared = [sum(size for one, size in taken if one == limiter) for limiter in {one for one, _ in taken}]
    assert max(shared) >= tables


def test_raw_files_are_kept_on_request_and_compared(raw, get, tmp_path, monkeypatch):
    with hub({"farama-minari/test": raw / "test"}, page=100) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        folder = get(from_local=None, keep_raw=True)

    assert len([*(tmp_path / "home" / "minari" / NAME / "raw").rglob("*.parquet")]) == 20
    report = verification.verify(folder, deep=True)
    assert report.problems == ()
    assert "every converted value against" in report.checked[-1]


def test_an_interrupted_download_keeps_its_revision(raw, get, dies_at, monkeypatch):
    dies_at(3)
    with hub({"farama-minari/test": raw / "test"}, page=100) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(_Death):
            get(from_local=None)
        (repository,) = server.paths.values()
        lists = sum("/api/" in request.path for request in server.requests)
        # The branch has a new commit; the old one still exists.
        original = repository.answer

        def answer(call):
            assert "/api/" not in call.path
            original(call)

        repository.answer = answer
        stored = StoredDataset(get(from_local=None))

    assert lists == 2
    assert stored.manifest.revision == repository.commit


def test_sizes_and_globs_select_files(raw, get):
    folder = raw / NAME / "data"
    sizes = [sum(path.stat().st_size for path in (folder / str(n)).glob("*")) for n in range(20)]
    most = (folder / "metadata.json").stat().st_size + sum(sizes[:9])

    stored = StoredDataset(get("size", selection=Selection(max_size=most)))
    assert 0 < len(stored.episodes) <= 9
    assert stored.episodes["source"].tolist() == [*range(len(stored.episodes))]
    with pytest.raises(InvalidArgumentError, match="the first shard alone has"):
        get("small", selection=Selection(max_size=1000))
    with pytest.raises(InvalidArgumentError, match="include and exclude match none"):
        get("none", selection=Selection(include=("*.hdf5",)))


def test_groups_are_fetched_in_order_and_no_more_than_fit():
    fetched, seen = [], []

    def fetch(group, _):
        fetched.append(group)
        return [group]

    with Prefetcher([[n] for n in range(10)], fetch, max_in_flight=3) as ahead:
        for _ in range(10):
            seen += ahead.take()
            assert len(fetched) <= len(seen) + 3
            ahead.release()

    assert seen == [[n] for n in range(10)]


def test_an_error_is_raised_in_its_turn():
    def fetch(group, _):
        if group == [2]:
            raise InvalidArgumentError("no")
        return [group]

    with Prefetcher([[0], [1], [2], [3]], fetch, max_in_flight=9) as ahead:
        assert [ahead.take(), ahead.take()] == [[[0]], [[1]]]
        with pytest.raises(InvalidArgumentError, match="no"):
            ahead.take()


def test_an_early_end_stops_the_thread():
    began = threading.Event()

    def fetch(_, cancel):
        began.set()
        cancel.sleep(60)
        return []

    with Prefetcher([[0], [1]], fetch, max_in_flight=1) as ahead:
        assert began.wait(10)
    assert not ahead._thread.is_alive()


def test_a_library_that_lacks_a_method_is_named_and_not_the_file(get, monkeypatch):
    import pyarrow.parquet

    monkeypatch.delattr(pyarrow.parquet.ParquetFile, "read")
    with pytest.raises(LibraryError, match=f"pyarrow {pyarrow.__version__} .*no attribute 'read'") as raised:
        get()
    assert "pip install --upgrade pyarrow" in raised.value.hint


def test_a_fault_of_this_package_is_not_a_fault_of_the_file(get, monkeypatch):
    monkeypatch.delattr(DatasetWriter, "append")
    with pytest.raises(AttributeError, match="append"):
        get()
