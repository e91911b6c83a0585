"""The steps of a dataset in the memory of a device, where batches are drawn and gathered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, NotEnoughMemoryError, UnknownKeyError
from datasets_rl.format.schema import WIDE_BYTES, Schema
from datasets_rl.settings import memory_bytes
from datasets_rl.storages.dataset import as_rows, wrap_negative_rows
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.packed import Column, RowSlot, RowViews
from datasets_rl.ted.keys import NEXT, NEXT_DONE, EndKey, Key, as_key, dotted_name
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.windows import steps_of

_WORD = 8
_ALIGNED = 16
"""Bytes of which the position of floating point numbers in a batch is a multiple: compiled graphs copy other inputs on a
GPU. Of flags, a copy is small, and the gaps would double a record."""
_CHUNK_BYTES = 1 << 26
"""Bytes that are moved at once."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the fields of a batch are read, compiled once for a set of keys."""

    windows: Tensor
    """The words of each record and the following record that contain the fields, int64 [N + E, W]."""
    views: RowViews
    wide: tuple[tuple[Key, Tensor, int], ...]
    """Key, items, and the number of rows from the row of the step to the row to read: 1 under "next"."""


class DeviceStorage(EpisodicStorage):
    """The steps of a dataset, copied to a device: the memory of an accelerator, or main memory.

    Fields are stored in packed records, as in the files. After the last record of each episode follows a record with its final
    state, so that the next state of every step is in the next record:

        records      s_0 a_0 | s_1 a_1 | s_2     | s_3 a_3 | s_4 a_4 | s_5
        row            0         1       (final)   2         3         (final)
        position       0         1                 3         4

    A batch takes a gather of positions, a gather of records, and a gather of each wide field. A compiled function joins
    the first two gathers. Nothing depends on the values: no batch waits for the device, and shapes are static, so that
    sampling can be captured in a CUDA graph. Leaves of floating point numbers start at multiples of 16 bytes. Rows that
    are on the device already are not checked.

    Args:
        steps: The steps to copy, with the fields to copy.
        device: The device.

    Raises:
        InvalidArgumentError: If a field consists of encoded images, which are decoded in main memory.
        NotEnoughMemoryError: If the device has too little memory for the fields. Compressed images are decompressed.
    """

    def __init__(self, steps: EpisodicStorage, device: torch.device | str) -> None:
        super().__init__(len(steps))
        self.steps, self.masked = steps, steps.masked
        self.device = self.rows_device = torch.empty(0, device=device).device
        _check_not_encoded(steps, self.device)
        first = _leaves_of(steps.take(torch.zeros(1, dtype=torch.int64)))
        self._keys = tuple(first)
        self._shared = {key for key in first if _is_shared(key, first, steps.schema)}
        self._stored = tuple(key for key in first if key[1:] not in self._shared or key[0] != NEXT)
        wide = [key for key in self._stored if first[key].nbytes >= WIDE_BYTES]
        narrow = {key: first[key] for key in self._stored if key not in wide}
        self._slots, self._record_bytes = _layout(narrow, self._shared)
        self._step_bytes = self._record_bytes + sum(first[key].nbytes for key in wide)
        table = steps.episodes
        rows = len(steps) + len(table)
        _check_fits(rows * self._step_bytes, steps, wide, self.device)
        episodes = torch.from_numpy(np.repeat(np.arange(len(table)), table.lengths))
        self._positions = (torch.arange(len(steps)) + episodes).to(self.device)
        # The last record completes the window of the previous record.
        self._records = torch.zeros((rows + 1, self._record_bytes // _WORD), dtype=torch.int64, device=self.device)
        self._wide = {key: first[key].new_zeros((rows, *first[key].shape[1:]), device=self.device) for key in wide}
        self._plans: dict[tuple[Key, ...], _Plan] = {}
        self.anchor = torch.zeros((), device=self.device)
        """An input of the operators of compiled graphs, on the device, because another device excludes CUDA graphs."""
        self._copy()

    def _copy(self) -> None:
        """Copy the steps and the final states in chunks."""
        table = self.steps.episodes
        lasts = torch.from_numpy(table.stops - 1)
        final_positions = (lasts + 1 + torch.arange(len(table))).to(self.device)
        final_keys = {(NEXT, *key): key for key in self._shared}
        size = max(1, _CHUNK_BYTES // self._step_bytes)
        for rows, positions, keys in (
            (torch.arange(len(self)), self._positions, {key: key for key in self._stored}),
            (lasts, final_positions, final_keys),
        ):
            for start in range(0, len(rows), size):
                chunk, places = rows[start : start + size], positions[start : start + size]
                if keys:
                    batch = _leaves_of(self.steps.take_fields(chunk, tuple(keys)))
                    self._write(places, {key: batch[name] for name, key in keys.items()})

    def _write(self, positions: Tensor, leaves: Mapping[Key, Tensor]) -> None:
        """Write fields, [B, ...], to positions, int64 [B], in a block of page-locked memory on CUDA."""
        pinned = self.device.type == "cuda"
        words = self._record_bytes // _WORD
        records = torch.zeros((len(positions), words), dtype=torch.int64, pin_memory=pinned)
        targets: dict[Key, Tensor] = {}
        RowViews([slot for slot in self._slots if slot.name in leaves], self._record_bytes)(records, targets)
        for key, target in targets.items():
            target.copy_(leaves[key])
        if words:
            self._records.index_copy_(0, positions, records.to(self.device, non_blocking=pinned))
        for key in self._wide.keys() & leaves.keys():
            self._wide[key].index_copy_(0, positions, leaves[key].to(self.device))

    @property
    @override
    def episodes(self) -> EpisodeTable:
        return self.steps.episodes

    @property
    @override
    def schema(self) -> Schema:
        return self.steps.schema

    @override
    def get(self, index: Any) -> TensorDict:
        on_device = isinstance(index, Tensor) and not index.is_cpu and index.device == self.device
        if on_device and index.dtype == torch.int64:
            return self.take(index)
        rows = as_rows(index, len(self))
        return self.take(wrap_negative_rows(rows, len(self)))

    @override
    def take_columns(self, rows: Tensor, keys: Sequence[Key] | None = None) -> dict[Key, Column]:
        # A compiled function traces these operations.
        plan = self._plan_of(self._keys if keys is None else tuple(keys))
        positions = self._positions.index_select(0, rows.to(self.device, non_blocking=True))
        leaves: dict[Key, Column] = {}
        plan.views(plan.windows.index_select(0, positions), leaves)
        for key, items, offset in plan.wide:
            leaves[key] = items.index_select(0, positions + offset if offset else positions)
        return leaves

    def _plan_of(self, keys: tuple[Key, ...]) -> _Plan:
        if keys not in self._plans:
            self._plans[keys] = self._new_plan(keys)
        return self._plans[keys]

    def _new_plan(self, keys: tuple[Key, ...]) -> _Plan:
        following = [
            replace(slot, name=(NEXT, *slot.name), offset=slot.offset + self._record_bytes)
            for slot in self._slots
            if slot.name in self._shared
        ]
        slots = [slot for slot in (*self._slots, *following) if slot.name in keys]
        # A multiple of 16 bytes, so that leaves keep their alignment.
        start = min((slot.offset // _ALIGNED for slot in slots), default=0) * (_ALIGNED // _WORD)
        stop = max((-(-slot.end // _WORD) for slot in slots), default=0)
        record = self._record_bytes // _WORD
        windows = self._records.as_strided((len(self._records) - 1, stop - start), (record, 1), start)
        shifted = [replace(slot, offset=slot.offset - start * _WORD) for slot in slots]
        wide = [(key, self._wide[key], 0) for key in self._wide.keys() & set(keys)]
        wide += [((NEXT, *key), items, 1) for key, items in self._wide.items() if (NEXT, *key) in keys]
        return _Plan(windows, RowViews(shifted, (stop - start) * _WORD), tuple(wide))

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        if key not in self._keys:
            raise UnknownKeyError(dotted_name(key), [dotted_name(known) for known in self._keys])
        leaf: Tensor = self.take_fields(rows, (key,))[key]
        return leaf

    @override
    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        flat, after = rows.to(self.device, non_blocking=True).reshape(-1), following.to(self.device).reshape(-1)
        if key in self._wide:
            values = self._wide[key].index_select(0, self._positions.index_select(0, flat) + after)
        else:
            now, then = self.pick(key, flat), self.pick((NEXT, *key), flat)
            values = torch.where(after.view(-1, *[1] * (now.ndim - 1)), then, now)
        return values.view(*rows.shape, *values.shape[1:])

    @override
    def column(self, key: Key) -> Tensor:
        """Return a field of all rows, [N, ...], a copy on the device."""
        return self.pick(key, torch.arange(len(self), device=self.device))

    @override
    def windows_around(
        self, rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> tuple[Tensor, Tensor]:
        if end_key not in {None, NEXT_DONE}:
            window, outside = self.steps.windows_around(rows.cpu(), offsets, end_key=end_key)
            return window.to(self.device), outside.to(self.device)
        rows = rows.to(self.device, non_blocking=True)
        # Each episode before a row shifts the row by one position.
        episodes = self._positions.index_select(0, rows) - rows
        firsts, lasts = (bounds.index_select(0, episodes).unsqueeze(1) for bounds in self._ends)
        unclamped = rows.unsqueeze(1) + steps_of(offsets, self.device)
        window = unclamped.maximum(firsts).minimum(lasts)
        return window, window != unclamped

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """The first and the last row of each episode, int64 [E] each, on the device."""
        table = self.episodes
        firsts, lasts = torch.from_numpy(table.starts.copy()), torch.from_numpy(table.stops - 1)
        return firsts.to(self.device), lasts.to(self.device)

    @override
    def keys(self) -> list[Key]:
        return list(self._keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceStorage, (self.steps, self.device)

    def __repr__(self) -> str:
        return f"DeviceStorage({self.steps!r}, {str(self.device)!r})"


def _leaves_of(batch: TensorDict) -> dict[Key, Tensor]:
    leaves: Any = batch.items(include_nested=True, leaves_only=True)
    return {as_key(key): leaf for key, leaf in leaves}


def _is_shared(key: Key, leaves: Mapping[Key, Tensor], schema: Schema) -> bool:
    """Return whether the value of a field under "next" is its value in the next row, or the final state."""
    following = leaves.get((NEXT, *key))
    return key in schema and schema[key].shared and following is not None and following.dtype == leaves[key].dtype


def _layout(leaves: Mapping[Key, Tensor], shared: Collection[Key]) -> tuple[list[RowSlot], int]:
    """Return the positions of fields in a record, and its bytes, a multiple of 16.

    Shared fields are first, then floating point numbers, at multiples of 16, then the largest items.

    Args:
        leaves: The fields of a step, [1, ...].
        shared: Keys of the fields that are also read from the next record.
    """
    slots, end = [], 0
    for key, leaf in sorted(leaves.items(), key=lambda item: _place(item[0], item[1], shared)):
        unit = _ALIGNED if leaf.is_floating_point() else leaf.itemsize
        offset = -(-end // unit) * unit
        slots.append(RowSlot(key, offset, leaf.dtype, tuple(leaf.shape[1:])))
        end = offset + leaf.nbytes
    return slots, -(-end // _ALIGNED) * _ALIGNED


def _place(key: Key, leaf: Tensor, shared: Collection[Key]) -> tuple[bool, bool, int]:
    """Return what decides the order of a field in a record."""
    return key not in shared, not leaf.is_floating_point(), -leaf.itemsize


def _check_fits(needed: int, steps: EpisodicStorage, wide: Collection[Key], device: torch.device) -> None:
    available = inf
    if device.type == "cpu":
        available = memory_bytes()
    elif device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    if needed > available:
        schema = steps.schema
        compressed = [dotted_name(key) for key in wide if key in schema and schema[key].image_form.has_dictionary]
        after = f" after {', '.join(compressed)}, stored compressed, is decompressed" if compressed else ""
        raise NotEnoughMemoryError(
            f"the fields take {needed:,} bytes on {device}{after}, expected at most {available:,.0f}",
            hint="choose fewer fields, keys=[...], or sample from the files, without a device",
        )


def _check_not_encoded(steps: EpisodicStorage, device: torch.device) -> None:
    keys = steps.keys()
    encoded = [
        field
        for field in steps.schema
        if not field.image_form.takes_pixels and {field.key, (NEXT, *field.key)} & {*keys}
    ]
    if encoded:
        forms = dict.fromkeys(field.image_form.summary for field in encoded)
        others = [dotted_name(key) for key in keys if not any(key[-len(field.key) :] == field.key for field in encoded)]
        raise InvalidArgumentError(
            f"{', '.join(field.name for field in encoded)} is stored as {' and '.join(forms)}, which cannot be kept on "
            f"{device}: such images are decoded in main memory",
            hint=f"choose other fields, keys={others}, or store the images decoded",
        )
