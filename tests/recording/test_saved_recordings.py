"""Recordings of programs that died: none is lost, added twice or deleted unread, whatever is wrong with one of them."""

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from datasets_rl import EpisodeWriter, Recipe, append_episodes, info, list_datasets, load, preprocess, verify
from datasets_rl.cli.app import main
from datasets_rl.errors import DatasetsRLError, IntegrityError, NotADatasetError, RecordingWarning
from datasets_rl.recording import adding
from datasets_rl.store import version_folder
from datasets_rl.transforms import RewardScaling

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL, links and named pipes")

ID = "local/toy"
STORED = [100]
RECORDED = [[200, 201], [300, 301, 302], [400, 401]]
"""The first state of each episode: of the stored dataset, and of each recording that a killed program left."""
PROGRAM = """
import os, signal, sys
import numpy as np
from datasets_rl import EpisodeWriter
from test_saved_recordings import ID, RECORDED, STORED, record

with EpisodeWriter(ID) as writer:
    record(writer, STORED)
writers = [EpisodeWriter(ID) for _ in RECORDED]
for writer, episodes in zip(writers, RECORDED):
    record(writer, episodes)
os.kill(os.getpid(), signal.SIGKILL)
"""


def record(writer, episodes):
    """Record episodes of three steps, whose states count up from a number."""
    for first in episodes:
        writer.start({"x": np.array([float(first), 1.0]), "task": f"task {first}"}, seed=first)
        for step in range(3):
            state = {"x": np.array([first + step + 1.0, 1.0]), "task": f"task {first}"}
            writer.step(np.int64(step), state, 0.5, terminated=step == 2)


