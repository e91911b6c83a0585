"""Goals of rows of a stored dataset: chosen and read in one pass, with their rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import IntegrityError
from datasets_rl.storages.packed import RowArrays, RowSlot
from datasets_rl.storages.record_access import RecordAccess

_WORD = 8


class GoalPass:
    """The read of goals, compiled once.

    Args:
        access: The records of the dataset.
        slot: The position of the states in a record.
        names: Names of the value goal, and of the actor goal, or of the subgoal, the actor goal and the target on the way to
            it, if there are such goals.
        strategies: Numbers of the strategies of the value goal and the actor goal, see `goal_rows.STRATEGIES`.
        subgoal_steps: Number of steps to a subgoal, or 0.
        final_states: Whether final states are goals.
        of_next: Whether rewards are those of next states.
        negative: Whether rewards are -1 and 0.
        frames: Number of states of a stack.
    """

    def __init__(
        self,
        access: RecordAccess,
        slot: RowSlot,
        names: Sequence[str],
        strategies: tuple[int, int],
        *,
        subgoal_steps: int,
        final_states: bool,
        of_next: bool,
        negative: bool,
        frames: int,
    ) -> None:
        from datasets_rl.samplers.goal_rows import read_goals  # deferred: imports numba

        slots, targets, end, size = [], [], 0, slot.end - slot.offset
        shape = slot.shape if frames == 1 else (frames * math.prod(slot.shape),)
        for name in names:
            at = (end, end + -(-frames * size // _WORD) * _WORD)
            targets.append([*at, at[1] + _WORD])
            slots += [
                RowSlot(name, at[0], slot.dtype, shape),
                RowSlot(f"{name}_index", at[1], torch.int64, ()),
                *([RowSlot(f"{name}_final", at[1] + _WORD, torch.bool, ())] if final_states else []),
            ]
            end = at[1] + 2 * _WORD
        slots += [RowSlot("mask", end, torch.float32, (1,)), RowSlot("reward", end + 4, torch.float32, (1,))]
        targets.append([end, end + 4, 0])
        self._words, self._arrays = end // _WORD + 1, RowArrays(slots, end + _WORD)
        numbers = (access.stride, access.width, access.episode, slot.offset, size, final_states, of_next, negative)
        self._folder = access.folder
        self._loop: Callable[..., int] = partial(
            read_goals,
            *(access.records, access.finals, access.known, access.firsts, access.lasts),
            np.array([*numbers, *strategies, subgoal_steps, frames], np.int64),
            np.array(targets, np.int64),
        )

    def read(self, rows: Tensor, rules: NDArray[np.float64], draws: NDArray[np.float64]) -> dict[str, Tensor]:
        """Return the entries of the goals of rows, int64 [B].

        Args:
            rows: The rows, in main memory and contiguous.
            rules: How random numbers become goals, see `goal_rows.read_goals`.
            draws: Random numbers, [D, B].

        Raises:
            IndexError: If a row or a goal is out of range.
            IntegrityError: If the episode of a row does not exist.
        """
        words = np.empty((rows.shape[0], self._words), np.int64)
        result = self._loop(rows.data_ptr(), rules, draws, words)
        if result == -1:
            raise IndexError("a row or a goal is out of range")
        if result == -2:
            raise IntegrityError(self._folder, ["a row does not belong to any of the episodes"])
        return {name: torch.from_numpy(array) for name, array in self._arrays(words).items()}
