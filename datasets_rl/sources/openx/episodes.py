"""The episodes of Open X-Embodiment's files as they lie there: records of TensorFlow Datasets, and pickles in tars.

Both come out as columns by the path of the field below the step, each with one value a step:

    record    steps/observation/image: [jpeg_0 jpeg_1 ...]      ->   ("observation", "image"): Pictures
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
from datasets_rl.read.tfds import Column as Raw
from datasets_rl.read.tfds import Leaf, Schema
from datasets_rl.read.tfrecord import records
from datasets_rl.ted.keys import Key, dotted

__all__ = ["Archives", "EpisodeImages", "RawEpisode", "Records", "Values", "paths_of"]

_STEPS = "steps"
_MEMBER = ".data.pickle"
_MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_EPISODE_BYTES = (1 << 31) - 1  # what a record could have
_OF_STEPS = frozenset({"observation", "reward", "is_first", "is_last", "is_terminal"})
_DEPTH_MOST = 16
_FLOAT = np.dtype(np.float32)
_ANY = (None, None, None)


@dataclass(frozen=True, slots=True)
class EpisodeImages:
    """Encoded images, one a step."""

    images: Sequence[memoryview | bytes]
    declared: tuple[int | None, ...] = _ANY
    """Rows, columns and channels as the upstream says them."""
    floats: bool = False
    """Each pixel is a float32, whose four bytes are the channels of the image."""

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.images)


Values: TypeAlias = "NDArray[Any] | EpisodeImages | list[str]"
"""Numbers [n, ...], n images, or n texts."""


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """An episode as the upstream has it: n steps, of which the last one may have only an observation."""

    where: str
    """Its place, for messages."""
    steps: int
    """n."""
    number: int | None
    """The upstream's own, where it is known."""
    columns: Mapping[Key, Values]
    """By the path below the step. Columns of pickles may lack the last step."""
    whole: Mapping[Key, str | np.generic]
    """What is known of the episode, by its path; see `_apart`."""
    rounded: int = 0
    """Numbers of Python that became float32 and lost digits."""


class Records:
    """Episodes in TFRecords.

    Args:
        files: Where the files lie.
        features: The path of features.json.

    Raises:
        ConversionError: If features.json is damaged, or describes no steps.
    """

    def __init__(self, files: Mapping[str, Path], features: str) -> None:
        self._files = files
        self._schema = Schema(files[features].read_bytes(), features)
        self.left_out = dict(self._schema.passed_over)
        """Fields that are not read, and why."""
        for leaf in self._schema.leaves.values():
            if reason := _left_out(leaf):
                self.left_out[leaf.name] = reason
        self._counted = next((name for name in self._schema.leaves if name.startswith(f"{_STEPS}/")), "")
        if not self._counted:
            raise ConversionError(features, [f"it describes no {_STEPS}, but {', '.join(self._schema.leaves)}"])
        self._paths = paths_of(self._schema)

    def episodes(self, part: Sequence[Mapping[str, Any]], wanted: Collection[Key] | None) -> Iterator[RawEpisode]:
        """Yield the episodes of a shard; with `wanted`, only these columns of them."""
        leaves = {name for name, path in self._paths.items() if wanted is None or path in wanted}
        for file in part:
            name, count = file["path"].rpartition("/")[2], file["count"]
            rows = None if file["rows"] is None else set(file["rows"])
            last = None if rows is None else max(rows)
            number = -1
            with self._files[file["path"]].open("rb") as stream:
                for number, payload in enumerate(records(stream, name)):
                    if rows is None or number in rows:
                        yield self._episode(payload, f"{name}, record {number}", file["first"] + number, leaves)
                    if number == last:
                        break
                else:
                    if count is not None and number + 1 != count:
                        problem = f"it has {number + 1:,} records; dataset_info.json says {count:,}"
                        raise ConversionError(name, [problem])

    def _episode(self, payload: memoryview, where: str, number: int, leaves: Collection[str]) -> RawEpisode:
        columns: dict[Key, Values] = {}
        whole: dict[Key, Any] = {}
        found = self._schema.read(payload, where, {*leaves, self._counted})
        counted = found[self._counted]
        steps = len(counted.lengths if isinstance(counted, Ragged) else counted)
        if not steps:
            return RawEpisode(where, 0, number, columns, whole)
        for name in (name for name in found if name in leaves):
            values = _values(self._schema.leaves[name], found[name], where)
            if name.startswith(f"{_STEPS}/"):
                columns[self._paths[name]] = values
            elif not isinstance(values, EpisodeImages):
                whole[self._paths[name]] = values[0] if isinstance(values, list) else values[()]
        return RawEpisode(where, steps, number, columns, whole)


