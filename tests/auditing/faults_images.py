"""Faults of images."""

from __future__ import annotations

import clean
import numpy as np
from planting import Planted, Strength, each_episode, fault
from scipy import ndimage

_CAMERAS = (("observation", "front"), ("observation", "wrist"), ("observation", "top"), ("observation",))


def camera_of(episode: clean.Recorded) -> tuple[str, ...]:
    """Return the key of the first camera."""
    return next(key for key in _CAMERAS if key in episode.states)


def _span(steps: int, strength: Strength, rng: np.random.Generator) -> slice:
    """Return a part of the steps of an episode: 60 %, 80 % or all."""
    share = {"weak": 0.6, "medium": 0.8, "strong": 1.0}[strength]
    count = max(1, int(share * (steps + 1)))
    start = int(rng.integers(0, steps + 2 - count))
    return slice(start, start + count)


@fault("channels_swapped", "arm", "teleop")
@each_episode
def red_is_blue(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = camera_of(episode)
    images = episode.array(key)
    part = _span(len(episode), strength, rng)
    images[part] = images[part][..., ::-1].copy()
    return episode.with_arrays({key: images})


@fault("images_flipped", "arm", "teleop", "atari", "pong")
@each_episode
def upside_down(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = camera_of(episode)
    images = episode.array(key)
    part = _span(len(episode), strength, rng)
    images[part] = images[part][:, ::-1].copy()
    return episode.with_arrays({key: images})


@fault("cameras_swapped", "arm")
@each_episode
def cameras_exchanged(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    first, second = ("observation", "front"), ("observation", "side")
    front, side = episode.array(first), episode.array(second)
    part = _span(len(episode), strength, rng)
    front[part], side[part] = side[part].copy(), front[part].copy()
    return episode.with_arrays({first: front, second: side})


@fault("dark_or_bright_images", "arm", "teleop", "leader")
@each_episode
def camera_goes_black(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = camera_of(episode)
    images = episode.array(key)
    count = {"weak": 1, "medium": 4, "strong": 15}[strength]
    start = int(rng.integers(0, len(episode) - count))
    images[start : start + count] = rng.integers(0, 6, images[start : start + count].shape)
    return episode.with_arrays({key: images})


@fault("dark_or_bright_images", "arm", "teleop", "leader")
@each_episode
def camera_is_blinded(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = camera_of(episode)
    images = episode.array(key)
    count = {"weak": 1, "medium": 4, "strong": 15}[strength]
    start = int(rng.integers(0, len(episode) - count))
    part = images[start : start + count].astype(np.float32)
    images[start : start + count] = np.clip(part * 2 + 160, 0, 255).astype(np.uint8)
    return episode.with_arrays({key: images})


@fault("blurred_images", "arm", "teleop")
@each_episode
def lens_out_of_focus(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = camera_of(episode)
    width = {"weak": 0.7, "medium": 1.2, "strong": 2.5}[strength]
    images = episode.array(key)
    return episode.with_arrays({key: ndimage.gaussian_filter(images, (0, width, width, 0))})


def _late(episode: clean.Recorded, steps: int) -> clean.Recorded:
    """Return the episode with all images so many steps too late."""
    cameras = [key for key, value in episode.states.items() if not isinstance(value, list) and value.dtype == np.uint8]
    rows = np.maximum(np.arange(len(episode) + 1) - steps, 0)
    return episode.with_arrays({key: np.asarray(episode.states[key])[rows] for key in cameras})


_LATE = {"weak": 2, "medium": 3, "strong": 6}


@fault("video_lag", "arm", "teleop")
@each_episode
def images_late(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    return _late(episode, _LATE[strength])


@fault("video_lag", "arm", "teleop")
def all_images_late(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    late = {number: _late(one, _LATE[strength]) for number, one in enumerate(recording.episodes)}
    return Planted(recording.replaced(late), frozenset())


@fault("dropped_frames", "arm", "teleop")
@each_episode
def frames_skipped(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The images of one camera are ahead of the states after some step, and the recording ends with the images."""
    count = {"weak": 4, "medium": 6, "strong": 8}[strength]
    key, length = camera_of(episode), len(episode) - count
    first = int(rng.integers(8, length - 16))
    rows = np.arange(length + 1)
    images = episode.array(key)[np.where(rows < first, rows, rows + count)]
    return episode.part(0, length).with_arrays({key: images})


@fault("dropped_frames", "arm", "teleop")
@each_episode
def frames_repeated(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The recorder fills each lost frame with the frame before."""
    count = {"weak": 3, "medium": 6, "strong": 12}[strength]
    key = camera_of(episode)
    images = episode.array(key)
    for row in np.sort(rng.choice(len(episode) // 2 - 1, count, replace=False)) * 2 + 1:
        images[row] = images[row - 1]
    return episode.with_arrays({key: images})
