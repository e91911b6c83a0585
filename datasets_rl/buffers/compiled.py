"""Sampling in a compiled function, ``torch.compile(..., fullgraph=True)``.

The compiled graph contains a single operator that draws a batch and gathers the rows when the graph runs: under the
lock of the buffer, with the steps that the buffer then holds. What follows, the views of the rows and the transforms,
is compiled.

    sample_in_graph     | datasets_rl::draw            -> rows, parts, info | views, TensorDict, transforms |
    runs                  sampler, lock, gather: Python                       compiled

    storage                                       parts
    tensors                                       the rows of each table
    the memory of a device                        none: the graph gathers, so that a compiler joins the gathers
    stored datasets                               the leaves of the steps
    all, if a transform reads other rows          the leaves of the finished batch: transforms run in the operator
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.buffers.read_path import ReadPath
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.tensor import TensorStorage
from datasets_rl.ted.keys import Key, as_key
from datasets_rl.transforms.gathered import take_gathered

_handles: weakref.WeakValueDictionary[int, GraphHandle] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class GraphHandle:
    """The number of a buffer, by which a compiled graph finds the buffer."""

    def __init__(self, buffer: ReadPath) -> None:
        self.number = next(_numbers)
        self.buffer: Callable[[], Any] = weakref.ref(buffer)
        self.anchor = torch.zeros(())
        """A tensor input of the operator, without which the operator would run once, when the graph is compiled."""
        self.info: dict[Any, Tensor] = {}
        """The info of a small batch, with the dtypes and shapes of all batches."""
        self.leaves: dict[Key, Tensor] = {}
        """The leaves of a small batch, if the operator returns the leaves of batches."""
        self.is_finished = False
        """Whether the operator also applies the transforms."""
        self.device: torch.device | None = None
        """The device of batches, of which the operator returns the leaves."""
        _handles[self.number] = self


def can_compile(buffer: ReadPath) -> bool:
    """Return whether a compiled function can sample from a buffer: its storage consists of tensors, or of stored steps."""
    return isinstance(buffer.storage, (TensorStorage, EpisodicStorage)) and not buffer.has_own_rows


def _reads_leaves(buffer: ReadPath) -> bool:
    """Return whether the operator returns the leaves of a batch."""
    storage = buffer.storage
    return _is_finished(buffer) or not isinstance(storage, (TensorStorage, DeviceStorage))


def _is_finished(buffer: ReadPath) -> bool:
    """Return whether the operator applies the transforms, because a transform reads other rows."""
    return any(hasattr(type(transform), "gather") for transform in buffer.transforms)


def _leaves_of(batch: Any) -> dict[Key, Tensor]:
    return {as_key(key): leaf for key, leaf in batch.items(include_nested=True, leaves_only=True)}


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate this decorator
def call_uncompiled(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function from a compiled function, in a graph break: a write to a buffer is never compiled again."""
    return call(*arguments, **options)


