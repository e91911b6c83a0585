"""The dataset that is audited: its fields by what they mean, and a sample of transitions that shows what is usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock, RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.copies import telling_fingerprints
from datasets_rl.format.quantiles import sample_rows
from datasets_rl.format.schema import Field, holds_images
from datasets_rl.look.steps import StepReader
from datasets_rl.ted.keys import (
    ACTION,
    EPISODE,
    NEXT,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    Key,
    is_observation,
)
from datasets_rl.ted.table import EpisodeTable

Model = TypeVar("Model")

DARK, BRIGHT = 8, 250
"""A value of an image below the first number is dark, and a value above the second number is bright."""

_SAMPLE = 1 << 13
_CLIPS = 1 << 7
_CLIP = 1 << 5
_STILL, _CALM, _EQUAL = 0.3, 0.05, 0.15
_GRID = 24
_FLAGS = frozenset({EPISODE, NEXT_TERMINATED, NEXT_TRUNCATED, (NEXT, "done")})
_TIMES = frozenset({"timestamp", "time", "t", "sec", "secs", "stamp", "time_stamp"})


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of a field around sampled steps t, spread over the dataset.

    A value outside the episode is a copy of the value at t.

    Attributes:
        rows: The steps t, int64 [K], ascending.
        before: Values at t - 1, float64 [K, D].
        now: Values at t, float64 [K, D].
        after: Values at t + 1, float64 [K, D].
        has_before: Whether t - 1 is in the same episode, bool [K].
        has_after: Whether t + 1 is in the same episode, bool [K].
    """

    rows: NDArray[np.int64]
    before: NDArray[np.float64]
    now: NDArray[np.float64]
    after: NDArray[np.float64]
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Clips:
    """Images of a camera in at most 128 spans of at most 32 steps, spread over the dataset.

    Attributes:
        rows: The steps, int64 [K], ascending.
        clip: Number of the span of each step, int64 [K]. A span is in an episode.
        grids: At most 24 x 24 pixels of each image, uint8 [K, h, w, c]: see `Data.places`.
    """

    rows: NDArray[np.int64]
    clip: NDArray[np.int64]
    grids: NDArray[np.uint8]


