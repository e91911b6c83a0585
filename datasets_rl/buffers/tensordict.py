"""The replay buffer of TensorDicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack
from torch import Tensor
from typing_extensions import override

from datasets_rl.buffers.forms import BatchForm, check_form
from datasets_rl.buffers.read_path import Drawn
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.packed import Column
from datasets_rl.ted.keys import Key, as_key, dotted_name
from datasets_rl.ted.unchecked import add_rows, entries_of
from datasets_rl.transforms.base import resolve_key
from datasets_rl.writers.base import Writer
from datasets_rl.writers.round_robin import TensorDictRoundRobinWriter

_INDEX = "index"


class _Info(dict[Any, Any]):
    """The info of a sample, and the entries of the data that the info replaced in the batch."""

    replaced: Mapping[Any, Any] = {}


class TensorDictReplayBuffer(ReplayBuffer):
    """Replay buffer with TensorDicts as batches.

        >>> from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer
        >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> rb.extend(TensorDict({"observation": torch.zeros(3, 4)}, [3]))
        tensor([0, 1, 2])
        >>> rb.sample()["index"].shape
        torch.Size([32])

    Batches contain the info of the sampler and the index of every step: ``batch["index"]`` is int64 [B], or [B, ndim]
    for a storage with several leading axes. The index is not stored: an index in written data, such as a batch that was
    sampled before, is removed. If written data has priorities at `priority_key`, these are used.

    Args:
        priority_key: Key of the priorities in batches and in written data, for a prioritized sampler.
        **kwargs: Arguments of `ReplayBuffer`.
    """

    default_writer: type[Writer] = TensorDictRoundRobinWriter
    index_name = _INDEX

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def _validate_data(self, data: Any, *, single: bool) -> Any:
        return [*map(_without_index, data)] if isinstance(data, list) and not single else _without_index(data)

    def _priority_of(self, data: Any, axes: int) -> Tensor | None:
        if isinstance(data, list):
            data = lazy_stack(data) if data else TensorDict(batch_size=[0])
        rows = data.shape[:axes].numel()
        priority: Tensor | None = data.get(resolve_key(self.priority_key, data), None)
        if priority is None or not rows:
            return None
        priority = priority.reshape(rows, -1)
        self.sampler.expect_priority(priority)
        return priority

    def update_tensordict_priority(self, data: Any) -> None:
        """Update the priorities of the steps of a sampled batch.

        Args:
            data: A TensorDict with ``"index"``, and with priorities at `priority_key`: a number per step, or several
                numbers, which the sampler reduces to a single number. Without priorities, nothing happens.

        Raises:
            InvalidArgumentError: If the batch has no index, or a priority is negative or not finite. Nothing has
                changed.
        """
        priority = data.get(resolve_key(self.priority_key, data), None)
        if priority is None:
            return
        index = data.get(_INDEX, None)
        unit = self._components.sample_unit
        if unit is not None:
            index, priority = unit.anchor_priorities(data, priority)
        if index is None:
            raise InvalidArgumentError(
                f"the batch has no {_INDEX!r}, expected a batch from sample(), with its index",
                hint="for an index from extend(), call update_priority(index, priority)",
            )
        with self.lock:
            rows = self.storage.ravel(index if self.storage.ndim == 1 else index.reshape(-1, self.storage.ndim))
            # If an element is a whole trajectory, each step has the index of the trajectory: the priorities are reduced
            # to a single number.
            while rows.ndim > 1 and bool((rows == rows[..., :1]).all()):
                rows = rows[..., 0]
            priority = priority.reshape(rows.numel(), -1)
            self.sampler.update_priority(rows.reshape(-1), priority, storage=self.storage)

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
        *,
        keys: str | Iterable[str | Key] | None = None,
        rows: Any = None,
        format: BatchForm | None = None,  # noqa: A002 -- the users' word
    ) -> Any:
        """Sample a batch, or read a batch of given rows, see `ReplayBuffer.sample`.

        The index and the other info of the sampler are added to the batch, whatever `keys` name. With
        ``include_info=False``, the batch contains neither. Flags at the ends of slices are then the flags of the data,
        before transforms.
        """
        if format is not None:
            check_form(format)
        batch, info = self._sample(batch_size, keys, rows, format, with_info=include_info is not False)
        return (batch, info) if return_info else batch

    @override
    def columns_of_info(self, info: dict[Any, Any], shape: torch.Size) -> dict[str, Column]:
        entries = _as_entries(info, shape, self.storage.rows_device)
        return {key if type(key) is str else dotted_name(as_key(key)): value for key, value in entries.items()}

    @override
    def without_info(self, batch: Any, info: Any) -> Any:
        """Return a batch with the entries that the info of the sampler replaced, and without the other info."""
        batch = batch.exclude(*(key for key in info if key not in info.replaced))
        for key, value in info.replaced.items():
            if batch.get(key, None) is not None:
                batch.set(key, value)
        return batch

    @override
    def make(self, drawn: Drawn) -> tuple[Any, dict[Any, Any]]:
        drawn.info = _Info(drawn.info)
        return super().make(drawn)

    @override
    def finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        if not info:
            return super().finish(data, info, collate=collate)
        parts = self._components
        if collate and parts.collate_fn is not None:
            data = parts.collate_fn(data)
        # The index is all the info of most batches, and takes a third of the time of the functions for any info.
        is_added = len(info) == 1 and add_rows(data, _INDEX, info.get(_INDEX))
        if is_added and not (parts.transforms or parts.pin_memory):
            return data
        entries = {_INDEX: info[_INDEX]} if is_added else _as_entries(info, data.shape, data.device)
        if not is_added:
            replaced = _set_entries(data, entries)
            if isinstance(info, _Info):
                info.replaced = replaced
        if parts.transforms or parts.pin_memory:
            data = super().finish(data, {}, collate=False)
            # Transforms see the info. If a transform selects keys, the index and the other info are added again.
            lost = {key: value for key, value in entries.items() if data.get(key, None) is None}
            if lost:
                _set_entries(data, _as_entries(lost, data.shape, data.device))
        return data


def _without_index(data: Any) -> Any:
    if not is_tensor_collection(data):
        raise InvalidArgumentError(
            f"cannot write a {type(data).__name__}: a TensorDictReplayBuffer stores TensorDicts only",
            hint="use a ReplayBuffer for other data",
        )
    return data.exclude(_INDEX) if _INDEX in data.keys() else data  # noqa: SIM118 - a TensorDict iterates over its steps


def _as_entries(info: dict[Any, Any], shape: torch.Size, device: torch.device | None) -> dict[Any, Tensor]:
    """Return the info with a value per element of a batch, as entries of the batch. Other info is left out."""
    axes = len(shape)
    entries: dict[Any, Tensor] = {}
    for key, item in info.items():
        value = torch.stack(item, -1) if type(item) is tuple else item
        if value.ndim < axes:
            # If elements are whole trajectories, the info of an element applies to each of its steps.
            value = value.reshape(*value.shape, *[1] * (axes - value.ndim)).expand(shape).contiguous()
        if value.shape[:axes] == shape:
            entries[key] = value if device is None or device == value.device else value.to(device, non_blocking=True)
    return entries


def _set_entries(data: Any, new_entries: dict[Any, Tensor]) -> dict[Any, Any]:
    """Set entries of a batch, and return the replaced entries."""
    replaced: dict[Any, Any] = {}
    for key, value in new_entries.items():
        node, name = data, key
        if not isinstance(key, str):
            *path, name = key
            for part in path:
                held = entries_of(node)
                node = node.get(part, None) if held is None else held.get(part)
        # The checks of the public methods cost more than the sampling itself.
        if (entries := entries_of(node)) is not None:
            if name in entries:
                replaced[key] = entries[name]
            entries[name] = value
        else:
            if (old_value := data.get(key, None)) is not None:
                replaced[key] = old_value
            data.set(key, value)
    return replaced
