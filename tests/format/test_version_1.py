"""Datasets of format version 1 can be opened, verified and upgraded without a change of rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from datasets_rl import load, open_dataset, store, verification
from datasets_rl.format.manifest import FORMAT_VERSION, Manifest
from datasets_rl.format.reader import StoredDataset

FORMER = Path(__file__).parents[1] / "golden" / "version_1"


@pytest.fixture(params=["toy", "toy@scaled"])
def folder(request, tmp_path):
    """A dataset that version 0.1.0 of this package wrote, in a home folder."""
    return Path(shutil.copytree(FORMER / request.param, tmp_path / "home" / "local" / request.param))


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_opens_samples_and_verifies(folder):
    stored = StoredDataset(folder)
    batch = open_dataset(folder, batch_size=5, final_unknown="keep").sample()

    assert json.loads((folder / "manifest.json").read_text())["format_version"] == 1
    assert (stored.manifest.license, stored.manifest.known_issues) == ("MIT", ("the second joint was loose",))
    assert [field.name for field in stored.schema if field.shared] == ["observation"]
    assert stored.schema[("episode",)].memory_dtype == np.int64
    assert batch["observation"].shape == (5, 3)
    assert verification.verify(folder, deep=True).problems == ()


def test_an_upgrade_rewrites_the_manifest_alone(folder):
    before, manifest = files_of(folder), Manifest.read(folder)
    inodes = {path.name: path.stat().st_ino for path in folder.rglob("*.npy")}
    reader = StoredDataset(folder)

    assert store.upgrade(folder)
    after = files_of(folder)

    assert {path for path in after if after[path] != before.get(path)} == {"manifest.json"}
    assert {path.name: path.stat().st_ino for path in folder.rglob("*.npy")} == inodes
    assert json.loads(after["manifest.json"])["format_version"] == FORMAT_VERSION
    assert Manifest.read(folder) == manifest
    assert verification.verify(folder, deep=True).problems == ()
    assert len(reader.column(("observation",))) == manifest.steps
    assert not store.upgrade(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_changed_value_is_found_in_a_manifest_of_version_1(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("the second joint", "the third joint"))

    assert any("changed after it was written" in one for one in verification.verify(folder).problems)


def test_load_finds_it_by_its_id(folder, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(folder.parents[1]))

    assert len(load(f"local/{folder.name}", download=False, final_unknown="keep")) == 10