@pytest.fixture(scope="module")
def left(tmp_path_factory, warm_executable):
    """A home folder with a dataset, and the recordings of a killed program; read-only."""
    home = tmp_path_factory.mktemp("left")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "RLDS_HOME": str(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [warm_executable, "-c", PROGRAM], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    return home


@pytest.fixture
def home(left, tmp_path, monkeypatch):
    """A private copy of that folder as RLDS_HOME."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    shutil.copytree(left, tmp_path / "home")
    return tmp_path / "home"


def recordings(home):
    """Return the folders of the recordings by the first state of their first episode, sorted."""
    folders = {}
    for folder in (home / "local" / "toy" / "recorded").glob("*"):
        if folder.is_dir() and (folder / "journal.jsonl").is_file():
            line = (folder / "journal.jsonl").read_text().splitlines()[1]
            folders[json.loads(line)["commit"]["facts"]["seed"][1][0]] = folder
    return [folders[seed] for seed in sorted(folders)]


def stored_episodes(dataset=ID):
    """Return the first state of every episode, after checking that all of its values are those recorded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        buffer = load(dataset, download=False)
        found = verify(dataset, deep=True)
    assert found.problems == ()
    rows, firsts = buffer[:], buffer.episodes["seed"].tolist()
    expected = [[first + step for step in range(3)] for first in firsts]
    assert rows["observation", "x"][:, 0].reshape(-1, 3).tolist() == expected
    assert rows["next", "observation", "x"][:, 0].reshape(-1, 3).tolist() == [[x + 1 for x in row] for row in expected]
    texts = buffer.texts("observation.task")
    assert [texts[code] for code in rows["observation", "task"][::3].tolist()] == [f"task {first}" for first in firsts]
    assert buffer.episodes["source"].tolist() == list(range(len(firsts)))
    return firsts


def tree(folder):
    """Return every path with the digest of its bytes, or the target of a link."""
    return {  # without the files that name the owner of a lock
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
        if path.suffix != ".lock"
    }


def all_episodes(*without):
    return sorted({*STORED, *(first for episodes in RECORDED for first in episodes)} - {*without})


def test_a_command_that_reads_adds_nothing_and_says_what_does(home, capsys):
    before = tree(home)
    with pytest.warns(RecordingWarning, match=r"3 recordings .*\n.*append_episodes\('local/toy'\) adds them"):
        assert len(load(ID)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        info(ID)
        list_datasets(downloaded=True)
        verify(ID)
    for words in (["info", ID], ["sample", ID, "-n", "2"], ["list", "--downloaded"], ["verify", ID], ["path", ID]):
        assert main(words) == 0
    text = capsys.readouterr().err

    assert "rlds append local/toy adds them" in text
    assert {path for path in tree(home) if "recorded" in path} == {path for path in before if "recorded" in path}
    assert {name: digest for name, digest in before.items() if digest} == {
        name: digest for name, digest in tree(home).items() if digest
    }


def test_appending_without_others_adds_every_recording_once_and_deletes_it(home):
    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()
    assert not (home / "local" / "toy" / "recorded").exists()
    before = tree(home)
    append_episodes(ID)
    assert tree(home) == before


def test_a_writer_adds_what_dead_programs_recorded(home):
    with EpisodeWriter(ID) as writer:
        record(writer, [500])

    assert sorted(stored_episodes()) == [*all_episodes(), 500]
    assert not (home / "local" / "toy" / "recorded").exists()


def test_a_dataset_that_is_not_yet_stored_names_its_recordings(home):
    shutil.rmtree(version_folder(home / "local" / "toy"))
    (home / "local" / "toy" / "CURRENT").unlink()
    with pytest.raises(NotADatasetError, match=r"3 recordings(.|\n)*append_episodes\('local/toy'\) adds them"):
        load(ID, download=False)

    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes(*STORED)


def test_recordings_that_the_dataset_holds_are_deleted_and_not_added_again(home):
    """A process may be killed after it has published the episodes, and before it has deleted the recordings."""
    saved = home.with_name("saved")
    shutil.copytree(home / "local" / "toy" / "recorded", saved)
    append_episodes(ID)
    shutil.copytree(saved, home / "local" / "toy" / "recorded")

    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()
    assert not (home / "local" / "toy" / "recorded").exists()


def test_a_version_without_the_lock_that_replaces_the_added_episodes_is_an_error_and_loses_none(home, monkeypatch):
    """Another process publishes a version of the former one just after this one has added the recordings."""
    dataset, saved = home / "local" / "toy", home.with_name("saved")
    shutil.copytree(dataset, saved)
    add = adding._add

    def superseded(*arguments):
        kept = add(*arguments)
        shutil.rmtree(dataset)
        shutil.copytree(saved, dataset)
        return kept

    with monkeypatch.context() as patched:
        patched.setattr(adding, "_add", superseded)
        with pytest.raises(DatasetsRLError, match="without the lock"):
            append_episodes(ID)

    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()


class Fault:
    """The n-th read of a file in a folder of recordings fails, or ends early."""

    def __init__(self, monkeypatch, folder, number, kind):
        self.count, self._folder, self._number, self._kind = 0, str(folder), number, kind
        self._open = io.open
        monkeypatch.setattr(io, "open", self.open)

    def fails(self):
        self.count += 1
        if self.count == self._number and self._kind != "short":
            raise OSError(self._kind, os.strerror(self._kind), "a file of a recording")
        return self.count == self._number

    def open(self, path, mode="r", *arguments, **options):
        if self._folder not in str(path) or mode not in {"r", "rb"} or str(path).endswith(".lock"):
            return self._open(path, mode, *arguments, **options)
        self.fails()
        return FaultyFile(self._open(path, mode, *arguments, **options), self)


class FaultyFile:
    def __init__(self, file, fault):
        self._file, self._fault = file, fault

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self._file.close()

    def read(self, *size):
        return b"" if self._fault.fails() else self._file.read(*size)

    def readinto(self, buffer):
        return 0 if self._fault.fails() else self._file.readinto(buffer)


def append_despite(fault):
    """Append with a fault; return the number of reads, and what was announced."""
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        injected = Fault(monkeypatch, *fault)
        try:
            append_episodes(ID)
        except (DatasetsRLError, OSError) as error:
            return injected.count, [str(error)]
    return injected.count, [str(one.message) for one in caught]


@pytest.mark.first(1)
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["short", errno.EIO, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (errno.EACCES, errno.EMFILE))]
)
def test_no_read_error_loses_an_episode(home, kind, every):
    recorded = home / "local" / "toy" / "recorded"
    saved = home.with_name("saved")
    shutil.copytree(home, saved)
    reads, _ = append_despite((recorded, 0, kind))
    lost = failed = 0
    for number in range(1, reads + 1, every):
        shutil.rmtree(home)
        shutil.copytree(saved, home)
        _, messages = append_despite((recorded, number, kind))
        waiting = {first for folder in recordings(home) for first in seeds_of(folder)}
        assert bool(messages) == bool(waiting), number  # a copy that fails once is tried again
        assert {*stored_episodes(), *waiting} == {*all_episodes()}, number
        assert len(waiting) <= max(map(len, RECORDED)), "the other recordings were not added"
        append_episodes(ID)
        lost += len(all_episodes()) - len(stored_episodes())
        assert sorted(stored_episodes()) == all_episodes(), number
        failed += 1
    print(f"\n{kind}: {failed} of {reads} reads failed, {lost} episodes lost")


