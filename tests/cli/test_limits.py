"""Input that exceeds memory, file names or libraries is refused with a message before the work starts."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from datasets_rl import settings
from datasets_rl.sources.local.description import FILE
from datasets_rl.store import version_folder

LONG = "x" * 300
LIMITED = """
import re, resource, sys
from pathlib import Path
from datasets_rl import datasets, preprocessing
from datasets_rl.cli import frame
from datasets_rl.cli.app import main
size = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (int(sys.argv[1]) << 20),) * 2)
sys.argv[:2] = ["rlds"]
sys.exit(main())
"""


def marks(ran):
    return [line.split(maxsplit=1)[0] for line in ran.err.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
@pytest.mark.usefixtures("warm_python", "stored")
@pytest.mark.parametrize(
    "more", [pytest.param(more, marks=[] if more == 4 else pytest.mark.slow) for more in (1, 4, 30, 60, 120)]
)
@pytest.mark.parametrize(
    "words",
    [["download", "demo/pendulum", "--force"], ["sample", "demo/pendulum", "-n", "3000000"]],
    ids=lambda words: words[0],
)
def test_too_little_memory_is_reported_and_never_an_internal_error(process_env, more, words):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(more), *words],
        env={**process_env, "OPENBLAS_NUM_THREADS": "1", "RLDS_NO_PROGRESS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Traceback" not in done.stderr
    assert "a fault of" not in done.stderr
    if done.returncode == -signal.SIGABRT:
        # Rust extensions abort the process where an allocation fails, and print that.
        assert re.search(r"memory allocation of \d+ bytes failed", done.stderr)
    elif done.returncode == -signal.SIGSEGV:
        # The kernel ends a process whose stack needs a page beyond the limit; no code of the process runs then.
        assert more < 4
    elif done.returncode:
        # A batch that is too large is wrong usage if the rest fits.
        assert done.returncode in ({2, 11} if words[0] == "sample" else {11})
        # The interpreter prints exceptions that it ignores, and may lack the memory to end that line.
        assert re.search(r"rlds: .+\n  why: .+\n  next: .+\n\Z", done.stderr)
    else:
        assert more >= 30


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("way", ["[" * 5_000 + "]" * 5_000, "{ y = " * 5_000 + "1" + " }" * 5_000])
def test_deeply_nested_toml_is_reported_with_its_file(rlds, tmp_path, way):
    deep = tmp_path / "deep.toml"
    deep.write_text(f"x = {way}\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / FILE).write_text(f"x = {way}\n")
    (own / "data.npz").write_bytes(b"PK")

    runs = {
        2: [rlds("sample", deep), rlds("preprocess", "demo/pendulum", "--recipe", deep, "-o", tmp_path / "out")],
        8: [rlds("download", "local/own", "--from-local", own)],
    }
    for code, ran in ((code, ran) for code, several in runs.items() for ran in several):
        assert (ran.code, marks(ran)) == (code, ["rlds:", "why:", "next:"])
        assert "nested more than 32 deep" in ran.err
        assert str(deep) in ran.err or FILE in ran.err


def test_two_thousand_dotted_keys_in_a_description_are_refused(rlds, tmp_path):
    (tmp_path / FILE).write_text(f"[fields]\n{'.'.join(['x'] * 2_000)} = 'y'\n")
    (tmp_path / "data.npz").write_bytes(b"PK")
    ran = rlds("download", "local/own", "--from-local", tmp_path)

    assert (ran.code, marks(ran)) == (8, ["rlds:", "why:", "next:"])


@pytest.mark.parametrize(
    "words",
    [
        ["download", f"local/{LONG}"],
        ["info", f"local/{LONG}"],
        ["info", f"d4rl/{LONG}"],
        ["path", f"minari/{LONG}"],
        ["verify", LONG],
        ["verify", f"./{LONG}"],
        ["remove", f"local/{LONG}", "--yes"],
        ["sample", f"demo/{LONG}"],
    ],
    ids=lambda words: f"{words[0]} {words[1][:6]}",
)
def test_a_name_that_is_too_long_for_a_file_is_wrong_usage_or_an_unknown_id(rlds, words):
    ran = rlds(*words)

    assert ran.code in {2, 3}
    assert marks(ran) == ["rlds:", "why:", "next:"]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("step", "code", "why"),
    [
        ("reward_scaling:scale=Infinity", 2, "scale is inf, expected a finite number"),
        ("cat_frames:1000000000,in_keys=observation", 11, "bytes of memory"),
    ],
)
def test_a_step_with_impossible_arguments_is_refused_before_the_work(rlds, monkeypatch, tmp_path, step, code, why):
    monkeypatch.setattr(settings, "memory_bytes", lambda: 16 << 30)
    began = time.monotonic()
    ran = rlds("preprocess", "demo/pendulum", "-t", step, "-j", 1, "-o", tmp_path / "out")

    assert (ran.code, marks(ran)) == (code, ["rlds:", "why:", "next:"])
    assert why in ran.err
    assert not (tmp_path / "out").exists()
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("stored")
def test_a_mixture_with_stacks_of_a_billion_frames_is_refused_by_their_size(rlds, monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "memory_bytes", lambda: 16 << 30)
    mix = tmp_path / "mix.toml"
    mix.write_text(
        '[[member]]\ndataset = "demo/pendulum"\ntransforms = ["cat_frames:1000000000,-1,in_keys=observation"]\n'
    )
    ran = rlds("sample", mix)

    assert (ran.code, marks(ran)) == (11, ["rlds:", "why:", "next:"])
    assert re.search(r"CatFrames with N = 1,000,000,000 needs [\d,]+ bytes of memory", ran.err)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", ["preprocess", "download"])
def test_an_engine_without_its_library_is_refused_even_for_a_single_partial(rlds, monkeypatch, tmp_path, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["-t", "returns_to_go", "-o", tmp_path / "out"] if command == "preprocess" else ["--force"]
    ran = rlds(command, "demo/pendulum", "--engine", "ray", *words)

    assert (ran.code, marks(ran)) == (7, ["rlds:", "next:"])
    assert "pip install 'datasets-rl[ray]'" in ran.err


@pytest.fixture
def npz(tmp_path):
    """A folder of files that ``local`` can convert."""
    import numpy as np

    folder = tmp_path / "npz"
    folder.mkdir()
    rows = {"observations": np.zeros((6, 2), np.float32), "actions": np.zeros((6, 1), np.float32)}
    ends = np.array([0, 0, 1, 0, 0, 1], bool)
    np.savez(folder / "data.npz", rewards=np.zeros(6, np.float32), terminals=ends, **rows)
    (folder / FILE).write_text('[episodes]\nby = "flags"\n')
    return folder


@pytest.mark.parametrize(
    ("first", "second"), [("local/x", "local/x/y"), ("local/x/y", "local/x"), ("local/x", "local/x/y/z")]
)
def test_a_dataset_may_be_inside_the_folder_of_another_one(rlds, npz, first, second):
    assert rlds("download", first, "--from-local", npz).code == 0
    assert rlds("download", second, "--from-local", npz).code == 0

    assert {one["id"] for one in rlds("list", "--downloaded", "--json").json["datasets"]} == {first, second}
    assert rlds("remove", first, "--yes").code == 0
    assert rlds("verify", second).code == 0


def test_a_user_file_instead_of_a_folder_is_refused_with_a_remedy(rlds, npz):
    ran = rlds("download", "local/own", "--from-local", npz / "data.npz")

    assert (ran.code, marks(ran)) == (4, ["rlds:", "why:", "next:"])
    assert "the path is a file, expected a folder" in ran.err
    assert "next: give the folder with the files" in ran.err


@pytest.mark.usefixtures("stored")
def test_a_destination_below_a_file_names_that_file_and_no_internal_folder(rlds, tmp_path):
    (tmp_path / "file").write_text("")
    ran = rlds("preprocess", "demo/pendulum", "-t", "returns_to_go", "-o", tmp_path / "file" / "out")

    assert ran.err.startswith(f"rlds: {tmp_path / 'file'} cannot be written\n  why: Not a directory\n  next: ")


def test_a_result_inside_a_version_is_refused(rlds, stored):
    version = version_folder(stored)
    ran = rlds("preprocess", "demo/pendulum", "-t", "returns_to_go", "-o", version / "more")

    assert (ran.code, marks(ran)) == (2, ["rlds:", "why:", "next:"])
    assert f"is inside a dataset\n  why: {version}" in ran.err
    assert rlds("verify", "demo/pendulum").code == 0


def test_a_manifest_of_another_program_does_not_make_a_dataset(rlds, stored, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "an app"}')

    assert rlds("preprocess", stored, "-t", "returns_to_go", "-o", tmp_path / "web" / "data").code == 0


@pytest.mark.parametrize("words", [("list", "--downloaded"), ("info", "demo/pendulum"), ("download", "demo/pendulum")])
@pytest.mark.parametrize("below", ["", "folder/below"])
def test_a_root_that_is_a_file_or_below_one_is_refused_by_every_command(rlds, tmp_path, words, below):
    (tmp_path / "file").write_text("")

    ran = rlds("--root", tmp_path / "file" / below, *words)

    assert ran.code == 1
    assert ran.err.startswith(
        f"rlds: {tmp_path / 'file'} cannot be used\n  why: Not a directory\n  next: choose another"
    )


def test_a_web_page_that_was_given_as_a_file_is_named_without_a_server(rlds, tmp_path):
    (tmp_path / "hopper_medium-v2.hdf5").write_text("<!doctype html><title>Sign in</title>")

    ran = rlds("download", "d4rl/hopper-medium-v2", "--from-local", tmp_path)

    assert ran.code == 5
    assert "the content is a web page, not an HDF5 file: 'Sign in'" in ran.err
    assert "server" not in ran.err


def test_a_hub_that_cannot_be_reached_is_no_reason_to_check_the_name(rlds, monkeypatch):
    """The port is that of a socket that does not listen."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("RLDS_MAX_RETRIES", "0")
        ran = rlds("download", "hf://someone/thing")

    assert (ran.code, marks(ran)) == (4, ["rlds:", "why:", "next:"])
    assert "next: check the connection to the network, then run the command again" in ran.err
    assert "HF_TOKEN" not in ran.err
