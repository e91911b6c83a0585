"""Files that packages write themselves: one call reads them, and every value is the value that the package was given.

Each test runs where its package is installed: `pip install --no-deps PACKAGE`, and what its import asks for.
"""

from __future__ import annotations

import json
import pickle

import h5py
import numpy as np
import pytest
from layouts import (
    ACTION,
    ACTIONS,
    LAST,
    LENGTHS,
    NEXT_OBS,
    NUMBERS,
    OBS,
    REWARD,
    REWARDS,
    STARTS,
    STATES,
    STEPS,
    TERMINATED,
    TRUNCATED,
)

from datasets_rl import download, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

WARNS = pytest.mark.filterwarnings("default")  # what other packages warn about is not an error of this test


@pytest.fixture
def convert(tmp_path):
    """A function that downloads a path and verifies the stored dataset."""

    def run(path, text=""):
        if text:
            (path / "dataset.toml").write_text(text)
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        stored = StoredDataset(download(str(path), settings=settings))
        assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()
        return stored

    return run


def check(stored, *, terminated=True, finals=True, rewards=True, rows=slice(None)):
    """Compare every stored value with the three episodes, or with some of their rows."""
    (key,) = [field.key for field in stored.schema if field.key[0] == "observation"]
    action, observation = (stored.column(name).reshape(len(OBS[rows]), -1) for name in (("action",), key))
    flags = {name: stored.column(("next", name))[:, 0] for name in ("terminated", "truncated")}
    lengths = np.bincount(NUMBERS[rows])
    assert stored.episodes.lengths.tolist() == lengths[lengths > 0].tolist()
    np.testing.assert_allclose(observation, OBS[rows], rtol=1e-6)
    np.testing.assert_allclose(action, ACTION[rows], rtol=1e-6)
    np.testing.assert_allclose(stored.column(("next", "reward"))[:, 0], REWARD[rows] * rewards, rtol=1e-6)
    np.testing.assert_array_equal(flags["terminated"] | flags["truncated"], LAST[rows])
    np.testing.assert_array_equal(flags["terminated"], TERMINATED[rows] * terminated)
    assert stored.episodes["final_known"].all() == finals
    if finals:
        np.testing.assert_allclose(stored.column(("next", *key)).reshape(-1, 3), NEXT_OBS[rows], rtol=1e-6)


# stable-baselines3


@pytest.fixture
def baselines():
    return pytest.importorskip("stable_baselines3.common.buffers", reason="pip install --no-deps stable-baselines3")


def spaces():
    """Return the spaces of the observations and of the actions."""
    box = pytest.importorskip("gymnasium.spaces").Box
    return box(-np.inf, np.inf, (3,), np.float64), box(-1, 1, (2,), np.float64)


def replay_buffer(baselines):
    buffer = baselines.ReplayBuffer(STEPS, *spaces())
    for row in range(STEPS):
        infos = [{"TimeLimit.truncated": bool(TRUNCATED[row])}]
        buffer.add(OBS[None, row], NEXT_OBS[None, row], ACTION[None, row], REWARD[None, row], LAST[None, row], infos)
    return buffer


def arrays_of(buffer, rows):
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    return {name: getattr(buffer, name)[rows] for name in names}


@WARNS
def test_rollouts_of_stable_baselines_end_where_the_next_episode_starts(baselines, convert, tmp_path):
    torch = pytest.importorskip("torch")
    buffer = baselines.RolloutBuffer(STEPS, *spaces())
    for row in range(STEPS):
        begins = np.array([row in STARTS])
        buffer.add(OBS[None, row], ACTION[None, row], REWARD[None, row], begins, torch.zeros(1), torch.zeros(1))
    names = ("observations", "actions", "rewards", "episode_starts")
    np.savez(tmp_path / "rollouts.npz", **{name: getattr(buffer, name)[:, 0] for name in names})

    check(convert(tmp_path / "rollouts.npz"), terminated=False, finals=False)


@WARNS
@pytest.mark.parametrize("rows", [slice(None), (slice(None), 0)], ids=["of one environment", "without the axis"])
def test_a_replay_buffer_of_stable_baselines_has_time_limits_among_its_ends(baselines, convert, tmp_path, rows):
    np.savez(tmp_path / "buffer.npz", **arrays_of(replay_buffer(baselines), rows))

    check(convert(tmp_path / "buffer.npz"))


