"""``rlds push``, ``rlds download hf://...`` and ``rlds cite``."""

from __future__ import annotations

import pytest
from stored_data import store_dataset, trajectory
from upstreams import TOKEN, publishing

from datasets_rl.format.reader import StoredDataset


@pytest.fixture
def hub(tmp_path, monkeypatch, stored):  # noqa: ARG001 - the dataset to publish
    with publishing(tmp_path / "hub") as (server, there):
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False, raising=False)
        yield there


def test_a_dataset_is_pushed_downloaded_and_described(rlds, hub, home):
    pushed = rlds("push", "demo/pendulum", "hf://me/pendulum", "--private", "--json")
    address = pushed.json["address"]

    assert address == f"hf://me/pendulum@{hub.branches['me/pendulum', 'main']}"
    assert hub.private == {"me/pendulum"}
    assert rlds("download", address).out == f"{home}/hf/me/pendulum\n"
    assert rlds("download", "hf://me/pendulum").code == 0
    assert rlds("info", "hf/me/pendulum", "--json").json["stored"]["copied_from"]["id"] == "demo/pendulum"
    assert rlds("verify", "hf/me/pendulum").code == 0


@pytest.mark.usefixtures("hub")
def test_every_command_takes_the_address_of_a_stored_dataset(rlds, home):
    rlds("push", "demo/pendulum", "hf://me/pendulum")
    rlds("download", "hf://me/pendulum")

    for address in ("hf://me/pendulum", "hf://datasets/me/pendulum"):
        assert rlds("path", address).out == f"{home}/hf/me/pendulum\n"
        assert rlds("info", address, "--json").json["stored"]["steps"] == 15_000
        for words in (
            ("verify",),
            ("sample",),
            ("describe", "--keys", "action"),
            ("score", "-1000"),
            ("cite",),
            ("export", "--to", "npz", "--dry-run"),
            ("preprocess", "--transform", "reward_scaling:scale=2", "--as", "half", "--dry-run"),
        ):
            ran = rlds(words[0], address, *words[1:])
            assert ran.code == 0, (words, ran.err)
        ran = rlds("info", f"{address}@v3.0")
        assert ran.code == 2
        assert f"{address}@v3.0 names a revision" in ran.err
        assert "use the name hf/me/pendulum" in ran.err
    assert "hf://me is not an address" in rlds("info", "hf://me").err.replace("'", "")
    assert rlds("remove", "hf://me/pendulum", "--yes").code == 0
    assert not (home / "hf" / "me" / "pendulum" / "CURRENT").exists()


def test_the_plan_of_a_download_names_the_pinned_files(rlds, hub, stored):
    rlds("push", "demo/pendulum", "hf://me/pendulum")
    (plan,) = rlds("download", "hf://me/pendulum", "--dry-run", "--json").json["datasets"]

    assert plan["wire_bytes"] == plan["stored_bytes"] == StoredDataset(stored).manifest.bytes
    assert hub.branches["me/pendulum", "main"] in plan["files"][0]["urls"][0]


@pytest.mark.usefixtures("hub")
def test_a_push_without_permission_is_a_network_error_with_a_hint(rlds, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    ran = rlds("push", "demo/pendulum", "hf://me/pendulum")

    assert ran.code == 4
    assert "status 401" in ran.err
    assert "HF_TOKEN" in ran.err


def test_cite_prints_each_entry_once(rlds):
    ran = rlds("cite", "d4rl/hopper-medium-v2", "d4rl/kitchen-mixed-v0")

    assert ran.code == 0
    assert ran.out.count("@article{fu2020d4rl,") == ran.out.count("@inproceedings{gupta2019relay,") == 1
    assert rlds("cite", "d4rl/hopper-medium-v2", "--quiet").out == "fu2020d4rl\n"


def test_cite_prints_two_papers_with_one_key(rlds, tmp_path):
    folders = [
        store_dataset(
            tmp_path / title, [trajectory(5)], id=f"toy/{title}", citation=f"@misc{{example,\n  title = {{{title}}}\n}}"
        ).folder.parent
        for title in ("one", "two")
    ]
    ran = rlds("cite", *folders)

    assert ran.out.split("\n\n") == ["@misc{example,\n  title = {one}\n}", "@misc{example_2,\n  title = {two}\n}\n"]


def test_cite_as_json_has_the_entries_of_each_dataset(rlds):
    (one,) = rlds("cite", "d4rl/hopper-medium-v2", "--json").json["datasets"]

    assert one["id"] == "d4rl/hopper-medium-v2"
    assert [(entry["key"], entry["of"]) for entry in one["citations"]] == [("fu2020d4rl", ["d4rl/hopper-medium-v2"])]


def test_an_unknown_id_cannot_be_cited(rlds):
    assert rlds("cite", "d4rl/nope").code == 3


def test_a_statement_is_written_with_what_is_left_open(rlds, stored, tmp_path):  # noqa: ARG001 - the dataset is in the home
    ran = rlds("cite", "--statement", "demo/pendulum", "--out", tmp_path / "out", "--parquet", "--json")
    (one,) = ran.json["datasets"]

    assert ran.code == 0
    assert (one["id"], one["folder"]) == ("demo/pendulum", str(tmp_path / "out" / "demo-pendulum"))
    assert {"creators", "funding", "version"} <= {*one["open"]}
    assert "license" not in one["open"]
    files = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*") if path.is_file()
    }
    assert files == {
        "references.bib",
        "appendix.tex",
        "demo-pendulum/datasheet.md",
        "demo-pendulum/croissant.json",
        *(
            f"demo-pendulum/parquet/{name}"
            for name in ("dataset.toml", "episodes.parquet", "rlds-export.json", "steps.parquet")
        ),
    }
    again = rlds("cite", "--statement", "demo/pendulum", "--out", tmp_path / "out")
    assert again.code == 2
    assert "why: it exists and is not an empty folder" in again.err
    assert "--out" in again.err


def test_options_of_a_statement_need_the_statement(rlds):
    ran = rlds("cite", "demo/pendulum", "--parquet", "--no-audit")

    assert ran.code == 2
    assert "--parquet, --no-audit is given without --statement" in ran.err


@pytest.mark.usefixtures("hub", "stored")
def test_a_push_with_a_folder_that_is_no_statement_says_which_command_writes_one(rlds, tmp_path):
    ran = rlds("push", "demo/pendulum", "hf://me/pendulum", "--statement", tmp_path)

    assert ran.code == 2
    assert "is not the statement of a dataset" in ran.err
    assert "next: rlds cite --statement demo/pendulum --out PATH writes the statement of the dataset" in ran.err
