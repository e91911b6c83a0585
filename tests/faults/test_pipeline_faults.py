"""Faults between the upstream and the dataset, with the real command: its exit code, its message, the files on disk."""

import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from d4rl_files import mujoco, mujoco_columns, rollout, write
from servers import Cut, File, HidesLength, InTurn, Slow, Status, Truncates, serve

from datasets_rl.cli.app import main
from datasets_rl.fetch import plan
from datasets_rl.format.current import is_dataset, version_folder
from datasets_rl.format.reader import StoredDataset

NAME = "bullet-maze2d-open-v0"  # the catalog has neither its digest nor its size, so that any file can replace it
UPSTREAM = "/bullet/bullet-maze2d-open-sparse.hdf5"


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "good.hdf5"
    mujoco(path)
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("RLDS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_TIMEOUT", "1")
    monkeypatch.setenv("RLDS_MAX_RETRIES", "2")
    monkeypatch.setattr(plan, "_FIRST_PAUSE", 0.001)
    return tmp_path / "home"


@pytest.fixture
def rlds(home, capsys):  # noqa: ARG001 - it sets the environment variables
    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def download(rlds, monkeypatch):
    """A function that downloads from a loopback server in place of the upstream; no other address is tried."""

    def run(behaviour, *words, name=NAME):
        from datasets_rl import sources

        source = sources.get_source("d4rl")
        path = source.entry(name).params["path"]
        with serve({f"/{path}": behaviour}) as server:
            monkeypatch.setitem(source.catalog, "base_urls", [f"{server.url}/"])
            code, out, err = rlds("download", f"d4rl/{name}", *words)
            return code, out, err, server

    return run


def files_of_version(folder):
    version = version_folder(folder)
    return version.name, {path.name: path.read_bytes() for path in version.iterdir()}


def absent(home, name=NAME):
    return not is_dataset(home / "d4rl" / name)


def test_a_good_file_becomes_a_dataset_with_its_path_on_stdout(download, home, good):
    code, out, err, _ = download(File(good))

    assert code == 0, err
    assert out.strip() == str(home / "d4rl" / NAME)
    assert len(StoredDataset(home / "d4rl" / NAME)) == 300


@pytest.mark.parametrize(("status", "shown"), [(403, "403"), (404, "404"), (429, "429"), (500, "500"), (503, "503")])
def test_a_refusing_server_ends_with_the_status_and_what_to_do(download, home, status, shown):
    code, out, err, _ = download(Status(status))

    assert (code, out) == (4, "")
    assert shown in err
    assert "--from-local" in err
    assert absent(home)