@WARNS
def test_a_pickled_replay_buffer_of_stable_baselines_is_refused_by_the_name_of_its_class(baselines, convert, tmp_path):
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(replay_buffer(baselines)))

    with pytest.raises(ConversionError, match=r"stable_baselines3\.common\.buffers\.ReplayBuffer is not allowed"):
        convert(tmp_path / "buffer.pkl")


# imitation


def trajectories():
    """Return the episodes as trajectories of imitation."""
    types = pytest.importorskip("imitation.data.types", reason="pip install --no-deps imitation")
    return [
        types.TrajectoryWithRew(STATES[n], ACTIONS[n], infos=None, terminal=n != 1, rews=REWARDS[n]) for n in range(3)
    ]


@WARNS
def test_trajectories_that_imitation_saves_are_one_row_each(convert, tmp_path):
    own = trajectories()
    serialize = pytest.importorskip("imitation.data.serialize", reason="pip install --no-deps imitation jsonpickle")
    serialize.save(tmp_path / "expert", own)

    check(convert(tmp_path / "expert"))


@WARNS
def test_trajectories_of_equal_lengths_are_not_steps(convert, tmp_path):
    own = [trajectories()[1]] * 3
    serialize = pytest.importorskip("imitation.data.serialize", reason="pip install --no-deps imitation jsonpickle")
    serialize.save(tmp_path / "expert", own)

    stored = convert(tmp_path / "expert")

    assert stored.episodes.lengths.tolist() == [6, 6, 6]
    np.testing.assert_array_equal(stored.column(("observation",)), np.tile(STATES[1][:-1], (3, 1)))


@WARNS
def test_transitions_that_imitation_flattens_need_a_line_for_the_truncated_episode(convert, tmp_path):
    own = trajectories()
    rollout = pytest.importorskip("imitation.data.rollout", reason="pip install --no-deps imitation")
    flat = rollout.flatten_trajectories_with_rew(own)
    names = ("obs", "acts", "next_obs", "dones", "rews")
    (tmp_path / "flat").mkdir()
    np.savez(tmp_path / "flat" / "transitions.npz", **{name: getattr(flat, name) for name in names})
    with pytest.raises(ConversionError, match=r"of row 9 is not .* of row 10") as caught:
        convert(tmp_path / "flat" / "transitions.npz")
    assert 'by = "seams"' in str(caught.value.hint)

    check(convert(tmp_path / "flat", '[episodes]\nby = "seams"'))


@WARNS
def test_pickled_trajectories_of_imitation_are_refused_by_the_name_of_their_class(convert, tmp_path):
    (tmp_path / "rollouts.pkl").write_bytes(pickle.dumps(trajectories()))

    with pytest.raises(ConversionError, match=r"imitation\.data\.types\.TrajectoryWithRew is not allowed"):
        convert(tmp_path / "rollouts.pkl")


# d3rlpy


@pytest.fixture
def d3rlpy():
    return pytest.importorskip("d3rlpy.dataset", reason="pip install --no-deps d3rlpy gym")


@WARNS
def test_a_buffer_that_d3rlpy_dumps_has_an_array_for_each_episode(d3rlpy, convert, tmp_path):
    dataset = d3rlpy.MDPDataset(OBS, ACTION, REWARD, TERMINATED.astype(np.float32), TRUNCATED.astype(np.float32))
    with (tmp_path / "buffer.h5").open("w+b") as stream:
        dataset.dump(stream)

    check(convert(tmp_path / "buffer.h5"), finals=False)


@WARNS
def test_a_file_that_d3rlpy_loads_as_version_1_is_read_as_d3rlpy_reads_it(d3rlpy, convert, tmp_path):
    folder = tmp_path / "d3rlpy"
    folder.mkdir()
    with h5py.File(folder / "dataset.h5", "w") as file:
        flags = {"terminals": TERMINATED, "episode_terminals": LAST}
        for name, values in {"observations": OBS, "actions": ACTION, "rewards": REWARD[:, None]}.items():
            file[name] = values
        for name, values in flags.items():
            file[name] = values.astype(np.float32)
    with (folder / "dataset.h5").open("rb") as stream:
        episodes = d3rlpy.io.load_v1(stream)
    assert [len(episode) for episode in episodes] == LENGTHS.tolist()

    check(convert(folder), finals=False)


