"""meta/info.json: the features of a LeRobot dataset, the keys of the features, and the places of the files.

      2.0 and 2.1                                       3.0
data  data/chunk-000/episode_000003.parquet             data/chunk-000/file-000.parquet             many episodes
video videos/chunk-000/KEY/episode_000003.mp4           videos/KEY/chunk-000/file-000.mp4           many episodes
meta  episodes.jsonl, tasks.jsonl                       episodes/chunk-000/file-000.parquet, tasks.parquet
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from datasets_rl.errors import ConversionError
from datasets_rl.read.depth import LAW, Depth
from datasets_rl.read.streams import refuse
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

VERSIONS = ("2.0", "2.1", "3.0")
_COUNTERS = frozenset({"episode_index", "index"})
"""Features that the episode table and the order of the rows replace."""
_IMAGE: Key = (*OBSERVATION, "image")
_KEYS: Mapping[str, Key] = {
    "actions": ACTION,
    "frame_index": ("frame",),
    "state": (*OBSERVATION, "state"),
}
_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)
_SCALARS = frozenset({"timestamp", "frame_index", "task_index"})
_FIELDS = {
    "data_path": ({"episode_chunk", "chunk_index", "episode_index"}, {"chunk_index", "file_index"}),
    "video_path": (
        {"episode_chunk", "chunk_index", "episode_index", "video_key"},
        {"chunk_index", "file_index", "video_key"},
    ),
}
"""The fields of a path before version 3.0, where users also write chunk_index for episode_chunk, and in version 3.0."""
TASK: Key = ("language_instruction",)
NO_FILES = "no file, and meta/modality.json does not name it"
"""The reason for which a camera is left out."""
DONE, SUCCESS = "next.done", "next.success"
ENDS = (DONE, "next.terminated", "next.truncated")
"""Flags of which only the last row of an episode counts."""
_EIGHT_BITS = re.compile(r"(gray|rgb24|bgr24|yuvj?4\d\dp|nv12|pal8)$")
_RESERVED = frozenset({"done", "terminated", "truncated", "episode", "is_init", "mask", "index", "collector"})


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that is converted."""

    name: str
    """The name in the files."""
    key: Key
    kind: str
    """``numbers``, ``text``, ``image``, a column of PNG or JPEG files, or ``video``, in a separate file."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of a row. Of images, these are rows, columns and channels."""
    depth: Depth | None = None
    """Of images, what the values mean if the values are depths."""
    codec: str = ""
    """Of videos, the codec that is stated, or empty if no codec is stated."""
    names: tuple[str, ...] = ()
    """Of numbers, the name of each element, or empty if no names are stated."""
    misfit_names: str = ""
    """The stated names if there is not a name for each element."""

    @property
    def pixels(self) -> int:
        """Bytes of the pixels of a row, or 0 if the feature is not an image."""
        import numpy as np

        return math.prod(self.shape) * np.dtype(self.dtype).itemsize if self.kind in {"image", "video"} else 0


@dataclass(frozen=True, slots=True)
class Info:
    """Content of meta/info.json."""

    version: str
    """An item of `VERSIONS`."""
    fps: float
    features: Mapping[str, Feature]
    """The converted features by name, in order."""
    left_out: Mapping[str, str]
    """The other features by name, with the reason."""
    described: Mapping[str, Any]
    """The document."""

    @property
    def flags(self) -> list[str]:
        """The flags among `ENDS` and `SUCCESS` that the rows have."""
        return [name for name in (*ENDS, SUCCESS) if name in self.described["features"]]

    def without(self, names: Collection[str], reason: str) -> Info:
        """Return the same without some features, which are left out for a reason."""
        kept = {name: feature for name, feature in self.features.items() if name not in names}
        return replace(self, features=kept, left_out={**self.left_out, **dict.fromkeys(names, reason)})

    @property
    def many(self) -> bool:
        """Whether a file has many episodes."""
        return self.version == "3.0"

    def path(self, template: str, **numbers: Any) -> str:
        """Return the path of a file.

        Args:
            template: ``data_path`` or ``video_path``.
            numbers: The values of the fields of the template.
        """
        return str(self.described[template]).format(**numbers)

    def chunk_of(self, episode: int) -> int:
        """Return the number of the folder of an episode, before version 3.0."""
        return episode // int(self.described.get("chunks_size") or 1000)


