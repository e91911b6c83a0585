"""What files say against the ends of their episodes is refused until a person answers, and what is unusual is counted."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from layouts import ACTIONS, LAST, REWARDS, STATES, Layout, tianshou, trajectories

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)
DONE = np.isin(np.arange(ROWS), STOPS - 1)
REWARD = np.arange(ROWS) - 2.5
RETURNS = np.add.reduceat(REWARD, STOPS - LENGTHS)


def flat(**others):
    """Return arrays of three episodes."""
    rows = np.arange(ROWS, dtype=np.float64)
    return {"obs": np.stack([rows, -rows], 1), "actions": rows[:, None], "rewards": REWARD, "dones": DONE, **others}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays into a file, or takes a path, and downloads it."""

    def run(arrays, text="", name="a.npz"):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        if not isinstance(arrays, dict):
            return downloaded(arrays)
        if name.endswith("npz"):
            np.savez(folder / name, **arrays)
        elif name.endswith("hdf5"):
            with h5py.File(folder / name, "w") as file:
                for array, values in arrays.items():
                    file[array] = values
        else:
            pd.DataFrame(arrays).to_parquet(folder / name)
        if text:
            (folder / "dataset.toml").write_text(text)
        return downloaded(folder)

    def downloaded(path):
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        return StoredDataset(download(str(path), settings=settings))

    return run


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def elements(**others):
    """Return the columns of a table, of which obs_0 is missing."""
    rows = np.arange(ROWS, dtype=np.float64)
    names = ("obs_1", "obs_2", "action_0", "action_1", "reward")
    return {**dict.fromkeys(names, rows), "done": DONE, **others}


def batch(*lengths):
    """Return four padded episodes of three steps, [4, 3, ...], and their final observations."""
    obs, actions, rewards = np.ones((4, 4, 2)), np.ones((4, 3, 1)), np.ones((4, 3))
    for number, length in enumerate(lengths):
        obs[number, length + 1 :], actions[number, length:], rewards[number, length:] = 0, 0, 0
    return {"obs": obs, "actions": actions, "rewards": rewards}


