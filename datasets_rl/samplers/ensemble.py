"""The samplers of several buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Generator, Tensor

from datasets_rl.checkpoint import part_misfits
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.prioritized import PRIORITY_WEIGHT
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["UNSAID", "SamplerEnsemble"]

UNSAID: dict[Any, Any] = {PRIORITY_WEIGHT: 1, MASK_KEY: True, SLICE_ID: -1}
"""What holds of steps whose sampler does not say it: they came as often as others, are none twice, and in no slice."""


class SamplerEnsemble(Sampler):
    """Draw buffers, then as many steps from each of them, by its own sampler.

    A batch of B steps has n parts of B / n steps; a buffer may be drawn for several of them.

    Args:
        samplers: Those of the buffers, in their order; at least one.
        p: The chances of the buffers, in any scale; all the same by default.
        sample_from_all: Whether every buffer gives one part; excludes `p`.
        num_buffer_sampled: Parts of a batch, n; by default as many as there are buffers. Without effect if
            `sample_from_all`.
        generator: Where the randomness comes from, also that of the samplers; by default each one's own.

    Raises:
        InvalidArgumentError: If arguments exclude each other or are outside their range.
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if not samplers:
            raise InvalidArgumentError("there is no sampler; expected at least one")
        problems = [
            f"{one!r} has no method sample; expected samplers" for one in samplers if not hasattr(one, "sample")
        ]
        parts: Any = num_buffer_sampled
        if parts is not None and (not isinstance(parts, int) or parts < 1):
            problems.append(f"num_buffer_sampled is {num_buffer_sampled!r}; expected at least 1")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self.samplers = samplers
        self.sample_from_all = sample_from_all
        self.num_buffer_sampled = len(samplers) if sample_from_all or not num_buffer_sampled else num_buffer_sampled
        self.p = p
        self._generator: Generator | None = None
        if generator is not None:
            self.generator = generator

    @property
    def p(self) -> Tensor | None:
        """The chances of the buffers, float64, together 1; None where they are all the same."""
        return self._p

    @p.setter
    def p(self, value: Sequence[float] | Tensor | None) -> None:
        self._p = None if value is None else self._chances(value)

    def _chances(self, value: Sequence[float] | Tensor) -> Tensor:
        if self.sample_from_all:
            raise InvalidArgumentError(
                "p was given, and sample_from_all takes every buffer once: they exclude each other"
            )
        try:
            p = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"p is {value!r}; expected a number for each sampler") from error
        if p.shape != (len(self.samplers),):
            raise InvalidArgumentError(
                f"p has shape {list(p.shape)}; expected [{len(self.samplers)}], one for each sampler"
            )
        if not (p.isfinite().all() and (p >= 0).all() and p.sum() > 0):
            raise InvalidArgumentError(f"p is {p.tolist()}; expected finite numbers from 0, not all of them 0")
        return p / p.sum()

    @property
    def generator(self) -> Generator | None:
        """Where the randomness of the ensemble comes from; setting it sets those of the samplers."""
        return self._generator

    @generator.setter
    def generator(self, generator: Generator | None) -> None:
        self._generator = generator
        for sampler in self.samplers:
            sampler.generator = generator

    def attach(self, storage: Storage) -> None:
        """Be told from which `StorageEnsemble` it will sample; each sampler is told of its storage.

        Raises:
            InvalidArgumentError: If there are not as many storages as samplers, or a sampler cannot sample from its own.
        """
        for sampler, one in zip(self.samplers, self._members(storage), strict=True):
            sampler.attach(one)

    def _members(self, storage: Storage) -> Sequence[Storage]:
        storages: Sequence[Storage] = getattr(storage, "storages", ())
        if len(storages) != len(self.samplers):
            raise InvalidArgumentError(
                f"{len(self.samplers)} samplers were to draw from {len(storages) or 'no'} storages; expected as many"
            )
        return storages

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw the parts of a batch.

        Args:
            storage: A `StorageEnsemble` of as many storages as there are samplers.
            batch_size: Steps wanted, B.

        Returns:
            A TensorDict [n] that says of every part which buffer it is from, ``"buffer_ids"`` int64 [n], and which
            rows, ``"index"`` int64 [n, B / n]; and ``"buffer_ids"`` with all else that the samplers say, [n, B / n,
            ...]. If a part's sampler says nothing of weights, slices or repetitions, its weights are 1, its
            ``"slice_id"`` -1 and its mask True. Anything else that only some say, as marks in the data, comes as a list
            with None where it is not said. The numbers of slices are made unique over all buffers.

        Raises:
            InvalidArgumentError: If n does not divide the batch size, or a buffer that was drawn has nothing to sample.
        """
        storages = self._members(storage)
        count = self.num_buffer_sampled
        if batch_size % count:
            raise InvalidArgumentError(
                f"batch_size is {batch_size}; expected a multiple of num_buffer_sampled, {count}"
            )
        numbers = self._draw(count)
        self.ran_out = False
        parts = [
            self._part(self.samplers[number], storages[number], batch_size // count) for number in numbers.tolist()
        ]
        index = {"index": torch.stack([rows for rows, _ in parts]), "buffer_ids": numbers}
        infos = [info for _, info in parts]
        for number, info in zip(numbers.tolist(), infos, strict=True):
            if SLICE_ID in info:
                info[SLICE_ID] = info[SLICE_ID] * len(self.samplers) + number
        keys = dict.fromkeys(key for info in infos for key in info)
        return TensorDict(index, [count]), {**{key: _together(key, infos) for key in keys}, "buffer_ids": numbers}

    def _draw(self, count: int) -> Tensor:
        if self.sample_from_all:
            return torch.arange(count)
        if self._p is None:
            return torch.randint(len(self.samplers), (count,), generator=self._generator)
        return torch.multinomial(self._p, count, replacement=True, generator=self._generator)

    def _part(self, sampler: Sampler, storage: Storage, size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Draw `size` steps; where an epoch ends before, the next one gives the rest."""
        rows, info = sampler.sample(storage, size)
        self.ran_out |= sampler.ran_out
        while len(rows) < size:
            if not sampler.ran_out:
                raise InvalidArgumentError(
                    f"{sampler!r} gave {len(rows)} steps of {size}; the parts of a batch are stacked, so all have the same",
                    hint="fill short trajectories up (pad_output=True), or leave them out (strict_length=True)",
                )
            more, said = sampler.sample(storage, size - len(rows))
            self.ran_out |= sampler.ran_out
            rows, info = torch.cat([rows, more]), {key: torch.cat([info[key], said[key]]) for key in info}
        return rows, info

    def empty(self) -> None:
        """Be told that the storages were emptied."""
        for sampler in self.samplers:
            sampler.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return the chances of the buffers and the states of the samplers.

        A generator that they share is in that of the ensemble alone.
        """
        states = [sampler.state_dict() for sampler in self.samplers]
        for sampler, state in zip(self.samplers, states, strict=True):
            if sampler.generator is self._generator:
                state.pop("generator", None)
        return {**super().state_dict(), "p": self._p, "samplers": states}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over: chances that are none, any of the samplers' reasons, or too few."""
        reasons = super().misfits(state_dict)
        p = state_dict.get("p")
        try:
            if p is not None:
                self._chances(p)
        except (InvalidArgumentError, TypeError, ValueError, RuntimeError) as error:
            reasons.append(f"p: {error}")
        return reasons + part_misfits("sampler", self.samplers, state_dict.get("samplers"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the chances of the buffers and the states of the samplers."""
        super().load_state_dict(state_dict)
        p = state_dict.get("p")
        # Their sum is 1 already: to scale them again would round them again.
        self._p = None if p is None else torch.as_tensor(p, dtype=torch.float64).clone()
        for sampler, state in zip(self.samplers, state_dict["samplers"], strict=True):
            if "generator" in state and sampler.generator is self._generator:
                sampler.generator = None  # it had one of its own, and makes one
            sampler.load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sampler by its number, an ensemble of some by a slice."""
        if not isinstance(index, slice):
            return self.samplers[index]
        return SamplerEnsemble(
            *self.samplers[index],
            p=None if self._p is None else self._p[index],
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=None if self.num_buffer_sampled == len(self) else self.num_buffer_sampled,
        )

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self.samplers)

    def __repr__(self) -> str:
        return f"SamplerEnsemble({', '.join(map(repr, self.samplers))})"


def _together(key: Any, infos: list[dict[Any, Any]]) -> Tensor | list[Tensor | None]:
    """Return what the parts say under a key, stacked, or as a list if some say nothing."""
    said: list[Tensor | None] = [info.get(key) for info in infos]
    there = [value for value in said if value is not None]
    if len(there) == len(said):
        return torch.stack(there)
    if key not in UNSAID:
        return said
    return torch.stack([torch.full_like(there[0], UNSAID[key]) if value is None else value for value in said])