# tianshou


@pytest.fixture
def tianshou():
    return pytest.importorskip("tianshou.data", reason="pip install --no-deps tianshou deepdiff cachebox pettingzoo")


def steps_of_tianshou(tianshou, rows):
    """Return the values of rows, of which `rows` may be a number or an array."""
    values = {"obs": OBS, "act": ACTION, "rew": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED}
    return tianshou.Batch({name: array[rows] for name, array in values.items()}, obs_next=NEXT_OBS[rows], info={})


@WARNS
@pytest.mark.parametrize("size", [STEPS + 7, STEPS, 10])
def test_a_ring_of_tianshou_begins_with_its_oldest_row_and_has_no_unfilled_rows(tianshou, convert, tmp_path, size):
    buffer = tianshou.ReplayBuffer(size)
    for row in range(STEPS):
        buffer.add(steps_of_tianshou(tianshou, row))
    buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))

    check(convert(tmp_path / "buffer.hdf5"), rows=slice(max(0, STEPS - size), None))


@WARNS
def test_the_buffers_of_a_vector_of_tianshou_follow_each_other(tianshou, convert, tmp_path):
    buffer = tianshou.VectorReplayBuffer(40, 2)
    for row in range(8):  # the second episode is not finished
        buffer.add(steps_of_tianshou(tianshou, np.array([row, row])))
    buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))

    stored = convert(tmp_path / "buffer.hdf5")

    assert stored.episodes.lengths.tolist() == [4, 4, 4, 4]
    np.testing.assert_array_equal(stored.column(("observation",)), np.tile(OBS[:8], (2, 1)))
    np.testing.assert_array_equal(stored.column(("next", "observation")), np.tile(NEXT_OBS[:8], (2, 1)))
    assert np.flatnonzero(stored.column(("next", "truncated"))[:, 0]).tolist() == [7, 15]


@WARNS
def test_a_pickled_buffer_of_tianshou_is_refused_by_the_name_of_its_class(tianshou, convert, tmp_path):
    buffer = tianshou.ReplayBuffer(STEPS)
    buffer.add(steps_of_tianshou(tianshou, 0))
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(buffer))

    with pytest.raises(ConversionError, match=r"tianshou\.data\..*ReplayBuffer is not allowed"):
        convert(tmp_path / "buffer.pkl")


# RLlib


@WARNS
@pytest.mark.parametrize("packed", [[], ["obs", "new_obs"]])
def test_batches_that_rllib_writes_as_json_are_read(convert, tmp_path, packed):
    writers = pytest.importorskip("ray.rllib.offline.json_writer", reason="pip install ray dm-tree lz4")
    batches = pytest.importorskip("ray.rllib.policy.sample_batch")
    writer = writers.JsonWriter(str(tmp_path / "out"), compress_columns=packed)
    values = {"obs": OBS, "new_obs": NEXT_OBS, "actions": ACTION, "rewards": REWARD, "eps_id": NUMBERS}
    values |= {"terminateds": TERMINATED, "truncateds": TRUNCATED, "t": np.arange(STEPS) - STARTS[NUMBERS]}
    for number in range(3):
        writer.write(batches.SampleBatch({name: array[number == NUMBERS] for name, array in values.items()}))
    del writer

    check(convert(tmp_path / "out"))


# Minari


@WARNS
def test_a_dataset_that_minari_creates_is_read_from_its_folder(convert, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="pip install minari")
    buffers = pytest.importorskip("minari.data_collector")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    observations, actions = spaces()
    episodes = [
        buffers.EpisodeBuffer(
            observations=[*STATES[n]],
            actions=[*ACTIONS[n]],
            rewards=REWARDS[n].tolist(),
            terminations=TERMINATED[n == NUMBERS].tolist(),
            truncations=TRUNCATED[n == NUMBERS].tolist(),
            infos=None,
        )
        for n in range(3)
    ]
    minari.create_dataset_from_buffers("own/test-v0", episodes, observation_space=observations, action_space=actions)

    check(convert(tmp_path / "own" / "test-v0"))


