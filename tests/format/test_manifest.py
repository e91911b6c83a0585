"""A manifest is validated before its files are opened: all problems are named, and no file outside is read."""

from __future__ import annotations

import copy
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_data import trajectory, write_dataset, write_manifest_with_digest

from datasets_rl.errors import IntegrityError, ManifestError, NotADatasetError
from datasets_rl.format.manifest import FORMAT_VERSION, Manifest, RawFile
from datasets_rl.format.reader import StoredDataset
from datasets_rl.storages import DatasetStorage


@pytest.fixture
def folder(tmp_path):
    """An intact dataset of two episodes."""
    write_dataset(tmp_path / "toy", [trajectory(3), trajectory(2, seed=1, known=False)])
    return tmp_path / "toy"


def document_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def put(folder: Path, document: object) -> None:
    (folder / "manifest.json").write_text(json.dumps(document))


def at(document: dict, *path, value):
    """Return a copy of the document with one value replaced."""
    document = copy.deepcopy(document)
    node = document
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return document


def nested(depth):
    value: object = "deep"
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_written_is_read_back(folder):
    document = document_of(folder)

    assert Manifest.read(folder).to_json() == document


def test_raw_files_and_every_field_are_read_back(folder):
    document = document_of(folder) | {
        "raw": [
            {"path": "a.hdf5", "bytes": 7, "sha256": "ab", "url": "https://a/b", "checked": "catalog", "etag": None}
        ],
        "decisions": [{"rule": "same-row", "text": "unchanged", "count": 5}],
        "known_issues": ["the reward is late"],
        "metadata": {"algorithm": "SAC"},
        "time_limit": 1000,
        "license": "CC BY 4.0",
    }
    write_manifest_with_digest(folder, document)
    manifest = Manifest.read(folder)

    assert manifest.raw == (RawFile("a.hdf5", 7, "ab", "https://a/b", "catalog"),)
    assert manifest.decisions[0].rule == "same-row"
    assert manifest.to_json() == document_of(folder)
    assert manifest.to_json() | {"digest": ""} == document | {"digest": ""}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "rlds/tfds"),
        (("format_version",), None),
        (("format_version",), "1"),
        (("id",), 7),
        (("id",), nested(800)),
        (("steps",), -5),
        (("steps",), 0),
        (("steps",), 5.5),
        (("steps",), True),
        (("steps",), "5"),
        (("steps",), None),
        (("steps",), 10**40),
        (("steps",), 6),
        (("episodes",), 0),
        (("episodes",), 10**12),
        (("final_unknown",), -1),
        (("time_limit",), 0),
        (("time_limit",), "1000"),
        (("score",), []),
        (("score",), {"low": 1.0, "high": 1.0, "origin": "me"}),
        (("score",), {"low": "0", "high": 1.0, "origin": "me"}),
        (("score",), {"low": 0.0, "high": True, "origin": "me"}),
        (("score",), {"low": 0.0, "high": 1.0}),
        (("history",), [{"recipe": 3}]),
        (("history",), [{"recipe": {"steps": [3]}}]),
        (("history",), [{"recipe": {"steps": []}, "of": {"id": "a/b"}}]),
        (("history",), [{"merged": [{}]}]),
        (("history",), [{"merged": 3}]),
        (("copied_from",), {"address": 3}),
        (("copied_from",), {"selection": 3}),
        (("selection",), {"options": 3}),
        (("known_issues",), 5),
        (("known_issues",), [5]),
        (("known_issues",), "text"),
        (("statistics",), []),
        (("specs",), None),
        (("metadata",), "x"),
        (("raw",), None),
        (("raw",), [{"path": "../x", "bytes": 1, "sha256": "", "url": "", "checked": "", "etag": None}]),
        (("decisions",), [{"rule": "x"}]),
        (("files",), {}),
        (("files",), []),
        (("files",), nested(800)),
        (("files", 0), "rows.npy"),
        (("files", 0, "path"), "../../etc/passwd"),
        (("files", 0, "path"), "/etc/passwd"),
        (("files", 0, "path"), "C:\\x"),
        (("files", 0, "path"), "a/../../x"),
        (("files", 0, "path"), ""),
        (("files", 0, "path"), "."),
        (("files", 0, "path"), "a\0b"),
        (("files", 0, "path"), "\ud800"),
        (("files", 0, "path"), "x" * 100_000),
        (("files", 0, "path"), ["rows.npy"]),
        (("files", 0, "path"), "missing.npy"),
        (("files", 0, "bytes"), -1),
        (("files", 0, "bytes"), 10**30),
        (("files", 0, "bytes"), True),
        (("files", 0, "sha256"), 5),
        (("schema",), None),
        (("schema",), []),
        (("schema",), nested(800)),
        (("schema", 0), "observation"),
        (("schema", 0), {}),
        (("schema", 0, "key"), "observation"),
        (("schema", 0, "key"), []),
        (("schema", 0, "key"), [""]),
        (("schema", 0, "key"), nested(800)),
        (("schema", 0, "key"), ["..", "x"]),
        (("schema", 0, "key"), ["a/b"]),
        (("schema", 0, "key"), ["a.b"]),
        (("schema", 0, "key"), ["action"]),
        (("schema", 0, "key"), ["action", "x"]),
        (("schema", 0, "key"), ["next"]),
        (("schema", 0, "key"), ["next", "observation"]),
        (("schema", 0, "key"), ["done"]),
        (("schema", 0, "key"), ["episodes"]),
        (("schema", 0, "dtype"), "|O"),
        (("schema", 0, "dtype"), "O"),
        (("schema", 0, "dtype"), ">f4"),
        (("schema", 0, "dtype"), "<f16"),
        (("schema", 0, "dtype"), "<c16"),
        (("schema", 0, "dtype"), "<U9"),
        (("schema", 0, "dtype"), "|V8"),
        (("schema", 0, "dtype"), "a4"),
        (("schema", 0, "dtype"), "(99999999,)f4"),
        (("schema", 0, "dtype"), "f4,f4"),
        (("schema", 0, "dtype"), ["<f4"]),
        (("schema", 0, "memory_dtype"), "|O"),
        (("schema", 0, "memory_dtype"), "<f8"),
        (("schema", 0, "memory_dtype"), 5),
        (("schema", 0, "shape"), "3"),
        (("schema", 0, "shape"), [-3]),
        (("schema", 0, "shape"), [0]),
        (("schema", 0, "shape"), [3.5]),
        (("schema", 0, "shape"), [True]),
        (("schema", 0, "shape"), [2**70]),
        (("schema", 0, "shape"), [2**31, 2**31, 2**31]),
        (("schema", 0, "shape"), None),
        (("schema", 0, "offset"), -4),
        (("schema", 0, "offset"), 3),
        (("schema", 0, "offset"), 4),
        (("schema", 0, "offset"), 2**62),
        (("schema", 0, "offset"), 10**40),
        (("schema", 0, "offset"), "0"),
        (("schema", 0, "shared"), 1),
        (("schema", 0, "file"), "../rows.npy"),
        (("schema", 0, "file"), "/etc/passwd"),
        (("schema", 0, "file"), "final.npy"),
        (("schema", 0, "file"), "observation.npy"),
        (("schema", 0, "file"), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_hostile_value_is_refused_at_open(folder, path, value):
    """No value causes another type of exception: callers catch ours and show the folder."""
    put(folder, at(document_of(folder), *path, value=value))

    with pytest.raises((ManifestError, IntegrityError)):
        DatasetStorage(StoredDataset(folder))


@pytest.mark.first(5, of="value")
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("value", [None, True, -1, 1e308, "", [], {}, nested(50)], ids=repr)
def test_any_value_anywhere_opens_as_it_was_or_is_refused(folder, number, value):
    """Replacing any entry of the document never causes a crash or different data."""
    document = document_of(folder)
    name = sorted(document)[number]
    put(folder, at(document, name, value=value))
    expected = trajectory(3).states["observation",][0].tolist()

    with suppress(IntegrityError):
        assert DatasetStorage(StoredDataset(folder)).get(0)["observation"].tolist() == expected


@pytest.mark.parametrize("name", ["next.reward", "next.done", "next.terminated", "next.truncated", "episode"])
def test_a_missing_ted_field_is_reported(folder, name):
    document = document_of(folder)
    document["schema"] = [field for field in document["schema"] if ".".join(field["key"]) != name]
    put(folder, document)

    with pytest.raises(ManifestError, match=f"{name} is not in the schema"):
        StoredDataset(folder)


def test_all_errors_are_reported_at_once(folder):
    """A manifest with five problems should cost one run, not five."""
    document = document_of(folder)
    document |= {"steps": -1, "episodes": "two", "known_issues": [1], "statistics": None}
    document["files"][0]["path"] = "../x"
    document["schema"][0] |= {"dtype": "|O", "shape": [-1]}
    put(folder, document)

    with pytest.raises(ManifestError) as caught:
        StoredDataset(folder)
    for part in ("steps is -1", "episodes is 'two'", "known_issues is", "statistics is", "../x", ".dtype is"):
        assert any(part in problem for problem in caught.value.problems), part


@pytest.mark.parametrize(
    ("version", "hint"),
    [(FORMAT_VERSION - 1, "download it again with force=True"), (FORMAT_VERSION + 1, "upgrade datasets-rl")],
    ids=["earlier", "later"],
)
def test_another_format_version_is_an_error_and_a_later_one_suggests_an_upgrade(folder, version, hint):
    put(folder, at(document_of(folder), "format_version", value=version))

    with pytest.raises(ManifestError, match=f"format_version is {version}, expected {FORMAT_VERSION}") as caught:
        StoredDataset(folder)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": NaN}', "[" * 100_000, "\ufeff{}", '{"steps": ' + "9" * 5000 + "}"],
    ids=lambda text: repr(text)[:20],
)
def test_text_that_is_not_a_json_object_is_refused(folder, text):
    (folder / "manifest.json").write_text(text, encoding="utf-8")

    with pytest.raises(ManifestError):
        StoredDataset(folder)


