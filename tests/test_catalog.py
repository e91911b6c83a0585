"""`list_datasets` and `info`, which need no network."""

from __future__ import annotations

import pytest
from stored_data import columns, trajectory, write_dataset

from datasets_rl import info, list_datasets
from datasets_rl.errors import UnknownIdError
from datasets_rl.preprocessing import Recipe, preprocess

ID = "demo/pendulum"


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    write_dataset(tmp_path / "demo" / "pendulum", [trajectory(4, seed=1), trajectory(3, seed=2)], columns(), id=ID)
    return tmp_path / "demo" / "pendulum"


@pytest.mark.parametrize(
    ("pattern", "source", "expected"),
    [
        ("demo/pendul", "", [ID]),
        ("PENDULUM", "demo", [ID]),
        ("hopper-medium-v?", "d4rl", [f"d4rl/hopper-medium-v{number}" for number in range(3)]),
        ("nothing-like-this", "", []),
    ],
)
def test_ids_are_found_by_a_part_or_a_glob(tmp_path, monkeypatch, pattern, source, expected):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))

    assert list_datasets(pattern, source=source) == expected


def test_stored_datasets_are_listed_with_derived_ones(stored):
    preprocess(stored, Recipe.inline(["keep_lengths:4"]), as_="long")

    assert list_datasets(downloaded=True) == [ID, f"{ID}@long"]
    assert list_datasets(source="d4rl", downloaded=True) == []


@pytest.mark.usefixtures("stored")
def test_a_source_that_does_not_exist_is_an_error():
    with pytest.raises(UnknownIdError, match="nowhere"):
        list_datasets(source="nowhere")


def test_info_of_a_dataset_that_is_not_stored_is_the_entry_of_the_catalog():
    found = info("d4rl/hopper-medium-v2")

    assert (found.id, found.folder, found.manifest, found.versions) == ("d4rl/hopper-medium-v2", None, None, ())
    assert found.entry.license == "CC BY 4.0"


def test_info_of_a_stored_dataset_has_its_manifest_and_earlier_versions(stored):
    preprocess(stored, Recipe.inline(["keep_lengths:4"]), in_place=True)
    found = info(ID)

    assert (found.id, found.folder, found.manifest.episodes) == (ID, stored, 1)
    assert [folder.is_dir() for folder in found.versions] == [True]
    assert info(stored) == info(ID).__class__(ID, None, stored, found.manifest, found.versions)


@pytest.mark.usefixtures("stored")
def test_info_of_an_id_that_no_catalog_has_is_an_error():
    with pytest.raises(UnknownIdError, match="pendulu"):
        info("demo/pendulu")
