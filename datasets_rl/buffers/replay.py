"""The composable replay buffer: storage, sampler, writer, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Generator, Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils._pytree import tree_map
from typing_extensions import override

from datasets_rl.buffers.arguments import (
    MAX_BATCH,
    InBuffer,
    Inverted,
    Transform,
    axis_problems,
    batch_size_problems,
    build_component,
    deployment_problems,
    size_problems,
    transforms_of,
)
from datasets_rl.buffers.batch import move_time_first, pin_batch, split_data, stack_items
from datasets_rl.buffers.batches import Run, can_read_runs, runs_of_batches
from datasets_rl.buffers.compiled import GraphHandle, call_uncompiled, can_compile, sample_in_graph
from datasets_rl.buffers.conditional import ConditionalUpdate, ConditionalUpdateResult
from datasets_rl.buffers.delayed import delay
from datasets_rl.buffers.display import as_html, as_text
from datasets_rl.buffers.fields import field_of, key_of, leaves_by_key, overwrite_fields, write_field
from datasets_rl.buffers.forms import BatchForm, as_form, check_form, given_rows, select_fields
from datasets_rl.buffers.lock import BufferLock, BufferLocks
from datasets_rl.buffers.prefetch import Prefetch
from datasets_rl.buffers.sample_units import SampleUnit
from datasets_rl.buffers.state import (
    batch_from_state,
    batch_to_state,
    chronological_state,
    component_problems,
    document_problems,
    env_count,
    saved_batch_problems,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format import checkpoint
from datasets_rl.format.checkpoint import Stateful, write_state
from datasets_rl.remedy import Argument, Remedy
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.consuming import ConsumingSampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import as_rows, wrap_negative_rows
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.positions import is_single_slot
from datasets_rl.ted.keys import Key, as_key
from datasets_rl.transforms.base import NestedKey
from datasets_rl.transforms.compose import Compose, apply_transforms
from datasets_rl.transforms.gathered import add_gathered
from datasets_rl.writers.base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter
from datasets_rl.writers.round_robin import RoundRobinWriter

if TYPE_CHECKING:
    from datasets_rl.buffers.query import Trajectory

__all__ = ["ReplayBuffer"]

_UNREAD = object()
_DEFAULT_SIZE = 1_000


@dataclass(slots=True)
class Drawn:
    """A sampled batch, before it is read."""

    storage: Storage
    index: Any
    info: dict[Any, Any]
    data: Any = _UNREAD
    last: bool = False
    """Whether the batch ends an epoch of the sampler."""
    announced: bool = False
    """Whether its read outside the lock was announced."""
    fields: tuple[Key, ...] | None = None
    """Keys of the fields to read; None for all."""


class ReplayBuffer(Stateful):
    """Steps that are written, sampled and read in batches.

        >>> from datasets_rl import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> steps = TensorDict({"observation": torch.zeros(100, 3), "next": {"reward": torch.ones(100, 1)}}, [100])
        >>> index = rb.extend(steps)              # write path: inverse transforms, writer, storage
        >>> rb.sample()["observation"].shape      # read path: sampler, storage, collate_fn, transforms, pinning
        torch.Size([32, 3])
        >>> rb[10:20].shape, rb["next", "reward"].shape
        (torch.Size([10]), torch.Size([100, 1]))

    Integers and slices return views: writes to a view change the buffer (with transforms, a copy is returned). Index
    tensors, lists and masks return copies, as `sample` does.

    Threads may write and sample concurrently: a batch is sampled and read atomically. `share` extends this to
    processes.

    Args:
        storage: Stores the steps; a `ListStorage` of 1,000 by default. A class or a factory is called without
            arguments.
        sampler: Samples the steps; uniform with replacement by default.
        sample_unit: Replaces each step that the sampler draws, such as `Sequence`, by a window of steps; by default,
            each is one step of the batch.
        writer: Chooses the slots of new steps; a ring buffer by default.
        collate_fn: Applied to the data that the storage returns. By default, the list of items of a `ListStorage` is
            stacked, and the data of other storages is not changed.
        pin_memory: Whether batches are copied to page-locked memory, which speeds up copies to a GPU. A TensorDict
            becomes one block, so that ``to(device, non_blocking=True)`` is a single copy.
        prefetch: Number of batches prepared ahead of time, by as many threads; requires `batch_size`. The sampling
            order is the same as without prefetching; a transform that draws its own random numbers runs in the threads,
            in no fixed order. None and 0 prepare none.
        transform: Applied to every batch; a callable, or a sequence of callables applied in order. If a transform has a
            method `inv`, it is applied to written data, the last transform first. If it has a method `gather(storage,
            rows, data)`, it is applied directly after the rows are read, and may read other rows.
        transform_factory: Creates the transform when the components are created; mutually exclusive with `transform`.
        batch_size: Default number of steps in a batch.
        dim_extend: The axis of the data passed to `extend` along which it is written; by default the last leading axis
            of the storage, ``storage.ndim - 1``: time.
        checkpointer: Not supported, because `dumps` has a single format; expected None.
        generator: Random generator of the sampler; by default torch's global generator.
        consume_after_n_samples: Number of batches in which a step occurs before its slot is free for a new step, see
            `ConsumingSampler`; mutually exclusive with another sampler and with `prefetch`. None keeps all steps.
        shared: Whether to share the memory with other processes from the start, see `share`.
        compilable: Accepted for compatibility with TorchRL; has no effect: `sample` runs in ``torch.compile`` anyway.
        delayed_init: Whether the components are created at the first use of the buffer, in the process that uses it
            first; by default if there is a `transform_factory`. Errors in the arguments are then raised there.
        service_backend: Where the buffer lives; only "direct" is supported, this process.
        service_backend_options: Options of another backend; expected None.
        transport: How a remote buffer is reached; expected "auto" or "direct".
        transport_options: Options of another transport; expected None.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or invalid. The message lists all problems.
    """

    _delayed: dict[str, Any]
    """The arguments of components that do not exist yet, see `delay`."""

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        sample_unit: SampleUnit | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        transform_factory: Callable[[], Transform | Sequence[Transform]] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        checkpointer: None = None,
        generator: Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        service_backend: str = "direct",
        service_backend_options: Mapping[str, Any] | None = None,
        transport: str = "auto",
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        del compilable
        problems = deployment_problems(service_backend, service_backend_options, transport, transport_options)
        if sample_unit is not None and not isinstance(sample_unit, SampleUnit):
            problems.append(
                f"sample_unit is {sample_unit!r}; expected an instance of a SampleUnit, such as Sequence(8)"
            )
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        arguments: dict[str, Any] = {
            "storage": storage,
            "sampler": sampler,
            "sample_unit": sample_unit,
            "writer": writer,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "prefetch": prefetch,
            "transform": transform,
            "transform_factory": transform_factory,
            "batch_size": batch_size,
            "dim_extend": dim_extend,
            "checkpointer": checkpointer,
            "generator": generator,
            "consume_after_n_samples": consume_after_n_samples,
            "shared": shared,
        }
        if transform_factory is not None if delayed_init is None else delayed_init:
            delay(self, arguments)
        else:
            self._create_components(**arguments)

    def _create_components(
        self,
        *,
        storage: Any,
        sampler: Any,
        sample_unit: SampleUnit | None,
        writer: Any,
        collate_fn: Any,
        pin_memory: bool,
        prefetch: int | None,
        transform: Any,
        transform_factory: Any,
        batch_size: int | None,
        dim_extend: int | None,
        checkpointer: Any,
        generator: Any,
        consume_after_n_samples: int | None,
        shared: bool,
    ) -> None:
        problems = [*batch_size_problems(batch_size), *size_problems(prefetch=prefetch or None)]
        if prefetch and batch_size is None:
            problems.append("prefetch prepares batches before `sample` is called, so it requires batch_size")
        self._storage: Storage = build_component(storage, "get", problems, lambda: ListStorage(_DEFAULT_SIZE))
        given: Any = build_component(sampler, "sample", problems, RandomSampler)
        self._sampler: Sampler = _consuming_sampler(given, consume_after_n_samples, prefetch, problems)
        read_only = self._storage is not None and getattr(self._storage, "read_only", False)
        default_writer = ImmutableDatasetWriter if read_only else self._default_writer
        self._writer: Writer = build_component(writer, "extend", problems, default_writer)
        self._transforms: list[Transform] = _transforms_from(transform, transform_factory, problems)
        problems += axis_problems(dim_extend=dim_extend)
        if collate_fn is not None and not callable(collate_fn):
            problems.append(f"collate_fn {collate_fn!r} is not callable")
        if generator is not None and not isinstance(generator, Generator):
            problems.append(f"generator is {generator!r}; expected a torch.Generator")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        if checkpointer is not None:
            self._storage.checkpointer = checkpointer
        if generator is not None:
            self.set_rng(generator)
        self._storage.attach(self)
        self._sampler.attach(self._storage)
        self._writer.register_storage(self._storage)
        self._sample_unit = sample_unit
        self._collate_fn = collate_fn if collate_fn is not None else _collate_fn_of(self._storage)
        # Without an accelerator, page-locked memory has no use, and torch cannot allocate it.
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._dim_extend = dim_extend
        self.batch_size = batch_size
        self._ran_out = False
        """Whether the last batch ended an epoch."""
        self._iterator: Iterator[Any] | None = None
        """Iterator that `next` advances."""
        self._lock: BufferLock | BufferLocks = BufferLock()
        self._graph = GraphHandle(self)
        self._prefetch = self._make_prefetch(prefetch or None)
        if shared:
            self.share()
        elif self._storage.shared and not self._storage.read_only:
            self._lock.share(self._storage)

    @property
    def initialized(self) -> bool:
        """Whether the components exist; False before the first use of a buffer with `delayed_init`."""
        return "_delayed" not in self.__dict__

    def _default_writer(self) -> Writer:
        return RoundRobinWriter()

    @property
    def storage(self) -> Storage:
        """The storage of the buffer."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler of the buffer."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """The writer of the buffer."""
        return self._writer

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms applied to every batch, in order."""
        return tuple(self._transforms)

    @property
    def transform(self) -> Compose:
        """The transforms applied to every batch, as one transform; an empty one if the buffer has no transforms.

        If the buffer was created with a single `Compose`, that object is returned. A transform inserted into the result
        is applied to later batches.
        """
        if len(self._transforms) == 1 and isinstance(self._transforms[0], Compose):
            return self._transforms[0]
        return InBuffer(self._transforms, self._locked_for_change)

    @property
    def dim_extend(self) -> int:
        """The axis of the data passed to `extend` along which it is written."""
        return self._storage.ndim - 1 if self._dim_extend is None else self._dim_extend

    @property
    def write_count(self) -> int:
        """Number of slots written since the buffer was empty, including slots that have been overwritten."""
        return self._writer.write_count

    @property
    def torn_count(self) -> int:
        """Number of steps that `sample` skips because their writer process died; 0 once they are rewritten."""
        return self._storage.torn

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Replace the storage, and return the previous one.

        Args:
            storage: The new storage; later writes go to it.
            collate_fn: Applied to the data that the storage returns; by default the function that suits the storage.

        Returns:
            The previous storage.
        """
        _check_component(storage, "get")
        with self._locked_for_change():
            self._sampler.attach(storage)
            previous, self._storage = self._storage, storage
            storage.attach(self)
            self._writer.register_storage(storage)
            self._sampler.empty()
            self._collate_fn = collate_fn if collate_fn is not None else _collate_fn_of(storage)
            if storage.shared and not storage.read_only:
                self._lock.share(storage)
        return previous

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler, and return the previous one."""
        _check_component(sampler, "sample")
        with self._locked_for_change():
            sampler.attach(self._storage)
            previous, self._sampler = self._sampler, sampler
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer, and return the previous one."""
        _check_component(writer, "extend")
        with self._locked_for_change():
            writer.register_storage(self._storage)
            previous, self._writer = self._writer, writer
        return previous

    def set_rng(self, generator: Generator) -> None:
        """Set the random generator of the sampler."""
        self._sampler.generator = generator

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Append a transform.

        Args:
            transform: A callable, or a sequence of callables.
            invert: Whether to swap its directions: the callable is applied to written data, and its `inv` to batches.

        Returns:
            This buffer.
        """
        self.insert_transform(len(self._transforms), transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Insert a transform at an index, see `append_transform`."""
        problems: list[str] = []
        transforms = transforms_of(transform, problems)
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        with self._locked_for_change():
            self._transforms[index:index] = map(Inverted, transforms) if invert else transforms
        return self

    def add(self, data: Any) -> Any:
        """Write one step; for a storage with several environments, one step of each.

        Args:
            data: One element, without a leading axis. Inverse transforms receive it as a batch of one.

        Returns:
            Its index; int64 [envs, ndim] with several environments; None if the writer did not store it.
        """
        if is_dynamo_compiling():
            return call_uncompiled(self.add, data)
        data = self._apply_inverses(self._validate_data(data, single=True), single=True)
        if data is None:
            return None
        self._writer.check(data)
        with self._locked_for_writing():
            priority = self._priority_of(data, self._storage.ndim - 1)
            is_consuming = getattr(self._sampler, "consumes", False)
            index = self._write_free_slot(data) if is_consuming else self._writer.add(data)
            if index is None:
                return None
            rows = index if isinstance(index, Tensor) else torch.tensor([index])
            self._sampler.add(rows)
            if priority is not None:
                self._sampler.update_priority(rows, priority, storage=self._storage)
        return index if self._storage.ndim == 1 else self._as_indices(rows)

    def extend(self, data: Any, *, update_priority: bool = True) -> Tensor:
        """Write several steps.

        Args:
            data: A tensor, TensorDict or pytree whose leaves have one more axis than a step, `dim_extend`; or a list of
                steps. A tuple is a pytree.
            update_priority: Whether to use the priorities in the data, which a buffer of TensorDicts supports.

        Returns:
            The indices of the steps, int64 [n], or [n * envs, ndim] with several environments; -1 for steps that the
            writer did not store.
        """
        if is_dynamo_compiling():
            rows: Tensor = call_uncompiled(self.extend, data, update_priority=update_priority)
            return rows
        data = self._apply_inverses(self._validate_data(data, single=False), single=False)
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        if self.dim_extend > 0 and not isinstance(data, list):
            data = move_time_first(data, self.dim_extend)
        self._writer.check(data)
        with self._locked_for_writing():
            priority = self._priority_of(data, self._storage.ndim) if update_priority else None
            is_consuming = getattr(self._sampler, "consumes", False)
            rows = self._write_free_slots(data) if is_consuming else self._writer.extend(data)
            if rows.numel() and rows.min() < 0:
                is_stored = rows >= 0
                stored, priority = rows[is_stored], None if priority is None else priority[is_stored]
            else:
                stored = rows
            self._sampler.extend(stored)
            if priority is not None:
                self._sampler.update_priority(stored, priority, storage=self._storage)
        return rows if self._storage.ndim == 1 else self._as_indices(rows)

    def _write_free_slot(self, data: Any) -> int | Tensor | None:
        """Write one step to the slot of a consumed step, if there is one."""
        sampler: Any = self._sampler
        free = sampler.slots_for(self._storage, 1)
        return self._writer.write_at(int(free), data) if len(free) else self._writer.add(data)

    def _write_free_slots(self, data: Any) -> Tensor:
        """Write steps to the slots of consumed steps, and then in ring order."""
        sampler: Any = self._sampler
        data = list(data) if isinstance(data, Iterator) else data
        free = sampler.slots_for(self._storage, self._storage.size_of(data))
        if not len(free):
            return self._writer.extend(data)
        first, rest = (split_data(data, part) for part in (slice(len(free)), slice(len(free), None)))
        rows = torch.as_tensor(self._writer.write_at(free, first))
        return torch.cat([rows, self._writer.extend(rest)]) if self._storage.size_of(rest) else rows

    def _priority_of(self, data: Any, axes: int) -> Any:
        """Return the priorities, [rows, ...], in data that is about to be written; None if it has none.

        Args:
            data: The data to write.
            axes: Number of its leading axes that index rows.

        Raises:
            InvalidArgumentError: If the sampler cannot accept the priorities.
        """
        del data, axes

    def _as_indices(self, rows: Tensor) -> Tensor:
        return torch.stack(self._storage.unravel(rows), -1).masked_fill_((rows < 0).unsqueeze(-1), -1)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update the priorities of steps in the sampler.

        Args:
            index: An index from `extend` or a batch: an integer, int64 [n], a tuple with one index per axis, or [n,
                ndim].
            priority: One number for all steps, or one per step; for an index from `extend` of data with environments
                also in the shape of that data, ``[envs, time]``.

        Raises:
            InvalidArgumentError: If a priority is negative or not finite, or the shapes differ; nothing has changed.
        """
        with self._lock:
            rows = self._storage.ravel(index)
            if self.dim_extend > 0 and isinstance(priority, Tensor) and priority.ndim > 1:
                axis = self.dim_extend
                is_data_shaped = axis < priority.ndim and priority.shape[: axis + 1].numel() == rows.numel()
                if is_data_shaped and priority.shape[: rows.ndim] != rows.shape:
                    priority = priority.movedim(axis, 0).flatten(0, axis)
            self._sampler.update_priority(rows, priority, storage=self._storage)

    def mark_update(self, index: Any) -> None:
        """Report that steps have been replaced in the storage: a prioritized sampler gives them the default priority.

        Writes through a buffer of this storage report themselves, if its sampler is the one of this buffer.

        Args:
            index: As for `update_priority`.
        """
        with self._lock:
            self._sampler.mark_update(self._storage.ravel(index), storage=self._storage)

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps.

        Args:
            empty_write_count: Whether `write_count` restarts at 0.
        """
        with self._locked_for_change():
            if empty_write_count:
                self._writer.empty()
            else:
                self._writer.empty(empty_write_count=False)
            self._storage.empty()
            self._sampler.empty()

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        keys: str | Iterable[str | Key] | None = None,
        rows: Any = None,
        as_: BatchForm | None = None,
    ) -> Any:
        """Sample a batch, or read one of given rows.

            >>> rb.sample(256, keys=["observation", "action", "next.reward"])
            >>> rb.sample(rows=[0, 4, 4], as_="numpy")["next.reward"]

        Args:
            batch_size: Number of steps, B; by default that of the constructor.
            return_info: Whether to return the info of the sampler, too.
            keys: Fields of the batch, each as a dotted name or a tuple of names; a name of several fields, "next", stands
                for all of them. By default all fields. Over a dataset without transforms, the others are not read. A
                batch with a next observation keeps ``("next", "final_known")``, if it has it.
            rows: Rows of the batch, integers [B], in the form of ``batch["index"]``, instead of a random choice; the
                state of the sampler does not change. Rows in the memory of an accelerator are not checked.
            as_: The form of the batch. "tensordict" is the default. "dict" is a flat dict of tensors by dotted name,
                ``batch["next.reward"]``, "numpy" one of arrays that share the memory of the batch, and "jax" one of
                arrays on the default device of jax.

        Returns:
            The batch, or the batch and a dict of info, with its ``"index"``.

        Raises:
            InvalidArgumentError: If no batch size is given, or the buffer is empty; or if rows are out of range.
            UnknownKeyError: If a batch has no such field.
        """
        if as_ is not None:
            check_form(as_)
        batch, info = self._sample(batch_size, keys, rows)
        batch = batch if as_ is None else as_form(batch, as_)
        return (batch, info) if return_info else batch

    def _sample(self, batch_size: int | None, keys: Any = None, rows: Any = None) -> tuple[Any, dict[Any, Any]]:
        """Return a batch and its info, see `sample`."""
        names = None if keys is None else _field_names(keys)
        fields = None if names is None else self._fields_to_read(names)
        if rows is None and is_dynamo_compiling() and can_compile(self):
            size: Any = batch_size if batch_size is not None else self.batch_size
            self._check_batch_size(size)
            batch, info = sample_in_graph(self, size)
        elif rows is not None:
            batch, info = self._make_batch(self._draw_given(rows, batch_size, fields))
        elif self._prefetch is not None and batch_size in {None, self.batch_size}:
            drawn, (batch, info) = self._prefetch.next()
            self._ran_out, fields = drawn.last, None
        else:
            drawn = self._draw(batch_size) if fields is None else self._draw(batch_size, fields=fields)
            batch, info = self._make_batch(drawn)
            self._ran_out = drawn.last
        if names is not None and (fields is None or len(info) > 1):
            batch = select_fields(batch, names, info)
        return batch, info

    def _fields_to_read(self, names: tuple[str | Key, ...]) -> tuple[Key, ...] | None:
        """Return the keys of the fields of a batch if the storage can read them without the others, else None."""
        storage = self._storage
        alone = not self._transforms and self._collate_fn is None and not self._has_own_rows
        return storage.keys_named(names) if alone and isinstance(storage, EpisodicStorage) else None

    def _draw_given(self, rows: Any, batch_size: int | None, fields: tuple[Key, ...] | None) -> Drawn:
        """Return a batch of given rows as a drawn one."""
        if batch_size is not None:
            raise InvalidArgumentError("rows and batch_size were given; expected one of them")
        with self._lock:
            storage = self._storage
            index, info = self._expanded(storage, given_rows(rows, storage), {})
            drawn = Drawn(storage, index, info, fields=fields)
            if not storage.read_only:
                drawn.data = self._gather_data(drawn)
        return drawn

    def batches(self, count: int | None = None, batch_size: int | None = None) -> Iterator[Any]:
        """Yield batches, as `sample` returns them; over a dataset, faster than as many calls of it.

        Over a read-only storage, up to 64 batches are drawn ahead and read at once; the batches are views of the result.
        With the same seed, they equal those of `sample`. While a loop runs, the sampler is ahead of it: to save a state
        from which to continue exactly, iterate over the buffer itself.

            >>> for batch in dataset.batches(100_000):
            ...     train(batch)

        Args:
            count: Number of batches; by default until the sampler runs out, which most samplers never do.
            batch_size: Number of steps in a batch, B; by default that of the constructor.

        Raises:
            InvalidArgumentError: If no batch size is given, or the buffer is empty.
        """
        if self._draws_alone and can_read_runs(self):
            yield from runs_of_batches(self, count, batch_size)
            return
        yield from self._sampled(count, batch_size)

    def _sampled(self, count: int | None, batch_size: int | None) -> Iterator[Any]:
        """Yield batches, one call of `sample` each: the state of the sampler is that after the last one."""
        ran_out = False
        while (count is None and not ran_out) or (count is not None and count > 0):
            batch = self.sample(batch_size)
            # With prefetching, the sampler itself is ahead of this batch.
            ran_out = self._ran_out
            count = None if count is None else count - 1
            yield batch

    @property
    def _draws_alone(self) -> bool:
        """Whether batches are exactly what the sampler draws from the storage."""
        return (
            type(self)._draw is ReplayBuffer._draw  # noqa: SLF001 - of this class
            and self._prefetch is None
            and self._collate_fn is None
            and not self._pin_memory
            and not self._has_own_rows
        )

    def _draw_run(self, batches: int, batch_size: int | None, *, to_end: bool) -> Run:
        """Draw batches from a read-only storage; with `to_end`, at most until the sampler runs out."""
        size: Any = batch_size if batch_size is not None else self.batch_size
        self._check_batch_size(size)
        storage, drawn = self._storage, []
        with self._lock:
            if batches > 1 and self._sample_unit is None:
                sampled = self._sampler.sample_batches(storage, size, batches)
                if sampled is not None:
                    return Run([Drawn(storage, *sampled)], [False] * batches, [size] * batches)
            for _ in range(batches):
                index, info = self._choose_rows(storage, size)
                drawn.append(Drawn(storage, index, info, last=self._sampler.ran_out))
                if to_end and drawn[-1].last:
                    break
        return Run.of_batches(drawn)

    def _check_batch_size(self, size: Any) -> None:
        """Check a batch size.

        Raises:
            InvalidArgumentError: If there is none, or it is not an integer from 1 to `MAX_BATCH`.
        """
        if size is None:
            raise InvalidArgumentError("no batch size", hint="pass batch_size to the constructor, or to sample()")
        problems = batch_size_problems(size)
        if problems:
            too_large = not size_problems(batch_size=size)
            smaller = Remedy("take a smaller {}", Argument("batch_size")) if too_large else ""
            raise InvalidArgumentError(problems[0], hint=smaller)

    def _draw(self, batch_size: int | None, *, ahead: bool = False, fields: tuple[Key, ...] | None = None) -> Drawn:
        size: Any = batch_size if batch_size is not None else self.batch_size
        if type(size) is not int or not 1 <= size <= MAX_BATCH:
            self._check_batch_size(size)
        lock, storage = self._lock, self._storage
        with lock:
            index, info = self._choose_rows(storage, size)
            if self._writer.tracks_generations:
                info["index_generation"] = self._writer.generations_of(storage.unravel(index))
            drawn = Drawn(storage, index, info, last=self._sampler.ran_out, fields=fields)
            if ahead and not storage.read_only and not lock.shared:
                drawn.announced = True
                lock.begin_read()
            elif not storage.read_only:
                drawn.data = self._gather_data(drawn)
        return drawn

    def _choose_rows(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Return the rows of a batch, and its info; the caller holds the lock."""
        index, info = self._sampler.sample(storage, batch_size)
        return self._expanded(storage, index, info)

    def _expanded(self, storage: Storage, index: Any, info: dict[Any, Any]) -> tuple[Any, dict[Any, Any]]:
        """Replace the rows of a batch by the steps of the sample unit."""
        if self._sample_unit is None:
            return index, info
        rows = index if isinstance(index, Tensor) else storage.ravel(index)
        anchors = rows if storage.ndim == 1 else storage.unravel(rows)
        index, info = self._sample_unit.expand(anchors, info, storage)
        return storage.ravel(index), info

    @property
    def _has_own_rows(self) -> bool:
        """Whether batches differ from what the sampler draws, so that only this buffer can make them."""
        return self._sample_unit is not None

    def _draw_parts(self, batch_size: int) -> tuple[Drawn, list[Tensor]]:
        """Draw a batch, and return the rows of the tables of its storage, see `TensorStorage.take_parts`."""
        with self._lock:
            drawn = self._draw(batch_size, ahead=True)
            try:
                parts: list[Tensor] = drawn.storage.take_parts(drawn.index)  # type: ignore[attr-defined]  # see can_compile
            finally:
                self._discard_drawn(drawn)
        self._ran_out = drawn.last
        return drawn, parts

    def _make_batch(self, drawn: Drawn) -> tuple[Any, dict[Any, Any]]:
        data, info = drawn.data, drawn.info
        if data is _UNREAD:
            try:
                data = self._gather_data(drawn)
            finally:
                self._discard_drawn(drawn)
        info["index"] = drawn.index if drawn.storage.ndim == 1 else drawn.storage.unravel(drawn.index)
        return self._finish_batch(data, info), info

    def _gather_data(self, drawn: Drawn) -> Any:
        storage, index = drawn.storage, drawn.index
        # A custom sampler may also return one index per axis.
        if drawn.fields is not None:
            return storage.take_fields(index, drawn.fields)
        if isinstance(index, Tensor):
            return add_gathered(self._transforms, storage, index, storage.take(index))
        return add_gathered(self._transforms, storage, storage.ravel(index), storage.get(index))

    def _discard_drawn(self, drawn: Drawn) -> None:
        if drawn.announced:
            self._lock.end_read()

    def _finish_batch(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        del info
        if collate and self._collate_fn is not None:
            data = self._collate_fn(data)
        data = apply_transforms(self._transforms, data, is_own=self._collate_fn is None and type(data) is TensorDict)
        return pin_batch(data) if self._pin_memory else data

    def query(
        self, predicate: Callable[[Any], Any] | None = None, *, trajectory_key: NestedKey | None = None
    ) -> list[Trajectory]:
        """Return the stored trajectories that fulfill a condition, as copies.

            >>> from datasets_rl import traj
            >>> good = rb.query((traj.reward.sum() > 100) & (traj.length >= 50))
            >>> good[0].observation, good[0].length

        The trajectories are those of slice samplers: a ring may wrap, and environments may alternate. Conditions and
        results see steps after the transforms, as in batches. Of trajectories that do not fulfill a condition built
        from `traj`, only the entries that it names are read.

        Args:
            predicate: A condition on `traj`, or any function that maps a `Trajectory` to a bool; None for all
                trajectories. It must not write to the buffer.
            trajectory_key: Key of the trajectory id; by default an id of the data, or flags, see `iter_trajectories`.

        Returns:
            The trajectories, from the oldest to the newest; with several environments, those of the first one first.

        Raises:
            InvalidArgumentError: If the steps are not TensorDicts, or the condition is one on single steps.
            UnknownKeyError: If a key is missing.
        """
        from datasets_rl.buffers.query import query_storage  # deferred: tensordict creates its class for 20 ms

        with self._lock:
            return query_storage(self._storage, self._read_rows, self._transforms, predicate, trajectory_key)

    def _read_rows(self, rows: Tensor) -> Any:
        """Return the steps at rows, int64 [B], as a batch."""
        return self._finish_batch(self._gather_data(Drawn(self._storage, rows, {})), {})

    def _make_prefetch(self, depth: int | None) -> Prefetch[Drawn, tuple[Any, dict[Any, Any]]] | None:
        if depth is None:
            return None
        return Prefetch(
            depth, lambda: self._draw(self.batch_size, ahead=True), self._make_batch, self._discard_drawn, self._lock
        )

    @property
    def _inverses(self) -> list[Transform]:
        inverses = (getattr(transform, "inv", None) for transform in reversed(self._transforms))
        return [inverse for inverse in inverses if callable(inverse)]

    def _validate_data(self, data: Any, *, single: bool) -> Any:
        """Validate data before it is written, as one step or several, and return the part to write.

        Raises:
            InvalidArgumentError: If this buffer does not accept such data.
        """
        del single
        return data

    def _apply_inverses(self, data: Any, *, single: bool) -> Any:
        """Apply the inverse transforms to data; None if one of them returns None."""
        inverses = self._inverses
        batched = single and bool(inverses) and is_tensor_collection(data)
        data = data.unsqueeze(0) if batched else data
        for inverse in inverses:
            if data is None:
                return None
            data = inverse(data)
        return data.squeeze(0) if batched and data is not None else data

    @contextmanager
    def _locked_for_writing(self) -> Iterator[None]:
        with self._lock:
            self._lock.wait_for_reads()
            yield

    @contextmanager
    def _locked_for_change(self) -> Iterator[None]:
        """Hold the lock while no read is in progress; batches sampled ahead of time are discarded."""
        with self._lock:
            self._drain()
            self._lock.wait_for_reads()
            self._drain()  # other threads may have sampled during the wait
            yield

    def _drain(self) -> None:
        if self._prefetch is not None:
            self._prefetch.drain()

    def __getitem__(self, index: Any) -> Any:
        # With several environments, time is the first axis, [slots, *envs, ...], as in the documentation of TorchRL;
        # TorchRL 0.14 itself moves it back.
        key = key_of(index)
        with self._lock:
            if key is not None:
                return self._field(key)
            data = self._storage.get(index)
            if self._transforms and not self._storage.read_only:
                # A transform that modifies its input would change the buffer.
                data = tree_map(_clone_leaf, data)
            if self._storage.ndim > 1 and is_tensor_collection(data) and data.ndim == self._storage.ndim:
                data.names = ["time", *[None] * (data.ndim - 1)]
            if is_tensor_collection(data) and any(hasattr(transform, "gather") for transform in self._transforms):
                data = self._gather_at(index, data)
        return self._finish_batch(data, {}, collate=not is_single_slot(index))

    def _gather_at(self, index: Any, data: Any) -> Any:
        """Let transforms read other rows for the data at an index, as for a batch of the same rows."""
        storage = self._storage
        if storage.ndim == 1:
            rows = wrap_negative_rows(as_rows(index, len(storage)), len(storage))
        else:
            envs = storage.get(slice(0, 0)).batch_size[1 : storage.ndim]
            rows = torch.arange(len(storage)).reshape(-1, *envs)[index]
        if rows.ndim > data.ndim:
            return data
        inner = data.shape[rows.ndim :]  # of elements that are whole episodes
        flat = add_gathered(self._transforms, storage, rows.reshape(-1), data.reshape(-1, *inner))
        return flat.reshape(*rows.shape, *inner)

    def _field(self, key: Key) -> Any:
        storage = self._storage
        if not key or self._transforms or storage.ndim > 1 or isinstance(storage, ListStorage):
            return field_of(self[:], key)
        return storage.column(key)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite stored steps, or one of their fields; inverse transforms are applied to whole steps only."""
        key = key_of(index)
        with self._locked_for_writing():
            if key:
                column = self._storage.column(key)
                if self._storage.ndim > 1:
                    column = column.reshape(*getattr(self._storage, "shape", ()), *column.shape[1:])
                write_field(column, data, key, self._storage.rewriting())
                return
            single = is_single_slot(index)
            data = self._apply_inverses(self._validate_data(data, single=single), single=single)
            if data is not None:
                self._storage.replace(slice(None) if key is not None else index, data)

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Return the first slots in the order of the storage: ``rb[:end]``.

        Args:
            end: Number of slots; by default every slot that is held.
        """
        return self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first slots in the order of the storage: ``rb[:end] = data``.

        Args:
            data: The data of all these slots.
            end: Number of slots; by default as many as the data fills.
        """
        self[: self._storage.size_of(data) if end is None else end] = data

    def set_(self, key: str | Key, value: Any) -> ReplayBuffer:
        """Overwrite one field of all steps in place: ``rb[key] = value``. Transforms are not applied.

        Args:
            key: The field.
            value: The new values, which are expanded to the shape of the field.

        Returns:
            This buffer.

        Raises:
            UnknownKeyError: If there is no such key.
            InvalidArgumentError: If the value does not fit; nothing is written.
        """
        return self.update_({key: value})

    def set_at_(self, key: str | Key, value: Any, index: Any) -> ReplayBuffer:
        """Overwrite one field of some steps in place. Transforms are not applied.

        Args:
            key: The field.
            value: The new values, which are expanded to the shape of the field at this index.
            index: An index of the leading axes of the storage.

        Returns:
            This buffer.

        Raises:
            UnknownKeyError: If there is no such key.
            InvalidArgumentError: If the value does not fit; nothing is written.
        """
        with self._locked_for_writing():
            storage = self._storage
            shape = getattr(storage, "shape", (len(storage),))
            rows = torch.arange(len(storage)).reshape(shape)[index]
            overwrite_fields(storage, {as_key(key): value}, rows)
        return self

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Sequence[str | Key] | None = None
    ) -> ReplayBuffer:
        """Overwrite several fields of all steps in place. Transforms are not applied.

        Args:
            input_dict_or_td: The new values by key, which may be nested.
            clone: Accepted for compatibility with TorchRL: the values are copied in any case.
            keys_to_update: The fields to overwrite; by default every given one.

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
        with self._locked_for_writing():
            storage = self._storage
            rows = torch.arange(len(storage)).reshape(getattr(storage, "shape", (len(storage),)))
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
        """Overwrite fields of steps that are still those that were sampled.

            >>> rb = TensorDictReplayBuffer(writer=TensorDictRoundRobinWriter(track_generations=True), ...)
            >>> batch = rb.sample()               # its steps may be overwritten while their values are computed
            >>> rb.update_if_present(
            ...     index=batch["index"], generation=batch["index_generation"], patch={"value": values}
            ... ).stale_count

        A step is still the same if its slot has the generation that it had when it was sampled. Others stay unchanged.
        A later update of the same steps may use the same index and generation.

        Args:
            index: The steps, as for `update_priority`; B steps.
            generation: The generations of their slots, from the same batch, int64 [B].
            patch: The new values by key, each [B, ...].
            version_key: A field with one number per step. A step is overwritten only if its new version is not below
                the stored one, and the new version is stored with it. Of several updates of one step, the one with the
                highest version is used, and of equal ones the last.
            version: The new version, one number for all steps or one per step.
            require_newer: Whether the new version must be above the stored one.

        Returns:
            Which steps were overwritten.

        Raises:
            UnknownKeyError: If there is no such key.
            InvalidArgumentError: If the writer does not track generations, the storage holds no fields, or a value does
                not fit. The message lists all problems, and nothing is written.
        """
        if not self._writer.tracks_generations or isinstance(self._storage, ListStorage):
            raise InvalidArgumentError(
                f"conditional updates need fields and generations; the buffer has a {type(self._storage).__name__} and "
                f"a {type(self._writer).__name__} with tracks_generations={self._writer.tracks_generations}",
                hint="pass writer=RoundRobinWriter(track_generations=True), and a storage of tensors",
            )
        with self._locked_for_writing():
            rows = self._storage.ravel(index).reshape(-1)
            current = self._writer.generations_of(self._storage.unravel(rows))
            update = ConditionalUpdate(self._storage, rows, leaves_by_key(patch), version_key, version)
            return update.apply(torch.as_tensor(generation), current, require_newer=require_newer)

    def stats(self) -> dict[str, int | float | bool]:
        """Return the state of the buffer in numbers, for monitoring; nothing changes.

        Returns:
            ``"size"``, the number of steps; ``"write_count"``; ``"prefetch_queue_size"``, the number of batches in
            progress; ``"initialized"``; ``"capacity"``, the maximum number of steps; and ``"utilization"``, their
            ratio. Before the first use of a buffer with `delayed_init`, the capacity is known only if the storage was
            given as an instance.
        """
        if not self.initialized:
            delayed: Any = self._delayed["storage"]
            capacity = {} if not isinstance(delayed, Storage) else {"capacity": delayed.max_size, "utilization": 0.0}
            return {"size": 0, "write_count": 0, "prefetch_queue_size": 0, "initialized": False, **capacity}
        with self._lock:
            size, capacity_steps = len(self), self._storage.max_size
            return {
                "size": size,
                "write_count": self.write_count,
                "prefetch_queue_size": 0 if self._prefetch is None else len(self._prefetch.draws_in_progress),
                "initialized": True,
                "capacity": capacity_steps,
                "utilization": size / capacity_steps,
            }

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Add a function that is applied to the data of the storage when the state is saved; see `Storage`."""
        self._storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Add a function that is applied to the saved data of the storage when a state is loaded; see `Storage`."""
        self._storage.register_load_hook(hook)

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the steps at a list of indices; `torch.utils.data.DataLoader` reads a batch with one such call."""
        data = self[indices]
        # The loader's default collate function stacks the items of a list, and combines a TensorDict key by key.
        return (
            list(data)
            if isinstance(data, Tensor)
            else data
            if is_tensor_collection(data)
            else [*map(self.__getitem__, indices)]
        )

    def __len__(self) -> int:
        """Return the number of stored steps; with a `ConsumingSampler`, of those that can still be drawn."""
        sampler: Any = self._sampler
        return sampler.available_count(self._storage) if getattr(sampler, "consumes", False) else len(self._storage)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of the constructor's batch size, until the sampler runs out; most samplers never do.

        Raises:
            InvalidArgumentError: If the buffer has no batch size.
        """
        if self.batch_size is None:
            raise InvalidArgumentError("iterating needs a batch size", hint="pass batch_size to the constructor")
        yield from self._sampled(None, None)

    def next(self) -> Any:
        """Return the next batch of an iterator that the buffer keeps; None at its end, after which a new one starts.

        Raises:
            InvalidArgumentError: As `sample` does; the next call starts a new iterator.
        """
        iterator, self._iterator = self._iterator or iter(self), None
        batch = next(iterator, None)
        if batch is not None:
            self._iterator = iterator
        return batch

    def share(self, shared: bool = True) -> ReplayBuffer:
        """Move the data to shared memory, or reserve shared memory for the first data.

        Processes that receive this buffer after this call, by fork or as an argument of a spawned process, read and
        write the same steps. Sampler and writer are copied: the state of a sampler (priorities, the steps drawn in an
        epoch) stays private to each process.

        Args:
            shared: Whether to share. A buffer that is shared stays so.

        Returns:
            This buffer.

        Raises:
            InvalidArgumentError: If the storage cannot be shared, or `shared` is False for a shared buffer.
        """
        if not shared:
            if self._lock.shared:
                raise InvalidArgumentError(
                    "shared is False, and the buffer is shared already: other processes may use its memory",
                    hint="create a buffer, and load the state of this one",
                )
            return self
        if not self._storage.read_only:
            with self._locked_for_change():
                self._storage.share()
                self._lock.share(self._storage)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the state of storage, sampler and writer, and the batches that were sampled ahead of time.

        Transforms are not included. Tensors share memory with the buffer: save or copy them before it changes.
        """
        with self._lock:
            state: dict[str, Any] = {
                name: {"kind": type(part).__name__, "state": part.state_dict()}
                for name, part in self._components.items()
            }
            drawn = self._prefetch.draws_in_progress if self._prefetch is not None else []
            state["ahead"] = [batch_to_state(batch.index, dict(batch.info), last=batch.last) for batch in drawn]
        return state

    @property
    def _components(self) -> dict[str, Stateful]:
        return {"storage": self._storage, "sampler": self._sampler, "writer": self._writer}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        components = self._components
        reasons = document_problems([*components], state_dict)
        if reasons:
            return reasons
        ahead = state_dict.get("ahead", [])
        if not component_problems(self._storage, state_dict["storage"]):
            state_dict = self._chronological_state(state_dict)
        storage_state = state_dict["storage"]["state"]
        reasons = [
            f"{name}: {reason}"
            for name, part in components.items()
            for reason in component_problems(part, state_dict[name])
        ]
        if reasons:
            return reasons
        steps = storage_state["held"] * env_count(storage_state) if "held" in storage_state else self._storage.max_size
        return saved_batch_problems(ahead, steps)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; the capacity may differ if the steps fit.

        Raises:
            InvalidArgumentError: If the state does not fit; nothing has changed.
        """
        with self._locked_for_change():
            checkpoint.raise_reasons(self._readable_state_problems(state_dict))
            state_dict = self._chronological_state(state_dict)
            for name, part in self._components.items():
                part.load_state_dict(state_dict[name]["state"])
            if self._prefetch is not None:
                for saved in state_dict.get("ahead", ()):
                    index, info, last = batch_from_state(saved)
                    drawn = Drawn(self._storage, index, info, last=last)
                    if not self._storage.read_only:
                        drawn.data = self._gather_data(drawn)
                    self._prefetch.start(drawn)

    def _readable_state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        try:
            return self.state_problems(state_dict)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            # A state that is not from a checkpoint may hold anything anywhere.
            return [f"it cannot be read: {type(error).__name__}: {error}"]

    def _chronological_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return chronological_state(self._components, state_dict, self._storage.max_size)

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, see `state_dict` and `Stateful.dumps`, while holding the lock.

        The folder may contain the `scratch_dir` of the storage as a subfolder; its files stay, and the steps are copied.
        """
        with self._lock:
            live_files = getattr(self._storage, "scratch_dir", None)
            write_state(path, type(self).__name__, self.state_dict(), beside=live_files)

    save = dump = dumps

    def load(self, path: Path | str) -> None:
        """Restore a state that `dumps` wrote."""
        self.loads(path)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_iterator": None, "_graph": None}
        state["_prefetch"] = self._prefetch.depth if self._prefetch is not None else None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        depth = state.pop("_prefetch")
        self.__dict__.update(state)
        self._graph = GraphHandle(self)
        self._prefetch = self._make_prefetch(depth)

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def _transforms_from(transform: Any, factory: Any, problems: list[str]) -> list[Transform]:
    """Return the transforms that are given directly, or created by a factory; append problems to `problems`."""
    if factory is None:
        return transforms_of(transform, problems)
    if transform is not None:
        problems.append("transform and transform_factory are mutually exclusive")
    elif not callable(factory):
        problems.append(f"transform_factory {factory!r} is not callable")
    else:
        return transforms_of(factory(), problems)
    return []