OBJECTS = np.array([{}, None] * (ROWS // 2), dtype=object)
REFUSED = {
    "flags of the rows that continue": (
        flat(dones=~DONE),
        "dones is set in 7 of 10 rows, as the inverse of an end flag",
    ),
    "a return that is another one": (
        flat(episode_returns=RETURNS + np.eye(3)[2]),
        "sum of the rewards in 2 episodes, but not in 1: the first is episode 2",
    ),
    "returns of four episodes": (flat(ep_rets=np.ones(4)), r"ep_rets is float64 \[4\], expected a return"),
    "another number of episodes": (flat(num_episodes=np.array(4)), "num_episodes is 4, but the file has 3 episodes"),
    "padding without lengths": (batch(3, 1, 2, 3), "2 of 4 episodes end with rows of zeros or NaN"),
    "rewards that cannot be read": (flat(rewards=OBJECTS), "rewards, by its name next.reward, has values"),
    "lengths as fractions": (
        flat(dones=OBJECTS, episode_lengths=np.array([3, 5.5, 1.5])),
        "episode_lengths is float64",
    ),
    "lengths as texts": (
        {name: values for name, values in flat(episode_lengths=np.array(["3", "5", "2"])).items() if name != "dones"},
        r"episode_lengths is text \[3\]",
    ),
    "an empty number of an episode": (
        flat(episode=np.where(np.arange(ROWS) == 4, np.nan, 1)),
        "episode is nan at row 4",
    ),
    "observations of texts": (flat(obs=np.full((ROWS, 2), "a")), r"obs has texts \[10, 2\]"),
}
REFUSED["lengths as fractions"][0].pop("dones")


@pytest.mark.parametrize(("arrays", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_the_ends_of_episodes_is_refused(convert, arrays, problem):
    with pytest.raises(ConversionError, match=problem):
        convert(arrays)


@pytest.mark.parametrize(
    ("arrays", "text", "lengths"),
    [
        (flat(dones=~DONE), '[episodes]\nby = "flags"', [1, 1, 2, 1, 1, 1, 2, 1]),
        (flat(episode_returns=RETURNS + np.eye(3)[2]), '[episodes]\nby = "flags"', LENGTHS),
        (flat(num_episodes=np.array(4)), '[episodes]\nby = "flags"', LENGTHS),
        (batch(3, 1, 2, 3), '[episodes]\nby = "axis"', [3, 3, 3, 3]),
    ],
)
def test_an_answer_in_the_description_ends_the_doubt(convert, arrays, text, lengths):
    assert convert(arrays, text).episodes.lengths.tolist() == lengths


@pytest.mark.parametrize(
    ("arrays", "lengths"),
    [
        (flat(dones=np.ones(ROWS, bool)), [1] * ROWS),
        (flat(episode_returns=RETURNS), LENGTHS),
        (flat(episode_returns=RETURNS[:2], dones=DONE & (np.arange(ROWS) < 9)), LENGTHS),
        (flat(num_episodes=np.array(3)), LENGTHS),
        (batch(2, 2, 2, 2), [3, 3, 3, 3]),
        (flat(episode_lengths=np.array(LENGTHS, np.float32)), LENGTHS),
        (flat(episode_id=np.repeat(["b", "a", "c"], LENGTHS)), LENGTHS),
        (flat(traj_id=np.repeat(["b", "a", "c"], LENGTHS), dones=np.zeros(ROWS, bool)), LENGTHS),
    ],
)
def test_what_agrees_with_the_ends_of_episodes_is_read(convert, arrays, lengths):
    assert convert(arrays).episodes.lengths.tolist() == lengths


def test_a_first_column_that_is_missing_beside_others_is_refused_until_the_array_is_described(convert):
    with pytest.raises(ConversionError, match="action_0 is the first column of its array, but of another array obs_1"):
        convert(elements(), name="a.parquet")

    fields = '[fields]\nobservation = "obs"\naction = "action"'
    assert convert(elements(), fields, "a.parquet").column(("observation",)).shape == (ROWS, 2)


@pytest.mark.parametrize(
    ("arrays", "rule", "count"),
    [
        (flat(episode_returns=RETURNS + 1), "other-returns", 3),
        (flat(timestep=np.concatenate([np.arange(length) + 2 for length in LENGTHS])), "steps-from", 3),
        (flat(timestep=np.concatenate([np.arange(length) + 1 for length in LENGTHS])), "steps-from", None),
        ({name: values for name, values in flat(terminals=DONE).items() if name != "dones"}, "no-truncated", 1),
        (flat(timeouts=DONE), "no-truncated", None),
        ({name: np.repeat(values, 2, axis=0) for name, values in flat(dones=DONE * 0).items()}, "equal-rows", ROWS),
        ({name: np.tile(values.T, 3).T for name, values in flat().items()}, "equal-episodes", 6),
        (flat(), "equal-rows", None),
        (flat(), "equal-episodes", None),
        (flat(text=np.repeat(["left", "right"], 5)), "equal-rows", None),
    ],
)
def test_what_is_unusual_and_may_be_right_is_counted(convert, arrays, rule, count):
    text = '[fields]\ninstruction = "text"' if "text" in arrays else ""

    assert rules(convert(arrays, text)).get(rule) == count


def test_texts_and_images_of_other_rows_are_not_equal_rows(convert):
    still = {"obs": np.zeros((4, 90, 2), np.uint8), "actions": np.zeros((4, 1)), "rewards": np.zeros(4)}
    still["obs"][2:, 77] = 1  # not among the elements that are compared first
    still["text"] = np.array(["a", "a", "a", "b"])
    text = '[episodes]\nby = "file"\n[fields]\ninstruction = "text"'

    assert rules(convert(still, text))["equal-rows"] == 1


def test_episodes_with_other_texts_are_not_equal(convert):
    twice = {name: np.tile(values.T, 2).T for name, values in flat().items()}
    twice["text"] = np.repeat(["left", "right"], ROWS)

    assert "equal-episodes" not in rules(convert(twice, '[fields]\ninstruction = "text"'))


@pytest.mark.parametrize(
    ("names", "count"),
    [(["demo_1", "demo_2", "demo_5"], 2), (["ep_20240101", "ep_20240301"], None), (["a1", "b7"], None)],
)
@pytest.mark.parametrize("kind", ["files", "groups"])
def test_missing_numbers_of_files_and_groups_are_counted(convert, tmp_path, names, count, kind):
    episodes = {name: {"obs": np.ones((3 + n, 2)), "action": np.arange(3.0 + n)} for n, name in enumerate(names)}
    if kind == "groups":
        arrays = {f"{name}/{key}": values for name, own in episodes.items() for key, values in own.items()}
        stored = convert(arrays, '[episodes]\nby = "group"', "a.hdf5")
    else:
        folder = tmp_path / "several"
        folder.mkdir()
        for name, own in episodes.items():
            with h5py.File(folder / f"{name}.hdf5", "w") as file:
                file.update(own)
        stored = convert(folder)

    assert rules(stored).get(f"missing-{'numbers' if kind == 'groups' else 'files'}") == count


def test_a_table_of_equal_lists_asks_whether_a_row_is_an_episode(convert):
    rows = {"obs": [states[:3].tolist() for states in STATES], "action": [actions[:3].tolist() for actions in ACTIONS]}
    with pytest.raises(ConversionError, match="the second axis may count rows, or agents"):
        convert(rows, name="a.parquet")

    assert convert(rows, '[episodes]\nby = "axis"', "a.parquet").episodes.lengths.tolist() == [3, 3, 3]


def test_an_index_of_pandas_is_left_out(convert, tmp_path):
    frame = pd.DataFrame(elements(obs_0=np.arange(ROWS)))
    frame[~frame.reward.isin([1, 4])].to_parquet(tmp_path / "a.parquet")

    stored = convert(tmp_path / "a.parquet")

    assert stored.episodes.lengths.tolist() == [2, 4, 2]
    assert rules(stored)["left-out"] == 1


def broken_ring(change):
    """Return a layout of tianshou with a changed file."""

    def write(folder):
        path = tianshou(folder)
        with h5py.File(path, "a") as file:
            change(file)
        return path

    return Layout(write)


def replace(name, values):
    def change(file):
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (replace("last_index", [13]), "end at \\[13\\]"),
        (replace("last_index", [-1]), "end at \\[-1\\]"),
        (replace("last_index", [3, 4]), "expected sizes and last rows"),
        (lambda file: file.attrs.update(_size=14), r"have \[14\] rows of \[13\]"),
        (lambda file: file.attrs.update(_size=0), "the buffer is empty"),
        (lambda file: file.attrs.update(maxsize=20), "expected sizes and last rows"),
        (lambda file: file.attrs.pop("_size"), r"have \[-1\] rows"),
        (replace("_meta/rew", np.ones(12)), r"_meta/rew is float64 \[12\], expected 13 rows"),
        (replace("_meta/done", ~np.roll(LAST, 5)), "done differs from terminated or truncated in 13 rows"),
    ],
)
def test_a_buffer_of_tianshou_that_contradicts_itself_is_refused(convert, tmp_path, change, problem):
    path = broken_ring(change).write(tmp_path)

    with pytest.raises(ConversionError, match=problem):
        convert(path)


@pytest.mark.parametrize("name", ["obs", "acts", "rews"])
def test_a_trajectory_of_other_lengths_is_refused(convert, tmp_path, name):
    own = [{"obs": STATES[n], "acts": ACTIONS[n], "terminal": True, "rews": REWARDS[n]} for n in range(3)]
    own[1][name] = own[1][name][:-1]
    (tmp_path / "expert").mkdir()

    with pytest.raises(ConversionError, match="in episode 1"):
        convert(trajectories(tmp_path / "expert", own))


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_truncated_stream_of_arrow_is_refused(convert, tmp_path, kept):
    (tmp_path / "expert").mkdir()
    path = trajectories(tmp_path / "expert") / "data-00000-of-00001.arrow"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(ConversionError):
        convert(path.parent)


def test_a_stream_of_arrow_with_several_batches_is_read_whole(convert, tmp_path):
    table = pa.table({"obs": STATES[1][:-1].tolist(), "action": ACTIONS[1].tolist(), "reward": REWARDS[1]})
    path = tmp_path / "steps.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        for batch_ in table.to_batches(max_chunksize=2):
            out.write_batch(batch_)

    np.testing.assert_array_equal(convert(path).column(("observation",)), STATES[1][:-1])


D4RL = {
    name.replace("obs", "observations"): values
    for name, values in flat(terminals=DONE & (np.arange(ROWS) != 7)).items()
}
del D4RL["dones"]
MARKS = {
    "dones": DONE,
    "timeouts": np.arange(ROWS) == 7,
    "truncations": np.arange(ROWS) == 7,
    "episode_ends": STOPS,
    "episode_starts": np.isin(np.arange(ROWS), STOPS - LENGTHS),
    "episode_lengths": np.array(LENGTHS),
    "episode_id": np.repeat([7, 8, 9], LENGTHS),
    "timestep": np.concatenate([np.arange(length) for length in LENGTHS]),
    "demo_id": np.repeat([7, 8, 9], LENGTHS),
    "is_last": np.isin(np.arange(ROWS), STOPS - 1),
}


@pytest.mark.parametrize("name", MARKS)
def test_a_file_with_names_of_d4rl_and_other_marks_ends_its_episodes_there(convert, tmp_path, name):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.update({**D4RL, name: MARKS[name]})

    assert convert(tmp_path / "a.hdf5").episodes.lengths.tolist() == LENGTHS


def test_a_file_with_names_of_d4rl_and_inverted_flags_is_refused(convert, tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.update({**D4RL, "terminals": ~DONE})

    with pytest.raises(ConversionError, match="terminals is set in 7 of 10 rows"):
        convert(tmp_path / "a.hdf5")


@pytest.mark.parametrize("others", [{}, {"timeouts": np.arange(ROWS) == 7}])
def test_arrays_with_names_of_ogbench_and_no_joints_are_steps_with_all_actions(convert, tmp_path, others):
    flags = DONE if not others else DONE & (np.arange(ROWS) != 7)
    arrays = {"observations": flat()["obs"], "actions": flat()["actions"], "terminals": flags, **others}
    np.savez(tmp_path / "a.npz", **arrays)

    stored = convert(tmp_path / "a.npz")

    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("action",)), arrays["actions"])
