"""What listings read of a manifest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from stored_data import trajectory, write_dataset

from datasets_rl.errors import ManifestError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.summary import Summary


def test_it_has_the_statements_of_the_manifest(tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3)])
    whole, short = Manifest.read(tmp_path / "toy"), Summary.read(tmp_path / "toy")

    for field in ("id", "steps", "episodes", "bytes", "license", "citation", "homepage", "time_limit", "known_issues"):
        assert getattr(short, field) == getattr(whole, field)
    assert short.observation is not None
    assert len(short.recipes) == len(whole.history)


@pytest.mark.parametrize(
    ("metadata", "environment"),
    [
        ({"environment": "Arm-v1"}, "Arm-v1"),
        ({"env_spec": '{"id": "Hopper-v5", "kwargs": {}}'}, "Hopper-v5"),
        ({"env_spec": "no JSON"}, ""),
        ({"env_spec": "[1]"}, ""),
        ({"env_spec": {"file": "env_spec.npy"}}, ""),
        ({}, ""),
    ],
)
def test_the_environment_is_that_of_the_metadata(tmp_path, metadata, environment):
    write_dataset(tmp_path / "toy", [trajectory(3)], metadata=metadata)

    assert Summary.read(tmp_path / "toy").environment == environment


@pytest.mark.parametrize(
    "change",
    [{"steps": "many"}, {"schema": None}, {"schema": [{"key": []}]}, {"files": 3}, {"history": [3]}, {"metadata": 3}],
)
def test_a_manifest_without_a_statement_is_an_error(tmp_path, change):
    write_dataset(tmp_path, [trajectory(3)])
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(ManifestError, match="missing or malformed"):
        Summary.read(tmp_path)


def test_listing_stored_datasets_imports_no_numpy(tmp_path):
    write_dataset(tmp_path / "demo" / "pendulum", [trajectory(3)], id="demo/pendulum")
    script = f"""
import sys
from pathlib import Path
from datasets_rl import list_datasets
from datasets_rl.settings import Settings
found = list_datasets(downloaded=True, settings=Settings(home=Path({str(tmp_path)!r})))
print(found.infos[0].steps, "numpy" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert out.split() == ["3", "False"]
