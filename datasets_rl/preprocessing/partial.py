"""A task of preprocessing: a recipe is applied to some episodes of a dataset, and the result written.

The function runs in this process, in another process, or on another machine. The result does not depend on the place.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from datasets_rl.build.partial import make_partial, writer_columns
from datasets_rl.errors import ConversionError, PreprocessError
from datasets_rl.format.images.base import Form
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.preprocessing.batches import episode_batches
from datasets_rl.preprocessing.dictionaries import read_dictionaries
from datasets_rl.preprocessing.merge import MergedDataset, open_datasets
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.steps.times import keep_rows
from datasets_rl.preprocessing.tensors import unshare, unshared_keys
from datasets_rl.progress import Report
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted_name


@dataclass(frozen=True)
class Task:
    """The description of a partial dataset to write, as JSON values, which any process can receive."""

    dataset: Sequence[str]
    """The folders of the versions to read, in order. A merge has several folders."""
    recipe: str
    """The file with the pickled recipe, written by the process that submits the task."""
    folder: str
    """The folder of the partial dataset."""
    first: int
    """The first episode to read."""
    stop: int
    """The end of the episodes to read, exclusive."""
    max_steps: int
    """The approximate maximum number of steps of a batch."""
    rows: int
    """The maximum number of steps to read of these episodes."""
    schema: Sequence[Any]
    """The fields of the result, as in a manifest."""
    dictionaries: str
    """The folder of the dictionaries of compressed images."""
    unshared: Sequence[Sequence[str]]
    """The fields that are stored separately at t and at t + 1."""
    specs: Mapping[str, Any]
    """The specs of the dataset that is read, by dotted key."""
    seed: int
    """The seed of functions that draw random numbers."""


def make_partial_dataset(task: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Write the partial dataset of a task, unless the partial dataset exists already.

    Args:
        task: The fields of a `Task`.
        report: Called with each number of further steps that were read.

    Returns:
        ``commit``, the commit of the writer, and ``outside_spec``, the dotted keys of fields with values outside the
        specs. Or ``revision`` if the values do not fit the layout, in which case the rows are incomplete. ``unshared``
        has the fields with values at t + 1 that differ from the values of the next step, and must be stored separately.
        ``decoded`` has the fields with images that are no longer encoded.
    """
    job = Task(**task)
    stored = open_datasets(job.dataset)
    recipe: Recipe = cloudpickle.loads(Path(job.recipe).read_bytes())  # written by the process that submits the task
    columns = writer_columns(Schema.from_json(list(job.schema)))
    with seeded_random(job.seed):
        return make_partial(
            Path(job.folder),
            columns,
            stored.manifest.id,
            lambda writer: write_episodes(writer, job, stored, recipe, report),
            read_dictionaries(Path(job.dictionaries), columns),
        )


@contextmanager
def seeded_random(seed: int) -> Iterator[None]:
    """Seed the random numbers of torch, NumPy and Python in the block, and restore the previous states afterwards."""
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


def write_episodes(
    writer: DatasetWriter, task: Task, stored: StoredDataset | MergedDataset, recipe: Recipe, report: Report
) -> dict[str, Any]:
    """Write the episodes of a task, transformed by a recipe.

    Returns:
        The result of `make_partial_dataset`, without the commit.
    """
    unshared = frozenset(tuple(key) for key in task.unshared)
    specs: dict[Key, Any] = {
        field.key: TensorSpec.from_json(task.specs[field.name]) for field in writer.schema if field.name in task.specs
    }
    outside_spec: set[str] = set()
    for batch in read_batches(stored, task.first, task.stop, task.max_steps, task.rows):
        result = recipe(batch)
        report(batch.count)
        if result is None:
            continue
        result = unshare(result, unshared)
        split = unshared_keys(result) & {field.key for field in writer.schema if field.shared}
        decoded = decoded_keys(result, writer.schema)
        if split or decoded:
            return {"revision": {"unshared": sorted(map(list, split)), "decoded": sorted(map(list, decoded))}}
        outside_spec |= {dotted_name(key) for key in _outside_spec(result, specs, outside_spec)}
        try:
            writer.extend(result)
        except ConversionError as error:
            raise PreprocessError(
                f"the recipe does not give all episodes the same fields: {'; '.join(error.problems)}",
                hint="a step must give every episode the same fields, dtypes and shapes",
            ) from error
    return {"outside_spec": sorted(outside_spec)}


def read_batches(
    stored: StoredDataset | MergedDataset, first: int, stop: int, max_steps: int, rows: int
) -> Iterator[EpisodeBatch]:
    """Yield batches of the episodes [first, stop), with at most `rows` steps in all. The last batch may be cut."""
    batches = stored.episode_batches if isinstance(stored, MergedDataset) else partial(episode_batches, stored)
    for batch in batches(first, stop, max_steps):
        if batch.count > rows:
            cut = keep_rows(batch, 0, np.clip(rows - batch.table.starts, 0, batch.lengths))
            yield from [] if cut is None else [cut]
            return
        yield batch
        rows -= batch.count


def columns_of(batch: EpisodeBatch, schema: Schema) -> list[Column]:
    """Return the columns of a batch: first the columns of the schema `schema`, in that order, then the others by key."""

    def column(key: Key, values: Any, *, shared: bool) -> Column:
        form: Form = values.form if isinstance(values, StoredImages) else "raw"
        if key in batch.compressed and values.dtype == np.uint8:
            form = "compressed"
        text = key in batch.vocabulary
        return Column(key, values.dtype, values.shape[1:], shared=shared, text=text, form=form)

    columns = {key: column(key, values, shared=True) for key, values in batch.states.items()}
    columns |= {key: column(key, values, shared=False) for key, values in batch.steps.items()}
    order = [field.key for field in schema if field.key in columns]
    return [columns[key] for key in [*order, *sorted(columns.keys() - order)]]


def decoded_keys(batch: EpisodeBatch, columns: Iterable[Column]) -> set[Key]:
    """Return the keys of the columns of encoded images or of frames of videos that hold others in a batch."""
    arrays = {**batch.steps, **batch.states}
    return {column.key for column in columns if column.image_form.form_problem(arrays.get(column.key))}


def _outside_spec(batch: EpisodeBatch, specs: Mapping[Key, Any], skip: set[str]) -> list[Key]:
    """Return the keys of the fields with values outside the specs, except for the dotted keys to skip."""
    outside = []
    for key, spec in specs.items():
        values = batch.steps.get(key, batch.states.get(key))
        if values is None or dotted_name(key) in skip or isinstance(values, StoredImages):
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
            tensor = torch.from_numpy(np.ascontiguousarray(values))
        if tuple(spec.shape) != values.shape[1:] or spec.dtype != tensor.dtype or not spec.is_in(tensor):
            outside.append(key)
    return outside
