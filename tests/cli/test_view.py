"""`rlds view`: the address, the end by Ctrl-C, the port, and the exported file."""

from __future__ import annotations

import json
import signal
import socket
import subprocess

import httpx
import pytest
from stored_data import trajectory, write_dataset

from datasets_rl.look.page import ViewServer


@pytest.fixture
def view(command, process_env):
    """Start `rlds view` and return its process and its address; it is killed with the test."""
    started = []

    def start(*words):
        line = [command, "view", *map(str, words), "--port", "0"]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=process_env)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def exported(file):
    """Return the documents in an exported file."""
    return json.loads(file.read_text().split('id="report">')[1].split("</script>")[0])["documents"]


@pytest.mark.usefixtures("stored")
def test_the_address_is_printed_and_ctrl_c_ends_the_server_cleanly(view):
    process, url = view("demo/pendulum", "--no-open")
    with httpx.Client(base_url=url, trust_env=False) as client:  # a connection that stays open, as that of a browser
        facts = client.get("data/overview").json()["datasets"]

        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert [(one["id"], one["steps"]) for one in facts] == [("demo/pendulum", 15_000)]
    assert (process.returncode, out) == (0, "")
    assert err.startswith("Ctrl-C ends the server. From another machine, first: ssh -L ")


def test_a_mixture_is_viewed_by_its_members_with_their_shares(rlds, tmp_path):
    file = tmp_path / "report.html"
    folders = [
        write_dataset(tmp_path / name, [trajectory(30, seed=seed)], id=f"toy/{name}").folder
        for seed, name in enumerate("ab")
    ]
    rlds("mix", *folders, "--weights", "3,1", "-o", tmp_path / "mix.toml")

    ran = rlds("view", tmp_path / "mix.toml", "--export", file)

    assert ran.code == 0
    facts = exported(file)["overview"]["datasets"]
    assert [(one["id"], one["share"]) for one in facts] == [("toy/a", 0.75), ("toy/b", 0.25)]


@pytest.mark.usefixtures("stored")
def test_the_exported_file_has_all_that_it_needs(rlds, tmp_path):
    file = tmp_path / "report.html"

    ran = rlds("view", "demo/pendulum", "--export", file, "--json")

    documents = exported(file)
    assert (ran.code, ran.json["bytes"]) == (0, file.stat().st_size)
    assert documents["overview"]["datasets"][0]["episodes"] == 75
    assert len(documents["0/episodes"]["rows"]) == 9
    assert "page.css" not in file.read_text()
    assert "script-src 'sha256-" in file.read_text()


def test_the_exported_file_has_the_findings_of_an_audit_and_their_episodes(rlds, tmp_path):
    episodes = [trajectory(20 + number, seed=number) for number in range(30)]
    folder = write_dataset(tmp_path / "twice", [*episodes, episodes[11]]).folder
    file = tmp_path / "report.html"

    assert rlds("view", folder, "--audit", "--export", file).code == 0
    documents = exported(file)
    found = documents["overview"]["datasets"][0]["findings"]
    (row,) = [row for row in found["rows"] if row["check"] == "duplicate_episodes"]
    assert (row["episode"], row["step"], row["remedy"]) == (11, 0, "-t drop_episodes:30")
    assert found["usual"] not in {11, 30}
    assert f"0/episodes/{found['usual']}" in documents
    assert "0/episodes/11" in documents

    assert rlds("view", folder, "--export", file, "--force").code == 0
    assert exported(file)["overview"]["datasets"][0]["findings"] is None


@pytest.fixture
def normalized(rlds, stored):
    assert rlds("preprocess", "demo/pendulum", "-t", "normalize", "--in-place").code == 0
    return stored


@pytest.fixture
def panels(monkeypatch):
    """The panels of the servers that ran: each server ends at once."""
    shown, run = [], ViewServer.run

    def run_and_end(server):
        shown.extend(server.panels)
        server.stop()
        run(server)

    monkeypatch.setattr(ViewServer, "run", run_and_end)
    return shown


