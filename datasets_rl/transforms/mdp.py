"""From one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, NestedKey, drop, listed, taken

__all__ = ["step_mdp"]

_ENDS: Sequence[NestedKey] = ("done", "terminated", "truncated")


def step_mdp(
    tensordict: Any,
    next_tensordict: Any = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: Keys = "reward",
    done_keys: Keys = _ENDS,
    action_keys: Keys = "action",
) -> Any:
    """Return the TensorDict of the next time step: what stands under "next" comes to the root.

        observation: s_0  action: a_0  next: (observation: s_1  reward: r_1)    ->    observation: s_1

    Args:
        tensordict: A step, or a batch of them.
        next_tensordict: Where the result is written; a new TensorDict by default.
        keep_other: Whether entries at the root that have no counterpart under "next" stay.
        exclude_reward: Whether rewards are left out.
        exclude_done: Whether the flags that end an episode are.
        exclude_action: Whether actions are.
        reward_keys: The rewards.
        done_keys: The flags.
        action_keys: The actions.

    Returns:
        The next step; it shares the memory of its entries with the one before.

    Raises:
        UnknownKeyError: If there is nothing under "next".
    """
    step = taken(tensordict, NEXT).copy()
    if keep_other:
        other = tensordict.exclude(NEXT)
        step = other.update(step)
    excluded = [
        *(listed(reward_keys) if exclude_reward else ()),
        *(listed(done_keys) if exclude_done else ()),
        *(listed(action_keys) if exclude_action else ()),
    ]
    for key in excluded:
        if key in step.keys(include_nested=True):
            drop(step, key)
    return step if next_tensordict is None else next_tensordict.update(step)
