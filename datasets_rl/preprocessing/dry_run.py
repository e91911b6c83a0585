"""Dry runs: a recipe is applied to the first episodes of a dataset to estimate the result for all episodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.build.conversion import converted_bytes
from datasets_rl.errors import PreprocessError
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing.batches import step_bytes
from datasets_rl.preprocessing.dictionaries import ImageDictionary, common_dictionary, spread_images, train_dictionary
from datasets_rl.preprocessing.functions import Function
from datasets_rl.preprocessing.merge import MergedDataset, Stored, check_same_fields
from datasets_rl.preprocessing.partial import columns_of, decoded_keys, read_batches, seeded_random
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.tensors import unshared_keys
from datasets_rl.read.compressed_frames import TRAINING_FRAMES
from datasets_rl.store.layout import dataset_folder
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

_BYTES = 4 << 20
_SECONDS = 0.2
"""The limits of a sample, in bytes and in seconds: the sample ends at either limit, once some steps remain."""
_SAMPLE_BATCHES = 8
_FEW_STEPS = 16
_DICTIONARY_STEPS = 8000
_MIN_EPISODES, _MAX_EPISODES = 4, 16
"""The approximate number of steps, and the number of episodes, from which images a dictionary is trained."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The result of a recipe for the first episodes, and the estimated result for all episodes."""

    sample: EpisodeBatch
    """The first batch of the result."""
    columns: tuple[Column, ...]
    dictionaries: Mapping[Key, ImageDictionary]
    """The dictionaries of the columns of compressed images."""
    unshared: frozenset[Key]
    """Fields that are stored separately at t and at t + 1, because the recipe treats the two differently."""
    as_many: bool
    """Whether the recipe keeps the number of steps."""
    steps: int
    """The estimated number of steps."""
    episodes: int
    """The estimated number of episodes."""
    bytes: int
    """The estimated size of the result."""
    seconds: float
    """The estimated duration in a single process."""


def dry_run_recipe(stored: Stored, recipe: Recipe, num_frames: int | None) -> DryRun:
    """Apply a recipe to the first episodes of a dataset, until some steps remain.

    For a merge, the episodes are the first of each dataset.

    Raises:
        PreprocessError: If no steps of any episode remain.
        InvalidArgumentError: If the results for merged datasets have different fields.
    """
    ranges = list(pairwise(stored.firsts)) if isinstance(stored, MergedDataset) else [(0, len(stored.episodes))]
    remaining, samples = num_frames or len(stored), []
    for first, stop in ranges:
        total = min(remaining, int(stored.episodes.lengths[first:stop].sum()))
        if total:
            samples.append(_take_sample(stored, recipe, first, stop, total))
        remaining -= total
    batches = [batch for sample in samples for batch in sample.batches]
    if not batches:
        why = _why_empty(recipe, [sample.reached for sample in samples])
        raise PreprocessError(f"nothing is left of the {len(stored):,} steps of {stored.manifest.id}{why}")
    columns = columns_of(batches[0], stored.schema)
    if isinstance(stored, MergedDataset):
        ids = [member.manifest.id for member in stored.members]
        # A dataset and its preprocessed version may have the same id.
        folders = [str(dataset_folder(member.folder)) for member in stored.members]
        names = ids if len(set(ids)) == len(ids) else folders
        named = [(name, sample.batches[0]) for name, sample in zip(names, samples, strict=False) if sample.batches]
        check_same_fields([name for name, _ in named], [columns_of(batch, stored.schema) for _, batch in named])
    decoded = {key for batch in batches for key in decoded_keys(batch, columns)}
    columns = [replace(column, form="raw") if column.key in decoded else column for column in columns]
    dictionaries = _fit_dictionaries(stored, recipe, columns, batches, min(num_frames or len(stored), len(stored)))
    return DryRun(
        sample=batches[0],
        columns=tuple(columns),
        dictionaries=dictionaries,
        unshared=frozenset().union(*map(unshared_keys, batches)),
        as_many=all(sample.steps_read == sum(batch.count for batch in sample.batches) for sample in samples),
        steps=round(sum(sample.scale * batch.count for sample in samples for batch in sample.batches)),
        episodes=round(sum(sample.scale * len(batch) for sample in samples for batch in sample.batches)),
        bytes=round(
            sum(
                sample.scale * _stored_bytes(batch, columns, dictionaries)
                for sample in samples
                for batch in sample.batches
            )
        )
        + sum(len(fitted.dictionary.data) for fitted in dictionaries.values()),
        seconds=sum(sample.seconds for sample in samples),
    )


@dataclass(frozen=True)
class _Sample:
    """The result of a recipe for some of the episodes of a dataset."""

    batches: Sequence[EpisodeBatch]
    steps_read: int
    """The number of steps of the dataset that were read."""
    scale: float
    """The ratio of the steps of the dataset to the steps that were read."""
    seconds: float
    """The estimated duration for the whole dataset."""
    reached: Sequence[set[int]]
    """The numbers of the episodes that reach each step of the recipe."""


