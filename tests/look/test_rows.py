"""The rows of an episode and its final observation."""

from __future__ import annotations

import numpy as np
import pytest
from stored_data import Trajectory, columns, trajectory, write_dataset

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.schema import Column
from datasets_rl.look import Image, StepReader, episode_rows
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable

EPISODES = [trajectory(3), trajectory(6, seed=1, terminated=True), trajectory(4, seed=2, known=False)]


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return StepReader(write_dataset(tmp_path_factory.mktemp("toy"), EPISODES))


def test_rows_have_the_values_of_the_episode_and_the_true_final_observation(steps):
    found = episode_rows(steps, 1)

    assert (found.episode, found.length, found.start, found.final_known) == (1, 6, 3, True)
    assert [(row.step, row.row) for row in found.rows] == [(t, 3 + t) for t in range(6)]
    states = EPISODES[1].states["observation",]
    assert [row.values["observation"].tolist() for row in found.rows] == states[:6].tolist()
    assert found.final["observation"].tolist() == states[6].tolist()
    assert found.rows[-1].values["next.terminated"].all()


def test_the_final_observation_belongs_to_the_last_row(steps):
    assert episode_rows(steps, 1, slice(0, 5)).final is None
    assert episode_rows(steps, 1, slice(-1, None)).final is not None


def test_an_unknown_final_observation_is_not_shown_as_zeros(steps):
    found = episode_rows(steps, -1)

    assert (found.episode, found.final, found.final_known) == (2, None, False)


def test_chosen_fields_are_shown_alone(steps):
    found = episode_rows(steps, 0, slice(1), [("action",)])

    assert [*found.rows[0].values] == ["action"]
    assert len(found.rows) == 1
    with pytest.raises(UnknownKeyError, match="reward"):
        episode_rows(steps, 0, None, [("nothing",)])


@pytest.mark.parametrize("episode", [3, -4])
def test_an_episode_that_does_not_exist_is_an_error(steps, episode):
    with pytest.raises(InvalidArgumentError, match=f"episode is {episode}, expected an integer from -3 to 2"):
        episode_rows(steps, episode)


def test_selected_steps_end_with_the_true_next_observation(steps):
    """Rows 3 to 5 are the first half of episode 1."""
    table = EpisodeTable.from_lengths(np.array([3]))
    table.records["final_known"] = True

    found = episode_rows(StepReader(steps.stored, RowRanges.from_rows(np.array([3, 4, 5])), table), 0)

    assert found.length == 3
    assert found.final["observation"].tolist() == EPISODES[1].states["observation",][3].tolist()


def test_images_are_shown_by_their_shapes(tmp_path):
    pixels = Column(("observation",), np.dtype(np.uint8), (64, 64, 3), shared=True)
    episode = Trajectory(trajectory(2).steps, {("observation",): np.zeros((3, 64, 64, 3), np.uint8)})

    found = episode_rows(StepReader(write_dataset(tmp_path, [episode], [pixels, *columns()[1:]])), 0)

    assert found.rows[0].values["observation"] == Image("uint8", (64, 64, 3)) == found.final["observation"]
