"""Reader of Open X-Embodiment's episodes.

A record has n = T + 1 steps. The last step is the state in which the robot stopped:

    step          0     1     2    ...   T-1    T
    observation   o_0   o_1   o_2  ...   o_T-1  o_T       the state after the last action
    action        a_0   a_1   a_2  ...   a_T-1  -         ignored, whatever the value
    reward        r_0   r_1   r_2  ...   r_T-1  -         r_t is the reward for a_t
    is_last                                     1
    is_terminal                                 0 or 1    terminated, or else truncated

If the last step is not marked with is_last, the episode was cut off: all n steps have an action, and the state
after the last step is not known. Many datasets mark the last step although the step has an action. With
the option ``last-step=transition`` such episodes are read in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.images.base import Form
from datasets_rl.format.schema import Column
from datasets_rl.read import images
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.openx.episodes import ArchiveFiles, EpisodeImages, RawEpisode, RecordFiles
from datasets_rl.sources.openx.episodes import Values as RawValues
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.sources.values import checked_images, count_not_finite
from datasets_rl.ted.episode import Episode, TextStates, Values
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted_name
from datasets_rl.ted.rewards import reward_dtype
from datasets_rl.ted.table import EPISODE_DTYPE

_FIRST, _LAST, _TERMINAL, _REWARD = ("is_first",), ("is_last",), ("is_terminal",), ("reward",)
_NAMES: Mapping[Key, Key] = {_FIRST: ("is_init",), _REWARD: NEXT_REWARD}
_FLAGS = frozenset({_FIRST, _LAST, _TERMINAL})
_RESERVED = frozenset({"next", "done", "terminated", "truncated", "episode", "is_init", "mask", "index", "collector"})
_WIDER = {np.dtype(old): np.dtype(new) for old, new in (("u2", "i4"), ("u4", "i8"), ("u8", "i8"))}
_COLUMN_AXES = 3
_TEXTS = {
    "rlds-last-step": "the last step of an episode has only an observation: the state after the last action",
    "reward-at-last-step": "last steps have a nonzero reward without an action, which was left out "
    "(the option last-step=transition keeps such steps)",
    "last-step-kept": "the last step of an episode was kept as a transition: the next observation is not known",
    "end-without-flag": "records end without is_last: the last row was marked truncated, and the next observation is "
    "not known",
    "flag-inside-episode": "steps inside a record have is_last or is_terminal: the episode was not split there",
    **NO_TRANSITION,
    "reward-missing": "episodes have no reward, which was set to 0",
    **NOT_FINITE,
    "widened": "unsigned integers were converted to wider signed integers, which torch can gather, and integer rewards "
    "to floats",
    "python-floats": "Python floats were converted to float32, the type in the original records, and lost digits",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Field of the steps: the path in the upstream, and the column that the field is converted to."""

    path: Key
    column: Column
    floats: bool = False
    """Whether the field has images with pixels of float32."""


