"""Ids, alignment and rewards of OGBench's source, compared with generated episodes and with the package's own results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from raw.ogbench import SCENE, draw, write_file

from datasets_rl import GoalSampler, OGBenchExperienceReplay, Selection, downloading
from datasets_rl.errors import UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source
from datasets_rl.sources.ogbench.tasks import Task

GOLDEN = Path(__file__).parents[1] / "golden" / "ogbench.npz"
ENVIRONMENTS = {name: one for name, one in get_source("ogbench").catalog["groups"].items() if "tasks" in one}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def convert(tmp_path):
    def run(name="scene-play-v0", **selection):
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        return StoredDataset(
            downloading.download(
                f"ogbench/{name}",
                from_local=tmp_path / "raw",
                settings=settings,
                selection=Selection(**selection),
            )
        )

    return run


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_rewards_of_all_tasks_equal_those_of_the_package_bit_for_bit(name):
    facts = ENVIRONMENTS[name]["tasks"]
    with np.load(GOLDEN) as file:
        golden = {key.removeprefix(f"{name}/"): file[key] for key in file.files if key.startswith(f"{name}/")}
    states = {key: golden[key] for key in ("qpos", "button_states") if key in golden}

    for number in (None, 1, 2, 3, 4, 5):
        task = Task.of(facts, number)
        suffix = "" if number is None else f"-task{number}"
        for found, wanted in zip(task.rewards(states), ("rewards", "masks"), strict=True):
            assert found.dtype == golden[wanted + suffix].dtype
            assert found.tobytes() == golden[wanted + suffix].tobytes(), (wanted, number)
        assert task.oracle_reps(states).tobytes() == golden["oracle_reps"].tobytes()


def test_there_are_85_datasets_with_validation_files_and_five_tasks_each():
    ids = get_source("ogbench").ids()

    plain = [one for one in ids if "singletask" not in one and "100m" not in one and not one.endswith("-val")]
    assert len(plain) == 85
    assert {f"{one}-val" for one in plain} <= {*ids}
    assert sum("singletask-task" in one and "100m" not in one for one in ids) == 410
    assert len([one for one in plain if one.startswith("visual-")]) == 35


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("antmaze-giant-stitch-v0", "antmaze-giant-v0"),
        ("visual-cube-single-play-singletask-v0", "visual-cube-single-singletask-task2-v0"),
        ("puzzle-4x5-play-100m-singletask-task5-v0", "puzzle-4x5-singletask-task5-v0"),
        ("scene-noisy-oraclerep-v0", "scene-v0"),
        ("scene-noisy-singletask-task1-v0-val", "scene-singletask-task1-v0"),
    ],
)
def test_ids_name_their_environment(name, environment):
    assert find(f"ogbench/{name}").environment == environment


@pytest.mark.parametrize(
    "name",
    [
        "antmaze-giant-explore-v0",
        "antmaze-large-navigate-singletask-task6-v0",
        "powderworld-easy-play-singletask-v0",
        "visual-pointmaze-medium-navigate-v0",
        "cube-octuple-play-v0",
        "cube-octuple-play-100m-v0-val",
        "antmaze-large-navigate-v1",
    ],
)
def test_other_ids_are_unknown(name):
    with pytest.raises(UnknownIdError):
        find(f"ogbench/{name}")


def test_an_episode_longer_than_a_block_is_read_in_pieces(convert, rng, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 4000)
    episodes = [draw(rng, length) for length in (2, 21, 20, 1, 40, 3, 9)]
    write_file(tmp_path / "raw" / SCENE, episodes)

    stored = convert()

    assert stored.episodes.lengths.tolist() == [2, 21, 20, 1, 40, 3, 9]
    wanted = np.concatenate([one["observations"][1:] for one in episodes])
    assert np.array_equal(stored.column(("next", "observation")), wanted)
    truncated = np.zeros(96, bool)
    truncated[np.cumsum(stored.episodes.lengths) - 1] = True
    assert np.array_equal(stored.column(("next", "truncated"))[:, 0], truncated)


def test_doubles_become_floats_and_any_kind_of_flag_is_read(convert, rng, tmp_path):
    episode = draw(rng, 5)
    write_file(tmp_path / "raw" / SCENE, [{**episode, "actions": episode["actions"].astype("f8")}], flag=np.float64)

    stored = convert()

    assert np.array_equal(stored.column(("action",)), episode["actions"][:5])
    assert stored.column(("action",)).dtype == np.float32
    assert {one.rule: one.count for one in stored.manifest.decisions}["floats-narrowed"] == 1


def test_a_task_that_no_state_solves_is_counted(convert, rng, tmp_path):
    episode = draw(rng, 5)
    episode["qpos"][:, 14] = 9
    write_file(tmp_path / "raw" / SCENE, [episode])

    stored = convert("scene-play-singletask-task3-v0")

    assert {one.rule for one in stored.manifest.decisions} >= {"never-solved", "task-rewards"}
    assert (stored.column(("next", "mask")) == 1).all()
    assert "no-rewards" in {one.rule for one in convert("scene-play-v0").manifest.decisions}


def test_representations_of_goals_are_stored_with_the_final_one(convert, rng, tmp_path):
    episode = draw(rng, 4)
    write_file(tmp_path / "raw" / SCENE, [episode])

    stored = convert("scene-play-oraclerep-v0")

    wanted = Task.of(ENVIRONMENTS["scene"]["tasks"], None).oracle_reps(episode)
    assert np.array_equal(stored.column(("info", "oracle_reps")), wanted[:4])
    assert np.array_equal(stored.column(("next", "info", "oracle_reps")), wanted[1:])


def test_rewards_of_a_task_are_computed_without_storing_the_joints(convert, rng, tmp_path):
    episode = draw(rng, 30)
    write_file(tmp_path / "raw" / SCENE, [episode])

    stored = convert("scene-play-singletask-task3-v0", keys=("observation", "action"))

    assert not any(field.key[0] == "info" for field in stored.schema)
    wanted, _ = Task.of(ENVIRONMENTS["scene"]["tasks"], 3).rewards(episode)
    assert np.array_equal(stored.column(("next", "reward"))[:, 0], wanted[:30])


def test_goals_are_sampled_from_a_dataset(convert, rng, tmp_path):
    write_file(tmp_path / "raw" / SCENE, [draw(rng, 30), draw(rng, 20)])
    convert()

    dataset = OGBenchExperienceReplay(
        "scene-play-v0", 64, root=tmp_path / "home" / "ogbench", download=False, sampler=GoalSampler(geometric=0.9)
    )

    batch = dataset.sample()
    assert batch["value_goal"].shape == (64, 40)
    assert set(batch["reward"].unique().tolist()) <= {-1.0, 0.0}


@pytest.mark.parametrize("name", ["scene-play-v0", "scene-play-oraclerep-v0"])
def test_the_package_itself_loads_the_same_transitions(convert, rng, tmp_path, name):
    utils = pytest.importorskip("ogbench.utils", reason="the package ogbench needs a simulator")
    write_file(tmp_path / "raw" / SCENE, [draw(rng, length) for length in (4, 9, 1)])
    loaded = utils.load_dataset(str(tmp_path / "raw" / SCENE), add_info=True)

    stored = convert(name)

    pairs = {"observations": ("observation",), "actions": ("action",), "next_observations": ("next", "observation")}
    pairs |= {one: ("info", one) for one in ("qpos", "qvel", "button_states")}
    for one, key in pairs.items():
        assert np.array_equal(stored.column(key), loaded[one]), one
    assert np.array_equal(stored.column(("next", "truncated"))[:, 0], loaded["terminals"])