def _consuming_sampler(sampler: Any, count: int | None, prefetch: int | None, problems: list[str]) -> Any:
    """Return the sampler for `consume_after_n_samples`; append problems to `problems`."""
    if prefetch and (count is not None or isinstance(sampler, ConsumingSampler)):
        problems.append("Prefetching is not supported with a ConsumingSampler: its steps leave when they are drawn")
    if count is None or (isinstance(sampler, ConsumingSampler) and sampler.max_sample_count == count):
        return sampler
    if type(sampler) is not RandomSampler:
        problems.append(
            f"consume_after_n_samples is {count!r} and the sampler is {sampler!r}; it only supports the default "
            "RandomSampler, or a ConsumingSampler with this max_sample_count"
        )
        return sampler
    return ConsumingSampler(count, generator=sampler.generator)


def _field_names(keys: Any) -> tuple[str | Key, ...]:
    """Return names of fields as a tuple that can be hashed; the index is in every batch."""
    if type(keys) is list:
        keys = tuple(keys)
    if type(keys) is tuple or isinstance(keys, str):
        with suppress(TypeError):  # a key that is a list
            return _parsed_names(keys)
    return _parsed_names.__wrapped__(keys)


@lru_cache
def _parsed_names(keys: Any) -> tuple[str | Key, ...]:
    given = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else keys
    names = (name if isinstance(name, str) else as_key(name) for name in given)
    return tuple(name for name in names if name != "index")


def _check_component(component: Any, verb: str) -> None:
    if isinstance(component, type) or not callable(getattr(component, verb, None)):
        raise InvalidArgumentError(f"{component!r} has no method {verb}; expected an object with this method")


def _collate_fn_of(storage: Storage) -> Callable[[Any], Any] | None:
    return stack_items if isinstance(storage, ListStorage) else None


def _clone_leaf(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) or is_tensor_collection(leaf) else leaf
