"""The samplers of several buffers, combined into a single sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import ensemble_problems
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.prioritized import PRIORITY_WEIGHT
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

DEFAULT_INFO: dict[Any, Any] = {PRIORITY_WEIGHT: 1, MASK_KEY: True, SLICE_ID: -1}
"""Info of steps if the sampler does not return it: weight 1, not a repetition, and not part of a slice."""


class SamplerEnsemble(Sampler):
    """Draw buffers at random, then the same number of steps from each drawn buffer with the buffer's sampler.

    A batch of B steps consists of n parts of B / n steps. A buffer may be drawn for several parts. An empty buffer is
    drawn after its first write.

    Args:
        samplers: The samplers of the buffers, in buffer order, at least one.
        p: Probabilities of the buffers, not necessarily normalized, uniform by default.
        sample_from_all: Whether every buffer contributes a part. Mutually exclusive with `p`.
        num_buffer_sampled: Number of parts in a batch, n. By default the number of buffers. Ignored if
            `sample_from_all` is True.
        generator: Random generator of the ensemble and of the samplers. By default each sampler keeps its generator.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range.
    """

    needs_several = True

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if not samplers:
            raise InvalidArgumentError("no samplers were given, expected at least 1")
        others = [sampler for sampler in samplers if not hasattr(sampler, "sample")]
        check(
            [f"{other!r} has no method sample, expected samplers" for other in others],
            size_problems(num_buffer_sampled=num_buffer_sampled, optional=True),
        )
        self.samplers = samplers
        self.sample_from_all = sample_from_all
        self.num_buffer_sampled = len(samplers) if sample_from_all or not num_buffer_sampled else num_buffer_sampled
        self.p = p
        self._generator: Generator | None = None
        if generator is not None:
            self.generator = generator

    @property
    def p(self) -> Tensor | None:
        """Probabilities of the buffers, float64, with sum 1, or None for uniform."""
        return self._p

    @p.setter
    def p(self, value: Sequence[float] | Tensor | None) -> None:
        self._p = None if value is None else self._probabilities(value)

    def _probabilities(self, value: Sequence[float] | Tensor) -> Tensor:
        if self.sample_from_all:
            raise InvalidArgumentError(
                "p and sample_from_all are mutually exclusive: sample_from_all uses every buffer once"
            )
        try:
            p = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"p is {value!r}, expected a number per sampler") from error
        if p.shape != (len(self.samplers),):
            raise InvalidArgumentError(
                f"p has shape {list(p.shape)}, expected [{len(self.samplers)}], a number per sampler"
            )
        if not (p.isfinite().all() and (p >= 0).all() and p.sum() > 0):
            raise InvalidArgumentError(f"p is {p.tolist()}, expected finite numbers >= 0, at least one above 0")
        # The sum of the greatest numbers is infinite.
        p = p if p.sum().isfinite() else p / p.max()
        return p / p.sum()

    @property
    def generator(self) -> Generator | None:
        """Random generator of the ensemble. Setting this generator also sets the generators of the samplers."""
        return self._generator

    @generator.setter
    def generator(self, generator: Generator | None) -> None:
        self._generator = generator
        for sampler in self.samplers:
            sampler.generator = generator

    def attach(self, storage: Storage) -> None:
        """Prepare to sample from a `StorageEnsemble`. Each sampler is attached to a storage.

        Raises:
            InvalidArgumentError: If the numbers of storages and samplers differ, or a sampler cannot sample from its
                storage.
        """
        for sampler, member in zip(self.samplers, self._members(storage), strict=True):
            sampler.attach(member)

    def _members(self, storage: Storage) -> Sequence[Storage]:
        storages: Sequence[Storage] = getattr(storage, "storages", ())
        if len(storages) != len(self.samplers):
            raise InvalidArgumentError(
                f"the ensemble has {len(self.samplers)} samplers for {len(storages) or 'no'} storages, expected equal numbers"
            )
        return storages

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Sample the parts of a batch.

        Args:
            storage: A `StorageEnsemble` with a storage per sampler.
            batch_size: Number of steps, B.

        Returns:
            A TensorDict [n] with, for each part, the number of the buffer, ``"buffer_ids"`` int64 [n], and the rows,
            ``"index"`` int64 [n, B / n], and ``"buffer_ids"`` with the info of the samplers, [n, B / n, ...]. If the
            sampler of a part returns no weights, slices or mask, the weights are 1, ``"slice_id"`` is -1 and the mask
            is True. Any other info that only some samplers return is a list, with None for the other parts. Slice
            numbers are made unique over all buffers.

        Raises:
            InvalidArgumentError: If n does not divide the batch size, no buffer has steps, or a drawn buffer has no
                steps to sample.
        """
        storages = self._members(storage)
        count = self.num_buffer_sampled
        if batch_size % count:
            raise InvalidArgumentError(
                f"batch_size is {batch_size}, expected a multiple of num_buffer_sampled, {count}"
            )
        numbers = self._draw(count, [len(member) > 0 for member in storages])
        self.ran_out = False
        parts = [
            self._sample_part(self.samplers[number], storages[number], batch_size // count)
            for number in numbers.tolist()
        ]
        index = {"index": torch.stack([rows for rows, _ in parts]), "buffer_ids": numbers}
        infos = [info for _, info in parts]
        for number, info in zip(numbers.tolist(), infos, strict=True):
            if SLICE_ID in info:
                info[SLICE_ID] = info[SLICE_ID] * len(self.samplers) + number
        merged = merge_info(infos, [batch_size // count] * count, torch.stack)
        return TensorDict(index, [count]), {**merged, "buffer_ids": numbers}

    def _draw(self, count: int, filled: Sequence[bool]) -> Tensor:
        if self.sample_from_all:
            return torch.arange(count)
        if not all(filled):
            p = torch.tensor(filled, dtype=torch.float64)
            if self._p is not None:
                p *= self._p
            if not p.sum():
                raise InvalidArgumentError("every buffer that may be drawn is empty", hint="extend a buffer first")
            return torch.multinomial(p, count, replacement=True, generator=self._generator)
        if self._p is None:
            return torch.randint(len(self.samplers), (count,), generator=self._generator)
        return torch.multinomial(self._p, count, replacement=True, generator=self._generator)

    def _sample_part(self, sampler: Sampler, storage: Storage, size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Sample `size` steps of a single buffer.

        If an epoch ends within the part, the next epoch provides the rest.
        """
        rows, info = sampler.sample(storage, size)
        self.ran_out |= sampler.ran_out
        while len(rows) < size:
            if not sampler.ran_out:
                raise InvalidArgumentError(
                    f"{sampler!r} returned {len(rows)} of {size} steps, and all parts of a batch need the same number of steps",
                    hint="pad short trajectories (pad_output=True), or leave such trajectories out (strict_length=True)",
                )
            next_rows, next_info = sampler.sample(storage, size - len(rows))
            self.ran_out |= sampler.ran_out
            rows, info = torch.cat([rows, next_rows]), {key: torch.cat([info[key], next_info[key]]) for key in info}
        return rows, info

    @property
    @override
    def draws_from_global(self) -> bool:
        own = self._generator is None and not self.sample_from_all
        return own or any(getattr(sampler, "draws_from_global", False) for sampler in self.samplers)

    @override
    def empty(self) -> None:
        for sampler in self.samplers:
            sampler.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return the probabilities of the buffers and the states of the samplers.

        A generator that the samplers share is saved once, with the ensemble.
        """
        states = [sampler.state_dict() for sampler in self.samplers]
        for sampler, state in zip(self.samplers, states, strict=True):
            if sampler.generator is self._generator:
                state.pop("generator", None)
        return {**super().state_dict(), "p": self._p, "samplers": states}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        p = state_dict.get("p")
        try:
            if p is not None:
                self._probabilities(p)
        except (InvalidArgumentError, TypeError, ValueError, RuntimeError) as error:
            reasons.append(f"p: {error}")
        return reasons + ensemble_problems("sampler", self.samplers, state_dict.get("samplers"))

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        p = state_dict.get("p")
        # The sum is 1 already: normalizing again would round the values again.
        self._p = None if p is None else torch.as_tensor(p, dtype=torch.float64).clone()
        for sampler, state in zip(self.samplers, state_dict["samplers"], strict=True):
            if "generator" in state and sampler.generator is self._generator:
                sampler.generator = None  # the saved sampler had a separate generator, and restores that generator
            sampler.load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return a sampler for an integer, or an ensemble of several for a slice."""
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


def merge_info(
    infos: Sequence[dict[Any, Any]], sizes: Sequence[int], merge: Callable[[list[Tensor]], Tensor]
) -> dict[Any, Any]:
    """Return the info of the parts of a batch, merged by key, with a list for a key that some parts lack.

    Args:
        infos: The info of each part.
        sizes: The number of steps of each part.
        merge: Merges tensors, such as `torch.cat`.
    """
    merged: dict[Any, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        values: list[Any] = [info.get(key) for info in infos]
        if key in DEFAULT_INFO:
            like = next(value for value in values if value is not None)
            values = [
                like.new_full((size, *like.shape[1:]), DEFAULT_INFO[key]) if value is None else value
                for value, size in zip(values, sizes, strict=True)
            ]
        merged[key] = values if any(value is None for value in values) else merge(values)
    return merged