class Data:
    """Fields and episodes of an audited dataset.

    Args:
        steps: The steps of the dataset.
    """

    def __init__(self, steps: StepReader) -> None:
        self.steps = steps
        self._samples: dict[Key, Sample] = {}
        self._stills: dict[Key, float] = {}
        self._changes: dict[Key, float] = {}
        self._never_equal: dict[Key, bool] = {}
        self._clips: dict[Key, Clips] = {}
        self._images: dict[Key, NDArray[np.float32]] = {}
        self._places: dict[Key, NDArray[np.uint32]] = {}
        self._models: dict[Any, Any] = {}
        self._lock, self._lock_of_clips, self._lock_of_models = Lock(), Lock(), RLock()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def episodes(self) -> EpisodeTable:
        """The table of the episodes."""
        return self.steps.episodes

    @cached_property
    def last_terminated(self) -> NDArray[np.bool_]:
        """Whether each episode is terminated, bool [E]."""
        return np.asarray(self.steps.take(NEXT_TERMINATED, self.episodes.stops - 1), np.bool_).reshape(-1)

    def has_outcome(self, episode: int) -> bool:
        """Return whether the last step says how the episode ended: by termination, or by the only reward unlike those before.

        Without this step, a success looks like a failure.
        """
        rows = np.array(self.episodes.rows(episode))
        rewards = [self.take(key, rows) for key in self.rewards]
        alone = [bool((one[:-1] == one[:1]).all() and (one[-1] != one[0]).any()) for one in rewards]
        return bool(self.last_terminated[episode]) or any(alone)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of the episodes, [E], with information in the fields that say which episode this is."""
        return telling_fingerprints(self.steps.stored, self.steps.rows, self.steps.episodes)

    @property
    def images(self) -> Sequence[Key]:
        """Keys of the fields of images: the cameras. An image after an action is not another field."""
        return [field.key for field in self._fields if holds_images(field)]

    @property
    def texts(self) -> Sequence[Key]:
        """Keys of the fields of texts."""
        return [field.key for field in self._fields if field.text]

    @property
    def numbers(self) -> Sequence[Key]:
        """Keys of the narrow fields of numbers, without flags, texts and images."""
        return [
            field.key
            for field in self._fields
            if not field.text and not field.wide and field.dtype.kind in "fiu" and not holds_images(field)
        ]

    @property
    def floats(self) -> Sequence[Key]:
        """Keys of the narrow fields of floating-point numbers."""
        return [key for key in self.numbers if self.field(key).dtype.kind == "f"]

    @property
    def states(self) -> Sequence[Key]:
        """Keys of the narrow observations of floating-point numbers."""
        return [key for key in self.floats if is_observation(key)]

    @property
    def actions(self) -> Sequence[Key]:
        """Keys of the narrow actions: ``action``, or a part such as ``("action", "arm")``."""
        return [key for key in self.numbers if key[0] == ACTION[0]]

    @property
    def rewards(self) -> Sequence[Key]:
        """Keys of the rewards."""
        return [NEXT_REWARD] if NEXT_REWARD in self.numbers else []

    @property
    def has_no_rewards(self) -> bool:
        """Whether the upstream has no rewards, so that the conversion set all rewards to 0."""
        decisions = self.steps.stored.manifest.decisions
        return any(one.rule == "reward-missing" and one.count >= len(self.steps.stored.episodes) for one in decisions)

    @property
    def times(self) -> Sequence[Key]:
        """Keys of the fields of time stamps, by their name."""
        return [key for key in self.numbers if key[-1].lower() in _TIMES and int(np.prod(self.field(key).shape)) == 1]

    def field(self, key: Key) -> Field:
        """Return the field with a key.

        Raises:
            UnknownKeyError: If there is no such field.
        """
        return self.steps.field(key)

    def element(self, key: Key, number: int) -> str:
        """Return the name of an element of a field, for messages: ``observation[3]``, or its stated name."""
        field = self.field(key)
        names = self.steps.stored.manifest.element_names(field)
        if names:
            return f"{field.name} {names[number]}"
        if int(np.prod(field.shape)) == 1:
            return field.name
        return f"{field.name}[{', '.join(str(int(axis)) for axis in np.unravel_index(number, field.shape))}]"

    def statistics(self, key: Key, name: str) -> NDArray[np.float64] | None:
        """Return a stored statistic of each element of a narrow field, such as "min", [D], or None. NaN is unknown."""
        stored = self.steps.stored.manifest.statistics.get(self.field(key).name, {}).get(name)
        if stored is None:
            return None
        size = int(np.prod(self.field(key).shape))
        return np.broadcast_to(np.array(stored, np.float64).reshape(-1), size)

    def take(self, key: Key, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return a field of steps in ascending order, [K, D]."""
        return self.steps.take(key, rows).reshape(len(rows), int(np.prod(self.field(key).shape)))

    def finals(self, key: Key) -> NDArray[Any]:
        """Return the observation after the last action of each episode, [E, D]. Unknown observations are not meaningful."""
        stored, last = self.steps.stored, self.episodes.stops - 1
        rows = last if self.steps.rows is None else self.steps.rows.at(last)
        whole = stored.episodes
        numbers = whole.episode_of(rows)
        at_end = rows == whole.stops[numbers] - 1
        finals = np.asarray(stored.final_states(key)[numbers])
        if not at_end.all():
            inside = np.minimum(rows + 1, len(stored) - 1)
            order = np.argsort(inside, kind="stable")
            after = np.empty_like(finals)
            after[order] = stored.take_fields([key], inside[order])[0].reshape(finals.shape)
            finals = np.where(at_end.reshape(-1, *[1] * (finals.ndim - 1)), finals, after)
        return finals.reshape(len(rows), -1)

    def sample(self, key: Key) -> Sample:
        """Return values of a narrow field around at most 8,192 steps, the same steps for each field."""
        with self._lock:
            if key not in self._samples:
                self._samples[key] = self._read_sample(key)
            return self._samples[key]

    def _read_sample(self, key: Key) -> Sample:
        rows = sample_rows(len(self), min(_SAMPLE, len(self)))
        episodes = self.episodes.episode_of(rows)
        has_before, has_after = rows > self.episodes.starts[episodes], rows + 1 < self.episodes.stops[episodes]
        before, now, after = (
            self.take(key, taken).astype(np.float64) for taken in (rows - has_before, rows, rows + has_after)
        )
        return Sample(rows, before, now, after, has_before, has_after)

    def places(self, key: Key) -> NDArray[np.uint32]:
        """Return the places, in an image, of the pixels that an audit looks at, uint32 [h, w, c].

        These are at most 24 x 24 pixels, evenly spread.
        """
        if key not in self._places:
            self._places[key] = _places(self.field(key).shape)
        return self._places[key]

    def lines(self, key: Key) -> tuple[int, int, int]:
        """Return how the values of an image lie one after the other, for neighbors.

        Returns:
            The number of lines of a plane, the number of values of a line, and the number of values from a value to its neighbor
            on the right.
        """
        shape = self.field(key).shape
        places = channels_last(np.arange(math.prod(shape)).reshape(1, *shape))
        height, width = places.shape[-3:-1]
        in_line = places.reshape(-1, width, places.shape[-1])[0, :2, 0]
        step = int(np.ptp(in_line)) or places.shape[-1]
        return height, width * step, step

    def grids(self, key: Key, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return at most 24 x 24 pixels of the images of steps in ascending order, uint8 [K, h, w, c]: see `places`."""
        images = self.steps.take(key, rows).reshape(len(rows), -1)
        grids: NDArray[np.uint8] = np.take(images, self.places(key), axis=1)
        self.steps.stored.release_pages()
        return grids

    def clips(self, key: Key) -> Clips:
        """Return images of a camera in spans of consecutive steps, the same steps for each camera."""
        with self._lock_of_clips:
            if key not in self._clips:
                self._clips[key] = self._read_clips(key)
            return self._clips[key]

    def _read_clips(self, key: Key) -> Clips:
        middles = sample_rows(len(self), min(_CLIPS, len(self)))
        episodes = self.episodes.episode_of(middles)
        low = np.maximum(middles - _CLIP // 2, self.episodes.starts[episodes])
        high = np.minimum(low + _CLIP, self.episodes.stops[episodes])
        rows = np.unique(np.concatenate([np.arange(*span) for span in zip(low, high, strict=True)]))
        ends = np.diff(rows, prepend=-2) != 1
        ends |= np.diff(self.episodes.episode_of(rows), prepend=-1) != 0
        clip = np.cumsum(ends) - 1
        # One span at a time: the images themselves can be large.
        grids = [self.grids(key, part) for part in np.split(rows, range(_CLIP, len(rows), _CLIP))]
        return Clips(rows, clip, np.concatenate(grids))

    def usual_image(self, key: Key) -> NDArray[np.float32]:
        """Return the median of at most 128 images of a camera, spread over the dataset, float32 [h, w, c]: see `places`."""
        grids = self.clips(key).grids
        with self._lock:
            if key not in self._images:
                chosen = sample_rows(len(grids), min(_CLIPS, len(grids)))
                self._images[key] = np.median(grids[chosen], axis=0).astype(np.float32)
            return self._images[key]

    def still(self, key: Key) -> float:
        """Return the mean difference of two images, from 0 to 255, below which the camera shows the same image.

        A camera that repeats an image gives images that differ much less than those of the calmest scenes in which states move.
        Those of lossy video are not quite equal. 0 if images are equal as a rule, as those of some simulators.
        """
        if key not in self._stills:
            clips = self.clips(key)
            together = np.flatnonzero(clips.clip[1:] == clips.clip[:-1])
            rows = clips.rows[together]
            now = [self.take(one, rows).astype(np.float64) for one in self.states]
            after = [self.take(one, rows + 1).astype(np.float64) for one in self.states]
            together = together[self.moving(now, after)] if now else together
            first = clips.grids[together].astype(np.int16)
            apart = np.abs(clips.grids[together + 1] - first).mean(axis=(1, 2, 3))
            self._stills[key] = _STILL * float(np.quantile(apart, _CALM)) if len(apart) else 0.0
        return self._stills[key]

    def usual_change(self, key: Key) -> float:
        """Return the median of the mean square difference between an image and the next image."""
        if key not in self._changes:
            clips = self.clips(key)
            together = np.flatnonzero(clips.clip[1:] == clips.clip[:-1])
            change = clips.grids[together + 1].astype(np.float32) - clips.grids[together]
            self._changes[key] = float(np.median((change**2).mean(axis=(1, 2, 3)))) if len(together) else 0.0
        return self._changes[key]

    def never_equal(self, key: Key) -> bool:
        """Return whether images of consecutive steps are equal in hardly any part of the dataset, as noise makes them differ."""
        if key not in self._never_equal:
            clips = self.clips(key)
            equal = (clips.grids[1:] == clips.grids[:-1]).all(axis=(1, 2, 3)) & (clips.clip[1:] == clips.clip[:-1])
            share = len(np.unique(clips.clip[1:][equal])) / max(len(np.unique(clips.clip)), 1)
            self._never_equal[key] = share <= _EQUAL
        return self._never_equal[key]

    def moving(self, now: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
        """Return whether the states move at half their usual speed or more, bool [N].

        Args:
            now: The fields `states` of N steps, [N, D] each.
            after: The fields of the steps after.
        """
        speeds = [
            np.minimum(np.abs(two.astype(np.float64) - one) / self._usual_steps(key), 4.0)
            for key, one, two in zip(self.states, now, after, strict=True)
        ]
        moving: NDArray[np.bool_] = np.hstack(speeds).mean(axis=1) >= 0.5
        return moving

    def usual_interval(self, key: Key) -> float:
        """Return the median of the time between two steps, by a field of `times`. 0 if no time is known."""
        sample = self.sample(key)
        steps = (sample.after - sample.now)[sample.has_after, 0]
        steps = steps[np.isfinite(steps)]
        return float(np.median(steps)) if len(steps) else 0.0

    def _usual_steps(self, key: Key) -> NDArray[np.float64]:
        """Return the median change in a step of each element of a state, float64 [D]. Infinite if the element rarely changes."""
        sample = self.sample(key)
        change = np.abs(sample.after - sample.now)[sample.has_after]
        usual = np.median(change, axis=0) if len(change) else np.zeros(sample.now.shape[1])
        result: NDArray[np.float64] = np.where(usual > 0, usual, np.inf)
        return result

    def model(self, kind: Callable[..., Model], *arguments: Any) -> Model:
        """Return a model of the dataset, such as ``Dynamics``, which is made of this object and arguments at the first call."""
        with self._lock_of_models:
            name = (kind, *arguments)
            if name not in self._models:
                self._models[name] = kind(self, *arguments)
            model: Model = self._models[name]
            return model

    @cached_property
    def _fields(self) -> list[Field]:
        keys = {field.key for field in self.steps.fields}
        return [
            field
            for field in self.steps.fields
            if field.key not in _FLAGS and not (field.key[0] == NEXT and field.key[1:] in keys)
        ]


def _places(shape: tuple[int, ...]) -> NDArray[np.uint32]:
    places = channels_last(np.arange(math.prod(shape), dtype=np.uint32).reshape(1, *shape))
    height, width = places.shape[-3:-1]
    rows, columns = (np.unique(((np.arange(_GRID) + 0.5) * size / _GRID).astype(int)) for size in (height, width))
    grid = places[..., rows[:, None], columns[None, :], :]
    return np.ascontiguousarray(grid.reshape(len(rows), len(columns), -1))


def channels_last(images: NDArray[Any]) -> NDArray[Any]:
    """Return images [N, ..., h, w, c] of images with the channels last, or first, or without channels.

    The axis of the channels is the last axis of a length up to 4, or else the first.
    """
    if images.ndim == 3:
        return images[..., None]
    if images.shape[-1] > 4 and images.shape[-3] <= 4:
        return np.moveaxis(images, -3, -1)
    return images
