"""``rlds download`` with real files and a local server."""

from __future__ import annotations

import dataclasses
import importlib.resources
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from servers import Status, serve

import datasets_rl.sources.demo
from datasets_rl import sources
from datasets_rl.downloading import DownloadOptions, run
from datasets_rl.fetch.asset import Asset
from datasets_rl.format.manifest import Manifest
from datasets_rl.sources import Selection
from datasets_rl.store import version_folder

RAW = importlib.resources.files(datasets_rl.sources.demo).joinpath("pendulum.hdf5")


def test_it_prints_the_folder_to_stdout_and_the_rest_to_stderr(rlds, home):
    ran = rlds("download", "demo/pendulum")

    assert ran.code == 0
    assert ran.out == f"{home / 'demo' / 'pendulum'}\n"
    assert "15,000 steps in 75 episodes" in ran.err
    assert "decision same-row (15,000)" in ran.err


def test_known_issues_are_reported_even_if_the_dataset_exists(rlds, stored):
    path = version_folder(stored) / "manifest.json"
    manifest = path.read_text()
    path.write_text(manifest.replace('"known_issues": []', '"known_issues": ["the seam is odd"]'))

    ran = rlds("download", "demo/pendulum")

    assert "already there" in ran.err
    assert "known issue: the seam is odd" in ran.err


def test_an_existing_dataset_is_not_changed_unless_forced(rlds, stored):
    before = version_folder(stored)

    assert rlds("download", "demo/pendulum", "--json").json["datasets"][0]["present"] is True
    assert version_folder(stored) == before
    assert rlds("download", "demo/pendulum", "--force", "--json").json["datasets"][0]["present"] is False
    assert version_folder(stored) != before
    assert not before.exists()


def test_a_repeated_id_is_downloaded_once(rlds):
    assert rlds("download", "demo/pendulum", "demo/pendulum", "-q").out.count("\n") == 1


def test_a_mirror_is_tried_first_and_recorded(rlds, home):
    with serve({"/lab/pendulum.hdf5": RAW.read_bytes()}) as server:
        ran = rlds("download", "demo/pendulum", "--mirror", f"{server.url}/lab", "--keep-raw", "--jobs", 1)

    raw = Manifest.read(home / "demo" / "pendulum").raw[0]
    assert ran.code == 0
    assert raw.url == f"{server.url}/lab/pendulum.hdf5"
    assert (home / "demo" / "pendulum" / "raw" / "pendulum.hdf5").read_bytes() == RAW.read_bytes()


def test_a_mirror_without_the_file_is_skipped(rlds, home):
    with serve({"/pendulum.hdf5": Status(404)}) as server:
        assert rlds("download", "demo/pendulum", "--mirror", server.url).code == 0

    assert Manifest.read(home / "demo" / "pendulum").raw[0].url.startswith("package:")


