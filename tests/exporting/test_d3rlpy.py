"""Files of d3rlpy: the layout of `ReplayBuffer.dump`, and, where it is installed, d3rlpy itself."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from exports import export_stored, write_images, write_robot
from stored_data import columns, trajectory, write_dataset

from datasets_rl import load as load_dataset
from datasets_rl.errors import InvalidArgumentError, LossyExportError
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.schema import Column

EPISODES = [trajectory(4, terminated=True), trajectory(3, seed=2, known=False)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("stored"), EPISODES)


def opened(path):
    """Return an export as a buffer of d3rlpy."""
    from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer

    with path.open("rb") as stream:
        return ReplayBuffer.load(stream, InfiniteBuffer())


def load(path):
    """Read episodes as `d3rlpy.dataset.io.load` does."""
    episodes = []
    with h5py.File(path) as file:
        assert file["version"][()] == b"2.1"
        names = [name.decode() for name in file["columns"][()]]
        for number in range(file["num_episodes"][()]):
            episode = {}
            for name in names:
                parts = [key for key in file if key.startswith(f"{name}_{number}_")]
                whole = f"{name}_{number}"
                values = [file[f"{whole}_{part}"][()] for part in range(len(parts))]
                episode[name] = file[whole][()] if whole in file else values
            episodes.append(episode)
    return episodes


def test_the_layout_has_every_value(stored, tmp_path):
    path = export_stored(stored, "d3rlpy", tmp_path / "toy.h5")

    for episode, one in zip(load(path), EPISODES, strict=True):
        assert np.array_equal(episode["observations"], one.states["observation",][: len(one)])
        assert np.array_equal(episode["actions"], one.steps["action",])
        assert np.array_equal(episode["rewards"], one.steps["next", "reward"])
        assert episode["terminated"] == one.steps["next", "terminated"].any()


def test_final_observations_need_consent(stored, tmp_path):
    with pytest.raises(LossyExportError, match="after the last action of 1 episodes is left out"):
        run_export(Content(stored), "d3rlpy", tmp_path / "toy.h5", show=False)
    assert not list(tmp_path.iterdir())


def test_parts_of_an_observation_become_a_tuple_that_is_named(tmp_path):
    robot = write_robot(tmp_path / "stored")

    with pytest.raises(LossyExportError, match="in the order observation"):
        run_export(Content(robot), "d3rlpy", tmp_path / "toy.h5", show=False)

    first, *_ = load(export_stored(robot, "d3rlpy", tmp_path / "toy.h5"))
    assert np.array_equal(first["observations"][1], robot.column(("observation", "camera"))[:4])


def test_a_dataset_without_an_action_is_refused(tmp_path):
    robot = write_robot(tmp_path / "stored")

    with pytest.raises(InvalidArgumentError, match="the format needs a single action, and the dataset has none"):
        run_export(
            Content(robot, keys=[("observation", "joints")]), "d3rlpy", tmp_path / "toy.h5", lossy=True, show=False
        )


@pytest.mark.filterwarnings("ignore")
def test_d3rlpy_loads_and_samples_it(stored, tmp_path):
    pytest.importorskip(
        "gym", reason="pip install --no-deps d3rlpy gym gym_notices structlog colorama dataclasses-json"
    )
    pytest.importorskip("d3rlpy.dataset", reason="pip install --no-deps d3rlpy")

    buffer = opened(load_dataset(stored.folder, final_unknown="keep").export("d3rlpy", tmp_path / "toy.h5", lossy=True))

    assert buffer.size() == 2
    for episode, one in zip(buffer.episodes, EPISODES, strict=True):
        assert np.array_equal(episode.observations, one.states["observation",][: len(one)])
        assert np.array_equal(episode.rewards, one.steps["next", "reward"])
    assert buffer.sample_transition_batch(4).observations.shape == (4, 3)


@pytest.mark.filterwarnings("ignore")
def test_d3rlpy_sees_discrete_actions(tmp_path):
    pytest.importorskip(
        "gym", reason="pip install --no-deps d3rlpy gym gym_notices structlog colorama dataclasses-json"
    )
    pytest.importorskip("d3rlpy.dataset", reason="pip install --no-deps d3rlpy")
    images = write_images(tmp_path / "stored")

    buffer = opened(load_dataset(images.folder).export("d3rlpy", tmp_path / "toy.h5", lossy=True))

    assert buffer.dataset_info.action_space.name == "DISCRETE"
    assert np.array_equal(buffer.episodes[0].observations, images.column(("pixels",))[:3])


def scalar_dataset(folder, lengths=(3, 1)):
    """Episodes whose observation is a number, [T], of which the last one has a single truncated step."""
    one, *others = [
        type(plain)(plain.steps, {("observation",): np.arange(len(plain) + 1, dtype=np.float32)})
        for plain in (trajectory(length, seed=length) for length in lengths)
    ]
    kept = [column for column in columns() if column.key != ("observation",)]
    return write_dataset(
        folder, [one, *others], [Column(("observation",), np.dtype(np.float32), (), shared=True), *kept]
    )


def test_numbers_become_vectors_and_short_episodes_are_counted(tmp_path):
    stored = scalar_dataset(tmp_path / "stored")

    with pytest.raises(LossyExportError) as caught:
        run_export(Content(stored), "d3rlpy", tmp_path / "toy.h5", show=False)

    assert [loss.partition(":")[0] for loss in caught.value.losses] == [
        "the observation after the last action of 2 episodes is left out",
        "2 episodes are truncated",
        "1 of them have a single step",
        "observation",
    ]
    first, second = load(export_stored(stored, "d3rlpy", tmp_path / "toy.h5"))
    assert first["observations"].tolist() == [[0], [1], [2]]
    assert second["observations"].tolist() == [[0]]


@pytest.mark.filterwarnings("ignore")
def test_d3rlpy_samples_single_numbers(tmp_path):
    pytest.importorskip("gym", reason="pip install --no-deps d3rlpy gym")
    pytest.importorskip("d3rlpy.dataset", reason="pip install --no-deps d3rlpy")
    stored = scalar_dataset(tmp_path / "stored")

    buffer = opened(load_dataset(stored.folder).export("d3rlpy", tmp_path / "toy.h5", lossy=True))

    assert buffer.transition_count == 2  # of four steps: none of the two last ones
    assert buffer.sample_transition_batch(8).observations.shape == (8, 1)
