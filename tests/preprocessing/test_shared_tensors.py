"""Functions that keep tensors, change them in place, or return the same tensors repeatedly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import columns, store_dataset, trajectory

from datasets_rl.errors import PreprocessError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Function, Recipe, preprocess

LENGTHS = ((5, True), (3, False), (8, True), (1, False), (4, True))
WIDE = ("info", "wide")


@pytest.fixture
def folder(tmp_path):
    given = [trajectory(steps, seed=number, known=known) for number, (steps, known) in enumerate(LENGTHS)]
    for one in given:
        one.steps[WIDE] = np.arange(len(one) * 600, dtype="f4").reshape(len(one), 20, 30)
    return store_dataset(
        tmp_path / "home" / "toy" / "data", given, [*columns(), Column(WIDE, np.dtype("f4"), (20, 30))]
    ).folder.parent


def made(folder, fn, per, **options):
    recipe = Recipe([Function(fn, per, options.pop("most", 0))])
    return StoredDataset(preprocess(folder, recipe, out=folder.parent / "made", **options))


class _Counts:
    """Counts its calls in one tensor, which it returns at each call."""

    def __init__(self):
        self.total = torch.zeros(1)

    def __call__(self, data):
        self.total += 1
        return data.set("count", self.total if data.ndim == 0 else self.total.expand(len(data), 1))


@pytest.mark.parametrize(
    ("per", "most", "wanted"),
    [
        ("step", 0, range(1, 22)),
        ("batch", 10, [1] * 10 + [2] * 10 + [3]),
        ("episode", 0, [1] * 5 + [2] * 3 + [3] * 8 + [4] + [5] * 4),
    ],
    ids=["step", "batch", "episode"],
)
def test_a_result_is_not_changed_by_the_next_call(folder, per, most, wanted):
    assert made(folder, _Counts(), per, most=most).column(("count",))[:, 0].tolist() == [*wanted]


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_state_of_a_function_is_reset_for_each_partial_in_any_process(folder, jobs):
    counts = made(folder, _Counts(), "step", jobs=jobs, num_parts=3).column(("count",))[:, 0].tolist()

    assert counts == [*range(1, 9), *range(1, 9), *range(1, 6)]


def test_a_random_function_with_state_is_applied_once_per_step(folder):
    def noisy():
        draws = np.random.default_rng(0)
        return Recipe([Function(lambda step: step.set("action", step["action"] + float(draws.random())))])

    preprocess(folder, noisy(), jobs=1, in_place=True)
    once = np.array(StoredDataset(folder).column(("action",)))
    preprocess(folder, noisy(), jobs=1, in_place=True)

    assert len(StoredDataset(folder).manifest.history) == 1
    assert np.array_equal(StoredDataset(folder).column(("action",)), once)


def test_rows_that_are_reversed_in_place_are_stored_reversed(folder):
    def turned(step):
        step[WIDE].transpose_(0, 1)
        step["action"].unsqueeze_(0)
        return step

    before = np.array(StoredDataset(folder).column(WIDE))
    came = made(folder, turned, "step", jobs=1)

    assert np.array_equal(came.column(WIDE), before.transpose(0, 2, 1))
    assert came.schema[("action",)].shape == (1, 2)


def test_rows_that_are_overwritten_in_place_are_stored(folder):
    def zeroed(step):
        step[WIDE].zero_()
        return step

    assert not made(folder, zeroed, "step", jobs=1).column(WIDE).any()


@pytest.mark.parametrize("early", [True, False])
def test_a_field_of_some_steps_only_is_refused(folder, early):
    def some(step):
        return step.set("flag", step["action"]) if (step["next", "done"].item() != early) else step

    with pytest.raises(PreprocessError, match="flag for some steps only"):
        made(folder, some, "step", jobs=1)
