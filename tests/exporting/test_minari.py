"""Minari datasets: opened by minari, and read back by the source `minari`."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from exports import equal_bits, export_stored, write_images, write_robot
from oracles import comparison
from stored_data import columns, trajectory, write_dataset

from datasets_rl import downloading
from datasets_rl.errors import LossyExportError
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.settings import Settings

minari = pytest.importorskip("minari", reason="pip install minari, with Python 3.11")

EPISODES = [trajectory(4, terminated=True), trajectory(3, seed=2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("plain"), EPISODES)


def test_minari_opens_every_value_and_the_final_observations(plain, tmp_path):
    folder = run_export(Content(plain), "minari", tmp_path / "out", show=False)

    opened = minari.MinariDataset(folder / "data")

    assert (opened.total_episodes, opened.total_steps) == (2, 7)
    for episode, one in zip(opened.iterate_episodes(), EPISODES, strict=True):
        assert np.array_equal(episode.observations, one.states["observation",])
        assert np.array_equal(episode.actions, one.steps["action",])
        assert np.array_equal(episode.rewards, one.steps["next", "reward"][:, 0])
        assert np.array_equal(episode.terminations, one.steps["next", "terminated"][:, 0])
        assert np.array_equal(episode.truncations, one.steps["next", "truncated"][:, 0])
    assert opened.observation_space.contains(opened[0].observations[0])


def test_nested_spaces_texts_infos_and_seeds(tmp_path):
    stored = write_robot(tmp_path / "stored")
    folder = export_stored(stored, "minari", tmp_path / "out")

    opened = minari.MinariDataset(folder / "data")

    episode = opened[1]
    rows = slice(4, 7)
    joints = np.append(
        stored.column(("observation", "joints"))[rows], stored.final_states(("observation", "joints"))[1:2], 0
    )
    assert np.array_equal(episode.observations["joints"], joints)
    assert np.array_equal(episode.observations["camera"][:3], stored.column(("observation", "camera"))[rows])
    assert episode.observations["camera"].shape == (4, 32, 32, 3)
    assert [one.decode() for one in episode.infos["task"]] == ['pick up "1"', 'pick up "1"', "café", ""]
    assert np.array_equal(episode.infos["goal"][:3], stored.column(("info", "goal"))[rows])
    assert opened.action_space.high.tolist() == [0.5, 1.0]
    assert [one["seed"] for one in opened.storage.get_episode_metadata([0, 1, 2])] == [100, 101, 102]


def test_pixels_without_an_observation_become_a_dict_and_actions_discrete(tmp_path):
    stored = write_images(tmp_path / "stored")
    folder = export_stored(stored, "minari", tmp_path / "out", lossy=False)

    opened = minari.MinariDataset(folder / "data")

    assert np.array_equal(opened[0].observations["pixels"][:3], stored.column(("pixels",))[:3])
    assert np.array_equal(opened[0].observations["pixels"][3], stored.final_states(("pixels",))[0])
    assert opened.action_space.n == 4


def test_jpeg_images_stay_the_same_bytes(tmp_path):
    stored = write_robot(tmp_path / "stored", form="jpeg")
    folder = export_stored(stored, "minari", tmp_path / "out")

    images = stored.items(("observation", "camera")).read_stored(0, 4).images
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        kept = file["episode_0/observations/camera"][:4]
    assert [one.tobytes() for one in kept] == [bytes(one) for one in images]
    opened = minari.MinariDataset(folder / "data")
    assert (
        np.abs(opened[0].observations["camera"][:4].astype(int) - stored.column(("observation", "camera"))[:4]).max()
        <= 2
    )


def test_unknown_final_observations_need_consent_and_become_zeros(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3), trajectory(2, seed=1, known=False)])

    with pytest.raises(LossyExportError, match="final observation of 1 of 2 episodes is unknown") as caught:
        run_export(Content(stored), "minari", tmp_path / "out", show=False)

    assert len(caught.value.losses) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "stored"]
    opened = minari.MinariDataset(export_stored(stored, "minari", tmp_path / "out") / "data")
    assert not opened[1].observations[2].any()
    assert opened[1].observations.shape == (3, 3)


def test_the_source_reads_the_same_bits_back(plain, tmp_path):
    folder = export_stored(plain, "minari", tmp_path / "out", lossy=False)
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)

    made = downloading.download("minari/toy/data-v0", from_local=folder, settings=settings)

    assert comparison.deep_problems(made, settings=settings) == []
    equal_bits(plain, StoredDataset(made))


def test_the_metadata_is_json_with_an_id_that_minari_accepts(plain, tmp_path):
    folder = export_stored(plain, "minari", tmp_path / "out")

    metadata = json.loads((folder / "data" / "metadata.json").read_text())

    assert minari.dataset.minari_dataset.parse_dataset_id(metadata["dataset_id"]) == ("toy", "data", 0)


def test_values_of_steps_stay_with_their_steps(tmp_path):
    """Three steps with the weights 10, 11 and 12: Minari shows them at rows 0 to 2, and so does its source."""
    weight = Column(("weight",), np.dtype(np.float32), ())
    one = trajectory(3)
    steps = {**one.steps, ("weight",): np.array([10, 11, 12], np.float32)}
    stored = write_dataset(tmp_path / "stored", [type(one)(steps, one.states)], columns(weight))

    folder = export_stored(stored, "minari", tmp_path / "out", lossy=False)
    opened = minari.MinariDataset(folder / "data")
    made = downloading.download(
        "minari/toy/data-v0", from_local=folder, settings=Settings(home=tmp_path / "home", progress=False, jobs=1)
    )

    assert opened[0].infos["weight"].tolist() == [10, 11, 12, 0]
    assert StoredDataset(made).column(("info", "weight")).tolist() == [10, 11, 12]