class OpenXReader(EpisodeReader):
    """Reader of the files of a shard of Open X-Embodiment.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        metadata: `Listing.params`: the selection, and the path of features.json.

    Raises:
        ConversionError: If there is no episode, or the first episode is invalid. The error names every problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._encoded = metadata.get("images") == "encoded"
        self._keeps_last = metadata.get("last") == "transition"
        self._raw = RecordFiles(files, metadata["features"]) if "features" in metadata else ArchiveFiles(files)
        self.left_out = self._raw.left_out
        self.metadata = dict(metadata.get("metadata", {}))
        everything: dict[str, Any] = {"first": 0, "count": None, "rows": None, "most": None}
        self._whole = [{"path": path, **everything} for path in sorted(files) if not path.endswith(".json")]
        first = next((raw for raw in self._raw.episodes(self._whole, None) if raw.steps), None)
        if first is None:
            raise ConversionError(dataset_id, [f"there is no episode in {', '.join(sorted(files))}"])
        self._fields = self._fields_of(first)
        self._episode_dtypes = {
            key: np.asarray(value).dtype for key, value in first.whole.items() if not isinstance(value, str)
        }
        self.columns = [field.column for field in self._fields]

    @cached_property
    def _kept_fields(self) -> list[_Field]:
        return [field for field in self._fields if field.column.key in self.kept]

    @property
    def _kept_paths(self) -> set[Key] | None:
        """The paths that are read, or None for all paths, also paths that the first episode does not have."""
        if len(self._kept_fields) == len(self._fields):
            return None
        return {field.path for field in self._kept_fields} | {_LAST, _TERMINAL, _REWARD} | set(self._episode_dtypes)

    def _fields_of(self, first: RawEpisode) -> list[_Field]:
        problems: list[str] = []
        fields: dict[Key, _Field] = {}
        whole: dict[Key, Any] = {path: [value] for path, value in first.whole.items() if isinstance(value, str)}
        for path, values in {**first.columns, **whole}.items():
            if path in {_LAST, _TERMINAL}:
                continue
            try:
                field = self._field_of(path, values)
            except ConversionError as error:
                problems += [f"{dotted_name(path)}: {problem}" for problem in error.problems]
                continue
            key = field.column.key
            if key in fields:
                problems.append(
                    f"{dotted_name(path)} and {dotted_name(fields[key].path)} both map to the key {dotted_name(key)}"
                )
            fields[key] = field
        if not any(field.column.shared for field in fields.values()) and not problems:
            problems.append("it has no observation")
        fields.setdefault(NEXT_REWARD, _Field(_REWARD, Column(NEXT_REWARD, np.dtype(np.float32), (1,))))
        for key in (NEXT_TERMINATED, NEXT_TRUNCATED):
            fields[key] = _Field(_LAST, Column(key, np.dtype(np.bool_), (1,)))
        self.refuse(first.where, problems)
        return list(fields.values())

    def _field_of(self, path: Key, values: Any) -> _Field:
        key, shared = stored_key(path), path[0] == OBSERVATION[0]
        if isinstance(values, list):
            return _Field(path, Column(key, np.dtype(np.int32), (), shared=shared, text=True))
        if isinstance(values, EpisodeImages):
            return self._image_field(path, values, shared=shared)
        if path in _FLAGS:
            return _Field(path, Column(key, np.dtype(np.bool_), ()))
        dtype, shape = _WIDER.get(values.dtype.newbyteorder("="), values.dtype.newbyteorder("=")), values.shape[1:]
        if path == _REWARD:
            if shape not in {(), (1,)}:
                raise ConversionError("", [f"it has the shape {list(shape)}, expected a number per step"])
            return _Field(path, Column(key, reward_dtype(dtype), (1,)))
        if dtype.kind not in "biuf" or 0 in shape:
            raise ConversionError("", [f"it is {dtype} {list(shape)}, expected numbers"])
        return _Field(path, Column(key, dtype, shape, shared=shared))

    def _image_field(self, path: Key, values: EpisodeImages, *, shared: bool) -> _Field:
        head = images.read_header(values.images[0])
        shape = _image_shape(head, values)
        if any(declared not in {None, size} for declared, size in zip(values.declared, shape, strict=True)):
            problem = (
                f"the first image is {list(head.shape)}, but features.json declares {_declared_text(values.declared)}"
            )
            raise ConversionError("", [problem])
        dtype = np.dtype(np.float32) if values.floats else head.dtype
        form: Form = "encoded" if self._encoded and dtype == np.uint8 else "raw"
        column = Column(stored_key(path), _WIDER.get(dtype, dtype), shape, shared=shared, form=form)
        return _Field(path, column, values.floats)

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of a shard, or by default all episodes of the files."""
        self.counts.clear()
        files = self._whole if part is None else part
        most, yielded = files[-1].get("most"), 0
        for raw in self._raw.episodes(files, self._kept_paths):
            with self.part(raw.where):
                for chunk in self._split(raw):
                    yielded += not chunk.continues
                    yield chunk
            if yielded == most:
                break

    def _split(self, raw: RawEpisode) -> Iterator[Episode]:
        columns, steps = raw.columns, raw.steps
        if not steps:
            self.counts["no-transition"] += 1
            return
        marked = bool(self._read_flag(columns, _LAST, steps)[-1]) if _LAST in columns else True
        void = marked and not self._keeps_last
        rows = steps - void
        self._check_alike(raw, columns, steps, rows)
        self._count_decisions(raw, columns, steps, marked=marked)
        if not rows:
            self.counts["no-transition"] += 1
            return
        terminated = _TERMINAL in columns and bool(self._read_flag(columns, _TERMINAL, steps)[-1])
        metadata: dict[str, Any] = {_metadata_name(key): raw.whole[key] for key in self._episode_dtypes}
        if raw.number is not None:
            metadata["source"] = np.int64(raw.number)
        fields = {field.column.key: field for field in self._kept_fields}

        def read(key: Key, start: int, stop: int) -> Values:
            field = fields[key]
            if field.path in raw.whole:
                return TextStates(np.zeros(stop - start, np.int32), (str(raw.whole[field.path]),))
            if field.path in columns:
                # The state after the last action is stored only if the last step has no action.
                return self._convert_values(field, columns[field.path], start, min(stop, steps))
            return np.zeros((stop - start, 1), field.column.dtype)

        step_bytes = sum(self._step_bytes(field, columns) for field in self._kept_fields)
        kept = [field.column for field in self._kept_fields]
        flags = end_flags(rows, terminated=terminated)
        yield from split_episode(flags, kept, read, metadata, step_bytes=step_bytes)

    @staticmethod
    def _step_bytes(field: _Field, columns: Mapping[Key, RawValues]) -> int:
        """Return the approximate number of bytes of memory that a step of a field takes."""
        values = columns.get(field.path)
        if field.column.encoded and isinstance(values, EpisodeImages):
            return sum(map(len, values.images)) // len(values.images)
        return field.column.step_bytes

    def _check_alike(self, raw: RawEpisode, columns: Mapping[Key, RawValues], steps: int, rows: int) -> None:
        """Check that an episode has the same fields as the first episode."""
        expected = {field.path for field in self._kept_fields} | {_LAST, _TERMINAL, _REWARD}
        extra = [path for path in columns if path not in expected]
        problems = [f"it has {dotted_name(path)}, unlike the first episode" for path in extra]
        for field in self._kept_fields:
            path, column = field.path, field.column
            if path in raw.whole or path in {_LAST, _REWARD}:
                if column.text and not isinstance(raw.whole.get(path), str):
                    problems.append(
                        f"{dotted_name(path)} is {_value_kind(raw.whole.get(path))}, in the first episode text"
                    )
            elif path not in columns:
                problems.append(f"it has no {dotted_name(path)}, unlike the first episode")
            elif len(columns[path]) < (steps if column.shared else rows):
                problems.append(f"{dotted_name(path)} has {len(columns[path]):,} values for {steps:,} steps")
            else:
                problems += _column_problems(field, columns[path])
        problems += [
            f"{dotted_name(key)} is {_value_kind(raw.whole.get(key))}, in the first episode {dtype}"
            for key, dtype in self._episode_dtypes.items()
            if _value_kind(raw.whole.get(key)) != str(dtype)
        ]
        if _REWARD in columns and len(columns[_REWARD]) < rows:
            problems.append(f"reward has {len(columns[_REWARD]):,} values for {steps:,} steps")
        refuse(self._dataset_id, problems)

    def _count_decisions(self, raw: RawEpisode, columns: Mapping[Key, RawValues], steps: int, *, marked: bool) -> None:
        counts = self.counts
        counts["rlds-last-step"] += marked and not self._keeps_last
        counts["last-step-kept"] += marked and self._keeps_last
        counts["end-without-flag"] += not marked
        counts["reward-missing"] += _REWARD not in columns
        counts["python-floats"] += raw.rounded
        for path in (_LAST, _TERMINAL):
            if path in columns:
                counts["flag-inside-episode"] += int(self._read_flag(columns, path, steps)[:-1].sum())
        rewards = columns.get(_REWARD)
        if marked and not self._keeps_last and isinstance(rewards, np.ndarray) and len(rewards) == steps:
            counts["reward-at-last-step"] += bool(np.any(rewards[-1]))

    def _read_flag(self, columns: Mapping[Key, RawValues], path: Key, steps: int) -> NDArray[np.bool_]:
        values = columns[path]
        if not isinstance(values, np.ndarray) or values.size != steps or not np.isin(values, (0, 1)).all():
            raise ConversionError(self._dataset_id, [f"{dotted_name(path)} is not a flag, 0 or 1, at every step"])
        return np.asarray(values.reshape(-1) == 1)

    def _convert_values(self, field: _Field, values: RawValues, start: int, stop: int) -> Values:
        column = field.column
        if isinstance(values, list):
            return TextStates.from_texts(values[start:stop])
        if isinstance(values, EpisodeImages):
            return self._convert_images(field, values, start, stop)
        part = values[start:stop]
        if field.path in {_FIRST, _REWARD}:
            part = part.reshape(len(part), *column.shape)
        self.counts["not-finite"] += count_not_finite(part)
        if part.dtype == column.dtype:
            return part
        if part.dtype.kind in "iu" and column.dtype.kind == "i" and part.max(initial=0) > np.iinfo(column.dtype).max:
            raise ConversionError(
                self._dataset_id, [f"{dotted_name(field.path)} has {part.max()}, expected {column.dtype}"]
            )
        self.counts["widened"] += len(part) * (column.dtype.kind != "b")
        return part.astype(column.dtype)

    def _convert_images(self, field: _Field, values: EpisodeImages, start: int, stop: int) -> Values:
        column, name = field.column, dotted_name(field.path)
        encoded = values.images[start:stop]
        if column.encoded:
            return checked_images(encoded, column, start)
        rows, columns, channels = column.shape
        narrow = {np.dtype(np.int32): np.dtype(np.uint16)}.get(column.dtype, np.dtype(np.uint8))
        out: NDArray[Any] = np.empty((len(encoded), rows, columns, 4 if field.floats else channels), narrow)
        with self.part(name):
            images.decode(encoded, out, name, first=start)
        if field.floats:
            return out.view("<f4").astype(column.dtype, copy=False)
        self.counts["widened"] += len(out) * (column.dtype != narrow)
        return out.astype(column.dtype, copy=False)