@pytest.mark.usefixtures("normalized")
def test_two_versions_are_shown_beside_each_other_from_the_first_pair_that_differs(rlds, panels):
    ran = rlds("view", "demo/pendulum:0001", "demo/pendulum", "--diff", "--no-open", "--port", "0")
    assert (ran.code, ran.out.strip().partition("#")[2]) == (0, "/pair/0")
    assert [panel.name for panel in panels] == ["demo/pendulum:0001", "demo/pendulum"]
    assert [one["name"] for one in panels[0].pairs.pair(0)["fields"] if one["first"]] == ["observation"]

    same = rlds("view", "demo/pendulum", "demo/pendulum", "--diff", "--no-open", "--port", "0")
    assert same.out.strip().partition("#")[2] == "/pairs"


def test_raw_files_are_shown_beside_a_dataset_and_are_not_stored(rlds, home, tmp_path):
    made = [trajectory(20 + number, seed=number) for number in range(4)]
    folder = write_dataset(tmp_path / "a", made).folder
    made[2].steps["action",][5, 1] = 9
    changed = write_dataset(tmp_path / "b", made).folder
    raw, file = tmp_path / "raw", tmp_path / "report.html"
    assert rlds("export", changed, "--to", "hdf5", "-o", raw).code == 0
    before = {*home.rglob("*")}

    assert rlds("view", folder, raw, "--diff", "--export", file).code == 0
    documents = exported(file)
    assert [row["episodes"] for row in documents["pairs"]["rows"]] == [[2, 2]]
    assert documents["pairs/2"]["first"] == 5
    assert {*home.rglob("*")} == before

    assert rlds("view", folder, raw, "--diff", "--episode", "3", "--export", file, "--force").code == 0
    assert {"pairs/2", "pairs/3"} < exported(file).keys()


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--diff"], "1 dataset is given why: expected 2 with --diff"),
        (["demo/pendulum", "demo/pendulum", "--diff"], "3 datasets are given why: expected 2 with --diff"),
        (["demo/pendulum", "--episode", "3"], "--episode is given without --diff"),
        (
            ["demo/pendulum", "--diff", "--episode", "75"],
            "demo/pendulum has no episode 75 why: expected 0 to 74",
        ),
    ],
)
def test_wrong_usage_of_a_comparison_is_explained(rlds, words, message):
    ran = rlds("view", "demo/pendulum", *words, "--no-open")
    assert ran.code == 2
    assert message in " ".join(ran.err.split())


def test_an_existing_file_is_overwritten_only_on_request(rlds, tmp_path):
    folder, file = write_dataset(tmp_path / "a", [trajectory(5)]).folder, tmp_path / "report.html"
    file.write_text("mine")

    refused = rlds("view", folder, "--export", file)

    assert (refused.code, file.read_text()) == (2, "mine")
    assert "add --force to overwrite it" in refused.err
    assert rlds("view", folder, "--export", file, "--force").code == 0
    written = file.read_bytes()
    again = rlds("view", folder, "--export", file)
    assert (again.code, file.read_bytes() == written) == (0, True)
    assert rlds("view", folder, "--export", tmp_path).code == 2
    assert rlds("view", folder, "--export", tmp_path / "no" / "r.html").code == 1


@pytest.mark.usefixtures("stored")
def test_a_port_in_use_is_wrong_usage_and_says_what_to_do(rlds):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = rlds("view", "demo/pendulum", "--port", port, "--no-open")

    assert (ran.code, ran.out) == (2, "")
    assert f"the port {port} cannot be used" in ran.err
    assert "choose another port" in ran.err


def test_a_dataset_that_is_not_stored_is_named_before_a_server_starts(rlds):
    ran = rlds("view", "demo/pendulum")

    assert ran.code == 3
    assert "next: rlds download demo/pendulum" in ran.err


@pytest.mark.usefixtures("stored")
def test_without_the_extra_the_error_has_the_pip_line(rlds, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)

    ran = rlds("view", "demo/pendulum", "--no-open")

    assert ran.code == 7
    assert "pip install 'datasets-rl[view]'" in ran.err
