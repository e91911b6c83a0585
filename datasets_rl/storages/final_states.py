"""A dataset without the transitions whose next observation is unknown; nothing is copied."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.aliased import AliasedStorage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.ted.keys import NEXT_TERMINATED

__all__ = ["FinalUnknown", "check_final_unknown", "select_final_known"]

FinalUnknown = Literal["keep", "drop", "drop_truncated"]
"""What becomes of transitions whose next observation is unknown."""


def check_final_unknown(final_unknown: str | None) -> None:
    """Check the argument of a dataset.

    Raises:
        InvalidArgumentError: If it is not one of `FinalUnknown`.
    """
    if final_unknown not in (None, *get_args(FinalUnknown)):
        choices = ", ".join(map(repr, get_args(FinalUnknown)))
        raise InvalidArgumentError(f"final_unknown is {final_unknown!r}; expected one of {choices}")


def select_final_known(
    steps: DatasetStorage | SubsetStorage | AliasedStorage, final_unknown: FinalUnknown | None
) -> DatasetStorage | SubsetStorage | AliasedStorage:
    """Return the steps, or a view of them without transitions whose next observation is unknown.

        episode        0  1  2  3   f unknown          0  1  2   truncated; the observation after it is that of row 3

    An episode that loses its last transition ends one step earlier, truncated, with the true observation after it; an
    episode of one such transition goes.

    Args:
        steps: The steps of a dataset.
        final_unknown: "keep", or None, returns the steps unchanged; "drop" leaves all such transitions out;
            "drop_truncated" keeps those that are terminated: a target needs no next observation there.

    Raises:
        InvalidArgumentError: If no step is left.
    """
    if final_unknown in {None, "keep"} or not steps.masked:
        return steps
    if isinstance(steps, AliasedStorage):
        return AliasedStorage(select_final_known(steps.steps, final_unknown), steps.names)
    table = steps.episodes
    unknown = table.stops[~table["final_known"]] - 1
    whole, rows = (steps.dataset, steps.rows) if isinstance(steps, SubsetStorage) else (steps, np.arange(len(steps)))
    if final_unknown == "drop_truncated":
        terminated = whole.pick(NEXT_TERMINATED, torch.from_numpy(rows[unknown]))[:, 0].numpy()
        unknown = unknown[~terminated]
    rows = np.delete(rows, unknown)
    if not len(rows):
        raise InvalidArgumentError(
            f"final_unknown is {final_unknown!r}, which leaves none of the {len(steps):,} steps: every episode has one "
            "step, and the observation after it is unknown",
            hint="open it with final_unknown='keep'",
        )
    return SubsetStorage(whole, rows, steps.fields if isinstance(steps, SubsetStorage) else None)
