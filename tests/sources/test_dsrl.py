"""Costs, scores and ids of DSRL."""

from __future__ import annotations

import numpy as np
import pytest
from d4rl_files import write
from raw.dsrl import FILE, safe_columns

from datasets_rl import DSRLExperienceReplay, downloading, normalized_score
from datasets_rl.catalog.scores import normalized_cost
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source


@pytest.fixture
def convert(tmp_path):
    def run(**changes):
        columns = {**safe_columns(), **changes}
        folder = tmp_path / "raw"
        folder.mkdir(exist_ok=True)
        write(folder / FILE, {name: values for name, values in columns.items() if values is not None})
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        return StoredDataset(downloading.download("dsrl/OfflineCarCircle-v0", from_local=folder, settings=settings))

    return run


def test_there_are_38_ids_of_four_groups():
    ids = get_source("dsrl").ids()

    assert len(ids) == 38
    assert {find(f"dsrl/{one}").tags[-1] for one in ids} == {"locomotion", "navigation", "driving"}


@pytest.mark.parametrize("axes", [(-1,), (-1, 1)])
def test_costs_have_one_axis_more_like_rewards(convert, axes):
    costs = safe_columns()["costs"]

    stored = convert(costs=costs.reshape(axes), rewards=safe_columns()["rewards"].reshape(axes))

    assert np.array_equal(stored.column(("next", "cost")), costs[:, None])
    assert stored.column(("next", "reward")).shape == (20, 1)


def test_real_costs_are_kept(convert):
    costs = np.linspace(0, 2, 20)

    assert np.array_equal(convert(costs=costs).column(("next", "cost"))[:, 0], costs)


def test_batches_have_the_cost_beside_the_reward(convert, tmp_path):
    convert()

    dataset = DSRLExperienceReplay("OfflineCarCircle-v0", 8, root=tmp_path / "home" / "dsrl", download=False)

    assert dataset.sample()["next", "cost"].shape == (8, 1)


def test_scores_are_those_of_the_package():
    entry = find("dsrl/OfflineCarCircle-v0")

    assert (entry.score.low, entry.score.high) == (3.484419822692871, 534.3060913085938)
    assert normalized_score("dsrl/OfflineCarCircle-v0", 534.3060913085938) == 1
    assert find("dsrl/OfflineMetadrive-easysparse-v0").time_limit == 1000


def test_costs_are_divided_by_their_budget():
    assert normalized_cost(30, 20) == 1.5
    assert normalized_cost([0, 9], 0).tolist() == [1, 10]
    with pytest.raises(InvalidArgumentError, match="budget is -1"):
        normalized_cost(3, -1)
