"""Views of a dataset without transitions that have an unknown next observation, or without time-outs, with no copy."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED

FinalUnknown = Literal["keep", "drop", "drop_truncated"]
"""How to treat transitions that have an unknown next observation."""


def check_final_unknown(final_unknown: str | None) -> None:
    """Check the `final_unknown` argument of a dataset.

    Raises:
        InvalidArgumentError: If the value is not one of `FinalUnknown`.
    """
    if final_unknown not in (None, *get_args(FinalUnknown)):
        choices = ", ".join(map(repr, get_args(FinalUnknown)))
        raise InvalidArgumentError(f"final_unknown is {final_unknown!r}, expected one of {choices}")


def select_final_known(steps: DatasetStorage | View, final_unknown: FinalUnknown | None) -> DatasetStorage | View:
    """Return the steps, or a view of the steps without transitions that have an unknown next observation.

        episode        0  1  2  3   f unknown          0  1  2   truncated, next observation of row 3

    An episode that loses its last transition ends a step earlier, truncated, with the true next observation. An
    episode that has only that transition is dropped.

    Args:
        steps: The steps of a dataset.
        final_unknown: "keep", or None, returns the steps unchanged. "drop" removes all such transitions.
            "drop_truncated" keeps the terminated transitions, because their target does not use the next observation.

    Raises:
        InvalidArgumentError: If no step remains.
    """
    if final_unknown in {None, "keep"} or not steps.masked:
        return steps
    episodes = steps.episodes
    lost = ~episodes["final_known"]
    if final_unknown == "drop_truncated":
        ends = torch.from_numpy(episodes.stops[lost] - 1)
        lost[lost] = ~steps.pick(NEXT_TERMINATED, ends)[:, 0].numpy()
    return _without(steps, lost, f"final_unknown is {final_unknown!r}")


def select_without_timeouts(steps: DatasetStorage | View) -> View:
    """Return a view of the steps without the last transition of each truncated episode, as `d4rl.qlearning_dataset`.

        episode        0  1  2  3   f          0  1  2   truncated, next observation of row 3

    Raises:
        InvalidArgumentError: If no step remains.
    """
    view, ends = View.of(steps), steps.episodes.stops - 1
    # The flags of the dataset: where a view has cut an episode, the transition at the time-out is gone already.
    truncated = view.dataset.pick(NEXT_TRUNCATED, torch.from_numpy(view.rows_of(ends)))[:, 0].numpy()
    return _without(view, truncated, "timeouts is False")


def _without(steps: DatasetStorage | View, lost: NDArray[np.bool_], setting: str) -> View:
    """Return a view without the last transition of some episodes, a mask [E]."""
    if (steps.episodes.lengths == lost).all():
        raise InvalidArgumentError(
            f"{setting}, which removes all {len(steps):,} steps: every episode has a single step",
            hint="keep these steps: final_unknown='keep', timeouts=True",
        )
    return View.of(steps).without_last_rows(lost)
