"""Two groups of episodes with a gap between them, such as those before and after a change of the recorder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SHARE = 0.08
_FEWEST = 3


def two_groups(values: NDArray[np.float64], gap: float) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the episodes of the smaller and of the larger of two groups, ascending, or None without two groups.

    Between the groups is the largest gap of the sorted values. The gap is wider than `gap` and than the distance of the 10 % and the
    90 % quantile of each group, and each group has at least 3 episodes and 8 % of all.

    Args:
        values: A number of each episode, [E].
        gap: The narrowest gap.
    """
    if len(values) < 2 * _FEWEST:
        return None
    order = np.argsort(values)
    ascending = values[order]
    place = int(np.diff(ascending).argmax()) + 1
    groups = ascending[:place], ascending[place:]
    if min(map(len, groups)) < max(_FEWEST, _SHARE * len(values)):
        return None
    spread = max(float(np.ptp(np.quantile(group, [0.1, 0.9]))) for group in groups)
    if ascending[place] - ascending[place - 1] < max(gap, spread):
        return None
    smaller, larger = sorted((np.sort(order[:place]), np.sort(order[place:])), key=len)
    return smaller, larger
