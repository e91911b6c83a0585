"""The composable replay buffer: storage, sampler, writer, transforms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from datasets_rl.buffers.prefetch import Prefetch
from datasets_rl.errors import BadArgument
from datasets_rl.samplers._base import Sampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.storages._base import Storage
from datasets_rl.writers._base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter

__all__ = ["ReplayBuffer"]

Transform = Callable[[Any], Any]
Drawn = tuple[Tensor, dict[str, Any]]


class ReplayBuffer:
    """Steps that are written, chosen and read in batches.

    A batch goes through sampler (which steps), storage (their data), `collate_fn`, transforms, and pinning.

    Args:
        storage: Holds the steps.
        sampler: Chooses them; uniform with replacement by default.
        writer: Places new ones; none can be written by default.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory, from which a GPU reads faster.
        prefetch: Batches made ahead of time by as many threads; needs `batch_size`. Steps are chosen in order, as without
            it; a transform that draws random numbers of its own does so in the threads, in no fixed order.
        transform: Applied to every batch; a callable, or a sequence of callables applied in order.
        batch_size: Steps of a batch where `sample` is not told.

    Raises:
        BadArgument: If arguments exclude each other.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        batch_size: int | None = None,
    ) -> None:
        if batch_size is not None:
            _check_size("batch_size", batch_size)
        if prefetch is not None:
            _check_size("prefetch", prefetch)
        for part, verb in ((sampler, "sample"), (writer, "extend")):
            if part is not None and (isinstance(part, type) or not callable(getattr(part, verb, None))):
                raise BadArgument(f"{part!r} has no method {verb}; expected an instance of a class that has")
        if prefetch and batch_size is None:
            raise BadArgument("prefetch makes batches before they are asked for: it needs batch_size")
        self._storage = storage
        self._storage.attach(self)
        self._sampler = sampler if sampler is not None else RandomSampler()
        self._writer = writer if writer is not None else ImmutableDatasetWriter()
        self._writer.register_storage(storage)
        self._collate_fn = collate_fn
        # Without an accelerator nothing reads page-locked memory, and torch refuses to make it.
        self._pin_memory = pin_memory and torch.accelerator.is_available()
        self._transforms: list[Transform] = _transforms(transform)
        self.batch_size = batch_size
        self._lock = threading.RLock()
        self._prefetch = self._ahead(prefetch)

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

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in place and return the one before."""
        with self._lock:
            self._drain()
            before, self._sampler = self._sampler, sampler
        return before

    def append_transform(self, transform: Transform) -> None:
        """Apply a further callable at the end."""
        self.insert_transform(len(self._transforms), transform)

    def insert_transform(self, index: int, transform: Transform) -> None:
        """Apply a further callable at this place of the order."""
        with self._lock:
            self._drain()
            self._transforms.insert(index, *_transforms(transform))

    def add(self, data: Any) -> int:
        """Write one step and return its index."""
        with self._lock:
            index = self._writer.add(data)
            self._sampler.add(index)
        return index

    def extend(self, data: Any) -> Tensor:
        """Write several steps and return their indices, int64 [n]."""
        with self._lock:
            index = self._writer.extend(data)
            self._sampler.extend(index)
        return index

    def empty(self) -> None:
        """Forget all steps."""
        with self._lock:
            self._drain()
            self._writer.empty()
            self._storage.empty()
            self._sampler.empty()

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: Steps wanted, B; by default that of the constructor.
            return_info: Return what the sampler says of its choice as well.

        Returns:
            The batch, or the batch and a dict of info.

        Raises:
            BadArgument: If no batch size is given anywhere, or the buffer is empty.
        """
        if self._prefetch is not None and batch_size in {None, self.batch_size}:
            with self._lock:
                batch, info = self._prefetch.next()
        else:
            batch, info = self._read(*self._draw(batch_size))
        return (batch, info) if return_info else batch

    def _draw(self, batch_size: int | None) -> Drawn:
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise BadArgument("no batch size", hint="give batch_size to the constructor, or to sample()")
        _check_size("batch_size", size)
        with self._lock:
            return self._sampler.sample(self._storage, size)

    def _read(self, index: Tensor, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        info["index"] = index
        return self._finish(self._storage.get(index), info), info

    def _finish(self, data: Any, info: dict[str, Any]) -> Any:
        del info
        if self._collate_fn is not None:
            data = self._collate_fn(data)
        for transform in self._transforms:
            data = transform(data)
        return tree_map(_pinned, data) if self._pin_memory else data

    def _ahead(self, depth: int | None) -> Prefetch[Drawn, tuple[Any, dict[str, Any]]] | None:
        if depth is None:
            return None
        return Prefetch(depth, lambda: self._draw(self.batch_size), lambda drawn: self._read(*drawn))

    def _drain(self) -> None:
        if self._prefetch is not None:
            self._prefetch.drain()

    def __getitem__(self, index: Any) -> Any:
        return self._finish(self._storage.get(index), {})

    def __len__(self) -> int:
        """Return the number of steps held."""
        return len(self._storage)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of the batch size of the constructor, until the sampler has run out; most never do."""
        if self.batch_size is None:
            raise BadArgument("iterating needs a batch size", hint="give batch_size to the constructor")
        self._sampler.ran_out = False
        while not self._sampler.ran_out:
            yield self.sample()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"]
        state["_prefetch"] = self._prefetch.depth if self._prefetch is not None else None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        depth = state.pop("_prefetch")
        self.__dict__.update(state, _lock=threading.RLock(), _prefetch=self._ahead(depth))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}, "
            f"batch_size={self.batch_size})"
        )


def _check_size(name: str, size: Any) -> None:
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
        raise BadArgument(f"{name} is {size!r}; expected a whole number from 1")


def _transforms(transform: Transform | Sequence[Transform] | None) -> list[Transform]:
    if transform is not None and not callable(transform) and not isinstance(transform, Sequence):
        raise BadArgument(f"transform {transform!r} is no callable, and no sequence of callables")
    listed = [] if transform is None else [transform] if callable(transform) else list(transform)
    for one in listed:
        if not callable(one):
            raise BadArgument(f"transform {one!r} is no callable")
    return listed


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf
