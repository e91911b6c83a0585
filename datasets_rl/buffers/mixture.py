"""A replay buffer that mixes several buffers in a flat batch, in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from typing_extensions import override

from datasets_rl.buffers.display import as_html
from datasets_rl.buffers.ensemble import ReplayBufferEnsemble, info_at
from datasets_rl.buffers.keys import Missing, MixtureKey
from datasets_rl.buffers.read_path import Drawn
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.mixture import MixtureSampler

_INDEX = "index"


class Mixture(ReplayBufferEnsemble):
    """Several replay buffers with batches that are sampled and transformed separately and then concatenated, [B].

        >>> rb = Mixture(medium, expert, p=[0.7, 0.3], batch_size=256)
        >>> batch = rb.sample()                    # [256]: 179 or 180 steps of medium, then steps of expert
        >>> batch["index", "buffer_ids"]           # the buffer of each step
        >>> rb.names[0], rb.sampler.shares

    A mixture is an ensemble with flat batches and shares that hold in every batch, see `MixtureSampler`. The
    constructor compares the keys of the buffers, before the first batch.

    Args:
        *rbs: The buffers.
        p: Shares of the buffers, not necessarily normalized, equal by default.
        exact: If False, the buffer of each step is drawn at random.
        final_p: Final shares, to which the shares change linearly from `p`.
        anneal: Number of batches until the final shares are reached.
        unit: Number of steps that the samplers of the buffers return together: the length of slices.
        interleave: Whether the steps of the buffers alternate in a batch, so that each part of the batch has all
            buffers in their shares: with two equal shares, rows 0, 2, 4, ... are from the first buffer and rows 1, 3,
            5, ... from the second, as `combine` in RLPD (Ball et al., 2023, arXiv:2302.02948). Slices stay whole. By
            default, the batch is in buffer order.
        names: Names of the buffers, for messages. By default the numbers of the buffers.
        missing: How to treat keys that only some buffers have, in every batch alike: "refuse", "drop" or "zero", see
            `ReplayBufferEnsemble`.
        **kwargs: Other arguments of `ReplayBuffer`.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive, or the buffers are incompatible. The message contains
            a table of all differing keys.
    """

    def __init__(
        self,
        *rbs: ReplayBuffer,
        p: Sequence[float] | Tensor | None = None,
        exact: bool = True,
        final_p: Sequence[float] | Tensor | None = None,
        anneal: int = 0,
        unit: int = 1,
        interleave: bool = False,
        names: Sequence[str] | None = None,
        missing: Missing = "refuse",
        **kwargs: Any,
    ) -> None:
        self.names = tuple(names) if names is not None else tuple(f"buffer {number}" for number in range(len(rbs)))
        self._unit = unit
        self._interleave = interleave
        if interleave and kwargs.get("collate_fn") is not None:
            raise InvalidArgumentError(
                "interleave and collate_fn are mutually exclusive: a collate_fn orders the steps"
            )
        super().__init__(*rbs, missing=missing, **kwargs)
        self._components.sampler = MixtureSampler(
            *(rb.sampler for rb in rbs),
            p=p,
            exact=exact,
            final_p=final_p,
            anneal=anneal,
            unit=unit,
            generator=kwargs.get("generator"),
        )
        self.sampler.attach(self.storage)

    @property
    def keys_of_members(self) -> tuple[MixtureKey, ...]:
        """The dtype and shape of each key in each buffer that is not empty."""
        return self._keys.table

    @property
    def _names(self) -> Sequence[str]:
        return self.names

    def _repr_html_(self) -> str:
        """Return a table with the share and the size of each buffer, for notebooks."""
        shares = self.sampler.shares.tolist()
        members = [f"{share:.1%}, {len(self[number]):,} steps" for number, share in enumerate(shares)]
        return as_html(self, *zip(self.names, members, strict=True))

    def _trial_size(self) -> int:
        return self._unit

    @property
    def _collates_itself(self) -> bool:
        return False  # a collate_fn also receives parts with the same keys

    @property
    def sampler(self) -> MixtureSampler:
        """The samplers of the buffers, and their shares."""
        sampler: MixtureSampler = self._components.sampler  # type: ignore[assignment]  # the constructor takes no other
        return sampler

    @override
    def read(self, drawn: Drawn) -> Any:
        numbers, counts = _counts_per_buffer(drawn.index)
        rows = drawn.index[_INDEX].split(counts)
        return super().read(Drawn(drawn.storage, {"buffer_ids": numbers, _INDEX: rows}, drawn.info))

    @override
    def finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        index = info.pop(_INDEX)
        _, counts = _counts_per_buffer(index)
        infos = {key: value if isinstance(value, list) else value.split(counts) for key, value in info.items()}
        info[_INDEX] = index
        parts = [
            self._keys.fit(self._finish_part(number, part, info_at(infos, place), steps), self.names[number])
            for place, ((number, part), steps) in enumerate(zip(data, counts, strict=True))
        ]
        collate_fn = self._components.collate_fn if collate else None
        batch: Any = torch.cat(parts) if collate_fn is None else collate_fn(parts)
        batch.set(_INDEX, index)
        if self._interleave:
            order = _interleaved_order(tuple(counts), self._unit)
            batch = batch[order]
            info.update({key: value[order] for key, value in info.items() if isinstance(value, Tensor)})
            info[_INDEX] = batch.get(_INDEX)
        return self._transformed(batch)


@lru_cache(maxsize=64)
def _interleaved_order(counts: tuple[int, ...], unit: int) -> Tensor:
    """Return the order of the steps of a batch in which the steps of each buffer are evenly spread, int64 [B].

    Slot k of the c slots of a buffer has its center at (k + 1/2) / c of the batch. Equal centers are in buffer order:

        counts 2 and 4      centers  1/4 3/4 | 1/8 3/8 5/8 7/8      order  2 0 3 4 1 5

    Args:
        counts: Number of steps of each buffer.
        unit: Number of consecutive steps in a slot.
    """
    centers = np.concatenate([(np.arange(slots) + 0.5) / slots for slots in np.array(counts) // unit])
    slots = np.argsort(centers, kind="stable")
    return torch.from_numpy((slots[:, None] * unit + np.arange(unit)).reshape(-1))


def _counts_per_buffer(index: TensorDictBase) -> tuple[list[int], list[int]]:
    """Return the numbers of the buffers in the batch, and how many steps each contributes, in buffer order."""
    counts = np.bincount(index.get("buffer_ids").numpy())
    numbers = counts.nonzero()[0]
    return numbers.tolist(), counts[numbers].tolist()