def read_info(text: str, dataset_id: str) -> Info:
    """Parse and validate meta/info.json.

    Raises:
        ConversionError: If the text does not describe a LeRobot dataset of a known version. The error names every problem.
    """
    try:
        info = json.loads(text)
        version = str(info["codebase_version"]).removeprefix("v")
        features, fps = dict(info["features"]), float(info["fps"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"meta/info.json does not describe a LeRobot dataset: {type(error).__name__} {error}"
        raise ConversionError(dataset_id, [problem]) from error
    if version not in VERSIONS:
        problem = f"meta/info.json: codebase_version is {version!r:.20}, expected {', '.join(VERSIONS)}"
        raise ConversionError(dataset_id, [problem])
    problems = [] if 0 < fps < math.inf else [f"meta/info.json: fps is {fps}, expected a number above 0"]
    chunks = info.get("chunks_size", 1000)
    if not isinstance(chunks, int) or chunks < 1:
        problems.append(f"meta/info.json: chunks_size is {chunks!r:.20}, expected an integer >= 1")
    kept, left_out = _features_of(features, problems)
    has_videos = any(feature.kind == "video" for feature in kept.values())
    for name, fields in _FIELDS.items():
        if name == "data_path" or has_videos:
            problems += _template_problems(name, info.get(name), fields[version == "3.0"])
    refuse(dataset_id, problems)
    return Info(version, fps, _with_separate_keys(kept), left_out, info)


def _features_of(features: Mapping[str, Any], problems: list[str]) -> tuple[dict[str, Feature], dict[str, str]]:
    """Return the features that are converted, and the reasons for which other features are not, and append what is wrong."""
    kept: dict[str, Feature] = {}
    left_out: dict[str, str] = {}
    for name, described in features.items():
        if name in _COUNTERS:
            continue
        try:
            feature = _feature_of(name, described)
        except ValueError as error:
            problems.append(f"meta/info.json: {name}: {error}")
            continue
        if isinstance(feature, str):
            left_out[name] = feature
        elif name not in ENDS:
            kept[name] = feature
    return kept, left_out


def keys_of(info: Info) -> list[Key]:
    """Return every field of a step."""
    keys = [feature.key for feature in info.features.values()]
    tasks = [TASK] if "task_index" in info.features else []
    return [*dict.fromkeys([*keys, *tasks, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED])]


_NUMBER_FORM = re.compile("(0?[0-9]{0,2}d)?")
"""The form of a number in a path: a width of three digits or more would make names that no file system has."""


def _template_problems(name: str, template: Any, fields: set[str]) -> list[str]:
    """Return what is wrong with a template of a path."""
    try:
        parsed = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
        found = [str(field) for field, _, _ in parsed]
        if unknown := sorted({*found} - fields):
            return [f"meta/info.json: {name} is {template!r:.80}, but the fields {', '.join(unknown)} are not known"]
        if wide := [
            field for field, form, conversion in parsed if conversion or not _NUMBER_FORM.fullmatch(form or "")
        ]:
            problem = f"the form of {wide[0]} is not that of a number, such as 06d"
            return [f"meta/info.json: {name} is {template!r:.80}: {problem}"]
        path = template.format(**{field: "" if field == "video_key" else 0 for field in found})
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return [f"meta/info.json: {name} is {template!r:.80}, expected a path with {', '.join(sorted(fields))}"]
    if path.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", path) or ":" in path:
        return [f"meta/info.json: {name} is {template!r:.80}, which leads out of the folder of the dataset"]
    return []


def _feature_of(name: str, described: Any) -> Feature | str:
    """Return a feature, or the reason for which the feature is left out.

    Raises:
        ValueError: If the feature is not valid.
    """
    if not isinstance(described, dict) or "/" in name or "\\" in name or not all(name.split(".")):
        raise ValueError(f"it is {described!r:.60}, expected a feature with a name without slashes")
    dtype, shape = described.get("dtype"), described.get("shape", [1])
    if dtype in {"image", "video"}:
        key, shape = _key_of(name, is_image=True), _image_shape(described)
        about = _image_info(described)
        depth = _depth_of(about, str(dtype)) if shape[2] == 1 else None
        codec = about.get("video.codec") if dtype == "video" else None
        return Feature(name, key, str(dtype), "uint8" if depth is None else depth.dtype, shape, depth, str(codec or ""))
    if dtype in {"string", "language"}:
        return Feature(name, _key_of(name), "text", "int32", ())
    if dtype not in _DTYPES:
        return f"values of the type {dtype!r:.40}"
    if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"the shape is {shape!r:.60}, expected integers above 0")
    stated = described.get("names")
    names = element_names(stated, math.prod(shape))
    misfit = f"{stated!r:.60}" if stated and not names else ""
    stored_shape = () if name in _SCALARS else tuple(shape)
    return Feature(name, _key_of(name), "numbers", dtype, stored_shape, names=names, misfit_names=misfit)


def element_names(stated: Any, count: int) -> tuple[str, ...]:
    """Return the name of each element of a feature, or nothing unless there are `count` names in a certain order.

    The versions of LeRobot and the converters of users state names in several forms. Names that several groups share
    get the name of the group in front.

        ["x", "y"]    [["x", "y"]]    {"motors": ["x", "y"]}    {"y": 1, "x": 0}    ->   ("x", "y")
        {"left": ["x"], "right": ["x"]}                                             ->   ("left.x", "right.x")
    """
    numbers = stated.values() if isinstance(stated, dict) else ()
    if numbers and all(type(number) is int for number in numbers):
        return tuple(sorted(stated, key=stated.get)) if sorted(numbers) == [*range(count)] else ()
    try:
        paths = [*_name_paths(stated, ())]
    except (ValueError, RecursionError):
        return ()
    names = [path[-1] for path in paths]
    if len(set(names)) < len(names):
        names = [".".join(path) for path in paths]
    return tuple(names) if len(names) == count else ()


def _name_paths(stated: Any, groups: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the groups and the name of each element.

    Raises:
        ValueError: If a value is neither a name nor a list or a group of names.
    """
    if isinstance(stated, str):
        yield (*groups, stated)
    elif isinstance(stated, list):
        for one in stated:
            yield from _name_paths(one, groups)
    elif isinstance(stated, dict):
        for group, one in stated.items():
            yield from _name_paths(one, (*groups, group))
    else:
        raise ValueError(f"it is {stated!r:.60}, expected a name")  # noqa: TRY004 -- a value of a file


def _image_info(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stated about images, under either of two names."""
    about: dict[str, Any] = {}
    for name in ("video_info", "info"):
        stated = described.get(name) or {}
        if not isinstance(stated, dict):
            raise ValueError(f"the {name} is {stated!r:.40}, expected an object")  # noqa: TRY004 -- a value of a file
        about |= stated
    return about


def _depth_of(about: Mapping[str, Any], kind: str) -> Depth | None:
    """Return what the values of images mean, or None if the values are not depths, or are pixels of 8 bits.

    Raises:
        ValueError: If the description of the values is not valid.
    """
    pixels = str(about.get("video.pix_fmt") or "")
    if not (about.get("is_depth_map") or about.get("video.is_depth_map")) or _EIGHT_BITS.match(pixels):
        return None
    unit = str(about.get("depth_unit") or "mm")
    if kind == "image":
        return Depth(unit)
    law = {name: about[f"video.{name}"] for name in LAW if f"video.{name}" in about}
    if pixels.startswith("gray16") and not law:
        return Depth(unit, "gray16le")
    return Depth.of_law(unit, law)


def _image_shape(described: Mapping[str, Any]) -> tuple[int, int, int]:
    shape, names = described.get("shape"), described.get("names")
    if not isinstance(shape, (list, tuple)) or len(shape) != 3 or not all(isinstance(size, int) for size in shape):
        raise ValueError(f"the shape is {shape!r:.60}, expected rows, columns and channels")
    first = str(names[0]) if isinstance(names, (list, tuple)) and len(names) == 3 else ""
    leads = first.startswith("channel") or (not first and shape[0] in {1, 3} and shape[2] not in {1, 3})
    rows, columns, channels = (*shape[1:], shape[0]) if leads else shape
    if channels not in {1, 3} or rows < 1 or columns < 1:
        raise ValueError(f"the shape is {list(shape)}, expected images of 1 or 3 channels")
    return rows, columns, channels


def _key_of(name: str, *, is_image: bool = False) -> Key:
    """Return the key of a feature, the key of TorchRL where TorchRL has a key."""
    if name in _KEYS:
        return _KEYS[name]
    path = tuple(name.split("."))
    if is_image:
        inner = path[1:] if path[:1] == OBSERVATION else path
        inner = inner[1:] if inner[0] in {"image", "images"} else inner
        return (*_IMAGE, *inner)
    if path[0] == NEXT and len(path) == 1:
        return (f"{NEXT}_",)
    return (f"{path[0]}_", *path[1:]) if path[0] in _RESERVED else path


def possible_keys(name: str) -> Iterator[Key]:
    """Yield the keys under which a feature may be stored, by the name in the files, the likeliest key first."""
    named = _key_of(name), *([_key_of(name, is_image=True)] if name != OBSERVATION[0] else [])
    yield from named
    for key in named:
        yield from ((*key[:depth], "_".join(key[depth:])) for depth in range(len(key) - 1))


def _with_separate_keys(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Give each feature a separate key, which is not a group of others.

    action  action.gripper.position   ->   ("action",)  ("action_gripper_position",)
    frame_index  frame                ->   ("frame",)   ("frame_",)
    """
    leaves = {feature.key for feature in features.values()}
    used: set[Key] = {NEXT_TERMINATED, NEXT_TRUNCATED, *([TASK] if "task_index" in features else [])}
    found: dict[str, Feature] = {}
    for name, feature in sorted(features.items(), key=lambda item: item[0] not in _SCALARS):
        key = feature.key
        depth = next((depth for depth in range(1, len(key)) if key[:depth] in leaves), None)
        key = key if depth is None else (*key[: depth - 1], "_".join(key[depth - 1 :]))
        while key in used:
            key = (*key[:-1], f"{key[-1]}_")
        used.add(key)
        found[name] = replace(feature, key=key)
    return found
