"""Open X-Embodiment's episodes as trajectories.

A record has n = T + 1 steps. The last one is where the robot was when it stopped:

    step          0     1     2    ...   T-1    T
    observation   o_0   o_1   o_2  ...   o_T-1  o_T       the state after the last action
    action        a_0   a_1   a_2  ...   a_T-1  -         void, whatever stands there
    reward        r_0   r_1   r_2  ...   r_T-1  -         what a_t led to
    is_last                                     1
    is_terminal                                 0 or 1    terminated, or else truncated

A record whose last step is not marked so was cut: all its n steps have an action, and what follows is not known. Many
sets mark the last step and have an action there all the same; with ``--last-step transition`` they are read like those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read import images
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader, Selection
from datasets_rl.sources.openx.episodes import Archives, EpisodeImages, RawEpisode, Records
from datasets_rl.sources.openx.episodes import Values as RawValues
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates, Values
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted
from datasets_rl.ted.table import EPISODE_DTYPE

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OpenXReader", "stored_key"]

_PIECE_BYTES = 8 << 20
_FIRST, _LAST, _TERMINAL, _REWARD = ("is_first",), ("is_last",), ("is_terminal",), ("reward",)
_NAMES: Mapping[Key, Key] = {_FIRST: ("is_init",), _REWARD: NEXT_REWARD}
_FLAGS = frozenset({_FIRST, _LAST, _TERMINAL})
_RESERVED = frozenset({"next", "done", "terminated", "truncated", "episode", "is_init", "mask", "index", "collector"})
_WIDER = {np.dtype(old): np.dtype(new) for old, new in (("u2", "i4"), ("u4", "i8"), ("u8", "i8"))}
_COLUMN_AXES = 3
_SHOWN_MOST = 20
_TEXTS = {
    "rlds-last-step": "the last step of an episode has only an observation, that after the last action",
    "reward-at-last-step": "last steps have a reward that is not zero, and no action that led to it: it was left out "
    "(--last-step transition keeps such steps)",
    "last-step-kept": "the last step of an episode was kept as a transition: what follows it is not known",
    "end-without-flag": "records end without is_last: their last row was marked truncated, and what follows is not known",
    "flag-inside-episode": "steps inside a record have is_last or is_terminal: the record is the episode, and goes on",
    **NO_TRANSITION,
    "reward-missing": "episodes have no reward: it is 0",
    "not-finite": "values that are NaN or infinite were kept",
    "widened": "unsigned integers became wider signed ones, which torch can gather, and whole rewards floats",
    "python-floats": "numbers of Python became float32, as they are in the original records, and lost digits",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the steps: where it comes from and what becomes of it."""

    path: Key
    column: Column
    floats: bool = False
    """Images whose pixels are float32."""


