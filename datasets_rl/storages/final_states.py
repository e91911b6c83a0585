"""A view of a dataset without the transitions whose next observation is unknown; no data is copied."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.aliased import AliasedStorage
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.fields import FieldsStorage
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.ted.keys import NEXT_TERMINATED

__all__ = ["FinalUnknown", "check_final_unknown", "select_final_known"]

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
    if isinstance(steps, AliasedStorage):
        return AliasedStorage(select_final_known(steps.steps, final_unknown), steps.names)
    if isinstance(steps, FieldsStorage):
        kept = select_final_known(steps.steps, final_unknown)
        return FieldsStorage(kept, [key for key in steps.fields if key in kept.keys()])  # noqa: SIM118 - a storage is not a dict
    table = steps.episodes
    unknown = table.stops[~table["final_known"]] - 1
    whole: Any
    whole, rows = (steps.dataset, steps.rows) if isinstance(steps, SubsetStorage) else (steps, np.arange(len(steps)))
    if final_unknown == "drop_truncated":
        terminated = whole.pick(NEXT_TERMINATED, torch.from_numpy(rows[unknown]))[:, 0].numpy()
        unknown = unknown[~terminated]
    rows = np.delete(rows, unknown)
    if not len(rows):
        raise InvalidArgumentError(
            f"final_unknown is {final_unknown!r}, which removes all {len(steps):,} steps: every episode has one step, "
            "and its next observation is unknown",
            hint="open the dataset with final_unknown='keep'",
        )
    return SubsetStorage(whole, rows, steps.fields if isinstance(steps, SubsetStorage) else None)
