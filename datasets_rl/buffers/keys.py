"""The keys of batches from several buffers: determined by the contents of the buffers, never by the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from tensordict import NonTensorData, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from datasets_rl.errors import Argument, Call, InvalidArgumentError, Remedy, join_names
from datasets_rl.ted.keys import Key, as_key, dotted_name

Missing = Literal["refuse", "drop", "zero"]
_MAX_NAMED_KEYS = 6
_ALIKE = Remedy("make them alike with transforms or `{}`", Call("preprocess", ...))
_DROP, _ZERO = Argument("missing", "drop"), Argument("missing", "zero")
"""Maximum number of keys named in the first line of an error message."""


@dataclass(frozen=True)
class Field:
    """A field of the batches of a buffer."""

    dtype: torch.dtype | None
    """None for text and other non-tensor objects."""
    shape: tuple[int, ...]
    """Shape of a step, without the batch axes."""
    text: bool = False
    """Whether the values are text."""
    device: torch.device | None = None
    """Device of non-tensor objects: objects only stack on the same device, which may differ from the batch."""

    @property
    def kind(self) -> str:
        """Dtype and shape, as in "float32 [17]"."""
        name = str(self.dtype).removeprefix("torch.") if self.dtype is not None else "text" if self.text else "object"
        return f"{name} {list(self.shape)}"

    def default_values(self, batch: TensorDictBase) -> Any:
        """Return the field for every step of a batch: zeros, or empty text."""
        if self.dtype is None:
            return NonTensorData("", batch_size=batch.batch_size)
        return torch.zeros((*batch.batch_size, *self.shape), dtype=self.dtype, device=batch.device)


@dataclass(frozen=True)
class MixtureKey:
    """A key of a mixture."""

    key: str
    """The dotted key."""
    kinds: tuple[str | None, ...]
    """Dtype and shape in each member, as in "float32 [17]", or None if the member lacks the key."""

    @property
    def alike(self) -> bool:
        """Whether the dtype and shape are the same in all members that have the key."""
        return len({kind for kind in self.kinds if kind is not None}) == 1

    @property
    def everywhere(self) -> bool:
        """Whether all members have the key."""
        return None not in self.kinds


def fields_of(batch: Any) -> Mapping[Key, Field] | None:
    """Return the fields of a batch by key, or None if the batch is not a TensorDict."""
    if not isinstance(batch, TensorDictBase):
        return None
    return {key: _field_of_leaf(batch.get(key), batch.ndim) for key in _keys_of(batch)}


def _field_of_leaf(leaf: Any, axes: int) -> Field:
    if isinstance(leaf, Tensor):
        return Field(leaf.dtype, tuple(leaf.shape[axes:]))
    example = leaf.tolist()
    while isinstance(example, list) and example:
        example = example[0]
    return Field(None, tuple(leaf.shape[axes:]), isinstance(example, str), leaf.device)


def _keys_of(batch: TensorDictBase) -> set[Key]:
    keys = batch.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return {as_key((key,) if isinstance(key, str) else key) for key in keys}


@dataclass(frozen=True)
class BatchKeys:
    """The keys of every batch from several buffers.

    buffer 0   observation  action            refuse   an error that names the keys
    buffer 1   observation          reward    drop     observation
                                              zero     observation  action  reward
    """

    members: tuple[Mapping[Key, Field] | None, ...]
    """The fields of each buffer, None for the unknown fields of an empty buffer."""
    missing: Missing
    """How to treat keys that only some of the buffers have."""

    @cached_property
    def table(self) -> tuple[MixtureKey, ...]:
        """Every key, with its dtype and shape in each buffer with known fields."""
        known = [member for member in self.members if member is not None]
        every = sorted({key for member in known for key in member})
        return tuple(
            MixtureKey(dotted_name(key), tuple(member[key].kind if key in member else None for member in known))
            for key in every
        )

    @cached_property
    def uniform(self) -> bool:
        """Whether all buffers with known fields have the same keys."""
        return all(row.everywhere for row in self.table)

    @cached_property
    def _fields(self) -> Mapping[Key, Field]:
        """The fields of a batch."""
        known = [member for member in self.members if member is not None]
        every = {key: field for member in reversed(known) for key, field in member.items()}
        if self.missing != "drop":
            return every
        return {key: field for key, field in every.items() if all(key in member for member in known)}

    def check(self, names: Sequence[str]) -> None:
        """Check that batches of these buffers can be combined.

        Args:
            names: The names of all buffers.

        Raises:
            InvalidArgumentError: If the dtype or shape of a key differs between buffers, if only some buffers have a
                key and `missing` is "refuse", or if a missing key cannot be filled. The message contains a table of all
                such keys.
        """
        batch_keys = {dotted_name(key) for key in self._fields}
        lacking = [row for row in self.table if not row.everywhere] if self.missing == "refuse" else []
        conflicts = [row for row in self.table if row in lacking or (row.key in batch_keys and not row.alike)]
        if conflicts:
            known_names = [name for name, member in zip(names, self.members, strict=True) if member is not None]
            cells = [("key", *known_names), *((row.key, *(kind or "-" for kind in row.kinds)) for row in conflicts)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
            partial_keys, unequal_keys = (
                [row.key for row in conflicts if row.alike],
                [row.key for row in conflicts if not row.alike],
            )
            reasons = [f"only some have {join_names(partial_keys, _MAX_NAMED_KEYS)}"] if partial_keys else []
            if unequal_keys:
                reasons.append(f"the dtype or the shape differs in {join_names(unequal_keys, _MAX_NAMED_KEYS)}")
            raise InvalidArgumentError(
                f"the members do not fit together: {'; '.join(reasons)}"
                + "".join(f"\n  {line.rstrip()}" for line in lines),
                hint=Remedy("{}, or {} or {} for keys that some lack", _ALIKE, _DROP, _ZERO) if lacking else _ALIKE,
            )
        if self.missing == "zero":
            partial = {row.key for row in self.table if not row.everywhere}
            objects = sorted(dotted_name(key) for key, field in self._fields.items() if field.kind.startswith("object"))
            if objects := [key for key in objects if key in partial]:
                raise InvalidArgumentError(
                    f"missing='zero' cannot fill {', '.join(objects)}: the values are neither tensors nor text",
                    hint=Remedy("leave such keys out with {}, or with a transform", _DROP),
                )

    def fit(self, part: Any, name: str) -> Any:
        """Return the part of a buffer with the keys of the batch.

        Args:
            part: The part of the batch from this buffer.
            name: Name of the buffer, for messages.

        Raises:
            InvalidArgumentError: If a required key is missing, or `missing` is "refuse" and the part has a key that was
                absent when the keys were determined.
        """
        if self.uniform or not isinstance(part, TensorDictBase):
            return part
        part_keys, fields = _keys_of(part), self._fields
        missing_keys, extra_keys = fields.keys() - part_keys, part_keys - fields.keys()
        if (missing_keys and self.missing != "zero") or (extra_keys and self.missing == "refuse"):
            changes = [f"no {', '.join(sorted(map(dotted_name, missing_keys)))}"] if missing_keys else []
            changes += [f"also {', '.join(sorted(map(dotted_name, extra_keys)))}"] if extra_keys else []
            raise InvalidArgumentError(
                f"{name} returned {' and '.join(changes)}, unlike its first steps, expected the same keys in every batch",
                hint="let the transforms of this buffer return the same keys for every batch",
            )
        if extra_keys:
            part = part.select(*part_keys & fields.keys())
        elif missing_keys:
            part = part.copy()
        for key in sorted(missing_keys):
            field = fields[key]
            part.set(key, field.default_values(part))
            if field.dtype is None and field.device is None:
                part.get(key).clear_device_()  # `set` assigned the device of the batch
        return part
