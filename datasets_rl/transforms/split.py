"""Whole trajectories out of steps in a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import BadArgument
from datasets_rl.ted.keys import MASK
from datasets_rl.transforms._base import NestedKey, taken, under_next
from datasets_rl.transforms._time import TimeAxis, positions

__all__ = ["split_trajectories"]

_NUMBERS: tuple[NestedKey, ...] = ("slice_id", ("collector", "traj_ids"), "traj_ids", "episode")


def split_trajectories(
    rollout_tensordict: Any, *, trajectory_key: NestedKey | None = None, done_key: NestedKey | None = None
) -> Any:
    """Split steps into their trajectories, each padded with zeros to the longest one.

        steps [7]      a_0 a_1 a_2 b_0 b_1 c_0 c_1

        result [3, 3]  a_0 a_1 a_2        mask  1 1 1
                       b_0 b_1  0               1 1 0
                       c_0 c_1  0               1 1 0

    A trajectory ends where its number changes, and with a flag. `("next", "done")` of padding is False.

    Args:
        rollout_tensordict: Steps in the order of time, [..., T]; slices as a sampler returns them are, too.
        trajectory_key: The number of the trajectory. By default the first that is there of ``"slice_id"``,
            ``("collector", "traj_ids")``, ``"traj_ids"`` and ``"episode"``; if none is, ``"traj_ids"`` is written.
        done_key: The flag under "next" that ends a trajectory; "done" by default, where it is there.

    Returns:
        A TensorDict [E, T] with ``"mask"``, bool [E, T]: whether there is a step.

    Raises:
        BadArgument: If nothing says where trajectories end.
        UnknownKey: If a key that was named is not there.
    """
    axis = TimeAxis.of(rollout_tensordict)
    numbers = _numbers(rollout_tensordict, trajectory_key)
    done = rollout_tensordict.get(under_next(done_key or "done"), None)
    if done_key is not None:
        done = taken(rollout_tensordict, under_next(done_key))
    if numbers is None and done is None:
        raise BadArgument(
            "there is no number of the trajectory and no flag, so nothing says where one ends",
            hint="name what does: trajectory_key=..., or done_key=...",
        )
    ends = axis.ends(done)
    if numbers is not None:
        flat = axis.flat(numbers).reshape(len(ends), -1)[:, 0]
        ends = ends | torch.cat([flat[1:] != flat[:-1], ends[-1:]])
    places, firsts, _ = positions(ends)
    owner = torch.cat([ends.new_zeros(1), ends[:-1]]).cumsum(0)
    count, longest = int(owner[-1]) + 1, int((places - firsts).max()) + 1
    spot = owner * longest + places - firsts

    def padded(leaf: Tensor) -> Tensor:
        steps = axis.flat(leaf)
        whole = steps.new_zeros(count * longest, *steps.shape[1:])
        whole[spot] = steps
        return whole.reshape(count, longest, *steps.shape[1:])

    result = rollout_tensordict.apply(padded, batch_size=[count, longest])
    if numbers is None:
        result.set("traj_ids", torch.arange(count, device=ends.device).unsqueeze(1).repeat(1, longest))
    mask = torch.zeros(count * longest, dtype=torch.bool, device=ends.device)
    mask[spot] = True
    return result.set(MASK, mask.reshape(count, longest))


def _numbers(steps: Any, key: NestedKey | None) -> Tensor | None:
    if key is not None:
        named: Tensor = taken(steps, key)
        return named
    return next((value for one in _NUMBERS if (value := steps.get(one, None)) is not None), None)
