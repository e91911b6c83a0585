"""The composable replay buffer: storage, sampler, writer, transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from datasets_rl import checkpoint
from datasets_rl.buffers.arguments import (
    InBuffer,
    Inverted,
    Transform,
    axis_problems,
    part_of,
    size_problems,
    transformed,
    transforms_of,
)
from datasets_rl.buffers.batch import pinned, stacked, time_first
from datasets_rl.buffers.display import as_html, as_text
from datasets_rl.buffers.fields import field_of, key_of, write_field
from datasets_rl.buffers.lock import BufferLock, BufferLocks
from datasets_rl.buffers.prefetch import Prefetch
from datasets_rl.buffers.state import form_problems, misfits_of, read_batch, saved_batch, saved_batch_problems, turned
from datasets_rl.checkpoint import Stateful
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import as_rows, wrapped
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.positions import names_one
from datasets_rl.ted.keys import Key
from datasets_rl.transforms.base import Compose, gathered
from datasets_rl.writers.base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter
from datasets_rl.writers.round_robin import RoundRobinWriter

__all__ = ["ReplayBuffer"]

_UNREAD = object()
_DEFAULT_SIZE = 1_000


@dataclass(slots=True)
class Drawn:
    """A batch that was chosen."""

    storage: Storage
    index: Any
    info: dict[Any, Any]
    data: Any = _UNREAD
    last: bool = False
    """Whether the sampler has run out with it."""
    announced: bool = False
    """Whether the lock was told that it will be read outside."""


class ReplayBuffer(Stateful):
    """Steps that are written, chosen and read in batches.

        >>> rb = ReplayBuffer(storage=LazyMemmapStorage(1_000_000), batch_size=256)
        >>> rb.extend(data)                       # what is written: inverse transforms, writer, storage
        >>> batch = rb.sample()                   # what is read: sampler, storage, collate_fn, transforms, pinning
        >>> rb[0], rb[10:20], rb["observation"], rb["next", "reward"]

    Whole numbers and slices give views: what is written into them is written into the buffer (through transforms, a
    copy is given). Index tensors, lists and masks give copies, as `sample` does.

    Threads may write and sample at once: a batch is chosen and read in one piece. `share` extends this to processes.

    Args:
        storage: Holds the steps; a `ListStorage` of 1,000 by default. A class or a factory without arguments is called.
        sampler: Chooses them; uniform with replacement by default.
        writer: Places new ones; by default one after the other, the oldest first to go.
        collate_fn: Applied to what the storage returns. By default the list of items of a `ListStorage` is stacked,
            and all else is left as it is.
        pin_memory: Whether batches are copied to page-locked memory, from which a GPU reads faster: a TensorDict into
            one piece, so that its ``to(device, non_blocking=True)`` is one copy.
        prefetch: Batches made ahead of time by as many threads; needs `batch_size`. Steps are chosen in order, as
            without it; a transform that draws random numbers of its own does so in the threads, in no fixed order.
        transform: Applied to every batch; a callable, or a sequence of callables applied in order. Where one has a
            method `inv`, that is applied to what is written, the last transform first; where one has a method
            `gather(storage, rows, data)`, that is applied as soon as the rows are read, and may read others.
        batch_size: Steps of a batch where `sample` is not told.
        dim_extend: The axis of what `extend` gets along which it is written; by default the last of those that the
            storage counts, ``storage.ndim - 1``: time.
        generator: Where the sampler's randomness comes from, if it is not to be torch's global generator.
        shared: Share the memory with other processes from the start, see `share`.

    Raises:
        InvalidArgumentError: If arguments exclude each other; all problems at once.
    """

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: Generator | None = None,
        shared: bool = False,
    ) -> None:
        problems = size_problems(batch_size=batch_size, prefetch=prefetch)
        if prefetch and batch_size is None:
            problems.append("prefetch makes batches before they are asked for: it needs batch_size")
        self._storage: Storage = part_of(storage, "get", problems, lambda: ListStorage(_DEFAULT_SIZE))
        self._sampler: Sampler = part_of(sampler, "sample", problems, RandomSampler)
        fixed = self._storage is not None and getattr(self._storage, "read_only", False)
        default_writer = ImmutableDatasetWriter if fixed else self._default_writer
        self._writer: Writer = part_of(writer, "extend", problems, default_writer)
        self._transforms: list[Transform] = transforms_of(transform, problems)
        problems += axis_problems(dim_extend=dim_extend)
        if collate_fn is not None and not callable(collate_fn):
            problems.append(f"collate_fn {collate_fn!r} is no callable")
        if generator is not None and not isinstance(generator, Generator):
            problems.append(f"generator is {generator!r}; expected a torch.Generator")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        if generator is not None:
            self.set_rng(generator)
        self._storage.attach(self)
        self._sampler.attach(self._storage)
        self._writer.register_storage(self._storage)
        self._collate_fn = collate_fn if collate_fn is not None else _collate_of(self._storage)
        # Without an accelerator nothing reads page-locked memory, and torch refuses to make it.
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._dim_extend = dim_extend
        self.batch_size = batch_size
        self._ran_out = False
        """Whether the last batch was the last of an epoch."""
        self._iterator: Iterator[Any] | None = None
        """Where `next` is."""
        self._lock: BufferLock | BufferLocks = BufferLock()
        self._prefetch = self._ahead(prefetch)
        if shared:
            self.share()
        elif self._storage.shared and not self._storage.read_only:
            self._lock.share(self._storage)

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
        """What is applied to every batch, in order."""
        return tuple(self._transforms)

    @property
    def transform(self) -> Compose:
        """What is applied to every batch, as one transform, which is empty where there is none.

        It is a `Compose` that is all the buffer was given, itself. What is put into it is applied from then on.
        """
        if len(self._transforms) == 1 and isinstance(self._transforms[0], Compose):
            return self._transforms[0]
        return InBuffer(self._transforms, self.insert_transform)

    @property
    def dim_extend(self) -> int:
        """The axis of what `extend` gets along which it is written."""
        return self._storage.ndim - 1 if self._dim_extend is None else self._dim_extend

    @property
    def write_count(self) -> int:
        """Slots written since the buffer was empty, also those that have been overwritten since."""
        return self._storage.written

    @property
    def torn_count(self) -> int:
        """Steps that `sample` leaves out because a process died while it wrote them; 0 again once they are written."""
        return self._storage.torn

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in place and return the one before.

        Args:
            storage: The new one; the writer writes to it from now on.
            collate_fn: Applied to what it returns; by default what suits it.
        """
        _expect(storage, "get")
        with self._changing():
            self._sampler.attach(storage)
            before, self._storage = self._storage, storage
            storage.attach(self)
            self._writer.register_storage(storage)
            self._sampler.empty()
            self._collate_fn = collate_fn if collate_fn is not None else _collate_of(storage)
            if storage.shared and not storage.read_only:
                self._lock.share(storage)
        return before

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in place and return the one before."""
        _expect(sampler, "sample")
        with self._changing():
            sampler.attach(self._storage)
            before, self._sampler = self._sampler, sampler
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Put another writer in place and return the one before."""
        _expect(writer, "extend")
        with self._changing():
            writer.register_storage(self._storage)
            before, self._writer = self._writer, writer
        return before

    def set_rng(self, generator: Generator) -> None:
        """Draw from this generator from now on."""
        self._sampler.generator = generator

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Apply a further callable at the end.

        Args:
            transform: The callable.
            invert: Apply it to what is written instead, and its `inv` to what is read.

        Returns:
            This buffer.
        """
        self.insert_transform(len(self._transforms), transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Apply a further callable at this place of the order, see `append_transform`."""
        problems: list[str] = []
        transforms = transforms_of(transform, problems)
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        with self._changing():
            self._transforms[index:index] = map(Inverted, transforms) if invert else transforms
        return self

    def add(self, data: Any) -> Any:
        """Write one step; with a storage of several lanes, one step of each.

        Args:
            data: One element, without a leading axis. Inverse transforms see it as a batch of one.

        Returns:
            Its index; int64 [lanes, ndim] with several lanes; None if the writer did not keep it.
        """
        data = self._inverted(self._accepted(data, one=True), one=True)
        if data is None:
            return None
        self._writer.check(data)
        with self._writing():
            priority = self._priority_of(data, self._storage.ndim - 1)
            index = self._writer.add(data)
            if index is None:
                return None
            rows = index if isinstance(index, Tensor) else torch.tensor([index])
            self._sampler.add(rows)
            if priority is not None:
                self._sampler.update_priority(rows, priority, storage=self._storage)
        return index if self._storage.ndim == 1 else self._indices(rows)

    def extend(self, data: Any, *, update_priority: bool = True) -> Tensor:
        """Write several steps.

        Args:
            data: A tensor, TensorDict or pytree whose leaves have one more axis than a step, `dim_extend`; or a list
                of steps. A tuple is a pytree.
            update_priority: Whether priorities that come with the data are taken over; a buffer of TensorDicts does.

        Returns:
            Their indices, int64 [n], or [n * lanes, ndim] with several lanes; -1 where the writer did not keep one.
        """
        data = self._inverted(self._accepted(data, one=False), one=False)
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        if self.dim_extend > 0 and not isinstance(data, list):
            data = time_first(data, self.dim_extend)
        self._writer.check(data)
        with self._writing():
            priority = self._priority_of(data, self._storage.ndim) if update_priority else None
            rows = self._writer.extend(data)
            if rows.numel() and rows.min() < 0:
                stays = rows >= 0
                kept, priority = rows[stays], None if priority is None else priority[stays]
            else:
                kept = rows
            self._sampler.extend(kept)
            if priority is not None:
                self._sampler.update_priority(kept, priority, storage=self._storage)
        return rows if self._storage.ndim == 1 else self._indices(rows)

    def _priority_of(self, data: Any, axes: int) -> Any:
        """Return the priorities, [rows, ...], that come with what is to be written; None if there are none.

        Args:
            data: What is to be written.
            axes: How many of its axes count rows.

        Raises:
            InvalidArgumentError: If the sampler could not take them over.
        """
        del data, axes

    def _indices(self, rows: Tensor) -> Tensor:
        return torch.stack(self._storage.unravel(rows), -1).masked_fill_((rows < 0).unsqueeze(-1), -1)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Tell the sampler how much steps matter.

        Args:
            index: As `extend` or a batch gives it: a number, int64 [n], a tuple of one for each axis, or [n, ndim].
            priority: A number, or one for each step.

        Raises:
            InvalidArgumentError: If a priority is no finite number from 0, or the shapes differ; nothing has changed then.
        """
        with self._lock:
            rows = self._storage.ravel(index)
            self._sampler.update_priority(rows, priority, storage=self._storage)

    def empty(self) -> None:
        """Forget all steps."""
        with self._changing():
            self._writer.empty()
            self._storage.empty()
            self._sampler.empty()

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: Steps wanted, B; by default that of the constructor.
            return_info: Return what the sampler says of its choice as well.

        Returns:
            The batch, or the batch and a dict of info, with its ``"index"``.

        Raises:
            InvalidArgumentError: If no batch size is given anywhere, or the buffer is empty.
        """
        if self._prefetch is not None and batch_size in {None, self.batch_size}:
            drawn, (batch, info) = self._prefetch.next()
        else:
            drawn = self._draw(batch_size)
            batch, info = self._make(drawn)
        self._ran_out = drawn.last
        return (batch, info) if return_info else batch

    def _draw(self, batch_size: int | None, *, ahead: bool = False) -> Drawn:
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise InvalidArgumentError("no batch size", hint="give batch_size to the constructor, or to sample()")
        if type(size) is not int or size < 1:
            problems = size_problems(batch_size=size)
            if problems:
                raise InvalidArgumentError(problems[0])
        lock, storage = self._lock, self._storage
        with lock:
            index, info = self._sampler.sample(storage, size)
            drawn = Drawn(storage, index, info, last=self._sampler.ran_out)
            if ahead and not storage.read_only and not lock.shared:
                drawn.announced = True
                lock.begin_read()
            elif not storage.read_only:
                drawn.data = self._taken(drawn)
        return drawn

    def _make(self, drawn: Drawn) -> tuple[Any, dict[Any, Any]]:
        data, info = drawn.data, drawn.info
        if data is _UNREAD:
            try:
                data = self._taken(drawn)
            finally:
                self._forget(drawn)
        info["index"] = drawn.index if drawn.storage.ndim == 1 else drawn.storage.unravel(drawn.index)
        return self._finish(data, info), info

    def _taken(self, drawn: Drawn) -> Any:
        storage, index = drawn.storage, drawn.index
        # A sampler may also say where by an index for each axis.
        if isinstance(index, Tensor):
            return gathered(self._transforms, storage, index, storage.take(index))
        return gathered(self._transforms, storage, storage.ravel(index), storage.get(index))

    def _forget(self, drawn: Drawn) -> None:
        if drawn.announced:
            self._lock.end_read()

    def _finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        del info
        if collate and self._collate_fn is not None:
            data = self._collate_fn(data)
        data = transformed(self._transforms, data)
        return pinned(data) if self._pin_memory else data

    def _ahead(self, depth: int | None) -> Prefetch[Drawn, tuple[Any, dict[Any, Any]]] | None:
        if depth is None:
            return None
        return Prefetch(depth, lambda: self._draw(self.batch_size, ahead=True), self._make, self._forget, self._lock)

    @property
    def _inverses(self) -> list[Transform]:
        inverses = (getattr(transform, "inv", None) for transform in reversed(self._transforms))
        return [inverse for inverse in inverses if callable(inverse)]

    def _accepted(self, data: Any, *, one: bool) -> Any:
        """Return what of data that came is to be written, as one step or several.

        Raises:
            InvalidArgumentError: If this buffer does not take such data.
        """
        del one
        return data

    def _inverted(self, data: Any, *, one: bool) -> Any:
        """Return what inverse transforms make of data; None if that is nothing."""
        inverses = self._inverses
        batched = one and bool(inverses) and is_tensor_collection(data)
        data = data.unsqueeze(0) if batched else data
        for inverse in inverses:
            if data is None:
                return None
            data = inverse(data)
        return data.squeeze(0) if batched and data is not None else data

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._lock.wait_for_reads()
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock with nothing under way: what was chosen ahead is no longer true afterwards."""
        with self._lock:
            self._drain()
            self._lock.wait_for_reads()
            self._drain()  # who waits lets other threads in, and they may have sampled
            yield

    def _drain(self) -> None:
        if self._prefetch is not None:
            self._prefetch.drain()

    def __getitem__(self, index: Any) -> Any:
        # With lanes, time comes first, [slots, *envs, ...], as the reference prints it; TorchRL 0.14 turns it back.
        key = key_of(index)
        with self._lock:
            if key is not None:
                return self._field(key)
            data = self._storage.get(index)
            if self._transforms and not self._storage.read_only:
                # A transform that works in place would change the buffer.
                data = tree_map(_cloned, data)
            if is_tensor_collection(data) and any(hasattr(one, "gather") for one in self._transforms):
                data = self._gathered_at(index, data)
        return self._finish(data, {}, collate=not names_one(index))

    def _gathered_at(self, index: Any, data: Any) -> Any:
        """Let transforms read further rows for what stands at an index, as for a batch of the same rows."""
        storage = self._storage
        if storage.ndim == 1:
            rows = wrapped(as_rows(index, len(storage)), len(storage))
        else:
            envs = storage.get(slice(0, 0)).batch_size[1 : storage.ndim]
            rows = torch.arange(len(storage)).reshape(-1, *envs)[index]
        if rows.ndim != data.ndim:
            return data
        return gathered(self._transforms, storage, rows.reshape(-1), data.reshape(-1)).reshape(rows.shape)

    def _field(self, key: Key) -> Any:
        storage = self._storage
        if not key or self._transforms or storage.ndim > 1 or isinstance(storage, ListStorage):
            return field_of(self[:], key)
        return storage.column(key)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Write over steps that are held, or over one of their fields; inverse transforms see whole steps only."""
        key = key_of(index)
        with self._writing():
            if key:
                column = self._storage.column(key)
                if self._storage.ndim > 1:
                    column = column.reshape(*getattr(self._storage, "shape", ()), *column.shape[1:])
                write_field(column, data, key, self._storage.rewriting())
                return
            one = names_one(index)
            data = self._inverted(self._accepted(data, one=one), one=one)
            if data is not None:
                self._storage.replace(slice(None) if key is not None else index, data)

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the steps of a list of indices: `torch.utils.data.DataLoader` reads a batch in one piece by it."""
        data = self[indices]
        # The loader's own collate function stacks a list, and puts a TensorDict together key by key.
        return (
            list(data)
            if isinstance(data, Tensor)
            else data
            if is_tensor_collection(data)
            else [*map(self.__getitem__, indices)]
        )

    def __len__(self) -> int:
        """Return the number of steps held."""
        return len(self._storage)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of the batch size of the constructor, until the sampler has run out; most never do."""
        if self.batch_size is None:
            raise InvalidArgumentError("iterating needs a batch size", hint="give batch_size to the constructor")
        ran_out = False
        while not ran_out:
            batch = self.sample()
            # The sampler itself may be batches ahead.
            ran_out = self._ran_out
            yield batch

    def next(self) -> Any:
        """Return the next batch of an iteration that the buffer keeps; None once at its end, then the first of another.

        Raises:
            InvalidArgumentError: As `sample` does; the next call begins another iteration.
        """
        iterator, self._iterator = self._iterator or iter(self), None
        batch = next(iterator, None)
        if batch is not None:
            self._iterator = iterator
        return batch

    def share(self) -> ReplayBuffer:
        """Let processes that get this buffer from now on read and write the same memory.

        They get it by fork, or as an argument of a spawned process. Sampler and writer are copied: what a sampler
        remembers (priorities, what was sampled already) stays each process's own.

        Returns:
            This buffer.
        """
        with self._changing():
            self._storage.share()
            self._lock.share(self._storage)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the state of storage, sampler and writer, and which batches were chosen ahead of time.

        Transforms are not part of it. Tensors share memory with the buffer: save or copy them before it changes.
        """
        with self._lock:
            state: dict[str, Any] = {
                name: {"kind": type(part).__name__, "state": part.state_dict()} for name, part in self._parts.items()
            }
            drawn = self._prefetch.drawn if self._prefetch is not None else []
            state["ahead"] = [saved_batch(one.index, dict(one.info), last=one.last) for one in drawn]
        return state

    @property
    def _parts(self) -> dict[str, Stateful]:
        return {"storage": self._storage, "sampler": self._sampler, "writer": self._writer}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over, all reasons at once; empty if it can."""
        parts = self._parts
        reasons = form_problems([*parts], state_dict)
        if reasons:
            return reasons
        ahead = state_dict.get("ahead", [])
        if not misfits_of(self._storage, state_dict["storage"]):
            state_dict = self._turned(state_dict)
        ring = state_dict["storage"]["state"]
        reasons = [f"{name}: {reason}" for name, part in parts.items() for reason in misfits_of(part, state_dict[name])]
        if reasons:
            return reasons
        steps = ring["held"] * math.prod(ring.get("lanes", ())) if "held" in ring else self._storage.max_size
        return saved_batch_problems(ahead, steps)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned; one of another capacity too, if its steps fit.

        Raises:
            InvalidArgumentError: If it does not fit; nothing has changed then.
        """
        with self._changing():
            checkpoint.refuse(self.misfits(state_dict))
            state_dict = self._turned(state_dict)
            for name, part in self._parts.items():
                part.load_state_dict(state_dict[name]["state"])
            if self._prefetch is not None:
                for one in state_dict.get("ahead", ()):
                    index, info, last = read_batch(one)
                    drawn = Drawn(self._storage, index, info, last=last)
                    if not self._storage.read_only:
                        drawn.data = self._taken(drawn)
                    self._prefetch.start(drawn)

    def _turned(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return turned(self._parts, state_dict, self._storage.max_size)

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, see `state_dict` and `Stateful.dumps`; nobody writes to the buffer meanwhile."""
        with self._lock:
            super().dumps(path)

    save = dump = dumps

    def load(self, path: Path | str) -> None:
        """Take over a state that `dumps` wrote."""
        self.loads(path)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_iterator": None}
        state["_prefetch"] = self._prefetch.depth if self._prefetch is not None else None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        depth = state.pop("_prefetch")
        self.__dict__.update(state)
        self._prefetch = self._ahead(depth)

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def _expect(part: Any, verb: str) -> None:
    if isinstance(part, type) or not callable(getattr(part, verb, None)):
        raise InvalidArgumentError(f"{part!r} has no method {verb}; expected an instance of a class that has")


def _collate_of(storage: Storage) -> Callable[[Any], Any] | None:
    return stacked if isinstance(storage, ListStorage) else None


def _cloned(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) or is_tensor_collection(leaf) else leaf
