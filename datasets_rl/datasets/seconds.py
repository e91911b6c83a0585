"""Windows by seconds of a dataset: its frame rate, and the fields that the names of LeRobot's features stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets_rl.errors import Argument, InvalidArgumentError, Remedy, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.sources.lerobot.layout import possible_keys
from datasets_rl.ted.keys import Key, as_key, dotted_name, names_among, spelled_key
from datasets_rl.transforms.windows import WindowTransform


def windows_by_seconds(
    manifest: Manifest,
    keys: Sequence[Key],
    delta_timestamps: Mapping[Any, Sequence[float]],
    fps: float | None,
    tolerance_s: float,
) -> WindowTransform:
    """Return the windows of `delta_timestamps` for a dataset, see `WindowTransform.delta_timestamps`.

    Args:
        manifest: The manifest of the dataset, which may state the steps per second.
        keys: The keys of its batches.
        delta_timestamps: Seconds by field, [W] each. A field is a key, the first names of several keys, or the name of a
            feature of LeRobot, ``observation.images.top``.
        fps: Steps per second, instead of the number in the manifest.
        tolerance_s: Largest difference between a number of seconds and the time of the steps.

    Raises:
        InvalidArgumentError: If no steps per second are known, or the seconds are not multiples of a step.
        UnknownKeyError: If the dataset lacks a field.
    """
    rate = manifest.fps if fps is None else fps
    if rate is None:
        raise InvalidArgumentError(
            f"{manifest.id} does not state its steps per second, which delta_timestamps need",
            hint=Remedy("pass {}, the number of steps per second", Argument("fps")),
        )
    seconds: dict[Key, Sequence[float]] = {}
    for name, numbers in delta_timestamps.items():
        key = _field_named(name, keys)
        if key in seconds:
            raise InvalidArgumentError(f"delta_timestamps has {dotted_name(key)} twice, once as {name!r}")
        seconds[key] = numbers
    return WindowTransform.delta_timestamps(seconds, rate, tolerance_s)


def _field_named(name: Any, keys: Sequence[Key]) -> Key:
    """Return the key of a field, or the first names of several, by its key or by the name of a feature of LeRobot."""
    key = as_key(name)
    spelled = spelled_key(name if isinstance(name, str) else key, names_among(keys))
    for possible in (spelled, *possible_keys(dotted_name(key))):
        if any(other[: len(possible)] == possible for other in keys):
            return possible
    raise UnknownKeyError(dotted_name(key), [dotted_name(other) for other in keys])
