"""A figure of a dataset, drawn with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets_rl.libraries import importing
from datasets_rl.look.description import Description
from datasets_rl.look.histograms import Distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND = 8
"""Maximum number of elements that a legend names."""


def draw(description: Description) -> Figure:
    """Return a figure with the histograms of the returns, the lengths, the rewards, and each element of the actions.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    with importing("matplotlib", "plot", "plot()"):
        import matplotlib as mpl
        from matplotlib import pyplot as plt
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    actions = [
        (name, element)
        for field in description.fields
        if field.key.partition(".")[0] == "action"
        for name, element in zip(field.names(), field.elements, strict=bool(field.elements))
    ]
    reward = description.field("next.reward")
    _bars(axes[0, 0], description.returns, "return of an episode", "episodes")
    _bars(axes[0, 1], description.lengths, "length of an episode (steps)", "episodes")
    _bars(axes[1, 0], reward.elements[0] if reward is not None else None, "reward of a step", "steps")
    for name, element in actions:
        _outline(axes[1, 1], element, name)
    axes[1, 1].set(xlabel="action", ylabel="steps")
    if 1 < len(actions) <= _LEGEND:
        axes[1, 1].legend(fontsize="small")
    figure.suptitle(f"{description.id}: {description.steps:,} steps, {description.episodes:,} episodes")
    # The inline backend of notebooks shows open figures at the end of a cell, and then the returned figure again.
    if "inline" in mpl.get_backend():
        plt.close(figure)
    return figure


def _bars(axes: Any, numbers: Distribution | None, label: str, unit: str) -> None:
    axes.set(xlabel=label, ylabel=unit)
    axes.locator_params(axis="x", nbins=6)
    if numbers is not None and numbers.histogram is not None:
        edges = _widened(numbers.histogram.edges)
        axes.stairs(numbers.histogram.counts, edges, fill=True)


def _outline(axes: Any, numbers: Distribution, name: str) -> None:
    if numbers.histogram is not None:
        axes.stairs(numbers.histogram.counts, _widened(numbers.histogram.edges), label=name)


def _widened(edges: tuple[float, ...]) -> tuple[float, ...]:
    """Return edges with a width, for the single bin of a constant."""
    low, *_, high = edges
    return edges if low < high else (low - 0.5, high + 0.5)
