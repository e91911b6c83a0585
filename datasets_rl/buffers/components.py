"""The components of a buffer: their creation, replacement, sharing and state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator
from typing_extensions import Self, override

from datasets_rl.arguments import check, size_problems
from datasets_rl.buffers.arguments import Transform, batch_size_problems
from datasets_rl.buffers.batch import stack_items
from datasets_rl.buffers.lock import BufferLock, BufferLocks
from datasets_rl.buffers.sample_units import SampleUnit
from datasets_rl.buffers.state import chronological_state, component_problems, document_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import Stateful, raise_reasons, write_state
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.consuming import ConsumingSampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.list import ListStorage
from datasets_rl.transforms.base import transform_problems
from datasets_rl.transforms.compose import Compose
from datasets_rl.writers.base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter

_DEFAULT_SIZE = 1_000
_creation = threading.RLock()
"""Held while the components of a buffer are created."""


class Components:
    """The components of a buffer, see `ReplayBuffer` for the arguments.

    Args:
        default_writer: Creates the writer if none is given and the storage can be written.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or invalid. The message lists all problems.
    """

    storage: Storage
    episodic: EpisodicStorage | None
    """The storage, if it contains the steps of a stored dataset: each batch asks, and this check takes long."""
    sampler: Sampler
    writer: Writer

    def __init__(
        self,
        *,
        storage: Any,
        sampler: Any,
        sample_unit: SampleUnit | None,
        writer: Any,
        default_writer: Callable[[], Writer],
        collate_fn: Callable[[Any], Any] | None,
        pin_memory: bool,
        prefetch: int | None,
        transform: Any,
        transform_factory: Any,
        batch_size: int | None,
        dim_extend: int | None,
        generator: Any,
        consume_after_n_samples: int | None,
        shared: bool,
    ) -> None:
        problems = [*batch_size_problems(batch_size), *size_problems(prefetch=prefetch or None, optional=True)]
        if prefetch and batch_size is None:
            problems.append("prefetch prepares batches before `sample` is called, and therefore requires batch_size")
        built_sampler = build_component(sampler, "sample", problems, RandomSampler)
        size = min(
            getattr(built_sampler, "max_size", _DEFAULT_SIZE), _DEFAULT_SIZE
        )  # a prioritized sampler has a capacity
        self._set_storage(build_component(storage, "get", problems, partial(ListStorage, size)))
        self.sampler = _consuming_sampler(built_sampler, consume_after_n_samples, prefetch, problems)
        read_only = getattr(self.storage, "read_only", False)
        self.writer = build_component(
            writer, "extend", problems, ImmutableDatasetWriter if read_only else default_writer
        )
        self.transforms = _transforms_from(transform, transform_factory, problems)
        problems += size_problems(0, dim_extend=dim_extend, optional=True)
        if collate_fn is not None and not callable(collate_fn):
            problems.append(f"collate_fn {collate_fn!r} is not callable")
        if generator is not None and not isinstance(generator, Generator):
            problems.append(f"generator is {generator!r}, expected a torch.Generator")
        check(problems)
        if generator is not None:
            self.sampler.generator = generator
        self.sampler.attach(self.storage)
        self.writer.register_storage(self.storage)
        self.sample_unit = sample_unit
        self.collate_fn = collate_fn if collate_fn is not None else _collate_fn_of(self.storage)
        # Without an accelerator, page-locked memory has no use, and torch cannot allocate such memory.
        self.pin_memory = pin_memory and torch.accelerator.is_available()
        self.dim_extend = dim_extend
        self.lock: BufferLock | BufferLocks = BufferLock()
        if shared and not self.storage.read_only:
            self.storage.share()
        if self.storage.shared and not self.storage.read_only:
            self.lock.share(self.storage)

    def _set_storage(self, storage: Storage) -> None:
        self.storage = storage
        self.episodic = storage if isinstance(storage, EpisodicStorage) else None

    def replace_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None) -> Storage:
        """Replace the storage and what depends on the stored steps, and return the previous one."""
        self.sampler.attach(storage)
        previous = self.storage
        self._set_storage(storage)
        self.writer.register_storage(storage)
        self.sampler.empty()
        self.collate_fn = collate_fn if collate_fn is not None else _collate_fn_of(storage)
        if storage.shared and not storage.read_only:
            self.lock.share(storage)
        return previous


class Composed(Stateful):
    """A buffer as far as its components are concerned.

    Args:
        create: Creates the components when a component is used first. After an error, the next use tries again.
    """

    def __init__(self, create: Callable[[], Components]) -> None:
        self._create = create

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the same components, and keeps them when other buffers replace theirs.
        return self.__dict__ | ({"_components": copy(self._components)} if self.initialized else {})

    @cached_property
    def _components(self) -> Components:
        with _creation:
            create = self.__dict__.get("_create")
            if create is None:  # another thread was first
                created: Components = self.__dict__["_components"]
                return created
            components: Components = create()
            components.storage.attach(self)
            self.__dict__["_components"] = components
            del self.__dict__["_create"]
            return components

    @property
    def initialized(self) -> bool:
        """Whether the components exist. False before the first use of a buffer with `delayed_init`."""
        return "_components" in self.__dict__

    @property
    def storage(self) -> Storage:
        """The storage of the buffer."""
        return self._components.storage

    @property
    def sampler(self) -> Sampler:
        """The sampler of the buffer."""
        return self._components.sampler

    @property
    def writer(self) -> Writer:
        """The writer of the buffer."""
        return self._components.writer

    # TorchRL's collectors, and programs that were written for TorchRL, read the components by these names.
    _storage = storage
    _sampler = sampler
    _writer = writer

    @property
    def lock(self) -> BufferLock | BufferLocks:
        """The lock of the buffer: inside ``with buffer.lock``, no other thread or process uses the buffer."""
        return self._components.lock

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms applied to every batch, in order."""
        return tuple(self._components.transforms)

    @property
    def transform(self) -> Compose:
        """The transforms applied to every batch, as a single transform, which is empty if the buffer has no transforms.

        If the buffer was created with a single `Compose`, that object is returned. A transform inserted into the result
        is applied to later batches.
        """
        transforms = self._components.transforms
        if len(transforms) == 1 and isinstance(transforms[0], Compose):
            return transforms[0]
        return _ComposeOfBuffer(transforms, self.locked_for_change)

    @property
    def dim_extend(self) -> int:
        """The axis of the data passed to `extend` along which the data is written."""
        axis = self._components.dim_extend
        return self.storage.ndim - 1 if axis is None else axis

    @property
    def write_count(self) -> int:
        """Number of slots written since the buffer was empty, including slots that have been overwritten."""
        return self.writer.write_count

    @property
    def torn_count(self) -> int:
        """Number of steps that `sample` skips because their writer process died. 0 once such steps are rewritten."""
        return self.storage.torn

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Replace the storage, to which later writes go, and return the previous storage.

        Args:
            storage: The new storage.
            collate_fn: Applied to the data that the storage returns. By default the function that suits the storage.
        """
        _check_component(storage, "get")
        with self.locked_for_change():
            previous = self._components.replace_storage(storage, collate_fn)
            storage.attach(self)
        return previous

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Replace the sampler, and return the previous sampler."""
        _check_component(sampler, "sample")
        with self.locked_for_change():
            sampler.attach(self.storage)
            previous, self._components.sampler = self.sampler, sampler
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer, and return the previous writer."""
        _check_component(writer, "extend")
        with self.locked_for_change():
            writer.register_storage(self.storage)
            previous, self._components.writer = self.writer, writer
        return previous

    def set_rng(self, generator: Generator) -> None:
        """Set the random generator of the sampler."""
        self.sampler.generator = generator

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Append a transform, and return this buffer.

        Args:
            transform: A callable, or a sequence of callables.
            invert: Whether to swap the directions: the callable is applied to written data, and its `inv` to batches.
        """
        self.insert_transform(len(self._components.transforms), transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Insert a transform at an index, see `append_transform`.

        Raises:
            InvalidArgumentError: If the index is out of range, or the transform is not callable.
        """
        problems: list[str] = []
        transforms = _transforms_of(transform, problems)
        count = len(self._components.transforms)
        if not -count <= index <= count:
            problems.append(
                f"index is {index}, expected {-count} to {count}, because the buffer has {count} transforms"
            )
        check(problems)
        with self.locked_for_change():
            self._components.transforms[index:index] = map(_Inverted, transforms) if invert else transforms
        return self

    @contextmanager
    def locked_for_change(self) -> Iterator[None]:
        """Hold the lock while no read is in progress. Batches sampled ahead of time are discarded."""
        with self.lock as lock:
            self._drain()
            lock.wait_for_reads()
            self._drain()  # other threads may have sampled during the wait
            yield

    def _drain(self) -> None:
        """Discard the batches that were sampled ahead of time."""

    def share(self, shared: bool = True) -> Self:
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
        if not shared and self.lock.shared:
            raise InvalidArgumentError(
                "shared is False, and the buffer is shared already: other processes may use its memory",
                hint="create a buffer, and load the state of this buffer",
            )
        if shared and not self.storage.read_only:
            with self.locked_for_change():
                self.storage.share()
                self.lock.share(self.storage)
        return self

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Add a function that is applied to the data of the storage when the state is saved, see `Storage`."""
        self.storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Add a function that is applied to the saved data of the storage when a state is loaded, see `Storage`."""
        self.storage.register_load_hook(hook)

    @property
    def _stateful(self) -> dict[str, Stateful]:
        return {"storage": self.storage, "sampler": self.sampler, "writer": self.writer}

    @override
    def state_dict(self) -> dict[str, Any]:
        with self.lock:
            return {
                name: {"kind": type(part).__name__, "state": part.state_dict()} for name, part in self._stateful.items()
            }

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        parts = self._stateful
        reasons = document_problems([*parts], state_dict)
        if reasons:
            return reasons
        if not component_problems(self.storage, state_dict["storage"]):
            state_dict = self.chronological_state(state_dict)
        return [
            f"{name}: {reason}" for name, part in parts.items() for reason in component_problems(part, state_dict[name])
        ]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from `state_dict`. The capacity may differ if the steps fit.

        Raises:
            InvalidArgumentError: If the state does not fit. Nothing has changed then.
        """
        with self.locked_for_change():
            try:
                reasons = self.state_problems(state_dict)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
                # A dict that was edited may hold anything anywhere.
                reasons = [f"the state cannot be read: {type(error).__name__}: {error}"]
            raise_reasons(reasons)
            state_dict = self.chronological_state(state_dict)
            for name, part in self._stateful.items():
                part.load_state_dict(state_dict[name]["state"])
            self._load_ahead(state_dict)

    def _load_ahead(self, state_dict: dict[str, Any]) -> None:
        """Restore the batches that were sampled ahead of time."""

    def chronological_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a state with rings that fit the storage, see `datasets_rl.buffers.state.chronological_state`."""
        return chronological_state(self._stateful, state_dict, self.storage.max_size)

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, see `state_dict` and `Stateful.dumps`, while holding the lock.

        The folder may contain the `scratch_dir` of the storage as a subfolder. The files of the subfolder stay, and the
        steps are copied.
        """
        with self.lock:
            live_files = getattr(self.storage, "scratch_dir", None)
            write_state(path, type(self).__name__, self.state_dict(), beside=live_files)

    save = dump = dumps

    def load(self, path: Path | str) -> None:
        """Restore a state that `dumps` wrote."""
        self.loads(path)


class _Inverted:
    """A transform with its two directions swapped."""

    def __init__(self, transform: Transform) -> None:
        self.inv = transform
        self._forward = getattr(transform, "inv", None)

    def __call__(self, data: Any) -> Any:
        return data if self._forward is None else self._forward(data)

    def __repr__(self) -> str:
        return f"inverted {self.inv!r}"


class _ComposeOfBuffer(Compose):
    """View of the transforms of a buffer as a single `Compose`. A change of this object changes the buffer.

    Args:
        transforms: The list of transforms of the buffer. The list is shared, not copied.
        locked: Function that returns a context in which the buffer may be changed.
    """

    def __init__(self, transforms: list[Transform], locked: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(transforms)
        self._buffer_transforms, self._locked = transforms, locked

    @override
    def _replace(self, transforms: list[Any]) -> None:
        super()._replace(transforms)
        with self._locked():
            self._buffer_transforms[:] = transforms


def build_component(
    part: Any, verb: str, problems: list[str], default: Callable[[], Any] = lambda: ListStorage(_DEFAULT_SIZE)
) -> Any:
    """Return a component that is given as an instance, a class, a factory or None.

    Args:
        part: The argument.
        verb: Name of the method that every such component has.
        problems: List that problems are appended to.
        default: Creates the component if none is given.
    """
    if part is None:
        return default()
    if not isinstance(part, type) and callable(getattr(part, verb, None)):
        return part
    try:
        component = part() if callable(part) else None
    except TypeError as error:
        problems.append(f"{part!r} cannot be called without arguments: {error}")
        return None
    if not callable(getattr(component, verb, None)):
        problems.append(f"{part!r} has no method {verb}, expected an object with this method")
    return component


def _check_component(component: Any, verb: str) -> None:
    if isinstance(component, type) or not callable(getattr(component, verb, None)):
        raise InvalidArgumentError(f"{component!r} has no method {verb}, expected an object with this method")


def _transforms_of(transform: Any, problems: list[str]) -> list[Transform]:
    """Return the transforms that are given as None, a callable or a sequence, and append problems to `problems`."""
    if transform is None:
        return []
    # A name is a sequence, too, of its letters.
    is_sequence = isinstance(transform, Sequence) and not isinstance(transform, (str, bytes))
    listed = list(transform) if is_sequence and not callable(transform) else [transform]
    problems += [problem for item in listed for problem in transform_problems(item)]
    return listed


def _transforms_from(transform: Any, factory: Any, problems: list[str]) -> list[Transform]:
    """Return the transforms that are given directly, or created by a factory, and append problems to `problems`."""
    if factory is None:
        return _transforms_of(transform, problems)
    if transform is not None:
        problems.append("transform and transform_factory are mutually exclusive")
    elif not callable(factory):
        problems.append(f"transform_factory {factory!r} is not callable")
    else:
        return _transforms_of(factory(), problems)
    return []


def _consuming_sampler(sampler: Any, count: int | None, prefetch: int | None, problems: list[str]) -> Any:
    """Return the sampler for `consume_after_n_samples`, and append problems to `problems`."""
    if prefetch and (count is not None or isinstance(sampler, ConsumingSampler)):
        problems.append("Prefetching is not supported with a ConsumingSampler: steps leave when they are drawn")
    if count is None or (isinstance(sampler, ConsumingSampler) and sampler.max_sample_count == count):
        return sampler
    if type(sampler) is not RandomSampler:
        problems.append(
            f"consume_after_n_samples is {count!r} and the sampler is {sampler!r}, expected the default "
            "RandomSampler, or a ConsumingSampler with this max_sample_count"
        )
        return sampler
    return ConsumingSampler(count, generator=sampler.generator)


def _collate_fn_of(storage: Storage) -> Callable[[Any], Any] | None:
    return stack_items if isinstance(storage, ListStorage) else None
