"""Splitting of consecutive steps into trajectories."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms._time import TimeAxis, trajectory_positions
from datasets_rl.transforms.base import NestedKey, flat_key, get_entry, resolve_key, resolve_keys, under_next

_TRAJECTORY_KEYS: tuple[NestedKey, ...] = ("slice_id", ("collector", "traj_ids"), "traj_ids", "episode")
_PADDING: NestedKey = ("collector", "mask")
"""Key under which a slice sampler marks its padding."""


def split_trajectories(
    rollout_tensordict: Any,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> Any:
    """Split consecutive steps into trajectories, each padded with zeros to the length of the longest trajectory.

        steps [7]      a_0 a_1 a_2 b_0 b_1 c_0 c_1

        result [3, 3]  a_0 a_1 a_2        mask  1 1 1
                       b_0 b_1  0               1 1 0
                       c_0 c_1  0               1 1 0

    A trajectory ends where the trajectory number changes, or at a flag if there are no numbers. Padding of a slice
    sampler, which repeats the last step where ``("collector", "mask")`` is False, stays in its slice and becomes zeros:
    n padded slices of T steps result in [n, T]. `("next", "done")` of padding is False.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import split_trajectories
        >>> batch = TensorDict({"next": {"done": torch.tensor([[False], [True], [False], [False], [True]])}}, [5])
        >>> parts = split_trajectories(batch)
        >>> parts.shape, parts["mask"].sum(-1)
        (torch.Size([2, 3]), tensor([2, 3]))

    Args:
        rollout_tensordict: Steps in chronological order, [..., T], such as the slices that a sampler returns.
        prefix: Prefix of the key of the numbers, ``(prefix, "traj_ids")``, and of the mask. By default ``"collector"``
            if the steps have that entry, and otherwise no prefix.
        trajectory_key: Key of the trajectory number. The mask is written to the same group. By default the first
            existing key of ``"slice_id"``, ``("collector", "traj_ids")``, ``"traj_ids"`` and ``"episode"``, or with a
        the prefix only ``(prefix, "traj_ids")``. If none exists, the numbers are written to ``"traj_ids"`` under the
            prefix.
        done_key: Key under "next" of the flag that ends a trajectory, in addition to the numbers. Without numbers,
            "done" by default.
        as_nested: Whether to return nested tensors, without padding and mask, if the lengths differ: True for the
            strided layout, or a layout.

    Returns:
        A TensorDict [E, T] with the mask, bool [E, T], which is True for steps and False for padding. Nested tensors
        have batch size [E, -1], or [E] with the jagged layout.

    Raises:
        InvalidArgumentError: If the steps have neither a trajectory number nor a flag.
        UnknownKeyError: If a key that was passed is missing.
    """
    axis = TimeAxis.of_batch(rollout_tensordict)
    prefix, trajectory_key = (resolve_keys(key, rollout_tensordict) for key in (prefix, trajectory_key))
    names = _TRAJECTORY_KEYS if prefix is None else (_prefixed_key(prefix, "traj_ids"),)
    if prefix is None and "collector" in rollout_tensordict.keys():  # noqa: SIM118 - a TensorDict iterates over its steps
        prefix = "collector"
    if trajectory_key is not None:
        numbers = get_entry(rollout_tensordict, trajectory_key)
    else:
        entries = (rollout_tensordict.get(name, None) for name in names)
        numbers = next((entry for entry in entries if entry is not None), None)
    ends = _find_ends(rollout_tensordict, axis, numbers, done_key)
    padding = rollout_tensordict.get(_PADDING, None)
    real = (
        torch.ones_like(ends)
        if padding is None
        else axis.flatten(padding).reshape(len(ends), -1).any(-1).to(ends.device)
    )
    ends = axis.ends(None).to(ends.device) | (ends & real.roll(-1))
    flat_index, firsts, _ = trajectory_positions(ends)
    owner = torch.cat([ends.new_zeros(1), ends[:-1]]).cumsum(0)
    count = int(owner[-1]) + 1
    result = rollout_tensordict.copy()
    if numbers is None:
        result.set(_prefixed_key(prefix, "traj_ids"), axis.unflatten(owner))
    sizes = torch.bincount(owner[real], minlength=count).tolist()
    if as_nested and len(set(sizes)) > 1:
        layout = as_nested if isinstance(as_nested, torch.layout) else torch.strided

        def as_nested_trajectories(leaf: Tensor) -> Tensor:
            trajectories = list(torch.split(axis.flatten(leaf)[real.to(leaf.device)], sizes))
            return torch.nested.as_nested_tensor(trajectories, layout=layout)

        return result.apply(as_nested_trajectories, batch_size=[count] if layout is torch.jagged else [count, -1])

    longest = int((flat_index - firsts).max()) + 1
    target = (owner * longest + flat_index - firsts)[real]

    def as_padded_trajectories(leaf: Tensor) -> Tensor:
        steps = axis.flatten(leaf)
        filled = steps.new_zeros(count * longest, *steps.shape[1:])
        filled[target.to(leaf.device)] = steps[real.to(leaf.device)]
        return filled.reshape(count, longest, *steps.shape[1:])

    mask = torch.zeros(count * longest, dtype=torch.bool, device=ends.device)
    mask[target] = True
    result = result.apply(as_padded_trajectories, batch_size=[count, longest])
    mask_key = _prefixed_key(prefix, "mask") if trajectory_key is None else _sibling_key(trajectory_key, "mask")
    return result.set(mask_key, mask.reshape(count, longest))


def _find_ends(steps: Any, axis: TimeAxis, numbers: Tensor | None, done_key: NestedKey | None) -> Tensor:
    """Return which steps are the last of their trajectory, by number or flag, in flat order, bool [M]."""
    done = None
    if done_key is not None:
        done = get_entry(steps, resolve_key(under_next(done_key), steps))
    elif numbers is None:
        done = steps.get(under_next("done"), None)
    if numbers is None and done is None:
        raise InvalidArgumentError(
            "the steps have neither a trajectory number nor a flag at the end of trajectories",
            hint="pass the key of such an entry: trajectory_key=... or done_key=...",
        )
    ends = axis.ends(done)
    if numbers is not None:
        flat = axis.flatten(numbers).reshape(len(ends), -1)[:, 0]
        ends = ends | torch.cat([flat[1:] != flat[:-1], ends[-1:]])
    return ends


def _prefixed_key(prefix: NestedKey | None, name: str) -> NestedKey:
    return name if prefix is None else flat_key((prefix, name))


def _sibling_key(key: NestedKey, name: str) -> NestedKey:
    return name if isinstance(key, str) else flat_key((*key[:-1], name))
