"""Quantiles of fields, and the sample of rows that they are computed from."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from stored_data import columns, trajectory, write_dataset, write_manifest_with_digest

from datasets_rl import Normalizer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.quantiles import QUANTILES, quantiles, sample_rows, sample_size
from datasets_rl.format.schema import Column
from datasets_rl.format.statistics import field_quantiles
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.verification.run import verify

LONG = 70_000
"""Steps of a dataset that is longer than the sample."""


def numbers_of(values, shape=()):
    return np.array([*quantiles(values, shape).values()], np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_quantiles_of_few_values_are_those_of_numpy(dtype):
    values = np.random.default_rng(0).normal(20, 9, size=(101, 3)).astype(dtype)

    expected = np.quantile(values.astype(np.float64), [*QUANTILES.values()], axis=0)
    assert numbers_of(values, (3,)) == pytest.approx(expected)
    assert numbers_of(values) == pytest.approx(np.quantile(values.astype(np.float64), [*QUANTILES.values()]))


def test_values_that_are_not_finite_are_ignored():
    values = np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan], [-np.inf, np.nan], [2, np.nan]])

    found = quantiles(values, (2,))

    assert found["q50"] == [2, None]
    assert found["q25"] == [1.5, None]


def test_extreme_values_do_not_overflow():
    assert quantiles(np.array([-1.7e308, 1.7e308]))["q50"] == 0


@pytest.mark.parametrize("steps", [1, 100, 65_536, 65_537, 1_000_003, 3_000_000_000_000])
def test_one_row_of_each_of_equal_ranges_is_sampled(steps):
    count = sample_size(steps, 17)
    rows = sample_rows(steps, count)

    assert len(rows) == min(steps, 65_536)
    assert all(
        number * steps // count <= row < (number + 1) * steps // count for number, row in enumerate(rows.tolist())
    )


def test_the_sample_has_no_period_that_episodes_could_share():
    """With every 1,000th row, all sampled rows would have the same place in episodes of 1,000 steps."""
    phases = sample_rows(65_536_000, 65_536) % 1000

    assert np.quantile(phases, [0.1, 0.5, 0.9]) == pytest.approx([100, 500, 900], abs=15)


def test_fields_of_many_elements_have_a_smaller_sample():
    assert [sample_size(10**6, elements) for elements in (1, 32, 64, 256, 1000)] == [65_536, 65_536, 32_768, 8192, 4096]


def episodes(steps):
    return [trajectory(length, seed=seed) for seed, length in enumerate([1000] * (steps // 1000))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("whole"), episodes(LONG))


def test_sampled_quantiles_are_close_to_those_of_all_steps(whole):
    actions = np.asarray(whole.column(("action",)))
    stated = np.array([whole.manifest.statistics["action"][name] for name in QUANTILES])

    ranks = (actions[None] < stated[:, None]).mean(axis=1)
    assert ranks == pytest.approx(np.array([*QUANTILES.values()])[:, None] + np.zeros((1, 2)), abs=0.002)


def test_returns_and_lengths_have_exact_quantiles(whole):
    expected = np.quantile(whole.episodes["return"], [*QUANTILES.values()])

    assert [whole.manifest.statistics["return"][name] for name in QUANTILES] == pytest.approx(expected.tolist())
    assert whole.manifest.statistics["length"]["q50"] == 1000


@pytest.mark.parametrize("how", ["in partial datasets", "interrupted"])
def test_a_divided_conversion_has_the_same_quantiles(whole, tmp_path, how):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    halves = episodes(LONG)[:30], episodes(LONG)[30:]
    if how == "interrupted":
        folders = [folders[0]] * 3
    writer = DatasetWriter(folders[0], columns(), name="toy")
    commits = []
    for folder, half in zip(folders[1:], halves, strict=True):
        other = writer if how == "interrupted" else DatasetWriter(folder, columns(), name="toy")
        for one in half:
            other.append(next(one.pieces()))
        commit = other.commit(sync=False)
        other.discard()
        commits.append(commit)
        if how == "interrupted":
            writer = DatasetWriter(folder, columns(), name="toy", commits=commits)
        else:
            writer.append_partial(folder, commit)
    summary = writer.finish()
    writer.discard()

    same = whole.manifest.statistics
    assert {key: {name: one[name] for name in QUANTILES} for key, one in summary.statistics.items()} == {
        key: {name: one[name] for name in QUANTILES} for key, one in same.items()
    }


def test_wide_fields_and_integers_have_none(tmp_path):
    more = [Column(("big",), np.dtype(np.float32), (2000,)), Column(("count",), np.dtype(np.int64), ())]
    plain = trajectory(3)
    steps = {**plain.steps, ("big",): np.zeros((3, 2000), np.float32), ("count",): np.arange(3)}

    stored = write_dataset(tmp_path, [replace(plain, steps=steps)], columns(*more))

    assert "q50" not in stored.manifest.statistics["big"]
    assert "count" not in stored.manifest.statistics


@pytest.mark.parametrize(("change", "problems"), [("removed", 1), ("changed", 1)])
def test_a_deep_verification_recomputes_quantiles(tmp_path, change, problems):
    stored = write_dataset(tmp_path, [trajectory(50)])
    document = json.loads((tmp_path / "manifest.json").read_text())
    action = document["statistics"]["action"]
    if change == "removed":
        del action["q50"]
    else:
        action["q50"][1] += 1e-3
    write_manifest_with_digest(stored.folder, document)

    found = [text for text in verify(tmp_path, deep=True).problems if text.startswith("statistics")]
    assert len(found) == problems


class TestNormalizers:
    """Normalizers by the statistics of a dataset of which all steps were sampled."""

    @pytest.fixture
    def stored(self, tmp_path):
        return write_dataset(tmp_path, [trajectory(500)])

    @pytest.mark.parametrize("kind", ["standard", "limits", "quantile"])
    def test_they_are_those_of_the_values(self, stored, kind):
        values = torch.from_numpy(np.array(stored.column(("action",))))

        found = Normalizer.from_statistics(stored.manifest.statistics["action"], kind)

        expected = getattr(Normalizer, kind)(values)
        torch.testing.assert_close(found.shift, expected.shift)
        torch.testing.assert_close(found.scale, expected.scale)
        assert found.clip.tolist() == expected.clip.tolist()

    def test_missing_quantiles_are_named(self, stored):
        with pytest.raises(InvalidArgumentError, match="statistic q01 is missing among min, max"):
            Normalizer.from_statistics({"min": 0, "max": 1, "mean": 0, "std": 1}, "quantile")
        with pytest.raises(InvalidArgumentError, match=r"statistic mean is \[None\]"):
            Normalizer.from_statistics({"mean": [None], "std": [1]})
        with pytest.raises(InvalidArgumentError, match="expected one of standard, limits, quantile"):
            Normalizer.from_statistics(stored.manifest.statistics["action"], "q99")


def test_quantiles_do_not_depend_on_the_fields_that_are_sampled_together(whole, monkeypatch):
    monkeypatch.setattr("datasets_rl.format.statistics._SAMPLE_BYTES", 1)
    monkeypatch.setattr("datasets_rl.format.npy._TAKE_BYTES", 1000)

    found = field_quantiles(whole.schema, len(whole), whole.take_fields)

    assert found.keys() == {"observation", "action", "next.reward"}
    assert all(numbers.items() <= whole.manifest.statistics[name].items() for name, numbers in found.items())