def test_without_a_reachable_address_the_code_is_that_of_the_network(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")

    ran = rlds("download", "d4rl/hopper-medium-v2", "--json")

    assert ran.code == 4
    assert ran.json["datasets"][0]["error"]["kind"] == "OfflineError"
    assert "--from-local" in ran.err


def test_a_file_with_another_digest_is_an_integrity_error_and_nothing_is_stored(rlds, home, tmp_path):
    (tmp_path / "pendulum.hdf5").write_bytes(RAW.read_bytes()[:-1] + b"x")

    ran = rlds("download", "demo/pendulum", "--from-local", tmp_path / "pendulum.hdf5")

    assert (ran.code, ran.out) == (5, "")
    assert "give another file with --from-local, or accept this file with --no-hash-check" in ran.err
    assert not (home / "demo" / "pendulum").exists()


def test_a_mirror_with_a_file_of_another_size_is_an_integrity_error(rlds, monkeypatch):
    """The upstream is unreachable, too, but running the command again would not help."""
    with serve({"/gym_mujoco_v2/hopper_medium-v2.hdf5": RAW}) as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("RLDS_MAX_RETRIES", "0")
        ran = rlds("download", "d4rl/hopper-medium-v2", "--mirror", server.url)

    assert (ran.code, ran.out) == (5, "")
    assert f"the served file has {RAW.stat().st_size:,} bytes, expected 152,756,557" in ran.err
    assert "--mirror URL" in ran.err
    assert "--no-hash-check" in ran.err


def test_an_edited_file_is_accepted_on_request_and_reported(rlds, tmp_path):
    (tmp_path / "pendulum.hdf5").write_bytes(RAW.read_bytes() + b"x")

    ran = rlds("download", "demo/pendulum", "--from-local", tmp_path, "--no-hash-check")

    assert ran.code == 0
    assert "not compared with the known digests" in ran.err


def test_one_local_file_cannot_be_several_datasets(rlds, tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"")

    ran = rlds("download", "demo/pendulum", "d4rl/hopper-medium-v2", "--from-local", tmp_path / "a.hdf5")

    assert ran.code == 2
    assert "a single id, or a folder" in ran.err


def test_raw_only_converts_nothing(rlds, home):
    with serve({"/pendulum.hdf5": RAW.read_bytes()}) as server:
        ran = rlds("download", "demo/pendulum", "--raw-only", "--mirror", server.url)

    assert ran.out == f"{home / 'demo' / 'pendulum' / 'raw'}\n"
    assert sorted(path.name for path in (home / "demo" / "pendulum").iterdir()) == [".datasets-rl", "raw"]


def test_a_cluster_is_selected_by_its_engine_and_its_address(rlds, home, monkeypatch):
    asked = []

    def noted(dataset_id, options):
        asked.append((dataset_id, options))
        return run.Downloaded(dataset_id, home, present=False, entry=sources.find(dataset_id), manifest=None)

    monkeypatch.setattr(run, "run_download", noted)

    rlds("download", "demo/pendulum", "--raw-only", "--engine", "ray", "--address", "ray://head:10001")
    assert type(asked[0][1].engine).__name__ == "RayEngine"

    refused = rlds("download", "demo/pendulum", "--address", "auto")
    assert refused.code == 2
    assert "add --engine ray" in refused.err


def test_options_reach_the_download(rlds, home, monkeypatch):
    asked = []

    def noted(dataset_id, options):
        asked.append((dataset_id, options))
        return run.Downloaded(dataset_id, home, present=False, entry=sources.find(dataset_id), manifest=None)

    monkeypatch.setattr(run, "run_download", noted)

    rlds(
        "download",
        "demo/pendulum",
        "--raw-only",
        "--limit-rate",
        "5MB",
        "-j",
        3,
        "-f",
        "--mirror",
        "a:",
        "--mirror",
        "b:",
    )

    ((dataset_id, options),) = asked
    assert (dataset_id, options.settings.jobs) == ("demo/pendulum", 3)
    assert options == DownloadOptions(
        force=True,
        mirrors=("a:", "b:"),
        raw_only=True,
        limit_rate=5_000_000,
        selection=Selection(),
        settings=options.settings,
    )


def test_a_dry_run_prints_the_planned_download_and_writes_nothing(rlds, home):
    ran = rlds("download", "d4rl/hopper-medium-v2", "demo/pendulum", "--dry-run", "--json")

    far, near = ran.json["datasets"]
    entry = sources.find("d4rl/hopper-medium-v2")
    assert ran.json["dry_run"] is True
    assert far["wire_bytes"] == entry.bytes == far["files"][0]["bytes"]
    assert far["peak_bytes"] == far["wire_bytes"] + far["stored_bytes"]
    assert far["free_bytes_after"] == far["free_bytes"] - far["stored_bytes"]
    assert near["wire_bytes"] == 0
    assert not home.exists()


def test_a_dry_run_of_several_datasets_prints_the_total(rlds):
    out = rlds("download", "d4rl/hopper-medium-v2", "d4rl/hopper-expert-v2", "--dry-run").out
    total = sum(sources.find(f"d4rl/hopper-{kind}-v2").bytes for kind in ("medium", "expert"))

    assert f"{total / 1e6:.1f} MB" in out.partition("together")[2]


@pytest.mark.usefixtures("stored")
def test_a_dry_run_does_not_plan_what_is_stored(rlds):
    ran = rlds("download", "demo/pendulum", "--dry-run")

    assert "nothing: already there" in ran.out
    assert rlds("download", "demo/pendulum", "--dry-run", "-q").out == ""


def test_unknown_sizes_are_printed_as_unknown(rlds):
    ran = rlds("download", "d4rl/ant-random-expert-v0", "d4rl/hopper-medium-v2", "--dry-run")

    assert "over the network\tunknown" in ran.out
    assert "and 1 of unknown size" in ran.out


def test_unknown_ids_are_all_reported_first_and_the_others_are_downloaded(rlds, home):
    ran = rlds("download", "demo/pendulum", "d4rl/nothing", "d4rl/neither")

    assert (ran.code, ran.out) == (1, f"{home / 'demo' / 'pendulum'}\n")
    places = [ran.err.index(text) for text in ("d4rl/nothing", "d4rl/neither", "15,000 steps")]
    assert places == sorted(places)


def test_a_single_unknown_id_ends_with_its_code(rlds, home):
    assert rlds("download", "d4rl/nothing").code == 3
    assert not home.exists()


def test_a_dry_run_that_does_not_fit_ends_with_6(rlds, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))

    ran = rlds("download", "d4rl/hopper-medium-v2", "--dry-run")

    assert ran.code == 6
    assert "does not fit: needs " in ran.err
    assert ", free 1.0 kB" in ran.err


def test_a_digest_that_was_only_recorded_is_reported(rlds, monkeypatch):
    read = Manifest.read

    def recorded(folder):
        manifest = read(folder)
        raw = tuple(dataclasses.replace(one, checked="recorded") for one in manifest.raw)
        return dataclasses.replace(manifest, raw=raw)

    monkeypatch.setattr(Manifest, "read", recorded)

    assert "no digest is known of 1 of 1 file: the sha256 was recorded" in rlds("download", "demo/pendulum").err


