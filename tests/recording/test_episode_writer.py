"""Recording episodes step by step."""

from pathlib import Path

import numpy as np
import pytest
import torch

from datasets_rl import EpisodeWriter, Recipe, load, normalized_score, preprocess, verify
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import Settings
from datasets_rl.specs import Bounded
from datasets_rl.transforms import RewardScaling


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))


def record(writer, steps, first=0.0, **last):
    """Record an episode whose states are first, first + 1, ..."""
    writer.start(np.array([first, 1.0]))
    for step in range(steps):
        ends = last if step == steps - 1 else {}
        writer.step(np.int64(step), np.array([first + step + 1, 1.0]), 0.5 * step, **ends)


def is_intact(dataset):
    """Return whether a deep verification finds nothing."""
    found = verify(dataset, deep=True, settings=Settings.from_env())
    assert (found.problems, found.remarks) == ((), ())
    return True


def test_recorded_episodes_have_their_values_flags_and_final_states(tmp_path):
    with EpisodeWriter("local/a") as writer:
        record(writer, 3, 10.0, terminated=True)
        record(writer, 2, 20.0, truncated=True)
        assert (writer.episodes, writer.steps) == (2, 5)

    data = load("local/a")[:]
    assert data["observation"][:, 0].tolist() == [10, 11, 12, 20, 21]
    assert data["next", "observation"][:, 0].tolist() == [11, 12, 13, 21, 22]
    assert data["action"].tolist() == [0, 1, 2, 0, 1]
    assert data["next", "reward"].tolist() == [[0], [0.5], [1], [0], [0.5]]
    assert data["next", "terminated"][:, 0].tolist() == [False, False, True, False, False]
    assert data["next", "truncated"][:, 0].tolist() == [False, False, False, False, True]
    assert data["observation"].dtype == torch.float64
    assert data["next", "reward"].dtype == torch.float32
    assert is_intact("local/a")
    assert not (tmp_path / "local" / ".recorded").exists()


def test_open_episodes_end_as_truncated_and_dropped_ones_are_not_stored():
    with EpisodeWriter("local/a") as writer:
        record(writer, 2)
        record(writer, 3)  # its start ends the episode before
        writer.drop()
        record(writer, 1)  # closing ends it
        writer.end()
        writer.start(np.zeros(2))  # an episode without a step

    dataset = load("local/a")
    assert dataset.episodes.lengths.tolist() == [2, 1]
    assert dataset[:]["next", "truncated"][:, 0].tolist() == [False, True, True]


def test_numbers_of_episodes_get_the_dtype_that_holds_all_of_them():
    """Each episode is a line of the journal with a dtype of its own, and the last one must not convert the others."""
    with EpisodeWriter("local/a") as writer:
        for weight in (0.5, 1, 2**40, True):
            writer.start(np.zeros(2), weight=weight)
            writer.step(0, np.zeros(2), 1.0, terminated=True)

    assert load("local/a").episodes["weight"].tolist() == [0.5, 1.0, 2.0**40, 1.0]


def test_lanes_record_several_episodes_side_by_side():
    with EpisodeWriter("local/a") as writer:
        for lane in range(3):
            writer.start(np.array([100.0 * lane]), lane=lane, seed=lane)
        for step in range(4):
            for lane in range(3):
                writer.step(0, np.array([100.0 * lane + step + 1]), 1.0, step == lane + 1, lane=lane) if (
                    step <= lane + 1
                ) else None

    dataset = load("local/a")
    assert dataset.episodes.lengths.tolist() == [2, 3, 4]
    assert dataset.episodes["seed"].tolist() == [0, 1, 2]
    assert dataset[:]["observation"][:, 0].tolist() == [0, 1, 100, 101, 102, 200, 201, 202, 203]


def test_nested_values_texts_infos_and_further_fields_are_stored():
    states = [
        ({"x": np.zeros(2, np.float32), "task": "push"}, (np.uint8(1), 2.5)),
        ({"x": np.ones(2, np.float32), "task": "pull"}, (np.uint8(2), 3.5)),
    ]
    with EpisodeWriter("local/a", infos=["qpos", "cost"]) as writer:
        writer.start({"obs": states[0][0], "pair": states[0][1]}, {"qpos": np.zeros(3)})
        writer.step(
            {"move": np.int64(4)},
            {"obs": states[1][0], "pair": states[1][1]},
            1.0,
            truncated=True,
            info={"qpos": np.ones(3), "cost": 7, "unused": "text"},
            log_prob=-0.5,
        )

    dataset = load("local/a")
    row = dataset[0]
    assert row["observation", "pair", "1"].item() == 2.5
    assert row["next", "observation", "pair", "0"].item() == 2
    assert row["next", "observation", "obs", "x"].tolist() == [1, 1]
    assert dataset.texts("observation.obs.task")[row["next", "observation", "obs", "task"]] == "pull"
    assert row["info", "qpos"].tolist() == [0, 0, 0]
    assert row["next", "info", "qpos"].tolist() == [1, 1, 1]
    assert row["next", "info", "cost"].item() == 7
    assert row["log_prob"].item() == -0.5
    assert is_intact("local/a")


