"""Attributes of the groups of an HDF5 file: what a robot's recorder states about each episode is not lost."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from datasets_rl import download, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import describe_files, draft_description

LENGTHS = [3, 5, 2]
SUCCESS = [True, False, True]
TASKS = ["pick", "place", "pick"]


def write(path, *attributes):
    with h5py.File(path, "w") as file:
        for number, (length, own) in enumerate(zip(LENGTHS, attributes, strict=True)):
            group = file.create_group(f"demo_{number}")
            group["obs"] = np.random.default_rng(number).normal(size=(length, 3))
            group["actions"] = np.full((length, 1), number)
            group["rewards"] = np.arange(length)
            group.attrs.update(own)


def stored_of(path, home):
    settings = Settings(home=home, progress=False, jobs=1)
    stored = StoredDataset(download(str(path), settings=settings))
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()
    return stored


def texts_of(stored, name):
    return [stored.texts((name,))[code] for code in stored.column((name,))]


def test_numbers_are_columns_of_episodes_and_texts_are_fields_or_left_out(tmp_path):
    path = tmp_path / "mine" / "demos.hdf5"
    path.parent.mkdir()
    others = {"operator": "anna", "pose": np.ones(3), "length": 9, "score": 0.5}
    write(path, *({"success": ok, "instruction": task, **others} for ok, task in zip(SUCCESS, TASKS, strict=True)))

    assert draft_description(path).questions == ()
    left_out = [use.array for use in describe_files(path).left_out]
    stored = stored_of(path, tmp_path / "home")

    assert left_out == ["operator", "length", "pose"]
    assert stored.episodes["success"].tolist() == SUCCESS
    assert stored.episodes["success"].dtype == np.bool_
    assert stored.episodes["score"].tolist() == [0.5] * 3
    assert texts_of(stored, "language_instruction") == [*np.repeat(TASKS, LENGTHS)]
    counts = {one.rule: one for one in stored.manifest.decisions}
    assert counts["attributes-of-episodes"].count == 6
    assert "score" in counts["attributes-of-episodes"].text
    assert counts["left-out"].count == 3
    assert counts["left-out"].text.endswith("operator, length, pose")


def test_a_text_of_an_unusual_name_is_a_field_by_the_description(tmp_path):
    write(tmp_path / "demos.hdf5", *({"operator": name} for name in ("anna", "ben", "anna")))
    (tmp_path / "dataset.toml").write_text('[fields]\noperator = "operator"')

    stored = stored_of(tmp_path, tmp_path / "home")

    assert texts_of(stored, "operator") == [*np.repeat(["anna", "ben", "anna"], LENGTHS)]


def test_an_attribute_that_a_group_lacks_or_that_is_of_other_kinds_is_left_out(tmp_path):
    path = tmp_path / "demos.hdf5"
    write(
        path, {"seed": 1, "mixed": 1, "large": 2**53}, {"mixed": "x", "large": 0.5}, {"seed": 3, "mixed": 1, "large": 1}
    )

    assert {use.array for use in describe_files(path).left_out} == {"seed", "mixed"}
    write(path, {"large": 2**53 + 1}, {"large": 0.5}, {"large": 1})
    assert [use.array for use in describe_files(path).left_out] == ["large"]


def test_a_file_with_other_attributes_than_the_first_is_refused(tmp_path):
    for number, own in enumerate(({"success": True}, {"success": 1})):
        write(tmp_path / f"demos_{number}.hdf5", *[own] * 3)

    with pytest.raises(ConversionError, match="success int64, but success bool in the first file"):
        stored_of(tmp_path, tmp_path / "home")


def write_flat(path, **attributes):
    with h5py.File(path, "w") as file:
        file["obs"] = np.random.default_rng(int(attributes["seed"])).normal(size=(6, 3))
        file["actions"] = np.random.default_rng(1).normal(size=(6, 2))
        file["rewards"] = np.arange(6)
        file.attrs.update(attributes)


def test_attributes_of_a_file_are_metadata_and_state_the_environment_and_the_rate(tmp_path):
    path = tmp_path / "door.hdf5"
    write_flat(path, env_id="Door-v3", fps=20, seed=7, is_sim=True, model="<mujoco/>" * 1000, pose=np.ones(3))

    manifest = stored_of(path, tmp_path / "home").manifest

    stated = {name: manifest.metadata[name] for name in ("env_id", "fps", "seed", "is_sim")}
    assert stated == {"env_id": "Door-v3", "fps": 20, "seed": 7, "is_sim": True}
    assert manifest.environment == "Door-v3"
    assert manifest.fps == 20
    assert not {"model", "pose"} & manifest.metadata.keys()


def test_of_several_files_only_the_environment_and_the_rate_are_metadata_and_other_values_are_counted(tmp_path):
    folder = tmp_path / "doors"
    folder.mkdir()
    for number, rate in enumerate((20, 20, 50)):
        write_flat(folder / f"episode_{number}.hdf5", env_id="Door-v3", fps=rate, seed=number)

    manifest = stored_of(folder, tmp_path / "home").manifest

    assert (manifest.environment, manifest.fps) == ("Door-v3", 20)
    assert "seed" not in manifest.metadata
    assert {one.rule: one.count for one in manifest.decisions}["attributes-of-files"] == 1


def test_the_environment_of_the_description_is_taken_before_that_of_the_file(tmp_path):
    folder = tmp_path / "doors"
    folder.mkdir()
    write_flat(folder / "a.hdf5", env_id="Door-v3", seed=0)
    (folder / "dataset.toml").write_text('environment = "Door-v4"')

    assert stored_of(folder, tmp_path / "home").manifest.environment == "Door-v4"
