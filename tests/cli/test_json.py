"""The keys of each command's JSON document, which programs rely on. Removing a key requires a new schema version."""

from __future__ import annotations

import pytest

from datasets_rl.cli.output import SCHEMA_VERSION

ERROR = {"kind", "what", "why", "hint", "code"}
CASES = {
    "list": (["list", "demo/pendulum"], {"datasets", "total"}),
    "info": (["info", "demo/pendulum"], {"id", "catalog", "stored", "versions", "found"}),
    "download": (["download", "demo/pendulum"], {"datasets", "dry_run"}),
    "verify": (["verify", "demo/pendulum"], {"datasets", "deep"}),
    "sample": (["sample", "demo/pendulum"], {"id", "folder", "batch_size", "final_unknown", "keys", "timing"}),
    "path": (["path", "demo/pendulum"], {"id", "path"}),
    "digest": (["digest", "demo/pendulum"], {"datasets"}),
    "score": (
        ["score", "demo/pendulum", "-1"],
        {"id", "low", "high", "origin", "percent", "returns", "scores", "mean"},
    ),
    "remove": (["remove", "demo/pendulum", "--dry-run"], {"datasets", "dry_run"}),
    "help": (["help", "exit-codes"], {"exit_codes"}),
}
ITEMS = {
    "list": {
        "id",
        "title",
        "environment",
        "observation",
        "action",
        "steps",
        "episodes",
        "wire_bytes",
        "disk_bytes",
        "basis",
        "license",
        "tags",
        "used_for",
        "score",
        "selection",
        "time_limit",
        "downloaded",
        "folder",
        "known_issues",
        "deprecated",
        "preprocessed",
    },
    "download": {
        "id",
        "folder",
        "present",
        "steps",
        "episodes",
        "bytes",
        "selection",
        "history",
        "known_issues",
        "spikes",
        "decisions",
        "error",
    },
    "digest": {"id", "files", "error"},
    "verify": {"id", "folder", "intact", "files", "bytes", "problems", "remarks", "checked", "error"},
    "remove": {"id", "folder", "paths", "bytes", "link_to", "kept", "removed", "error"},
}
PLAN = {
    "id", "folder", "present", "files", "wire_bytes", "stored_bytes", "peak_bytes", "free_bytes", "free_bytes_after", "error"
}  # fmt: skip
STORED = {
    "folder", "id", "copied_from", "selection",
    "steps", "episodes", "final_unknown", "bytes", "keys", "statistics", "spikes", "decisions", "known_issues", "raw", "metadata",
    "license", "citation", "homepage", "images", "orders", "score", "time_limit", "converter", "history",
}  # fmt: skip


def test_the_schema_version_is_recorded_here():
    assert SCHEMA_VERSION == 1


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", CASES)
def test_a_document_has_its_keys(rlds, command):
    words, keys = CASES[command]

    document = rlds(*words, "--json").json

    assert document["schema_version"] == SCHEMA_VERSION
    assert document["command"] == command
    assert set(document) - {"schema_version", "command"} == keys


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", ITEMS)
def test_every_item_of_a_document_has_its_keys(rlds, command):
    words, _ = CASES[command]

    assert [set(item) for item in rlds(*words, "--json").json["datasets"]] == [ITEMS[command]]


@pytest.mark.parametrize("command", ["download", "verify", "remove"])
def test_a_failed_item_has_the_same_keys_and_an_error(rlds, command):
    (item,) = rlds(command, "demo/nothing", "--json").json["datasets"]

    assert set(item) == ITEMS[command]
    assert set(item["error"]) == ERROR


def test_a_plan_has_its_keys(rlds):
    planned, failed = rlds("download", "demo/pendulum", "demo/nothing", "--dry-run", "--json").json["datasets"]

    assert set(planned) == set(failed) == PLAN


@pytest.mark.usefixtures("stored")
def test_a_stored_dataset_has_its_keys(rlds):
    document = rlds("info", "demo/pendulum", "--json").json

    assert set(document["stored"]) == STORED
    assert set(document["stored"]["keys"][0]) == {"key", "dtype", "shape", "where"}
    assert set(document["catalog"]["score"]) == {"low", "high", "origin"}


@pytest.mark.parametrize("command", [name for name in CASES if name != "list"])
def test_a_failed_command_is_a_document_with_an_error_or_failed_items(rlds, command):
    document = rlds(command, "nothing/here", *["1"] * (command == "score"), "--json").json

    error = document["error"] if command not in ITEMS else document["datasets"][0]["error"]
    assert set(error) == ERROR
