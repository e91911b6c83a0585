"""``rlds digest``: the digests of files, as the addresses state them."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from d4rl_files import write
from raw.d4rl import columns
from servers import Status, serve
from upstreams import hub

from datasets_rl import sources

NAME = "kitchen-complete-v0"
PATH = "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5"
FILE = PATH.rpartition("/")[2]


@pytest.fixture
def mirror(tmp_path):
    """Return the folder of a repository on the hub with the file of a dataset without a known digest."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    write(folder / FILE, {**columns(), "padding": columns()["observations"]}, track_times=False)
    return folder


@pytest.fixture
def upstreams(monkeypatch):
    """Serve the mirror; return a function that makes a web server the first address."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("RLDS_RETRIES", "0")

    def use(server, base):
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setitem(sources.get_source("d4rl").catalog, "base_urls", [f"{base}/"])

    return use


def test_every_id_has_a_second_address_and_no_two_files_share_it():
    source = sources.get_source("d4rl")
    urls = {source.assets(name)[0].path: source.assets(name)[0].urls for name in source.ids()}

    assert len(urls) == len({found[-1] for found in urls.values()}) == 174
    assert urls[PATH] == (
        f"http://rail.eecs.berkeley.edu/datasets/offline_rl/{PATH}",
        f"https://rail.eecs.berkeley.edu/datasets/offline_rl/{PATH}",
        f"hf://datasets/imone/D4RL/{FILE}",
    )


def test_a_dataset_is_fetched_from_the_mirror_where_the_server_refuses(rlds, mirror, upstreams):
    with serve({f"/{PATH}": Status(403)}) as refusing, hub({"imone/D4RL": mirror}) as server:
        upstreams(server, refusing.url)
        ran = rlds("download", f"d4rl/{NAME}", "--raw-only")

        assert ran.code == 0, ran.err
        assert [request.path for request in refusing.requests if request.method == "GET"][:1] == [f"/{PATH}"]


def test_the_entry_of_the_catalog_is_printed_without_a_download(rlds, mirror, upstreams):
    data = (mirror / FILE).read_bytes()
    with serve({f"/{PATH}": data}) as web, hub({"imone/D4RL": mirror}) as server:
        upstreams(server, web.url)
        ran, quiet = rlds("digest", f"d4rl/{NAME}", "--json"), rlds("digest", f"d4rl/{NAME}", "-q")
        sent = [
            request.headers.get("range") for request in (*web.requests, *server.requests) if request.method == "GET"
        ]

    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert json.loads("{" + quiet.out + "}") == {NAME: entry}
    (file,) = ran.json["datasets"][0]["files"]
    assert file["entry"] == entry
    assert [(one["size"], one["sha256"]) for one in file["reported"]] == [
        (len(data), None),
        (len(data), entry["sha256"]),
    ]
    assert {*sent} == {"bytes=0-0"}


def test_addresses_with_other_bytes_are_an_error(rlds, mirror, upstreams):
    with serve({f"/{PATH}": b"other"}) as web, hub({"imone/D4RL": mirror}) as server:
        upstreams(server, web.url)
        ran = rlds("digest", f"d4rl/{NAME}")

    assert ran.code == 5
    assert f"{web.url}/{PATH}: 5 bytes" in ran.err


def test_a_digest_of_the_catalog_is_compared_and_a_silent_address_is_named(rlds, mirror, upstreams):
    with serve({}) as web, hub({"imone/D4RL": mirror}) as server:
        upstreams(server, web.url)
        ran = rlds("digest", "d4rl/walker2d-medium-v2")

    # The digest with which the hub's file is published elsewhere, too.
    assert "cf00f43add04c17fdfc2958dd581dea0851b2e5bedbe6fda073758a8f841aeda" in ran.out
    assert ran.out.count("status 404") == 2
    assert rlds("digest", "minari/D4RL/pen/human-v2").code == 2


def test_a_stored_copy_is_compared_without_a_network(rlds, mirror, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    made = rlds("download", "d4rl/bullet-hopper-random-v0", "--from-local", mirror / FILE)
    ran = rlds("digest", "d4rl/bullet-hopper-random-v0", "-q")

    assert made.code == 0, made.err
    digest = hashlib.sha256((mirror / FILE).read_bytes()).hexdigest()
    assert json.loads("{" + ran.out + "}")["bullet-hopper-random-v0"]["sha256"] == digest


@pytest.fixture
def kitchen(tmp_path):
    """Return a folder with a file of the shapes and the steps that the catalog states."""
    return write_kitchen(tmp_path / "kitchen", 3680)


def write_kitchen(folder, rows):
    draw = np.random.default_rng(0)
    arrays = {
        "observations": draw.normal(size=(rows, 60)).astype("f4"),
        "actions": draw.uniform(-1, 1, (rows, 9)).astype("f4"),
        "rewards": np.zeros(rows, "f4"),
        "terminals": np.arange(rows) % 20 == 19,
        "timeouts": np.zeros(rows, bool),
    }
    folder.mkdir()
    write(folder / FILE, arrays, track_times=False)
    return folder


def test_a_copy_without_a_known_digest_is_reported_and_compared_with_the_catalog(kitchen, upstreams, rlds):
    with hub({"imone/D4RL": kitchen}) as server, serve({f"/{PATH}": Status(404)}) as web:
        upstreams(server, web.url)
        ran = rlds("download", f"d4rl/{NAME}")

    assert ran.code == 0
    assert f"/{FILE} is a copy by others, and was compared with the catalog" in ran.err


def test_a_copy_with_other_steps_than_the_catalog_states_is_refused(tmp_path, upstreams, rlds):
    mirror = write_kitchen(tmp_path / "few", 20)
    with hub({"imone/D4RL": mirror}) as server, serve({f"/{PATH}": Status(404)}) as web:
        upstreams(server, web.url)
        refused = [rlds("download", f"d4rl/{NAME}") for _ in range(2)]
        accepted = rlds("download", f"d4rl/{NAME}", "--no-hash-check")

    for ran in refused:
        assert ran.code == 8
        assert "is a copy by others with an unknown digest" in ran.err
        assert "the dataset has 20 steps, expected about 3,680 as in the catalog" in ran.err
        assert "--no-hash-check" in ran.err
    assert accepted.code == 0


def test_the_upstream_itself_is_not_compared_with_the_catalog(tmp_path, upstreams, rlds):
    mirror = write_kitchen(tmp_path / "few", 20)
    with hub({"imone/D4RL": mirror}) as server, serve({f"/{PATH}": mirror / FILE}) as web:
        upstreams(server, web.url)
        ran = rlds("download", f"d4rl/{NAME}")

    assert ran.code == 0
    assert "is a copy" not in ran.err


def test_a_file_must_have_the_digest_that_was_recorded_before(kitchen, upstreams, rlds, tmp_path):
    with hub({"imone/D4RL": kitchen}) as server, serve({f"/{PATH}": kitchen / FILE}) as web:
        upstreams(server, web.url)
        assert rlds("download", f"d4rl/{NAME}").code == 0
    (tmp_path / "other").mkdir()
    data = (kitchen / FILE).read_bytes()
    (tmp_path / "other" / FILE).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with hub({"imone/D4RL": tmp_path / "other"}) as server, serve({f"/{PATH}": Status(404)}) as web:
        upstreams(server, web.url)
        refused = rlds("download", f"d4rl/{NAME}", "--force")
        kept = rlds("info", f"d4rl/{NAME}", "--json").json["stored"]
        accepted = rlds("download", f"d4rl/{NAME}", "--force", "--no-hash-check")

    assert refused.code != 0
    assert hashlib.sha256(data).hexdigest()[:12] in refused.err
    assert kept["steps"] == 3680
    assert accepted.code == 0
