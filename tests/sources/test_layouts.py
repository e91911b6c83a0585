"""Layouts that people have: each is read by a call or a description of five lines, and a change of it is never silent."""

from __future__ import annotations

import re
from pathlib import Path

import layouts_images
import layouts_tables
import layouts_zarr
import numpy as np
import pytest
from layouts import ACTION, LAST, LENGTHS, OBS, REWARD, TERMINATED

import datasets_rl
from datasets_rl import download, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files, draft_description

LAYOUTS = {**layouts_tables.LAYOUTS, **layouts_zarr.LAYOUTS}
PAGE = Path(datasets_rl.__file__).parents[1] / "docs" / "your-own-data.md"


def converted(tmp_path, layout):
    folder = tmp_path / "mine"
    folder.mkdir()
    path = layout.write(folder)
    if layout.toml:
        (folder / "dataset.toml").write_text(layout.toml)
        path = folder
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    stored = StoredDataset(download(str(path), settings=settings))
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()
    return stored


def observation_of(stored):
    (key,) = [field.key for field in stored.schema if field.key[0] == "observation"]
    return stored.column(key)


@pytest.mark.first(34)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_value_and_every_episode_of_a_layout_is_stored(tmp_path, name):
    layout = LAYOUTS[name]

    stored = converted(tmp_path, layout)

    assert layout.toml.count("\n") <= 5
    assert stored.episodes.lengths.tolist() == LENGTHS.tolist()
    np.testing.assert_allclose(observation_of(stored), OBS, rtol=1e-6)
    np.testing.assert_allclose(stored.column(("action",)), ACTION, rtol=1e-6)
    np.testing.assert_allclose(stored.column(("next", "reward"))[:, 0], REWARD * layout.rewards, rtol=1e-6)
    terminated, truncated = (stored.column(("next", flag))[:, 0] for flag in ("terminated", "truncated"))
    np.testing.assert_array_equal(terminated | truncated, LAST)
    if layout.terminated:
        assert (terminated == TERMINATED).all() or (terminated == LAST).all()
    else:
        assert not terminated.any()
    assert stored.episodes["final_known"].all() == layout.finals


@pytest.mark.first(8)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_check_and_the_drafted_description_give_the_episodes_of_a_layout(tmp_path, name):
    layout = LAYOUTS[name]
    path = layout.write(tmp_path)
    if layout.toml:
        (tmp_path / "dataset.toml").write_text(layout.toml)
        found = check_files(tmp_path)
    else:
        found = check_files(path)
        drafted = draft_description(path)
        (tmp_path / "dataset.toml").write_text(drafted.text)
        described = check_files(tmp_path)
        assert drafted.questions == ()
        assert (described.decisions, described.jumps) == (found.decisions, found.jumps)
        assert (described.first, described.last) == (found.first, found.last)

    assert (found.steps, found.episodes) == (LENGTHS.sum(), len(LENGTHS))
    assert found.last.steps == LENGTHS[-1]
    assert (found.last.final is not None) == layout.finals


def test_the_page_has_a_row_for_each_layout():
    section = PAGE.read_text("utf-8").partition("## Your file looks like this")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)

    assert [row for row in rows if row not in {"your file", "---"}] == [*LAYOUTS, *layouts_images.LAYOUTS], (
        "write the rows of docs/your-own-data.md"
    )


NPZ = [name for name, layout in LAYOUTS.items() if layout.write.__qualname__.startswith("npz.")]


@pytest.mark.first(4)
@pytest.mark.parametrize("name", NPZ)
def test_an_array_of_another_length_is_refused_or_counted_as_left_out(tmp_path, name):
    (tmp_path / "whole").mkdir()
    whole = dict(np.load(LAYOUTS[name].write(tmp_path / "whole"), allow_pickle=True))
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    for array, values in whole.items():
        if array == "traj_starts":
            continue  # the first rows of two episodes are as certain as the first rows of three
        path = tmp_path / f"without_the_last_of_{array.replace('/', '_')}.npz"
        np.savez(path, **{**whole, array: values[:-1]})
        try:
            stored = StoredDataset(download(str(path), settings=settings))
        except ConversionError:
            continue
        counts = {decision.rule: decision.count for decision in stored.manifest.decisions}
        assert counts.get("left-out"), array
        assert stored.episodes.lengths.tolist() == LENGTHS.tolist(), array
