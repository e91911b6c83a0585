"""What D4RL documents as `qlearning_dataset`, row by row in plain Python: the measure for the vectorised version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["qlearning_reference"]


def qlearning_reference(
    columns: Mapping[str, np.ndarray], max_episode_steps: int | None, *, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """Make the transitions (s, a, s', r, done) that D4RL hands to Q-learning.

    The observation after a step is the observation of the next row, always. So the last row of the file is no
    transition, and the last row of an episode that met its time limit is left out, unless `terminate_on_end`, because
    the next row belongs to another episode. A termination is kept: what follows it is not used.

    Args:
        columns: The file's columns by D4RL's names, [N, ...]; `timeouts` may be absent.
        max_episode_steps: The environment's time limit, used where there are no `timeouts`.
        terminate_on_end: Keep the last rows of episodes that met their time limit.

    Returns:
        observations, actions, next_observations [M, ...], rewards [M], terminals [M] bool, and rows [M]: the row of
        the file that each came from.
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
    if "timeouts" in columns:
        return bool(np.ravel(columns["timeouts"])[row])
    return limit is not None and episode_step == limit - 1
