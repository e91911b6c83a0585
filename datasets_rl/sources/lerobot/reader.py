"""Reader of LeRobot's episodes.

row           0     1     2    ...   T-1
observation   o_0   o_1   o_2  ...   o_T-1       the state after the last action is not stored
action        a_0   a_1   a_2  ...   a_T-1
next.reward   r_0   r_1   r_2  ...   r_T-1       r_t is the reward for a_t, as next.done and next.success are
video         f_0   f_1   f_2  ...   f_T-1       the frames at the times from_timestamp + timestamp

Nothing in the files states which action the reward of a row is for, see `_TEXTS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.images.base import Form
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.parquet import TableColumn, TableFile
from datasets_rl.read.ragged import Ragged
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, Decision, EpisodeReader
from datasets_rl.sources.lerobot.depth_images import read_depths
from datasets_rl.sources.lerobot.layout import DONE, ENDS, NO_FILES, SUCCESS, TASK, Feature, read_info
from datasets_rl.sources.lerobot.videos import EpisodeFrames, OpenVideos, find_packets, harmless_faults
from datasets_rl.sources.values import WIDENED, as_column, checked_images, count_not_finite, pixel_spec
from datasets_rl.ted.episode import Episode, TextStates, Values
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted_name
from datasets_rl.ted.rewards import reward_dtype

_CHUNK_BYTES = 16 << 20
_EPISODE_BYTES = 256 << 20
"""Frames of an episode, in their stored form, that are decoded before the first row is read. Longer episodes are decoded
twice."""
_ROWS_MAX = 1 << 16
_ROWS_MIN = 16
_ROW = "episode_index"
_FRAME = "frame_index"
_STATISTICS = frozenset({"max", "mean", "min", "std"})
_TEXTS = {
    "lerobot-same-row": "the observation, the action, the reward and the flags of a row belong to one step: the reward "
    "is the reward for the action. The files do not state this: programs that record write rewards so, and ports such as "
    "PushT's, from data with rewards of states, store the reward of the state in the next row, and for the last action the "
    "reward of the state in the same row, as the next state is unknown",
    "lerobot-final-unknown": "the state after the last action of an episode is not stored and is masked",
    "done-is-terminated": "the last row of episodes has next.success or, without this column, next.done: the episodes are "
    "terminated",
    "done-is-truncated": "the last row of episodes has next.done without next.success: the episodes are truncated",
    "end-without-flag": "episodes end without a flag: the last row was marked truncated",
    "flag-inside-episode": "rows inside an episode have an end flag: the episode was not split there",
    **NO_TRANSITION,
    "reward-missing": "episodes have no next.reward, which was set to 0",
    **NOT_FINITE,
    "cast": "values have another dtype than meta/info.json states, and were converted",
    "widened": "unsigned integers of 16 to 64 bits were converted to signed integers, which torch can gather",
    "rows-elsewhere": "rows of episodes are in another file than meta/episodes states",
    "file-elsewhere": "files are in another folder than meta/info.json states, and have the stated names",
    "order-of-rows": "rows have no frame_index: the order of the rows is the order of the steps, and the timestamps rise",
    "late-times": "the timestamps of episodes begin late, and the video has one frame for each row: the frames were "
    "assigned to the rows in order",
}
_WIDER = {**WIDENED, np.dtype(np.uint64): np.dtype(np.int64)}


@dataclass(frozen=True, slots=True)
class _EpisodeRows:
    """The rows of an episode in a data file."""

    number: int
    path: str
    start: int
    stop: int
    seconds: NDArray[np.float64]
    """Time of each row since the beginning of the episode, [T]."""
    videos: Mapping[str, Mapping[str, Any]]
    """The place of the episode in the video of each camera."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of a data file that say where the episodes are."""

    episodes: Mapping[int, tuple[int, int]]
    """First row, and the row after the last row, of each episode."""
    frames: NDArray[np.int64] | None
    """The number of each row in the episode, or None without a column of the numbers."""
    seconds: NDArray[np.float64]


