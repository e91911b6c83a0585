"""Plain verification: the manifest covers the files, and its digest covers the manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import trajectory, write_dataset, write_manifest_with_digest

from datasets_rl import verify
from datasets_rl.errors import ManifestError
from datasets_rl.format.manifest import Manifest, RawFile, digest_of
from datasets_rl.format.reader import StoredDataset

RAW = (
    RawFile("a.hdf5", 7, "ab", "https://a/b", "catalog"),
    RawFile("b.hdf5", 7, "ab", "https://a/b", "recorded"),
    RawFile("c.hdf5", 7, "ab", "https://a/b", "recorded"),
)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A dataset of two episodes."""
    folder = tmp_path_factory.mktemp("intact") / "toy"
    write_dataset(folder, [trajectory(3), trajectory(2, seed=1, known=False)], known_issues=("the reward is late",))
    return folder


@pytest.fixture
def folder(intact, tmp_path):
    """A copy of the dataset for one test."""
    return shutil.copytree(intact, tmp_path / "toy")


def test_the_digest_is_the_sha256_of_the_canonical_json_without_the_digest(intact):
    """The digest as FORMAT.md specifies it."""
    document = json.loads((intact / "manifest.json").read_text())
    stated = document.pop("digest")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert stated == hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert Manifest.read(intact).digest == stated


@pytest.mark.first(2)
@pytest.mark.parametrize("distance", [67, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_in_the_manifest_is_found(intact, tmp_path, bit, distance):
    """One bit at bytes of this distance; a flip that leaves the parsed document unchanged does not count."""
    data = (intact / "manifest.json").read_bytes()
    folder = shutil.copytree(intact, tmp_path / "toy")
    missed = []
    for at in range(bit, len(data), distance):
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        with suppress(ValueError):
            if json.loads(changed) == json.loads(data):
                continue
        (folder / "manifest.json").write_bytes(changed)
        with suppress(ManifestError):
            if not verify(folder).problems:
                missed.append((at, bytes(changed[at - 20 : at + 20])))

    assert missed == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(document=st.dictionaries(st.text(), JSON, max_size=4))
def test_the_digest_survives_a_round_trip_through_any_json_writer(document):
    for written in (json.dumps(document, indent=3), json.dumps(document, ensure_ascii=False, sort_keys=True)):
        assert digest_of(json.loads(written)) == digest_of(document)


def test_a_changed_value_is_reported_and_the_dataset_still_opens(folder):
    """Opening does not compare digests, because it must be fast."""
    document = json.loads((folder / "manifest.json").read_text())
    document["statistics"]["return"]["mean"] += 1
    (folder / "manifest.json").write_text(json.dumps(document))

    (problem,) = verify(folder).problems

    assert problem.startswith("manifest.json has the digest ")
    assert len(StoredDataset(folder)) == 5


def test_a_manifest_without_a_digest_is_a_problem(folder):
    document = json.loads((folder / "manifest.json").read_text())
    del document["digest"]
    (folder / "manifest.json").write_text(json.dumps(document))

    assert verify(folder).problems == ("manifest.json has no digest: nothing vouches for the manifest",)


def test_the_digest_covers_unknown_keys(folder):
    """A later version may add keys; the digest covers them, and this version reads the dataset."""
    write_manifest_with_digest(folder, json.loads((folder / "manifest.json").read_text()) | {"mood": "good"})

    assert verify(folder).problems == ()
    assert len(StoredDataset(folder)) == 5


def test_raw_files_without_an_upstream_digest_are_reported_in_one_line(tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3)], raw=RAW)
    write_dataset(tmp_path / "sure", [trajectory(3)], raw=RAW[:1])

    (remark,) = verify(tmp_path / "toy").remarks

    assert remark.startswith("no upstream digest vouches for 2 of 3 raw files")
    assert "b.hdf5" in remark
    assert verify(tmp_path / "sure").remarks == ()
