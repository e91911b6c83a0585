"""Text and HTML representations of a buffer, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any

from tensordict import TensorDictBase

from datasets_rl.buffers.read_path import ReadPath
from datasets_rl.notebook import facts_html
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import as_key, dotted_name


def as_text(buffer: ReadPath) -> str:
    """Return a buffer with its components as text, a component per line."""
    components = ",\n".join(f"{name}={value}" for name, value in _components(buffer))
    return f"{type(buffer).__name__}(\n{indent(components, '    ')})"


def as_html(buffer: ReadPath, *facts: tuple[str, str]) -> str:
    """Return a buffer as an HTML table: additional rows, its components, and the fields of a step.

    Args:
        buffer: The buffer.
        facts: Names and values of additional rows.
    """
    held = sum(map(len, _storages(buffer)))
    return facts_html(
        type(buffer).__name__,
        (*facts, *_components(buffer), ("steps", f"{held:,} of {buffer.storage.max_size:,}"), *_fields(buffer)),
    )


def _components(buffer: ReadPath) -> Iterator[tuple[str, str]]:
    yield "storage", repr(buffer.storage)
    yield "sampler", repr(buffer.sampler)
    yield "writer", repr(buffer.writer)
    if buffer.transforms:
        yield "transform", ", ".join(map(repr, buffer.transforms))
    yield "batch_size", repr(buffer.batch_size)


def _storages(buffer: ReadPath) -> Sequence[Storage]:
    storages: Sequence[Storage] = getattr(buffer.storage, "storages", (buffer.storage,))
    return storages


def _fields(buffer: ReadPath) -> Iterator[tuple[str, str]]:
    storage = _storages(buffer)[0]
    first: Any = storage.get(0) if len(storage) else None
    if isinstance(first, TensorDictBase):
        for key, leaf in first.items(include_nested=True, leaves_only=True):
            dtype = str(getattr(leaf, "dtype", type(leaf).__name__)).removeprefix("torch.")
            yield dotted_name(as_key(key)), f"{dtype} {list(leaf.shape)}"
