"""Hindsight experience replay: goals that an episode has reached replace the desired goals."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, unless
from datasets_rl.buffers.read_path import Drawn
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.returns import float_rewards
from datasets_rl.samplers.base import Sampler
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import NEXT, NEXT_DONE, NEXT_REWARD, Key, as_key, dotted_name
from datasets_rl.transforms.base import NestedKey

_GOAL_INDEX = "goal_index"


class HindsightStrategy(str, Enum):
    """Which achieved goal replaces the desired goal of a step."""

    FUTURE = "future"
    """The goal of the step itself or of a later step of the same episode."""
    FINAL = "final"
    """That of the last step of its episode."""
    EPISODE = "episode"
    """That of any step of its episode."""
    RANDOM = "random"
    """That of any step of the buffer."""

    __str__ = str.__str__


class HERReplayBuffer(TensorDictReplayBuffer):
    """Replay buffer that replaces goals in hindsight (Andrychowicz et al., 2017, arXiv 1707.01495).

        >>> def reward_fn(steps):
        ...     return -(steps["achieved_goal"] - steps["desired_goal"]).norm(dim=-1, keepdim=True)
        >>> rb = HERReplayBuffer(reward_fn, storage=LazyTensorStorage(1_000_000), batch_size=256)

    The first ``int(her_ratio * B)`` steps of a batch get the achieved goal of another step as their desired goal, at t
    and under "next", and a new reward. The other steps are unchanged.

        episode         t     0    1    2    3         batch of step 1, strategy "future", goal of step 3
                        goal  g    g    g    g         desired_goal                 a_3
                        state a_0  a_1  a_2  a_3       next: desired_goal, reward   a_3, reward_fn

    The goals are replaced before the transforms of the buffer. ``batch["goal_index"]``, int64 [B], is the row of the
    step that each goal comes from, -1 for unchanged steps. Episodes are the same as for slice samplers: a ring may
    wrap, there may be several environments, and the storage may be the storage of a dataset.

    Args:
        reward_fn: Maps the steps with new goals, a TensorDict [n], to the new rewards, [n] or [n, 1].
        her_ratio: Share of every batch with new goals, from 0 to 1.
        strategy: Which goals replace the desired goals, see `HindsightStrategy`.
        goal_key: Key of the desired goal.
        achieved_goal_key: Key of the achieved goal.
        reward_key: Key of the reward.
        end_key: Key of the flag at the end of an episode. The flag "terminated" beside this key ends an episode as
            well.
        sampler: Draws the steps of a batch, uniform with replacement by default.
        **kwargs: Other arguments of `TensorDictReplayBuffer`.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    def __init__(
        self,
        reward_fn: Callable[[Any], Tensor],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = HindsightStrategy.FUTURE,
        goal_key: NestedKey = "desired_goal",
        achieved_goal_key: NestedKey = "achieved_goal",
        reward_key: NestedKey = NEXT_REWARD,
        end_key: NestedKey = NEXT_DONE,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        **kwargs: Any,
    ) -> None:
        function: Any = reward_fn
        strategies = [str(choice) for choice in HindsightStrategy]
        check(
            unless(callable(function), f"reward_fn is {reward_fn!r}, expected a function of steps"),
            unless(0 <= her_ratio <= 1, f"her_ratio is {her_ratio!r}, expected a number >= 0 and <= 1"),
            unless(strategy in strategies, f"strategy is {strategy!r}, expected one of {', '.join(strategies)}"),
        )
        self.reward_fn = reward_fn
        self.her_ratio = her_ratio
        self.strategy = HindsightStrategy(strategy)
        self.goal_key = as_key(goal_key)
        self.achieved_goal_key = as_key(achieved_goal_key)
        self.reward_key = as_key(reward_key)
        self.end_key = as_key(end_key)
        self._checked: Storage | None = None
        super().__init__(sampler=sampler, **kwargs)

    @override
    def choose_rows(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        index, info = super().choose_rows(storage, batch_size)
        rows = index if isinstance(index, Tensor) else storage.ravel(index)
        if self._checked is not storage:
            self._check_keys(storage)
            self._checked = storage
        goals = torch.full_like(rows, -1)
        count = int(len(rows) * self.her_ratio)
        if count:
            goals[:count] = self._choose_goals(storage, rows[:count])
        return index, {**info, _GOAL_INDEX: goals}

    @property
    @override
    def has_own_rows(self) -> bool:
        return True

    def _check_keys(self, storage: Storage) -> None:
        keys = {"goal_key": self.goal_key, "achieved_goal_key": self.achieved_goal_key, "reward_key": self.reward_key}
        for argument, key in keys.items():
            try:
                storage.pick(key, torch.zeros(1, dtype=torch.int64))
            except UnknownKeyError as error:
                error.hint = f"name another key: {argument}=..."
                raise

    def _choose_goals(self, storage: Storage, rows: Tensor) -> Tensor:
        """Return the row of the achieved goal that each step gets, in the shape of `rows`."""
        generator = self.sampler.generator
        if self.strategy is HindsightStrategy.RANDOM:
            steps = storage.chronological_rows() if storage.torn else None
            chosen = torch.randint(len(storage) - storage.torn, (len(rows),), generator=generator)
            return chosen if steps is None else steps[chosen]
        terminated: Key = (*self.end_key[:-1], "terminated")
        episodes = storage.trajectories(end_key=(self.end_key, terminated))
        owner, places = episodes.locate(rows.numpy())
        last = episodes.firsts[owner] + episodes.lengths[owner] - 1
        if self.strategy is HindsightStrategy.FINAL:
            return torch.from_numpy(episodes.rows(last))
        first = places if self.strategy is HindsightStrategy.FUTURE else episodes.firsts[owner]
        spans = torch.from_numpy(last - first)
        # As in TorchRL, so that both draw the same goals under the same seed.
        offsets = (torch.rand(len(rows), generator=generator) * (spans + 1).float()).long()
        return torch.from_numpy(episodes.rows(first + offsets.minimum(spans).numpy()))

    @override
    def read(self, drawn: Drawn) -> Any:
        data = super().read(drawn)
        goals = drawn.info.get(_GOAL_INDEX)
        goals = None if goals is None else goals[goals >= 0]
        if goals is None or not len(goals):
            return data
        achieved, count = drawn.storage.pick(self.achieved_goal_key, goals), len(goals)
        for key in (self.goal_key, (NEXT, *self.goal_key)):
            if (desired := data.get(key, None)) is not None:
                data.set(key, torch.cat([achieved.to(desired), desired[count:]]))
        rewards, stored = self.reward_fn(data[:count]), float_rewards(data.get(self.reward_key))
        if rewards.numel() != stored[:count].numel():
            raise InvalidArgumentError(
                f"reward_fn returned the shape {list(rewards.shape)}, expected {list(stored[:count].shape)}"
            )
        return data.set(self.reward_key, torch.cat([rewards.reshape_as(stored[:count]).to(stored), stored[count:]]))

    def __repr__(self) -> str:
        keys = (
            f"{name}={dotted_name(getattr(self, name))}" for name in ("goal_key", "achieved_goal_key", "reward_key")
        )
        arguments = ", ".join([f"strategy={self.strategy}", f"her_ratio={self.her_ratio}", *keys])
        return super().__repr__().replace("(", f"(\n    {arguments},", 1)
