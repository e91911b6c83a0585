"""Returns and other sums of rewards along a trajectory, and step counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, choice_problems, share_problems, size_problems, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.returns import discounted, float_rewards, reward2go
from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.ted.table import concatenated_ranges
from datasets_rl.transforms._time import OverSlices, OverTime, TimeAxis, trajectory_positions
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    any_like,
    get_entry,
    is_group,
    key_list,
    number_tensor,
    prefixed_key,
    set_entry,
    under_next,
)

if TYPE_CHECKING:
    from datasets_rl.ted.trajectories import Trajectories

_REWARD: NestedKey = (NEXT, "reward")

_AT_ONCE = 1 << 20
"""Largest number of steps of which sums are computed together: 0.2 s."""


@dataclass(frozen=True)
class _Tables:
    """Sums by row, of which some are computed."""

    sums: list[Tensor]
    """The sums of each reward, [rows, ...]."""
    known: NDArray[np.bool_]
    """Whether the sums of each trajectory are computed, [E]."""


class RewardSums(OverTime):
    """Base class of transforms that compute entries from the rewards of whole trajectories.

    In a buffer, the sums of all steps of the storage are computed at once and cached until the storage changes: the
    first batch after a write takes longer. Of more than 2**20 steps, the sums of the trajectories of a batch are
    computed on demand, and cached: at most 4 bytes a step, or 8 for float64.
    """

    def __init__(self, in_keys: Keys | None, out_keys: Keys, done_key: NestedKey | None = None) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys, done_key)
        self._cache: tuple[Any, tuple[int, int], _Tables] | None = None

    @override
    def read_keys(self) -> Sequence[NestedKey] | None:
        return self.in_keys

    @abstractmethod
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """Return the sum for each step, [M, ...].

        Args:
            rewards: Rewards in flat order, [M, ...], float32 or float64.
            ends: Which steps are the last of a trajectory, bool [M].
        """

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        for key in self.in_keys:
            if is_group(data.get(key, None)):
                self.tensor(data, key)
        sums_by_name = self.sums_by_row(storage, rows)
        return {name: sums.index_select(0, rows.to(sums.device)) for name, sums in sums_by_name.items()}

    def sums_by_row(self, storage: Any, rows: Tensor) -> dict[str, Tensor]:
        """Return tables of sums, [rows of the storage, ...] by name, filled in for the trajectories of some rows.

        Args:
            storage: Storage to read from.
            rows: Rows of the needed trajectories, int64 [n].
        """
        origin, state = getattr(storage, "origin", storage), (storage.write_count, storage.rewrite_count)
        cached = self._cache
        if cached is None or cached[0] is not origin or cached[1] != state:
            self._cache = cached = (origin, state, self._empty_tables(storage))
        tables = cached[2]
        if not tables.known.all():
            trajectories = self.trajectories(storage)
            at_once = len(storage) <= _AT_ONCE or any(table.device.type != "cpu" for table in tables.sums)
            missing = ~tables.known
            if not at_once:
                missing &= False
                owners = np.unique(trajectories.locate(rows.numpy())[0])
                missing[owners] = ~tables.known[owners]
            if missing.any():
                self._fill(tables, storage, trajectories, np.flatnonzero(missing))
        return {str(number): table for number, table in enumerate(tables.sums)}

    def _empty_tables(self, storage: Any) -> _Tables:
        sums = []
        for key in self._reward_keys():
            like = float_rewards(storage.pick(key, torch.empty(0, dtype=torch.int64)))
            shape = (len(storage), *like.shape[1:])
            # The system allocates zeros of numpy page by page, when they are written.
            on_cpu = like.device.type == "cpu"
            sums.append(torch.from_numpy(np.zeros(shape, like.numpy().dtype)) if on_cpu else like.new_zeros(shape))
        return _Tables(sums, np.zeros(len(self.trajectories(storage)), np.bool_))

    def _fill(self, tables: _Tables, storage: Any, trajectories: Trajectories, numbers: NDArray[np.intp]) -> None:
        """Compute the sums of some trajectories."""
        lengths = trajectories.lengths[numbers]
        order = torch.from_numpy(trajectories.rows(concatenated_ranges(trajectories.firsts[numbers], lengths)))
        ends = torch.zeros(len(order), dtype=torch.bool)
        ends[torch.from_numpy(np.cumsum(lengths) - 1)] = True
        for key, table in zip(self._reward_keys(), tables.sums, strict=True):
            sums = self.sums(float_rewards(storage.pick(key, order)), ends.to(table.device))
            table.index_copy_(0, order.to(table.device), sums)  # torn rows belong to no trajectory and stay 0
        tables.known[numbers] = True  # after the values, which another thread may read

    def _reward_keys(self) -> list[Any]:
        return [(key,) if isinstance(key, str) else key for key in self.in_keys]

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        return self._sums_along(batch, axis, self.ends(batch, axis))

    def _sums_along(self, batch: Any, axis: TimeAxis, ends: Tensor) -> dict[str, Tensor]:
        return {
            str(number): axis.unflatten(self.sums(axis.flatten(float_rewards(self.tensor(batch, key))), ends))
            for number, key in enumerate(self.in_keys)
        }

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        for number, key in enumerate(self.out_keys):
            batch.set(key, values[str(number)])
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}


class ReturnsToGo(RewardSums):
    """Add the return-to-go: the discounted sum of the rewards from each step to the end of its episode.

        step             0                    1           2        episode of 3 steps
        next.reward      r0                   r1          r2
        returns_to_go    r0 + g r1 + g^2 r2   r1 + g r2   r2

    A buffer reads the later rewards from the storage, so that every sampler works, including samplers of single steps.
    The sums are computed in float64, and have the dtype of the rewards: a batch has the values that a recipe stores.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import ReturnsToGo
        >>> steps = {"reward": torch.ones(4, 1), "done": torch.tensor([[False], [False], [True], [True]])}
        >>> ReturnsToGo(gamma=0.5)(TensorDict({"next": steps}, [4]))["returns_to_go"].flatten()
        tensor([1.7500, 1.5000, 1.0000, 1.0000])

    Args:
        gamma: Discount factor, g.
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.
        out_keys: Keys of the sums, ``"returns_to_go"`` by default.
        scale: Number by which the sums are divided.
        failure: Reward of every step of a failed episode, if rewards are sparse: an episode of only such rewards counts as
            one that never ends, whose return-to-go is failure / (1 - gamma) in every step. This is the rule of Cal-QL
            (Nakamoto et al., 2023, arXiv:2303.05479).
        done_key: Key under "next" of the flag that ends an episode.

    Raises:
        InvalidArgumentError: If `gamma` is outside of [0, 1], or 1 with `failure`, or `scale` is 0.
    """

    shown = ("gamma", "scale", "failure")
    in_recipes = True

    def __init__(
        self,
        gamma: float = 1.0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        scale: float = 1.0,
        failure: float | None = None,
        done_key: NestedKey = "done",
    ) -> None:
        super().__init__(in_keys, "returns_to_go" if out_keys is None else out_keys, done_key)
        check(
            share_problems(gamma=gamma),
            unless(scale != 0, "scale is 0, expected another number"),
            unless(failure is None or gamma != 1, "gamma is 1, expected a smaller number with failure"),
        )
        self.gamma, self.scale, self.failure = gamma, scale, failure

    @override
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        sums = _discounted_to(ends, rewards.double(), self.gamma)
        if self.failure is not None:
            others = (rewards != torch.tensor(self.failure, dtype=rewards.dtype)).long()
            counts = others.cumsum(0)
            _, firsts, lasts = trajectory_positions(ends)
            failed = counts[lasts] - counts[firsts] + others[firsts] == 0
            sums = sums.masked_fill(failed, self.failure / (1 - self.gamma))
        return (sums / self.scale).to(rewards.dtype)


class Reward2GoTransform(RewardSums):
    """Compute the reward to go: the discounted sum of the rewards from each step to the end of its episode.

        next.reward      1      2      4  | 8        gamma = 0.5
        reward to go     3      4      4  | 8

    As in TorchRL, the sums are computed when data is written to the buffer. The data must be whole episodes in order,
    rewards [N, 1], or trajectories, rewards [B, T, 1] in a TensorDict [B]. Of a stored dataset, which is read-only, the
    sums are computed when steps or whole episodes (`split_trajs`) are sampled. The sums of padding are 0.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import Reward2GoTransform
        >>> steps = {"reward": torch.ones(4, 1), "done": torch.tensor([[False], [False], [False], [True]])}
        >>> batch = TensorDict({"next": steps}, [4])
        >>> to_go = Reward2GoTransform(gamma=1.0, in_keys=[("next", "reward")], out_keys=["to_go"])
        >>> to_go.inv(batch)["to_go"].flatten()
        tensor([4., 3., 2., 1.])

    Args:
        gamma: Discount factor.
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.
        out_keys: Keys of the sums, `in_keys` by default.
        done_key: Key under "next" of the flag that ends an episode.
    """

    shown = ("gamma",)
    instead = "returns_to_go"

    def __init__(
        self,
        gamma: float | Tensor = 1.0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        done_key: NestedKey = "done",
    ) -> None:
        in_keys = [_REWARD] if in_keys is None else in_keys
        super().__init__(in_keys, in_keys if out_keys is None else out_keys, done_key)
        self.gamma = float(number_tensor(gamma, "gamma"))

    @override
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        return _discounted_to(ends, rewards, self.gamma)

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Add the sums to a batch of a read-only storage as temporary entries. Leave other batches unchanged."""
        if not storage.read_only:
            return data
        if self._reads_rows(data):
            return super().gather(storage, rows, data)
        for name, sums in self.values_from_batch(data).items():
            set_entry(data, self._mark + name, sums)
        return data

    def inv(self, data: Any) -> Any:
        """Add the sums to data that is written to the buffer.

        Raises:
            InvalidArgumentError: If a trajectory of the data has no end of an episode.
        """
        if isinstance(data, list) and data and is_tensor_collection(data[0]):
            data = torch.stack(data)
        batch = self.own(data)
        done = batch.get(under_next(self.done_key or "done"), None)
        # Whole trajectories [B, T, 1] may be the entries of a TensorDict [B].
        inner = done is not None and done.ndim > batch.ndim + 1
        axis = TimeAxis(tuple(done.shape[:-1]), done.ndim - 2) if inner else TimeAxis.of_batch(batch)
        if done is None or not axis.flatten(done).reshape(-1, axis.shape[axis.place]).any(1).all():
            raise InvalidArgumentError(
                "no episode ends in the written data, so that its rewards to go cannot be computed",
                hint="extend the buffer with whole episodes",
            )
        ends = axis.ends(done) if inner else self.ends(batch, axis)
        return self.write_results(batch, self._sums_along(batch, axis, ends))

    def transform_batch(self, batch: Any) -> Any:
        """Write the sums from the storage to a batch. Batches of a writable storage already contain their sums.

        Raises:
            InvalidArgumentError: If the batch does not contain the sums.
        """
        sums = self.pop_gathered(batch)
        if sums:
            return self.write_results(batch, sums)
        if missing := [key for key in self.out_keys if batch.get(key, None) is None]:
            raise InvalidArgumentError(
                f"the batch has no rewards to go, {missing}: {type(self).__name__} computes them when data is written",
                hint="append the transform before extend. For a batch of whole episodes, call the method inv of the transform",
            )
        return batch

    def update_specs(self, spec: CompositeSpec) -> None:
        """Set the specs of the sums, which are unbounded. A batch of zeros would lack the sums, which are written."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec.set(out_key, any_like(float_rewards(spec[in_key].zero())))


class RewardSum(RewardSums):
    """Compute the cumulative reward: the sum of the rewards of an episode up to and including each step.

        next.reward              1      2      4  | 8
        next.episode_reward      1      3      7  | 8

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import RewardSum
        >>> steps = {"reward": torch.ones(4, 1), "done": torch.tensor([[False], [True], [False], [True]])}
        >>> batch = TensorDict({"next": steps}, [4])
        >>> returns = RewardSum(in_keys=[("next", "reward")], out_keys=[("next", "episode_reward")])
        >>> returns(batch)["next", "episode_reward"].flatten()
        tensor([1., 2., 1., 2.])

    Args:
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.
        out_keys: Keys of the sums, ``("next", "episode_reward")`` by default.
    """

    in_recipes = True

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        in_keys = [_REWARD] if in_keys is None else key_list(in_keys)
        named = [prefixed_key("episode_", key) for key in in_keys]
        super().__init__(in_keys, named if out_keys is None else out_keys)

    @override
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        return _cumulative_sums(rewards, ends)


class TargetReturn(RewardSums):
    """Compute the remaining target return at each step, for return-conditioned policies.

        next.reward             1      2      4  | 8          target_return = 10
        target_return          10      9      7  | 10
        next.target_return      9      7      3  | 2          "reduce", or 10 throughout with "constant"

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import TargetReturn
        >>> steps = {"reward": torch.ones(3, 1), "done": torch.tensor([[False], [False], [True]])}
        >>> batch = TensorDict({"next": steps}, [3])
        >>> TargetReturn(10.0, in_keys=[("next", "reward")], out_keys=["target_return"])(batch)["target_return"].flatten()
        tensor([10.,  9.,  8.])

    Args:
        target_return: Target return at the first step of every episode.
        mode: "reduce" to subtract the rewards so far, or "constant".
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.
        out_keys: Keys of the target returns, at the root and under "next", ``"target_return"`` by default.
        reset_key: No effect: the data of a buffer has no resets.

    Raises:
        InvalidArgumentError: If the mode is unknown.
    """

    shown = ("target_return", "mode")
    in_recipes = True

    def __init__(
        self,
        target_return: float,
        mode: Literal["reduce", "constant"] = "reduce",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        reset_key: Any = None,
    ) -> None:
        del reset_key
        super().__init__(in_keys, "target_return" if out_keys is None else out_keys)
        check(choice_problems("reduce", "constant", mode=mode))
        self.target_return, self.mode = target_return, mode

    @override
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        return _cumulative_sums(rewards, ends)

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            after = self.target_return - values[str(number)]
            if self.mode == "constant":
                after = torch.full_like(after, self.target_return)
                before = after.clone()
            else:
                before = after + get_entry(batch, in_key)
            batch.set(out_key, before)
            batch.set(under_next(out_key), after)
        return batch


class InTrajectory(OverTime):
    """Base class of transforms that use the number of each trajectory and the number of the step in it."""

    def __init__(self) -> None:
        super().__init__([], [])

    @override
    def read_keys(self) -> Sequence[NestedKey] | None:
        return []

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        del data
        trajectories = self.trajectories(storage)
        owner, places = trajectories.locate(rows.cpu().numpy())
        values = {"count": places - trajectories.firsts[owner], "trajectory": owner}
        return {name: torch.from_numpy(value).unsqueeze(1) for name, value in values.items()}

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        numbers, firsts, _ = trajectory_positions(self.ends(batch, axis))
        opens, mask = numbers == firsts, self.padding_mask(batch)
        if mask is not None:
            opens = opens & axis.flatten(mask)  # padding has the number of the trajectory before it
        values = {"count": numbers - firsts, "trajectory": opens.cumsum(0) - 1}
        return {name: axis.unflatten(value.unsqueeze(1)) for name, value in values.items()}


class StepCounter(InTrajectory):
    """Count the steps of each trajectory: 0 at the root of the first step, and 1 more under "next".

        step_count           0   1   2 | 0
        next.step_count      1   2   3 | 1

    If a ring buffer has overwritten the beginning of a trajectory, counting starts at the oldest stored step.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import StepCounter
        >>> steps = {"done": torch.tensor([[False], [True], [False], [True]])}
        >>> batch = TensorDict({"next": steps}, [4])
        >>> StepCounter()(batch)["next", "step_count"].flatten()
        tensor([1, 2, 1, 2])

    Args:
        max_steps: Number of steps after which a trajectory is marked as truncated, unlimited by default.
        truncated_key: Key under "next" of the flag that marks this end.
        step_count_key: Key of the counts, at the root and under "next".
        update_done: Whether to set "done" under "next" to True as well.

    Raises:
        InvalidArgumentError: If `max_steps` is below 1.
    """

    in_recipes = True

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: NestedKey | None = "truncated",
        step_count_key: NestedKey = "step_count",
        update_done: bool = True,
    ) -> None:
        super().__init__()
        check(size_problems(max_steps=max_steps, optional=True))
        self.max_steps, self.truncated_key, self.update_done = max_steps, truncated_key, update_done
        self.step_count_key = step_count_key

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        count = values["count"]
        batch.set(self.step_count_key, count)
        batch.set(under_next(self.step_count_key), count + 1)
        if self.max_steps is not None and self.truncated_key is not None:
            for key in (self.truncated_key, "done") if self.update_done else (self.truncated_key,):
                exceeded = count + 1 >= self.max_steps
                flag = batch.get(under_next(key), None)
                batch.set(under_next(key), exceeded if flag is None else flag | exceeded)
        return batch

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        shape, largest = (*spec.shape, 1), torch.iinfo(torch.int64).max
        spec.set(self.step_count_key, BoundedTensorSpec(0, largest, shape, dtype=torch.int64))
        spec.set(under_next(self.step_count_key), BoundedTensorSpec(1, largest, shape, dtype=torch.int64))
        if self.max_steps is not None and self.truncated_key is not None:
            flag = any_like(torch.zeros(shape, dtype=torch.bool))
            for key in (self.truncated_key, "done") if self.update_done else (self.truncated_key,):
                if under_next(key) not in spec:
                    spec.set(under_next(key), flag)

    def _repr_arguments(self) -> dict[str, Any]:
        return {} if self.max_steps is None else {"max_steps": self.max_steps}


class DensifyReward(OverSlices):
    """Distribute the sparse reward at the end of a trajectory: each step gets the discounted sum of later rewards.

        next.reward    0  0  3 | 0  7 | 0        next.done    -  -  x | -  x | -
        result         3  3  3 | 7  7 | 0        discount = 1

    It is `datasets_rl.returns.reward2go` of the steps of the batch, [..., T, 1], which are consecutive, as `SliceSampler`
    draws them. See `Reward2GoTransform` for single steps.

    Args:
        reward_key: Key of the rewards under "next".
        done_key: Key under "next" of the flag that ends a trajectory, of the shape of the rewards.
        reward_key_out: Key of the results under "next", `reward_key` by default.
        time_dim: Not used, as in TorchRL: the time axis is the last but one of the rewards.
        discount: Discount factor.

    Raises:
        InvalidArgumentError: If a buffer has drawn a batch in which a step without a flag is not followed by the next
            step.
    """

    shown = ("discount",)

    def __init__(
        self,
        *,
        reward_key: NestedKey = "reward",
        done_key: NestedKey = "done",
        reward_key_out: NestedKey | None = None,
        time_dim: int = 2,
        discount: float = 1.0,
    ) -> None:
        super().__init__(
            [under_next(reward_key)], [under_next(reward_key if reward_key_out is None else reward_key_out)], done_key
        )
        del time_dim
        self.discount = discount

    @override
    def _reads_rows(self, data: Any) -> bool:
        # The elements of a buffer may be trajectories [B, T, 1] in a TensorDict [B].
        return super()._reads_rows(data) and get_entry(data, self.in_keys[0]).ndim == data.ndim + 1

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        reward, done = get_entry(batch, self.in_keys[0]), get_entry(batch, under_next(self.done_key or "done"))
        if values:
            axis = TimeAxis.of_batch(batch)
            joined = axis.flatten(self.continued(values, axis)) | self.ends(batch, axis)
            if not joined.all():
                raise InvalidArgumentError(
                    f"DensifyReward sums the rewards of consecutive steps, but step {int(joined.int().argmin())} of the batch is "
                    "not followed by the next step of the trajectory",
                    hint="sample slices with SliceSampler, or use Reward2GoTransform, which reads the later steps itself",
                )
        return batch.set(self.out_keys[0], reward2go(reward, done, self.discount))


def _discounted_to(ends: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """Return the discounted sums of rewards to the end of each trajectory, [N, ...], see `datasets_rl.returns.discounted`."""
    carry = torch.where(ends, 0, torch.tensor(gamma, dtype=rewards.dtype, device=rewards.device))
    return discounted(rewards, carry.reshape(-1, *[1] * (rewards.ndim - 1)))


def _cumulative_sums(rewards: Tensor, ends: Tensor) -> Tensor:
    """Return the sum of the rewards of each trajectory up to each step, [N, ...].

    Computed as the sum to go on the reversed time axis.

    Args:
        rewards: Rewards of consecutive steps, [N, ...].
        ends: Whether each step is the last step of a trajectory, bool [N].
    """
    opens = ends.roll(1).flip(0)
    carry = (~opens).to(rewards.dtype).reshape(-1, *[1] * (rewards.ndim - 1))
    return discounted(rewards.flip(0), carry).flip(0)