def test_bytes_that_are_not_text_are_refused(folder):
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00{}")

    with pytest.raises(ManifestError, match="not JSON"):
        StoredDataset(folder)


def test_a_huge_manifest_is_not_read(folder):
    """A gigabyte of JSON would need many gigabytes of memory; the size is checked first."""
    with (folder / "manifest.json").open("r+b") as stream:
        stream.truncate(1 << 30)

    with pytest.raises(ManifestError, match="at most"):
        StoredDataset(folder)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_manifest_that_is_not_a_regular_file_is_refused(folder, kind):
    """Reading a named pipe would block forever."""
    path = folder / "manifest.json"
    kept = path.rename(folder.parent / "elsewhere.json")
    {"link": lambda: path.symlink_to(kept), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()

    with pytest.raises(ManifestError, match="not a regular file"):
        StoredDataset(folder)


def test_a_folder_without_a_manifest_is_not_a_dataset(folder):
    (folder / "manifest.json").unlink()

    with pytest.raises(NotADatasetError, match="no manifest"):
        StoredDataset(folder)


def test_a_link_instead_of_a_file_is_refused_for_any_size_in_the_manifest(folder):
    outside = folder.parent / "outside.npy"
    (folder / "rows.npy").rename(outside)
    (folder / "rows.npy").symlink_to(outside)

    with pytest.raises(IntegrityError, match=r"rows\.npy is a link"):
        StoredDataset(folder)


def test_a_folder_of_files_that_is_a_link_is_refused(folder):
    document = document_of(folder)
    outside = folder.parent / "outside"
    outside.mkdir()
    np.save(outside / "w.npy", np.zeros(3))
    (folder / "metadata").symlink_to(outside)
    size = (outside / "w.npy").stat().st_size
    document["files"].append({"path": "metadata/w.npy", "bytes": size, "digest": ""})
    document["metadata"] = {"w": {"file": "metadata/w.npy"}}
    put(folder, document)

    with pytest.raises(IntegrityError, match=r"metadata/w\.npy is a link"):
        StoredDataset(folder)


def test_a_pipe_instead_of_a_file_is_refused(folder):
    document = document_of(folder)
    os.mkfifo(folder / "pipe.npy")
    document["files"].append({"path": "pipe.npy", "bytes": 0, "digest": ""})
    put(folder, document)

    with pytest.raises(IntegrityError, match=r"pipe\.npy is a link or not a regular file"):
        StoredDataset(folder)


@pytest.mark.parametrize(
    ("metadata", "fps"),
    [
        ({}, None),
        ({"fps": 10}, 10),
        ({"fps": 29.97}, 29.97),
        ({"fps": 0, "control_frequency": 5}, 5),
        ({"control_freq": 20}, 20),
        ({"fps": "10"}, None),
        ({"fps": True}, None),
        ({"env_args": json.dumps({"env_kwargs": {"control_freq": 20}})}, 20),
        ({"env_args": "{"}, None),
        ({"env_args": "[]"}, None),
        ({"0/fps": 10, "1/fps": 10.0}, 10),
        ({"0/fps": 10, "1/fps": 20}, None),
        ({"0/fps": 10, "1/robot_type": "arm"}, None),
        ({"fps": 5, "0/fps": 10, "1/fps": 10}, 5),
    ],
)
def test_the_frame_rate_is_what_the_metadata_states(folder, metadata, fps):
    assert replace(Manifest.read(folder), metadata=metadata).fps == fps
