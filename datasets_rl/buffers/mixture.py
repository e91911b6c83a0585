"""Several replay buffers mixed in one flat batch, in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from datasets_rl.buffers.arguments import transformed
from datasets_rl.buffers.batch import pinned
from datasets_rl.buffers.ensemble import Missing, ReplayBufferEnsemble, alike
from datasets_rl.buffers.replay import Drawn, ReplayBuffer
from datasets_rl.errors import BadArgument
from datasets_rl.samplers.mixture import MixtureSampler
from datasets_rl.storages.ensemble import StorageEnsemble
from datasets_rl.ted.keys import as_key, dotted
from datasets_rl.transforms._base import gathered

__all__ = ["KeyOfMembers", "Mixture", "compare"]

_INDEX = "index"


@dataclass(frozen=True)
class KeyOfMembers:
    """One key of a mixture."""

    key: str
    """With dots."""
    kinds: tuple[str | None, ...]
    """Its dtype and shape in each member, as in "float32 [17]"; None where the member does not have it."""

    @property
    def alike(self) -> bool:
        """Whether it is the same in all members that have it."""
        return len({kind for kind in self.kinds if kind is not None}) == 1

    @property
    def everywhere(self) -> bool:
        """Whether all members have it."""
        return None not in self.kinds


def compare(members: Sequence[ReplayBuffer], steps: int = 1) -> tuple[KeyOfMembers, ...]:
    """Say what each key is in the batches of each member, from its first rows, through its transforms.

    Args:
        members: The buffers.
        steps: How many rows their transforms need to see at once.
    """
    found: dict[str, list[str | None]] = {}
    storages = StorageEnsemble(*(member.storage for member in members))
    for number, member in enumerate(members):
        rows = torch.arange(min(steps, len(member)))
        # As batches are read: the mask of final observations that one member needs comes with all of them.
        _, part = storages.get(([number], [rows]))[0]
        batch = member._finish(gathered(member.transforms, member.storage, rows, part), {})  # noqa: SLF001 - a member is a buffer too
        if not isinstance(batch, TensorDictBase):
            raise BadArgument(f"member {number} gives a {type(batch).__name__}; expected TensorDicts")
        for key, leaf in batch.items(include_nested=True, leaves_only=True):
            kind = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[1:])}"
            found.setdefault(dotted(as_key(key)), [None] * len(members))[number] = kind
    return tuple(KeyOfMembers(key, tuple(kinds)) for key, kinds in sorted(found.items()))


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
        missing: What becomes of keys that only some buffers have: "refuse", "drop" or "zero".
        **kwargs: Those of `ReplayBuffer` that are left.

    Raises:
        BadArgument: If arguments exclude each other, or the buffers do not fit together; with a table of all keys that
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
        self.names = tuple(names) if names is not None else tuple(f"buffer {number}" for number in range(len(rbs)))
        self.keys_of_members = compare(rbs, unit)
        """What each key is in each of the buffers."""
        self._refuse_unlike()

    @property
    def sampler(self) -> MixtureSampler:
        """The samplers of the buffers, and their shares."""
        sampler: MixtureSampler = self._sampler  # type: ignore[assignment]  # the constructor takes no other
        return sampler

    def _refuse_unlike(self) -> None:
        lacking = () if self.missing != "refuse" else [one for one in self.keys_of_members if not one.everywhere]
        unlike = [one for one in self.keys_of_members if not one.alike or one in lacking]
        if unlike:
            rows = [("key", *self.names), *((one.key, *(kind or "-" for kind in one.kinds)) for one in unlike)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
            raise BadArgument(
                "the members do not fit together: " + "".join(f"\n  {line.rstrip()}" for line in lines),
                hint="give members transforms that make them alike"
                + (", or missing='drop' or 'zero' for keys that some lack" if lacking else ""),
            )

    def _taken(self, drawn: Drawn) -> Any:
        numbers, counts = _runs(drawn.index)
        rows = drawn.index[_INDEX].split(counts)
        return super()._taken(Drawn(drawn.storage, {"buffer_ids": numbers, _INDEX: rows}, drawn.info))

    def _finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        index = info.pop(_INDEX)
        numbers, counts = _runs(index)
        said = {key: value if isinstance(value, list) else value.split(counts) for key, value in info.items()}
        info[_INDEX] = index
        parts = [
            self._members[number]._finish(  # noqa: SLF001 - a member is a buffer too
                part, {key: value[place] for key, value in said.items() if value[place] is not None}
            )
            for place, (number, part) in enumerate(data)
        ]
        if not all(one.everywhere for one in self.keys_of_members):
            parts = alike(parts, numbers, self.missing)
        batch: Any = self._collate_fn(parts) if self._collate_fn is not None and collate else torch.cat(parts)
        batch.set(_INDEX, index)
        batch = transformed(self._transforms, batch)
        return pinned(batch) if self._pin_memory else batch


def _runs(index: TensorDictBase) -> tuple[list[int], list[int]]:
    """Return which buffers give steps, and how many: those of each lie together, in the order of the buffers."""
    counts = np.bincount(index.get("buffer_ids").numpy())
    numbers = counts.nonzero()[0]
    return numbers.tolist(), counts[numbers].tolist()