def test_a_dataset_grows_and_open_readers_keep_their_length():
    with EpisodeWriter(
        "local/a", specs={"action": Bounded(0, 5, (), dtype=torch.int64)}, metadata={"robot": "arm"}
    ) as writer:
        record(writer, 2)
    before = load("local/a")
    with EpisodeWriter("local/a") as writer:
        record(writer, 3, 5.0, terminated=True)
        writer.commit()
        assert len(load("local/a")) == 5
        record(writer, 1, 8.0)

    assert (len(before), len(before[:])) == (2, 2)
    after = load("local/a")
    assert after.episodes.lengths.tolist() == [2, 3, 1]
    assert after[:]["observation"][:, 0].tolist() == [0, 1, 5, 6, 7, 8]
    assert after.metadata["robot"] == "arm"
    assert after.stored.manifest.specs["action"]["kind"] == "bounded"
    assert is_intact("local/a")


def test_bounds_that_values_exceed_are_not_stated():
    with EpisodeWriter("local/a", specs={"observation": Bounded(-1.0, 1.0, (2,), dtype=torch.float64)}) as writer:
        record(writer, 3)

    assert load("local/a").stored.manifest.specs["observation"]["kind"] == "unbounded"
    assert is_intact("local/a")


def test_two_writers_record_into_one_dataset():
    with EpisodeWriter("local/a") as first, EpisodeWriter("local/a") as second:
        record(first, 2, terminated=True)
        record(second, 3)
        first.commit()
        assert load("local/a").episodes.lengths.tolist() == [2]

    assert load("local/a").episodes.lengths.tolist() == [2, 3]


def test_episodes_are_added_after_each_number_of_episodes(tmp_path):
    with EpisodeWriter("local/a", commit_every=2) as writer:
        lengths = []
        for _ in range(5):
            record(writer, 1, terminated=True)
            lengths.append(
                len(load("local/a", download=False)) if (tmp_path / "local" / "a" / "CURRENT").exists() else 0
            )

    assert lengths == [0, 2, 2, 4, 4]
    assert len(load("local/a")) == 5


def test_steps_that_differ_from_the_first_are_refused_and_nothing_else_is_lost():
    with EpisodeWriter("local/a") as writer:
        record(writer, 2, terminated=True)
        writer.start(np.zeros(2))
        with pytest.raises(
            InvalidArgumentError, match=r"observation is float64 \[3\], expected float64 \[2\] as the first value"
        ):
            writer.step(0, np.zeros(3), 0.0)
        with pytest.raises(InvalidArgumentError, match=r"action is float64 \[\], expected int64"):
            writer.step(np.float64(0.5), np.zeros(2), 0.0)
        writer.step(0, np.zeros(2), 0.0)
        with pytest.raises(InvalidArgumentError, match="log_prob"):
            writer.step(0, np.zeros(2), 0.0, log_prob=1.0)
        with pytest.raises(InvalidArgumentError, match="expected a single number"):
            writer.step(0, np.zeros(2), np.zeros(2))
        writer.drop()
        with pytest.raises(InvalidArgumentError, match="no episode is open"):
            writer.step(0, np.zeros(2), 0.0)

    assert load("local/a").episodes.lengths.tolist() == [2]


def test_episodes_with_other_fields_than_the_dataset_are_refused_at_their_first_step():
    with EpisodeWriter("local/a") as writer:
        record(writer, 2)
    with EpisodeWriter("local/a") as writer:
        writer.start(np.zeros(3, np.float32))
        with pytest.raises(
            InvalidArgumentError, match=r"observation is float32 \[3\] shared, and the dataset has float64 \[2\]"
        ):
            writer.step(0, np.zeros(3, np.float32), 0.0)
        record(writer, 1)

    assert load("local/a").episodes.lengths.tolist() == [2, 1]


@pytest.mark.parametrize("dataset", ["demo/pendulum", "local/a@best", Path("recorded/a")])
def test_only_datasets_of_the_users_own_are_recorded(dataset):
    with pytest.raises(InvalidArgumentError, match=r"expected an id local/NAME"):
        EpisodeWriter(dataset)