def _value_kind(value: str | np.generic | None) -> str:
    return "missing" if value is None else "text" if isinstance(value, str) else str(value.dtype)


def _metadata_name(path: Key) -> str:
    """Return the name of an episode's number in the episode table. Names that the table defines get an underscore."""
    return f"{path[0]}_" if path[0] in (EPISODE_DTYPE.names or ()) and len(path) == 1 else dotted_name(path)


def stored_key(path: Key) -> Key:
    """Return the key of a field: names that TED reserves get an underscore, and dots are replaced with underscores."""
    root, *rest = (name.replace(".", "_") or "_" for name in path)
    return _NAMES.get(path, (f"{root}_" if root in _RESERVED else root, *rest))


def _image_shape(header: images.Header, values: EpisodeImages) -> tuple[int, ...]:
    return (*header.shape[:2], 1) if values.floats else header.shape


def _declared_text(declared: Sequence[int | None]) -> list[int | str]:
    return ["any" if size is None else size for size in declared]


def _column_problems(field: _Field, values: RawValues) -> Iterator[str]:
    """Yield how a column of an episode differs from the column of the first episode.

    Images are checked when images are decoded.
    """
    column, path = field.column, dotted_name(field.path)
    kind = "text" if isinstance(values, list) else "images" if isinstance(values, EpisodeImages) else "numbers"
    expected = (
        "text" if column.text else "images" if len(column.shape) == _COLUMN_AXES and kind == "images" else "numbers"
    )
    if kind != expected:
        yield f"{path} has {kind}, in the first episode {expected}"
    elif isinstance(values, np.ndarray) and field.path not in _FLAGS:
        dtype = values.dtype.newbyteorder("=")
        if values.shape[1:] != column.shape or _WIDER.get(dtype, dtype) != column.dtype:
            yield f"{path} is {dtype} {list(values.shape[1:])}, in the first episode {column.dtype} {list(column.shape)}"
