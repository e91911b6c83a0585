"""Sampling in a compiled function, ``torch.compile(..., fullgraph=True)``.

The compiled graph contains a single operator that draws a batch and gathers the rows when the graph runs: under the
lock of the buffer, with the steps that the buffer then holds. What follows, the views of the rows and the transforms,
is compiled.

    sample_in_graph     | datasets_rl::draw            -> rows, tables, info | views, TensorDict, transforms |
    runs                  sampler, lock, gather: Python                        compiled
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from datasets_rl.buffers.read_path import ReadPath
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.tensor import TensorStorage

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
        _handles[self.number] = self


def can_compile(buffer: ReadPath) -> bool:
    """Return whether a compiled function can sample from a buffer: its storage consists of tensors."""
    return isinstance(buffer.storage, TensorStorage) and not buffer.has_own_rows


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
        try:
            parts: list[Tensor] = drawn.storage.take_parts(drawn.index)
        finally:
            buffer.discard(drawn)
    if len(drawn.index) != batch_size:
        raise InvalidArgumentError(
            f"the sampler returned {len(drawn.index)} steps, expected {batch_size} for a compiled function",
            hint="pass drop_last=True to the sampler, or sample outside of the compiled function",
        )
    return [drawn.index.clone(), *parts, *(drawn.info[key].clone() for key in handle.info)]


@_draw.register_fake
def _(number: int, layout: str, batch_size: int, anchor: Tensor) -> list[Tensor]:
    """Return tensors without values, of the shapes that the operator returns: the real tensors cannot be read here."""
    del layout, anchor
    handle = _handles[int(number)]
    storage: Any = handle.buffer().storage
    kept = [
        torch.empty((batch_size, *shape), dtype=dtype, device=storage.device) for dtype, shape in storage.part_shapes
    ]
    entries = [torch.empty((batch_size, *value.shape[1:]), dtype=value.dtype) for value in handle.info.values()]
    return [torch.empty(batch_size, dtype=torch.int64), *kept, *entries]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # untyped in torch
def _describe(number: int) -> tuple[str, tuple[Any, ...]]:
    """Return the layout of a batch, which tells compiled graphs apart, and the keys of its info.

    The info of a smallest batch is remembered. That batch is drawn without a change of state.
    """
    handle = _handles[number]
    buffer = handle.buffer()
    storage, sampler = buffer.storage, buffer.sampler
    info = dict(sampler.info_of(storage, torch.arange(sampler.unit) % len(storage)))
    if buffer.writer.tracks_generations:
        info["index_generation"] = torch.zeros(sampler.unit, dtype=torch.int64)
    handle.info = info
    entries = [(value.dtype, tuple(value.shape[1:])) for value in info.values()]
    return str([*storage.part_shapes, *entries]), tuple(info)


def sample_in_graph(buffer: ReadPath, handle: GraphHandle, batch_size: int) -> tuple[Any, dict[Any, Any]]:
    """Return a batch and its info, as `ReplayBuffer.sample` does, in a function that is being compiled.

    Args:
        buffer: A buffer for which `can_compile` is True.
        handle: The handle of the buffer.
        batch_size: Number of steps. The sampler must return as many steps.
    """
    storage: Any = buffer.storage
    layout, keys = _describe(handle.number)
    rows, *rest = torch.ops.datasets_rl.draw(handle.number, layout, batch_size, handle.anchor)
    parts, entries = rest[: len(rest) - len(keys)], rest[len(rest) - len(keys) :]
    info: dict[Any, Any] = dict(zip(keys, entries, strict=True))
    info["index"] = rows if storage.ndim == 1 else storage.unravel(rows)
    return buffer.finish(storage.batch_of_parts(parts, rows), info), info
