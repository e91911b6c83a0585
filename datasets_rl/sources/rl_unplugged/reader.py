"""Reader of RL Unplugged's episodes, each of which is a ``tf.train.Example`` without a schema.

A record has T + 1 steps. A reward and a discount are at the step that followed. An action is at the step at which the action
was taken, or, in the real-world RL suite, at the step that followed:

    step             0     1     2    ...   T
    observation/...  o_0   o_1   o_2        o_T
    reward           -     r_0   r_1        r_T-1
    discount         -     d_0   d_1        d_T-1      terminated if the discount is 0, else truncated
    step_type        0     1     1          2          not in the real-world RL suite
    action           a_0   a_1   a_2        -          control suite, locomotion
                     -     a_0   a_1        a_T-1      real-world RL suite

Features concatenate the values of all steps, so that the number of values over T + 1 is the size of one value. Cameras
have a byte string per step, the pixels of a square image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.tfrecord import Feature, decompressed, parse_example, read_record_file, read_records
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.sources.values import count_not_finite, pixel_spec
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, OBSERVATION, Key, dotted_name

_RECORD_MAX_BYTES = 1 << 28  # an episode of 1,500 steps with images has 20 MB
_CHANNELS = 3
_DISCOUNT, _STEP_TYPE, _ACTION, _REWARD = "discount", "step_type", "action", "reward"
_FIRST, _BETWEEN, _LAST = 0, 1, 2
_NEXT_DISCOUNT: Key = (NEXT, "discount")
_WHOLE = ("episode_id", "timestamp")
_FLOAT = np.dtype(np.float32)
_UNKNOWN = "it is neither an observation nor a known feature"


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the records of a part of the suite."""

    separator: str
    """Separator of the names of nested observations."""
    action_row: int
    """Row of the action of the first transition."""
    rule: str
    """Name of the decision on the alignment."""


TAKEN_ACTIONS = Layout("/", 0, "reward-before-observation")
"""Layout of the control suite and of locomotion."""
ARRIVAL_ACTIONS = Layout(":", 1, "action-before-observation")
"""Layout of the real-world RL suite."""

LAYOUTS: Mapping[str, Layout] = {layout.separator: layout for layout in (TAKEN_ACTIONS, ARRIVAL_ACTIONS)}

