"""npz, HDF5 and Parquet: what they hold, in the words of their own libraries, and what is read back from them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from exports import equal_bits, export_stored, read_back, write_images, write_robot
from pyarrow import parquet
from stored_data import Model, columns, trajectory, write_dataset

from datasets_rl import Selection, load
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Recipe, preprocess

FORMATS = pytest.mark.parametrize("to", ["npz", "hdf5", "parquet"])
EPISODES = [trajectory(4, terminated=True), trajectory(1, seed=1, known=False), trajectory(3, seed=2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("plain"), EPISODES)


@FORMATS
def test_states_come_back_with_known_and_unknown_final_ones(plain, to, tmp_path):
    equal_bits(plain, read_back(plain, to, tmp_path))


@pytest.mark.first(1, of=("to", "form"))
@FORMATS
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", ["raw", "compressed"])
def test_a_dataset_of_pixels_comes_back(to, form, known, tmp_path):
    stored = write_images(tmp_path / "stored", known=known, form=form)

    equal_bits(stored, read_back(stored, to, tmp_path))


@pytest.mark.first(1, of="to")
@FORMATS
@pytest.mark.parametrize("known", [True, False])
def test_nested_keys_texts_and_images_come_back_with_their_specs(to, known, tmp_path):
    stored = write_robot(tmp_path / "stored", known=known)

    back = read_back(stored, to, tmp_path)

    equal_bits(stored, back)
    assert back.schema["observation", "camera"].encoded == (to != "npz")
    assert back.manifest.specs["action"]["high"] == [0.5, 1.0]
    assert back.manifest.license == "MIT"


@FORMATS
def test_a_binary_spec_comes_back(to, tmp_path):
    contact = Column(("contact",), np.dtype(np.int8), (2,))
    one = trajectory(3)
    steps = {**one.steps, contact.key: np.array([[0, 1], [1, 1], [0, 0]], np.int8)}
    spec = {"kind": "binary", "dtype": "int8", "shape": [2]}
    stored = write_dataset(
        tmp_path / "stored", [type(one)(steps, one.states)], columns(contact), specs={"contact": spec}
    )

    assert read_back(stored, to, tmp_path).manifest.specs["contact"] == spec


@pytest.mark.parametrize("to", ["hdf5", "parquet"])
def test_encoded_images_keep_their_bytes(to, tmp_path):
    stored = write_robot(tmp_path / "stored")
    images = stored.items(("observation", "camera")).read_stored(0, len(stored)).images

    back = read_back(stored, to, tmp_path)

    again = back.items(("observation", "camera")).read_stored(0, len(back)).images
    assert [bytes(one) for one in again] == [bytes(one) for one in images]


@FORMATS
def test_unknown_images_of_steps_come_back_black(to, tmp_path):
    """The last n-step target of an episode without its final observation has no image."""
    stored = write_robot(tmp_path / "robot", known=False)
    recipe = Recipe.inline(["n_step_targets:2"])
    targets = StoredDataset(preprocess(stored.folder, recipe, out=tmp_path / "targets"))
    camera = ("n_step", "observation", "camera")
    assert not targets.column(camera)[6].any()

    (tmp_path / "back").mkdir()

    assert np.array_equal(read_back(targets, to, tmp_path / "back").column(camera), targets.column(camera))


def test_numpy_opens_an_episode(plain, tmp_path):
    folder = export_stored(plain, "npz", tmp_path / "out")

    with np.load(folder / "episode_000000.npz") as first, np.load(folder / "episode_000001.npz") as second:
        assert np.array_equal(first["observation"], EPISODES[0].states["observation",])
        assert np.array_equal(first["next.terminated"], EPISODES[0].steps["next", "terminated"])
        assert len(second["observation"]) == len(second["action"]) == 1


def test_h5py_reads_rows_and_final_states(plain, tmp_path):
    folder = export_stored(plain, "hdf5", tmp_path / "out")

    model = Model(EPISODES)
    with h5py.File(folder / "data.hdf5") as file:
        assert np.array_equal(file["observation"], model.column(("observation",)))
        assert np.array_equal(file["next/reward"], model.column(("next", "reward")))
        assert np.array_equal(file["episodes/final/observation"], np.stack(model.final_states["observation",]))
        assert file["episodes/final_known"][()].tolist() == [True, False, True]
        assert file["episodes/length"][()].tolist() == [4, 1, 3]


def test_pyarrow_reads_the_tables(tmp_path):
    stored = write_robot(tmp_path / "stored")
    folder = export_stored(stored, "parquet", tmp_path / "out")

    steps, episodes = (parquet.read_table(folder / f"{name}.parquet") for name in ("steps", "episodes"))

    assert steps["episode"].to_pylist() == [0] * 4 + [1] * 3 + [2] * 5
    assert steps["task"].to_pylist()[:3] == ['pick up "0"', 'pick up "0"', "café"]
    assert np.array_equal(steps["observation.joints"].to_pylist(), stored.column(("observation", "joints")))
    assert episodes["seed"].to_pylist() == [100, 101, 102]
    finals = stored.final_states(("observation", "joints"))
    assert np.array_equal(episodes["final.observation.joints"].to_pylist(), finals)


@FORMATS
def test_batches_do_not_change_the_export(plain, to, tmp_path, monkeypatch):
    whole = export_stored(plain, to, tmp_path / "whole")
    monkeypatch.setattr("datasets_rl.exporting.content.Content.batches.__defaults__", (1,))

    parts = export_stored(plain, to, tmp_path / "parts")

    assert [path.name for path in sorted(whole.iterdir())] == [path.name for path in sorted(parts.iterdir())]
    if to != "parquet":  # whose row groups are the batches
        for path in whole.iterdir():
            assert path.read_bytes() == (parts / path.name).read_bytes() or path.suffix in {".npz", ".hdf5"}
    home = tmp_path / "back"
    home.mkdir()
    equal_bits(plain, read_back(plain, to, home))


def test_a_selection_is_exported_as_it_is_shown(plain, tmp_path):
    dataset = load(plain.folder, selection=Selection(keys=("action",)), final_unknown="keep")
    folder = dataset.export("hdf5", tmp_path / "fields")

    with h5py.File(folder / "data.hdf5") as file:
        assert sorted(file) == ["action", "episodes", "next"]

    run_export(Content(StoredDataset(plain.folder), np.array([0, 2])), "hdf5", tmp_path / "episodes", show=False)
    with h5py.File(tmp_path / "episodes" / "data.hdf5") as file:
        both = [EPISODES[0].steps["action",], EPISODES[2].steps["action",]]
        assert np.array_equal(file["action"], np.concatenate(both))


def test_a_field_whose_next_values_differ_comes_back(tmp_path):
    """A recipe may normalize each time step on its own; then both values are stored."""

    stored = write_dataset(tmp_path / "stored", [trajectory(4), trajectory(3, seed=1)])

    def shift(batch):
        return batch.set(("next", "observation"), batch["next", "observation"] + 1)

    derived = load(stored.folder).preprocess(shift, dest=tmp_path / "derived").stored

    assert ("next", "observation") in derived.schema
    equal_bits(derived, read_back(derived, "hdf5", tmp_path))