def test_a_name_without_its_source_is_completed_in_the_advice():
    with pytest.raises(InvalidArgumentError, match=r"'my-arm', expected an id local/NAME") as raised:
        EpisodeWriter("my-arm")
    assert raised.value.hint == "name the dataset local/my-arm"


def test_a_dataset_that_was_preprocessed_in_place_does_not_grow(tmp_path):
    with EpisodeWriter("local/a") as writer:
        record(writer, 2)
    preprocess(tmp_path / "local" / "a", Recipe([RewardScaling(0.0, 2.0)]), in_place=True)

    with pytest.raises(InvalidArgumentError, match="a preprocessed dataset does not grow"):
        EpisodeWriter("local/a")


def test_the_returns_with_scores_0_and_1_are_stored(tmp_path):
    with EpisodeWriter("local/own", root=tmp_path, score=(-10, 30)) as writer:
        writer.start(0.0)
        writer.step(0.0, 1.0, reward=5.0, terminated=True)

    assert normalized_score("local/own", [-10, 10, 30], root=tmp_path).tolist() == [0, 0.5, 1]
    with EpisodeWriter("local/own", root=tmp_path) as writer:
        writer.start(0.0)
        writer.step(0.0, 1.0, reward=5.0, terminated=True)
    assert normalized_score("local/own", 30, root=tmp_path) == 1


@pytest.mark.parametrize("score", [(1, 1), (2, 1), (0, float("nan"))])
def test_returns_out_of_order_are_refused(score, tmp_path):
    with pytest.raises(InvalidArgumentError, match="expected two returns, the lower return first"):
        EpisodeWriter("local/own", root=tmp_path, score=score)


def test_tensors_are_stored_in_their_dtype():
    with EpisodeWriter("local/a") as writer:
        writer.start(torch.tensor([0.5, 1.0], requires_grad=True))
        writer.step(torch.tensor(3), torch.tensor([1.5, 2.0]), torch.tensor(2.0), terminated=torch.tensor(True))

    step = load("local/a")[0]
    assert (step["observation"].tolist(), step["action"].item(), step["action"].dtype) == ([0.5, 1.0], 3, torch.int64)
    assert step["next", "terminated"].item()


def test_steps_per_second_and_names_of_elements_are_metadata_that_every_version_keeps(tmp_path):
    names = {"action": ["shoulder", "elbow"], ("observation", "state"): ["x"]}
    for _ in range(2):
        with EpisodeWriter("local/arm", fps=30, names=names, metadata={"robot": "arm 2"}) as writer:
            writer.start({"state": np.zeros(1)})
            writer.step(np.zeros(2), {"state": np.ones(1)}, 1.0, terminated=True)

    expected = {"robot": "arm 2", "fps": 30, "names": {"action": ["shoulder", "elbow"], "observation.state": ["x"]}}
    assert load("local/arm").metadata == expected
    preprocess(tmp_path / "local" / "arm", Recipe([RewardScaling(0.0, 2.0)]), in_place=True)
    assert load("local/arm").metadata == expected
    other = preprocess("local/arm", Recipe([RewardScaling(0.0, 3.0)]), name="other")
    preprocess([tmp_path / "local" / "arm", other], Recipe([]), out=tmp_path / "both")
    assert load(tmp_path / "both").metadata["0"]["names"] == expected["names"]
    assert is_intact("local/arm")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"action": ["x"]}, r"action has 1 names, but the shape is \[2\]"),
        ({"actions": ["x", "y"]}, r"names has 'actions': the fields are action, next\.reward"),
        ({"action": "xy"}, "expected a list of different texts"),
        ({"action": ["x", "x"]}, "expected a list of different texts"),
    ],
)
def test_names_that_do_not_fit_are_refused_at_the_first_step(names, problem):
    def write():
        writer = EpisodeWriter("local/arm", names=names)
        writer.start(np.zeros(2))
        writer.step(np.zeros(2), np.zeros(2), 1.0)

    with pytest.raises(InvalidArgumentError, match=problem):
        write()


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_a_rate_of_no_steps_is_refused(fps):
    with pytest.raises(InvalidArgumentError, match="steps per second above 0"):
        EpisodeWriter("local/arm", fps=fps)


def test_numbers_of_an_episode_that_the_table_has_itself_are_refused():
    with EpisodeWriter("local/a") as writer, pytest.raises(InvalidArgumentError, match="length, return"):
        writer.start(np.zeros(2), **{"return": 3.0, "length": 2})
