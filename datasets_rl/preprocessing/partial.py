"""One part of a preprocessing: some episodes of a dataset through a recipe, into a folder of their own.

It runs in this process, in another one, or on another machine; nothing of what it writes depends on where.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from datasets_rl.errors import ConversionError, PreprocessError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.pipeline.partial import make_partial
from datasets_rl.preprocessing.blocks import blocks
from datasets_rl.preprocessing.merge import MergedDataset, check_not_replaced, members, opened
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.tensors import apart, twice_in
from datasets_rl.progress import Report
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.episode import EncodedImages, end_to_end
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_TRUNCATED, Key, dotted

__all__ = ["Task", "columns_of", "decoded_in", "drawing", "fill", "make", "own_columns", "read"]

_OWN = {EPISODE, NEXT_DONE}


@dataclass(frozen=True)
class Task:
    """What a part is made of: plain values, so that it can be sent anywhere."""

    dataset: Sequence[str]
    """The folder of the dataset that is read; of several that are merged, in their order."""
    digests: Sequence[str]
    """What identifies the bytes of each: it must not be replaced meanwhile."""
    recipe: str
    """The file with the recipe, written by this process or the one that sent the task."""
    folder: str
    """Where the part is made."""
    first: int
    """Its first episode."""
    stop: int
    """The episode behind its last one."""
    most: int
    """Steps of a block."""
    rows: int
    """Steps that are read of these episodes, at most."""
    schema: Sequence[Any]
    """The fields of the result, as in a manifest."""
    apart: Sequence[Sequence[str]]
    """The fields that are stored at t and at t + 1, each for itself."""
    specs: Mapping[str, Any]
    """Those of the dataset that is read, by dotted key."""
    seed: int
    """For functions that draw numbers."""


def make(task: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Make a part, unless it is there already.

    Args:
        task: The fields of a `Task`.
        report: Called with each number of further steps that were read.

    Returns:
        ``commit``: what the writer said; ``unfit``: dotted keys of fields with values outside their specs; or
        ``again``, and then the part was not made: as ``apart`` the fields that turned out not to be the same at t + 1
        as one step later, and that must be stored twice, and as ``decoded`` those whose pictures did not stay encoded.
    """
    one = Task(**task)
    stored = opened(one.dataset)
    check_not_replaced([each.manifest for each in members(stored)], one.digests)
    recipe: Recipe = cloudpickle.loads(Path(one.recipe).read_bytes())  # written by the process that made the task
    columns = own_columns(Schema.from_json(list(one.schema)))
    with drawing(one.seed):
        return make_partial(
            Path(one.folder), columns, stored.manifest.id, lambda writer: fill(writer, one, stored, recipe, report)
        )


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Let functions draw numbers, of torch, NumPy or Python, by a seed alone; those of the caller go on where they were."""
    before, states = random.getstate(), np.random.get_state()  # noqa: NPY002 -- functions may use it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))  # noqa: NPY002 -- as above
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(states)  # noqa: NPY002 -- as above


def fill(
    writer: DatasetWriter, task: Task, stored: StoredDataset | MergedDataset, recipe: Recipe, report: Report
) -> dict[str, Any]:
    """Write what the recipe makes of a part's episodes.

    Returns:
        What `make` does, without the commit.
    """
    twice = frozenset(tuple(key) for key in task.apart)
    specs: dict[Key, Any] = {
        field.key: TensorSpec.from_json(task.specs[field.name]) for field in writer.schema if field.name in task.specs
    }
    unfit: set[str] = set()
    for block in read(stored, task.first, task.stop, task.most, task.rows):
        came = recipe(block)
        report(block.count)
        if came is None:
            continue
        came = apart(came, twice)
        split = twice_in(came) & {field.key for field in writer.schema if field.shared}
        decoded = decoded_in(came, writer.schema)
        if split or decoded:
            return {"again": {"apart": sorted(map(list, split)), "decoded": sorted(map(list, decoded))}}
        unfit |= {dotted(key) for key in _unfit(came, specs, unfit)}
        try:
            writer.extend(came)
        except ConversionError as error:
            raise PreprocessError(
                f"the recipe does not make the same fields of all episodes: {'; '.join(error.problems)}",
                hint="a step must give every episode the same fields, dtypes and shapes",
            ) from error
    return {"unfit": sorted(unfit)}


def own_columns(schema: Schema) -> list[Column]:
    """Return the columns of a schema that are given to a writer: it adds two of its own."""
    return [field for field in schema if field.key not in _OWN]


def read(stored: StoredDataset | MergedDataset, first: int, stop: int, most: int, rows: int) -> Iterator[EpisodeBatch]:
    """Yield the blocks of some episodes; with fewer `rows` than they have, the last one is cut."""
    found = stored.blocks if isinstance(stored, MergedDataset) else partial(blocks, stored)
    for block in found(first, stop, most):
        if rows <= 0:
            return
        yield block if block.count <= rows else _cut(block, rows)
        rows -= block.count


def _cut(block: EpisodeBatch, rows: int) -> EpisodeBatch:
    """Return the first rows of a block; what follows the last one is known, and it ends by truncation."""
    stops = block.table.stops
    kept = int(np.searchsorted(stops, rows)) + 1
    block = block.pick(np.arange(kept))
    if stops[kept - 1] == rows:
        return block
    lengths = np.diff(np.append(stops[: kept - 1], rows), prepend=0)
    truncated = np.array(block.steps[NEXT_TRUNCATED][:rows])
    truncated[-1] = True
    known = np.array(block.final_known)
    known[-1] = True
    return replace(
        block,
        lengths=lengths,
        steps={key: values[:rows] for key, values in block.steps.items()} | {NEXT_TRUNCATED: truncated},
        states={key: values[:rows] for key, values in block.states.items()},
        final_states={
            key: end_to_end([block.final_states[key][: kept - 1], values[rows : rows + 1]])
            for key, values in block.states.items()
        },
        final_known=known,
    )


def columns_of(block: EpisodeBatch, like: Schema) -> list[Column]:
    """Return the columns of episodes: those of another dataset in its order, then the others."""

    def column(key: Key, values: Any, *, shared: bool) -> Column:
        text, encoded = key in block.vocabulary, isinstance(values, EncodedImages)
        return Column(key, values.dtype, values.shape[1:], shared=shared, text=text, encoded=encoded)

    found = {key: column(key, values, shared=True) for key, values in block.states.items()}
    found |= {key: column(key, values, shared=False) for key, values in block.steps.items()}
    order = [field.key for field in like if field.key in found]
    return [found[key] for key in [*order, *sorted(found.keys() - order)]]


def decoded_in(block: EpisodeBatch, columns: Iterable[Column]) -> set[Key]:
    """Return the fields that are encoded pictures elsewhere, and pixels here."""
    every = {**block.steps, **block.states}
    return {one.key for one in columns if one.encoded and not isinstance(every.get(one.key), EncodedImages)}


def _unfit(block: EpisodeBatch, specs: Mapping[Key, Any], known: set[str]) -> list[Key]:
    found = []
    for key, spec in specs.items():
        values = block.steps.get(key, block.states.get(key))
        if values is None or dotted(key) in known or isinstance(values, EncodedImages):
            continue
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if tuple(spec.shape) != values.shape[1:] or spec.dtype != tensor.dtype or not spec.is_in(tensor):
            found.append(key)
    return found
