"""Targets several steps ahead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, NEXT_TERMINATED
from datasets_rl.transforms._time import OverTime, TimeAxis, windows
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    any_like,
    expand_right,
    listed,
    need,
    reader,
    taken,
    under_next,
)

__all__ = ["MultiStep", "MultiStepTransform"]


class MultiStepTransform(OverTime):
    """Look n steps ahead: the discounted sum of their rewards, and what comes after the last of them.

        step               0              1                2          episode of 3 steps, n = 2
        next.reward        r0 + g r1      r1 + g r2        r2
        next.observation   o2             f                f          f: the final observation
        steps_to_next_obs  2              2                1
        gamma              g^2            g^2              g

    Near the end of an episode there are fewer steps; the target holds there, because `gamma` says what power of the
    discount factor belongs to the next observation. At truncation that is the true final one. Nothing ever reaches
    into another episode, or from the newest step of a full ring to the oldest one.

    Batches with ``("next", "final_known")`` come from a dataset that lacks some final observations. A target never uses
    such an observation: where a truncated episode ends with one, the windows that reach it end one step earlier, at the
    last observation that is known. Only the last transition of the episode has no earlier state to end at; its
    `nonterminal` is False and its ``("next", "final_known")`` too, which is the mask to leave it out by. A terminated
    episode needs no final observation, so its windows stay as they are.

        step               0              1              2          f unknown, truncated, n = 2
        next.reward        r0 + g r1      r1             r2
        next.observation   o2             o2             zeros
        nonterminal        True           True           False
        next.final_known   True           True           False

    All entries under "next" are those of the last of the steps, the flags that end an episode too. TorchRL leaves the
    flags of the first step, and so bootstraps from a terminal state that lies within reach; it also transforms what is
    written, and so loses the last steps of every `extend`. Here the single steps are stored.

    Written further: ``("next", "original_reward")``; and at the root, in the shape of the batch as in TorchRL,
    ``"steps_to_next_obs"``, int64 [...]; ``"gamma"``, float [...]; and ``"nonterminal"``, bool [...]: whether the value of
    the next observation counts, that is, whether the last step is not terminated and the observation after it is known.

        target = next.reward + (gamma * nonterminal).unsqueeze(-1) * V(next.observation)

    Args:
        n_steps: Steps that are looked ahead, at least 1; may be changed at any time.
        gamma: The discount factor.
        reward_keys: The rewards, under "next"; ``["reward"]`` by default.
        done_key: The flag under "next" that ends an episode; "done" by default.
        mask_key: Of batches that do not come from a storage: the entry that is False where there is only padding.
    """

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Keys | None = None,
        done_key: NestedKey | None = None,
        mask_key: NestedKey = "mask",
    ) -> None:
        super().__init__(done_key=done_key)
        self.n_steps, self.gamma, self.mask_key = n_steps, gamma, mask_key
        self.reward_keys = ["reward"] if reward_keys is None else listed(reward_keys)

    @property
    def n_steps(self) -> int:
        """Steps that are looked ahead."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, n_steps: int) -> None:
        if n_steps < 1:
            raise InvalidArgumentError(f"n_steps is {n_steps!r}; expected a whole number from 1")
        self._n_steps = n_steps

    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the discounted rewards, how many they are, and what is under "next" at the last step."""
        there, outside = self.around(storage, rows, 0, self.n_steps - 1)
        ends = there[:, -1].contiguous()
        following, usable = storage.take(ends).get(NEXT), None
        if data.get(NEXT_FINAL_KNOWN, None) is not None:
            final = following
            if not {"final_known", "terminated"} <= set(following.keys()):
                # An earlier transform leaves them out.
                final = getattr(storage, "origin", storage).take(ends).get(NEXT)
            # A member of a mixture may have the mask for the sake of the others; its storage knows all states.
            known = final.get("final_known", None)
            usable = None if known is None else _usable(known, final.get("terminated", None))
        last, outside, usable = _shortened(there, outside, usable)
        if not torch.equal(last, ends):
            following = storage.take(last).get(NEXT)
        entry = reader(storage, there.reshape(-1))

        def ahead(key: NestedKey) -> Tensor:
            rewards: Tensor = need(entry(key), key, data)
            return rewards.reshape(*there.shape, *rewards.shape[1:])

        return self._found(ahead, outside, following, usable)

    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same along the axis of time."""
        axis = TimeAxis.of(batch)
        ends = self.ends(batch, axis)
        mask = batch.get(self.mask_key, None)
        if mask is not None:
            real = axis.flat(mask).reshape(len(ends), -1).any(-1)
            ends = ends | (real != real.roll(-1))
        there, outside = windows(ends, 0, self.n_steps - 1)

        known, terminated = (batch.get(key, None) for key in (NEXT_FINAL_KNOWN, NEXT_TERMINATED))
        usable = None
        if known is not None:
            steps = _usable(axis.flat(known), None if terminated is None else axis.flat(terminated))
            usable = steps[there[:, -1].to(steps.device)]
        ending, outside, usable = _shortened(there, outside, usable)

        def ahead(key: NestedKey) -> Tensor:
            return axis.at(taken(batch, key), there)

        last = taken(batch, NEXT).apply(lambda leaf: axis.at(leaf, ending))
        return self._found(ahead, axis.back(outside), last, None if usable is None else axis.back(usable))

    def _found(self, ahead: Any, outside: Tensor, last: Any, usable: Tensor | None) -> dict[str, Any]:
        found = {"steps": (~outside).sum(-1, keepdim=True), "next": last}
        if usable is not None:
            found["usable"] = usable
        for place, name in enumerate(self.reward_keys):
            rewards = ahead(under_next(name))
            dtype = rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()
            powers = self.gamma ** torch.arange(self.n_steps, dtype=dtype, device=rewards.device)
            weights = powers.expand(outside.shape).masked_fill(outside.to(rewards.device), 0)
            found[f"reward {place}"] = (rewards * expand_right(weights, rewards.shape)).sum(outside.ndim - 1)
        return found

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write the targets."""
        last = found["next"].copy()
        mask = batch.get(NEXT_FINAL_KNOWN, None)
        if mask is not None and last.get("final_known", None) is None:
            last.set("final_known", mask)
        for place, name in enumerate(self.reward_keys):
            last.set(_original(name), taken(batch, under_next(name)))
            last.set(name, found[f"reward {place}"])
        batch.set(NEXT, last)
        steps = found["steps"]
        batch.set("steps_to_next_obs", steps)
        batch.set("gamma", self.gamma ** steps.to(torch.get_default_dtype()))
        stopped = last.get("terminated", None)
        stopped = last.get(self.done_key or "done", None) if stopped is None else stopped
        counts = torch.ones_like(steps, dtype=torch.bool) if stopped is None else ~stopped
        usable = found.get("usable")
        batch.set("nonterminal", counts if usable is None else counts & usable.to(counts.device))
        for name in ("steps_to_next_obs", "gamma", "nonterminal"):
            value = batch.get(name)
            if value.shape == (*batch.shape, 1):
                batch.set(name, value.squeeze(-1))
        return batch

    def respec(self, spec: CompositeSpec) -> None:
        """Add the specs of what is written; a sum of rewards may be any number."""
        for name in self.reward_keys:
            spec.set(under_next(_original(name)), spec[under_next(name)])
            rewards = spec[under_next(name)].zero()
            dtype = rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()
            spec.set(under_next(name), any_like(rewards.to(dtype)))
        one = spec.shape
        spec.set("steps_to_next_obs", BoundedTensorSpec(1, self.n_steps, one, dtype=torch.int64))
        spec.set("gamma", any_like(torch.zeros(one)))
        spec.set("nonterminal", any_like(torch.zeros(one, dtype=torch.bool)))

    def _facts(self) -> dict[str, Any]:
        return {"n_steps": self.n_steps, "gamma": self.gamma}


class MultiStep(MultiStepTransform):
    """`MultiStepTransform`, by the order of arguments that TorchRL's collectors take; the mask is that of collectors too.

    Args:
        gamma: The discount factor.
        n_steps: Steps that are looked ahead.
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__(n_steps, gamma, mask_key=("collector", "mask"))


