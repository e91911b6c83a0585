"""``rlds doctor``: every address is asked, the disk is used, and each problem has an exit code."""

from __future__ import annotations

import os
import shutil

import pytest
from servers import NoRange, Redirect, Stall, Status, serve

from datasets_rl import sources
from datasets_rl.cli import machine
from datasets_rl.cli.machine import disk_checks, package_checks
from datasets_rl.errors import FetchError, IntegrityError
from datasets_rl.fetch.probe import Probe, probe
from datasets_rl.settings import Settings

PATH = "/gym_mujoco_v2/hopper_medium-v2.hdf5"
ID = "d4rl/hopper-medium-v2"


@pytest.fixture(autouse=True)
def closed(home, monkeypatch):  # noqa: ARG001 - it sets variables, too
    """Let requests to other machines end at a proxy that does not exist."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class OfSize:
    """Answers with the first byte of a file of this size."""

    def __init__(self, size):
        self.size = size

    def answer(self, call):
        call.start(206, {"Content-Range": f"bytes 0-0/{self.size}", "Content-Length": 1})
        call.wfile.write(b"x")


def test_every_address_and_mirror_of_a_dataset_is_asked_once(rlds, home, monkeypatch):
    with serve({PATH: Status(404)}) as first, serve({PATH: b"x" * 5}) as second:
        monkeypatch.setenv("RLDS_MIRRORS", f"d4rl={first.url},{second.url}")
        ran = rlds("doctor", ID, "--json")
        assert [len(first.requests), len(second.requests)] == [1, 1]
        assert second.requests[0].headers["range"] == "bytes=0-0"

    (file,) = ran.json["files"]
    assert [(one["status"], one["problem"]) for one in file["probes"]][:2] == [(404, "status 404"), (206, "")]
    assert [one["url"] for one in file["probes"]][:2] == [first.url + PATH, second.url + PATH]
    assert len(file["probes"]) == 5
    assert all(one["seconds"] >= 0 for one in file["probes"])
    assert file["probes"][1]["ranges"] is True
    assert ran.code == 4
    assert f"the file has 5 bytes, expected {file['size']:,}" in ran.json["problems"][0]["what"]
    assert not home.exists()


def test_one_address_that_serves_the_file_is_enough(rlds, monkeypatch):
    size = sources.get_source("d4rl").assets("hopper-medium-v2")[0].size
    with serve({PATH: OfSize(size)}) as server:
        monkeypatch.setenv("RLDS_MIRRORS", f"d4rl={server.url}")
        ran = rlds("doctor", ID)

    assert (ran.code, ran.out.splitlines()[-1]) == (0, "  no problem found")
    assert "152.8 MB\tyes" in ran.out


@pytest.mark.slow
def test_a_closed_upstream_is_a_remark_as_long_as_another_one_answers(rlds, monkeypatch):
    first = sources.get_source("d4rl").ids()[0]
    (asset,) = sources.get_source("d4rl").assets(first)
    with serve({f"/{asset.path}": OfSize(asset.size)}) as server:
        monkeypatch.setenv("RLDS_MIRRORS", f"d4rl={server.url}")
        ran = rlds("doctor", "--json")

    assert (ran.code, ran.json["healthy"]) == (0, True)
    assert any(one["what"].startswith("minari/") for one in ran.json["remarks"])


def test_without_any_network_every_upstream_is_a_problem(rlds):
    ran = rlds("doctor", "--json")

    assert (ran.code, ran.json["remarks"]) == (4, [])
    assert len(ran.json["problems"]) > 5


def test_a_file_of_another_size_is_an_integrity_error_and_a_missing_one_a_network_error():
    answer = Probe("file:///x", 0.0, size=1)
    missing = Probe("file:///x", 0.0, problem="no such file")

    assert machine.Reachability(ID, "x", 1, 5, (answer,)).problem is IntegrityError
    assert machine.Reachability(ID, "x", 1, 5, (answer, missing)).problem is FetchError
    assert machine.Reachability(ID, "x", 1, 1, (answer, missing)).problem is None


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        (b"abc", (206, 3, True, "")),
        (b"", (416, 0, False, "")),
        (NoRange(b"abc"), (200, 3, False, "")),
        (Status(503), (503, None, False, "status 503")),
        (Redirect("/moved"), (206, 5, True, "")),
    ],
    ids=["served", "empty", "without ranges", "out of order", "redirected"],
)
def test_a_probe_reports_the_status_the_size_and_whether_downloads_resume(behavior, expected, home):
    with serve({"/a": behavior, "/moved": b"moved"}) as server:
        answer = probe(f"{server.url}/a", Settings(home=home))

    assert (answer.status, answer.size, answer.ranges, answer.problem) == expected


def test_a_probe_of_a_server_that_does_not_answer_ends(home):
    with serve({"/a": Stall(b"abc", after=0)}) as server:
        silent = probe(f"{server.url}/a", Settings(home=home, timeout=0.2))
    dead = probe("http://127.0.0.1:9/a", Settings(home=home, timeout=5))

    assert [one.status for one in (dead,)] == [None]
    assert "refused" in dead.problem
    assert silent.seconds < 30


def test_files_on_this_machine_are_looked_at(home, tmp_path):
    (tmp_path / "a").write_bytes(b"abc")

    assert probe((tmp_path / "a").as_uri(), Settings(home=home)).size == 3
    assert probe((tmp_path / "b").as_uri(), Settings(home=home)).problem


def test_offline_nothing_is_asked(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    ran = rlds("doctor", "minari", "--json")

    assert (ran.code, ran.json["files"], ran.json["problems"]) == (0, [], [])
    assert {"name": "requests", "found": "disabled by the setting offline"}.items() <= {
        key: value for one in ran.json["checks"] if one["name"] == "requests" for key, value in one.items()
    }.items()


def test_proxies_are_shown_without_their_passwords(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128")
    out = rlds("doctor").out

    assert "proxy for https\thttp://proxy:3128" in out
    assert "secret" not in out


@pytest.mark.parametrize(("wanted", "near"), [("d4rl/hoper-medium-v2", "hopper-medium-v2"), ("minri", "minari")])
def test_an_unknown_id_or_source_ends_with_3_and_names_the_nearest(rlds, wanted, near):
    ran = rlds("doctor", wanted)

    assert ran.code == 3
    assert near in ran.err


def test_invalid_settings_are_a_problem_and_the_other_checks_run(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_JOBS", "many")
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    ran = rlds("doctor", "demo", "--json")

    assert ran.code == 2
    assert [one["what"] for one in ran.json["problems"]] == [
        "settings: RLDS_JOBS is 'many', expected an integer of at least 1"
    ]
    assert {"numpy", "locks"} <= {one["name"] for one in ran.json["checks"]}


def test_the_disk_is_used_and_left_as_it_was(home):
    home.mkdir()
    checks = {one.name: one for one in disk_checks(home)}

    assert [name for name, one in checks.items() if one.problem] == []
    assert {"write and sync", "atomic rename", "memory mapping", "hard links", "locks"} <= set(checks)
    assert list(home.iterdir()) == []
    assert shutil.disk_usage(home).free > 0


def test_too_little_space_for_a_dataset_is_a_problem(home):
    short = {one.name: one for one in disk_checks(home, needed=10**18)}

    assert short["free"].problem.__name__ == "DiskFullError"
    assert "expected 1000000000.0 GB" in short["free"].found
    assert {one.name: one for one in disk_checks(home, needed=1)}["free"].problem is None


def test_a_file_in_the_place_of_the_folder_is_a_problem(rlds, home, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    home.write_text("")
    ran = rlds("doctor")

    assert ran.code == 1
    assert f"{home} is not a folder" in ran.out


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_problem(home):
    home.mkdir(mode=0o500)

    assert any(one.problem is PermissionError for one in disk_checks(home))


def test_packages_have_their_versions_and_missing_extras_their_pip_line(monkeypatch):
    version = machine.importlib.metadata.version

    def without(name):
        if name == "ray":
            raise machine.importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name == "numpy" else version(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", without)
    checks = {one.name: one for one in package_checks()}

    assert checks["torch"].found == version("torch")
    assert f"gymnasium {version('gymnasium')}, mujoco {version('mujoco')}" in checks["extra mujoco"].found
    assert (checks["extra ray"].problem, checks["extra ray"].hint) == (None, "pip install 'datasets-rl[ray]'")
    assert checks["numpy"].found.startswith("1.0, expected >=")
    assert checks["numpy"].hint.startswith("pip install 'numpy>=")
    assert checks["numpy"].problem.__name__ == "MissingDependencyError"
    assert "threads" in checks["import torch"].found
