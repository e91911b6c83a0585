"""Views of a dataset without the transitions whose next observation is unknown, or without time-outs; no data is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.aliased import AliasedStorage
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.fields import FieldsStorage
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED
from datasets_rl.ted.table import EpisodeTable

__all__ = ["FinalUnknown", "check_final_unknown", "select_final_known", "select_without_timeouts"]

FinalUnknown = Literal["keep", "drop", "drop_truncated"]
"""How to treat transitions whose next observation is unknown."""


def check_final_unknown(final_unknown: str | None) -> None:
    """Check the `final_unknown` argument of a dataset.

    Raises:
        InvalidArgumentError: If it is not one of `FinalUnknown`.
    """
    if final_unknown not in (None, *get_args(FinalUnknown)):
        choices = ", ".join(map(repr, get_args(FinalUnknown)))
        raise InvalidArgumentError(f"final_unknown is {final_unknown!r}; expected one of {choices}")


def select_final_known(steps: EpisodicStorage, final_unknown: FinalUnknown | None) -> EpisodicStorage:
    """Return the steps, or a view of them without the transitions whose next observation is unknown.

        episode        0  1  2  3   f unknown          0  1  2   truncated; the next observation is that of row 3

    An episode that loses its last transition ends one step earlier, truncated, with the true next observation. An
    episode that has only that transition is dropped.

    Args:
        steps: The steps of a dataset.
        final_unknown: "keep", or None, returns the steps unchanged; "drop" removes all such transitions;
            "drop_truncated" keeps the terminated ones, because their target does not use the next observation.

    Raises:
        InvalidArgumentError: If no step remains.
    """
    if final_unknown in {None, "keep"} or not steps.masked:
        return steps

    def is_unknown(whole: Any, rows: NDArray[np.int64], table: EpisodeTable) -> NDArray[np.int64]:
        unknown: NDArray[np.int64] = table.stops[~table["final_known"]] - 1
        if final_unknown == "drop":
            return unknown
        terminated: NDArray[np.bool_] = whole.pick(NEXT_TERMINATED, torch.from_numpy(rows[unknown]))[:, 0].numpy()
        return unknown[~terminated]

    return _without(steps, is_unknown, f"final_unknown is {final_unknown!r}")


def select_without_timeouts(steps: EpisodicStorage) -> EpisodicStorage:
    """Return a view of the steps without the last transition of each truncated episode, as `d4rl.qlearning_dataset`.

        episode        0  1  2  3   f          0  1  2   truncated; the next observation is that of row 3

    Raises:
        InvalidArgumentError: If no step remains.
    """

    def is_timeout(whole: Any, rows: NDArray[np.int64], table: EpisodeTable) -> NDArray[np.int64]:
        # The flags of the whole dataset: where a view has cut an episode, the transition at the time-out is gone already.
        last = table.stops - 1
        truncated: NDArray[np.bool_] = whole.pick(NEXT_TRUNCATED, torch.from_numpy(rows[last]))[:, 0].numpy()
        return last[truncated]

    return _without(steps, is_timeout, "timeouts is False")


def _without(
    steps: EpisodicStorage,
    choose: Callable[[Any, NDArray[np.int64], EpisodeTable], NDArray[np.int64]],
    setting: str,
) -> EpisodicStorage:
    """Return a view of steps without those whose numbers `choose` returns for the dataset, its rows and its episodes."""
    if isinstance(steps, AliasedStorage):
        return AliasedStorage(_without(steps.steps, choose, setting), steps.names)
    if isinstance(steps, FieldsStorage):
        kept = _without(steps.steps, choose, setting)
        return FieldsStorage(kept, [key for key in steps.fields if key in kept.keys()])  # noqa: SIM118 - a storage is not a dict
    whole: Any
    whole, rows = (steps.dataset, steps.rows) if isinstance(steps, SubsetStorage) else (steps, np.arange(len(steps)))
    rows = np.delete(rows, choose(whole, rows, steps.episodes))
    if not len(rows):
        raise InvalidArgumentError(
            f"{setting}, which removes all {len(steps):,} steps: every episode has a single one",
            hint="keep these steps: final_unknown='keep', timeouts=True",
        )
    return SubsetStorage(whole, rows, steps.fields if isinstance(steps, SubsetStorage) else None)
