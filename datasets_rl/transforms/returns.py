"""Sums of rewards along a trajectory, and the number of a step in it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.ted.trajectories import spans
from datasets_rl.transforms._time import OverTime, TimeAxis, discounted, positions
from datasets_rl.transforms.base import Keys, NestedKey, any_like, listed, taken, under_next

__all__ = ["Reward2GoTransform", "RewardSum", "StepCounter", "TargetReturn"]

_REWARD: NestedKey = (NEXT, "reward")


class _Sums(OverTime):
    """Entries that are worked out of the rewards of whole trajectories.

    In a buffer this is done for all steps of the storage at once, and kept until it changes: the first batch after a
    write takes longer.
    """

    def __init__(self, in_keys: Keys | None, out_keys: Keys, done_key: NestedKey | None = None) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys, done_key)
        self._known: tuple[Any, tuple[int, int], dict[str, Tensor]] | None = None

    @abstractmethod
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the sum for each step, [M, ...]; `ends` says which step is the last of its trajectory, [M]."""

    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the sums of these rows, [B, ...]."""
        del data
        origin, state = getattr(storage, "origin", storage), (storage.written, storage.rewritten)
        known = self._known
        if known is None or known[0] is not origin or known[1] != state:
            self._known = known = (origin, state, self._all(storage))
        return {name: sums.index_select(0, rows.to(sums.device)) for name, sums in known[2].items()}

    def _all(self, storage: Any) -> dict[str, Tensor]:
        trajectories = self.trajectories(storage)
        lengths = trajectories.lengths
        order = torch.from_numpy(trajectories.rows(spans(trajectories.firsts, lengths)))
        ends = torch.zeros(len(order), dtype=torch.bool)
        ends[torch.from_numpy(np.cumsum(lengths) - 1)] = True
        found = {}
        for place, key in enumerate(self.in_keys):
            rewards = storage.column((key,) if isinstance(key, str) else key)
            sums = self.sums(rewards.index_select(0, order.to(rewards.device)), ends.to(rewards.device))
            whole = sums.new_zeros((len(rewards), *sums.shape[1:]))  # no trajectory has torn rows
            found[str(place)] = whole.index_copy_(0, order.to(sums.device), sums)
        return found

    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the sums along the axis of time."""
        axis = TimeAxis.of(batch)
        ends = self.ends(batch, axis)
        return {
            str(place): axis.back(self.sums(axis.flat(taken(batch, key)), ends))
            for place, key in enumerate(self.in_keys)
        }

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write the sums."""
        for place, key in enumerate(self.out_keys):
            batch.set(key, found[str(place)])
        return batch

    def respec(self, spec: CompositeSpec) -> None:
        """Say that the sums may be any numbers."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec.set(out_key, any_like(spec[in_key].zero()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


class Reward2GoTransform(_Sums):
    """The discounted sum of the rewards from each step to the end of its episode.

        next.reward      1      2      4  | 8        gamma = 0.5
        reward to go     3      4      4  | 8

    What is written gets it on its way into the buffer, as in TorchRL: whole episodes, in order, along the axis of
    time. The steps of a stored dataset, which is never written to, get it as they are sampled.

    Args:
        gamma: The discount factor.
        in_keys: The rewards; ``("next", "reward")`` by default.
        out_keys: Where the sums are written; `in_keys` by default.
        done_key: The flag under "next" that ends an episode.
    """

    def __init__(
        self,
        gamma: float | Tensor = 1.0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        done_key: NestedKey = "done",
    ) -> None:
        in_keys = [_REWARD] if in_keys is None else in_keys
        super().__init__(in_keys, in_keys if out_keys is None else out_keys, done_key)
        self.gamma = float(gamma)

    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the rewards to go."""
        carry = torch.where(ends, 0, torch.tensor(self.gamma, dtype=rewards.dtype, device=rewards.device))
        return discounted(rewards, carry.reshape(-1, *[1] * (rewards.ndim - 1)))

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Look the sums up, in a storage that is never written to."""
        return super().gather(storage, rows, data) if storage.read_only else data

    def inv(self, data: Any) -> Any:
        """Work the sums out for what is written.

        Raises:
            InvalidArgumentError: If no episode ends there.
        """
        if isinstance(data, list) and data and is_tensor_collection(data[0]):
            data = torch.stack(data)
        batch = self.own(data)
        done = batch.get(under_next(self.done_key or "done"), None)
        axis = TimeAxis.of(batch)
        if done is None or not axis.flat(done).reshape(-1, batch.shape[axis.place]).any(1).all():
            raise InvalidArgumentError(
                "no episode ends in what is written, so that its rewards to go are not known",
                hint="extend the buffer with whole episodes",
            )
        return self.put(batch, self.found_in_batch(batch))

    def apply(self, batch: Any) -> Any:
        """Write what was looked up; the sums of other batches were written with them."""
        found = self.travelled(batch)
        return self.put(batch, found) if found else batch

    def _facts(self) -> dict[str, Any]:
        return {"gamma": self.gamma}


