"""Lag of the states of a simulator against the observations of the same rows.

row             0     1     2
observation    o_0   o_1   o_2
states         s_0   s_1   s_2        lag 0: from before the action of the row
states         s_1   s_2   s_3        lag 1: from after the action of the row
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAGS", "MIN_ROWS", "lag_of_states"]

LAGS = (-1, 0, 1)
MIN_ROWS = 4
"""Minimum number of rows with two neighbors in the episode."""
_ELEMENTS = 64
"""Maximum number of elements of the states and of the observation that are compared."""
_NEAR = 0.1
"""Maximum mean difference of equal elements, in units of the mean step of the element of the observation."""
_MOST = 0.9
"""Share of the elements with a match that must agree on the lag."""


def lag_of_states(
    states: NDArray[np.float64], observations: NDArray[np.float64], joined: NDArray[np.bool_]
) -> tuple[int | None, int]:
    """Return the lag at which elements of the states equal elements of the observations, and the number of such elements.

    Without elements that are equal at a single lag, the lag is None.

    Args:
        states: The states of consecutive rows, [n, S].
        observations: The observations of the rows, [n, D].
        joined: Whether a row and the next row are in the same episode, [n - 1].
    """
    inner = np.flatnonzero(joined[:-1] & joined[1:]) + 1
    if len(inner) < MIN_ROWS:
        return None, 0
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.abs(np.diff(observations, axis=0))[joined].mean(0)
        chosen = np.flatnonzero(np.isfinite(moved) & (moved > 0))[:_ELEMENTS]
        own = states[:, np.isfinite(states).all(0) & (np.ptp(states, axis=0) > 0)][:, :_ELEMENTS]
    if not len(chosen) or not own.shape[1]:
        return None, 0
    votes = dict.fromkeys(LAGS, 0)
    for element in chosen.tolist():
        errors = {
            lag: float(np.abs(own[inner] - observations[inner + lag, element][:, None]).mean(0).min()) for lag in LAGS
        }
        near = [lag for lag in LAGS if errors[lag] <= _NEAR * moved[element]]
        if len(near) == 1:
            votes[near[0]] += 1
    lag = max(LAGS, key=votes.__getitem__)
    is_certain = votes[lag] > 0 and votes[lag] >= _MOST * sum(votes.values())
    return (lag, votes[lag]) if is_certain else (None, 0)