def seeds_of(folder):
    lines = (folder / "journal.jsonl").read_text().splitlines()[1:]
    return [seed for line in lines for seed in json.loads(line)["commit"]["facts"]["seed"][1]]


def rewritten(line, **changes):
    """Return a line of a journal with other values of its commit, and, with `sign`, a checksum that fits."""
    sign = changes.pop("sign", False)
    entry = json.loads(line)
    entry["commit"] |= changes
    if sign:
        content = {name: value for name, value in entry.items() if name != "line_crc32"}
        entry["line_crc32"] = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    return json.dumps(entry).encode()


DAMAGED_LINES = {
    "zeros": lambda line: bytes(len(line)),
    "a list": lambda _: b"[]",
    "an empty object": lambda _: b"{}",
    "null": lambda _: b"null",
    "no JSON": lambda line: line[: len(line) // 2],
    "no UTF-8": lambda line: line[:20] + b"\xff\xfe" + line[22:],
    "a flipped bit": lambda line: line.replace(b'"returns": [1.5]', b'"returns": [1.7]'),
    "nested": lambda _: b"[" * 100_000,
    "a number of 5,000 digits": lambda _: b"9" * 5_000,
    "longer episodes": lambda line: rewritten(line, lengths=[4]),
    "longer episodes, with a checksum": lambda line: rewritten(line, lengths=[4], sign=True),
    "no list of lengths": lambda line: rewritten(line, lengths="abc", sign=True),
    "negative lengths": lambda line: rewritten(line, lengths=[-3], sign=True),
    "huge counts": lambda line: rewritten(line, lengths=[10**30], steps=10**30, sign=True),
    "no facts": lambda line: rewritten(line, facts=[], sign=True),
    "facts of objects": lambda line: rewritten(line, facts={"seed": ["O", [[1]]]}, sign=True),
    "facts of the table": lambda line: rewritten(line, facts={"length": ["<i8", [7]]}, sign=True),
    "other files": lambda line: rewritten(line, files={"../../toy/rows.npy": 10}, sign=True),
    "other rows": lambda line: rewritten(line, rows={"rows.npy": 10**9}, sign=True),
    "no statistics": lambda line: rewritten(line, moments={}, sign=True),
    "words that are no texts": lambda line: rewritten(line, words={"observation.task": [1]}, sign=True),
}


@pytest.mark.first(5)
@pytest.mark.parametrize("name", DAMAGED_LINES)
@pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_line_costs_nothing_but_the_episodes_after_it(home, name, at):
    """`at` is the number of the recorded episode whose line is damaged, from 0."""
    folder = recordings(home)[1]
    lines = (folder / "journal.jsonl").read_bytes().splitlines()
    lines[1 + at] = DAMAGED_LINES[name](lines[1 + at])
    (folder / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    damaged = tree(folder)

    with pytest.raises(IntegrityError) as caught:
        append_episodes(ID)
    assert str(folder) in str(caught.value)
    assert f"line {2 + at} of journal.jsonl" in str(caught.value)
    assert sorted(stored_episodes()) == all_episodes(*RECORDED[1][at:])
    assert tree(folder) == damaged

    with pytest.warns(RecordingWarning, match="damaged"), EpisodeWriter(ID) as writer:
        record(writer, [500])
    assert sorted(stored_episodes()) == [*all_episodes(*RECORDED[1][at:]), 500]
    assert main(["info", ID]) == 0
    assert tree(folder) == damaged


def test_zeros_at_the_end_of_a_journal_are_damage_and_a_torn_line_is_not(home):
    torn, zeros, _ = recordings(home)
    with (torn / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"commit": {"files": {"fi')
    with (zeros / "journal.jsonl").open("ab") as stream:
        stream.write(bytes(100))

    with pytest.raises(IntegrityError, match="line 5 of journal"):
        append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()
    assert recordings(home) == [zeros]


def test_a_restored_recording_of_which_a_part_was_added_stays(home):
    folder = recordings(home)[1]
    whole = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(whole[:-50] + b"\n")
    with pytest.raises(IntegrityError):
        append_episodes(ID)
    (folder / "journal.jsonl").write_bytes(whole)

    with pytest.raises(IntegrityError, match="now all episodes of the recording are whole"):
        append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes(302)
    assert seeds_of(folder) == RECORDED[1]


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("name", "damage"),
    {
        "recording.json empty": lambda folder: (folder / "recording.json").write_bytes(b""),
        "recording.json of zeros": lambda folder: (folder / "recording.json").write_bytes(bytes(500)),
        "recording.json a list": lambda folder: (folder / "recording.json").write_bytes(b"[]"),
        "recording.json missing": lambda folder: (folder / "recording.json").unlink(),
        "another dataset": lambda folder: rewrite(folder, dataset="d4rl/hopper-medium-v2"),
        "another id": lambda folder: rewrite(folder, id="../../toy"),
        "another schema": lambda folder: rewrite(folder, schema=[{"key": ["observation"]}]),
        "metadata outside": lambda folder: rewrite(
            folder, description={"specs": {}, "metadata": {"x": {"file": "../../secret.npy"}}}
        ),
        "specs of nothing": lambda folder: rewrite(folder, description={"specs": {"action": 3}, "metadata": {}}),
        "journal missing": lambda folder: (folder / "journal.jsonl").unlink(),
        "journal empty": lambda folder: (folder / "journal.jsonl").write_bytes(b""),
        "journal of zeros": lambda folder: (folder / "journal.jsonl").write_bytes(bytes(3000)),
        "rows missing": lambda folder: (folder / "rows.npy").unlink(),
        "rows truncated": lambda folder: os.truncate(folder / "rows.npy", 200),
        "final states of zeros": lambda folder: (folder / "final.npy").write_bytes(bytes(2000)),
        "rows a link": lambda folder: replaced(folder / "rows.npy").symlink_to("/etc/passwd"),
        "rows a pipe": lambda folder: os.mkfifo(replaced(folder / "rows.npy")),
        "journal a pipe": lambda folder: os.mkfifo(replaced(folder / "journal.jsonl")),
        "recording.json a pipe": lambda folder: os.mkfifo(replaced(folder / "recording.json")),
        "recording.json a folder": lambda folder: replaced(folder / "recording.json").mkdir(),
        "a link": lambda folder: (
            folder.rename(folder.parents[3] / "away") and folder.symlink_to(folder.parents[3] / "away")
        ),
        "a copy": lambda folder: folder.rename(folder.with_name("copy")),
    }.items(),
)
def test_a_damaged_recording_stays_is_named_and_blocks_nothing(home, name, damage):
    folder = recordings(home)[1]
    damage(folder)
    stays = folder.with_name("copy") if name == "a copy" else folder
    before = {path: os.lstat(path).st_mode for path in [stays, *stays.rglob("*")]}

    with pytest.raises(IntegrityError) as caught:
        append_episodes(ID)
    assert str(stays) in str(caught.value)
    assert sorted(stored_episodes()) == all_episodes(*RECORDED[1])
    assert {path: os.lstat(path).st_mode for path in [stays, *stays.rglob("*")]} == before

    with pytest.warns(RecordingWarning, match="not a part of local/toy"), EpisodeWriter(ID) as writer:
        record(writer, [500])
    for words in (["info", ID], ["list", "--downloaded"], ["sample", ID, "-n", "1"]):
        assert main(words) == 0
    assert sorted(stored_episodes()) == [*all_episodes(*RECORDED[1]), 500]
    assert {path: os.lstat(path).st_mode for path in [stays, *stays.rglob("*")]} == before


def rewrite(folder, **changes):
    file = folder / "recording.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def replaced(path):
    path.unlink()
    return path


@pytest.mark.parametrize("level", ["recorded"])
def test_a_link_in_place_of_the_folder_of_recordings_is_not_followed(home, tmp_path, level):
    hidden = home / "local" / "toy" / level
    others = tmp_path / "thesis"
    (others / "chapter").mkdir(parents=True)
    (others / "chapter" / "one.tex").write_text("text")
    shutil.rmtree(hidden)
    hidden.symlink_to(others)

    with pytest.raises(IntegrityError, match="symbolic link, expected a plain folder"):
        append_episodes(ID)
    assert main(["info", ID]) == 0
    with (
        contextlib.suppress(NotADatasetError),
        pytest.warns(RecordingWarning, match="symbolic link, expected a plain folder"),
    ):
        EpisodeWriter(ID)
    assert (others / "chapter" / "one.tex").read_text() == "text"
    assert stored_episodes() == STORED


def test_files_of_others_beside_recordings_are_never_deleted(home):
    folder = home / "local" / "toy" / "recorded" / "mine"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "text").write_text("mine")
    (recordings(home)[0] / "notes.txt").write_text("mine")

    with pytest.raises(IntegrityError, match=r"notes\.txt, which is not a file of a recording"):
        append_episodes(ID)
    assert (folder / "inner" / "text").read_text() == "mine"
    assert (recordings(home)[0] / "notes.txt").read_text() == "mine"
    assert sorted(stored_episodes()) == all_episodes()


def test_recordings_of_other_fields_stay_and_the_others_are_added(home):
    other = recordings(home)[1]
    shutil.rmtree(other)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RLDS_HOME", str(home.with_name("elsewhere")))
        writer = EpisodeWriter(ID)
        writer.start(np.zeros(7))
        writer.step(0, np.zeros(7), 1.0, terminated=True)
        made = next(
            path for path in (home.with_name("elsewhere") / "local" / "toy" / "recorded").iterdir() if path.is_dir()
        )
        shutil.copytree(made, other.with_name(made.name))
        writer.close()

    with pytest.raises(DatasetsRLError, match=r"do not fit local/toy: .*observation is float64 \[7\]"):
        append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes(*RECORDED[1])
    assert other.with_name(made.name).is_dir()


def test_recorded_episodes_are_not_mixed_into_a_preprocessed_dataset(home):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        preprocess(home / "local" / "toy", Recipe([RewardScaling(0.0, 2.0)]), in_place=True)

    with pytest.raises(DatasetsRLError, match="a preprocessed dataset does not grow"):
        append_episodes(ID)
    assert len(recordings(home)) == 3
    assert main(["use", ID, "--undo"]) == 0
    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()


def test_an_episode_without_a_line_is_not_added_and_its_recording_is_deleted(home):
    folder = home / "local" / "toy" / "recorded" / "0123"
    folder.mkdir()
    (folder / "rows.npy").write_bytes(b"a program was killed when it began")

    append_episodes(ID)
    assert sorted(stored_episodes()) == all_episodes()
    assert not folder.exists()
