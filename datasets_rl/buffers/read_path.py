"""The read path of a buffer: a batch is drawn, read and finished.

    draw      sampler, sample unit            the rows of a batch, and the info of the sampler, under the lock
    read      storage, fields, device         the steps at these rows
    finish    collate_fn, transforms, pin     the batch

Single batches, runs of batches, prefetching, given rows, an index and compiled graphs differ in when and where these
three steps happen, and in nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor
from torch.utils._pytree import tree_map

from datasets_rl.buffers.arguments import MAX_BATCH, check_batch_size
from datasets_rl.buffers.batch import pin_batch
from datasets_rl.buffers.components import Composed
from datasets_rl.buffers.fields import field_of, key_of
from datasets_rl.buffers.forms import BatchForm, columns_as, given_rows
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import as_rows, wrap_negative_rows
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.packed import Column
from datasets_rl.storages.positions import is_single_slot
from datasets_rl.ted.keys import Key
from datasets_rl.transforms.base import NestedKey
from datasets_rl.transforms.compose import apply_transforms
from datasets_rl.transforms.gathered import add_gathered, own_reads, take_gathered

if TYPE_CHECKING:
    from datasets_rl.buffers.batches import Run
    from datasets_rl.buffers.query import Trajectory

_UNREAD = object()


@dataclass(slots=True)
class Drawn:
    """A sampled batch, before the steps are read."""

    storage: Storage
    index: Any
    info: dict[Any, Any]
    fields: tuple[Key, ...] | None = None
    """Keys of the fields to read, or None for all."""
    last: bool = False
    """Whether the batch ends an epoch of the sampler."""
    data: Any = _UNREAD
    """The steps, if read under the lock."""
    announced: bool = False
    """Whether its read outside the lock was announced."""
    before: Any = None
    """The position of the sampler before the batch, if the sampler has a position."""
    size: int | None = None
    """The requested number of steps, or None if unknown."""

    def unread(self) -> dict[str, Any]:
        """Return the arguments of a batch of the same rows that is not read yet."""
        info = {key: value for key, value in self.info.items() if key != "index"}
        kept = {name: getattr(self, name) for name in ("storage", "index", "fields", "last", "size")}
        return {**kept, "info": info}


class ReadPath(Composed):
    """The part of a buffer that makes batches, see the module."""

    batch_size: int | None
    """Default number of steps in a batch."""
    waiting: deque[Drawn]
    """Batches that an earlier loop or process drew ahead: the next batches, the oldest first."""

    index_name: ClassVar[str] = ""
    """The key of the index in a batch, empty if batches do not have the index."""
    runs: list[Run]
    """The runs of batches of which a loop has not received all."""

    @property
    def has_own_rows(self) -> bool:
        """Whether batches differ from what the sampler draws, so that only this buffer can make batches."""
        return self._components.sample_unit is not None

    def draw(self, batch_size: int | None, *, ahead: bool = False, fields: tuple[Key, ...] | None = None) -> Drawn:
        """Draw a batch. A batch of a storage that can be written is read, too.

        Args:
            batch_size: Number of steps, B. By default the constructor's number.
            ahead: Whether `make` or `discard` follows outside the lock, which writers wait for.
            fields: Keys of the fields to read, or None for all.

        Raises:
            InvalidArgumentError: If no batch size is given, or the buffer is empty.
        """
        size: Any = self.batch_size if batch_size is None else batch_size
        if type(size) is not int or not 1 <= size <= MAX_BATCH:
            check_batch_size(size)
        parts = self._components
        lock, storage = parts.lock, parts.storage
        read_only = storage.read_only
        with lock.reading if read_only else lock:
            if self.waiting and (waiting := self.take_waiting(size, fields)) is not None:
                return waiting
            sampler, writer = parts.sampler, parts.writer
            before = sampler.position if ahead else None
            index, info = self.choose_rows(storage, size)
            if writer.tracks_generations:
                info["index_generation"] = writer.generations_of(storage.unravel(index))
            drawn = Drawn(storage, index, info, fields, sampler.ran_out, _UNREAD, False, before, size)
            if not read_only:
                if ahead and not lock.shared:
                    drawn.announced = True
                    lock.begin_read()
                else:
                    drawn.data = self.read(drawn)
        return drawn

    def take_waiting(self, size: int, fields: tuple[Key, ...] | None = None) -> Drawn | None:
        """Return the next batch that was drawn earlier, or None if the next batch has another size."""
        try:
            if self.waiting[0].size not in {None, size}:
                return None
            drawn = self.waiting.popleft()
        except IndexError:  # another thread took the batch
            return None
        drawn.fields = fields
        if drawn.data is _UNREAD and not drawn.storage.read_only:
            drawn.data = self.read(drawn)
        return drawn

    def draw_rows(self, rows: Any, fields: tuple[Key, ...] | None = None) -> Drawn:
        """Draw a batch of given rows, see `ReplayBuffer.sample`. The state of the sampler does not change."""
        with self.lock:
            storage = self.storage
            index, info = self._expand(storage, given_rows(rows, storage), {})
            drawn = Drawn(storage, index, info, fields)
            if not storage.read_only:
                drawn.data = self.read(drawn)
        return drawn

    def choose_rows(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Return the rows of a batch, and the info. The caller holds the lock."""
        parts = self._components
        index, info = parts.sampler.sample(storage, batch_size)
        return (index, info) if parts.sample_unit is None else self._expand(storage, index, info)

    def _expand(self, storage: Storage, index: Any, info: dict[Any, Any]) -> tuple[Any, dict[Any, Any]]:
        """Replace the rows of a batch by the steps of the sample unit."""
        unit = self._components.sample_unit
        if unit is None:
            return index, info
        rows = index if isinstance(index, Tensor) else storage.ravel(index)
        index, info = unit.expand(rows if storage.ndim == 1 else storage.unravel(rows), info, storage)
        return storage.ravel(index), info

    def make(self, drawn: Drawn) -> tuple[Any, dict[Any, Any]]:
        """Read and finish a drawn batch, and return the batch with its info."""
        data, info = drawn.data, drawn.info
        if data is _UNREAD:
            try:
                data = self.read(drawn)
            finally:
                if drawn.announced:
                    self.discard(drawn)
        info["index"] = drawn.index if drawn.storage.ndim == 1 else drawn.storage.unravel(drawn.index)
        return self.finish(data, info), info

    @property
    def returns_stored_fields(self) -> bool:
        """Whether a batch is what the storage returns for the rows of the sampler, with the info, and nothing else."""
        parts = self._components
        return not parts.transforms and parts.collate_fn is None and not self.has_own_rows

    def take_stored(self, drawn: Drawn, form: BatchForm | None, *, with_info: bool) -> Any | None:
        """Read a drawn batch of stored fields in a form. None if the batch has to be made by `make`."""
        parts, index, info = self._components, drawn.index, drawn.info
        storage = parts.episodic
        if storage is None or storage is not drawn.storage or drawn.data is not _UNREAD or parts.pin_memory:
            return None
        # Fields are named only if this was true.
        if not _is_rows(index) or (drawn.fields is None and not self.returns_stored_fields):
            return None
        name = self.index_name if with_info else ""
        try:
            if form is None or form == "tensordict":
                batch: Any = storage.take_with(index, drawn.fields, {name: index} if name else {})
            else:
                batch = storage.take_named(index, drawn.fields, name, arrays=form == "numpy")
                if info and with_info:
                    batch = columns_as(batch | self.columns_of_info(info, index.shape), form)
                elif form != "numpy":
                    batch = columns_as(batch, form)
        finally:
            if drawn.announced:
                self.discard(drawn)
        info["index"] = index
        return batch

    def columns_of_info(self, info: dict[Any, Any], shape: torch.Size) -> dict[str, Column]:
        """Return the info of a sampler as leaves of a batch [B]: none, because batches of this class contain no info."""
        del info, shape
        return {}

    def discard(self, drawn: Drawn) -> None:
        """End the use of a drawn batch: writers no longer wait for its read."""
        if drawn.announced:
            self.lock.end_read()

    def read(self, drawn: Drawn) -> Any:
        """Return the steps of a drawn batch, and what transforms need of other rows."""
        storage, index = drawn.storage, drawn.index
        if drawn.fields is not None:
            return storage.take_fields(index, drawn.fields)
        transforms = self._components.transforms
        if isinstance(index, Tensor):
            return take_gathered(transforms, storage, index) if transforms else storage.take(index)
        # A custom sampler may also return an index per axis.
        data = storage.get(index)
        return add_gathered(transforms, storage, storage.ravel(index), data) if transforms else data

    def finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        """Return the batch of the steps that were read: collated, transformed and pinned.

        Args:
            data: The steps.
            info: The info of the sampler, and the index of the batch. Empty for steps that no sampler drew.
            collate: Whether the steps are a batch, and not a single step.
        """
        del info
        parts = self._components
        is_own = parts.collate_fn is None and type(data) is TensorDict
        if collate and parts.collate_fn is not None:
            data = parts.collate_fn(data)
        if parts.transforms:
            data = apply_transforms(parts.transforms, data, is_own=is_own)
        return pin_batch(data) if parts.pin_memory else data

    def query(
        self, predicate: Callable[[Any], Any] | None = None, *, trajectory_key: NestedKey | None = None
    ) -> list[Trajectory]:
        """Return the stored trajectories that fulfill a condition, as copies.

            >>> from datasets_rl import traj
            >>> good = rb.query((traj.reward.sum() > 100) & (traj.length >= 50))
            >>> good[0].observation, good[0].length

        The trajectories are the same as for slice samplers: a ring may wrap, and environments may alternate. Conditions
        and results see steps after the transforms, as in batches. Of trajectories that do not fulfill a condition built
        from `traj`, only the entries in the condition are read.

        Args:
            predicate: A condition on `traj`, or any function that maps a `Trajectory` to a bool. None for all
                trajectories. The function must not write to the buffer.
            trajectory_key: Key of the trajectory id. By default an id of the data, or flags, see `iter_trajectories`.

        Returns:
            The trajectories, from the oldest to the newest. With several environments, the trajectories of the first
            environment are first.

        Raises:
            InvalidArgumentError: If the steps are not TensorDicts, or the condition is on single steps.
            UnknownKeyError: If a key is missing.
        """
        from datasets_rl.buffers.query import query_storage  # deferred: tensordict creates its class for 20 ms

        with self.lock:
            storage = self.storage
            return query_storage(
                storage,
                lambda rows: self.finish(self.read(Drawn(storage, rows, {})), {}),
                self.transforms,
                predicate,
                trajectory_key,
            )

    def __getitem__(self, index: Any) -> Any:
        # With several environments, time is the first axis, [slots, *envs, ...], as in the documentation of TorchRL.
        # TorchRL 0.14 itself moves that axis back.
        key, transforms = key_of(index), self._components.transforms
        with self.lock:
            storage = self.storage
            if key is not None:
                has_columns = not (not key or transforms or storage.ndim > 1 or isinstance(storage, ListStorage))
                return storage.column(key) if has_columns else field_of(self[:], key)
            if storage.ndim == 1 and own_reads(transforms, storage):
                rows = wrap_negative_rows(as_rows(index, len(storage)), len(storage))
                data = take_gathered(transforms, storage, rows.reshape(-1)).reshape(rows.shape)
                return self.finish(data, {}, collate=not is_single_slot(index))
            data = storage.get(index)
            if transforms and not storage.read_only:
                # A transform that modifies its input would change the buffer.
                data = tree_map(_clone_leaf, data)
            if storage.ndim > 1 and is_tensor_collection(data) and data.ndim == storage.ndim:
                data.names = ["time", *[None] * (data.ndim - 1)]
            if is_tensor_collection(data) and any(hasattr(transform, "gather") for transform in transforms):
                data = self._gather_at(index, data)
        return self.finish(data, {}, collate=not is_single_slot(index))

    def _gather_at(self, index: Any, data: Any) -> Any:
        """Let transforms read other rows for the data at an index, as for a batch of the same rows."""
        storage = self.storage
        if storage.ndim == 1:
            rows = wrap_negative_rows(as_rows(index, len(storage)), len(storage))
        else:
            envs = storage.get(slice(0, 0)).batch_size[1 : storage.ndim]
            rows = torch.arange(len(storage)).reshape(-1, *envs)[index]
        if rows.ndim > data.ndim:
            return data
        inner = data.shape[rows.ndim :]  # of elements that are whole episodes
        flat = add_gathered(self.transforms, storage, rows.reshape(-1), data.reshape(-1, *inner))
        return flat.reshape(*rows.shape, *inner)

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the steps at a list of indices.

        `torch.utils.data.DataLoader` reads a batch with a single such call.
        """
        data = self[indices]
        # The loader's default collate function stacks the items of a list, and combines a TensorDict key by key.
        if isinstance(data, Tensor):
            return list(data)
        return data if is_tensor_collection(data) else [*map(self.__getitem__, indices)]

    def __len__(self) -> int:
        """Return the number of stored steps. With a `ConsumingSampler`, the number of steps that can still be drawn."""
        sampler: Any = self.sampler
        return sampler.available_count(self.storage) if getattr(sampler, "consumes", False) else len(self.storage)


def _is_rows(index: Any) -> bool:
    """Return whether an index is rows, [B]. A custom sampler may return another index."""
    return isinstance(index, Tensor) and index.ndim == 1


def _clone_leaf(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) or is_tensor_collection(leaf) else leaf