class RewardSum(_Sums):
    """The sum of the rewards of an episode up to each step, this one included.

        next.reward              1      2      4  | 8
        next.episode_reward      1      3      7  | 8

    Args:
        in_keys: The rewards; ``("next", "reward")`` by default.
        out_keys: Where the sums are written; ``("next", "episode_reward")`` by default.
    """

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        in_keys = [_REWARD] if in_keys is None else listed(in_keys)
        named = [f"episode_{key}" if isinstance(key, str) else (*key[:-1], f"episode_{key[-1]}") for key in in_keys]
        super().__init__(in_keys, named if out_keys is None else out_keys)

    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the sums so far."""
        return _so_far(rewards, ends)


class TargetReturn(_Sums):
    """The return that is still wanted at each step, for policies that are told it.

        next.reward             1      2      4  | 8          target_return = 10
        target_return          10      9      7  | 10
        next.target_return      9      7      3  | 2          "reduce"; with "constant", 10 throughout

    Args:
        target_return: What is wanted at the first step of every episode.
        mode: "reduce" by the rewards so far, or "constant".
        in_keys: The rewards; ``("next", "reward")`` by default.
        out_keys: Where it is written, at the root and under "next"; ``"target_return"`` by default.
    """

    def __init__(
        self,
        target_return: float,
        mode: Literal["reduce", "constant"] = "reduce",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, "target_return" if out_keys is None else out_keys)
        if mode not in {"reduce", "constant"}:
            raise InvalidArgumentError(f"mode is {mode!r}; expected 'reduce' or 'constant'")
        self.target_return, self.mode = target_return, mode

    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the sums so far."""
        return _so_far(rewards, ends)

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write what is wanted before and after each step."""
        for place, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            after = self.target_return - found[str(place)]
            if self.mode == "constant":
                after = torch.full_like(after, self.target_return)
                before = after.clone()
            else:
                before = after + taken(batch, in_key)
            batch.set(out_key, before)
            batch.set(under_next(out_key), after)
        return batch

    def respec(self, spec: CompositeSpec) -> None:
        """Say that it may be any number."""
        super().respec(spec)
        for out_key in self.out_keys:
            spec.set(under_next(out_key), spec[out_key])

    def _facts(self) -> dict[str, Any]:
        return {"target_return": self.target_return, "mode": self.mode}


class StepCounter(OverTime):
    """The number of each step in its trajectory: 0 at the first root, and one more under "next".

        step_count           0   1   2 | 0
        next.step_count      1   2   3 | 1

    Of a ring that has overwritten the beginning of a trajectory, the oldest step that is left counts as the first.

    Args:
        max_steps: Steps after which a trajectory is marked as truncated; none by default.
        truncated_key: The flag under "next" that is True then.
        step_count_key: Where the number is written, at the root and under "next".
        update_done: Whether "done" under "next" becomes True as well.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: NestedKey | None = "truncated",
        step_count_key: NestedKey = "step_count",
        update_done: bool = True,
    ) -> None:
        super().__init__([], [])
        if max_steps is not None and max_steps < 1:
            raise InvalidArgumentError(f"max_steps is {max_steps}; expected at least 1")
        self.max_steps, self.truncated_key, self.update_done = max_steps, truncated_key, update_done
        self.step_count_key = step_count_key

    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the number of each step, [B, 1]."""
        del data
        trajectories = self.trajectories(storage)
        owner, places = trajectories.locate(rows.cpu().numpy())
        return {"count": torch.from_numpy(places - trajectories.firsts[owner]).unsqueeze(1)}

    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same along the axis of time."""
        axis = TimeAxis.of(batch)
        numbers, firsts, _ = positions(self.ends(batch, axis))
        return {"count": axis.back((numbers - firsts).unsqueeze(1))}

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write the numbers, and the flags."""
        count = found["count"]
        batch.set(self.step_count_key, count)
        batch.set(under_next(self.step_count_key), count + 1)
        if self.max_steps is not None and self.truncated_key is not None:
            for key in (self.truncated_key, "done") if self.update_done else (self.truncated_key,):
                over = count + 1 >= self.max_steps
                before = batch.get(under_next(key), None)
                batch.set(under_next(key), over if before is None else before | over)
        return batch

    def respec(self, spec: CompositeSpec) -> None:
        """Add the specs of the numbers."""
        one, greatest = (*spec.shape, 1), torch.iinfo(torch.int64).max
        spec.set(self.step_count_key, BoundedTensorSpec(0, greatest, one, dtype=torch.int64))
        spec.set(under_next(self.step_count_key), BoundedTensorSpec(1, greatest, one, dtype=torch.int64))
        if self.max_steps is not None and self.truncated_key is not None:
            flag = any_like(torch.zeros(one, dtype=torch.bool))
            for key in (self.truncated_key, "done") if self.update_done else (self.truncated_key,):
                if under_next(key) not in spec:
                    spec.set(under_next(key), flag)

    def _facts(self) -> dict[str, Any]:
        return {} if self.max_steps is None else {"max_steps": self.max_steps}


def _so_far(rewards: Tensor, ends: Tensor) -> Tensor:
    """Return the sums from the first step of each trajectory on: to go, backwards in time."""
    opens = ends.roll(1).flip(0)
    carry = (~opens).to(rewards.dtype).reshape(-1, *[1] * (rewards.ndim - 1))
    return discounted(rewards.flip(0), carry).flip(0)
