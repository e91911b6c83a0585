"""Exports appear complete or not at all, whatever is in their way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from exports import export_stored, write_robot
from stored_data import trajectory, write_dataset

import datasets_rl
from datasets_rl import disk, load
from datasets_rl.errors import (
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    LossyExportError,
    MissingDependencyError,
    UnknownIdError,
)
from datasets_rl.exporting import FORMATS, Content, plan_export, run_export
from datasets_rl.exporting.formats import get_format


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("stored"), [trajectory(3), trajectory(2, seed=1)])


def test_every_format_has_a_row_in_the_docs():
    page = (Path(datasets_rl.__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    missing = [name for name in FORMATS if f"| `{name}` |" not in page]

    assert not missing, f"give {', '.join(missing)} a row in the first table of docs/export.md"


def test_all_losses_and_problems_are_named_at_once(tmp_path):
    robot = write_robot(tmp_path / "stored", known=False)

    plan = plan_export(Content(robot), "minari", tmp_path / "out")

    assert plan.problems == ()
    assert [loss.split()[0] for loss in plan.losses] == ["the", "metadata"]
    with pytest.raises(LossyExportError) as caught:
        datasets_rl.export(robot.folder, "minari", tmp_path / "out")
    assert caught.value.losses == plan.losses
    assert "lossy=True" in caught.value.hint


def test_an_unknown_dataset_or_format_is_refused(stored, tmp_path):
    with pytest.raises(UnknownIdError):
        datasets_rl.export("demo/nothing", "hdf5", tmp_path / "out")
    with pytest.raises(InvalidArgumentError, match="the format is 'hdf'") as caught:
        datasets_rl.export(stored.folder, "hdf", tmp_path / "out")
    assert caught.value.hint == "did you mean hdf5?"


def test_an_existing_target_is_refused_and_an_empty_folder_is_used(stored, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(InvalidArgumentError, match="full is not replaced: it exists"):
        export_stored(stored, "hdf5", tmp_path / "full")
    export_stored(stored, "hdf5", tmp_path / "empty")

    assert (tmp_path / "empty" / "data.hdf5").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_the_same_export_is_not_written_twice(stored, tmp_path):
    for to in FORMATS:
        path = export_stored(stored, to, tmp_path / to)
        before = path.stat().st_mtime_ns, path.stat().st_ino

        assert export_stored(stored, to, tmp_path / to) == path
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_another_part_of_equal_size_is_another_export(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3), trajectory(3, seed=1)])
    run_export(Content(stored, np.array([0])), "hdf5", tmp_path / "out", show=False)

    with pytest.raises(InvalidArgumentError, match="out is not replaced: it exists"):
        run_export(Content(stored, np.array([1])), "hdf5", tmp_path / "out", show=False)


def test_an_error_in_the_midst_leaves_nothing(stored, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("datasets_rl.exporting.formats.hdf5._write_batch", broken)

    with pytest.raises(OSError, match="Input/output"):
        export_stored(stored, "hdf5", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_write_the_same_export(stored, tmp_path):
    with disk.lock(tmp_path / ".out.rlds-export.lock", "another"), pytest.raises(LockedError, match=r"out is locked"):
        export_stored(stored, "hdf5", tmp_path / "out")


def test_too_little_space_is_reported_before_anything_is_written(stored, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))

    with pytest.raises(DiskFullError, match="the export out"):
        export_stored(stored, "hdf5", tmp_path / "out")
    assert not list(tmp_path.iterdir())


FULL = """
import resource, signal, sys
from pathlib import Path
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.errors import DiskFullError
import datasets_rl.exporting.formats as formats
for name in formats.FORMATS:
    formats.get_format(name)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
for name in formats.FORMATS:
    try:
        run_export(Content(StoredDataset(Path(sys.argv[1]))), name, Path(sys.argv[2]) / name, lossy=True, show=False)
    except DiskFullError as error:
        print(name)
"""


@pytest.mark.usefixtures("warm_python")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE")
def test_a_disk_that_becomes_full_is_reported_by_every_format(tmp_path):
    """A limit of the size of files fails like a full disk, with an error of the system amid the writing."""
    folder = tmp_path / "stored"
    write_dataset(folder, [trajectory(9000)])
    out = tmp_path / "out"
    out.mkdir()

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folder), str(out)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(FORMATS)
    assert not list(out.iterdir())


def test_a_missing_library_is_named_with_its_pip_line(stored, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else object())

    with pytest.raises(MissingDependencyError, match="exporting to parquet needs pyarrow") as caught:
        export_stored(stored, "parquet", tmp_path / "out")
    assert "pip install 'datasets-rl[pyarrow]'" in str(caught.value)


def test_a_buffer_that_hides_transitions_is_not_exported(stored, tmp_path):
    with pytest.raises(InvalidArgumentError, match="whole episodes are exported"):
        load(stored.folder, final_unknown="drop").export("hdf5", tmp_path / "out")


def test_a_folder_says_what_it_is_an_export_of(stored, tmp_path):
    folder = run_export(Content(stored), "npz", tmp_path / "out", show=False)

    about = json.loads((folder / "rlds-export.json").read_text())
    assert (about["dataset"], about["format"], about["steps"]) == ("toy/data", "npz", 5)
    assert about["digest"] == stored.manifest.digest


MEASURED = """
import sys
from pathlib import Path
from datasets_rl.exporting import Content, run_export
from datasets_rl.exporting.formats import get_format
from datasets_rl.format.reader import StoredDataset

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

