"""Raw episodes in Open X-Embodiment's files: records of TensorFlow Datasets, and pickles in tar archives.

Both are read as columns by the path of the field below the step, each with a value per step:

    record    steps/observation/image: [jpeg_0 jpeg_1 ...]      ->   ("observation", "image"): EpisodeImages
    pickle    {"steps": [{"observation": {"image": ...}}, ...]} ->   the same
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read import archive, pickles
from datasets_rl.read.ragged import Ragged
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.read.tfds import Column as Raw
from datasets_rl.read.tfds import Leaf, Schema
from datasets_rl.read.tfrecord import read_records
from datasets_rl.ted.keys import Key, dotted_name

_STEPS = "steps"
_MEMBER = ".data.pickle"
_MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_EPISODE_BYTES = (1 << 31) - 1  # the maximum size of a record
_OF_STEPS = frozenset({"observation", "reward", "is_first", "is_last", "is_terminal"})
_DEPTH_MAX = 16
_FLOAT = np.dtype(np.float32)
_ANY = (None, None, None)


@dataclass(frozen=True, slots=True)
class EpisodeImages:
    """Encoded images of an episode, an image per step."""

    images: Sequence[memoryview | bytes]
    declared: tuple[int | None, ...] = _ANY
    """Rows, columns and channels that the upstream declares, or None if unknown."""
    floats: bool = False
    """Whether each pixel is a float32: the four bytes are the channels of the image."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)


Values: TypeAlias = "NDArray[Any] | EpisodeImages | list[str]"
"""Numbers [n, ...], n images, or n strings."""


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """Raw episode of n steps, of which the last step may have only an observation."""

    where: str
    """File and record, for messages."""
    steps: int
    """Number of steps, n."""
    number: int | None
    """Number of the episode in the upstream's order, if known."""
    columns: Mapping[Key, Values]
    """Columns by the path below the step. Columns of pickles may lack the last step."""
    whole: Mapping[Key, str | np.generic]
    """Values of the whole episode, by path, see `_episode_key`."""
    rounded: int = 0
    """Number of Python floats that lost digits in the conversion to float32."""


class RecordFiles:
    """Reader of raw episodes in TFRecords.

    Raises:
        ConversionError: If features.json is damaged, or describes no steps.
    """

    def __init__(self, files: Mapping[str, Path], features: str) -> None:
        self._files = files
        self._schema = Schema(files[features].read_bytes(), features)
        self.left_out = dict(self._schema.passed_over)
        """Reasons for the fields that are not read, by name."""
        for leaf in self._schema.leaves.values():
            if reason := _left_out_reason(leaf):
                self.left_out[leaf.name] = reason
        self._counted = next((name for name in self._schema.leaves if name.startswith(f"{_STEPS}/")), "")
        if not self._counted:
            raise ConversionError(
                features, [f"it describes no {_STEPS}. The features are {', '.join(self._schema.leaves)}"]
            )
        self._paths = key_by_feature(self._schema)

    def episodes(self, part: Sequence[Mapping[str, Any]], keys: Collection[Key] | None) -> Iterator[RawEpisode]:
        """Yield the episodes of a shard, with all columns, or only the columns in `keys`."""
        leaves = {name for name, path in self._paths.items() if keys is None or path in keys}
        for file in part:
            name, count = file["path"].rpartition("/")[2], file["count"]
            rows = None if file["rows"] is None else set(file["rows"])
            last = None if rows is None else max(rows)
            number = -1
            with self._files[file["path"]].open("rb") as stream:
                for number, payload in enumerate(read_records(stream, name)):
                    if rows is None or number in rows:
                        yield self._episode(payload, f"{name}, record {number}", file["first"] + number, leaves)
                    if number == last:
                        break
                else:
                    if count is not None and number + 1 != count:
                        problem = f"it has {number + 1:,} records, but dataset_info.json states {count:,}"
                        raise ConversionError(name, [problem])

    def _episode(self, payload: memoryview, where: str, number: int, leaves: Collection[str]) -> RawEpisode:
        columns: dict[Key, Values] = {}
        whole: dict[Key, Any] = {}
        features = self._schema.read(payload, where, {*leaves, self._counted})
        counted = features[self._counted]
        steps = len(counted.lengths if isinstance(counted, Ragged) else counted)
        if not steps:
            return RawEpisode(where, 0, number, columns, whole)
        for name in (name for name in features if name in leaves):
            values = _convert_values(self._schema.leaves[name], features[name], where)
            if name.startswith(f"{_STEPS}/"):
                columns[self._paths[name]] = values
            elif not isinstance(values, EpisodeImages):
                whole[self._paths[name]] = values[0] if isinstance(values, list) else values[()]
        return RawEpisode(where, steps, number, columns, whole)


