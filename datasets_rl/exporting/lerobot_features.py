"""The features of LeRobot that stand for the fields of a dataset: names, counters, tasks and statistics."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.exporting.content import Content, is_image
from datasets_rl.format.schema import Field
from datasets_rl.format.statistics import Moments
from datasets_rl.read.depth import Depth
from datasets_rl.ted.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name

IMAGE_SAMPLES = 100
"""Number of images that the statistics of a camera are computed from, about."""

AXES_MAX = 5

AXES = ("height", "width", "channels")

_DEPTH_SIDE = 16  # at least, of what the encoder accepts

FLAGS = (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)

COUNTERS: Mapping[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}

LANGUAGE = {
    "language_persistent": ("role", "content", "style", "timestamp", "camera", "tool_calls"),
    "language_events": ("role", "content", "style", "camera", "tool_calls"),
}
"""Texts that are JSON lists of structs with these fields, and columns of such lists in LeRobot."""

_INSTRUCTIONS = frozenset({"language_instruction", "instruction", "task", "natural_language_instruction"})


def feature_fields(content: Content) -> dict[str, Field]:
    """Return the fields by feature name: ``observation.state``, ``observation.images.top``, or the dotted key."""
    fields: dict[str, Field] = {}
    replaced = {*counter_fields(content), *next_states(content), task_field(content)}
    for field in content.fields:
        if field not in replaced and not has_many_axes(field) and field.key not in FLAGS:
            name = _feature_name(content, field)
            fields[name if name not in fields else dotted_name(("observation", "images", *field.key))] = field
    return fields


def _feature_name(content: Content, field: Field) -> str:
    key: Key = field.key
    if field not in content.observations:
        return dotted_name(key) if key != ("task",) else "task_"  # LeRobot adds the text of the task under this name
    inner = key[1:] if key[0] == "observation" else key
    if is_image(field) or (content.images == "video" and field in depth_fields(content)):
        # The reader of LeRobot's datasets, as TorchRL, names cameras observation.image.CAM.
        inner = inner[1:] if inner[:1] == ("images",) or (inner[:1] == ("image",) and inner[1:]) else inner
        return ".".join(("observation", "images", *inner)) if inner not in {(), ("image",)} else "observation.image"
    return dotted_name(key) if len(key) > 1 or key[0] != "observation" else "observation.state"


def is_language(field: Field) -> bool:
    """Return whether the texts of a field are lists of structs, a column of language in LeRobot."""
    return field.text and field.name in LANGUAGE


@lru_cache(maxsize=64)
def parse_language(text: str) -> Any:
    """Return the structs of a text of a column of language."""
    return json.loads(text) if text else []


def has_many_axes(field: Field) -> bool:
    """Return whether a field has more axes than LeRobot supports."""
    return len(field.shape) > AXES_MAX


def next_states(content: Content) -> list[Field]:
    """Return the fields under "next" that have a field of the same name at t."""
    roots = {field.key[0] for field in content.states} | {"observation"}
    return [field for field in content.next_fields if field.key[1] in roots]


def depth_fields(content: Content) -> dict[Field, Depth]:
    """Return what depths mean, of the fields that are images of a depth camera by the metadata, and that can be videos."""
    found = {}
    stated = (content.manifest.stated(name) for name in ("units", "depth_laws"))
    units, laws = (value if isinstance(value, Mapping) else {} for value in stated)
    for field in content.fields:
        law = laws.get(field.name)
        is_camera = len(field.shape) == 3 and field.shape[2] == 1 and min(field.shape[:2]) >= _DEPTH_SIDE
        if is_camera and field.name in units and field.read_dtype != np.uint8:
            with suppress(ValueError):  # another unit, or no law
                found[field] = Depth.of_law(units[field.name], law if isinstance(law, Mapping) else {})
    return found


def counter_fields(content: Content) -> dict[Field, bool]:
    """Return the fields that LeRobot's counters replace, and whether these have the same values."""
    found = {}
    for field in content.fields:
        is_number = field.shape in {(), (1,)} and not field.text
        if field.name in COUNTERS:
            found[field] = is_number and _equals_counter(content, field)
        elif field.name == "frame" and is_number and not field.shared and _equals_counter(content, field):
            found[field] = True
    return found


def _equals_counter(content: Content, field: Field) -> bool:
    values, lengths = content.steps_of(field.key).reshape(-1), content.lengths
    frames = np.arange(content.steps) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    match field.name:
        case "timestamp":
            return bool(np.allclose(values, frames / (content.frame_rate or 1), rtol=0, atol=1e-4))
        case "frame" | "frame_index":
            return np.array_equal(values, frames)
        case "episode_index":
            return np.array_equal(values, np.repeat(np.arange(len(lengths)), lengths))
        case "index":
            return np.array_equal(values, np.arange(content.steps))
    task = task_field(content)
    return np.array_equal(values, ranked(content.steps_of(task.key))[1] if task else np.zeros(content.steps))


def ranked(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct codes in the order of appearance, and the position of each code among them, [N]."""
    distinct, firsts, positions = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return distinct[order], ranks[positions]


def task_field(content: Content) -> Field | None:
    """Return the text field that is the task: the instruction, or else the first text field."""
    texts = [field for field in content.fields if field.text]
    named = [field for field in texts if field.key[-1] in _INSTRUCTIONS]
    return next(iter([*named, *texts]), None)


def default_task(content: Content) -> str:
    """Return the task of a dataset without texts."""
    return str(content.manifest.metadata.get("environment") or content.manifest.id)


def feature(field: Field, names: Sequence[str]) -> dict[str, Any]:
    """Return a feature of info.json. `names` are the names of the elements, if any."""
    if is_image(field):
        return {"dtype": "image", "shape": list(field.shape), "names": [*AXES]}
    if field.text:
        return {"dtype": "language" if is_language(field) else "string", "shape": [1], "names": None}
    shape = list(field.shape or (1,))
    # LeRobot names the elements of vectors alone: of other arrays, the names are the names of the axes.
    return {"dtype": field.read_dtype.name, "shape": shape, "names": [*names] if names and len(shape) == 1 else None}


class FeatureStatistics(Moments):
    """Moments of each element of a field, of cameras of each channel."""

    MAX_ELEMENTS = sys.maxsize

    def __init__(self, field: Field, *, has_channels: bool) -> None:
        self._of_pixels, self._has_channels, self._samples = is_image(field), has_channels, 0
        super().__init__(field.shape[-1:] if has_channels else (math.prod(field.shape),))

    @override
    def update(self, block: NDArray[Any]) -> None:
        self._samples += len(block)
        super().update(block / 255 if self._of_pixels else block)

    @override
    def to_json(self) -> dict[str, Any]:
        """Return the statistics as in stats.json.

        Statistics of cameras are [channels, 1, 1], of pixels between 0 and 1.
        """
        axes = (-1, 1, 1) if self._has_channels else (-1,)
        numbers = {name: np.reshape(value, axes).tolist() for name, value in super().to_json().items()}
        return {name: numbers[name] for name in ("min", "max", "mean", "std")} | {"count": [self._samples]}
