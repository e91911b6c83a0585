"""Distributions of the fields of a dataset, compared with numpy on all values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stored_data import Trajectory, columns, trajectory, write_dataset

from datasets_rl.errors import UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.look import StepReader, describe, distribution
from datasets_rl.ted.episode import TextStates

F4 = np.dtype(np.float32)


def described(folder, episodes, of=None, **options):
    return describe(StepReader(write_dataset(folder, episodes, of)), **options)


def with_actions(actions):
    """An episode with these actions, [T, 2], and rewards of 1."""
    plain = trajectory(len(actions))
    return [replace(plain, steps={**plain.steps, ("action",): np.asarray(actions, F4)})]


def test_every_element_has_the_numbers_of_numpy(tmp_path):
    values = np.random.default_rng(0).normal(size=(5000, 2)).astype(F4)

    found = described(tmp_path, with_actions(values), bins=20).field("action")

    assert found.names() == ["action[0]", "action[1]"]
    for element, column in zip(found.elements, values.T.astype(np.float64), strict=True):
        assert (element.min, element.max, element.count) == (column.min(), column.max(), 5000)
        assert (element.mean, element.std) == pytest.approx((column.mean(), column.std()))
        assert element.quantiles["q10"] == pytest.approx(np.quantile(column, 0.1))
        assert element.histogram.counts == tuple(np.histogram(column, element.histogram.edges)[0])
        assert sum(element.histogram.counts) + element.outliers == 5000


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_the_description_does_not_depend_on_the_blocks(tmp_path, monkeypatch, block):
    values = np.random.default_rng(0).normal(size=(300, 2)).astype(F4)
    values[5, 0] = np.nan
    whole = described(tmp_path / "a", with_actions(values)).field("action")
    monkeypatch.setattr("datasets_rl.look.description._BLOCK_VALUES", block)

    found = described(tmp_path / "b", with_actions(values)).field("action")

    assert [one.histogram for one in found.elements] == [one.histogram for one in whole.elements]
    assert [one.mean for one in found.elements] == pytest.approx([one.mean for one in whole.elements])
    assert found.elements[0].nan == 1


def test_nan_and_infinities_are_counted_by_element_and_reported(tmp_path):
    values = np.ones((6, 2))
    values[:, 1] = np.arange(6)
    values[1:4, 0] = np.nan, np.inf, -np.inf

    found = described(tmp_path, with_actions(values))

    first, second = found.field("action").elements
    assert (first.nan, first.positive_infinity, first.negative_infinity, first.count) == (1, 1, 1, 3)
    assert second.not_finite == 0
    assert found.issues()[:2] == [
        "action has 1 value that is NaN, in action[0]",
        "action has 2 values that are infinite, in action[0]",
    ]


def test_an_element_without_a_finite_value_has_no_histogram(tmp_path):
    values = np.full((4, 2), np.nan)
    values[:, 1] = 1e38

    first, second = described(tmp_path, with_actions(values)).field("action").elements

    assert (first.histogram, first.mean, first.quantiles["q50"], first.nan) == (None, None, None, 4)
    assert second.constant
    assert second.histogram.counts == (4,)


def test_constants_are_reported(tmp_path):
    values = np.random.default_rng(0).normal(size=(9, 2))
    values[:, 1] = 0.5

    assert "action[1] is constant" in described(tmp_path, with_actions(values)).issues()


def test_outliers_are_counted_and_do_not_flatten_the_histogram():
    values = np.concatenate([np.random.default_rng(0).uniform(-1, 1, 10_000), [1e6, 2e6, -1e6]])

    found = distribution(values)

    assert (found.outliers, found.histogram.below, found.histogram.above) == (3, 1, 2)
    assert -3.1 < found.histogram.edges[0] < -2.9
    assert sum(found.histogram.counts) == 10_000


def test_few_different_integers_have_a_bin_each():
    found = distribution(np.array([3, 3, 5, 4, 3]))

    assert found.histogram.edges == (2.5, 3.5, 4.5, 5.5)
    assert found.histogram.counts == (3, 1, 1)


@pytest.mark.parametrize(
    "values", [[1.7e308, -1.7e308], [np.finfo(np.float64).tiny, 0.0], [-(1 << 62), 1 << 62]], ids=str
)
def test_extreme_values_neither_warn_nor_fail(values):
    found = distribution(np.array(values))

    assert found.histogram is None or sum(found.histogram.counts) == 2


def test_images_are_described_by_a_sample_and_as_a_whole(tmp_path):
    pixels = Column(("observation",), np.dtype(np.uint8), (64, 64, 3), shared=True)
    plain = trajectory(300)
    images = np.random.default_rng(0).integers(0, 256, (301, 64, 64, 3), np.uint8)
    episode = Trajectory(plain.steps, {("observation",): images})

    found = described(tmp_path, [episode], [pixels, *columns()[1:]], bins=4).field("observation")

    assert (found.sampled, found.names()) == (256, ["observation"])
    assert found.pooled
    (element,) = found.elements
    assert element.count == 256 * 64 * 64 * 3
    assert element.mean == pytest.approx(127.5, abs=1)
    assert np.array(element.histogram.counts) / element.count == pytest.approx(0.25, abs=0.01)


def test_texts_are_counted(tmp_path):
    task = Column(("task",), np.dtype(np.int32), (), text=True)
    writer = DatasetWriter(tmp_path, columns(task), name="toy")
    plain = next(trajectory(5).pieces())
    writer.append(
        replace(plain, steps={**plain.steps, ("task",): TextStates(np.array([0, 1, 1, 1, 0]), ("push", "pull"))})
    )
    written = writer.finish()
    writer.discard()
    shown = ("schema", "files", "steps", "episodes", "final_unknown")
    Manifest(id="toy", **{name: getattr(written, name) for name in shown}).write(tmp_path)

    found = describe(StepReader(StoredDataset(tmp_path)))

    assert found.field("task").texts == (("pull", 3), ("push", 2))
    assert found.field("task").names() == []
    assert found.issues() == ["no episode is terminated: all are time-outs"]


def test_ends_of_episodes_are_compared(tmp_path):
    short = [trajectory(10, seed=seed, terminated=True) for seed in range(3)]
    long = [trajectory(50, seed=seed) for seed in range(5)]

    found = described(tmp_path, short + long).ends

    assert (found.terminated.episodes, found.timed_out.episodes) == (3, 5)
    assert (found.terminated.mean_length, found.timed_out.mean_length) == (10, 50)
    assert found.correlation["length"] == pytest.approx(1)
    assert found.correlation["return"] > 0.9


def test_without_both_kinds_of_ends_there_is_no_correlation(tmp_path):
    found = described(tmp_path, [trajectory(4), trajectory(5, seed=1, known=False)])

    assert set(found.ends.correlation.values()) == {None}
    assert found.issues() == [
        "the final observation of 1 of 2 episodes is unknown and reads as zeros",
        "no episode is terminated: all are time-outs",
    ]


def test_chosen_fields_are_described_alone(tmp_path):
    assert [one.key for one in described(tmp_path, [trajectory(4)], keys=[("action",)]).fields] == ["action"]
    with pytest.raises(UnknownKeyError, match=r"next\.reward"):
        described(tmp_path, [trajectory(4)], keys=[("reward",)])


def test_flags_and_episode_numbers_are_not_described(tmp_path):
    found = described(tmp_path, [trajectory(4)])

    assert [one.key for one in found.fields] == ["observation", "action", "next.reward"]