class LeRobotReader(EpisodeReader):
    """Reader of the files of a shard of a LeRobot dataset.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        metadata: `Listing.params`: the paths of the tables in meta, and the options.

    Raises:
        ConversionError: If the tables in meta are invalid. The error names every problem.
    """

    def __init__(self, dataset_id: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._files = files
        info = read_info(files[metadata["info"]].read_text(encoding="utf-8"), dataset_id)
        self._info = info.without(metadata["absent"], NO_FILES)
        self.left_out = {name: f"it has {reason}" for name, reason in self._info.left_out.items()}
        self._quality: int = metadata["quality"]
        self._images: str = metadata["images"]
        self._tasks = self._read_tasks([files[path] for path in metadata["tasks"]])
        self._size = metadata["size"]
        self._mismatches: dict[str, str] = {}
        self._harmless: dict[str, str] = {}
        self._stats = [files[path] for path in metadata["stats"]]
        features = self._info.features.values()
        columns = [self._column_of(feature) for feature in features]
        columns += [Column(TASK, np.dtype(np.int32), (), text=True)] if self._tasks is not None else []
        columns += END_COLUMNS
        if NEXT_REWARD not in {column.key for column in columns}:
            columns.append(Column(NEXT_REWARD, np.dtype(np.float32), (1,)))
        self.columns = columns
        self._by_key = {column.key: column for column in columns}
        shape = f"{self._size[0]} x {self._size[1]} pixels and " if self._size else ""
        self.rules = {
            **_TEXTS,
            "video-to-jpeg": f"frames of videos became JPEG images of {shape}quality {self._quality}, with a loss",
            "video-resized": f"frames of videos were resized to {shape.removesuffix(' and ')}",
        }

    @cached_property
    def _features(self) -> list[Feature]:
        return [feature for feature in self._info.features.values() if feature.key in self.kept]

    @cached_property
    def _cameras(self) -> list[Feature]:
        return [feature for feature in self._features if feature.kind == "video"]

    @property
    def _has_task(self) -> bool:
        return TASK in self.kept and self._tasks is not None

    @property
    @override
    def decisions(self) -> Sequence[Decision]:
        """Decisions of the reader, with a decision for each feature, and for each episode, that was left out."""
        depths = [feature for feature in self._features if feature.depth is not None]
        return [
            *super().decisions,
            *(_fact(f"depth {one.name}", f"{one.name}: {one.depth.rule}") for one in depths if one.depth),
            *(_names_decision(feature) for feature in self._features if feature.misfit_names),
            *(Decision(rule, text) for rule, text in (self._harmless | self._mismatches).items()),
        ]

    @override
    def specs(self) -> Mapping[str, Any]:
        pixels = [column for column in self.columns if column.dtype == np.uint8 and len(column.shape) == 3]
        return {dotted_name(column.key): pixel_spec(column.shape) for column in pixels}

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of a shard, in the order of the rows."""
        self.counts.clear()
        self._mismatches.clear()
        self._harmless.clear()
        described = [one for one in part if one["rows"]]
        self.counts["no-transition"] += len(part) - len(described)
        self.counts["file-elsewhere"] += sum(one.get("elsewhere", 0) for one in described)
        paths = [*dict.fromkeys(one["data"] for one in described)]
        tables: dict[str, _Table] = {}
        found = [self._find_rows(one, paths, tables) for one in described]
        videos = OpenVideos(self._files)
        for path in dict.fromkeys(rows.path for rows in found):
            ordered = sorted((rows for rows in found if rows.path == path), key=lambda rows: rows.start)
            with TableFile(self._files[path]) as file:
                for run in _consecutive(ordered):
                    yield from self._read_run(file, run, videos)

    @cached_property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]  # read by the first shard alone
        """The robot, the frame rate, the names of elements, and the statistics of features that the upstream states."""
        described = self._info.described
        found: dict[str, Any] = {"codebase_version": f"v{self._info.version}", "fps": self._info.fps}
        if isinstance(described.get("robot_type"), str):
            found["robot_type"] = described["robot_type"]
        features = self._info.features.values()
        found["names"] = {dotted_name(feature.key): [*feature.names] for feature in features if feature.names}
        depths = {dotted_name(feature.key): feature.depth for feature in features if feature.depth is not None}
        if depths:
            found["units"] = {name: depth.unit for name, depth in depths.items()}
            found["depth_laws"] = {name: depth.law for name, depth in depths.items() if depth.has_codes}
        for path in self._stats:
            found |= {f"statistics/{name}": values for name, values in self._read_statistics(path).items()}
        return found

    def _read_statistics(self, path: Path) -> dict[str, NDArray[np.float64]]:
        """Return the maximum, mean, minimum and standard deviation of features, [4, k] each, by name."""
        try:
            text = path.read_text(encoding="utf-8")
            whole = [json.loads(text)] if path.suffix == ".json" else []
            stats = whole or [json.loads(line)["stats"] for line in text.splitlines() if line.strip()]
            return {
                name: _pooled_statistics([one[name] for one in stats])
                for name in (stats[0] if stats else ())
                if all(one.get(name, {}).keys() >= _STATISTICS for one in stats)
            }
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            problem = f"meta/{path.name} has no statistics of features: {type(error).__name__} {error}"
            raise ConversionError(self._dataset_id, [problem]) from error

    def _read_tasks(self, paths: Sequence[Path]) -> dict[int, str] | None:
        """Return the tasks by number, or None if the dataset has no tasks."""
        if not paths:
            return None
        (path,) = paths
        try:
            if self._info.many:
                with TableFile(path) as file:
                    texts = next(name for name in ("__index_level_0__", "task") if name in file.columns)
                    blocks: list[dict[str, Any]] = [*file.blocks(["task_index", texts], rows=_ROWS_MAX)]
                pairs = [pair for one in blocks for pair in zip(one["task_index"], one[texts], strict=True)]
            else:
                lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
                pairs = [(line["task_index"], line["task"]) for line in lines]
            return {int(number): str(text) for number, text in pairs}
        except (ValueError, TypeError, KeyError, StopIteration, RecursionError) as error:
            problem = f"{path.name} does not list tasks: {type(error).__name__} {error}"
            raise ConversionError(self._dataset_id, [problem]) from error

    def _column_of(self, feature: Feature) -> Column:
        shared = feature.key[0] == OBSERVATION[0]
        if feature.kind == "text":
            return Column(feature.key, np.dtype(np.int32), (), shared=shared, text=True)
        dtype = np.dtype(feature.dtype)
        if feature.key == NEXT_REWARD:
            return Column(NEXT_REWARD, reward_dtype(dtype), (1,))
        shape = feature.shape
        if feature.depth is not None:
            return Column(feature.key, dtype, shape, shared=shared)
        if feature.kind == "video" and self._size is not None:
            shape = (*self._size, shape[2])
        form: Form = "encoded" if feature.kind == "image" else "raw"
        if feature.kind == "video" and self._images in {"", "encoded", "video"}:
            form = "video" if self._images == "video" else "encoded"
        return Column(feature.key, _WIDER.get(dtype, dtype), shape, shared=shared, form=form)

    def _table_of(self, path: str) -> _Table:
        """Read the columns of a data file that say where the episodes are."""
        with TableFile(self._files[path]) as file:
            is_numbered = _FRAME in file.columns or _FRAME in self._info.features
            names = [_ROW, "timestamp", *[_FRAME] * is_numbered]
            blocks = [*file.blocks(names, rows=_ROWS_MAX)]
        if not blocks:
            return _Table({}, None, np.empty(0))
        numbers, seconds, *rest = (np.concatenate([_numbers(block[name]) for block in blocks]) for name in names)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        episodes: dict[int, tuple[int, int]] = {}
        for start, stop in pairwise(cuts):
            if (number := int(numbers[start])) in episodes:
                raise self.error(
                    path.rpartition("/")[2],
                    [f"the rows of episode {number} are not consecutive: they begin again at {start:,}"],
                )
            episodes[number] = start, stop
        frames = rest[0].astype(np.int64) if rest else None
        return _Table(episodes, frames, seconds.astype(np.float64))

    def _find_rows(self, episode: Mapping[str, Any], paths: Sequence[str], tables: dict[str, _Table]) -> _EpisodeRows:
        """Return the rows of an episode by number, in the stated file or in another file of `paths`."""
        number, stated = episode["number"], episode["data"]
        for path in dict.fromkeys([stated, *paths]):
            if path not in tables:
                tables[path] = self._table_of(path)
            if number in tables[path].episodes:
                self.counts["rows-elsewhere"] += path != stated
                start, stop = tables[path].episodes[number]
                if stop - start != episode["rows"]:
                    problem = (
                        f"episode {number} has {stop - start:,} rows, but meta/episodes states {episode['rows']:,}"
                    )
                    raise self.error(path.rpartition("/")[2], [problem])
                seconds, frames = tables[path].seconds[start:stop], tables[path].frames
                if frames is not None and not np.array_equal(frames[start:stop], np.arange(stop - start)):
                    raise self.error(
                        path.rpartition("/")[2],
                        [f"frame_index of episode {number} is not 0 to {stop - start - 1:,} in order"],
                    )
                if frames is None and not (np.diff(seconds) > 0).all():
                    row = int(np.argmin(np.diff(seconds) > 0)) + 1
                    problem = (
                        f"episode {number} has no frame_index, and the order of the rows is not known: the timestamp of "
                        f"row {row:,} is {seconds[row]:.4f} s, after {seconds[row - 1]:.4f} s"
                    )
                    raise self.error(path.rpartition("/")[2], [problem])
                self.counts["order-of-rows"] += (stop - start) * (frames is None)
                return _EpisodeRows(number, path, start, stop, seconds, episode["videos"])
        there = tables[stated].episodes
        present = f"{min(there)} to {max(there)}" if there else "none"
        raise self.error(
            stated.rpartition("/")[2],
            [f"it has no row of episode {number}, which meta/episodes states, but {present}"],
        )

    def _read_run(self, file: TableFile, run: Sequence[_EpisodeRows], videos: OpenVideos) -> Iterator[Episode]:
        """Yield episodes with rows that follow each other in a file, in pieces of a few megabytes."""
        columns = [one.name + "/bytes" * (one.kind == "image") for one in self._features if one.kind != "video"]
        names = [*dict.fromkeys([*columns, *["task_index"] * self._has_task, *self._info.flags, _ROW])]
        step_bytes = 8 * len(names) + sum(one.pixels for one in self._features if not self._by_key[one.key].video)
        most = max(_ROWS_MIN, min(_CHUNK_BYTES // step_bytes, _ROWS_MAX))
        remaining = iter(run)
        rows = next(remaining)
        at = rows.start
        frames: Mapping[str, EpisodeFrames] | None = None
        for block in file.blocks(names, rows=most, start=at, stop=run[-1].stop):
            start, end = at, at + len(_numbers(block[_ROW]))
            while at < end:
                if at == rows.start:
                    frames = self._open_frames(rows, videos)
                last = min(end, rows.stop)
                if frames is not None:
                    values = {name: _sliced(column, at - start, last - start) for name, column in block.items()}
                    with self.part(f"{rows.path.rpartition('/')[2]}: episode {rows.number}"):
                        piece = self._piece(rows, values, frames, at - rows.start, last - rows.start)
                    yield piece
                at = last
                if at == rows.stop:
                    rows = next(remaining, rows)

    def _open_frames(self, rows: _EpisodeRows, videos: OpenVideos) -> dict[str, EpisodeFrames] | None:
        """Return the frames of each camera, or None if a video lacks the frames of the episode, which a decision names."""
        frames: dict[str, EpisodeFrames] = {}
        late = False
        budget = _EPISODE_BYTES // max(len(self._cameras), 1)
        for camera in self._cameras:
            place, column = rows.videos[camera.name], self._by_key[camera.key]
            try:
                video = videos.open(camera.name, place["path"])
                packets, is_late = find_packets(video, camera, place, rows.seconds, self._info.fps)
                late |= is_late
                frames[camera.name] = EpisodeFrames(video, packets, column, camera.depth, self._quality, budget)
            except ConversionError as error:
                where = f"{place['path'].rpartition('/')[2]} of {camera.name}"
                text = f"episode {rows.number} was left out: {where}: {error.problems[0]}"
                self._mismatches[f"video-of-episode-{rows.number}"] = text
                return None
            self._harmless |= harmless_faults(video, camera, place, packets)
        self.counts["late-times"] += late
        for camera in self._cameras:
            column = self._by_key[camera.key]
            self.counts["video-to-jpeg"] += len(rows.seconds) * column.encoded
            self.counts["video-resized"] += len(rows.seconds) * (self._size is not None and not column.encoded)
        return frames

    def _piece(
        self,
        rows: _EpisodeRows,
        columns: Mapping[str, TableColumn],
        frames: Mapping[str, EpisodeFrames],
        start: int,
        stop: int,
    ) -> Episode:
        """Return the rows from `start` to `stop` of an episode."""
        steps: dict[Key, Values] = {}
        states: dict[Key, Values] = {}
        for feature in self._features:
            column = self._by_key[feature.key]
            if feature.kind == "video":
                values = frames[feature.name].take(start, stop)
            elif feature.depth is not None:
                values = read_depths(columns[f"{feature.name}/bytes"], column, start)
            elif feature.kind == "image":
                values = checked_images(columns[f"{feature.name}/bytes"], column, start)
            else:
                values = self._convert(column, feature.name, columns[feature.name])
            (states if column.shared else steps)[feature.key] = values
        if self._has_task:
            steps[TASK] = self._task_texts(_numbers(columns["task_index"]))
        if NEXT_REWARD not in steps:
            steps[NEXT_REWARD] = np.zeros((stop - start, 1), self._by_key[NEXT_REWARD].dtype)
        continues = stop < len(rows.seconds)
        terminated, truncated = (np.zeros((stop - start, 1), np.bool_) for _ in range(2))
        done = np.zeros(stop - start, np.bool_)
        for name in ENDS:
            done |= _flags(columns, name, stop - start)
        if not continues:
            is_terminal = self._is_terminal(
                {name: bool(_flags(columns, name, stop - start)[-1]) for name in self._info.flags}
            )
            terminated[-1], truncated[-1] = is_terminal, not is_terminal
            self.counts["end-without-flag"] += not (is_terminal or done[-1])
        self.counts["flag-inside-episode"] += int(np.count_nonzero(done[: None if continues else -1]))
        steps[NEXT_TERMINATED], steps[NEXT_TRUNCATED] = terminated, truncated
        metadata: dict[str, Any] = {"source": np.int64(rows.number)}
        return Episode(steps, states, continues, metadata)

    def _is_terminal(self, last: Mapping[str, bool]) -> bool:
        """Return whether an episode is terminated and not truncated, by the flags of the last row."""
        for rule in ("lerobot-same-row", "lerobot-final-unknown"):
            self.counts[rule] += 1
        self.counts["reward-missing"] += "next.reward" not in self._info.features
        if "next.terminated" in last:
            return last["next.terminated"]
        is_terminal = last.get(SUCCESS, last.get(DONE, False))
        self.counts["done-is-terminated"] += is_terminal
        self.counts["done-is-truncated"] += last.get(DONE, False) and not is_terminal
        return is_terminal

    def _convert(self, column: Column, name: str, values: TableColumn) -> Values:
        if column.text:
            texts = [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
            if not isinstance(values, list) or len(texts) < len(values):
                raise ConversionError("", [f"{name} is not text, which meta/info.json states"])
            return TextStates.from_texts(texts)
        array = _numbers(values, name)
        if array[:1].size != np.zeros((1, *column.shape), np.bool_).size:
            problem = f"{name} has {array[:1].size} values in a row, but meta/info.json states {list(column.shape)}"
            raise ConversionError("", [problem])
        stated = np.dtype(self._info.features[name].dtype)
        if array.dtype != stated and not (np.can_cast(array.dtype, stated, "same_kind") or stated.kind == "f"):
            raise ConversionError("", [f"{name} is {array.dtype}, but meta/info.json states {stated}"])
        self.counts["cast"] += len(array) * (array.dtype != stated)
        self.counts["widened"] += len(array) * (stated in _WIDER)
        self.counts["not-finite"] += count_not_finite(array)
        return as_column(array, column)

    def _task_texts(self, numbers: NDArray[np.int64]) -> TextStates:
        tasks = self._tasks or {}
        used, codes = np.unique(numbers, return_inverse=True)
        if missing := [number for number in used.tolist() if number not in tasks]:
            raise ConversionError("", [f"task_index is {missing[0]}, which the list of tasks lacks"])
        return TextStates(codes.astype(np.int32), tuple(tasks[number] for number in used.tolist()))


def _fact(rule: str, text: str) -> Decision:
    """Return a decision that follows from meta/info.json, which all shards share."""
    return Decision(rule, text, of_dataset=True)


def _names_decision(feature: Feature) -> Decision:
    elements = math.prod(feature.shape)
    text = f"{feature.name}: the names {feature.misfit_names} were left out, because they do not name each of its"
    return _fact(f"names {feature.name}", f"{text} {elements} {'element' if elements == 1 else 'elements'}")


def _pooled_statistics(parts: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the maximum, mean, minimum and standard deviation, [4, k], of the rows of episodes, from those of each episode."""
    high, mean, low, std = (
        np.stack([np.asarray(part[name], np.float64).reshape(-1) for part in parts])
        for name in ("max", "mean", "min", "std")
    )
    counts = np.asarray([np.ravel(part.get("count", 1))[0] for part in parts], np.float64)
    whole = np.average(mean, 0, counts)
    variance = np.average(std**2 + (mean - whole) ** 2, 0, counts)
    return np.stack([high.max(0), whole, low.min(0), np.sqrt(variance)])


def _consecutive(found: Sequence[_EpisodeRows]) -> Iterator[list[_EpisodeRows]]:
    """Yield runs of episodes, ascending by rows, without other rows between the episodes."""
    run: list[_EpisodeRows] = []
    for rows in found:
        if run and run[-1].stop != rows.start:
            yield run
            run = []
        run.append(rows)
    yield run


def _flags(columns: Mapping[str, TableColumn], name: str, rows: int) -> NDArray[np.bool_]:
    """Return a flag of rows, [T], which is False if there is no such flag."""
    if name not in columns:
        return np.zeros(rows, np.bool_)
    return np.asarray(_numbers(columns[name], name).reshape(rows) != 0)


def _numbers(values: TableColumn, name: str = "") -> NDArray[Any]:
    if isinstance(values, Ragged):
        return values.stacked(name)
    if isinstance(values, list):
        raise ConversionError("", [f"{name} has text or bytes, expected numbers"])
    return values


def _sliced(values: TableColumn, start: int, stop: int) -> TableColumn:
    if isinstance(values, Ragged):
        return values.stacked("")[start:stop]
    return values[start:stop]
