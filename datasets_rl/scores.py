"""Normalised scores: a return on the scale from the random policy, 0, to the expert, 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import BadArgument
from datasets_rl.sources import find

__all__ = ["normalized_score"]


def normalized_score(dataset_id: str, returns: Any) -> float | NDArray[np.float64]:
    """Put returns on the scale of a dataset's reference scores.

        score = (return - low) / (high - low)

    where `low` is the return of a random policy and `high` that of an expert, as the dataset's authors published them
    (for D4RL: Fu et al. 2020, arXiv:2004.07219, `REF_MIN_SCORE` and `REF_MAX_SCORE` in its ``infos.py``; the same
    numbers serve all versions of a task). It is D4RL's `get_normalized_score`. Papers print 100 times this number;
    here it is not multiplied.

    Args:
        dataset_id: With its source, ``d4rl/hopper-medium-v2``.
        returns: Undiscounted returns of whole episodes: a number, or a sequence, array or tensor of any shape.

    Returns:
        A float for a number, else a float64 array of the shape of `returns`.

    Raises:
        UnknownId: If there is no such dataset.
        BadArgument: If it has no reference scores, or `returns` are no numbers.
    """
    score = find(dataset_id).score
    if score is None:
        raise BadArgument(f"{dataset_id} has no reference scores: its authors published none")
    values = _as_array(returns)
    scaled = (values - score.low) / (score.high - score.low)
    return float(scaled) if values.ndim == 0 else scaled


def _as_array(returns: Any) -> NDArray[np.float64]:
    for method in ("detach", "cpu"):  # a tensor that needs gradients, or lies on a device, is no array; torch stays out
        returns = getattr(returns, method, lambda same=returns: same)()
    try:
        return np.asarray(returns, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadArgument(f"returns are {type(returns).__name__} {returns!r:.60}; expected numbers") from error
