"""Reading a stored dataset in batches of whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from datasets_rl.format.images.base import Items
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Schema
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key


def step_bytes(schema: Schema) -> int:
    """Return the size of a step in memory in bytes, with decoded images."""
    return schema.record_bytes + sum(field.step_bytes for field in schema.wide)


def whole_episodes(lengths: np.ndarray, max_steps: int) -> list[tuple[int, int]]:
    """Split E episodes into ranges of about `max_steps` steps, (first, stop). Each range has an episode at least."""
    starts = np.cumsum(lengths) - lengths
    cuts = np.flatnonzero(np.diff(starts // max(max_steps, 1), prepend=-1))
    return list(pairwise([*cuts.tolist(), len(lengths)]))


def episode_batch(stored: StoredDataset, first: int, stop: int) -> EpisodeBatch:
    """Return the episodes [first, stop) of a dataset as views of its files. Images keep their stored form."""
    table = stored.episodes
    rows = slice(int(table.starts[first]), int(table.stops[stop - 1]))
    own = {EPISODE, NEXT_DONE}
    fields = [field for field in stored.schema if field.key not in own]
    arrays = {field.key: _column(stored, field.key, rows) for field in fields}
    shared = [field.key for field in fields if field.shared]
    return EpisodeBatch(
        lengths=np.array(table.lengths[first:stop]),
        steps={key: values for key, values in arrays.items() if key not in shared},
        states={key: arrays[key] for key in shared},
        final_states={key: _span(stored.final_states(key), first, stop) for key in shared},
        final_known=table["final_known"][first:stop],
        metadata={name: table[name][first:stop] for name in table.metadata_names},
        vocabulary={field.key: stored.texts(field.key) for field in fields if field.text},
        numbers=np.arange(first, stop),
        compressed=frozenset(field.key for field in fields if field.image_form.has_dictionary),
    )


def _column(stored: StoredDataset, key: Key, rows: slice) -> Any:
    if stored.schema[key].image_form.is_array:
        return stored.column(key, rows.start, rows.stop)
    return _span(stored.items(key), rows.start, rows.stop)


def _span(items: Items, start: int, stop: int) -> Any:
    return items.read_stored(start, stop) if isinstance(items, ImageColumn) else items[start:stop]


def episode_batches(stored: StoredDataset, first: int, stop: int, max_steps: int) -> Iterator[EpisodeBatch]:
    """Yield the episodes [first, stop) in batches of about `max_steps` steps."""
    for start, end in whole_episodes(stored.episodes.lengths[first:stop], max_steps):
        yield episode_batch(stored, first + start, first + end)
