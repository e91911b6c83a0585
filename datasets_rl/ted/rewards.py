"""The dtype of rewards in episodes and on the disk: float32, or float64 where the source has float64.

Sources have rewards of bool, of integers and of float16, too. Sums, discounts and shifts of such rewards would overflow or be
rounded, so that all become float32, which represents them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.ted.keys import NEXT_REWARD, Key, dotted_name

_EXACT_LIMIT = 1 << 24
"""The largest integer up to which float32 represents all integers."""
_Steps = TypeVar("_Steps", bound=Mapping[Key, Any])


def reward_dtype(dtype: DTypeLike) -> np.dtype[np.floating[Any]]:
    """Return the floating-point dtype for rewards of a dtype: float64 for float64, float32 for every other dtype."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def float_rewards(rewards: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """Return rewards in the dtype of `reward_dtype`, without a copy if possible.

    Raises:
        ConversionError: If an integer is outside of [-2**24, 2**24], beyond which float32 skips integers.
    """
    if rewards.dtype.kind in "iu" and rewards.size:
        lowest, highest = int(rewards.min()), int(rewards.max())
        if max(-lowest, highest) > _EXACT_LIMIT:
            problem = (
                f"its {rewards.dtype.name} values are between {lowest:,} and {highest:,}, expected at most "
                f"{_EXACT_LIMIT:,} (2**24) and at least its negative, because float32 skips integers beyond"
            )
            raise ConversionError(
                dotted_name(NEXT_REWARD), [problem], hint="give rewards as float64, which stay float64"
            )
    return rewards.astype(reward_dtype(rewards.dtype), copy=False)


def with_float_rewards(steps: _Steps) -> _Steps | dict[Key, Any]:
    """Return the fields of steps with the rewards, if any, in the dtype of `reward_dtype`."""
    rewards = steps.get(NEXT_REWARD)
    if not isinstance(rewards, np.ndarray) or rewards.dtype == reward_dtype(rewards.dtype):
        return steps
    return {**steps, NEXT_REWARD: float_rewards(rewards)}