# rlkit


def paths_of_rlkit(**others):
    """Return the paths of rlkit's path collector."""
    return [
        {
            "observations": STATES[n][:-1],
            "actions": ACTIONS[n],
            "rewards": REWARDS[n][:, None],
            "next_observations": STATES[n][1:],
            "terminals": TERMINATED[n == NUMBERS][:, None],
            "agent_infos": [{} for _ in ACTIONS[n]],
            "env_infos": [{"step": step} for step in range(LENGTHS[n])],
            **others,
        }
        for n in range(3)
    ]


@pytest.mark.parametrize("name", ["paths.pkl", "paths.npy"])
def test_paths_of_rlkit_are_episodes(convert, tmp_path, name):
    if name.endswith("pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(paths_of_rlkit()))
    else:
        np.save(tmp_path / name, np.array(paths_of_rlkit(), dtype=object), allow_pickle=True)

    check(convert(tmp_path / name))


# Isaac Lab


def record_with_isaac_lab(path):
    """Write episodes as `HDF5DatasetFileHandler` of Isaac Lab does: each state is the state after its action."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 0
        data.attrs["env_args"] = json.dumps({"env_name": "Isaac-Lift-v0", "type": 2})
        for number in range(3):
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"], group.attrs["seed"], group.attrs["success"] = LENGTHS[number], 7, number != 1
            states = STATES[number]
            values = {
                "actions": ACTIONS[number],
                "obs/policy": states[:-1],
                "initial_state/articulation/robot/joint_position": states[:1],
                "states/articulation/robot/joint_position": states[1:],
            }
            for name, array in values.items():
                group.create_dataset(name, data=array.astype(np.float32), compression="gzip")
            data.attrs["total"] += LENGTHS[number]


def test_recordings_of_isaac_lab_have_the_state_before_each_action(convert, tmp_path):
    record_with_isaac_lab(tmp_path / "dataset.hdf5")

    stored = convert(tmp_path / "dataset.hdf5")

    check(stored, rewards=False, finals=stored.episodes["final_known"].all())
    (key,) = [field.key for field in stored.schema if field.key[0] == "info"]
    np.testing.assert_allclose(stored.column(key), OBS, rtol=1e-6)
    inner = ~LAST | stored.episodes["final_known"][NUMBERS]
    np.testing.assert_allclose(stored.column(("next", *key))[inner], NEXT_OBS[inner], rtol=1e-6)


# h5py, pandas and zarr


def test_a_folder_of_h5py_that_is_chunked_and_packed_is_read(convert, tmp_path):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        flags = {"terminated": TERMINATED, "truncated": TRUNCATED}
        for name, values in {"obs": OBS, "next_obs": NEXT_OBS, "action": ACTION, "reward": REWARD, **flags}.items():
            file.create_dataset(name, data=values, chunks=(4, *values.shape[1:]), compression="gzip", shuffle=True)

    check(convert(tmp_path / "data.hdf5"))


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"row_group_size": 4}])
def test_a_frame_of_pandas_in_parquet_is_read(convert, tmp_path, options):
    pandas = pytest.importorskip("pandas")
    columns = {f"obs_{number}": OBS[:, number] for number in range(3)}
    columns |= {f"action_{number}": ACTION[:, number] for number in range(2)}
    frame = pandas.DataFrame({**columns, "reward": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED})
    frame.index = pandas.Index(2 * np.arange(STEPS))  # as after a selection of rows
    frame.to_parquet(tmp_path / "data.parquet", **options)

    check(convert(tmp_path / "data.parquet"), finals=False)


@WARNS
@pytest.mark.parametrize("version", [2, 3])
def test_a_store_of_zarr_as_diffusion_policy_saves_it_is_read(convert, tmp_path, version):
    zarr = pytest.importorskip("zarr", reason="pip install zarr")
    root = zarr.open_group(tmp_path / "buffer.zarr", mode="w", zarr_format=version)
    values = {"data/obs": OBS, "data/action": ACTION, "meta/episode_ends": np.cumsum(LENGTHS)}
    for name, array in values.items():
        root.create_array(name, data=array, chunks=(4, *array.shape[1:]))

    check(convert(tmp_path / "buffer.zarr"), terminated=False, finals=False, rewards=False)
