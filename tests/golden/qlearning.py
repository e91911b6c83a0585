"""D4RL's documented `qlearning_dataset`, row by row in plain Python: the reference for the vectorized version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["qlearning_reference"]


def qlearning_reference(
    columns: Mapping[str, np.ndarray], max_episode_steps: int | None, *, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """Return the transitions (s, a, s', r, done) that D4RL gives to Q-learning.

    The observation after a step is always the observation of the next row. Therefore, the last row of the file is not a
    transition. The last row of an episode that reached its time limit is left out unless `terminate_on_end` is set,
    because the next row belongs to another episode. A terminal row is kept, because its next observation is not used.

    Args:
        columns: The columns of the file by D4RL's names, [N, ...]; `timeouts` may be absent.
        max_episode_steps: The time limit of the environment, for files without `timeouts`.
        terminate_on_end: Whether to keep the last rows of episodes that reached their time limit.

    Returns:
        observations, actions, next_observations [M, ...], rewards [M], terminals [M] bool, and rows [M], the row of the
        file that each transition is from.
    """
    rows: list[int] = []
    terminals: list[bool] = []
    episode_step = 0
    for row in range(len(columns["rewards"]) - 1):
        terminal = bool(np.ravel(columns["terminals"])[row])
        final = _final(columns, row, episode_step, max_episode_steps)
        if final and not terminate_on_end:
            episode_step = 0
            continue
        if terminal or final:
            episode_step = 0
        rows.append(row)
        terminals.append(terminal)
        episode_step += 1
    index = np.array(rows, np.int64)
    return {
        "observations": columns["observations"][index],
        "actions": columns["actions"][index],
        "next_observations": columns["observations"][index + 1],
        "rewards": np.ravel(columns["rewards"])[index],
        "terminals": np.array(terminals, bool),
        "rows": index,
    }


def _final(columns: Mapping[str, Any], row: int, episode_step: int, limit: int | None) -> bool:
    """Return whether a row reached the time limit, by its timeout flag or by counting steps."""
    if "timeouts" in columns:
        return bool(np.ravel(columns["timeouts"])[row])
    return limit is not None and episode_step == limit - 1
