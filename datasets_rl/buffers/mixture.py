"""Several replay buffers mixed in one flat batch, in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from datasets_rl.buffers.arguments import transformed
from datasets_rl.buffers.batch import pinned
from datasets_rl.buffers.ensemble import ReplayBufferEnsemble, at
from datasets_rl.buffers.keys import KeyOfMembers, Missing
from datasets_rl.buffers.replay import Drawn, ReplayBuffer
from datasets_rl.samplers.mixture import MixtureSampler

__all__ = ["Mixture"]

_INDEX = "index"


class Mixture(ReplayBufferEnsemble):
    """Several replay buffers whose batches are drawn, and transformed, each in its own way, and joined in one, [B].

        >>> rb = Mixture(medium, expert, p=[0.7, 0.3], batch_size=256)
        >>> batch = rb.sample()                    # [256]: 179 or 180 steps of medium, then those of expert
        >>> batch["index", "buffer_ids"]           # which buffer each step is from
        >>> rb.names[0], rb.sampler.shares

    It is an ensemble whose batches are flat and whose shares hold in every batch, see `MixtureSampler`. What the
    buffers give is compared key by key here, before the first batch.

    Args:
        *rbs: The buffers.
        p: Their shares, in any scale; all the same by default.
        exact: False draws the buffer of each step by chance.
        final_p: Shares that those of the batches move to, in a straight line from `p`.
        anneal: Batches until they are there.
        unit: Steps that the buffers' samplers give in one piece: the length of slices.
        names: Those of the buffers, for messages; by default their numbers.
        missing: What happens to keys that only some buffers have, in every batch alike: "refuse", "drop" or "zero", see
            `ReplayBufferEnsemble`.
        **kwargs: Those of `ReplayBuffer` that are left.

    Raises:
        InvalidArgumentError: If arguments exclude each other, or the buffers do not fit together; with a table of all keys that
            are not the same.
    """

    def __init__(
        self,
        *rbs: ReplayBuffer,
        p: Sequence[float] | Tensor | None = None,
        exact: bool = True,
        final_p: Sequence[float] | Tensor | None = None,
        anneal: int = 0,
        unit: int = 1,
        names: Sequence[str] | None = None,
        missing: Missing = "refuse",
        **kwargs: Any,
    ) -> None:
        self.names = tuple(names) if names is not None else tuple(f"buffer {number}" for number in range(len(rbs)))
        self._unit = unit
        super().__init__(*rbs, missing=missing, **kwargs)
        self._sampler = MixtureSampler(
            *(rb.sampler for rb in rbs),
            p=p,
            exact=exact,
            final_p=final_p,
            anneal=anneal,
            unit=unit,
            generator=kwargs.get("generator"),
        )
        self._sampler.attach(self._storage)

    @property
    def keys_of_members(self) -> tuple[KeyOfMembers, ...]:
        """What each key is in each of the buffers that are not empty."""
        return self._keys.table

    @property
    def _names(self) -> Sequence[str]:
        return self.names

    def _trial_size(self) -> int:
        return self._unit

    @property
    def _free(self) -> bool:
        return False  # a function of the user's gets the parts with the same keys

    @property
    def sampler(self) -> MixtureSampler:
        """The samplers of the buffers, and their shares."""
        sampler: MixtureSampler = self._sampler  # type: ignore[assignment]  # the constructor takes no other
        return sampler

    def _taken(self, drawn: Drawn) -> Any:
        numbers, counts = _runs(drawn.index)
        rows = drawn.index[_INDEX].split(counts)
        return super()._taken(Drawn(drawn.storage, {"buffer_ids": numbers, _INDEX: rows}, drawn.info))

    def _finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        index = info.pop(_INDEX)
        _, counts = _runs(index)
        told = {key: value if isinstance(value, list) else value.split(counts) for key, value in info.items()}
        info[_INDEX] = index
        parts = [
            self._keys.fit(self._finished_part(number, part, at(told, place), steps), self.names[number])
            for place, ((number, part), steps) in enumerate(zip(data, counts, strict=True))
        ]
        batch: Any = self._collate_fn(parts) if self._collate_fn is not None and collate else torch.cat(parts)
        batch.set(_INDEX, index)
        batch = transformed(self._transforms, batch)
        return pinned(batch) if self._pin_memory else batch


def _runs(index: TensorDictBase) -> tuple[list[int], list[int]]:
    """Return which buffers give steps, and how many: those of each lie together, in the order of the buffers."""
    counts = np.bincount(index.get("buffer_ids").numpy())
    numbers = counts.nonzero()[0]
    return numbers.tolist(), counts[numbers].tolist()
