"""Views of selected rows, compared with the rows of the dataset one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import trajectory, write_dataset

from datasets_rl import DatasetStorage
from datasets_rl.storages import view as view_module
from datasets_rl.storages.view import View
from datasets_rl.ted.row_ranges import RowRanges

LENGTHS = [4, 1, 7, 2, 30, 1, 1, 5]
STARTS = np.cumsum(LENGTHS) - LENGTHS
EPISODE_OF = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
selections = st.sets(st.integers(0, sum(LENGTHS) - 1), min_size=1).map(sorted)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view")
    return DatasetStorage(write_dataset(folder, [trajectory(length, seed=length) for length in LENGTHS]))


@settings(deadline=None)
@given(selections, st.data())
def test_ranges_have_the_rows_that_they_were_made_of(rows, data):
    bounds = np.array(sorted(data.draw(st.sets(st.integers(0, 60)))), np.int64)
    ranges = RowRanges.from_rows(np.array(rows))
    parts = ranges.split_at(bounds)

    for one in (ranges, parts):
        assert len(one) == len(rows)
        assert one.at(np.arange(len(rows))).tolist() == rows
    expected = [row for row in rows if row - 1 not in rows or row in bounds]
    assert parts.starts.tolist() == expected


@pytest.mark.parametrize("loaded", [False, True], ids=["at first", "by the compiled loop"])
@settings(deadline=None)
@given(rows=selections, data=st.data())
def test_selected_rows_are_those_of_the_dataset_and_end_where_the_next_is_missing(dataset, loaded, rows, data):
    view = View(dataset, np.array(rows))
    view._located = view_module._ROWS_BEFORE_LOADING if loaded else 0
    numbers = torch.tensor(data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), min_size=1)))
    batch, whole = view.get(numbers), dataset.get([rows[number] for number in numbers])

    cut, episodes, episode = [], [], -1
    for place, row in enumerate(rows):
        follows = place and rows[place - 1] == row - 1 and EPISODE_OF[row] == EPISODE_OF[row - 1]
        episode += not follows
        episodes.append(episode)
        is_last = row + 1 == len(EPISODE_OF) or EPISODE_OF[row + 1] != EPISODE_OF[row]
        cut.append(not is_last and row + 1 not in rows)
    assert torch.equal(batch["observation"], whole["observation"])
    assert torch.equal(batch["next", "observation"], whole["next", "observation"])
    assert batch["episode"].tolist() == [episodes[number] for number in numbers]
    ended = whole["next", "truncated"][:, 0] | torch.tensor([cut[number] for number in numbers])
    assert batch["next", "truncated"][:, 0].tolist() == ended.tolist()
    rewards = view.column(("next", "reward"))[:, 0].double()
    returns = [float(rewards[list(one)].sum()) for one in view.episodes]
    assert view.episodes["return"].tolist() == pytest.approx(returns)
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match="out of range"):
            view.take(torch.tensor([0, outside]))


def test_returns_are_read_in_blocks_and_only_of_episodes_that_lost_rows(dataset, monkeypatch):
    view = View(dataset, np.arange(1, sum(LENGTHS)))
    whole, rewards = dataset.episodes["return"], dataset.column(("next", "reward"))[:, 0].double()
    monkeypatch.setattr(view_module, "_AT_ONCE", 1)

    assert view.episodes["return"].tolist() == [pytest.approx(float(rewards[1:4].sum())), *whole[1:].tolist()]
