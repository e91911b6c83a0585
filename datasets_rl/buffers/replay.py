"""The composable replay buffer: storage, sampler, writer, transforms."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

from torch import Generator
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from datasets_rl.arguments import check, size_problems
from datasets_rl.buffers.arguments import Transform, check_batch_size
from datasets_rl.buffers.batches import can_read_runs, runs_of_batches
from datasets_rl.buffers.compiled import GraphHandle, can_compile, sample_in_graph
from datasets_rl.buffers.components import Components
from datasets_rl.buffers.display import as_html, as_text
from datasets_rl.buffers.forms import BatchForm, as_form, check_form, select_fields
from datasets_rl.buffers.prefetch import Prefetch
from datasets_rl.buffers.read_path import Drawn
from datasets_rl.buffers.sample_units import SampleUnit
from datasets_rl.buffers.state import batch_from_state, batch_to_state, env_count, saved_batch_problems
from datasets_rl.buffers.write_path import WritePath
from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.samplers.base import Sampler
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import Key, as_key
from datasets_rl.writers.base import Writer
from datasets_rl.writers.round_robin import RoundRobinWriter


class ReplayBuffer(WritePath):
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
        storage: Stores the steps. A `ListStorage` of 1,000, or of the `max_capacity` of a prioritized sampler below
            that, by default. A class or a factory is called without arguments.
        sampler: Samples the steps, uniform with replacement by default.
        sample_unit: Replaces each step that the sampler draws, such as `Sequence`, by a window of steps. By default,
            each is a step of the batch.
        writer: Chooses the slots of new steps. A ring buffer by default.
        collate_fn: Applied to the data that the storage returns. By default, the list of items of a `ListStorage` is
            stacked, and the data of other storages is not changed.
        pin_memory: Whether batches are copied to page-locked memory, which speeds up copies to a GPU. A TensorDict
            becomes a single block, so that ``to(device, non_blocking=True)`` is a single copy.
        prefetch: Number of batches prepared ahead of time, by as many threads. Requires `batch_size`. The sampling
            order is the same as without prefetching. A transform that draws its own random numbers runs in the threads,
            in no fixed order. None and 0 prepare no batch.
        transform: Applied to every batch: a callable, or a sequence of callables applied in order. If a transform has a
            method `inv`, the method is applied to written data, the last transform first. If it has a method
            `gather(storage, rows, data)`, this method is applied directly after the rows are read, and may read other
            rows.
        transform_factory: Creates the transform when the components are created. Mutually exclusive with `transform`.
        batch_size: Default number of steps in a batch.
        dim_extend: The axis of the data passed to `extend` along which the data is written. By default the last leading
            axis of the storage, ``storage.ndim - 1``: time.
        generator: Random generator of the sampler. By default torch's global generator.
        consume_after_n_samples: Number of batches in which a step occurs before its slot is free for a new step, see
            `ConsumingSampler`. Mutually exclusive with another sampler and with `prefetch`. None keeps all steps.
        shared: Whether to share the memory with other processes from the start, see `share`.
        compilable: Accepted for compatibility with TorchRL. Has no effect: `sample` runs in ``torch.compile`` anyway.
        delayed_init: Whether the components are created at the first use of the buffer, in the process that uses the
            buffer first. By default if there is a `transform_factory`. Errors in the arguments are then raised there.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or invalid. The message lists all problems.
    """

    default_writer: type[Writer] = RoundRobinWriter
    """The class of the writer of a storage that can be written, if none is given."""
    _warned = False
    """Whether a warning said that a state does not continue exactly."""
    workers_draw_shares: ClassVar[bool] = False
    """Whether each worker of a `DataLoader` draws separate batches, as `for_worker` returns. Otherwise all draw the
    same batches."""

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
        generator: Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
    ) -> None:
        del compilable
        if sample_unit is not None and not isinstance(sample_unit, SampleUnit):
            raise WrongTypeError(
                f"sample_unit is {sample_unit!r}, expected an instance of a SampleUnit, such as Sequence(8)"
            )
        super().__init__(
            partial(
                Components,
                storage=storage,
                sampler=sampler,
                sample_unit=sample_unit,
                writer=writer,
                default_writer=self.default_writer,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                prefetch=prefetch,
                transform=transform,
                transform_factory=transform_factory,
                batch_size=batch_size,
                dim_extend=dim_extend,
                generator=generator,
                consume_after_n_samples=consume_after_n_samples,
                shared=shared,
            )
        )
        if not (transform_factory is not None if delayed_init is None else delayed_init):
            _ = self._components
        self.batch_size = batch_size
        self._ran_out = False
        """Whether the last batch ended an epoch."""
        self._iterator: Iterator[Any] | None = None
        """Iterator that `next` advances."""
        self._graph = GraphHandle(self)
        self._prefetch = Prefetch(self, prefetch) if prefetch else None
        self.waiting, self.runs = deque(), []

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        keys: str | Iterable[str | Key] | None = None,
        rows: Any = None,
        format: BatchForm | None = None,  # noqa: A002 -- the users' word
    ) -> Any:
        """Sample a batch, or read a batch of given rows.

            >>> rb.sample(256, keys=["observation", "action", "next.reward"])
            >>> rb.sample(rows=[0, 4, 4], format="numpy")["next.reward"]

        Args:
            batch_size: Number of steps, B. By default the constructor's number.
            return_info: Whether to return the info of the sampler, too.
            keys: Fields of the batch, each as a dotted name or a tuple of names. A name of several fields, "next",
                stands for all of these fields. By default all fields. Over a dataset without transforms, the others are
                not read. A batch with a next observation keeps ``("next", "final_known")``, if present.
            rows: Rows of the batch, integers [B], in the form of ``batch["index"]``, instead of a random choice. The
                state of the sampler does not change. Rows in the memory of an accelerator are not checked.
            format: The form of the batch. "tensordict" is the default. "dict" is a flat dict of tensors by dotted name,
                ``batch["next.reward"]``, "numpy" a dict of arrays that share the memory of the batch, and "jax" a dict
                of arrays on the default device of jax.

        Returns:
            The batch, or the batch and a dict of info, with its ``"index"``.

        Raises:
            InvalidArgumentError: If no batch size is given, or the buffer is empty, or rows are out of range.
            UnknownKeyError: If a batch has no such field.
        """
        if format is not None:
            check_form(format)
        batch, info = self._sample(batch_size, keys, rows, format)
        return (batch, info) if return_info else batch

    def _sample(
        self,
        batch_size: int | None,
        keys: Any = None,
        rows: Any = None,
        form: BatchForm | None = None,
        *,
        with_info: bool = True,
    ) -> tuple[Any, dict[Any, Any]]:
        """Return a batch in a form and its info, see `sample`."""
        names = None if keys is None else _field_names(keys)
        fields = None if names is None else self._fields_to_read(names)
        if rows is not None:
            if batch_size is not None:
                raise InvalidArgumentError("rows and batch_size were given, expected only one")
            batch, info = self._make_as(self.draw_rows(rows, fields), form, names, with_info)
        elif is_dynamo_compiling() and can_compile(self):
            size: Any = self.batch_size if batch_size is None else batch_size
            check_batch_size(size)
            batch, info = self._finish_as(*sample_in_graph(self, self._graph, size), form, names, with_info)
        else:
            if self._prefetch is not None and batch_size in {None, self.batch_size}:
                drawn, made = self._prefetch.next()
                batch, info = self._finish_as(*made, form, names, with_info)
            else:
                drawn = self.draw(batch_size, fields=fields)
                batch, info = self._make_as(drawn, form, names, with_info)
            self._ran_out = drawn.last
        return batch, info

    def _make_as(
        self, drawn: Drawn, form: BatchForm | None, names: tuple[str | Key, ...] | None, with_info: bool
    ) -> tuple[Any, dict[Any, Any]]:
        """Read and finish a drawn batch, in a form, with some fields. Most forms need no TensorDict."""
        info, has_fields = drawn.info, names is None or drawn.fields is not None
        if has_fields and (not info or (names is None and form not in {None, "tensordict"})):
            batch = self.take_stored(drawn, form, with_info=with_info)
            if batch is not None:
                return batch, info
        batch, info = self.make(drawn)
        return self._finish_as(batch, info, form, None if has_fields and len(info) <= 1 else names, with_info)

    def _finish_as(
        self, batch: Any, info: dict[Any, Any], form: BatchForm | None, names: Any, with_info: bool
    ) -> tuple[Any, dict[Any, Any]]:
        """Return some fields of a batch in a form, and the info."""
        if names is not None:
            batch = select_fields(batch, names, info)
        if not with_info:
            batch = self.without_info(batch, info)
        return (batch if form is None else as_form(batch, form)), info

    def without_info(self, batch: Any, info: dict[Any, Any]) -> Any:
        """Return a batch without the info of its sampler: batches of this class contain no info."""
        del info
        return batch

    def _fields_to_read(self, names: tuple[str | Key, ...]) -> tuple[Key, ...] | None:
        """Return the keys of the fields of a batch if the storage can read only these fields, else None."""
        storage = self._components.episodic
        return storage.keys_named(names) if storage is not None and self.returns_stored_fields else None

    def batches(self, count: int | None = None, batch_size: int | None = None) -> Iterator[Any]:
        """Yield batches, as `sample` does. Over a dataset, this is faster than calls of `sample`.

        Over a read-only storage, up to 64 batches are drawn ahead and read at once. The batches are views of the
        result. With the same seed, they equal the batches of `sample`. A state that is saved while a loop runs has the
        batches that were drawn and not received, so that the next batch after loading is the next batch of the loop. A
        loop that ends early gives the rest of an epoch back.

            >>> for batch in dataset.batches(100_000):
            ...     train(batch)

        Args:
            count: Number of batches. By default until the sampler runs out, which most samplers never do.
            batch_size: Number of steps in a batch, B. By default the constructor's number.

        Raises:
            InvalidArgumentError: If no batch size is given, the number of batches is negative, or the buffer is empty.
        """
        check(size_problems(0, optional=True, count=count))
        parts = self._components
        if count is None and self._skips_epoch(batch_size):
            return
        draws_alone = self._prefetch is None and parts.collate_fn is None and not parts.pin_memory
        if draws_alone and not self.has_own_rows and can_read_runs(self):
            yield from runs_of_batches(self, count, batch_size)
            return
        yield from self._sampled(count, batch_size)

    def _sampled(self, count: int | None, batch_size: int | None) -> Iterator[Any]:
        """Yield batches by a call of `sample` each: the sampler has the state after the last batch."""
        ran_out = False
        while (count is None and not ran_out) or (count is not None and count > 0):
            batch = self.sample(batch_size)
            # With prefetching, the sampler itself is ahead of this batch.
            ran_out = self._ran_out
            count = None if count is None else count - 1
            yield batch

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of the constructor's batch size, until the sampler runs out, which most samplers never do.

        Raises:
            InvalidArgumentError: If the buffer has no batch size.
        """
        if self.batch_size is None:
            raise InvalidArgumentError("iterating needs a batch size", hint="pass batch_size to the constructor")
        if not self._skips_epoch(None):
            yield from self._sampled(None, None)

    def _skips_epoch(self, batch_size: int | None) -> bool:
        """Return whether the sampler has nothing left of an epoch that was restored."""
        size: Any = self.batch_size if batch_size is None else batch_size
        check_batch_size(size)
        with self.lock:
            return self.sampler.skip_epoch(self.storage, size)

    def for_worker(self, worker: int, workers: int) -> ReplayBuffer:
        """Return a buffer with the share of a worker of a `DataLoader`, if `workers_draw_shares`.

        Args:
            worker: The number of the worker.
            workers: The number of workers.
        """
        del worker, workers
        return self

    def next(self) -> Any:
        """Return the next batch of an iterator that the buffer keeps, or None at the end. The next call starts anew.

        Raises:
            InvalidArgumentError: As `sample` does. The next call starts a new iterator.
        """
        iterator, self._iterator = self._iterator or iter(self), None
        batch = next(iterator, None)
        if batch is not None:
            self._iterator = iterator
        return batch

    def stats(self) -> dict[str, int | float | bool]:
        """Return the state of the buffer in numbers, for monitoring. Nothing changes.

        Returns:
            ``"size"``, the number of steps, ``"write_count"``, ``"prefetch_queue_size"``, the number of batches in
            progress, ``"initialized"``, ``"capacity"``, the maximum number of steps, and ``"utilization"``, their
            ratio. Before the first use of a buffer with `delayed_init`, the capacity is known only if the storage was
            given as an instance.
        """
        if not self.initialized:
            factory: Any = self._create
            storage = factory.keywords["storage"]
            capacity = {"capacity": storage.max_size, "utilization": 0.0} if isinstance(storage, Storage) else {}
            return {"size": 0, "write_count": 0, "prefetch_queue_size": 0, "initialized": False, **capacity}
        with self.lock:
            size, capacity_steps = len(self), self.storage.max_size
            return {
                "size": size,
                "write_count": self.write_count,
                "prefetch_queue_size": 0 if self._prefetch is None else len(self._prefetch.draws_in_progress),
                "initialized": True,
                "capacity": capacity_steps,
                "utilization": size / capacity_steps,
            }

    def _drain(self) -> None:
        self.waiting.clear()
        if self._prefetch is not None:
            self._prefetch.drain()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of storage, sampler and writer, and the batches that were sampled ahead of time.

        Without its own `generator`, a sampler draws from torch's global generator, which is not a part of the
        state: a warning says so once. Transforms are not included. Tensors share memory with the buffer: save or copy
        the tensors before the buffer changes.
        """
        with self.lock:
            self._warn_of_global_generator()
            drawn = self._prefetch.draws_in_progress if self._prefetch is not None else []
            drawn = [*drawn, *self._left_of_runs(), *self.waiting]
            state = super().state_dict()
            if drawn and drawn[0].before is not None:  # drawn again, by these ranks or others
                state["sampler"] = {**state["sampler"], "state": self.sampler.state_at(drawn[0].before)}
                drawn = []
            ahead = [batch_to_state(batch.index, batch.info, last=batch.last, size=batch.size) for batch in drawn]
            return {**state, "ahead": ahead}

    def _left_of_runs(self) -> list[Drawn]:
        """Return the draws of the batches that a loop over `batches` has not received."""
        found = [left for run in self.runs if (left := run.left)]
        if len(found) > 1:
            raise InvalidArgumentError(
                f"{len(found)} loops over batches() are running, and a state has a single position",
                hint="end the other loops, or save between them",
            )
        return found[0] if found else []

    def _warn_of_global_generator(self) -> None:
        if getattr(self.sampler, "draws_from_global", False) and not self._warned:
            self._warned = True
            warnings.warn(
                f"the state of {type(self.sampler).__name__} does not continue exactly: the sampler draws from torch's global "
                "generator, which is not saved. Give the buffer a generator: generator=torch.Generator().manual_seed(0)",
                stacklevel=3,
            )

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        if reasons:
            return reasons
        storage = self.chronological_state(state_dict)["storage"]["state"]
        steps = storage["held"] * env_count(storage) if "held" in storage else self.storage.max_size
        return saved_batch_problems(state_dict.get("ahead", []), steps)

    def _load_ahead(self, state_dict: dict[str, Any]) -> None:
        for saved in state_dict.get("ahead", ()):
            index, info, last = batch_from_state(saved)
            drawn = Drawn(self.storage, index, info, last=last, size=saved.get("size"))
            if not self.storage.read_only:
                drawn.data = self.read(drawn)
            self.waiting.append(drawn)

    def __getstate__(self) -> dict[str, Any]:
        drawn = [] if self._prefetch is None else self._prefetch.draws_in_progress
        own: dict[str, Any] = {
            "_iterator": None,
            "_graph": None,
            "_prefetch": None if self._prefetch is None else self._prefetch.depth,
            "waiting": [one.unread() for one in (*drawn, *self.waiting)],  # the copy reads from its storage
            "runs": [],
        }
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._graph = GraphHandle(self)
        self.waiting = deque(Drawn(**arguments) for arguments in state["waiting"])
        self._prefetch = Prefetch(self, state["_prefetch"]) if state["_prefetch"] else None

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def _field_names(keys: Any) -> tuple[str | Key, ...]:
    """Return names of fields as a tuple that can be hashed. The index is in every batch."""
    if type(keys) is list:
        keys = tuple(keys)
    if type(keys) is tuple or isinstance(keys, str):
        try:
            return _parsed_names(keys)
        except TypeError:  # a key is a list
            pass
    return _parsed_names.__wrapped__(keys)


@lru_cache
def _parsed_names(keys: Any) -> tuple[str | Key, ...]:
    listed = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else keys
    names = (name if isinstance(name, str) else as_key(name) for name in listed)
    return tuple(name for name in names if name != "index")