# Like a random number, a batch is drawn anew by each call: the tag excludes that two calls are merged.
@torch.library.custom_op("datasets_rl::draw", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _draw(number: int, layout: str, batch_size: int, anchor: Tensor) -> list[Tensor]:
    """Draw a batch, and return the rows, the parts of the batch, and the info in the order of `_describe`."""
    del layout, anchor
    handle = _handles[number]
    buffer = handle.buffer()
    with buffer.lock:
        drawn = buffer.draw(batch_size, ahead=True)
        storage: Any = drawn.storage
        parts: list[Tensor] = []
        if handle.is_finished:
            batch, _ = buffer.make(drawn)
        else:
            try:
                if isinstance(storage, TensorStorage):
                    parts = storage.take_parts(drawn.index)
                elif handle.leaves:
                    batch = storage.take(drawn.index)
            finally:
                buffer.discard(drawn)
    if len(drawn.index) != batch_size:
        raise InvalidArgumentError(
            f"the sampler returned {len(drawn.index)} steps, expected {batch_size} for a compiled function",
            hint="pass drop_last=True to the sampler, or sample outside of the compiled function",
        )
    if handle.leaves:
        # The results of an operator may not be views of the same memory.
        leaves = _leaves_of(batch)
        parts = [leaves[key].clone() for key in handle.leaves]
    rows = drawn.index.to(storage.rows_device, copy=True)
    return [rows, *parts, *(drawn.info[key].clone() for key in handle.info)]


@_draw.register_fake
def _(number: int, layout: str, batch_size: int, anchor: Tensor) -> list[Tensor]:
    """Return tensors without values, of the shapes that the operator returns: the real tensors cannot be read here."""
    del layout, anchor
    handle = _handles[int(number)]
    storage: Any = handle.buffer().storage
    rows = torch.empty(batch_size, dtype=torch.int64, device=storage.rows_device)
    results = [
        torch.empty((batch_size, *shape), dtype=dtype, device=device)
        for dtype, shape, device in [*_parts(handle, storage), *map(_form_of, handle.info.values())]
    ]
    return [rows, *results]


_Form: TypeAlias = "tuple[torch.dtype, tuple[int, ...], torch.device | None]"
"""The dtype, the shape of a row, and the device of a result of the operator."""


def _form_of(values: Tensor) -> _Form:
    return values.dtype, tuple(values.shape[1:]), values.device


def _parts(handle: GraphHandle, storage: Any) -> list[_Form]:
    """Return the forms of the parts of a batch."""
    if handle.leaves:
        return [*map(_form_of, handle.leaves.values())]
    if isinstance(storage, TensorStorage):
        return [(dtype, shape, storage.device) for dtype, shape in storage.part_shapes]
    return []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # untyped in torch
def _describe(number: int) -> tuple[str, tuple[Any, ...], tuple[Key, ...], torch.device | None, bool]:
    """Return the layout of a batch, which tells compiled graphs apart, the keys of its info and of its leaves.

    Then follow the device of the batch, and whether these are the leaves of the finished batch.

    The info and the leaves of a smallest batch are remembered. That batch is drawn without a change of state.
    """
    handle = _handles[number]
    buffer = handle.buffer()
    storage, sampler = buffer.storage, buffer.sampler
    rows = torch.arange(sampler.unit) % len(storage)
    info = dict(sampler.info_of(storage, rows))
    if buffer.writer.tracks_generations:
        info["index_generation"] = torch.zeros(sampler.unit, dtype=torch.int64)
    handle.info, handle.leaves, handle.is_finished = info, {}, _is_finished(buffer)
    if isinstance(storage, EpisodicStorage) or handle.is_finished:
        # Also of a batch that the graph reads: what is computed once is not compiled.
        rows = rows.to(storage.rows_device)
        data = take_gathered(buffer.transforms, storage, rows)
        if handle.is_finished:
            with torch.random.fork_rng(devices=[]):
                data = buffer.finish(data, {**info, "index": rows if storage.ndim == 1 else storage.unravel(rows)})
        if _reads_leaves(buffer):
            handle.leaves, handle.device = _leaves_of(data), data.device
    layout = str([*_parts(handle, storage), *map(_form_of, info.values())])
    return layout, tuple(info), tuple(handle.leaves), handle.device, handle.is_finished


def _nested(leaves: list[tuple[Key, Tensor]], batch_size: int, device: torch.device | None) -> Any:
    """Return a TensorDict of leaves. Compiled functions cannot set a key of several names."""
    entries: dict[str, Any] = {}
    below: dict[str, list[tuple[Key, Tensor]]] = {}
    for key, leaf in leaves:
        if len(key) == 1:
            entries[key[0]] = leaf
        else:
            below.setdefault(key[0], []).append((key[1:], leaf))
    entries.update({name: _nested(inner, batch_size, device) for name, inner in below.items()})
    return TensorDict(entries, batch_size=[batch_size], device=device)


def sample_in_graph(buffer: ReadPath, handle: GraphHandle, batch_size: int) -> tuple[Any, dict[Any, Any]]:
    """Return a batch and its info, as `ReplayBuffer.sample` does, in a function that is being compiled.

    Args:
        buffer: A buffer for which `can_compile` is True.
        handle: The handle of the buffer.
        batch_size: Number of steps. The sampler must return as many steps.
    """
    storage: Any = buffer.storage
    layout, keys, leaf_keys, device, is_finished = _describe(handle.number)
    is_on_device = isinstance(storage, DeviceStorage)
    anchor = storage.anchor if is_on_device else handle.anchor
    rows, *rest = torch.ops.datasets_rl.draw(handle.number, layout, batch_size, anchor)
    parts, entries = rest[: len(rest) - len(keys)], rest[len(rest) - len(keys) :]
    info: dict[Any, Any] = dict(zip(keys, entries, strict=True))
    info["index"] = rows if storage.ndim == 1 else storage.unravel(rows)
    if leaf_keys:
        data = _nested(list(zip(leaf_keys, parts, strict=True)), batch_size, device)
    elif is_on_device:
        data = _nested(list(storage.take_columns(rows).items()), batch_size, storage.device)
    else:
        data = storage.batch_of_parts(parts, rows)
    return data if is_finished else buffer.finish(data, info), info
