"""Arrays of many names beside observations and actions: the three episodes that the array marks, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl.errors import ConversionError
from datasets_rl.sources.local.files import check_files

LENGTHS = [40, 60, 50]
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)
STARTS = STOPS - LENGTHS
ROW = np.arange(ROWS)
_RNG = np.random.default_rng(0)
OBS = np.concatenate([np.cumsum(_RNG.normal(size=(length, 3)), 0) for length in LENGTHS])
ACTION = _RNG.normal(size=(ROWS, 2))
TELL = {
    "numbers of episodes": np.repeat([0, 1, 2], LENGTHS),
    "numbers of steps": ROW - np.repeat(STARTS, LENGTHS),
    "flags of first rows": np.isin(ROW, STARTS).astype(np.int64),
    "flags of last rows": np.isin(ROW, STOPS - 1),
    "lengths": np.array(LENGTHS),
    "rows after the last rows": STOPS,
    "first rows": STARTS,
    "last rows": STOPS - 1,
    "first rows, and the number of rows": np.append(0, STOPS),
    "inner boundaries": STOPS[:-1],
}
"""Arrays that say where the episodes end."""
TELL_NOTHING = {
    "a float of each row": _RNG.normal(size=ROWS),
    "an integer of each row": _RNG.integers(0, 9, ROWS),
    "the number of the row": ROW,
    "zeros": np.zeros(ROWS, np.int64),
    "ascending numbers": np.array([5, 9, 30]),
    "descending numbers": np.array([9, 5, 3]),
    "floats": np.array([0.5, 1.5, 2]),
}
NAMES = [
    "t",
    "episode",
    "ep_id",
    "traj",
    "starts",
    "ends",
    "lengths",
    "demo_id",
    "is_first",
    "reset",
    "segment_ends",
    "cuts",
    "done_idx",
    "offsets",
    "trial",
    "index",
    "step_id",
    "step",
    "steps",
    "timestep",
    "idx",
    "n",
    "episodes",
    "episode_id",
    "ep",
    "traj_id",
    "trajectory",
    "trajectories",
    "rollout",
    "rollout_id",
    "run",
    "run_id",
    "session",
    "seed",
    "env_id",
    "start",
    "end",
    "first",
    "last",
    "length",
    "len",
    "done_at",
    "path_id",
    "demo",
    "path_length",
    "path_lengths",
    "traj_lens",
    "num_steps",
    "resets",
    "is_reset",
    "episode_num",
    "seq_id",
    "seq_len",
    "sequence",
    "sequence_length",
    "segment",
    "segment_id",
    "chunk",
    "block",
    "fold",
    "frame",
    "frames",
    "batch_id",
    "cut",
    "boundaries",
    "separators",
    "ptr",
    "indptr",
    "valid",
    "episode_mask",
    "episode_done",
    "episode_terminals",
    "new_episode",
    "first_step",
    "last_step",
    "initial",
    "terminal_index",
    "reset_idx",
    "done_indices",
    "n_episodes",
    "num_trajs",
    "episode_count",
]


def lengths_with(tmp_path, name, values, obs=OBS):
    """Return the number, and the shortest and the longest of the episodes that a file with an array has."""
    np.savez(tmp_path / "a.npz", obs=obs, action=ACTION, **{name: values})
    found = check_files(tmp_path / "a.npz")
    return found.episodes, found.lengths["min"], found.lengths["max"]


@pytest.mark.first(17)
@pytest.mark.parametrize("name", NAMES)
def test_an_array_that_says_where_episodes_end_is_used_or_refused(tmp_path, name):
    wrong = {}
    for kind, values in TELL.items():
        try:
            found = lengths_with(tmp_path, name, values)
        except ConversionError:
            continue
        if found != (3, 40, 60):
            wrong[kind] = found

    assert wrong == {}


@pytest.mark.first(17)
@pytest.mark.parametrize("name", NAMES)
def test_an_array_that_says_nothing_of_episodes_never_ends_an_episode(tmp_path, name):
    wrong = {}
    for kind, values in TELL_NOTHING.items():
        try:
            found = lengths_with(tmp_path, name, values)
        except ConversionError:
            continue
        if found != (1, ROWS, ROWS):
            wrong[kind] = found

    assert wrong == {}


def test_an_episode_column_of_another_number_in_each_row_is_refused_until_it_is_stated(tmp_path):
    with pytest.raises(ConversionError, match="a value that the rows of an episode share"):
        lengths_with(tmp_path, "episode", ROW)

    (tmp_path / "dataset.toml").write_text('[episodes]\nby = "column"\narray = "episode"')
    assert check_files(tmp_path).episodes == ROWS


@pytest.mark.parametrize("name", ["image_size", "joint_ids", "goal"])
def test_a_few_numbers_beside_a_single_episode_are_no_marks(tmp_path, name):
    walk = np.cumsum(np.random.default_rng(1).normal(size=(ROWS, 3)), 0)

    assert lengths_with(tmp_path, name, np.array([0, 1, 2, 3]), walk) == (1, ROWS, ROWS)
