"""Files in D4RL's layout: read by the rule of D4RL's own loader, and by the source `d4rl`."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from exports import export_stored, write_robot
from stored_data import Model, Trajectory, columns, trajectory, write_dataset

from datasets_rl import LocalExperienceReplay, load
from datasets_rl.errors import InvalidArgumentError, LossyExportError
from datasets_rl.exporting import Content, plan_export, run_export
from datasets_rl.format.schema import Column

EPISODES = [trajectory(4, terminated=True), trajectory(3, seed=2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("plain"), EPISODES)


def get_dataset(path):
    """Read a file as `OfflineEnv.get_dataset` of D4RL does: every array below the root, and its checks."""
    data, names = {}, []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            data[name] = file[name][:] if file[name].shape else file[name][()]
    for name in ("observations", "actions", "rewards", "terminals"):
        assert name in data
    assert data["rewards"].shape == data["terminals"].shape == (len(data["observations"]),)
    return data


def test_the_loader_of_d4rl_reads_every_value(plain, tmp_path):
    path = run_export(Content(plain), "d4rl", tmp_path / "toy.hdf5", show=False)

    model, data = Model(EPISODES), get_dataset(path)
    assert set(data) == {"observations", "actions", "rewards", "terminals", "timeouts", "next_observations"}
    assert np.array_equal(data["observations"], model.column(("observation",)))
    assert np.array_equal(data["next_observations"], model.column(("next", "observation")))
    assert np.array_equal(data["actions"], model.column(("action",)))
    assert np.array_equal(data["rewards"], model.column(("next", "reward"))[:, 0])
    assert data["terminals"].nonzero()[0].tolist() == [3]
    assert data["timeouts"].nonzero()[0].tolist() == [6]


def test_a_dataset_without_final_observations_has_no_next_ones_and_loses_nothing(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3, known=False), trajectory(2, seed=1, known=False)])

    path = run_export(Content(stored), "d4rl", tmp_path / "toy.hdf5", show=False)

    assert "next_observations" not in get_dataset(path)


def test_some_unknown_final_observations_need_consent(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3), trajectory(2, seed=1, known=False)])

    with pytest.raises(LossyExportError, match="1 of 2 episodes is unknown: it becomes zeros"):
        run_export(Content(stored), "d4rl", tmp_path / "toy.hdf5", show=False)


def test_a_nested_observation_is_refused_with_its_parts(tmp_path):
    stored = write_robot(tmp_path / "stored")

    with pytest.raises(InvalidArgumentError, match=r"single observation, and the dataset has observation\.joints"):
        run_export(Content(stored), "d4rl", tmp_path / "toy.hdf5", lossy=True, show=False)
    assert plan_export(Content(stored), "d4rl").problems


def test_the_layout_is_read_back_with_the_final_observations(plain, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    export_stored(plain, "d4rl", folder / "toy.hdf5")
    (folder / "dataset.toml").write_text('name = "toy"')

    dataset = LocalExperienceReplay("toy", folder=folder, root=tmp_path / "home")

    assert np.array_equal(dataset["next", "observation"], Model(EPISODES).column(("next", "observation")))
    assert np.array_equal(dataset["next", "terminated"], load(plain.folder)["next", "terminated"])


def test_fields_of_one_name_inside_and_outside_of_info_are_both_written(tmp_path):
    qpos = np.arange(4, dtype=np.float32)[:, None]
    steps = {**EPISODES[0].steps, ("qpos",): qpos, ("info", "qpos"): qpos + 10}
    own = [Column(key, np.dtype(np.float32), (1,)) for key in (("qpos",), ("info", "qpos"))]
    stored = write_dataset(tmp_path / "stored", [Trajectory(steps, EPISODES[0].states)], columns(*own))

    data = get_dataset(run_export(Content(stored), "d4rl", tmp_path / "toy.hdf5", show=False))
    folder = run_export(Content(stored), "minari", tmp_path / "minari", show=False)

    assert data["infos/qpos"].tolist() == [[10], [11], [12], [13]]
    assert data["infos/qpos_"].tolist() == [[0], [1], [2], [3]]
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        assert file["episode_0/infos/qpos"][:4].tolist() == [[10], [11], [12], [13]]
        assert file["episode_0/infos/qpos_"][:4].tolist() == [[0], [1], [2], [3]]