def paths_of(schema: Schema) -> dict[str, Key]:
    """Return what each feature that is read is called, those of the steps first."""
    steps = {name: _path(name) for name in schema.leaves if name.startswith(f"{_STEPS}/")}
    inside = frozenset(steps.values())
    paths = steps | {name: _apart(_path(name), inside) for name in schema.leaves if name not in steps}
    return {name: path for name, path in paths.items() if not _left_out(schema.leaves[name])}


def _path(name: str) -> Key:
    return tuple(name.removeprefix(f"{_STEPS}/").split("/"))


def _apart(path: Key, inside: Collection[Key]) -> Key:
    """Return what something of a whole episode is called: by another name than all that steps have."""
    taken = path in inside or path[0] in _OF_STEPS
    return (f"{path[0]}_", *path[1:]) if taken else path


def _left_out(leaf: Leaf) -> str:
    """Say why a feature is not read, if it is not."""
    if leaf.kind != "numbers" and len(leaf.lists) > 1:
        return "lists of texts or images"
    if leaf.kind == "bytes" and leaf.shape:
        return "arrays of texts"
    if not leaf.name.startswith(f"{_STEPS}/") and (leaf.lists or leaf.shape or leaf.kind == "image"):
        return "more than one value for an episode"
    return ""


def _values(leaf: Leaf, raw: Raw, where: str) -> Values:
    name = f"{where}: {leaf.name}"
    if leaf.kind == "image":
        declared = leaf.shape if len(leaf.shape) == len(_ANY) else _ANY
        return EpisodeImages(_strings(raw, name), declared, floats=leaf.dtype == _FLOAT)
    if isinstance(raw, Ragged):
        return raw.stacked(name)
    if isinstance(raw, np.ndarray | np.generic):  # one value, where it is of the whole episode
        return np.asarray(raw)
    if leaf.kind == "numbers":
        return _stacked(list(raw), name)
    return _text_or_pictures(_strings(raw, name), name)


