"""Whole trajectories out of steps in a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms._time import TimeAxis, positions
from datasets_rl.transforms.base import NestedKey, flat_key, taken, under_next

__all__ = ["split_trajectories"]

_NUMBERS: tuple[NestedKey, ...] = ("slice_id", ("collector", "traj_ids"), "traj_ids", "episode")
_PADDING: NestedKey = ("collector", "mask")
"""Where a slice sampler marks its padding."""


def split_trajectories(
    rollout_tensordict: Any,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> Any:
    """Split steps into their trajectories, each padded with zeros to the longest one.

        steps [7]      a_0 a_1 a_2 b_0 b_1 c_0 c_1

        result [3, 3]  a_0 a_1 a_2        mask  1 1 1
                       b_0 b_1  0               1 1 0
                       c_0 c_1  0               1 1 0

    A trajectory ends where its number changes; without numbers, where a flag ends it. Padding of a slice sampler, which
    repeats the last step where ``("collector", "mask")`` is False, stays with its slice and becomes zeros: n padded
    slices of T steps give [n, T]. `("next", "done")` of padding is False.

    Args:
        rollout_tensordict: Steps in the order of time, [..., T]; slices as a sampler returns them are, too.
        prefix: Where the numbers ``(prefix, "traj_ids")`` are read or written, and the mask is written; by default
            ``"collector"`` if the steps have that entry, and the root otherwise.
        trajectory_key: The number of the trajectory; the mask is written next to it. By default the first of
            ``"slice_id"``, ``("collector", "traj_ids")``, ``"traj_ids"`` and ``"episode"`` that exists, or only
            ``(prefix, "traj_ids")`` with a prefix; if none exists, ``"traj_ids"`` is written at the prefix.
        done_key: The flag under "next" that ends a trajectory, in addition to the numbers; without numbers, "done" by
            default.
        as_nested: Whether to return nested tensors where the lengths differ, without padding and mask: True for the
            strided layout, or a layout.

    Returns:
        A TensorDict [E, T] with the mask, bool [E, T]: whether there is a step. Nested it is [E, -1], or [E] with the
        jagged layout.

    Raises:
        InvalidArgumentError: If nothing says where trajectories end.
        UnknownKeyError: If a key that was named does not exist.
    """
    axis = TimeAxis.of(rollout_tensordict)
    names = _NUMBERS if prefix is None else (_below(prefix, "traj_ids"),)
    if prefix is None and "collector" in rollout_tensordict.keys():  # noqa: SIM118 - a TensorDict iterates over its steps
        prefix = "collector"
    if trajectory_key is not None:
        numbers = taken(rollout_tensordict, trajectory_key)
    else:
        numbers = next((one for name in names if (one := rollout_tensordict.get(name, None)) is not None), None)
    ends = _ends(rollout_tensordict, axis, numbers, done_key)
    padding = rollout_tensordict.get(_PADDING, None)
    real = (
        torch.ones_like(ends) if padding is None else axis.flat(padding).reshape(len(ends), -1).any(-1).to(ends.device)
    )
    ends = axis.ends(None).to(ends.device) | (ends & real.roll(-1))
    places, firsts, _ = positions(ends)
    owner = torch.cat([ends.new_zeros(1), ends[:-1]]).cumsum(0)
    count = int(owner[-1]) + 1
    result = rollout_tensordict.copy()
    if numbers is None:
        result.set(_below(prefix, "traj_ids"), axis.back(owner))
    sizes = torch.bincount(owner[real], minlength=count).tolist()
    if as_nested and len(set(sizes)) > 1:
        layout = as_nested if isinstance(as_nested, torch.layout) else torch.strided

        def nested(leaf: Tensor) -> Tensor:
            parts = list(torch.split(axis.flat(leaf)[real.to(leaf.device)], sizes))
            return torch.nested.as_nested_tensor(parts, layout=layout)

        return result.apply(nested, batch_size=[count] if layout is torch.jagged else [count, -1])

    longest = int((places - firsts).max()) + 1
    spot = (owner * longest + places - firsts)[real]

    def padded(leaf: Tensor) -> Tensor:
        steps = axis.flat(leaf)
        whole = steps.new_zeros(count * longest, *steps.shape[1:])
        whole[spot.to(leaf.device)] = steps[real.to(leaf.device)]
        return whole.reshape(count, longest, *steps.shape[1:])

    mask = torch.zeros(count * longest, dtype=torch.bool, device=ends.device)
    mask[spot] = True
    result = result.apply(padded, batch_size=[count, longest])
    where = _below(prefix, "mask") if trajectory_key is None else _beside(trajectory_key, "mask")
    return result.set(where, mask.reshape(count, longest))


def _ends(steps: Any, axis: TimeAxis, numbers: Tensor | None, done_key: NestedKey | None) -> Tensor:
    """Return after which steps a number or a flag ends a trajectory, flat, bool [M]."""
    done = None
    if done_key is not None:
        done = taken(steps, under_next(done_key))
    elif numbers is None:
        done = steps.get(under_next("done"), None)
    if numbers is None and done is None:
        raise InvalidArgumentError(
            "neither a number of the trajectory nor a flag exists, so nothing says where one ends",
            hint="name what does: trajectory_key=..., or done_key=...",
        )
    ends = axis.ends(done)
    if numbers is not None:
        flat = axis.flat(numbers).reshape(len(ends), -1)[:, 0]
        ends = ends | torch.cat([flat[1:] != flat[:-1], ends[-1:]])
    return ends


def _below(prefix: NestedKey | None, name: str) -> NestedKey:
    return name if prefix is None else flat_key((prefix, name))


def _beside(key: NestedKey, name: str) -> NestedKey:
    return name if isinstance(key, str) else flat_key((*key[:-1], name))