def test_a_part_is_kept_when_its_growth_fails_and_the_same_command_resumes(download, home, good, rlds):
    folder = home / "d4rl" / NAME
    download(File(good), "--keys", "observation")
    before = files_of_version(folder)

    code, _, err, _ = download(InTurn(Cut(good, after=good.stat().st_size // 2), Status(500)))

    assert code == 4, err
    assert files_of_version(folder) == before
    assert rlds("sample", f"d4rl/{NAME}")[0] == 0
    code, out, err, _ = download(File(good))
    assert (code, out.strip()) == (0, str(folder)), err
    assert {"observation", "action"} <= {field.name for field in StoredDataset(folder).schema}
    assert StoredDataset(folder).manifest.selection == {}


def test_a_part_with_a_kept_raw_file_grows_without_the_network(download, home, good, monkeypatch):
    download(File(good), "--keys", "observation", "--keep-raw")
    monkeypatch.setenv("RLDS_OFFLINE", "1")

    code, _, err, server = download(Status(500), "--keys", "action")

    assert code == 0, err
    assert server.requests == []
    assert StoredDataset(home / "d4rl" / NAME).manifest.selection == {"keys": ["observation", "action"]}
    assert list((home / "d4rl" / NAME / "raw").rglob("*.hdf5")) != []


def test_a_preprocessed_part_is_not_replaced_by_a_larger_download(download, home, good, rlds):
    download(File(good), "--keys", "observation")
    assert rlds("preprocess", f"d4rl/{NAME}", "-t", "reward_scaling:scale=2", "--in-place")[0] == 0

    code, _, err, _ = download(File(good))

    assert code == 2
    assert "holds keys=observation\n  why: the whole dataset was requested, and a preprocessed dataset does not" in err
    assert len(StoredDataset(home / "d4rl" / NAME).manifest.history) == 1
    assert rlds("sample", f"d4rl/{NAME}")[0] == 0


def damaged(good, folder, change):
    path = folder / "damaged.hdf5"
    shutil.copy(good, path)
    change(path)
    return path


def flip_bits_of_a_chunk(path):
    with h5py.File(path) as file:
        chunk = file["observations"].id.get_chunk_info(0)
    with path.open("r+b") as stream:
        stream.seek(chunk.byte_offset + chunk.size // 2)
        flipped = bytes(byte ^ 0xFF for byte in stream.read(8))
        stream.seek(-8, os.SEEK_CUR)
        stream.write(flipped)


def lose_a_column(path):
    with h5py.File(path, "r+") as file:
        del file["actions"]
        del file["terminals"]


def shorten_a_column(path):
    with h5py.File(path, "r+") as file:
        short = file["rewards"][:-7]
        del file["rewards"]
        file["rewards"] = short


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip_bits_of_a_chunk, ["observations", "row"]),
        (lose_a_column, ["actions is missing", "terminals is missing"]),
        (shorten_a_column, ["rewards has shape [293]", "300"]),
    ],
)
def test_a_damaged_file_is_refused_with_every_error_and_leaves_no_dataset(
    download, home, good, tmp_path, change, words
):
    code, out, err, _ = download(File(damaged(good, tmp_path, change)))

    assert (code, out) == (8, "")
    assert all(word in err for word in words), err
    assert absent(home)
    assert list((home / "d4rl" / NAME).rglob("manifest.json")) == []


@pytest.mark.parametrize("kind", [HidesLength, Truncates])
def test_after_half_a_file_the_same_command_fetches_it_again(download, home, good, kind):
    code, out, err, _ = download(kind(good, after=good.stat().st_size // 2, times=10**9))

    assert (code, out) == (5, "")
    assert f"the file is truncated: the superblock states {good.stat().st_size:,} bytes" in err
    assert absent(home)

    code, _, err, _ = download(File(good))
    assert code == 0, err


def test_a_repaired_upstream_replaces_the_damaged_file_that_was_fetched(download, home, good, tmp_path):
    assert download(File(damaged(good, tmp_path, lose_a_column)))[0] == 8

    code, _, err, _ = download(File(good), "--force")

    assert code == 0, err
    assert not absent(home)


@pytest.mark.usefixtures("warm_python")
def test_two_processes_fetch_and_convert_once(home, good):
    with serve({UPSTREAM: Slow(good, rate=200_000)}) as server:
        words = ["download", f"d4rl/{NAME}", "--mirror", server.url]
        both = [
            subprocess.Popen(
                [sys.executable, "-m", "datasets_rl.cli", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        results = [process.communicate(timeout=60) for process in both]

    assert [process.returncode for process in both] == [0, 0], results
    assert {out.strip() for out, _ in results} == {str(home / "d4rl" / NAME)}
    assert len([one for one in server.requests if one.method == "GET"]) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def wide_file(path, rows):
    columns = mujoco_columns(rollout())
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    zeros = {name: np.zeros((rows, *columns[name].shape[1:]), columns[name].dtype) for name in names}
    return write(path, zeros)


def test_a_full_disk_is_noticed_before_the_conversion_starts(rlds, small_disk, tmp_path):
    raw = wide_file(tmp_path / "raw.hdf5", 100_000)

    code, _, err = rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--from-local", raw)

    assert code == 6
    assert "bytes needed" in err
    assert not (small_disk / "d4rl" / NAME).exists()


def test_a_disk_that_fills_during_the_conversion_leaves_no_dataset_and_a_later_run_finishes(
    rlds, small_disk, tmp_path, monkeypatch
):
    raw = wide_file(tmp_path / "raw.hdf5", 100_000)
    with monkeypatch.context() as patch:
        patch.setattr("datasets_rl.disk.require_free", lambda *_: None)
        code, _, err = rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--from-local", raw)

    assert code == 6
    assert "not enough disk" in err
    assert not (small_disk / "d4rl" / NAME).exists()

    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--from-local", raw)[0] == 0


def test_a_disk_that_fills_during_the_download_keeps_the_received_bytes(rlds, small_disk, tmp_path):
    generator = np.random.default_rng(0)
    noise = {
        "observations": generator.normal(size=(60_000, 17)),
        "actions": generator.normal(size=(60_000, 6)),
        "rewards": generator.normal(size=60_000),
        "terminals": np.zeros(60_000, bool),
    }
    raw = write(tmp_path / "raw.hdf5", noise)
    part = small_disk / "d4rl" / NAME / "raw" / f"{UPSTREAM[1:]}.part"
    # Without a length the missing space is only found during the download.
    with serve({UPSTREAM: File(raw, length=False)}) as server:
        code, _, err = rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--mirror", server.url)
        assert code == 6, err
        assert part.stat().st_size > 1_000_000

        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        code, _, err = rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--mirror", server.url)

    assert code == 0, err
    assert any(asked.startswith("bytes=") and not asked.startswith("bytes=0-") for asked in server.ranges)


def test_a_disk_that_cannot_hold_the_file_is_noticed_before_the_first_byte(rlds, small_disk, good):
    with serve({UPSTREAM: File(good.read_bytes() + bytes(4_000_000))}) as server:
        code, _, err = rlds("--root", small_disk, "download", f"d4rl/{NAME}", "--mirror", server.url)

    assert code == 6, err
    assert [part.stat().st_size for part in (small_disk / "d4rl").rglob("*.part")] in ([], [0])