def key_by_feature(schema: Schema) -> dict[str, Key]:
    """Map each feature that is read to a key, with the features of the steps first."""
    steps = {name: _path_of_feature(name) for name in schema.leaves if name.startswith(f"{_STEPS}/")}
    inside = frozenset(steps.values())
    paths = steps | {name: _episode_key(_path_of_feature(name), inside) for name in schema.leaves if name not in steps}
    return {name: path for name, path in paths.items() if not _left_out_reason(schema.leaves[name])}


def _path_of_feature(name: str) -> Key:
    return tuple(name.removeprefix(f"{_STEPS}/").split("/"))


def _episode_key(path: Key, step_keys: Collection[Key]) -> Key:
    """Return the key of a value of the whole episode, which must differ from the keys of the steps."""
    taken = path in step_keys or path[0] in _OF_STEPS
    return (f"{path[0]}_", *path[1:]) if taken else path


def _left_out_reason(leaf: Leaf) -> str:
    """Return why a feature is not read, or empty if the feature is read."""
    if leaf.kind != "numbers" and len(leaf.lists) > 1:
        return "it has lists of strings or images"
    if leaf.kind == "bytes" and leaf.shape:
        return "it has arrays of strings"
    if not leaf.name.startswith(f"{_STEPS}/") and (leaf.lists or leaf.shape or leaf.kind == "image"):
        return "it has more than one value per episode"
    return ""


def _convert_values(leaf: Leaf, raw: Raw, where: str) -> Values:
    name = f"{where}: {leaf.name}"
    if leaf.kind == "image":
        declared = leaf.shape if len(leaf.shape) == len(_ANY) else _ANY
        return EpisodeImages(_decode_strings(raw, name), declared, floats=leaf.dtype == _FLOAT)
    if isinstance(raw, Ragged):
        return raw.stacked(name)
    if isinstance(raw, np.ndarray | np.generic):  # a single value, of the whole episode
        return np.asarray(raw)
    if leaf.kind == "numbers":
        return _stack_arrays(list(raw), name)
    return _strings_or_images(_decode_strings(raw, name), name)


