"""The writer accepts valid trajectories and rejects invalid data before it is stored."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stored_data import Model, columns, digest_by_hand, trajectory, write_dataset

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.format import writer
from datasets_rl.format.fingerprints import FingerprintWriter
from datasets_rl.format.schema import Column
from datasets_rl.format.statistics import Moments
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.ted.episode import DeferredStates, Episode

F4, BOOL = np.dtype("f4"), np.dtype("?")
FLAGS = ("terminated", "truncated")


@pytest.fixture
def write(tmp_path):
    """A function that starts a writer; its files are closed at the end of the test."""
    made = []

    def start(of=None):
        made.append(DatasetWriter(tmp_path, columns() if of is None else of, name="toy/data"))
        return made[-1]

    yield start
    for one in made:
        one.discard()


def episode(steps=3, *, without=(), **changes):
    """Return a valid episode, with some columns removed or replaced; names are dotted."""
    whole = trajectory(steps)
    parts = {"steps": dict(whole.steps), "states": dict(whole.states)}
    for name in without:
        for part in parts.values():
            part.pop(tuple(name.split(".")), None)
    for name, value in changes.items():
        key = tuple(name.split("__"))
        parts["states" if key == ("observation",) else "steps"][key] = value
    return Episode(**parts)


def flags(*rows):
    return np.array(rows, bool)[:, None]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (episode(without=["action"]), "the columns are"),
        (episode(without=["observation"]), "the columns are"),
        (episode(without=["action", "next.reward", "next.terminated", "next.truncated"]), "the episode has no step"),
        (episode(without=["action"], extra=np.zeros((3, 2), F4)), "action is missing"),
        (episode(extra=np.zeros((3, 2), F4)), "extra"),
        (episode(action=np.zeros((3, 3), F4)), r"action is float32 \[3, 3\], expected float32 \[3, 2\]"),
        (episode(action=np.zeros((3, 2))), r"action is float64 \[3, 2\]"),
        (episode(action=np.zeros(3, F4)), r"action is float32 \[3\]"),
        (episode(next__reward=np.zeros((4, 1), F4)), r"next.reward is float32 \[4, 1\]"),
        (episode(next__truncated=np.zeros((3, 1), "i1")), "next.truncated is int8"),
        (episode(observation=np.zeros((2, 3), F4)), r"observation is float32 \[2, 3\]"),
        (episode(observation=np.zeros((5, 3), F4)), r"observation is float32 \[5, 3\]"),
        (episode(0), "the episode has no step"),
    ],
)
def test_an_invalid_piece_is_refused_with_its_position(write, bad, problem):
    toy = write()
    toy.append(episode(4))

    with pytest.raises(ConversionError, match=r"toy/data cannot .* episode 1 \(from row 4\)") as caught:
        toy.append(bad)
    assert caught.match(problem)


def test_all_errors_of_a_piece_are_reported_at_once(write):
    with pytest.raises(ConversionError) as caught:
        write().append(
            episode(action=np.zeros((3, 3), F4), next__reward=np.zeros((3, 1)), observation=np.zeros((9, 3)))
        )
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("steps_of_a_block", [1, 2, 1 << 16])
@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        ((0, 1, 0, 1), "row 5: the episode has an end flag before the end"),
        ((0, 0, 0, 0), "row 7: the episode has no flag at the end"),
        ((1, 0, 0, 0), "row 4: the episode has an end flag before the end"),
    ],
)
def test_flags_are_set_on_the_last_row_only(write, monkeypatch, steps_of_a_block, marks, problem):
    monkeypatch.setattr(writer, "_BLOCK_STEPS", steps_of_a_block)
    toy = write()

    def write_all():
        toy.append(episode(4))
        toy.append(episode(4, next__truncated=flags(*marks)))
        toy.finish()

    with pytest.raises(ConversionError, match=problem):
        write_all()


def test_a_dataset_has_at_least_one_step(write):
    with pytest.raises(ConversionError, match="the dataset has no step"):
        write().finish()


@pytest.mark.parametrize("steps_of_a_block", [2, 1 << 16])
def test_an_unfinished_episode_is_refused(write, monkeypatch, steps_of_a_block):
    monkeypatch.setattr(writer, "_BLOCK_STEPS", steps_of_a_block)
    toy = write()
    toy.append(episode(3))
    toy.append(next(trajectory(4, cuts=[2]).pieces()))

    with pytest.raises(ConversionError, match="episode 1 has no end"):
        toy.finish()


def test_an_observation_is_known_as_a_whole_or_not_at_all(write):
    """Otherwise half of the observation after the last action would be zeros that `final_unknown` does not count."""
    of = [
        Column(("observation", "a"), F4, (1,), shared=True),
        Column(("observation", "b"), F4, (1,), shared=True),
        *columns()[2:],
    ]
    states = {("observation", "a"): np.ones((3, 1), F4), ("observation", "b"): np.ones((2, 1), F4)}
    steps = {key: array for key, array in trajectory(2).steps.items() if key != ("action",)}

    with pytest.raises(ConversionError, match="an observation has a state after the last action"):
        write(of).append(Episode(steps, states))


@pytest.mark.parametrize("missing", ["reward", "terminated", "truncated"])
def test_columns_without_reward_or_flags_are_refused_before_any_write(tmp_path, missing):
    of = [column for column in columns() if column.key[-1] != missing]

    with pytest.raises(InvalidArgumentError, match=rf"next\.{missing} is not in the schema"):
        DatasetWriter(tmp_path, of, name="toy/data")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("own", [("next", "done"), ("episode",), ("done",), ("truncated",)])
def test_columns_that_the_format_computes_are_refused(tmp_path, own):
    with pytest.raises(InvalidArgumentError, match=r"twice|format uses"):
        DatasetWriter(tmp_path, columns(Column(own, BOOL, (1,))), name="toy/data")


@pytest.mark.first(3, of="cuts")
@pytest.mark.parametrize("steps_of_a_block", [1, 2, 3, 7, 1 << 16])
@pytest.mark.parametrize("cuts", [(), (1,), (7, 14), (1, 2, 3, 4, 5)])
def test_batches_and_pieces_do_not_affect_the_files(tmp_path, monkeypatch, steps_of_a_block, cuts):
    """An episode may span several batches, and a batch may have several episodes: the bytes are the same."""
    trajectories = [trajectory(20, cuts=cuts), trajectory(1, seed=1), trajectory(6, seed=2, known=False)]
    whole = write_dataset(tmp_path / "whole", [trajectory(20), *trajectories[1:]])
    monkeypatch.setattr(writer, "_BLOCK_STEPS", steps_of_a_block)
    cut = write_dataset(tmp_path / "cut", trajectories)

    assert cut.manifest.files == whole.manifest.files
    assert cut.episodes["return"].tolist() == pytest.approx(Model(trajectories).returns, rel=1e-12)


def test_a_file_whose_length_was_announced_is_the_same_file(tmp_path):
    toy = DatasetWriter(tmp_path, columns(), name="toy/data", steps=5)
    toy.append(episode(5))
    announced = toy.finish()
    toy.discard()
    other = write_dataset(tmp_path / "other", [trajectory(5)])

    assert announced.files == other.manifest.files


def test_metadata_of_some_episodes_is_stored_for_all(tmp_path):
    """Metadata that starts in a later episode, or changes from integers to floats, must not be truncated."""
    stored = write_dataset(tmp_path, [trajectory(1, seed_=1), trajectory(2, seed_=2.5, late=7), trajectory(3)])

    assert stored.episodes["seed_"].tolist() == [1, 2.5, 0]
    assert stored.episodes["late"].tolist() == [0, 7, 0]
    assert stored.episodes["source"].tolist() == [0, 1, 2]


def test_infinite_rewards_of_both_signs_give_nan_returns(tmp_path):
    rewards = np.array([[np.inf], [-np.inf], [1]], F4)
    whole = trajectory(3)
    stored = write_dataset(tmp_path, [type(whole)({**whole.steps, ("next", "reward"): rewards}, whole.states)])

    assert np.isnan(stored.episodes["return"][0])
    numbers = stored.manifest.statistics["next.reward"]
    assert (numbers.pop("std"), numbers.pop("not_finite")) == ([0], [2])
    assert {*map(tuple, numbers.values())} == {(1,)}
    assert stored.manifest.statistics["return"]["mean"] is None


def test_statistics_count_and_ignore_each_element_that_is_not_finite():
    moments = Moments((2,))
    moments.update(np.array([[1.0, np.nan], [3.0, 5.0]]))
    moments.update(np.array([[np.inf, 7.0]]))

    expected = {"min": [1, 5], "max": [3, 7], "mean": [2, 6], "std": [1, 1], "not_finite": [1, 1]}
    assert moments.to_json() == expected
    merged = Moments((2,))
    merged.update(np.array([[np.nan, 6.0]]))
    merged.merge(moments.state())
    assert merged.to_json()["not_finite"] == [2, 1]


def test_statistics_of_very_large_numbers_are_valid_json():
    moments = Moments(())
    moments.update(np.array([1e300, -1e300]))

    assert moments.to_json() == {"min": -1e300, "max": 1e300, "mean": 0, "std": None}


def test_a_small_deviation_from_a_large_mean_is_not_lost():
    values = 1e8 + np.random.default_rng(0).normal(size=(1000, 1))
    moments = Moments((1,))
    for block in np.split(values, 10):
        moments.update(block)

    assert moments.to_json()["std"][0] == pytest.approx(values.std(), rel=1e-7)


def test_deferred_states_are_stored_in_their_row(tmp_path):
    """Both for a row in memory and for a row on disk; the digest is that of the final bytes."""
    frames = np.random.default_rng(0).integers(1, 255, (5, 80, 80), np.uint8)
    seen = frames.copy()
    seen[[0, 3]] = 0
    wide = [Column(("observation",), np.dtype("u1"), (80, 80), shared=True)]
    wide += [Column(("next", name), F4 if name == "reward" else BOOL, (1,)) for name in ("reward", *FLAGS)]
    steps = {("next", "reward"): np.zeros((5, 1), F4), ("next", "terminated"): flags(0, 0, 0, 0, 1)}
    made = DatasetWriter(tmp_path, wide, name="toy/data", steps=5)

    made.append(Episode({**steps, ("next", "truncated"): flags(*[0] * 5)}, {("observation",): seen}))
    made.patch(DeferredStates({("observation",): frames[:1]}, rows_ago=5))
    made.patch(DeferredStates({("observation",): frames[3:4]}, rows_ago=2))
    written = made.finish()
    made.discard()

    (file,) = (one for one in written.files if one.path == "observation.npy")
    assert np.array_equal(np.load(tmp_path / "observation.npy"), frames)
    assert file.digest == digest_by_hand((tmp_path / "observation.npy").read_bytes())


def test_an_error_of_the_fingerprints_ends_the_writing(write, monkeypatch):
    """They are computed in a thread of their own, which ends with the writer."""

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(FingerprintWriter, "add", fail)
    before = threading.enumerate()
    to = write()
    to.append(episode())

    with pytest.raises(OSError, match="no space left"):
        to.finish()

    to.discard()
    assert {*threading.enumerate()} <= {*before}
