"""Which keys the batches of several buffers have: decided by what the buffers hold, never by what was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from tensordict import NonTensorData, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import Key, as_key, dotted

__all__ = ["BatchKeys", "Field", "KeyOfMembers", "Missing", "fields_of"]

Missing = Literal["refuse", "drop", "zero"]
_NAMED = 6
"""How many keys the first line of an error names."""


@dataclass(frozen=True)
class Field:
    """One field of the batches of a buffer."""

    dtype: torch.dtype | None
    """None for text and other objects that are not tensors."""
    shape: tuple[int, ...]
    """The axes of one step, without the batch."""
    text: bool = False
    """Whether the steps hold text."""
    device: torch.device | None = None
    """Of objects: they only combine with others of the same device, which need not be that of the batch."""

    @property
    def kind(self) -> str:
        """The dtype and the shape, as in "float32 [17]"."""
        name = str(self.dtype).removeprefix("torch.") if self.dtype is not None else "text" if self.text else "object"
        return f"{name} {list(self.shape)}"

    def zeros(self, batch: TensorDictBase) -> Any:
        """Return the field for every step of a batch: zeros, or empty text."""
        if self.dtype is None:
            return NonTensorData("", batch_size=batch.batch_size)
        return torch.zeros((*batch.batch_size, *self.shape), dtype=self.dtype, device=batch.device)


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


def fields_of(batch: Any) -> Mapping[Key, Field] | None:
    """Return the fields of a batch by their keys; None if it is not a TensorDict."""
    if not isinstance(batch, TensorDictBase):
        return None
    return {key: _field(batch.get(key), batch.ndim) for key in _keys(batch)}


def _field(leaf: Any, axes: int) -> Field:
    if isinstance(leaf, Tensor):
        return Field(leaf.dtype, tuple(leaf.shape[axes:]))
    example = leaf.tolist()
    while isinstance(example, list) and example:
        example = example[0]
    return Field(None, tuple(leaf.shape[axes:]), isinstance(example, str), leaf.device)


def _some(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more


def _keys(batch: TensorDictBase) -> set[Key]:
    keys = batch.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return {as_key((key,) if isinstance(key, str) else key) for key in keys}


@dataclass(frozen=True)
class BatchKeys:
    """The keys of every batch of several buffers.

    buffer 0   observation  action            refuse   an error that names them
    buffer 1   observation          reward    drop     observation
                                              zero     observation  action  reward
    """

    members: tuple[Mapping[Key, Field] | None, ...]
    """The fields of each buffer; None where they are not known yet, because the buffer is empty."""
    missing: Missing
    """What happens to keys that only some of the buffers have."""

    @cached_property
    def table(self) -> tuple[KeyOfMembers, ...]:
        """Every key, and what it is in each of the buffers whose fields are known."""
        known = [member for member in self.members if member is not None]
        every = sorted({key for member in known for key in member})
        return tuple(
            KeyOfMembers(dotted(key), tuple(member[key].kind if key in member else None for member in known))
            for key in every
        )

    @cached_property
    def uniform(self) -> bool:
        """Whether all of the buffers whose fields are known have the same keys."""
        return all(one.everywhere for one in self.table)

    @cached_property
    def _fields(self) -> Mapping[Key, Field]:
        """The fields of a batch."""
        known = [member for member in self.members if member is not None]
        every = {key: field for member in reversed(known) for key, field in member.items()}
        if self.missing != "drop":
            return every
        return {key: field for key, field in every.items() if all(key in member for member in known)}

    def check(self, names: Sequence[str]) -> None:
        """Raise if batches cannot be made of these buffers.

        Args:
            names: The names of all the buffers.

        Raises:
            InvalidArgumentError: If a key has another dtype or shape in another buffer, if only some have it and `missing` is
                "refuse", or if it cannot be filled; with a table of all such keys.
        """
        kept = {dotted(key) for key in self._fields}
        lacking = [one for one in self.table if not one.everywhere] if self.missing == "refuse" else []
        unlike = [one for one in self.table if one in lacking or (one.key in kept and not one.alike)]
        if unlike:
            known = [name for name, member in zip(names, self.members, strict=True) if member is not None]
            rows = [("key", *known), *((one.key, *(kind or "-" for kind in one.kinds)) for one in unlike)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
            some, other = [one.key for one in unlike if one.alike], [one.key for one in unlike if not one.alike]
            why = [f"only some have {_some(some)}"] if some else []
            why += [f"the dtype or the shape differs in {_some(other)}"] if other else []
            raise InvalidArgumentError(
                f"the members do not fit together: {'; '.join(why)}"
                + "".join(f"\n  {line.rstrip()}" for line in lines),
                hint="give members transforms that make them alike"
                + (", or missing='drop' or 'zero' for keys that some lack" if lacking else ""),
            )
        if self.missing == "zero":
            partial = {one.key for one in self.table if not one.everywhere}
            objects = sorted(dotted(key) for key, field in self._fields.items() if field.kind.startswith("object"))
            if objects := [key for key in objects if key in partial]:
                raise InvalidArgumentError(
                    f"missing='zero' cannot fill {', '.join(objects)}: the values are neither tensors nor text",
                    hint="leave them out with missing='drop', or with a transform",
                )

    def fit(self, part: Any, name: str) -> Any:
        """Return the part of a batch that one buffer gave with the keys of the batch.

        Args:
            part: What the buffer gave.
            name: The name of the buffer, for the error.

        Raises:
            InvalidArgumentError: If a key is missing that must be there, or "refuse" meets a key that was not there when the
                keys were decided.
        """
        if self.uniform or not isinstance(part, TensorDictBase):
            return part
        have, fields = _keys(part), self._fields
        lacking, more = fields.keys() - have, have - fields.keys()
        if (lacking and self.missing != "zero") or (more and self.missing == "refuse"):
            changes = [f"no {', '.join(sorted(map(dotted, lacking)))}"] if lacking else []
            changes += [f"also {', '.join(sorted(map(dotted, more)))}"] if more else []
            raise InvalidArgumentError(
                f"{name} gave {' and '.join(changes)}; its first steps had other keys",
                hint="let its transforms return the same keys for every batch",
            )
        if more:
            part = part.select(*have & fields.keys())
        elif lacking:
            part = part.copy()
        for key in sorted(lacking):
            field = fields[key]
            part.set(key, field.zeros(part))
            if field.dtype is None and field.device is None:
                part.get(key).clear_device_()  # `set` gave it that of the batch
        return part