class OpenXReader(EpisodeReader):
    """Opened files of a shard.

    Args:
        what: The dataset, for messages.
        files: The files by path.
        metadata: What is wanted, and where features.json is.

    Raises:
        ConversionError: If there is no episode, or the first one is broken; every fault that was found.
    """

    def __init__(self, what: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._what = what
        self._encoded = metadata.get("images") == "encoded"
        self._keeps_last = metadata.get("last") == "transition"
        self._raw = Records(files, metadata["features"]) if "features" in metadata else Archives(files)
        self._found: Counter[str] = Counter()
        self.decisions: list[Decision] = []
        self.steps = None
        self.metadata = dict(metadata.get("metadata", {}))
        everything: dict[str, Any] = {"first": 0, "count": None, "rows": None, "most": None}
        self._whole = [{"path": path, **everything} for path in sorted(files) if not path.endswith(".json")]
        first = next((raw for raw in self._raw.episodes(self._whole, None) if raw.steps), None)
        if first is None:
            raise ConversionError(what, [f"there is no episode in {', '.join(sorted(files))}"])
        self._fields = self._fields_of(first)
        self._facts = {key: np.asarray(value).dtype for key, value in first.whole.items() if not isinstance(value, str)}
        self.columns = [field.column for field in self._fields]
        self._wanted: set[Key] | None = None
        if keys := tuple(metadata.get("keys", ())):
            kept = Selection(keys=keys).kept_keys([column.key for column in self.columns])
            self._fields = [field for field in self._fields if field.column.key in kept]
            self._wanted = {field.path for field in self._fields} | {_LAST, _TERMINAL, _REWARD} | set(self._facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Hold nothing open: files are open while their episodes are read."""

    def _fields_of(self, first: RawEpisode) -> list[_Field]:
        problems: list[str] = []
        found: dict[Key, _Field] = {}
        whole: dict[Key, Any] = {path: [one] for path, one in first.whole.items() if isinstance(one, str)}
        for path, values in {**first.columns, **whole}.items():
            if path in {_LAST, _TERMINAL}:
                continue
            try:
                field = self._field(path, values)
            except ConversionError as error:
                problems += [f"{dotted(path)}: {problem}" for problem in error.problems]
                continue
            if field.column.key in found:
                problems.append(f"{dotted(path)} and {dotted(found[field.column.key].path)} are called the same")
            found[field.column.key] = field
        if not any(field.column.shared for field in found.values()) and not problems:
            problems.append("it has no observation")
        found.setdefault(NEXT_REWARD, _Field(_REWARD, Column(NEXT_REWARD, np.dtype(np.float32), (1,))))
        for key in (NEXT_TERMINATED, NEXT_TRUNCATED):
            found[key] = _Field(_LAST, Column(key, np.dtype(np.bool_), (1,)))
        if problems:
            raise ConversionError(self._what, [f"{first.where}: {problem}" for problem in problems])
        return list(found.values())

    def _field(self, path: Key, values: Any) -> _Field:
        key, shared = stored_key(path), path[0] == OBSERVATION[0]
        if isinstance(values, list):
            return _Field(path, Column(key, np.dtype(np.int32), (), shared=shared, text=True))
        if isinstance(values, EpisodeImages):
            return self._pictures(path, values, shared=shared)
        if path in _FLAGS:
            return _Field(path, Column(key, np.dtype(np.bool_), ()))
        dtype, shape = _WIDER.get(values.dtype.newbyteorder("="), values.dtype.newbyteorder("=")), values.shape[1:]
        if path == _REWARD:
            if shape not in {(), (1,)}:
                raise ConversionError("", [f"it has the shape {list(shape)}; expected one number a step"])
            return _Field(path, Column(key, dtype if dtype.kind == "f" else np.dtype(np.float32), (1,)))
        if dtype.kind not in "biuf" or 0 in shape:
            raise ConversionError("", [f"it is {dtype} {list(shape)}; expected numbers"])
        return _Field(path, Column(key, dtype, shape, shared=shared))

    def _pictures(self, path: Key, values: EpisodeImages, *, shared: bool) -> _Field:
        head = images.header(values.images[0])
        if any(said not in {None, size} for said, size in zip(values.declared, _pixels(head, values), strict=True)):
            problem = f"its first image is {list(head.shape)}; features.json says {_said(values.declared)}"
            raise ConversionError("", [problem])
        shape, dtype = _pixels(head, values), np.dtype(np.float32) if values.floats else head.dtype
        encoded = self._encoded and dtype == np.uint8
        column = Column(stored_key(path), _WIDER.get(dtype, dtype), shape, shared=shared, encoded=encoded)
        return _Field(path, column, values.floats)

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of a shard; by default all that the files have."""
        self._found = Counter()
        files = self._whole if part is None else part
        most, given = files[-1].get("most"), 0
        for raw in self._raw.episodes(files, self._wanted):
            try:
                for piece in self._pieces(raw):
                    given += not piece.continues
                    yield piece
            except ConversionError as error:
                raise ConversionError(self._what, [f"{raw.where}: {one}" for one in error.problems]) from None
            if given == most:
                break
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in _TEXTS.items() if self._found[rule]]
        self.decisions += [
            Decision(f"left-out {name}", f"{name} was left out: it holds {reason}")
            for name, reason in sorted(self._raw.left_out.items())
        ]

    def _pieces(self, raw: RawEpisode) -> Iterator[Episode]:
        columns, steps = raw.columns, raw.steps
        if not steps:
            self._found["no-transition"] += 1
            return
        marked = bool(self._flag(columns, _LAST, steps)[-1]) if _LAST in columns else True
        void = marked and not self._keeps_last
        rows = steps - void
        self._check_alike(raw, columns, steps, rows)
        self._count(raw, columns, steps, marked=marked)
        if not rows:
            self._found["no-transition"] += 1
            return
        terminated = np.zeros((rows, 1), np.bool_)
        terminated[-1] = self._flag(columns, _TERMINAL, steps)[-1] if _TERMINAL in columns else False
        truncated = np.zeros((rows, 1), np.bool_)
        truncated[-1] = not terminated[-1]
        ends = {NEXT_TERMINATED: terminated, NEXT_TRUNCATED: truncated}
        metadata: dict[str, Any] = {_fact(key): raw.whole[key] for key in self._facts}
        if raw.number is not None:
            metadata["source"] = np.int64(raw.number)
        block = max(1, _PIECE_BYTES // max(1, sum(self._bytes(field, columns) for field in self._fields)))
        for start in range(0, rows, block):
            stop = min(start + block, rows)
            given: dict[Key, Values] = {}
            states: dict[Key, Values] = {}
            for field in self._fields:
                key = field.column.key
                if key in ends:
                    given[key] = ends[key][start:stop]
                elif field.column.shared:
                    # The state after the last action is there only where the last step is void.
                    states[key] = self._values(field, columns[field.path], start, stop + (stop == rows and void))
                elif field.path in raw.whole:
                    given[key] = TextStates(np.zeros(stop - start, np.int32), (str(raw.whole[field.path]),))
                elif field.path in columns:
                    given[key] = self._values(field, columns[field.path], start, stop)
                else:
                    given[key] = np.zeros((stop - start, 1), field.column.dtype)
            yield Episode(given, states, stop < rows, metadata)

    @staticmethod
    def _bytes(field: _Field, columns: Mapping[Key, RawValues]) -> int:
        """Return about how many bytes of memory a step of a field takes."""
        values = columns.get(field.path)
        if field.column.encoded and isinstance(values, EpisodeImages):
            return sum(map(len, values.images)) // len(values.images)
        return field.column.step_bytes

    def _check_alike(self, raw: RawEpisode, columns: Mapping[Key, RawValues], steps: int, rows: int) -> None:
        """Check that an episode has what the first one had."""
        known = {field.path for field in self._fields} | {_LAST, _TERMINAL, _REWARD}
        more = [path for path in columns if path not in known]
        problems = [f"it has {dotted(path)}, which the first episode has not" for path in more]
        for field in self._fields:
            path, column = field.path, field.column
            if path in raw.whole or path in {_LAST, _REWARD}:
                if column.text and not isinstance(raw.whole.get(path), str):
                    problems.append(f"{dotted(path)} is no text")
            elif path not in columns:
                problems.append(f"it has no {dotted(path)}, as the first episode has")
            elif len(columns[path]) < (steps if column.shared else rows):
                problems.append(f"{dotted(path)} has {len(columns[path]):,} values for {steps:,} steps")
            else:
                problems += _misfits(field, columns[path])
        problems += [
            f"{dotted(key)} is {_kind(raw.whole.get(key))}; in the first episode {dtype}"
            for key, dtype in self._facts.items()
            if _kind(raw.whole.get(key)) != str(dtype)
        ]
        if _REWARD in columns and len(columns[_REWARD]) < rows:
            problems.append(f"reward has {len(columns[_REWARD]):,} values for {steps:,} steps")
        if problems:
            raise ConversionError(self._what, problems)

    def _count(self, raw: RawEpisode, columns: Mapping[Key, RawValues], steps: int, *, marked: bool) -> None:
        found = self._found
        found["rlds-last-step"] += marked and not self._keeps_last
        found["last-step-kept"] += marked and self._keeps_last
        found["end-without-flag"] += not marked
        found["reward-missing"] += _REWARD not in columns
        found["python-floats"] += raw.rounded
        for path in (_LAST, _TERMINAL):
            if path in columns:
                found["flag-inside-episode"] += int(self._flag(columns, path, steps)[:-1].sum())
        rewards = columns.get(_REWARD)
        if marked and not self._keeps_last and isinstance(rewards, np.ndarray) and len(rewards) == steps:
            found["reward-at-last-step"] += bool(np.any(rewards[-1]))

    def _flag(self, columns: Mapping[Key, RawValues], path: Key, steps: int) -> NDArray[np.bool_]:
        values = columns[path]
        if not isinstance(values, np.ndarray) or values.size != steps or not np.isin(values, (0, 1)).all():
            raise ConversionError(self._what, [f"{dotted(path)} is no flag at every step, 0 or 1"])
        return np.asarray(values.reshape(-1) == 1)

    def _values(self, field: _Field, values: RawValues, start: int, stop: int) -> Values:
        column = field.column
        if isinstance(values, list):
            return TextStates.of(values[start:stop])
        if isinstance(values, EpisodeImages):
            return self._pixels(field, values, start, stop)
        part = values[start:stop]
        if field.path in {_FIRST, _REWARD}:
            part = part.reshape(len(part), *column.shape)
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            self._found["not-finite"] += int((~np.isfinite(part)).sum())
        if part.dtype == column.dtype:
            return part
        if part.dtype.kind in "iu" and column.dtype.kind == "i" and part.max(initial=0) > np.iinfo(column.dtype).max:
            raise ConversionError(self._what, [f"{dotted(field.path)} has {part.max()}; expected {column.dtype}"])
        self._found["widened"] += len(part) * (column.dtype.kind != "b")
        return part.astype(column.dtype)

    def _pixels(self, field: _Field, values: EpisodeImages, start: int, stop: int) -> Values:
        column, name = field.column, dotted(field.path)
        wanted = values.images[start:stop]
        if column.encoded:
            self._check_members(wanted, column, start)
            return EncodedImages(wanted)
        rows, columns, channels = column.shape
        narrow = {np.dtype(np.int32): np.dtype(np.uint16)}.get(column.dtype, np.dtype(np.uint8))
        out: NDArray[Any] = np.empty((len(wanted), rows, columns, 4 if field.floats else channels), narrow)
        try:
            images.decode(wanted, out, name, first=start)
        except ConversionError as error:
            raise ConversionError(self._what, [f"{name}: {problem}" for problem in error.problems]) from None
        if field.floats:
            return out.view("<f4").astype(column.dtype, copy=False)
        self._found["widened"] += len(out) * (column.dtype != narrow)
        return out.astype(column.dtype, copy=False)

    def _check_members(self, wanted: Sequence[memoryview | bytes], column: Column, start: int) -> None:
        """Check that pictures that stay encoded are of the shape that all have."""
        problems = []
        for number, image in enumerate(wanted, start):
            try:
                found = images.header(image)
                if (found.shape, found.dtype) != (column.shape, column.dtype):
                    problem = (
                        f"is {list(found.shape)} of {found.dtype}; expected {list(column.shape)} of {column.dtype}"
                    )
                    problems.append(f"{dotted(column.key)}: image {number:,} {problem}")
            except ConversionError as error:
                problems += [f"{dotted(column.key)}: image {number:,} {problem}" for problem in error.problems]
        if problems:
            raise ConversionError(self._what, problems[:_SHOWN_MOST])


def _kind(value: str | np.generic | None) -> str:
    return "not there" if value is None else "text" if isinstance(value, str) else str(value.dtype)


def _fact(path: Key) -> str:
    """Return what a number of an episode is called in the table, whose own names are not the upstream's to give."""
    return f"{path[0]}_" if path[0] in (EPISODE_DTYPE.names or ()) and len(path) == 1 else dotted(path)


def stored_key(path: Key) -> Key:
    """Return what a field is called: names of TED are not the upstream's to give, and dots part names."""
    root, *rest = (name.replace(".", "_") or "_" for name in path)
    return _NAMES.get(path, (f"{root}_" if root in _RESERVED else root, *rest))


def _pixels(head: images.Header, values: EpisodeImages) -> tuple[int, ...]:
    return (*head.shape[:2], 1) if values.floats else head.shape


def _said(declared: Sequence[int | None]) -> list[int | str]:
    return ["any" if size is None else size for size in declared]


def _misfits(field: _Field, values: RawValues) -> Iterator[str]:
    """Say in what a column of an episode differs from that of the first one; the pixels are looked at when decoded."""
    column, path = field.column, dotted(field.path)
    kind = "text" if isinstance(values, list) else "images" if isinstance(values, EpisodeImages) else "numbers"
    wanted = (
        "text" if column.text else "images" if len(column.shape) == _COLUMN_AXES and kind == "images" else "numbers"
    )
    if kind != wanted:
        yield f"{path} holds {kind}; in the first episode {wanted}"
    elif isinstance(values, np.ndarray) and field.path not in _FLAGS:
        dtype = values.dtype.newbyteorder("=")
        if values.shape[1:] != column.shape or _WIDER.get(dtype, dtype) != column.dtype:
            yield f"{path} is {dtype} {list(values.shape[1:])}; in the first episode {column.dtype} {list(column.shape)}"
