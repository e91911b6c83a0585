"""Transition from a step to the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, NestedKey, get_entry, key_list, remove_entry, resolve_keys

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
    """Return the TensorDict of the next time step: move the entries under "next" to the root.

        observation: s_0  action: a_0  next: (observation: s_1  reward: r_1)    ->    observation: s_1

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import step_mdp
        >>> step = TensorDict({"observation": torch.zeros(2), "next": {"observation": torch.ones(2)}})
        >>> step_mdp(step)["observation"]
        tensor([1., 1.])

    Args:
        tensordict: A step, or a batch of steps.
        next_tensordict: TensorDict to write the result to, a new TensorDict by default.
        keep_other: Whether to keep the entries at the root that have no counterpart under "next".
        exclude_reward: Whether to leave out the rewards.
        exclude_done: Whether to leave out the flags that end an episode.
        exclude_action: Whether to leave out the actions.
        reward_keys: Keys of the rewards.
        done_keys: Keys of the flags that end an episode.
        action_keys: Keys of the actions.

    Returns:
        The next step, which shares the memory of its entries with `tensordict`.

    Raises:
        UnknownKeyError: If the step has no entry "next".
    """
    step = get_entry(tensordict, NEXT).copy()
    if keep_other:
        other = tensordict.exclude(NEXT)
        step = other.update(step)
    excluded = [
        *(key_list(reward_keys) if exclude_reward else ()),
        *(key_list(done_keys) if exclude_done else ()),
        *(key_list(action_keys) if exclude_action else ()),
    ]
    for key in resolve_keys(excluded, step):
        if key in step.keys(include_nested=True):
            remove_entry(step, key)
    return step if next_tensordict is None else next_tensordict.update(step)
