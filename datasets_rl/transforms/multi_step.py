"""Multi-step (n-step) targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, size_problems
from datasets_rl.returns import float_rewards
from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, NEXT_TERMINATED, Key, as_key
from datasets_rl.ted.passes import Bootstraps, Discount, Entry, Field, Part, Pass, RewardSum, StepCount, Values
from datasets_rl.ted.windows import rows_in
from datasets_rl.transforms._time import PADDING_MASKS, OverTime, TimeAxis, find_mask, step_windows
from datasets_rl.transforms.base import (
    STEPS_TO_NEXT,
    Keys,
    NestedKey,
    any_like,
    expand_right,
    get_entry,
    key_list,
    prefixed_key,
    set_entry,
    under_next,
)

_LOOP_NDIM, _LOOP_DTYPES = 3, (torch.float32, torch.float64)
"""Axes and dtypes of the rewards of windows, [B, n, K], that the compiled loop supports."""


class MultiStepTransform(OverTime):
    """Compute n-step targets: the discounted sum of the next n rewards, and the observation after the last of them.

        step               0              1                2          episode of 3 steps, n = 2
        next.reward        r0 + g r1      r1 + g r2        r2
        next.observation   o2             f                f          f: the final observation
        steps_to_next_obs  2              2                1
        gamma              g^2            g^2              g

    Near the end of an episode, fewer than n steps remain. The target is still correct, because the entry `gamma` is the
    power of the discount factor that applies to the next observation. For a truncated episode, that is its true final
    observation. A target never includes steps of another episode, nor crosses from the newest to the oldest step of a
    full ring buffer.

    Batches with ``("next", "final_known")`` come from a dataset that lacks some final observations. A target never uses
    an unknown observation: if a truncated episode ends with an unknown observation, the windows
    that reach this end are one step shorter, and end at the last known observation. Only the last transition of the
    episode has no earlier state to end at. Both `nonterminal` and ``("next", "final_known")`` are False for it, so that
    the latter is the mask that excludes it. A terminated episode needs no final observation, so its windows are not
    shortened.

        step               0              1              2          f unknown, truncated, n = 2
        next.reward        r0 + g r1      r1             r2
        next.observation   o2             o2             zeros
        nonterminal        True           True           False
        next.final_known   True           True           False

    All entries under "next" are from the last step of the window, including the flags that end an episode. TorchRL
    keeps the flags of the first step, and thus bootstraps from a terminal state within the window. It also transforms
    data when it is written, and thus loses the last steps of every `extend`. This class stores single steps and
    transforms them when they are sampled.

    The transform also writes ``("next", "original_reward")`` and, at the root, in the shape of the batch as in
    TorchRL, ``"steps_to_next_obs"``, int64 [...], ``"gamma"``, float [...], and ``"nonterminal"``, bool [...].
    ``"nonterminal"`` is whether the value of the next observation counts, that is, whether the last step is not
    terminated and the observation after that step is known.

        target = next.reward + (gamma * nonterminal).unsqueeze(-1) * V(next.observation)

        >>> from datasets_rl import load
        >>> from datasets_rl.transforms import MultiStepTransform
        >>> rb = load("demo/pendulum", transform=MultiStepTransform(n_steps=3, gamma=0.99), batch_size=32)
        >>> batch = rb.sample()
        >>> batch["next", "reward"].shape, "steps_to_next_obs" in batch.keys()
        (torch.Size([32, 1]), True)

    Args:
        n_steps: Maximum number of steps of a window, n, at least 1. The attribute may be changed at any time.
        gamma: Discount factor.
        reward_keys: Keys of the rewards, under "next", ``["reward"]`` by default.
        done_keys: Keys under "next" of flags that keep the values of the first step of the window, as in TorchRL. None
            by default.
        mask_key: Key of the mask that is False for padding, in batches of padded trajectories. By default ``"mask"`` or
            ``("collector", "mask")``, where `split_trajectories` writes it. `nonterminal` of padding is False.

    Raises:
        InvalidArgumentError: If `n_steps` is below 1.
    """

    shown = ("n_steps", "gamma")
    per_step = True
    instead = "n_step_targets"

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Keys | None = None,
        done_key: NestedKey | None = None,
        done_keys: Keys | None = None,
        mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__(done_key=done_key)
        self.done_keys = key_list(done_keys)
        self.n_steps, self.gamma = n_steps, gamma
        self.mask_key: NestedKey = "mask" if mask_key is None else mask_key
        self.reward_keys = ["reward"] if reward_keys is None else key_list(reward_keys)

    @property
    def n_steps(self) -> int:
        """Maximum number of steps of a window."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, n_steps: int) -> None:
        check(size_problems(n_steps=n_steps))
        self._n_steps = n_steps

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        keys = [under_next(name) for name in self.reward_keys]
        windows = self.take_windows(storage, keys, rows, range(self.n_steps), data)
        ends = windows.rows_at(self.n_steps - 1)
        next_entries, usable, outside = storage.take_next(ends), None, windows.outside
        if data.get(NEXT_FINAL_KNOWN, None) is not None:
            final = next_entries
            if not {"final_known", "terminated"} <= set(next_entries.keys()):
                # An earlier transform has removed them: read them from the storage.
                final = getattr(storage, "origin", storage).take_next(ends)
            # In a mixture, a batch may have the mask because of other members, while this storage has all final states.
            known = final.get("final_known", None)
            usable = None if known is None else _usable_targets(known, final.get("terminated", None))
        if usable is not None:
            last, outside, usable = _shorten_windows(outside, usable)
            if not torch.equal(shortened := windows.rows_at(last), ends):
                next_entries = storage.take_next(shortened)
        values = self._compiled_values(windows.entries, outside) or self._values(windows.entries, outside)
        values["next"] = next_entries
        return values if usable is None else {**values, "usable": usable}

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, see `ReadsInPass`."""
        keys = (*self.reward_keys, None, *self.done_keys)
        return self.n_steps, self.gamma, keys, self.done_key, torch.get_default_dtype()

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the targets as entries of a pass, see `ReadsInPass`."""
        rewards = [as_key(under_next(name)) for name in self.reward_keys]
        kept = [as_key(under_next(name)) for name in self.done_keys]
        if self._end_key is not None or torch.get_default_dtype() is not torch.float32 or not rewards:
            return None
        if not {NEXT_TERMINATED, *rewards, *kept} <= fields.keys() or {*rewards} & {*kept}:
            return None
        if any(len(fields[key].shape) != 1 or fields[key].dtype not in _LOOP_DTYPES for key in rewards):
            return None
        entries = [Entry(key, (Values(key, (0,)),), fields[key].shape) for key in kept]
        for key, name in zip(rewards, self.reward_keys, strict=True):
            original = as_key(under_next(prefixed_key("original_", name)))
            entries.append(Entry(key, (RewardSum(key),)))
            entries.append(Entry(original, (Values(key, (0,)),), fields[key].shape))
        results: dict[str, Part] = {STEPS_TO_NEXT: StepCount(), "gamma": Discount(), "nonterminal": Bootstraps()}
        entries += [Entry((name,), (part,)) for name, part in results.items()]
        return Pass(tuple(entries), self.n_steps, self.gamma)

    @override
    def own_reads(self, storage: Any) -> Collection[Key]:
        return [(NEXT, *key) for key in storage.wide_states]

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        ends, mask = self.ends(batch, axis), self.padding_mask(batch)
        window, outside = step_windows(ends, range(self.n_steps))

        known, terminated = (batch.get(key, None) for key in (NEXT_FINAL_KNOWN, NEXT_TERMINATED))
        usable = None
        if known is not None:
            steps = _usable_targets(axis.flatten(known), None if terminated is None else axis.flatten(terminated))
            usable = steps[window[:, -1].to(steps.device)]
        ends = window[:, -1].contiguous()
        if usable is not None:
            last, outside, usable = _shorten_windows(outside, usable)
            ends, usable = rows_in(window)(last), axis.unflatten(usable)
        next_entries = get_entry(batch, NEXT).apply(lambda leaf: axis.select_steps(leaf, ends))
        rewards = [axis.select_steps(get_entry(batch, under_next(name)), window) for name in self.reward_keys]
        values = {**self._values(rewards, axis.unflatten(outside)), "next": next_entries}
        # Padding has no next observation, as an unusable target.
        if mask is not None:
            usable = mask.unsqueeze(-1) if usable is None else usable & mask.unsqueeze(-1).to(usable.device)
        return values if usable is None else {**values, "usable": usable}

    @override
    def padding_mask(self, batch: Any) -> Tensor | None:
        return find_mask(batch, (self.mask_key, *PADDING_MASKS))

    def _values(self, entries: Sequence[Tensor], outside: Tensor) -> dict[str, Any]:
        """Return the sum of the rewards in each window by number of the reward, and the number of its steps, [*batch].

        Args:
            entries: Rewards of each window by number, [*batch, n, ...].
            outside: Which steps are after the end of the trajectory, bool [*batch, n].
        """
        values: dict[str, Any] = {"steps": (~outside).sum(-1)}
        for number, rewards in enumerate(entries):
            floats = float_rewards(rewards)
            weights = self._powers(floats.dtype, floats.device)[:-1] * ~outside.to(floats.device)
            values[f"reward {number}"] = (floats * expand_right(weights, floats.shape)).sum(outside.ndim - 1)
        return values

    def _compiled_values(self, entries: Sequence[Tensor], outside: Tensor) -> dict[str, Any] | None:
        """Return the same as `_values` from a single loop, or `None` for rewards that the loop does not support."""
        if not all(
            rewards.ndim == _LOOP_NDIM and rewards.dtype in _LOOP_DTYPES and rewards.is_cpu for rewards in entries
        ):
            return None
        from datasets_rl.transforms._sums import discounted_sums  # deferred: it imports numba

        steps, mask = np.empty(len(outside), np.int64), outside.numpy()
        values: dict[str, Any] = {}
        for number, rewards in enumerate(entries):
            numbers = rewards.numpy()
            sums = np.empty((len(numbers), numbers.shape[-1]), numbers.dtype)
            discounted_sums(numbers, _powers_as_numpy(self.gamma, self.n_steps, numbers.dtype), mask, sums, steps)
            values[f"reward {number}"] = torch.from_numpy(sums)
        return {**values, "steps": torch.from_numpy(steps)} if entries else None

    def _powers(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the powers 0 to n of the discount factor, [n + 1]."""
        return discount_powers(self.gamma, self.n_steps, dtype, device)

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        last, first = values["next"], get_entry(batch, NEXT)
        mask = first.get("final_known", None)
        if mask is not None and last.get("final_known", None) is None:
            last.set("final_known", mask)
        for number, name in enumerate(self.reward_keys):
            set_entry(last, prefixed_key("original_", name), first.get(name))
            set_entry(last, name, values[f"reward {number}"])
        terminated = last.get("terminated", None)
        terminated = last.get(self.done_key or "done", None) if terminated is None else terminated
        for name in self.done_keys:
            set_entry(last, name, get_entry(batch, under_next(name)))
        set_entry(batch, NEXT, last)
        steps, usable = values["steps"], values.get("usable")
        nonterminal = torch.ones_like(steps, dtype=torch.bool) if terminated is None else ~terminated
        if usable is not None:
            nonterminal = nonterminal & usable.to(nonterminal.device)
        if nonterminal.shape == (*batch.shape, 1):
            nonterminal = nonterminal.squeeze(-1)
        gammas = self._powers(torch.get_default_dtype(), steps.device)
        set_entry(batch, STEPS_TO_NEXT, steps)
        set_entry(batch, "gamma", gammas.index_select(0, steps.reshape(-1)).view(steps.shape))
        set_entry(batch, "nonterminal", nonterminal)
        return batch

    def update_specs(self, spec: CompositeSpec) -> None:
        """Add the specs of the written entries. Sums of rewards are unbounded."""
        for name in self.reward_keys:
            spec.set(under_next(prefixed_key("original_", name)), spec[under_next(name)])
            spec.set(under_next(name), any_like(float_rewards(spec[under_next(name)].zero())))
        shape = spec.shape
        spec.set(STEPS_TO_NEXT, BoundedTensorSpec(1, self.n_steps, shape, dtype=torch.int64))
        spec.set("gamma", any_like(torch.zeros(shape)))
        spec.set("nonterminal", any_like(torch.zeros(shape, dtype=torch.bool)))


class MultiStep(MultiStepTransform):
    """`MultiStepTransform` with the signature of TorchRL's `MultiStep` for collectors, and the mask of collectors.

    Args:
        gamma: Discount factor.
        n_steps: Maximum number of steps of a window, n, at least 1.
        mask_key: Key of the mask that is False for padding. By default ``("collector", "mask")`` or ``"mask"``.
    """

    def __init__(self, gamma: float, n_steps: int, *, mask_key: NestedKey = ("collector", "mask")) -> None:
        super().__init__(n_steps, gamma, mask_key=mask_key)


@lru_cache(maxsize=64)
def discount_powers(gamma: float, n_steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the powers 0 to n of a discount factor, [n + 1]. Callers do not modify them."""
    return gamma ** torch.arange(n_steps + 1, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _powers_as_numpy(gamma: float, n_steps: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the powers 0 to n of a discount factor, [n + 1], for a compiled loop."""
    return discount_powers(gamma, n_steps, torch.float64, torch.device("cpu")).numpy().astype(dtype)


def _usable_targets(known: Tensor, terminated: Tensor | None) -> Tensor:
    """Return whether a target may use the state after each step, bool [M].

    A terminated episode needs no state after its last step, so that step counts as usable.

    Args:
        known: Whether the state after each step is known, bool [M, ...].
        terminated: Whether the episode terminates at each step, bool [M, ...], or `None` if the data has no such flag.
    """
    usable = known if terminated is None else known | terminated
    return usable.reshape(len(usable), -1).all(-1)


def _shorten_windows(outside: Tensor, usable: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shorten windows that end in an unknown state by one step, if they have an earlier step.

    Args:
        outside: Which steps of each window are after the end of the trajectory, bool [M, n].
        usable: Whether a target may use the state after the last step of each window, bool [M].

    Returns:
        The number of the last step of each window, int64 [M], which steps are outside of the shortened window, bool
        [M, n], and whether a target may use the state after its last step, bool [M, 1].
    """
    usable = usable.to(outside.device)
    steps = (~outside).sum(-1)
    shortened = ~usable & (steps > 1)
    last = steps - 1 - shortened.long()
    numbers = torch.arange(outside.shape[-1], device=outside.device)
    return last, numbers > last.unsqueeze(-1), (usable | shortened).unsqueeze(-1)