def _usable(known: Tensor, terminated: Tensor | None) -> Tensor:
    """Return whether a target may look at the state after each step, bool [M].

    A terminated episode needs no state after its last step, so that step counts as usable.

    Args:
        known: Whether that state is known, bool [M, ...].
        terminated: Whether the episode is terminated there, bool [M, ...]; None if the data does not say.
    """
    usable = known if terminated is None else known | terminated
    return usable.reshape(len(usable), -1).all(-1)


def _shortened(there: Tensor, outside: Tensor, usable: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Let windows that end in an unknown state end one step earlier, where they have an earlier step.

    Args:
        there: The steps of each window, int64 [M, n]; the last one repeats past the end of the trajectory.
        outside: Which of them are such repetitions, bool [M, n].
        usable: Whether the state after the last step of each window may be used, bool [M]; None if all may.

    Returns:
        The last step of each window, int64 [M]; which steps are outside now; and what is usable now, bool [M, 1].
    """
    if usable is None:
        return there[:, -1].contiguous(), outside, None
    usable = usable.to(there.device)
    steps = (~outside).sum(-1)
    cut = ~usable & (steps > 1)
    last = (steps - 1 - cut.long()).unsqueeze(-1)
    numbers = torch.arange(there.shape[-1], device=there.device)
    return there.gather(-1, last).squeeze(-1), numbers > last, (usable | cut).unsqueeze(-1)


def _original(name: NestedKey) -> NestedKey:
    return f"original_{name}" if isinstance(name, str) else (*name[:-1], f"original_{name[-1]}")
