"""Action chunks with cumulative rewards, for Q-chunking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, choice_problems, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.returns import float_rewards
from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_REWARD, NEXT_TERMINATED, Key, as_key
from datasets_rl.ted.passes import (
    Alive,
    Bootstraps,
    Discount,
    Ended,
    Entry,
    Field,
    Outside,
    Part,
    Pass,
    RewardSum,
    RewardSums,
    StepCount,
    Values,
)
from datasets_rl.transforms._bounds import repeat_bounds
from datasets_rl.transforms._time import OverTime, TimeAxis, step_windows
from datasets_rl.transforms.base import STEPS_TO_NEXT, NestedKey, any_like, flat_key, get_entry, set_entry, under_next
from datasets_rl.transforms.multi_step import discount_powers


class QChunkTransform(OverTime):
    """Add the chunk of the next H actions with its cumulative rewards to each step, for Q-chunking (Li et al., 2025).

        step of the episode     0           1           2        H = 2, gamma = 0.5, rewards 1 2 4, then an episode of 8
        chunk.action            a0 a1       a1 a2       a2 a2
        chunk.next_action       a1 a2       a2 a2       a2 a2
        chunk.reward            1  2        2  4        4  4     at_end = "cross": 4 8, the 8 of the next episode
        chunk.valid             x  x        x  x        x  .

    Entries of the TensorDict ``"chunk"``: ``"action"`` and ``"next_action"``, [*batch, H, ...]. Entries of
    the shape [*batch, H]: ``"reward"``, the discounted sum of the rewards up to each step, ``"mask"``, float, 0 from a
    termination on, ``"terminal"``, bool, True from the end of the trajectory on, and ``"valid"``, bool, True for steps
    of the trajectory.

    As with `MultiStepTransform`, the entries under "next" are from the last step of the chunk that is in the
    trajectory, except the reward, which is the sum of the chunk, [*batch, 1]. ``"steps_to_next_obs"``, int64 [*batch], is
    the number of these steps, ``"gamma"``, [*batch], the power of the discount factor that applies to the next observation, and ``"nonterminal"``, bool [*batch], is False if the chunk
    reaches a termination or an unknown final observation:

        target = next.reward + (gamma * nonterminal).unsqueeze(-1) * Q(next.observation)

        >>> from datasets_rl import load
        >>> from datasets_rl.transforms import QChunkTransform
        >>> rb = load("demo/pendulum", transform=QChunkTransform(5, gamma=0.99), batch_size=8)
        >>> rb.sample()["chunk", "action"].shape
        torch.Size([8, 5, 1])

    Args:
        chunk_size: Number of actions of a chunk, H, at least 1.
        gamma: Discount factor.
        at_end: Steps of a chunk after the end of its trajectory: "clip" repeats the last action and adds no rewards,
            "cross" reads the following rows of the storage, whatever their episode, as the code of the authors
            (`sample_sequence`) does, which masks them by `valid`.
        action_key: Key of the actions.
        chunk_key: Key of the results.

    Raises:
        InvalidArgumentError: If `chunk_size` is below 1 or `at_end` is unknown.
    """

    shown = ("chunk_size", "gamma", "at_end")

    def __init__(
        self,
        chunk_size: int,
        gamma: float,
        at_end: Literal["clip", "cross"] = "clip",
        *,
        action_key: NestedKey = "action",
        chunk_key: NestedKey = "chunk",
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__([action_key], [chunk_key], done_key)
        check(size_problems(chunk_size=chunk_size), choice_problems("clip", "cross", at_end=at_end))
        self.chunk_size, self.gamma, self.at_end = chunk_size, gamma, at_end

    @property
    def _keys(self) -> dict[str, NestedKey]:
        done = under_next(self.done_key or "done")
        return {"action": self.in_keys[0], "reward": NEXT_REWARD, "done": done, "terminated": NEXT_TERMINATED}

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        keys = [*self._keys.values()]
        # One more step than the chunk, for the next actions.
        if self.at_end == "cross":
            window, outside = _consecutive(rows, self.chunk_size, len(storage))
            steps = storage.take(window.reshape(-1))
            read = [self.tensor(steps, key).reshape(*window.shape, *get_entry(steps, key).shape[1:]) for key in keys]
            last = window[:, self.chunk_size - 1].contiguous()
        else:
            windows = self.take_windows(storage, keys, rows, range(self.chunk_size + 1), data)
            read, outside, last = windows.entries, windows.outside, windows.rows_at(self.chunk_size - 1)
        values = dict(zip(self._keys, read, strict=True))
        results = self._compiled_results(values, outside)
        return {"action": values["action"], **results, "next": storage.take_next(last), "outside": outside}

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, see `ReadsInPass`."""
        return self.chunk_size, self.gamma, self.at_end, self.in_keys[0], self.out_keys[0], self.done_key

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the chunks as entries of a pass, see `ReadsInPass`."""
        action = as_key(self.in_keys[0])
        flags = [fields.get(key) for key in (NEXT_DONE, NEXT_TERMINATED, NEXT_REWARD)]
        if self._end_key is not None or self.at_end == "cross" or action not in fields:
            return None
        if any(field is None or field.shape != (1,) for field in flags) or fields[NEXT_REWARD].dtype != torch.float32:
            return None
        chunk: dict[str, Part] = {
            "action": Values(action, range(self.chunk_size)),
            "next_action": Values(action, range(1, self.chunk_size + 1)),
            "reward": RewardSums(NEXT_REWARD),
            "mask": Alive(),
            "terminal": Ended(),
            "valid": Outside(range(self.chunk_size), inverted=True),
        }
        others: dict[Key, Part] = {
            NEXT_REWARD: RewardSum(NEXT_REWARD, rounded=True),
            (STEPS_TO_NEXT,): StepCount(),
            ("gamma",): Discount(),
            ("nonterminal",): Bootstraps(),
        }
        entries = {as_key(self._chunk(name)): part for name, part in chunk.items()} | others
        made = tuple(Entry(key, (part,)) for key, part in entries.items())
        return Pass(made, self.chunk_size, self.gamma, shortens=False)

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        ends = self.ends(batch, axis)
        if self.at_end == "cross":
            window, outside = _consecutive(torch.arange(len(ends), device=ends.device), self.chunk_size, len(ends))
        else:
            window, outside = step_windows(ends, range(self.chunk_size + 1))
        last = window[:, self.chunk_size - 1]
        read = {name: axis.select_steps(self.tensor(batch, key), window) for name, key in self._keys.items()}
        outside = axis.unflatten(outside)
        return {
            "action": read["action"],
            **self._results(read, outside),
            "next": get_entry(batch, NEXT).apply(lambda leaf: axis.select_steps(leaf, last)),
            "outside": outside,
        }

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        outside, size = values["outside"], self.chunk_size
        axis, actions, sums = outside.ndim - 1, values["action"], values["reward"]
        results = {
            "action": actions.narrow(axis, 0, size),
            "next_action": actions.narrow(axis, 1, size),
            "reward": sums,
            "mask": values["alive"],
            "terminal": values["ended"],
            "valid": values["valid"],
        }
        for name, value in results.items():
            set_entry(batch, self._chunk(name), value)
        last = values["next"]
        set_entry(last, "reward", sums[..., -1:])
        known = batch.get(NEXT_FINAL_KNOWN, None)
        if known is not None and last.get("final_known", None) is None:
            last.set("final_known", known)
        set_entry(batch, NEXT, last)
        steps = values["steps"]
        set_entry(batch, STEPS_TO_NEXT, steps)
        set_entry(
            batch, "gamma", self._powers(sums.dtype, steps.device).index_select(0, steps.view(-1)).view(steps.shape)
        )
        nonterminal = values["alive"][..., -1] > 0
        known = last.get("final_known", None)
        nonterminal = nonterminal if known is None else nonterminal & known.flatten(axis).all(-1)
        set_entry(batch, "nonterminal", nonterminal)
        return batch

    def _powers(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the powers 0 to H of the discount factor, [H + 1]."""
        return discount_powers(self.gamma, self.chunk_size, dtype, device)

    def _results(self, read: dict[str, Tensor], outside: Tensor) -> dict[str, Tensor]:
        """Return what follows from the rewards and the flags of windows, by name.

        Args:
            read: Windows of "reward", "done" and "terminated", [*batch, W, ...].
            outside: Which steps are after the end of the trajectory, bool [*batch, W].
        """
        size, axis = self.chunk_size, outside.ndim - 1
        reward, done, terminated = (
            read[name].narrow(axis, 0, size).flatten(axis + 1) for name in ("reward", "done", "terminated")
        )
        if reward.shape[-1] != 1:
            raise InvalidArgumentError(
                f"the reward of a step has {reward.shape[-1]} components, expected 1",
                hint="sum the components with LineariseRewards first",
            )
        rewards = float_rewards(reward.squeeze(-1))
        ended, terminal = (flags.any(-1).cumsum(-1) > 0 for flags in (done, terminated))
        inside = ~outside[..., :size].to(rewards.device)
        valid = inside
        if self.at_end == "cross":
            valid = inside & ~torch.cat([torch.zeros_like(ended[..., :1]), ended[..., :-1]], -1)
        return {
            "reward": (rewards * self._powers(rewards.dtype, rewards.device)[:-1] * inside).cumsum(-1),
            "alive": (~terminal).to(rewards.dtype),
            "ended": ended,
            "valid": valid,
            "steps": inside.sum(-1),
        }

    def _compiled_results(self, read: dict[str, Tensor], outside: Tensor) -> dict[str, Tensor]:
        """Return the same as `_results` for windows of a storage, from a single loop where possible."""
        reward, flags = read["reward"], (read["done"], read["terminated"])
        dtypes = reward.dtype in {torch.float32, torch.float64} and {flag.dtype for flag in flags} == {torch.bool}
        shapes = {value.shape for value in (reward, *flags)} == {(*outside.shape, 1)}
        if not dtypes or not shapes or not reward.is_cpu or self.at_end == "cross":
            return self._results(read, outside)
        from datasets_rl.transforms._sums import chunk_sums  # deferred: it imports numba

        shape, dtype = (len(outside), self.chunk_size), reward.numpy().dtype
        sums, alive = np.empty(shape, dtype), np.empty(shape, dtype)
        ended, valid, steps = np.empty(shape, np.bool_), np.empty(shape, np.bool_), np.empty(len(outside), np.int64)
        powers = self._powers(reward.dtype, reward.device).numpy()
        rewards, done, terminated = (value.numpy() for value in (reward, *flags))
        chunk_sums(rewards, done, terminated, powers, outside.numpy(), sums, alive, ended, valid, steps)
        results = {"reward": sums, "alive": alive, "ended": ended, "valid": valid, "steps": steps}
        return {name: torch.from_numpy(value) for name, value in results.items()}

    def _chunk(self, name: str) -> NestedKey:
        return flat_key((self.out_keys[0], name))

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        size, action = self.chunk_size, spec[self.in_keys[0]]
        chunk = repeat_bounds(action, size, spec.ndim)
        numbers = torch.zeros(*spec.shape, size, dtype=float_rewards(spec[NEXT_REWARD].zero()).dtype)
        for name in ("action", "next_action"):
            spec.set(self._chunk(name), chunk.clone())
        for name, value in {"reward": numbers, "mask": numbers, "terminal": numbers > 1, "valid": numbers > 1}.items():
            spec.set(self._chunk(name), any_like(value))
        spec.set(NEXT_REWARD, any_like(numbers[..., :1]))
        spec.set(STEPS_TO_NEXT, BoundedTensorSpec(1, size, spec.shape, dtype=torch.int64))
        spec.set("gamma", any_like(numbers[..., 0]))
        spec.set("nonterminal", any_like(numbers[..., 0] > 1))


def _consecutive(rows: Tensor, after: int, count: int) -> tuple[Tensor, Tensor]:
    """Return each of some rows [B] with the `after` rows that follow it, int64 [B, after + 1], and which are past the end.

    The last of the `count` rows is repeated.
    """
    window = rows.unsqueeze(1) + torch.arange(after + 1, device=rows.device)
    return window.clamp(max=count - 1), window >= count
