"""The write path of a buffer: inverse transforms, writer, storage, and a notification of the sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from typing_extensions import Self

from datasets_rl.buffers.batch import move_time_first, split_data
from datasets_rl.buffers.compiled import call_uncompiled
from datasets_rl.buffers.conditional import ConditionalUpdateResult, update_if_present
from datasets_rl.buffers.fields import key_of, leaves_by_key, overwrite_fields
from datasets_rl.buffers.read_path import ReadPath
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.positions import is_single_slot
from datasets_rl.ted.keys import Key, as_key


class WritePath(ReadPath):
    """The part of a buffer that writes steps, fields of steps, and priorities."""

    def add(self, data: Any) -> Any:
        """Write a step, or a step of each environment for a storage with several environments.

        Args:
            data: An element, without a leading axis. Inverse transforms receive a batch of a single element.

        Returns:
            The index of the step, int64 [envs, ndim] with several environments. None if the writer did not store the
            step.
        """
        if is_dynamo_compiling():
            return call_uncompiled(self.add, data)
        data = self._to_write(data, single=True)
        if data is None:
            return None
        parts = self._components
        parts.writer.check(data)
        with parts.lock as lock:
            lock.wait_for_reads()
            storage, sampler = parts.storage, parts.sampler
            priority = self._priority_of(data, storage.ndim - 1)
            index = self._write_free_slot(data) if sampler.consumes else parts.writer.add(data)
            if index is None:
                return None
            rows = index if isinstance(index, Tensor) else torch.tensor([index])
            sampler.add(rows)
            if priority is not None:
                sampler.update_priority(rows, priority, storage=storage)
        return index if storage.ndim == 1 else self._as_indices(rows)

    def extend(self, data: Any, *, update_priority: bool = True) -> Tensor:
        """Write several steps.

        Args:
            data: A tensor, TensorDict or pytree with an additional axis compared to a step, `dim_extend`, or a list of
                steps. A tuple is a pytree.
            update_priority: Whether to use the priorities in the data, which a buffer of TensorDicts supports.

        Returns:
            The indices of the steps, int64 [n], or [n * envs, ndim] with several environments, -1 for steps that the
            writer did not store.
        """
        if is_dynamo_compiling():
            rows: Tensor = call_uncompiled(self.extend, data, update_priority=update_priority)
            return rows
        data = self._to_write(data, single=False)
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        if self.dim_extend > 0 and not isinstance(data, list):
            data = move_time_first(data, self.dim_extend)
        parts = self._components
        parts.writer.check(data)
        with parts.lock as lock:
            lock.wait_for_reads()
            storage, sampler = parts.storage, parts.sampler
            priority = self._priority_of(data, storage.ndim) if update_priority else None
            rows = self._write_free_slots(data) if sampler.consumes else parts.writer.extend(data)
            if rows.numel() and rows.min() < 0:
                is_stored = rows >= 0
                stored, priority = rows[is_stored], None if priority is None else priority[is_stored]
            else:
                stored = rows
            sampler.extend(stored)
            if priority is not None:
                sampler.update_priority(stored, priority, storage=storage)
        return rows if storage.ndim == 1 else self._as_indices(rows)

    def _write_free_slot(self, data: Any) -> int | Tensor | None:
        """Write a step to the slot of a consumed step, if any."""
        sampler: Any = self.sampler
        free = sampler.slots_for(self.storage, 1)
        return self.writer.write_at(int(free), data) if len(free) else self.writer.add(data)

    def _write_free_slots(self, data: Any) -> Tensor:
        """Write steps to the slots of consumed steps, and then in ring order."""
        sampler: Any = self.sampler
        data = list(data) if isinstance(data, Iterator) else data
        free = sampler.slots_for(self.storage, self.storage.size_of(data))
        if not len(free):
            return self.writer.extend(data)
        first, rest = (split_data(data, part) for part in (slice(len(free)), slice(len(free), None)))
        rows = torch.as_tensor(self.writer.write_at(free, first))
        return torch.cat([rows, self.writer.extend(rest)]) if self.storage.size_of(rest) else rows

    def _validate_data(self, data: Any, *, single: bool) -> Any:
        """Validate data before the write, as a single step or several steps, and return the part to write."""
        del single
        return data

    def _to_write(self, data: Any, *, single: bool) -> Any:
        """Return data in stored form, after the inverse transforms, or None if a transform returns None."""
        data = self._validate_data(data, single=single)
        transforms = self._components.transforms
        found = (getattr(transform, "inv", None) for transform in reversed(transforms))
        inverses = [inverse for inverse in found if callable(inverse)] if transforms else []
        batched = single and bool(inverses) and is_tensor_collection(data)
        data = data.unsqueeze(0) if batched else data
        for inverse in inverses:
            if data is None:
                return None
            data = inverse(data)
        return data.squeeze(0) if batched and data is not None else data

    def _priority_of(self, data: Any, axes: int) -> Any:
        """Return the priorities, [rows, ...], in data that is about to be written, or None without priorities.

        Args:
            data: The data to write.
            axes: Number of its leading axes that index rows.
        """
        del data, axes

    def _as_indices(self, rows: Tensor) -> Tensor:
        return torch.stack(self.storage.unravel(rows), -1).masked_fill_((rows < 0).unsqueeze(-1), -1)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update the priorities of steps in the sampler.

        Args:
            index: An index from `extend` or a batch: an integer, int64 [n], a tuple with an index per axis, or [n,
                ndim].
            priority: A single number for all steps, or a number per step. For an index from `extend` of data with
                environments also in the shape of that data, ``[envs, time]``.

        Raises:
            InvalidArgumentError: If a priority is negative or not finite, or the shapes differ. Nothing has changed
                then.
        """
        with self.lock:
            rows = self.storage.ravel(index)
            if self.dim_extend > 0 and isinstance(priority, Tensor) and priority.ndim > 1:
                axis = self.dim_extend
                is_data_shaped = axis < priority.ndim and priority.shape[: axis + 1].numel() == rows.numel()
                if is_data_shaped and priority.shape[: rows.ndim] != rows.shape:
                    priority = priority.movedim(axis, 0).flatten(0, axis)
            self.sampler.update_priority(rows, priority, storage=self.storage)

    def mark_update(self, index: Any) -> None:
        """Report that steps were replaced in the storage: a prioritized sampler gives these steps the default priority.

        Writes through a buffer of this storage report themselves, if both buffers have the same sampler.

        Args:
            index: As for `update_priority`.
        """
        with self.lock:
            self.sampler.mark_update(self.storage.ravel(index), storage=self.storage)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps.

        Args:
            empty_write_count: Whether `write_count` restarts at 0.
        """
        with self.locked_for_change():
            if empty_write_count:
                self.writer.empty()
            else:
                self.writer.empty(empty_write_count=False)
            self.storage.empty()
            self.sampler.empty()

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite stored steps, or a field of stored steps. Inverse transforms are applied to whole steps only."""
        key = key_of(index)
        if key:
            self._overwrite({key: data})
            return
        with self.lock as lock:
            lock.wait_for_reads()
            data = self._to_write(data, single=is_single_slot(index))
            if data is not None:
                self.storage.overwrite(slice(None) if key is not None else index, data)

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Return the first `end` slots in the order of the storage, by default all: ``rb[:end]``."""
        return self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first slots, by default as many as the data fills: ``rb[:end] = data``."""
        self[: self.storage.size_of(data) if end is None else end] = data

    def set_(self, key: str | Key, value: Any) -> Self:
        """Overwrite a field of all steps in place, see `update_`: ``rb[key] = value``."""
        return self.update_({key: value})

    def set_at_(self, key: str | Key, value: Any, index: Any) -> Self:
        """Overwrite a field of the steps at an index of the leading axes of the storage, see `update_`."""
        return self._overwrite({as_key(key): value}, index)

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Sequence[str | Key] | None = None
    ) -> Self:
        """Overwrite several fields of all steps in place. Transforms are not applied.

        Args:
            input_dict_or_td: The new values by key, which may be nested. Values are expanded to the shapes of the
                fields.
            clone: Accepted for compatibility with TorchRL: the values are copied in any case.
            keys_to_update: The fields to overwrite. By default every given field.

        Returns:
            This buffer.

        Raises:
            UnknownKeyError: If the buffer has no such key.
            InvalidArgumentError: If a value does not fit. The message lists all problems, and nothing is written.
        """
        del clone
        values = leaves_by_key(input_dict_or_td)
        if keys_to_update is not None:
            chosen = [*map(as_key, keys_to_update)]
            values = {key: value for key, value in values.items() if any(key[: len(k)] == k for k in chosen)}
        return self._overwrite(values)

    def _overwrite(self, values: dict[Key, Any], index: Any = None) -> Self:
        """Overwrite fields at an index of the leading axes of the storage, by default of all steps."""
        with self.lock as lock:
            lock.wait_for_reads()
            storage = self.storage
            shape = getattr(storage, "shape", (len(storage),))
            rows = None if index is None else torch.arange(len(storage)).reshape(shape)[index]
            overwrite_fields(storage, values, rows)
        return self

    def update_if_present(
        self,
        *,
        index: Any,
        generation: Any,
        patch: Any,
        version_key: str | Key | None = None,
        version: Any = None,
        require_newer: bool = False,
    ) -> ConditionalUpdateResult:
        """Overwrite fields of sampled steps that were not replaced since.

            >>> rb = TensorDictReplayBuffer(writer=TensorDictRoundRobinWriter(track_generations=True), ...)
            >>> batch = rb.sample()               # the steps may be overwritten while new values are computed
            >>> rb.update_if_present(
            ...     index=batch["index"], generation=batch["index_generation"], patch={"value": values}
            ... ).stale_count

        A step was not replaced if its slot has the same generation as when the step was sampled. Other steps stay
        unchanged. A later update of the same steps may use the same index and generation.

        Args:
            index: The steps, as for `update_priority`, B steps.
            generation: The generations of the steps' slots, from the same batch, int64 [B].
            patch: The new values by key, each [B, ...].
            version_key: A field with a number per step. A step is overwritten only if the new version is not below
                the stored version, and the new version is stored, too. Of several updates of the same step, the update
                with the highest version is used, and of equal versions the last.
            version: The new version, a single number for all steps or a number per step.
            require_newer: Whether the new version must be above the stored version.

        Returns:
            Which steps were overwritten.

        Raises:
            UnknownKeyError: If there is no such key.
            InvalidArgumentError: If the writer does not track generations, the storage holds no fields, or a value does
                not fit. The message lists all problems, and nothing is written.
        """
        storage, writer = self.storage, self.writer
        if not writer.tracks_generations or isinstance(storage, ListStorage):
            raise InvalidArgumentError(
                f"conditional updates need fields and generations, and the buffer has a {type(storage).__name__} and "
                f"a {type(writer).__name__} with tracks_generations={writer.tracks_generations}",
                hint="pass writer=RoundRobinWriter(track_generations=True), and a storage of tensors",
            )
        with self.lock as lock:
            lock.wait_for_reads()
            rows = storage.ravel(index).reshape(-1)
            current, sampled = writer.generations_of(storage.unravel(rows)), torch.as_tensor(generation)
            if sampled.numel() != len(rows):
                raise InvalidArgumentError(
                    f"there are {sampled.numel()} generations for {len(rows)} steps, expected {len(rows)}"
                )
            live = (current >= 0) & (current == sampled.reshape(-1).to(current.device)) & (rows < len(storage))
            new = leaves_by_key(patch)
            return update_if_present(storage, rows, new, live, version_key, version, require_newer=require_newer)
