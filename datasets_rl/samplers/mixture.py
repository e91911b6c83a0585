"""The samplers of a mixture: how many steps of a batch each buffer gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.ensemble import UNSAID, SamplerEnsemble
from datasets_rl.samplers.slices import SLICE_ID

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["MixtureSampler"]


class MixtureSampler(SamplerEnsemble):
    """Draw from every buffer as many steps as its share of the batch, by its own sampler; batches are flat, [B].

    With shares p and n = B / unit slots, buffer i gets floor(p_i n) slots of every batch, and some buffers one more:
    those that have fallen furthest behind. What they are behind by is carried on:

        p = 0.7, 0.3, B = 4     batch   0     1     2     3     4
        wanted of buffer 0              2.8   2.8   2.8   2.8   2.8
        given                           3     3     2     3     3
        behind by                      -0.2  -0.4   0.4   0.2   0.0

    So a batch is off by less than one slot, and many batches together by no more than a few.

    Args:
        samplers: Those of the buffers, in their order; at least one.
        p: The shares of the buffers, in any scale; all the same by default.
        exact: False draws the buffer of each slot by chance.
        final_p: Shares that those of the batches move to, in a straight line from `p`.
        anneal: Batches until they are there.
        unit: Steps of a slot: what the samplers give in one piece, as the length of slices.
        generator: Where the randomness comes from, also that of the samplers; by default each one's own.

    Raises:
        InvalidArgumentError: If arguments exclude each other or are outside their range.
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
        problems = []
        if unit < 1:
            problems.append(f"unit is {unit}; expected at least 1")
        if (final_p is None) != (anneal == 0) or anneal < 0:
            problems.append(f"anneal is {anneal} and final_p is {final_p}; expected both, or neither")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self.exact = exact
        self.anneal = anneal
        self.unit = unit
        self.final_p = None if final_p is None else self._chances(final_p)
        self._batches = 0
        self._behind = torch.zeros(len(samplers), dtype=torch.float64)

    @property
    def shares(self) -> Tensor:
        """The shares of the next batch, float64, together 1."""
        start = torch.ones(len(self), dtype=torch.float64) / len(self) if self.p is None else self.p
        if self.final_p is None:
            return start
        return torch.lerp(start, self.final_p, min(self._batches / self.anneal, 1.0))

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw a batch, the steps of the first buffer first.

        Args:
            storage: A `StorageEnsemble` of as many storages as there are samplers.
            batch_size: Steps wanted, B.

        Returns:
            A TensorDict [B] that says of every step which buffer it is from, ``"buffer_ids"`` int64 [B], and which of
            its rows it is, ``"index"`` int64 [B]; and what the samplers say, see `SamplerEnsemble`. What only some say
            comes as a list, by buffer that gives steps.

        Raises:
            InvalidArgumentError: If the batch size is no multiple of the unit, or a buffer has nothing to sample.
        """
        storages = self._members(storage)
        if batch_size % self.unit:
            raise InvalidArgumentError(
                f"batch_size is {batch_size}; expected a multiple of {self.unit}, which come in one piece"
            )
        counts = self._slots(batch_size // self.unit) * self.unit
        self._batches += 1
        self.ran_out = False
        numbers = counts.nonzero()[0].tolist()
        parts = [self._part(self.samplers[number], storages[number], int(counts[number])) for number in numbers]
        for number, (_, info) in zip(numbers, parts, strict=True):
            if SLICE_ID in info:
                info[SLICE_ID] = info[SLICE_ID] * len(self) + number
        rows = [rows for rows, _ in parts]
        # Torch would start threads for it, whatever its size.
        ids = torch.from_numpy(np.repeat(np.arange(len(self)), counts))
        infos = [info for _, info in parts]
        said = {key: _joined(key, infos, rows) for key in dict.fromkeys(key for info in infos for key in info)}
        return TensorDict({"index": torch.cat(rows), "buffer_ids": ids}, [batch_size]), said

    def _slots(self, slots: int) -> NDArray[np.int64]:
        """Return how many slots each buffer gets."""
        shares = self.shares
        if not self.exact:
            drawn = torch.multinomial(shares, slots, replacement=True, generator=self.generator)
            return np.bincount(drawn.numpy(), minlength=len(self))
        wanted = shares.numpy() * slots
        given = np.floor(wanted)
        stop = self._behind.numpy() + wanted - given
        # One that gets a whole number of slots gets none on top: it would be off by one.
        order = np.argsort(np.where(wanted == given, np.inf, -stop), kind="stable")
        more = order[: slots - int(given.sum())]
        given[more] += 1
        stop[more] -= 1
        self._behind = torch.from_numpy(stop)
        slots_of_each: NDArray[np.int64] = given.astype(np.int64)
        return slots_of_each

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the ensemble, how many batches there were, and how far each buffer is behind."""
        return {**super().state_dict(), "batches": self._batches, "behind": self._behind}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over, all reasons at once."""
        reasons = super().misfits(state_dict)
        batches, stop = state_dict.get("batches"), state_dict.get("behind")
        if not isinstance(batches, int) or batches < 0:
            reasons.append(f"batches is {batches!r}; expected a number from 0")
        if not isinstance(stop, Tensor) or stop.shape != self._behind.shape or not stop.isfinite().all():
            reasons.append(f"behind is no number for each of {len(self)} buffers")
        return reasons

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, and go on with the batch that would have come next."""
        super().load_state_dict(state_dict)
        self._batches = state_dict["batches"]
        self._behind = state_dict["behind"].double().clone()

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sampler by its number, a mixture of some by a slice; that one begins anew."""
        if not isinstance(index, slice):
            return self.samplers[index]
        p, final_p = (None if one is None else one[index] for one in (self.p, self.final_p))
        return MixtureSampler(
            *self.samplers[index], p=p, exact=self.exact, final_p=final_p, anneal=self.anneal, unit=self.unit
        )

    def __repr__(self) -> str:
        return f"MixtureSampler({', '.join(map(repr, self.samplers))})"


def _joined(key: Any, infos: list[dict[Any, Any]], rows: list[Tensor]) -> Tensor | list[Tensor | None]:
    """Return what the parts say under a key, one behind the other, or as a list if some say nothing."""
    said: list[Tensor | None] = [info.get(key) for info in infos]
    there = [value for value in said if value is not None]
    if len(there) == len(said):
        return torch.cat(there)
    if key not in UNSAID:
        return said
    like = there[0]
    return torch.cat(
        [
            like.new_full((len(some), *like.shape[1:]), UNSAID[key]) if value is None else value
            for value, some in zip(said, rows, strict=True)
        ]
    )