name, few, many, out = sys.argv[1:]
run_export(Content(StoredDataset(Path(few))), name, Path(out) / "few", lossy=True, show=False)
highest = idle = peak()
written = Content.batches

def watched(self, *arguments, **options):
    global highest
    for batch in written(self, *arguments, **options):
        yield batch
        highest = max(highest, peak())

Content.batches = watched
run_export(Content(StoredDataset(Path(many))), name, Path(out) / "many", lossy=True, show=False)
print(highest - idle)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("to", FORMATS)
def test_memory_does_not_grow_with_the_dataset(to, tmp_path):
    for name, episodes in (("few", 1), ("many", 400)):
        write_dataset(tmp_path / name, (trajectory(20_000, seed=seed) for seed in range(episodes)))
    (tmp_path / "out").mkdir()
    words = [to, *(str(tmp_path / name) for name in ("few", "many", "out"))]

    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=True)

    assert float(done.stdout) < 150  # of a dataset of 200 MB
    assert os.path.lexists(tmp_path / "out" / "many")


def test_an_export_does_not_replace_the_root_of_the_file_system(stored):
    with pytest.raises(InvalidArgumentError, match="the root of a file system"):
        export_stored(stored, "npz", Path("/"), force=True)


def test_a_replaced_export_deletes_no_file_of_others(stored, tmp_path):
    out = export_stored(stored, "hdf5", tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    (out / "plots").mkdir()

    with pytest.raises(InvalidArgumentError, match=r"is not replaced: it holds .* not the export's: notes\.txt, plots"):
        export_stored(stored, "npz", out, force=True)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").rename(tmp_path / "notes.txt")
    (out / "plots").rmdir()
    export_stored(stored, "npz", out, force=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "dataset.toml",
        "episode_000000.npz",
        "episode_000001.npz",
        "rlds-export.json",
    ]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("files", [None, "rows", ["../../thesis.txt"], [7]])
def test_a_record_of_an_export_that_names_other_files_frees_none(stored, tmp_path, files):
    (tmp_path / "thesis.txt").write_text("mine")
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    (out / "data.hdf5").write_text("mine")
    record = {"dataset": "toy/data", "format": "hdf5"} | ({} if files is None else {"files": files})
    (out / "rlds-export.json").write_text(json.dumps(record))

    with pytest.raises(InvalidArgumentError, match="is not replaced"):
        export_stored(stored, "hdf5", out, force=True)
    assert (out / "data.hdf5").read_text() == (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("kind", ["pipe", "link to a folder", "link to a file", "record is a pipe"])
@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_or_a_link_is_neither_replaced_nor_opened(stored, tmp_path, to, kind, force):
    if get_format(to).library:
        pytest.importorskip(get_format(to).library)
    own = tmp_path / "own"
    own.mkdir()
    (own / "file").write_text("mine")
    out = tmp_path / "out"
    if kind == "record is a pipe":
        out.mkdir()
        os.mkfifo(out / "rlds-export.json")
    elif kind == "pipe":
        os.mkfifo(out)
    else:
        out.symlink_to(own if kind == "link to a folder" else own / "file")
    mode = out.lstat().st_mode

    with pytest.raises(InvalidArgumentError, match="is not replaced: it is" if force else "is not replaced: it exists"):
        export_stored(stored, to, out, force=force)
    assert out.lstat().st_mode == mode
    assert (own / "file").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_an_export_goes_into_no_dataset_and_no_hidden_folder_of_the_home(tmp_path, monkeypatch, force):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    stored = write_dataset(tmp_path / "home" / "toy" / "data", [trajectory(3)])
    before = sorted(tmp_path.rglob("*"))

    for out in (
        stored.folder / "hdf5",
        stored.folder,
        tmp_path / "home" / "toy" / ".work" / "x",
        tmp_path / "home" / ".x",
    ):
        for to in ("hdf5", "d4rl"):
            with pytest.raises(
                InvalidArgumentError, match=r"inside a dataset|in a hidden folder of|data is not replaced"
            ):
                export_stored(stored, to, out, force=force)
    assert sorted(tmp_path.rglob("*")) == before
    assert export_stored(stored, "hdf5", tmp_path / "home" / "toy-hdf5").is_dir()
