"""D4RL files of every family are converted to trajectories with the values of the file and of the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import d4rl_files
import h5py
import numpy as np
import pytest
from d4rl_files import pieces
from oracles import comparison

import datasets_rl.sources.demo
from datasets_rl import Selection, downloading
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import get_source
from datasets_rl.sources.d4rl import SOURCE

OBSERVATION = ("observation",)
ACTION = ("action",)
REWARD = ("next", "reward")
TERMINATED = ("next", "terminated")
TRUNCATED = ("next", "truncated")


def files(name, path):
    return {SOURCE.assets(name)[0].path: path}


def opened(name, path):
    return SOURCE.open(name, files(name, path))


def read(name, path):
    """Return the trajectories of a file, and the decisions by rule."""
    with opened(name, path) as recording:
        whole = pieces(recording)
        return whole, {decision.rule: decision.count for decision in recording.decisions}


def step(episodes, key):
    return np.concatenate([episode["steps"][key] for episode in episodes])


def lengths(episodes):
    return [len(episode["steps"][ACTION]) for episode in episodes]


def rows(episodes, key):
    """Return the values at the rows of the file, without final states."""
    return np.concatenate([episode["states"][key][: len(episode["steps"][ACTION])] for episode in episodes])


class TestRollouts:
    """Compared with the simulator, step by step."""

    @pytest.mark.parametrize(
        ("name", "env_id", "dtype"),
        [
            ("halfcheetah-medium-v2", "HalfCheetah-v5", np.float32),
            ("halfcheetah-medium-replay-v2", "HalfCheetah-v5", np.float64),
            ("hopper-medium-v2", "Hopper-v5", np.float32),
            ("hopper-full-replay-v1", "Hopper-v5", np.float64),
        ],
    )
    def test_every_step_and_every_final_state_equals_that_of_the_simulator(self, tmp_path, name, env_id, dtype):
        run = d4rl_files.mujoco(tmp_path / "x.h5", env_id=env_id, dtype=dtype, steps=250, limit=40)
        episodes, decisions = read(name, tmp_path / "x.h5")

        assert len(episodes) == len(run.actions)
        assert any(run.truncated) or any(run.terminated)
        for number, episode in enumerate(episodes):
            assert episode["known"]
            np.testing.assert_array_equal(episode["states"][OBSERVATION], run.states[number].astype(dtype))
            np.testing.assert_array_equal(episode["states"]["info", "qpos"], run.qpos[number][:-1].astype(dtype))
            np.testing.assert_array_equal(episode["states"]["info", "qvel"], run.qvel[number][:-1].astype(dtype))
            np.testing.assert_array_equal(episode["steps"][ACTION], run.actions[number])
            np.testing.assert_array_equal(episode["steps"][REWARD][:, 0], run.rewards[number].astype(dtype))
            assert episode["steps"][TERMINATED][:, 0].nonzero()[0].tolist() == (
                [len(run.actions[number]) - 1] if run.terminated[number] else []
            )
            assert episode["states"][OBSERVATION].dtype == dtype
        cut = not (run.terminated[-1] or run.truncated[-1])
        assert step(episodes, TRUNCATED).sum() == sum(run.truncated) + cut
        assert decisions.get("end-without-flag", 0) == cut
        assert decisions["final-observation-kept"] == len(run.actions)

    def test_v0_has_no_final_states(self, tmp_path):
        run = d4rl_files.mujoco(tmp_path / "x.h5", env_id="Hopper-v5", version=0, steps=200)
        episodes, decisions = read("hopper-random-v0", tmp_path / "x.h5")

        for number, episode in enumerate(episodes):
            assert not episode["known"]
            np.testing.assert_array_equal(episode["states"][OBSERVATION], run.states[number][:-1].astype(np.float32))
        assert decisions["final-observation-unknown"] == len(episodes)

    def test_the_policy_of_the_file_is_metadata(self, tmp_path):
        d4rl_files.mujoco(tmp_path / "x.h5", policy=True)
        with opened("halfcheetah-expert-v2", tmp_path / "x.h5") as recording:
            metadata = recording.metadata

        assert metadata["algorithm"] == "SAC"
        assert metadata["iteration"] == 1000
        assert metadata["policy/nonlinearity"] == "relu"
        assert metadata["policy/last_fc_log_std/bias"].shape == (6,)
        np.testing.assert_array_equal(
            metadata["policy/fc0/weight"], d4rl_files.policy_metadata()["metadata/policy/fc0/weight"]
        )


@pytest.mark.parametrize(("factor", "bounds"), [(1, (-1, 1)), (1.5, None)])
def test_the_bounds_of_the_environment_are_those_of_the_spec_unless_an_action_exceeds_them(tmp_path, factor, bounds):
    d4rl_files.mujoco(tmp_path / "x.h5", env_id="Hopper-v5", steps=200)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["actions"][...] *= factor
    settings = Settings(home=tmp_path / "home", progress=False)
    folder = downloading.download(
        "d4rl/hopper-random-v2", from_local=tmp_path / "x.h5", hash_check=False, keep_raw=True, settings=settings
    )

    spec = StoredDataset(folder).manifest.specs["action"]
    assert (spec["kind"], spec.get("low"), spec.get("high")) == (
        ("bounded", *bounds) if bounds else ("unbounded", None, None)
    )
    assert comparison.deep_problems(folder, settings=settings) == []


FAMILIES = [
    ("door-human-v0", d4rl_files.adroit_human, {"version": 0}, [70, 55, 81]),
    ("door-human-v1", d4rl_files.adroit_human, {}, [70, 55, 81]),
    ("door-cloned-v0", d4rl_files.adroit_cloned, {}, [200, 120, 80]),
    ("door-cloned-v1", d4rl_files.adroit_cloned, {"version": 1}, [200, 120, 80]),
    ("antmaze-umaze-v2", d4rl_files.antmaze, {}, [1001, 1001, 1001]),
    ("maze2d-umaze-v1", d4rl_files.maze2d, {}, [1200]),
    ("maze2d-umaze-v1", d4rl_files.maze2d, {"timeouts": True}, [161] * 7 + [73]),
    ("minigrid-fourrooms-v0", d4rl_files.minigrid, {}, [12, 50, 7, 31]),
    ("kitchen-complete-v0", d4rl_files.kitchen, {}, [190, 301, 222]),
    ("flow-ring-random-v0", d4rl_files.flow, {}, [500, 500, 500, 200]),
    ("carla-lane-v0", d4rl_files.carla, {}, [40, 25, 25]),
    ("bullet-hopper-medium-v0", d4rl_files.bullet, {}, [60, 100, 40]),
]


@pytest.mark.parametrize(("name", "make", "options", "expected"), FAMILIES)
class TestFamilies:
    """Compared with the columns of the file: no row is dropped, added or moved."""

    def test_rows_and_ends_are_those_of_the_file(self, tmp_path, name, make, options, expected):
        columns = make(tmp_path / "x.h5", **options)
        episodes, _ = read(name, tmp_path / "x.h5")

        assert lengths(episodes) == expected
        assert not any(episode["known"] for episode in episodes)
        np.testing.assert_array_equal(rows(episodes, OBSERVATION), columns["observations"])
        np.testing.assert_array_equal(step(episodes, ACTION), columns["actions"])
        np.testing.assert_array_equal(step(episodes, REWARD)[:, 0], columns["rewards"])
        np.testing.assert_array_equal(step(episodes, TERMINATED)[:, 0], columns["terminals"] == 1)
        done = step(episodes, TERMINATED) | step(episodes, TRUNCATED)
        assert (done.ravel().nonzero()[0] + 1).tolist() == np.cumsum(expected).tolist()
        timeouts = columns.get("timeouts", np.zeros(len(columns["rewards"]), bool))
        assert not (timeouts & ~step(episodes, TRUNCATED)[:, 0]).any()

    def test_infos_and_types_are_kept(self, tmp_path, name, make, options, expected):
        columns = make(tmp_path / "x.h5", **options)
        with opened(name, tmp_path / "x.h5") as recording:
            declared = {column.key: column for column in recording.columns}
            assert recording.steps == sum(expected)
            episodes = pieces(recording)

        for full, array in columns.items():
            if full.startswith("infos"):
                key = ("info", *full.split("/")[1:])
                np.testing.assert_array_equal(rows(episodes, key), array)
                assert declared[key].shared
        assert declared[OBSERVATION].dtype == columns["observations"].dtype
        assert declared[OBSERVATION].shape == columns["observations"].shape[1:]
        assert declared[ACTION].shape == columns["actions"].shape[1:]
        for column in declared.values():
            group = "states" if column.shared else "steps"
            assert episodes[0][group][column.key].dtype == column.dtype
            assert episodes[0][group][column.key].shape[1:] == column.shape

    def test_the_comparison_finds_no_difference(self, tmp_path, name, make, options, expected):
        make(tmp_path / "x.h5", **options)
        episodes, _ = read(name, tmp_path / "x.h5")

        assert comparison.compare(f"d4rl/{name}", files(name, tmp_path / "x.h5"), converted(episodes)) == []
        assert lengths(episodes) == expected


class TestEnds:
    """The ends of trajectories, and the recorded decisions about them."""

    def test_float_flags_are_cast_and_recorded(self, tmp_path):
        d4rl_files.antmaze(tmp_path / "x.h5")
        _, decisions = read("antmaze-umaze-v2", tmp_path / "x.h5")

        assert decisions["flags-cast"] == 3003
        assert decisions["longer-than-time-limit"] == 3

    def test_the_time_limit_ends_episodes_only_where_the_file_has_no_timeouts(self, tmp_path):
        d4rl_files.flow(tmp_path / "x.h5")
        episodes, decisions = read("flow-ring-random-v0", tmp_path / "x.h5")

        assert decisions["end-by-time-limit"] == 3
        assert decisions["end-without-flag"] == 1
        assert step(episodes, TRUNCATED)[:, 0].nonzero()[0].tolist() == [499, 999, 1499, 1699]

    @pytest.mark.parametrize(
        ("name", "make", "expected"),
        [
            ("maze2d-umaze-v1", d4rl_files.maze2d, [1200]),
            ("bullet-maze2d-umaze-v0", d4rl_files.maze2d, [1200]),
            ("kitchen-complete-v0", d4rl_files.kitchen, [190, 301, 222]),
        ],
    )
    def test_streams_that_were_never_reset_are_not_cut_at_the_limit(self, tmp_path, name, make, expected):
        make(tmp_path / "x.h5")
        episodes, decisions = read(name, tmp_path / "x.h5")

        assert lengths(episodes) == expected
        assert decisions["continuing-stream"] == 1
        assert "end-by-time-limit" not in decisions

    def test_the_limit_counts_from_the_last_termination(self, tmp_path):
        columns = d4rl_files.flow(tmp_path / "x.h5")
        columns["terminals"][[99, 599, 1200]] = True
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read("flow-ring-random-v0", tmp_path / "x.h5")

        assert lengths(episodes) == [100, 500, 500, 101, 499]
        assert decisions["end-by-time-limit"] == 1

    def test_the_tail_of_hopper_random_is_truncated_and_its_final_state_kept(self, tmp_path):
        """hopper-random-v2 ends with four steps that carry neither flag."""
        run = d4rl_files.rollout("Hopper-v5", steps=100, limit=20)
        ends = np.cumsum([len(actions) for actions in run.actions])
        kept = int(ends[-2]) + 4
        columns = {key: value[:kept] for key, value in d4rl_files.mujoco_columns(run).items()}
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read("hopper-random-v2", tmp_path / "x.h5")

        assert lengths(episodes)[-1] == 4
        assert decisions["end-without-flag"] == 1
        assert step(episodes, TRUNCATED)[-1]
        np.testing.assert_array_equal(episodes[-1]["states"][OBSERVATION], run.states[-1][:5].astype(np.float32))

    def test_both_flags_on_a_row_are_kept(self, tmp_path):
        columns = d4rl_files.adroit_human(tmp_path / "x.h5")
        columns["terminals"][69] = True
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read("door-human-v1", tmp_path / "x.h5")

        assert decisions["both-flags"] == 1
        assert step(episodes, TERMINATED)[69]
        assert step(episodes, TRUNCATED)[69]

    @pytest.mark.parametrize("block", [1, 7, 64, 10_000])
    def test_a_jump_without_a_flag_ends_a_trajectory(self, tmp_path, monkeypatch, block):
        """medium-expert concatenates two files; the last trajectory of the first may have no end."""
        columns, run = stitched()
        d4rl_files.write(tmp_path / "x.h5", columns)
        monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", block * 280)
        episodes, decisions = read("halfcheetah-medium-expert-v2", tmp_path / "x.h5")

        assert lengths(episodes) == [100, 100, 50, 100, 100, 100]
        assert decisions["seam-without-flag"] == 1
        assert step(episodes, TRUNCATED)[:, 0].nonzero()[0].tolist() == [99, 199, 249, 349, 449, 549]
        np.testing.assert_array_equal(episodes[2]["states"][OBSERVATION], run.states[2][:51].astype(np.float32))
        assert (
            comparison.compare(
                "d4rl/halfcheetah-medium-expert-v2",
                files("halfcheetah-medium-expert-v2", tmp_path / "x.h5"),
                converted(episodes),
            )
            == []
        )

    def test_rows_without_trajectories_keep_their_next_observation_as_a_column(self, tmp_path):
        run = d4rl_files.rollout()
        columns = d4rl_files.mujoco_columns(run)
        order = np.random.default_rng(0).permutation(run.steps)
        columns = {key: value[order] for key, value in columns.items()}
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read("halfcheetah-medium-v2", tmp_path / "x.h5")

        assert decisions["next-observation-explicit"] == run.steps
        assert "seam-without-flag" not in decisions
        np.testing.assert_array_equal(step(episodes, ("next", "observation")), columns["next_observations"])
        np.testing.assert_array_equal(step(episodes, OBSERVATION), columns["observations"])
        name = "halfcheetah-medium-v2"
        assert comparison.compare(f"d4rl/{name}", files(name, tmp_path / "x.h5"), converted(episodes)) == []

    def test_nan_is_kept_and_counted_and_not_a_jump(self, tmp_path):
        run = d4rl_files.rollout()
        columns = d4rl_files.mujoco_columns(run)
        columns["observations"][11, 3] = columns["next_observations"][10, 3] = np.nan
        columns["rewards"][5] = np.inf
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read("halfcheetah-medium-v2", tmp_path / "x.h5")

        assert lengths(episodes) == [100, 100, 100]
        assert decisions["not-finite"] == 3
        assert np.isnan(rows(episodes, OBSERVATION)[11, 3])

    def test_rows_of_zeros_are_kept_and_counted(self, tmp_path):
        columns = d4rl_files.adroit_human(tmp_path / "x.h5")
        columns["observations"][[3, 80, 81]] = 0
        columns["observations"][7, 0] = 0
        d4rl_files.write(tmp_path / "x.h5", columns)
        _, decisions = read("door-human-v1", tmp_path / "x.h5")

        assert decisions["zero-observation"] == 3

    def test_a_second_pass_gives_the_same(self, tmp_path):
        d4rl_files.mujoco(tmp_path / "x.h5")
        with opened("halfcheetah-medium-v2", tmp_path / "x.h5") as recording:
            first, decisions = pieces(recording), recording.decisions
            again = pieces(recording)

            assert recording.decisions == decisions
        np.testing.assert_array_equal(rows(first, OBSERVATION), rows(again, OBSERVATION))


class TestLayouts:
    """Variants of the layout in upstream files."""

    def test_columns_of_one_value_may_have_an_axis_of_size_one(self, tmp_path):
        columns = d4rl_files.adroit_human(tmp_path / "x.h5")
        flat = dict(columns)
        for name in ("rewards", "terminals", "timeouts"):
            columns[name] = columns[name][:, None]
        d4rl_files.write(tmp_path / "y.h5", columns)
        first, second = (read("door-human-v1", tmp_path / name)[0] for name in ("x.h5", "y.h5"))

        for key in (REWARD, TERMINATED, TRUNCATED):
            assert step(second, key).shape == (206, 1)
            np.testing.assert_array_equal(step(first, key), step(second, key))
        assert flat["rewards"].ndim == 1

    def test_big_endian_and_half_precision_are_read(self, tmp_path):
        columns = d4rl_files.adroit_human(tmp_path / "x.h5")
        columns["observations"] = columns["observations"].astype(">f4")
        columns["actions"] = columns["actions"].astype(np.float16)
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, _ = read("door-human-v1", tmp_path / "x.h5")

        assert rows(episodes, OBSERVATION).dtype == np.dtype("=f4")
        assert step(episodes, ACTION).dtype == np.float16
        np.testing.assert_array_equal(rows(episodes, OBSERVATION), columns["observations"])

    def test_other_datasets_become_columns_or_metadata(self, tmp_path):
        columns = d4rl_files.adroit_human(tmp_path / "x.h5")
        columns |= {
            "returns_to_go": np.arange(206.0),
            "infos/deep/er.est": np.arange(206),
            "virtual/0/observations": np.zeros((5, 39)),
            "note": np.bytes_(b"made by hand"),
            "mean": np.zeros(39),
        }
        d4rl_files.write(tmp_path / "x.h5", columns)
        with opened("door-human-v1", tmp_path / "x.h5") as recording:
            keys = {column.key: column.shared for column in recording.columns}
            metadata = dict(recording.metadata)
            rules = {decision.rule: decision.count for decision in recording.decisions}

        assert keys["returns_to_go",] is False
        assert keys["info", "deep", "er_est"] is True
        assert metadata["note"] == "made by hand"
        assert metadata["mean"].shape == (39,)
        assert not any("virtual" in name for name in (*metadata, *("/".join(key) for key in keys)))
        assert rules["not-per-step"] == 2
        assert rules["renamed"] == 1

    def test_observations_may_be_a_group(self, tmp_path):
        run = d4rl_files.rollout()
        columns = d4rl_files.mujoco_columns(run)
        for name in ("observations", "next_observations"):
            whole = columns.pop(name)
            columns[f"{name}/position"], columns[f"{name}/speed"] = whole[:, :8], whole[:, 8:]
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, _ = read("halfcheetah-medium-v2", tmp_path / "x.h5")

        assert all(episode["known"] for episode in episodes)
        got = np.hstack([episodes[1]["states"]["observation", name] for name in ("position", "speed")])
        np.testing.assert_array_equal(got, run.states[1].astype(np.float32))
        name = "halfcheetah-medium-v2"
        assert comparison.compare(f"d4rl/{name}", files(name, tmp_path / "x.h5"), converted(episodes)) == []

    def test_many_short_episodes_in_small_blocks_are_those_of_the_flags(self, tmp_path, monkeypatch):
        generator = np.random.default_rng(3)
        states = generator.normal(size=(3001, 3)).astype(np.float32)
        ends = generator.random(3000) < 0.3
        columns = {
            "observations": states[:-1],
            "next_observations": states[1:],
            "actions": generator.normal(size=(3000, 1)).astype(np.float32),
            "rewards": generator.normal(size=3000).astype(np.float32),
            "terminals": ends,
            "timeouts": np.zeros(3000, bool),
        }
        d4rl_files.write(tmp_path / "x.h5", columns, chunks=None)
        monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 13 * 32)
        episodes, _ = read("bullet-hopper-medium-v0", tmp_path / "x.h5")

        starts = np.concatenate([[0], ends[:-1].nonzero()[0] + 1])
        assert lengths(episodes) == np.diff([*starts, 3000]).tolist()
        for start, episode in zip(starts, episodes, strict=True):
            stop = start + len(episode["steps"][ACTION])
            np.testing.assert_array_equal(episode["states"][OBSERVATION], states[start : stop + 1])
            np.testing.assert_array_equal(episode["steps"][ACTION], columns["actions"][start:stop])


class TestCompare:
    """The comparison finds possible errors of a converter."""

    @pytest.mark.parametrize(
        ("key", "says"),
        [
            (OBSERVATION, r"observation at row 17 is \["),
            (ACTION, "action at row 17"),
            (REWARD, "next.reward at row 17"),
            (("info", "qpos"), "info.qpos at row 17"),
            (("next", "info", "qpos"), "next.info.qpos at row 17"),
            (("next", "observation"), "next.observation at row 17"),
            (TERMINATED, "next.terminated at row 17"),
            (TRUNCATED, "next.truncated at row 17 is set, but the file has no time-out"),
            (("next", "done"), "next.done at row 17"),
        ],
    )
    def test_one_wrong_value_is_found(self, tmp_path, key, says):
        name = "halfcheetah-medium-v2"
        d4rl_files.mujoco(tmp_path / "x.h5")
        columns = joined(read(name, tmp_path / "x.h5")[0])
        columns[key] = columns[key].copy()
        columns[key][17] = ~columns[key][17] if columns[key].dtype == bool else columns[key][17] + 1
        found = comparison.compare(
            f"d4rl/{name}", files(name, tmp_path / "x.h5"), lambda key, start, stop: columns[key][start:stop]
        )

        assert any(re.match(says, line) for line in found), found

    def test_a_wrong_final_observation_is_found(self, tmp_path):
        """TorchRL sets it to zero although the file has it."""
        name = "halfcheetah-medium-v2"
        d4rl_files.mujoco(tmp_path / "x.h5")
        columns = joined(read(name, tmp_path / "x.h5")[0])
        columns["next", "observation"][99] = 0
        found = comparison.compare(
            f"d4rl/{name}", files(name, tmp_path / "x.h5"), lambda key, start, stop: columns[key][start:stop]
        )

        assert len(found) == 1
        assert found[0].startswith("next.observation at row 99")

    def test_a_lost_timeout_is_found(self, tmp_path):
        name = "door-human-v1"
        d4rl_files.adroit_human(tmp_path / "x.h5")
        columns = joined(read(name, tmp_path / "x.h5")[0])
        columns[TRUNCATED][69] = False
        columns["next", "done"][69] = False
        found = comparison.compare(
            f"d4rl/{name}", files(name, tmp_path / "x.h5"), lambda key, start, stop: columns[key][start:stop]
        )

        assert any("next.truncated at row 69 lacks the file's time-out" in line for line in found)

    def test_the_built_in_data_equals_its_raw_file(self):
        demo = get_source("demo")
        here = {"pendulum.hdf5": Path(datasets_rl.sources.demo.__file__).with_name("pendulum.hdf5")}
        with demo.open("pendulum", here) as recording:
            episodes = pieces(recording)

        assert comparison.compare("demo/pendulum", here, converted(episodes)) == []

    @pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
    def test_unsigned_integers_are_widened_and_compare_equal(self, tmp_path, dtype):
        name = "halfcheetah-medium-v2"
        columns = d4rl_files.mujoco_columns(d4rl_files.rollout())
        most = np.iinfo(dtype).max
        columns["infos/ticks"] = (most - np.arange(300)).astype(dtype)
        columns["mark"] = columns["infos/ticks"]
        d4rl_files.write(tmp_path / "x.h5", columns)
        episodes, decisions = read(name, tmp_path / "x.h5")

        assert decisions["widened"] == 600
        assert step(episodes, ("mark",)).dtype == np.dtype(f"i{2 * np.dtype(dtype).itemsize}")
        assert step(episodes, ("mark",)).max() == most
        assert comparison.compare(f"d4rl/{name}", files(name, tmp_path / "x.h5"), converted(episodes)) == []

    def test_no_name_of_the_metadata_is_a_parent_of_another(self, tmp_path):
        columns = d4rl_files.mujoco_columns(d4rl_files.rollout())
        columns |= {
            "a": 1.0,
            "metadata/a/b": 2.0,
            "c/d": 3.0,
            "metadata/c": 4.0,
            "e": 5.0,
            "metadata/e": 6.0,
            "e_": 7.0,
        }
        d4rl_files.write(tmp_path / "x.h5", columns)
        with opened("halfcheetah-medium-v2", tmp_path / "x.h5") as recording:
            counts = {decision.rule: decision.count for decision in recording.decisions}

            assert recording.metadata == {"a_": 1, "a/b": 2, "c_/d": 3, "c": 4, "e_": 5, "e": 6, "e__": 7}
        assert counts["renamed"] == 4

    def test_a_file_of_one_row_is_compared(self, tmp_path):
        name = "halfcheetah-medium-v2"
        d4rl_files.mujoco(tmp_path / "x.h5", steps=1)
        d4rl_files.mujoco(tmp_path / "y.h5", steps=1, version=0)
        for path in (tmp_path / "x.h5", tmp_path / "y.h5"):
            episodes, _ = read(name, path)
            assert comparison.compare(f"d4rl/{name}", files(name, path), converted(episodes)) == []

    def test_raw_files_of_another_dataset_are_a_problem(self, tmp_path):
        there = {"gym_mujoco_v2/hopper_medium-v2.hdf5": tmp_path / "x.h5"}

        (problem,) = comparison.compare("demo/pendulum", there, None)
        assert problem.startswith("the raw files are gym_mujoco_v2/hopper_medium-v2.hdf5; ")
        assert problem.endswith("demo/pendulum is converted from pendulum.hdf5")


def stitched():
    """Return two concatenated rollouts; the third episode of the first has no end."""
    run = d4rl_files.rollout()
    first, second = d4rl_files.mujoco_columns(run), d4rl_files.mujoco_columns(d4rl_files.rollout(seed=9))
    return {key: np.concatenate([first[key][:250], second[key]]) for key in first}, run


def joined(episodes):
    """Return trajectories as flat columns at t and at t + 1, like a converted dataset."""
    columns = {key: step(episodes, key) for key in episodes[0]["steps"]}
    columns["next", "done"] = columns[TERMINATED] | columns[TRUNCATED]
    for key in episodes[0]["states"]:
        columns[key] = rows(episodes, key)
        columns[("next", *key)] = np.concatenate([following(episode, key) for episode in episodes])
    return columns


def following(episode, key):
    states, known = episode["states"][key], len(episode["states"][key]) > len(episode["steps"][ACTION])
    return states[1:] if known else np.concatenate([states[1:], np.zeros_like(states[:1])])


def converted(episodes):
    columns = joined(episodes)
    return lambda key, start, stop: columns[key][start:stop]


def test_rare_but_valid_hdf5_is_read_and_unwritten_chunks_are_counted(tmp_path):
    """A user block as MATLAB writes it, soft links within the file, and unwritten chunks."""
    columns = dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w", userblock_size=512) as file:
        for name in ("observations", "next_observations", "actions", "terminals", "timeouts"):
            file[f"run/{name}"] = columns[name]
            file[name] = h5py.SoftLink(f"/run/{name}")
        rewards = file.create_dataset("rewards", (300,), "f4", chunks=(10,), compression="gzip", fillvalue=-1)
        rewards[:100] = columns["rewards"][:100]
        del file["run/terminals"], file["terminals"]
        file["terminals"] = columns["terminals"]
    settings = Settings(home=tmp_path / "home", progress=False)

    made = downloading.download("d4rl/halfcheetah-medium-v2", from_local=path, hash_check=False, settings=settings)
    assert comparison.deep_problems(made, settings=settings) == []
    stored = StoredDataset(made)
    np.testing.assert_array_equal(stored.column(OBSERVATION), columns["observations"])
    np.testing.assert_array_equal(stored.column(REWARD)[:100, 0], columns["rewards"][:100])
    assert (stored.column(REWARD)[100:] == -1).all()
    assert {one.rule: one.count for one in stored.manifest.decisions}["unwritten-chunks"] == 20


def downloaded(tmp_path, columns, name="halfcheetah-medium-v2"):
    """Convert a file of these columns, and compare the stored dataset with it."""
    tmp_path.mkdir(exist_ok=True)
    d4rl_files.write(tmp_path / "x.hdf5", columns)
    settings = Settings(home=tmp_path / "home", progress=False)
    made = downloading.download(f"d4rl/{name}", from_local=tmp_path / "x.hdf5", hash_check=False, settings=settings)
    assert comparison.deep_problems(made, settings=settings) == []
    return StoredDataset(made)


@pytest.mark.first(1)
@pytest.mark.parametrize(("dtype", "noise"), [("f8", 1e-6), ("f4", 1e-6), ("f2", 2e-3)])
def test_rounding_between_the_two_observations_ends_no_episode(tmp_path, dtype, noise):
    """The observation of the next row is stored; only final observations are from next_observations."""
    columns = dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))
    for name in ("observations", "next_observations"):
        columns[name] = columns[name].astype(dtype)
    dice = np.random.default_rng(0)
    rows = dice.choice(300, 60, replace=False)
    whole = [len(one) for one in downloaded(tmp_path / "exact", columns).episodes]
    exact = columns["next_observations"].copy()
    columns["next_observations"][rows] += (dice.uniform(-noise, noise, (60, 17)) * (1 + np.abs(exact[rows]))).astype(
        dtype
    )
    changed = (columns["next_observations"] != exact).any(axis=1)

    stored = downloaded(tmp_path / "noisy", columns)
    ends = np.asarray(stored.episodes.stops) - 1
    within = np.setdiff1d(np.arange(300), ends)
    assert [len(one) for one in stored.episodes] == whole
    assert "seam-without-flag" not in {one.rule for one in stored.manifest.decisions}
    assert {one.rule: one.count for one in stored.manifest.decisions}["next-observation-rounded"] == changed[
        within
    ].sum()
    following = stored.column(("next", "observation"))
    np.testing.assert_array_equal(following[within], stored.column(OBSERVATION)[within + 1])
    np.testing.assert_array_equal(following[ends], columns["next_observations"][ends])


@pytest.mark.parametrize("jump", [1e-3, 1.0, np.inf, np.nan])
def test_a_jump_of_one_number_ends_a_trajectory_regardless_of_rounding_in_others(tmp_path, jump):
    columns = dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))
    columns["next_observations"] = columns["next_observations"] + np.float32(5e-7)
    columns["next_observations"][42, 3] += jump

    stored = downloaded(tmp_path, columns)
    assert 43 in stored.episodes.stops.tolist()
    assert {one.rule: one.count for one in stored.manifest.decisions}["seam-without-flag"] == 1
    np.testing.assert_array_equal(stored.column(("next", "observation"))[42], columns["next_observations"][42])


def test_without_observations_no_final_observation_is_unknown(tmp_path):
    """A file of observations with unknown final observations, converted without them."""
    columns = dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))
    del columns["next_observations"]
    d4rl_files.write(tmp_path / "x.hdf5", columns)
    settings = Settings(home=tmp_path / "home", progress=False)
    fields = ["action", "next.reward", "next.terminated", "next.truncated"]
    made = downloading.download(
        "d4rl/halfcheetah-medium-v2",
        from_local=tmp_path / "x.hdf5",
        hash_check=False,
        selection=Selection(keys=fields),
        settings=settings,
    )

    assert StoredDataset(made).episodes["final_known"].all()


def test_observations_of_which_only_some_have_a_final_state_are_refused(tmp_path):
    columns = dict(d4rl_files.mujoco_columns(d4rl_files.rollout()))
    for name in ("observations", "next_observations"):
        whole = columns.pop(name)
        columns[f"{name}/position"], columns[f"{name}/speed"] = whole[:, :8], whole[:, 8:]
    del columns["next_observations/speed"]

    with pytest.raises(ConversionError, match="expected all or none"):
        downloaded(tmp_path, columns)