def _why_empty(recipe: Recipe, reached: Sequence[Sequence[set[int]]]) -> str:
    """Return which step dropped all episodes: the last step that any episode reaches."""
    counts = [sum(map(len, sets)) for sets in zip(*reached, strict=True)]
    last = max((number for number, count in enumerate(counts) if count), default=None)
    if last is None:
        return ""
    before = f". {counts[last]:,} of {counts[0]:,} reach this step" if counts[last] < counts[0] else ""
    return f": 0 of {counts[last]:,} episodes pass {recipe.step_label(last)}{before}"


def _take_sample(stored: Stored, recipe: Recipe, first: int, stop: int, total: int) -> _Sample:
    """Apply a recipe to the episodes [first, stop), until a limit is reached and some steps remain."""
    max_steps = max(1, _BYTES // step_bytes(stored.schema))
    batches: list[EpisodeBatch] = []
    counts, durations, sample_start = [], [], time.monotonic()
    reached: list[set[int]] = [set() for _ in recipe.steps]
    with seeded_random(0):
        for batch in _growing_batches(stored, recipe, first, stop, max_steps, total):
            start = time.monotonic()
            result = recipe.first(len(recipe.steps), batch, reached)
            durations.append(time.monotonic() - start)
            counts.append(batch.count)
            batches += [] if result is None else [result]
            if batches and (sum(counts) >= max_steps or time.monotonic() - sample_start > _SECONDS):
                break
    # The duration of the first batch includes imports and compilation.
    timed = slice(1 if len(counts) > 1 else 0, None)
    seconds = sum(durations[timed]) / sum(counts[timed]) * total
    return _Sample(batches, sum(counts), total / sum(counts), seconds, reached)


def _growing_batches(
    stored: Stored, recipe: Recipe, first: int, stop: int, max_steps: int, total: int
) -> Iterator[EpisodeBatch]:
    """Yield batches of growing size, because functions may be slow.

    The first batch has a few steps, if no step of the recipe needs a whole episode. The next batch has one episode, and
    later batches are larger.
    """
    if all(isinstance(step, Function) and step.per != "episode" for step in recipe.steps):
        yield from read_batches(stored, first, first + 1, 1, min(_FEW_STEPS, total))
    yield from read_batches(stored, first, first + 1, 1, total)
    yield from read_batches(
        stored, first + 1, stop, max_steps // _SAMPLE_BATCHES, total - int(stored.episodes.lengths[first])
    )


def _fit_dictionaries(
    stored: Stored, recipe: Recipe, columns: Sequence[Column], sample: Sequence[EpisodeBatch], total: int
) -> dict[Key, ImageDictionary]:
    """Return the dictionary of each column of compressed images, stored for unchanged images, or newly trained."""
    keys = [column.key for column in columns if column.image_form.has_dictionary]
    fitted = {key: common_dictionary([_images(batch, key) for batch in sample]) for key in keys}
    changed = [key for key, common in fitted.items() if common is None]
    frames: dict[Key, list[NDArray[np.uint8]]] = {key: [] for key in changed}
    if changed and not recipe.calls_functions:
        with seeded_random(0):
            for batch in _spread_batches(stored, recipe, total):
                for key in changed:
                    frames[key].append(spread_images(_images(batch, key), TRAINING_FRAMES // _MIN_EPISODES))
    return {
        key: common or train_dictionary(frames[key] or [spread_images(_images(batch, key)) for batch in sample])
        for key, common in fitted.items()
    }


def _images(batch: EpisodeBatch, key: Key) -> Any:
    return batch.states[key] if key in batch.states else batch.steps[key]


def _spread_batches(stored: Stored, recipe: Recipe, total: int) -> Iterator[EpisodeBatch]:
    """Yield the results of a recipe for some of the episodes that are read, at equal distances."""
    lengths = stored.episodes.lengths
    count = min(int(np.searchsorted(np.cumsum(lengths), total)) + 1, len(lengths))
    episodes = int(np.clip(_DICTIONARY_STEPS // int(lengths[:count].mean()), _MIN_EPISODES, _MAX_EPISODES))
    for episode in np.unique(np.linspace(0, count - 1, episodes).astype(np.int64)).tolist():
        for batch in read_batches(stored, episode, episode + 1, 1, min(total, _DICTIONARY_STEPS)):
            if (result := recipe(batch)) is not None:
                yield result


def _stored_bytes(batch: EpisodeBatch, columns: Sequence[Column], dictionaries: Mapping[Key, ImageDictionary]) -> float:
    """Return the estimated size of a stored batch in bytes."""
    arrays = {**batch.steps, **batch.states}
    encoded: int = sum(arrays[column.key].nbytes for column in columns if column.image_form.holds_files)
    compressed = sum(batch.count * fitted.image_bytes for fitted in dictionaries.values())
    return converted_bytes(columns, batch.count) + encoded + compressed
