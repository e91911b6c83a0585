"""`as_d3rlpy`: the transitions of d3rlpy, with its random numbers, without a copy of the arrays."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import numpy as np
import pytest
from exports import write_robot
from stored_data import trajectory, write_dataset

from datasets_rl import load
from datasets_rl.errors import InvalidArgumentError

pytestmark = pytest.mark.usefixtures("d3rlpy")


def seed(number):
    np.random.seed(number)  # noqa: NPY002 - d3rlpy draws from the global generator


FIELDS = ("observations", "actions", "rewards", "next_observations", "next_actions", "terminals", "intervals")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    episodes = [trajectory(steps, seed=seed, terminated=seed != 1) for seed, steps in enumerate((4, 3, 1, 6))]
    return write_dataset(tmp_path_factory.mktemp("vectors") / "stored", episodes)


def expected_transitions(dataset):
    """Return the transitions of d3rlpy in order, from rows of the dataset."""
    found = []
    for episode in dataset.iterate_episodes():
        count = len(episode)
        observations, actions = episode["observation"].numpy(), episode["action"].numpy()
        for step in range(count):
            ends = bool(episode["next", "terminated"][step])
            if ends or step + 1 < count:
                following = (
                    (0 * observations[0], 0 * actions[0]) if ends else (observations[step + 1], actions[step + 1])
                )
                found.append(
                    (observations[step], actions[step], episode["next", "reward"][step].numpy(), *following, ends, 1)
                )
    return found


def test_transitions_are_those_of_the_rows(stored):
    dataset = load(str(stored.folder))
    buffer = dataset.as_d3rlpy()

    expected = expected_transitions(dataset)
    assert (buffer.size(), buffer.transition_count) == (4, 13)
    seed(5)
    drawn = np.random.randint(13, size=64)  # noqa: NPY002 - the same
    seed(5)
    batch = buffer.sample_transition_batch(64)
    for name, values in zip(FIELDS, zip(*(expected[index] for index in drawn), strict=True), strict=True):
        got = getattr(batch, name)
        assert got.dtype == np.float32
        assert np.array_equal(got, np.stack(values).reshape(got.shape)), name


@pytest.mark.parametrize("kind", ["vectors", "several observations"])
def test_a_batch_is_that_of_single_transitions(stored, d3rlpy, tmp_path, kind):
    if kind == "several observations":
        dataset = load(str(write_robot(tmp_path / "robot", form="raw").folder))
    else:
        dataset = load(str(stored.folder))
    ours = dataset.as_d3rlpy()
    theirs = dataset.as_d3rlpy(transition_picker=type("Picker", (d3rlpy.BasicTransitionPicker,), {})())

    seed(1)
    got = ours.sample_transition_batch(32)
    seed(1)
    expected = theirs.sample_transition_batch(32)

    for name in FIELDS:
        one, other = getattr(got, name), getattr(expected, name)
        for part, same in zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]:
            assert part.dtype == same.dtype
            assert np.array_equal(part, same), name
    for one, other in zip(got.transitions, expected.transitions, strict=True):
        assert np.array_equal(one.rewards_to_go, other.rewards_to_go)


def test_episodes_are_views(stored):
    dataset = load(str(stored.folder))
    buffer = dataset.as_d3rlpy()

    assert [one.size() for one in buffer.episodes] == [4, 3, 1, 6]
    assert [one.terminated for one in buffer.episodes] == [True, False, True, True]
    first, again = buffer.episodes[1], buffer.episodes[1]
    assert np.shares_memory(first.observations, again.observations)
    assert np.array_equal(first.actions, next(dataset.iterate_episodes([1]))["action"].numpy())
    assert [one.size() for one in buffer.episodes[1:3]] == [3, 1]


def test_images_have_their_channels_first(tmp_path):
    dataset = load(str(write_robot(tmp_path / "robot", form="raw").folder))
    buffer = dataset.as_d3rlpy()

    camera = dataset["observation", "camera"].numpy()
    shapes = [part.shape for part in buffer.episodes[0].observations]
    assert sorted(shapes) == [(4, 1), (4, 2), (4, 3, 32, 32)]
    images = buffer.episodes[1].observations[shapes.index((4, 3, 32, 32))]
    assert np.array_equal(images, np.moveaxis(camera[4:7], -1, 1))


def test_the_demo_fits_the_limits_of_d3rlpy():
    buffer = load("demo/pendulum").as_d3rlpy()

    info = buffer.dataset_info
    info = info if isinstance(info, dict) else dataclasses.asdict(info)
    assert (info["action_size"], info["action_space"].name) == (1, "CONTINUOUS")
    assert buffer.transition_count == 15_000 - 75


def test_a_dataset_takes_no_steps_of_an_environment(stored):
    buffer = load(str(stored.folder)).as_d3rlpy()

    with pytest.raises(InvalidArgumentError, match="a dataset is read-only"):
        buffer.append_episode(buffer.episodes[0])


def test_episodes_without_a_transition_are_refused(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(1, terminated=False)])

    with pytest.raises(InvalidArgumentError, match="no transition remains"):
        load(str(stored.folder)).as_d3rlpy()


@pytest.mark.skipif(find_spec("d3rlpy") is None, reason="pip install d3rlpy")
@pytest.mark.filterwarnings("ignore")
def test_d3rlpy_draws_the_same_batches_from_its_own_dataset():
    from d3rlpy import dataset

    demo = load("demo/pendulum")
    arrays = demo.as_dict("d4rl")
    theirs = dataset.MDPDataset(**arrays)
    ours = demo.as_d3rlpy()

    assert ours.dataset_info == theirs.dataset_info
    for number in range(20):
        seed(number)
        one = ours.sample_transition_batch(256)
        seed(number)
        other = theirs.sample_transition_batch(256)
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
        seed(number)
        one = ours.sample_trajectory_batch(8, 20)
        seed(number)
        other = theirs.sample_trajectory_batch(8, 20)
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.returns_to_go, other.returns_to_go)