def _strings(raw: Any, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise ConversionError(name, ["it holds lists; expected one value a step"])
    return raw


def _stacked(arrays: Sequence[Any], name: str) -> NDArray[Any]:
    shapes = sorted({np.shape(array) for array in arrays})
    if len(shapes) > 1:
        raise ConversionError(name, [f"its shape changes from step to step: {list(shapes[0])}, {list(shapes[1])}"])
    return np.stack(arrays)


def _text_or_pictures(strings: list[Any], name: str) -> Values:
    """Tell strings by what the first one begins with: fields of plain bytes hold the one or the other."""
    if strings and not isinstance(strings[0], str) and bytes(strings[0][:8]).startswith(_MAGICS):
        return EpisodeImages(strings)
    try:
        return [one if isinstance(one, str) else str(one, "utf-8") for one in strings]
    except UnicodeDecodeError as error:
        raise ConversionError(name, [f"it is neither an image nor text in UTF-8: {error}"]) from error


class Archives:
    """Episodes as pickles in tar files, read by a machine that calls nothing.

    Args:
        files: Where the files lie.
    """

    left_out: Mapping[str, str] = {}

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def episodes(self, part: Sequence[Mapping[str, Any]], wanted: Collection[Key] | None) -> Iterator[RawEpisode]:
        """Yield the episodes of a shard; with `wanted`, only these columns of them."""
        for file in part:
            name = file["path"].rpartition("/")[2]
            for member in archive.members(self._files[file["path"]], name):
                where = f"{name}, {member.name}"
                if not member.name.endswith(_MEMBER):
                    raise ConversionError(name, [f"it holds {member.name}; expected names that end in {_MEMBER}"])
                if member.size > _EPISODE_BYTES:
                    raise ConversionError(where, [f"it has {member.size:,} bytes; expected {_EPISODE_BYTES:,} at most"])
                yield _unpickled(pickles.load(member.read(), where), where, wanted)


def _unpickled(found: Any, where: str, wanted: Collection[Key] | None) -> RawEpisode:
    steps = found.get(_STEPS) if isinstance(found, dict) else None
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not all(isinstance(step, dict) for step in steps):
        raise ConversionError(where, [f"it has no {_STEPS}: a list of dicts, one for each step"])
    if not steps:
        return RawEpisode(where, 0, None, {}, {})
    flat = [dict(_leaves(step, ())) for step in steps]
    problems = [
        f"step {at} of {len(flat)} {'lacks' if key in flat[0] else 'has'} {dotted(key)}, as the first does not"
        for at, leaves in enumerate(flat[:-1])
        for key in sorted(leaves.keys() ^ flat[0].keys())
    ]
    problems += [f"its last step has {dotted(key)}, as the first has not" for key in flat[-1].keys() - flat[0].keys()]
    columns: dict[Key, Values] = {}
    rounded = 0
    for key in flat[0] if not problems else ():
        if wanted is None or key in wanted:
            # The last step may have only an observation.
            values = [leaves[key] for leaves in flat if key in leaves]
            try:
                columns[key], lost = _column(values, f"{where}: {dotted(key)}")
                rounded += lost
            except ConversionError as error:
                problems += [f"{dotted(key)}: {problem}" for problem in error.problems]
    if problems:
        more = [f"and {len(problems) - 20:,} more"] if len(problems) > 20 else []
        raise ConversionError(where, [*problems[:20], *more])
    rest = _leaves({key: value for key, value in found.items() if key != _STEPS}, ())
    named = {_apart(key, flat[0].keys()): _alone(value) for key, value in rest}
    whole = {key: value for key, value in named.items() if value is not None and (wanted is None or key in wanted)}
    return RawEpisode(where, len(steps), None, columns, whole, rounded)


def _alone(value: Any) -> str | np.generic | None:
    """Return a text or number that is known of an episode as it is stored; None for what is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float | np.generic):
        return None
    number: Any = _rounded(np.asarray(value))[()]
    return number if np.asarray(number).dtype.kind in "biuf" else None


def _leaves(node: Mapping[Any, Any], path: Key) -> Iterator[tuple[Key, Any]]:
    """Yield what is no dict; an image is one too, and nothing is where None stands."""
    if len(path) > _DEPTH_MOST:
        raise ConversionError(dotted(path), ["it is nested too deep"])
    for name, value in node.items():
        if not isinstance(name, str):
            raise ConversionError(dotted(path) or _STEPS, [f"it has a field of the name {name!r:.40}; expected text"])
        place = (*path, name)
        if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
            value = value["bytes"]  # noqa: PLW2901 -- an image as `datasets` writes it
        if isinstance(value, dict):
            yield from _leaves(value, place)
        elif value is not None:
            yield place, value


def _column(values: list[Any], name: str) -> tuple[Values, int]:
    """Make a column of what the steps have, and count the numbers that lost digits."""
    if all(isinstance(value, str | bytes | bytearray) for value in values):
        return _text_or_pictures(values, name), 0
    if any(isinstance(value, str | bytes | bytearray) for value in values):
        raise ConversionError(name, ["it is text or bytes at some steps, and numbers at others"])
    own = all(isinstance(value, np.ndarray | np.generic) for value in values)
    try:
        column = _stacked([np.asarray(value) for value in values], name)
    except ValueError as error:  # lists within lists, of unequal lengths
        raise ConversionError(name, [f"its lists are no array: {error}"]) from error
    if own or column.dtype != np.float64:
        return column, 0
    narrow = _rounded(column)
    lost = (narrow != column) & (column == column)  # noqa: PLR0124 -- NaN
    return narrow, int(lost.sum())


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Give floats of Python the type that they had in the records."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32) if values.dtype == np.float64 else values
