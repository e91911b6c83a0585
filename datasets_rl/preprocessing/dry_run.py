"""What a recipe makes of the first episodes of a dataset, and what that says of all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from datasets_rl.errors import PreprocessError
from datasets_rl.format.schema import Column
from datasets_rl.pipeline.conversion import converted_bytes
from datasets_rl.preprocessing.blocks import step_bytes
from datasets_rl.preprocessing.functions import Function
from datasets_rl.preprocessing.merge import MergedDataset, Stored, check_alike
from datasets_rl.preprocessing.partial import columns_of, decoded_in, drawing, read
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.tensors import twice_in
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

__all__ = ["DryRun", "probe"]

_BYTES = 4 << 20
_SECONDS = 0.2
"""How much is looked at, if something is left of it: what is reached first."""
_LOOKS = 8
_FEW = 16


@dataclass(frozen=True)
class DryRun:
    """What came, and what would come of all if the others are like them."""

    sample: EpisodeBatch
    """The first that came."""
    columns: tuple[Column, ...]
    twice: frozenset[Key]
    """Fields that are stored at t and at t + 1, each for itself."""
    as_many: bool
    """As many steps come out as go in."""
    steps: int
    episodes: int
    bytes: int
    seconds: float
    """How long the recipe takes in one process."""


def probe(stored: Stored, recipe: Recipe, num_frames: int | None) -> DryRun:
    """Put the first episodes through a recipe, until some are left; of several datasets, those of each.

    Raises:
        PreprocessError: If nothing is left of any episode.
        InvalidArgumentError: If datasets come out with different fields.
    """
    spans = list(pairwise(stored.firsts)) if isinstance(stored, MergedDataset) else [(0, len(stored.episodes))]
    left, looks = num_frames or len(stored), []
    for first, stop in spans:
        total = min(left, int(stored.episodes.lengths[first:stop].sum()))
        if total:
            looks.append(_look(stored, recipe, first, stop, total))
        left -= total
    blocks = [block for look in looks for block in look.came]
    if not blocks:
        why = _why_empty(recipe, [look.reached for look in looks])
        raise PreprocessError(f"nothing is left of the {len(stored):,} steps of {stored.manifest.id}{why}")
    columns = columns_of(blocks[0], stored.schema)
    if isinstance(stored, MergedDataset):
        ids = [one.manifest.id for one in stored.members]
        # A dataset and what was made of it have the same id.
        names = ids if len(set(ids)) == len(ids) else [str(one.folder) for one in stored.members]
        named = [(name, look.came[0]) for name, look in zip(names, looks, strict=False) if look.came]
        check_alike([name for name, _ in named], [columns_of(block, stored.schema) for _, block in named])
    decoded = {key for block in blocks for key in decoded_in(block, columns)}
    columns = [replace(one, encoded=one.encoded and one.key not in decoded) for one in columns]
    return DryRun(
        blocks[0],
        tuple(columns),
        frozenset().union(*map(twice_in, blocks)),
        as_many=all(look.seen == sum(block.count for block in look.came) for look in looks),
        steps=round(sum(look.share * block.count for look in looks for block in look.came)),
        episodes=round(sum(look.share * len(block) for look in looks for block in look.came)),
        bytes=round(sum(look.share * _bytes(block, columns) for look in looks for block in look.came)),
        seconds=sum(look.seconds for look in looks),
    )


@dataclass(frozen=True)
class _Sample:
    """What came of some of the episodes of one dataset."""

    came: Sequence[EpisodeBatch]
    seen: int
    """Steps that were read for it."""
    share: float
    """Steps of the dataset to those."""
    seconds: float
    """How long all of the dataset would take."""
    reached: Sequence[set[int]]
    """The numbers of the episodes that each step was given."""


def _why_empty(recipe: Recipe, reached: Sequence[Sequence[set[int]]]) -> str:
    """Say which step left none of the episodes that came to it: the last that any came to."""
    counts = [sum(map(len, sets)) for sets in zip(*reached, strict=True)]
    last = max((number for number, count in enumerate(counts) if count), default=None)
    if last is None:
        return ""
    before = f"; {counts[last]:,} of {counts[0]:,} reach it" if counts[last] < counts[0] else ""
    return f": 0 of {counts[last]:,} episodes pass {recipe.told(last)}{before}"


def _look(stored: Stored, recipe: Recipe, first: int, stop: int, total: int) -> _Sample:
    """Put episodes [first, behind) through a recipe, until enough was seen and some are left."""
    most = max(1, _BYTES // step_bytes(stored.schema))
    came: list[EpisodeBatch] = []
    seen, taken, began = [], [], time.monotonic()
    reached: list[set[int]] = [set() for _ in recipe.steps]
    with drawing(0):
        for block in _growing(stored, recipe, first, stop, most, total):
            start = time.monotonic()
            found = recipe.first(len(recipe.steps), block, reached)
            taken.append(time.monotonic() - start)
            seen.append(block.count)
            came += [] if found is None else [found]
            if came and (sum(seen) >= most or time.monotonic() - began > _SECONDS):
                break
    # The first one pays for what is imported and compiled.
    timed = slice(1 if len(seen) > 1 else 0, None)
    return _Sample(came, sum(seen), total / sum(seen), sum(taken[timed]) / sum(seen[timed]) * total, reached)


def _growing(stored: Stored, recipe: Recipe, first: int, stop: int, most: int, total: int) -> Iterator[EpisodeBatch]:
    """Yield a few steps where no step of the recipe asks for more, one episode, and then blocks: some functions are slow."""
    if all(isinstance(step, Function) and step.per != "episode" for step in recipe.steps):
        yield from read(stored, first, first + 1, 1, min(_FEW, total))
    yield from read(stored, first, first + 1, 1, total)
    yield from read(stored, first + 1, stop, most // _LOOKS, total - int(stored.episodes.lengths[first]))


def _bytes(block: EpisodeBatch, columns: Sequence[Column]) -> int:
    """Return about how many bytes a block takes."""
    every = {**block.steps, **block.states}
    images = [every[one.key] for one in columns if one.encoded]
    encoded = sum(len(image) for one in images if isinstance(one, EncodedImages) for image in one.images)
    return converted_bytes(columns, block.count) + encoded