def test_a_download_that_does_not_fit_sends_no_request(rlds, monkeypatch):
    with serve({"/pendulum.hdf5": RAW.read_bytes()}) as server:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        monkeypatch.setattr(
            sources.get_source("demo"),
            "assets",
            lambda _: [Asset((f"{server.url}/pendulum.hdf5",), "pendulum.hdf5", 10**6)],
        )
        ran = rlds("download", "demo/pendulum")
        asked = rlds("download", "demo/pendulum", "--raw-only")

    assert ran.code == asked.code == 6
    assert "2,200,000 bytes needed" in ran.err  # the file, and 1.2 times its size for the dataset
    assert "1,000,000 bytes needed" in asked.err
    assert server.requests == []


def test_an_unknown_key_is_an_error_and_the_fetched_files_are_kept(rlds):
    with serve({"/lab/pendulum.hdf5": RAW.read_bytes()}) as server:
        wrong = rlds("download", "demo/pendulum", "--mirror", f"{server.url}/lab", "--keys", "observatoin", "-j", 1)
        asked = len(server.requests)
        right = rlds("download", "demo/pendulum", "--mirror", f"{server.url}/lab", "--keys", "observation", "-j", 1)

    assert (wrong.code, right.code) == (2, 0)
    assert "? the fetched files are kept, and are not fetched again" in wrong.err
    assert asked == len(server.requests) > 0


def test_the_option_root_is_repeated_in_suggested_commands(rlds, tmp_path, stored):
    root = tmp_path / "my data"
    again = f"rlds --root '{root}' "

    assert f"next: {again}download demo/pendulum" in rlds("sample", "demo/pendulum", "--root", root).err
    assert f"`{again}list` shows every id" in rlds("--root", root, "download", "d4rl/nothing", "d4rl/neither").err
    assert f"not downloaded; {again}download demo/pendulum" in rlds("info", "demo/pendulum", "--root", root).out
    (version_folder(stored) / "rows.npy").write_bytes(b"")
    assert (
        f"next: rlds --root {stored.parents[1]} download demo/pendulum --force"
        in rlds("verify", "demo/pendulum", "--root", stored.parents[1]).out
    )


def test_suggested_commands_have_no_root_where_none_was_given(rlds):
    assert "next: rlds download demo/pendulum" in rlds("path", "demo/pendulum").err


@pytest.mark.parametrize(
    ("episodes", "problem"),
    [("5:2", "selects none of the 75"), ("75", "there are 75, counted from 0"), ("first", "episodes are 'first'")],
)
def test_episodes_that_a_stored_dataset_does_not_have_are_refused(rlds, stored, episodes, problem):
    assert rlds("download", "demo/pendulum", "--episodes", "70:90").code == 0

    ran = rlds("download", "demo/pendulum", "--episodes", episodes)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err
    assert stored.is_dir()


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_keys_that_a_stored_dataset_does_not_have_are_refused_with_its_keys(rlds, more):
    refused = rlds("download", "demo/pendulum", "--keys", "observatoin", *more)

    assert refused.code == 2
    assert "no key 'observatoin'\n  why: it is not among action, episode, " in refused.err
    assert "did you mean observation" in refused.err
    for known in ("observation", "next.observation", "action,next.reward"):
        assert "already" in (done := rlds("download", "demo/pendulum", "--keys", known, *more)).err + done.out


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_root_in_which_no_folder_can_be_created_is_named_with_what_to_do(rlds):
    ran = rlds("--root", "/proc/x", "download", "demo/pendulum")

    assert ran.code == 1
    assert "/proc cannot be written\n  why: no folder can be created there" in ran.err
    assert "--root" in ran.err


def test_keys_without_a_name_are_an_error(rlds):
    ran = rlds("download", "demo/pendulum", "--force", "--keys", ",")
    assert ran.code == 2
    assert "names no field" in ran.err


def test_a_spike_is_shown_by_download_and_info(rlds, tmp_path):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=300).astype("f4")
    rewards[123] = 1e6
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(300, 3)).astype("f4"),
        actions=rng.normal(size=(300, 2)).astype("f4"),
        rewards=rewards,
        terminals=np.arange(300) % 100 == 99,
        timeouts=np.zeros(300, bool),
    )
    (tmp_path / "dataset.toml").write_text('name = "A log with a spike"')
    spike = "next.reward[0] is 1e+06 in row 123 (episode 1): more than 10,000 times as far"

    downloaded = rlds("download", "local/log", "--from-local", tmp_path)
    again = rlds("download", "local/log", "--json")

    assert f"  spike, kept: {spike}" in downloaded.err
    assert again.json["datasets"][0]["spikes"][0].startswith(spike)
    assert spike in " ".join(rlds("info", "local/log").out.split())
    assert len(rlds("info", "local/log", "--json").json["stored"]["spikes"]) == 1