_TEXTS = {
    "reward-before-observation": "rewards and discounts are stored with the observation that followed: they were moved "
    "to the row of the previous observation, where the action is",
    "action-before-observation": "actions, rewards and discounts are stored with the observation that followed: they "
    "were moved to the row of the previous observation",
    "end-without-flag": "the last step of a record is not marked as the last step of an episode, which was truncated there",
    "discount-0-inside": "discounts inside a record are 0: the episode was not split there",
    **NO_TRANSITION,
    **NOT_FINITE,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Feature of a record that has a value for each step, and the column that the feature is converted to."""

    name: str
    column: Column
    first_row: int
    """Row of the value of the first transition."""

    @property
    def image(self) -> bool:
        """Whether the field has the images of a camera."""
        return self.column.dtype == np.uint8


def inspect_file(stream: BinaryIO) -> dict[str, str]:
    """Return the separator of the names of observations in the first record that has steps, or nothing in another layout.

    Raises:
        ConversionError: If the file is damaged or has other records.
    """
    for payload in read_records(decompressed(stream, "the file"), "the file", max_bytes=_RECORD_MAX_BYTES):
        names = parse_example(payload, "a record").keys()
        found = [one for one in LAYOUTS if any(name.startswith(f"{OBSERVATION[0]}{one}") for name in names)]
        if {_ACTION, _REWARD, _DISCOUNT} <= names:
            return {"separator": found[0]} if len(found) == 1 else {}
    return {}


class RLUnpluggedReader(EpisodeReader):
    """Reader of files of episodes.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: The ``separator`` of the names in the records, which have the layout of `LAYOUTS` with this separator.

    Raises:
        ConversionError: If no record has a step, or the first record with a step is invalid. The error names every problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._layout = LAYOUTS[facts["separator"]]
        self._paths = [Path(files[path]) for path in sorted(files)]
        self.left_out = self._unknown = dict[str, str]()
        first = next(
            ((where, features) for where, features in self._records() if len(features.get(_DISCOUNT, []))), None
        )
        if first is None:
            raise ConversionError(dataset_id, [f"there is no step in {', '.join(sorted(files))}"])
        self._fields = self._fields_of(*first)
        self._metadata = [name for name in _WHOLE if _is_integer(first[1].get(name))]
        self.columns = [*(field.column for field in self._fields), *END_COLUMNS]

    @override
    def specs(self) -> Mapping[str, Any]:
        return {dotted_name(one.column.key): pixel_spec(one.column.shape) for one in self._fields if one.image}

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        del part
        self.counts.clear()
        for where, features in self._records():
            yield from self._split(where, features)

    def _records(self) -> Iterator[tuple[str, dict[str, Feature]]]:
        """Yield the features of each record, with the place of the record for messages."""
        for path in self._paths:
            for number, payload in enumerate(read_record_file(path, max_bytes=_RECORD_MAX_BYTES)):
                where = f"record {number:,} of {path.name}"
                yield where, parse_example(payload, where)

    def _fields_of(self, where: str, features: Mapping[str, Feature]) -> list[_Field]:
        """Return the fields of the steps of the first record."""
        steps, separator = len(features[_DISCOUNT]), self._layout.separator
        problems: list[str] = []
        fields: list[_Field] = []
        columns = {
            _DISCOUNT: (_NEXT_DISCOUNT, 1),
            _REWARD: (NEXT_REWARD, 1),
            _ACTION: (ACTION, self._layout.action_row),
        }
        for name in sorted({*features, *columns}):
            root, *path = name.split(separator)
            if name in columns:
                key, first_row = columns[name]
            elif root == OBSERVATION[0] and path:
                key, first_row = (root, *(one.replace(".", "_") or "_" for one in path)), 0
            else:
                continue
            try:
                shape, dtype = _value_of(features.get(name, []), steps)
            except ValueError as error:
                problems.append(f"{name} {error}")
                continue
            if name in {_DISCOUNT, _REWARD} and shape != (1,):
                problems.append(f"{name} has {shape[0]} values per step, expected 1")
            elif dtype != _FLOAT and root != OBSERVATION[0]:
                problems.append(f"{name} has byte strings, expected floats")
            shared = root == OBSERVATION[0]
            fields.append(_Field(name, Column(key, dtype, shape, shared=shared), first_row))
        if not any(field.column.shared for field in fields) and not problems:
            problems.append(f"it has no feature {OBSERVATION[0]}{separator}...")
        self.refuse(where, problems)
        return fields

    def _split(self, where: str, features: Mapping[str, Feature]) -> Iterator[Episode]:
        rows = len(features.get(_DISCOUNT, []))
        problems = list(self._contradictions(features, rows)) if rows else []
        if not rows and any(len(features.get(field.name, [])) for field in self._fields):
            problems = [f"{_DISCOUNT} is missing"]
        self.refuse(where, problems)
        steps = rows - 1
        if steps < 1:
            self.counts["no-transition"] += 1
            return
        terminated = self._is_terminated(features, steps)
        metadata: dict[str, Any] = {name: np.asarray(features[name])[0] for name in self._metadata}

        fields = {field.column.key: field for field in self._fields if field.column.key in self.kept}

        def read(key: Key, start: int, stop: int) -> NDArray[Any]:
            field = fields[key]
            return self._read_rows(field, features[field.name], start + field.first_row, stop + field.first_row)

        flags = end_flags(steps, terminated=terminated)
        yield from split_episode(flags, [field.column for field in fields.values()], read, metadata)

    def _contradictions(self, features: Mapping[str, Feature], rows: int) -> Iterator[str]:
        """Yield how a record differs from the first record, or contradicts itself."""
        expected = {field.name for field in self._fields}
        known = {*expected, _STEP_TYPE, *_WHOLE}
        for name in sorted(features.keys() - known):
            if name.split(self._layout.separator)[0] == OBSERVATION[0]:
                yield f"it has {name}, unlike the first record"
            self._unknown[name] = _UNKNOWN
        for field in self._fields:
            column = field.column
            try:
                shape, dtype = _value_of(features.get(field.name, []), rows)
            except ValueError as error:
                yield f"{field.name} {error}"
                continue
            if (shape, dtype) != (column.shape, column.dtype):
                yield (
                    f"{field.name} is {dtype.name} {list(shape)} per step, in the first record "
                    f"{column.dtype.name} {list(column.shape)}"
                )
        for name in self._metadata:
            if not _is_integer(features.get(name)):
                yield f"{name} is not a single integer, unlike in the first record"
        if len(features.get(_STEP_TYPE, [])):
            yield from _broken_step_types(features[_STEP_TYPE], rows)

    def _is_terminated(self, features: Mapping[str, Feature], steps: int) -> bool:
        """Return whether the last step of an episode is terminated, and count the decisions."""
        discounts, kinds = np.asarray(features[_DISCOUNT]), features.get(_STEP_TYPE, [])
        marked = not len(kinds) or kinds[-1] == _LAST
        self.counts[self._layout.rule] += steps
        self.counts["end-without-flag"] += int(not marked)
        self.counts["discount-0-inside"] += int(np.count_nonzero(discounts[1:-1] == 0))
        return bool(marked and discounts[-1] == 0)

    def _read_rows(self, field: _Field, feature: Feature, start: int, stop: int) -> NDArray[Any]:
        """Return the values of a field at some rows of a record, [stop - start, ...]."""
        shape = field.column.shape
        if isinstance(feature, list):
            return np.frombuffer(b"".join(feature[start:stop]), np.uint8).reshape(-1, *shape)
        values = feature.reshape(-1, *shape)[start:stop]
        self.counts["not-finite"] += count_not_finite(values)
        return values


def _value_of(feature: Feature, steps: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of a feature at a step.

    Raises:
        ValueError: If the feature has no value for each step. The text begins with a verb.
    """
    if not len(feature):
        raise ValueError("is missing")
    if isinstance(feature, list):
        sizes = sorted({len(one) for one in feature})
        side = math.isqrt(sizes[-1] // _CHANNELS)
        if len(feature) != steps:
            raise ValueError(f"has {len(feature):,} images for {steps:,} steps")
        if len(sizes) > 1 or not side or side * side * _CHANNELS != sizes[0]:
            raise ValueError(f"has images of {sizes[0]:,} bytes, expected all pixels of a square, 3 each")
        return (side, side, _CHANNELS), np.dtype(np.uint8)
    if feature.dtype != _FLOAT:
        raise ValueError("has integers, expected floats")
    if len(feature) % steps:
        raise ValueError(f"has {len(feature):,} values, which is not a multiple of the {steps:,} steps")
    return (len(feature) // steps,), _FLOAT


def _is_integer(feature: Feature | None) -> bool:
    return isinstance(feature, np.ndarray) and feature.dtype == np.int64 and len(feature) == 1


def _broken_step_types(kinds: Feature, rows: int) -> Iterator[str]:
    if isinstance(kinds, list) or len(kinds) != rows:
        yield f"step_type has {len(kinds):,} values for {rows:,} steps"
        return
    if kinds[0] != _FIRST:
        yield f"step_type is {kinds[0]:g} at step 0, expected 0, the first step of an episode"
    for row in np.flatnonzero(kinds[1:-1] != _BETWEEN)[:3] + 1:
        yield f"step_type is {kinds[row]:g} at step {row:,}, expected 1 between the first and the last step"
    if rows > 1 and kinds[-1] not in {_BETWEEN, _LAST}:
        yield f"step_type is {kinds[-1]:g} at the last step, {rows - 1:,}, expected 2"
