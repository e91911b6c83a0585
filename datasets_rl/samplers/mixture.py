"""The samplers of a mixture, with the number of steps that each buffer contributes to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check, size_problems, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.ensemble import SamplerEnsemble, merge_info
from datasets_rl.samplers.slices import SLICE_ID

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


class MixtureSampler(SamplerEnsemble):
    """Sample from every buffer in proportion to the buffer's share, with the buffer's sampler. Batches are flat, [B].

    With shares p and n = B / unit slots, buffer i gets floor(p_i n) slots of every batch. The remaining slots go to the
    buffers with the largest deficit (expected slots minus given slots), and the deficits carry over to the next batch:

        p = 0.7, 0.3, B = 4         batch   0     1     2     3     4
        expected for buffer 0               2.8   2.8   2.8   2.8   2.8
        given                               3     3     2     3     3
        deficit                            -0.2  -0.4   0.4   0.2   0.0

    The error of a single batch is therefore below 1 slot, and the error of many batches together is at most a few
    slots.

    Args:
        samplers: The samplers of the buffers, in buffer order, at least one.
        p: Shares of the buffers, not necessarily normalized, equal by default.
        exact: If False, the buffer of each slot is drawn at random.
        final_p: Final shares, to which the shares change linearly from `p`.
        anneal: Number of batches until the final shares are reached.
        unit: Number of steps in a slot: the steps that the samplers return together, such as the length of slices.
        generator: Random generator of the ensemble and of the samplers. By default each sampler keeps its generator.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range.
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        exact: bool = True,
        final_p: Sequence[float] | Tensor | None = None,
        anneal: int = 0,
        unit: int = 1,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(*samplers, p=[1.0] * len(samplers) if p is None else p, generator=generator)
        check(size_problems(unit=unit))
        check(
            unless(
                not any(unit % (getattr(one, "num_slices", None) or 1) for one in samplers),
                f"a sampler has num_slices, and unit is {unit}, expected a multiple of num_slices, or samplers with "
                "slice_len: the number of steps of a buffer changes from batch to batch",
            ),
            unless(
                (final_p is None) == (anneal == 0) and anneal >= 0,
                f"anneal is {anneal} and final_p is {final_p}, expected both, with anneal >= 1, or neither",
            ),
        )
        self.exact = exact
        self.anneal = anneal
        self.unit = unit
        self.final_p = None if final_p is None else self._probabilities(final_p)
        self._batches = 0
        self._deficits = torch.zeros(len(samplers), dtype=torch.float64)

    @property
    @override
    def draws_from_global(self) -> bool:
        own = self._generator is None and not self.exact
        return own or any(getattr(sampler, "draws_from_global", False) for sampler in self.samplers)

    @property
    def shares(self) -> Tensor:
        """Shares of the next batch, float64, with sum 1."""
        start = torch.ones(len(self), dtype=torch.float64) / len(self) if self.p is None else self.p
        if self.final_p is None:
            return start
        return torch.lerp(start, self.final_p, min(self._batches / self.anneal, 1.0))

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Sample a batch with the steps in buffer order.

        Args:
            storage: A `StorageEnsemble` with a storage per sampler.
            batch_size: Number of steps, B.

        Returns:
            A TensorDict [B] with, for each step, the number of the buffer, ``"buffer_ids"`` int64 [B], and the row in
            that buffer, ``"index"`` int64 [B], and the info of the samplers, see `SamplerEnsemble`. Info that only some
            samplers return is a list with an item per buffer that contributes steps.

        Raises:
            InvalidArgumentError: If the batch size is not a multiple of the unit, or a buffer has no steps to sample.
        """
        storages = self._members(storage)
        if batch_size % self.unit:
            raise InvalidArgumentError(
                f"batch_size is {batch_size}, expected a multiple of {self.unit}, the number of steps in a slot"
            )
        counts = self._slots_by_buffer(batch_size // self.unit) * self.unit
        self._batches += 1
        self.ran_out = False
        numbers = counts.nonzero()[0].tolist()
        parts = [self._sample_part(self.samplers[number], storages[number], int(counts[number])) for number in numbers]
        for number, (_, info) in zip(numbers, parts, strict=True):
            if SLICE_ID in info:
                info[SLICE_ID] = info[SLICE_ID] * len(self) + number
        rows = [rows for rows, _ in parts]
        # numpy: torch would start threads for this, whatever its size.
        ids = torch.from_numpy(np.repeat(np.arange(len(self)), counts))
        infos = [info for _, info in parts]
        merged = merge_info(infos, [len(part) for part in rows], torch.cat)
        return TensorDict({"index": torch.cat(rows), "buffer_ids": ids}, [batch_size]), merged

    def _slots_by_buffer(self, slots: int) -> NDArray[np.int64]:
        """Return the number of slots that each buffer gets."""
        shares = self.shares
        if not self.exact:
            drawn = torch.multinomial(shares, slots, replacement=True, generator=self.generator)
            return np.bincount(drawn.numpy(), minlength=len(self))
        expected = shares.numpy() * slots
        given = np.floor(expected)
        deficits = self._deficits.numpy() + expected - given
        # A buffer with an integer as expected number gets no extra slot: its error would be 1 slot.
        order = np.argsort(np.where(expected == given, np.inf, -deficits), kind="stable")
        extra = order[: slots - int(given.sum())]
        given[extra] += 1
        deficits[extra] -= 1
        self._deficits = torch.from_numpy(deficits)
        counts: NDArray[np.int64] = given.astype(np.int64)
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the ensemble, the number of batches sampled, and the deficit of each buffer."""
        return {**super().state_dict(), "batches": self._batches, "behind": self._deficits}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        batches, deficits = state_dict.get("batches"), state_dict.get("behind")
        if not isinstance(batches, int) or batches < 0:
            reasons.append(f"batches is {batches!r}, expected an integer >= 0")
        if not isinstance(deficits, Tensor) or deficits.shape != self._deficits.shape or not deficits.isfinite().all():
            reasons.append(
                f"the deficits are not a tensor [{len(self)}] of finite numbers, expected a number per buffer"
            )
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._batches = state_dict["batches"]
        self._deficits = state_dict["behind"].double().clone()

    def __getitem__(self, index: int | slice) -> Any:
        """Return a sampler for an integer, or a mixture of several for a slice, with the initial state."""
        if not isinstance(index, slice):
            return self.samplers[index]
        p, final_p = (None if shares is None else shares[index] for shares in (self.p, self.final_p))
        return MixtureSampler(
            *self.samplers[index], p=p, exact=self.exact, final_p=final_p, anneal=self.anneal, unit=self.unit
        )

    def __repr__(self) -> str:
        return f"MixtureSampler({', '.join(map(repr, self.samplers))})"
