"""What a dataset shows of itself in Python and in notebooks."""

from __future__ import annotations

import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from datasets_rl import LazyTensorStorage, Mixture, Selection, TensorDictReplayBuffer, load
from datasets_rl.errors import MissingDependencyError
from datasets_rl.notebook import facts_html, histogram_svg
from datasets_rl.preprocessing import Recipe


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo")
    load("demo/pendulum", root=root)
    return root


@pytest.fixture(scope="module")
def dataset(root):
    return load("demo/pendulum", root=root, download=False)


def test_a_part_of_a_dataset_is_described_as_that_part(root):
    part = load("demo/pendulum", root=root, download=False, selection=Selection(episodes="0:5"))

    found = part.describe(["action"])

    assert (found.steps, found.episodes) == (1000, 5)
    assert found.field("action").elements[0].mean == pytest.approx(part["action"].double().mean().item())
    assert found.returns.max == part.episodes["return"].max()
    assert sum(part.describe().field("next.reward").elements[0].histogram.counts) == 1000


def test_chosen_fields_are_those_of_the_selection(root):
    part = load("demo/pendulum", root=root, download=False, selection=Selection(keys=("observation", "action")))

    assert {"info.qpos"}.isdisjoint(field.key for field in part.describe().fields)


def test_datasets_of_whole_episodes_are_described(root):
    assert load("demo/pendulum", root=root, download=False, split_trajs=True).describe().steps == 15_000


def test_statistics_are_in_the_manifest(dataset):
    assert dataset.statistics is dataset.manifest.statistics
    assert dataset.statistics["action"]["q99"] == pytest.approx(np.quantile(dataset["action"].double(), 0.99))


def test_episodes_are_tensordicts(dataset):
    third, last = dataset.iterate_episodes([3, -1])

    assert third.shape == last.shape == (200,)
    assert third["next", "reward"].double().sum().item() == pytest.approx(dataset.episodes["return"][3])
    torch.testing.assert_close(last["observation"], dataset["observation"][-200:])
    assert sum(len(episode) for episode in dataset.iterate_episodes()) == 15_000
    with pytest.raises(IndexError):
        next(dataset.iterate_episodes([75]))


def test_the_table_of_episodes_becomes_a_data_frame(dataset):
    frame = dataset.episodes.to_pandas()

    assert frame.index.name == "episode"
    assert list(frame.columns) == list(dataset.episodes.names)
    assert frame["return"].to_list() == dataset.episodes["return"].tolist()


@pytest.mark.parametrize(("library", "call"), [("pandas", "to_pandas"), ("matplotlib", "plot")])
def test_a_missing_library_is_named_with_its_extra(dataset, monkeypatch, library, call):
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(MissingDependencyError, match=rf"{call}\(\) needs {library}") as caught:
        getattr(dataset.episodes if call == "to_pandas" else dataset, call)()
    assert "pip install 'datasets-rl[" in str(caught.value.hint)


def test_a_figure_has_the_four_distributions(dataset):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot as plt

    figure = dataset.plot()
    plt.close(figure)

    assert [axes.get_xlabel().split()[0] for axes in figure.axes] == ["return", "length", "reward", "action"]
    heights = figure.axes[0].patches[0].get_data().values
    assert heights.sum() == 75


def shown(thing):
    """The cells of the table that a notebook shows; its HTML must be well-formed."""
    tree = ET.fromstring(thing._repr_html_())
    return ["".join(cell.itertext()) for cell in tree.iter() if cell.tag in {"th", "td", "caption"}]


def test_datasets_show_their_environment_size_and_returns(dataset):
    cells = shown(dataset)

    assert {"demo/pendulum", "Pendulum-v1", "75 episodes, 15,000 steps"} <= set(cells)
    assert "<svg" in dataset._repr_html_()
    assert any("returns from -1853 to -0.05" in cell for cell in cells)


def test_objects_of_a_dataset_are_shown_as_tables(dataset):
    assert {"observation", "UnboundedContinuousTensorSpec(shape=[3], dtype=torch.float32)"} <= set(shown(dataset.specs))
    assert {"Manifest of demo/pendulum", "15,000", "MIT"} <= set(shown(dataset.manifest))
    episodes = shown(dataset.episodes)
    assert {"75 episodes, 15,000 steps", "...", "-969.035", "74"} <= set(episodes)
    assert "30" not in episodes


def test_mixtures_show_the_shares_of_their_members(dataset):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500))
    buffer.extend(dataset[:100])

    cells = shown(Mixture(dataset, buffer, p=[0.25, 0.75], names=["demo", "online"]))

    assert "25.0%, 15,000 steps" in cells
    assert "75.0%, 100 steps" in cells


def test_recipes_show_their_steps():
    cells = shown(Recipe.inline(["keep_returns:-300", "normalize"]))

    assert any("keep_returns" in cell for cell in cells)
    assert any("-300" in cell for cell in cells)


def test_text_of_others_is_escaped():
    assert "<script>" not in facts_html("<script>", [("<script>", "<script>")])
    assert "<script>" not in histogram_svg([1], "<script>")


def test_every_bin_with_values_is_visible():
    bars = [bar for bar in ET.fromstring(histogram_svg([1_000_000, 0, 1], "counts")) if bar.tag.endswith("rect")]

    assert [(bar.get("x"), bar.get("height")) for bar in bars] == [("0", "48"), ("10", "1")]