def _decode_strings(raw: Any, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise ConversionError(name, ["it has lists, expected one value per step"])
    return raw


def _stack_arrays(arrays: Sequence[Any], name: str) -> NDArray[Any]:
    shapes = sorted({np.shape(array) for array in arrays})
    if len(shapes) > 1:
        raise ConversionError(name, [f"its shape changes from step to step: {list(shapes[0])}, {list(shapes[1])}"])
    return np.stack(arrays)


def _strings_or_images(strings: list[Any], name: str) -> Values:
    """Return strings or images, whichever the first value is, because features of type bytes may be either."""
    if strings and not isinstance(strings[0], str) and bytes(strings[0][:8]).startswith(_MAGICS):
        return EpisodeImages(strings)
    try:
        return [value if isinstance(value, str) else str(value, "utf-8") for value in strings]
    except UnicodeDecodeError as error:
        raise ConversionError(name, [f"it is neither an image nor UTF-8 text: {error}"]) from error


class ArchiveFiles:
    """Reader of raw episodes in tar archives of pickles, which are parsed without calling the functions in a pickle."""

    left_out: Mapping[str, str] = {}

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def episodes(self, part: Sequence[Mapping[str, Any]], keys: Collection[Key] | None) -> Iterator[RawEpisode]:
        """Yield the episodes of a shard, with all columns, or only the columns in `keys`."""
        for file in part:
            name = file["path"].rpartition("/")[2]
            for member in archive.members(self._files[file["path"]], name):
                where = f"{name}, {member.name}"
                if not member.name.endswith(_MEMBER):
                    raise ConversionError(
                        name, [f"it has the member {member.name}, expected names that end in {_MEMBER}"]
                    )
                if member.size > _EPISODE_BYTES:
                    raise ConversionError(where, [f"it has {member.size:,} bytes, expected at most {_EPISODE_BYTES:,}"])
                yield _episode_from_pickle(pickles.load(member.read(), where), where, keys)


def _episode_from_pickle(content: Any, where: str, keys: Collection[Key] | None) -> RawEpisode:
    steps = content.get(_STEPS) if isinstance(content, dict) else None
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not all(isinstance(step, dict) for step in steps):
        raise ConversionError(where, [f"it has no {_STEPS}, expected a list of dicts, one for each step"])
    if not steps:
        return RawEpisode(where, 0, None, {}, {})
    flat = [dict(_leaf_values(step, ())) for step in steps]
    problems = [
        f"step {at} of {len(flat)} {'lacks' if key in flat[0] else 'has'} {dotted_name(key)}, unlike the first step"
        for at, leaves in enumerate(flat[:-1])
        for key in sorted(leaves.keys() ^ flat[0].keys())
    ]
    problems += [
        f"its last step has {dotted_name(key)}, unlike the first step" for key in flat[-1].keys() - flat[0].keys()
    ]
    columns: dict[Key, Values] = {}
    rounded = 0
    for key in flat[0] if not problems else ():
        if keys is None or key in keys:
            # The last step may have only an observation.
            values = [leaves[key] for leaves in flat if key in leaves]
            try:
                columns[key], lost = _build_column(values, f"{where}: {dotted_name(key)}")
                rounded += lost
            except ConversionError as error:
                problems += [f"{dotted_name(key)}: {problem}" for problem in error.problems]
    refuse(where, first_problems(problems))
    rest = _leaf_values({key: value for key, value in content.items() if key != _STEPS}, ())
    named = {_episode_key(key, flat[0].keys()): _episode_value(value) for key, value in rest}
    whole = {key: value for key, value in named.items() if value is not None and (keys is None or key in keys)}
    return RawEpisode(where, len(steps), None, columns, whole, rounded)


def _episode_value(value: Any) -> str | np.generic | None:
    """Return a value of the whole episode as a string or a number, or None for another value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float | np.generic):
        return None
    number: Any = _as_float32(np.asarray(value))[()]
    return number if np.asarray(number).dtype.kind in "biuf" else None


def _leaf_values(node: Mapping[Any, Any], path: Key) -> Iterator[tuple[Key, Any]]:
    """Yield the values that are neither dicts nor None. The dict of an image counts as a value."""
    if len(path) > _DEPTH_MAX:
        raise ConversionError(dotted_name(path), [f"it is nested in {len(path)} dicts, expected at most {_DEPTH_MAX}"])
    for name, value in node.items():
        if not isinstance(name, str):
            raise ConversionError(
                dotted_name(path) or _STEPS, [f"it has the field name {name!r:.40}, expected a string"]
            )
        key = (*path, name)
        if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
            value = value["bytes"]  # noqa: PLW2901 -- an image as `datasets` writes it
        if isinstance(value, dict):
            yield from _leaf_values(value, key)
        elif value is not None:
            yield key, value


def _build_column(values: list[Any], name: str) -> tuple[Values, int]:
    """Return the values of all steps as a column, and the number of floats that lost digits."""
    if all(isinstance(value, str | bytes | bytearray) for value in values):
        return _strings_or_images(values, name), 0
    if any(isinstance(value, str | bytes | bytearray) for value in values):
        raise ConversionError(name, ["it is text or bytes at some steps, and numbers at others"])
    own = all(isinstance(value, np.ndarray | np.generic) for value in values)
    try:
        column = _stack_arrays([np.asarray(value) for value in values], name)
    except ValueError as error:  # lists within lists, of unequal lengths
        raise ConversionError(name, [f"its lists do not form an array: {error}"]) from error
    if own or column.dtype != np.float64:
        return column, 0
    narrow = _as_float32(column)
    lost = (narrow != column) & (column == column)  # noqa: PLR0124 -- NaN
    return narrow, int(lost.sum())


def _as_float32(values: NDArray[Any]) -> NDArray[Any]:
    """Convert Python floats to float32, the type in the records."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32) if values.dtype == np.float64 else values
