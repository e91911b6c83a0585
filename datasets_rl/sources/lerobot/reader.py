"""Reader of LeRobot's episodes.

row           0     1     2    ...   T-1
observation   o_0   o_1   o_2  ...   o_T-1       the state after the last action is not stored
action        a_0   a_1   a_2  ...   a_T-1
next.reward   r_0   r_1   r_2  ...   r_T-1       r_t is the reward for a_t; next.done and next.success are alike
video         f_0   f_1   f_2  ...   f_T-1       the frames at the times from_timestamp + timestamp

Nothing in the files states which action the reward of a row is for, see `_TEXTS`.
"""

from __future__ import annotations

import json
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
from datasets_rl.format.schema import END_COLUMNS, Column, Form
from datasets_rl.format.video_images import VideoFrames
from datasets_rl.read import images
from datasets_rl.read.parquet import TableColumn, TableFile
from datasets_rl.read.ragged import Ragged
from datasets_rl.read.streams import first_problems
from datasets_rl.read.video import Video, decode, decode_codes, decode_pixels, decode_to_jpeg, index_video
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, Decision, EpisodeReader, Selection
from datasets_rl.sources.lerobot.depth_images import read_depths
from datasets_rl.sources.lerobot.layout import DONE, ENDS, SUCCESS, TASK, Depth, Feature, keys_of, read_info
from datasets_rl.sources.values import WIDENED, count_not_finite
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates, Values
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted_name
from datasets_rl.ted.rewards import reward_dtype

_CHUNK_BYTES = 16 << 20
_EPISODE_BYTES = 256 << 20
"""Frames of an episode, as they are stored, that are decoded before its first row is read; longer ones are decoded twice."""
_JPEG = 0.15  # bytes per byte of pixels
_ROWS_MAX = 1 << 16
_ROWS_MIN = 16
_SECONDS = 1e-4  # tolerance of the time of a frame, that of LeRobot
_INDICES = ("episode_index", "frame_index", "timestamp")
_STATISTICS = frozenset({"max", "mean", "min", "std"})
_TEXTS = {
    "lerobot-same-row": "the observation, the action, the reward and the flags of a row are those of one step: the reward "
    "is the one for the action. The files do not state it: programs that record write it so, and ports such as that of "
    "PushT, whose original data has rewards of states, store that of the state in the next row; for the last action, that "
    "of the state in its row, as the next one is unknown",
    "lerobot-final-unknown": "the state after the last action of an episode is not stored: it is masked",
    "done-is-terminated": "the last row of episodes has next.success or, without this column, next.done: they are "
    "terminated",
    "done-is-truncated": "the last row of episodes has next.done without next.success: they are truncated",
    "end-without-flag": "episodes end without a flag: their last row was marked truncated",
    "flag-inside-episode": "rows inside an episode have an end flag: the episode was not split there",
    **NO_TRANSITION,
    "reward-missing": "episodes have no next.reward: it was set to 0",
    **NOT_FINITE,
    "cast": "values have another dtype than meta/info.json states, and were converted to it",
    "widened": "unsigned integers of 16 to 64 bits were converted to signed integers, which torch can gather",
    "rows-elsewhere": "rows of episodes are in another file than meta/episodes states",
}
_WIDER = {**WIDENED, np.dtype(np.uint64): np.dtype(np.int64)}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an episode in a file."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of a data file that say where its episodes are."""

    episodes: Mapping[int, tuple[int, int]]
    """First row and the row after the last one of each episode."""
    frames: NDArray[np.int64]
    seconds: NDArray[np.float64]


class LeRobotReader(EpisodeReader):
    """Reader of the files of a shard of a LeRobot dataset.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        metadata: `Listing.params`: the paths of the tables in meta, and the selection.

    Raises:
        ConversionError: If the tables in meta are invalid; the error names every problem.
    """

    def __init__(self, dataset_id: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._files = files
        self._info = read_info(files[metadata["info"]].read_text(encoding="utf-8"), dataset_id)
        self._quality: int = metadata["quality"]
        self._images: str = metadata["images"]
        self._tasks = self._read_tasks([files[path] for path in metadata["tasks"]])
        self._size = metadata["size"]
        self._mismatches: dict[str, str] = {}
        self._video_notes: dict[str, str] = {}
        self._stats = [files[path] for path in metadata["stats"]]
        features = self._info.features.values()
        columns = [self._column_of(feature) for feature in features]
        columns += [Column(TASK, np.dtype(np.int32), (), text=True)] if self._tasks is not None else []
        columns += END_COLUMNS
        if NEXT_REWARD not in {column.key for column in columns}:
            columns.append(Column(NEXT_REWARD, np.dtype(np.float32), (1,)))
        self.columns = columns
        self._by_key = {column.key: column for column in columns}
        keys = Selection(keys=tuple(metadata["keys"])).kept_keys(keys_of(self._info))
        self._features = [feature for feature in features if feature.key in keys]
        self._cameras = [feature for feature in self._features if feature.kind == "video"]
        self._has_task = TASK in keys and self._tasks is not None
        shape = f"{self._size[0]} x {self._size[1]} pixels and " if self._size else ""
        self.rules = {
            **_TEXTS,
            "video-to-jpeg": f"frames of videos became JPEG images of {shape}quality {self._quality}, with a loss",
            "video-resized": f"frames of videos were resized to {shape.removesuffix(' and ')}",
        }

    @property
    @override
    def decisions(self) -> Sequence[Decision]:
        """Decisions of the reader, one for each feature, and one for each episode, that was left out."""
        left_out = self._info.left_out.items()
        depths = [feature for feature in self._features if feature.depth is not None]
        return [
            *super().decisions,
            *(Decision(f"depth {one.name}", f"{one.name}: {one.depth.rule}") for one in depths if one.depth),
            *(Decision(f"left-out {name}", f"{name} was left out: it has {reason}") for name, reason in left_out),
            *(Decision(rule, text) for rule, text in (self._video_notes | self._mismatches).items()),
        ]

    @override
    def specs(self) -> Mapping[str, Any]:
        pixels = [column for column in self.columns if column.dtype == np.uint8 and len(column.shape) == 3]
        bounds = {"kind": "bounded", "dtype": "uint8", "low": 0, "high": 255}
        return {dotted_name(column.key): {**bounds, "shape": list(column.shape)} for column in pixels}

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of a shard, in the order of their rows."""
        self.counts.clear()
        self._mismatches.clear()
        self._video_notes.clear()
        described: Sequence[Mapping[str, Any]] = part
        tables: dict[str, _Table] = {}
        full = [one for one in described if one["rows"]]
        self.counts["no-transition"] += len(described) - len(full)
        rows = {one["number"]: self._find_rows(one, full, tables) for one in full}
        by_path: dict[str, list[Mapping[str, Any]]] = {}
        for one in full:
            by_path.setdefault(rows[one["number"]].path, []).append(one)
        videos = _Videos(self._files)
        for path, episodes in by_path.items():
            ordered = sorted(episodes, key=lambda one: rows[one["number"]].start)
            with TableFile(self._files[path]) as file:
                for group in _consecutive(ordered, rows):
                    yield from self._read_group(file, group, rows, tables[path].seconds, videos)

    @cached_property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]  # read by the first shard alone
        """The robot, the frame rate, the names of elements, and the statistics of features that the upstream states."""
        described = self._info.described
        found: dict[str, Any] = {"codebase_version": f"v{self._info.version}", "fps": self._info.fps}
        if isinstance(described.get("robot_type"), str):
            found["robot_type"] = described["robot_type"]
        found["names"] = {
            dotted_name(feature.key): names
            for name, feature in self._info.features.items()
            if feature.kind == "numbers" and (names := _element_names(described["features"][name]))
        }
        if units := {
            dotted_name(feature.key): feature.depth.unit
            for feature in self._info.features.values()
            if feature.depth is not None
        }:
            found["units"] = units
        for path in self._stats:
            try:
                text = path.read_text(encoding="utf-8")
                whole = [json.loads(text)] if path.suffix == ".json" else []
                stats = whole or [json.loads(line)["stats"] for line in text.splitlines() if line.strip()]
                for name in stats[0] if stats else ():
                    if all(one.get(name, {}).keys() >= _STATISTICS for one in stats):
                        found[f"statistics/{name}"] = _pooled_statistics([one[name] for one in stats])
            except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                problem = f"meta/{path.name} has no statistics of features: {type(error).__name__} {error}"
                raise ConversionError(self._dataset_id, [problem]) from error
        return found

    def _read_tasks(self, paths: Sequence[Path]) -> dict[int, str] | None:
        """Return the tasks by number; None if the dataset has none."""
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
        """Read the columns of a data file that say where its episodes are."""
        with TableFile(self._files[path]) as file:
            blocks = [*file.blocks(_INDICES, rows=_ROWS_MAX)]
        if not blocks:
            return _Table({}, np.empty(0, np.int64), np.empty(0))
        numbers, frames, seconds = (np.concatenate([_numbers(block[name]) for block in blocks]) for name in _INDICES)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        episodes: dict[int, tuple[int, int]] = {}
        for start, stop in pairwise(cuts):
            if (number := int(numbers[start])) in episodes:
                raise self._error(
                    path, [f"the rows of episode {number} are not consecutive: they begin again at {start:,}"]
                )
            episodes[number] = start, stop
        return _Table(episodes, frames.astype(np.int64), seconds.astype(np.float64))

    def _find_rows(
        self, episode: Mapping[str, Any], described: Sequence[Mapping[str, Any]], tables: dict[str, _Table]
    ) -> _Rows:
        """Return the rows of an episode by its number, in the stated file or in another one of the shard."""
        number, stated = episode["number"], episode["data"]
        for path in dict.fromkeys([stated, *(one["data"] for one in described)]):
            if path not in tables:
                tables[path] = self._table_of(path)
            if number in tables[path].episodes:
                self.counts["rows-elsewhere"] += path != stated
                start, stop = tables[path].episodes[number]
                if stop - start != episode["rows"]:
                    problem = f"episode {number} has {stop - start:,} rows; meta/episodes states {episode['rows']:,}"
                    raise self._error(path, [problem])
                if not np.array_equal(tables[path].frames[start:stop], np.arange(stop - start)):
                    raise self._error(
                        path, [f"frame_index of episode {number} is not 0 to {stop - start - 1:,} in order"]
                    )
                return _Rows(path, start, stop)
        there = tables[stated].episodes
        present = f"{min(there)} to {max(there)}" if there else "none"
        raise self._error(stated, [f"it has no row of episode {number}, which meta/episodes states; it has {present}"])

    def _read_group(
        self,
        file: TableFile,
        group: Sequence[Mapping[str, Any]],
        rows: Mapping[int, _Rows],
        seconds: NDArray[np.float64],
        videos: _Videos,
    ) -> Iterator[Episode]:
        """Yield episodes whose rows follow each other in a file, in pieces of a few megabytes."""
        names = [feature.name + "/bytes" * (feature.kind == "image") for feature in self._features]
        names = [name for name, feature in zip(names, self._features, strict=True) if feature.kind != "video"]
        names = [*dict.fromkeys([*names, *["task_index"] * self._has_task, *self._info.flags, "frame_index"])]
        step_bytes = 8 * len(names) + sum(
            feature.pixels for feature in self._features if not self._by_key[feature.key].video
        )
        most = max(_ROWS_MIN, min(_CHUNK_BYTES // step_bytes, _ROWS_MAX))
        ahead = iter(group)
        episode, stop = next(ahead), rows[group[-1]["number"]].stop
        at = rows[episode["number"]].start
        frames: Mapping[str, _Frames] | None = None
        for block in file.blocks(names, rows=most, start=at, stop=stop):
            start, end = at, at + len(_numbers(block["frame_index"]))
            while at < end:
                mine = rows[episode["number"]]
                if at == mine.start:
                    frames = self._open_frames(episode, seconds[mine.start : mine.stop], videos)
                last = min(end, mine.stop)
                if frames is not None:
                    columns = {name: _sliced(values, at - start, last - start) for name, values in block.items()}
                    try:
                        yield self._piece(episode, columns, frames, at - mine.start, last - mine.start)
                    except ConversionError as error:
                        problems = [f"episode {episode['number']}: {problem}" for problem in error.problems]
                        raise self._error(mine.path, problems) from None
                at = last
                if at == mine.stop:
                    episode = next(ahead, episode)

    def _open_frames(
        self, episode: Mapping[str, Any], seconds: NDArray[np.float64], videos: _Videos
    ) -> dict[str, _Frames] | None:
        """Return the frames of each camera; None if a video does not have those of the episode, which a decision names."""
        frames: dict[str, _Frames] = {}
        budget = _EPISODE_BYTES // max(len(self._cameras), 1)
        for camera in self._cameras:
            described = episode["videos"][camera.name]
            try:
                video = videos.open(camera.name, described["path"])
                packets = self._packets_of(video, camera, described, seconds)
                column = self._by_key[camera.key]
                frames[camera.name] = _Frames(video, packets, column, camera.depth, self._quality, budget)
            except ConversionError as error:
                where = f"{described['path'].rpartition('/')[2]} of {camera.name}"
                text = f"episode {episode['number']} was left out: {where}: {error.problems[0]}"
                self._mismatches[f"video-of-episode-{episode['number']}"] = text
                return None
        for camera in self._cameras:
            column = self._by_key[camera.key]
            self.counts["video-to-jpeg"] += len(seconds) * column.encoded
            self.counts["video-resized"] += len(seconds) * (self._size is not None and not column.encoded)
        return frames

    def _packets_of(
        self, video: Video, camera: Feature, described: Mapping[str, Any], seconds: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the packet of the frame of each row of an episode, [T].

        Args:
            video: The video.
            camera: The feature of its frames.
            described: The place of the episode in the video.
            seconds: Time of each row since the beginning of the episode, [T].

        Raises:
            ConversionError: If the video does not have exactly these frames.
        """
        start, stop = described.get("start", 0.0), described.get("stop")
        if "overlaps" in described:
            raise ConversionError(
                "", [f"meta/episodes states that episode {described['overlaps']} has its frames, too"]
            )
        if video.shape != camera.shape[:2]:
            problem = f"its frames are {list(video.shape)}; meta/info.json states {list(camera.shape[:2])}"
            raise ConversionError("", [problem])
        length = None if stop is None else round((stop - start) * self._info.fps)
        first = _first_frame(video, seconds + start, length)
        name = camera.name
        if camera.codec not in {"", video.codec.name}:
            text = f"frames of {name} are {video.codec.name}, and meta/info.json states {camera.codec}: they were read as they are"
            self._video_notes[f"codec of {name}"] = text
        unused = len(video.frames) - first - len(seconds)
        if described.get("is_last") and unused:
            file = described["path"].rpartition("/")[2]
            text = (
                f"{file} of {name} ends with {unused:,} frames that no episode has: if they are of an earlier one, the frames "
                "of those after it are shifted"
            )
            self._video_notes[f"unused-frames {name} {file}"] = text
        return video.frames[first : first + len(seconds)]

    def _piece(
        self,
        episode: Mapping[str, Any],
        columns: Mapping[str, TableColumn],
        frames: Mapping[str, _Frames],
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
                values = self._check_images(column, columns[f"{feature.name}/bytes"], start)
            else:
                values = self._convert(column, feature.name, columns[feature.name])
            (states if column.shared else steps)[feature.key] = values
        if self._has_task:
            steps[TASK] = self._task_texts(_numbers(columns["task_index"]))
        if NEXT_REWARD not in steps:
            steps[NEXT_REWARD] = np.zeros((stop - start, 1), self._by_key[NEXT_REWARD].dtype)
        continues = stop < episode["rows"]
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
        metadata: dict[str, Any] = {"source": np.int64(episode["number"])}
        return Episode(steps, states, continues, metadata)

    def _is_terminal(self, last: Mapping[str, bool]) -> bool:
        """Return whether an episode is terminated and not truncated, by the flags of its last row."""
        for rule in ("lerobot-same-row", "lerobot-final-unknown"):
            self.counts[rule] += 1
        self.counts["reward-missing"] += "next.reward" not in self._info.features
        if "next.terminated" in last:
            return last["next.terminated"]
        is_terminal = last.get(SUCCESS, last.get(DONE, False))
        self.counts["done-is-terminated"] += is_terminal
        self.counts["done-is-truncated"] += last.get(DONE, False) and not is_terminal
        return is_terminal

    @staticmethod
    def _check_images(column: Column, files: Any, first: int) -> EncodedImages:
        """Return images that stay encoded, after checking that they have the shape that meta/info.json states."""
        problems = []
        for number, image in enumerate(files, first):
            head = images.read_header(image, dotted_name(column.key))
            if (head.shape, head.dtype) != (column.shape, column.dtype):
                expected = f"expected {list(column.shape)} of {column.dtype}"
                problems.append(
                    f"{dotted_name(column.key)}: image {number:,} is {list(head.shape)} of {head.dtype}; {expected}"
                )
        if problems:
            raise ConversionError("", first_problems(problems, "images"))
        return EncodedImages(files)

    def _convert(self, column: Column, name: str, values: TableColumn) -> Values:
        if column.text:
            texts = [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
            if not isinstance(values, list) or len(texts) < len(values):
                raise ConversionError("", [f"{name} is not text, which meta/info.json states"])
            return TextStates.from_texts(texts)
        array = _numbers(values, name)
        if array[:1].size != np.zeros((1, *column.shape), np.bool_).size:
            problem = f"{name} has {array[:1].size} values in a row; meta/info.json states {list(column.shape)}"
            raise ConversionError("", [problem])
        stated = np.dtype(self._info.features[name].dtype)
        if array.dtype != stated and not (np.can_cast(array.dtype, stated, "same_kind") or stated.kind == "f"):
            raise ConversionError("", [f"{name} is {array.dtype}; meta/info.json states {stated}"])
        self.counts["cast"] += len(array) * (array.dtype != stated)
        self.counts["widened"] += len(array) * (stated in _WIDER)
        self.counts["not-finite"] += count_not_finite(array)
        return array.reshape(len(array), *column.shape).astype(column.dtype, copy=False)

    def _task_texts(self, numbers: NDArray[np.int64]) -> TextStates:
        tasks = self._tasks or {}
        used, codes = np.unique(numbers, return_inverse=True)
        if missing := [number for number in used.tolist() if number not in tasks]:
            raise ConversionError("", [f"task_index is {missing[0]}, which the list of tasks lacks"])
        return TextStates(codes.astype(np.int32), tuple(tasks[number] for number in used.tolist()))

    def _error(self, path: str, problems: Sequence[str]) -> ConversionError:
        return ConversionError(self._dataset_id, [f"{path.rpartition('/')[2]}: {problem}" for problem in problems])


class _Videos:
    """The index of the video of each camera that is read, one at a time."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._by_camera: dict[str, tuple[str, Video | ConversionError]] = {}

    def open(self, camera: str, path: str) -> Video:
        """Return the video of a camera.

        Raises:
            ConversionError: If the file is not a video.
        """
        current, video = self._by_camera.get(camera, ("", None))
        if video is None or current != path:
            try:
                video = index_video(self._files[path])
            except ConversionError as error:
                video = error  # of all episodes in the file
            self._by_camera[camera] = path, video
        if isinstance(video, ConversionError):
            raise video
        return video


class _Frames:
    """Frames of an episode in a video, all of which can be decoded, as they are stored.

    Args:
        video: The video.
        packets: Packet of each frame, [T].
        column: The column of the images.
        depth: What their values mean, if they are depths.
        quality: The quality of JPEG, if they become encoded images.
        max_bytes: Bytes of converted frames that are kept; more are converted when they are taken.

    Raises:
        ConversionError: If a frame cannot be decoded.
    """

    def __init__(
        self,
        video: Video,
        packets: NDArray[np.int64],
        column: Column,
        depth: Depth | None,
        quality: int,
        max_bytes: int,
    ) -> None:
        self._video, self._packets, self._column, self._quality = video, packets, column, quality
        self._depth = depth
        self._held: Any = None
        size = len(packets) * column.step_bytes * (_JPEG if column.encoded else 1)
        if column.video or size > max_bytes:
            decode([video], np.zeros(len(packets), np.int64), packets, lambda *_: None)
        else:
            self._held = self._converted(packets)

    def take(self, start: int, stop: int) -> Values:
        """Return the images of rows `start` to `stop` of the episode."""
        values: Values = self._converted(self._packets[start:stop]) if self._held is None else self._held[start:stop]
        return values

    def _converted(self, packets: NDArray[np.int64]) -> Any:
        videos, numbers = (self._video,), np.zeros(len(packets), np.int64)
        if self._column.video:
            return VideoFrames(videos, numbers, packets, self._column.shape)
        if self._column.encoded:
            return EncodedImages(decode_to_jpeg(videos, numbers, packets, self._column.shape, self._quality))
        if self._depth is not None:
            codes: NDArray[np.uint16] = np.empty((len(packets), *self._column.shape[:2]), np.uint16)
            decode_codes(videos, numbers, packets, codes, self._depth.pixel_format)
            return self._depth.values(codes)[..., None]
        pixels: NDArray[np.uint8] = np.empty((len(packets), *self._column.shape), np.uint8)
        decode_pixels(videos, numbers, packets, pixels)
        return pixels


def _first_frame(video: Video, seconds: NDArray[np.float64], length: int | None) -> int:
    """Return the number of the first frame of an episode, whose frames must follow each other.

    Args:
        video: The video.
        seconds: Time of each row in the video, [T].
        length: Number of frames that the episode has according to meta/episodes; None if the video has no other one.

    Raises:
        ConversionError: If the video has other frames.
    """
    rows, frame_count = len(seconds), len(video.frames)
    first = int(np.searchsorted(video.seconds, seconds[0] - _SECONDS))
    length = frame_count if length is None else min(length, frame_count - first) if length == rows else length
    if length != rows:
        kind = "shorter" if length < rows else "longer"
        raise ConversionError("", [f"it is {kind} than the table: {length:,} frames for {rows:,} rows"])
    found = video.seconds[first : first + rows]
    # The times of rows are rounded to single precision.
    wrong = np.flatnonzero(np.abs(found - seconds) > _SECONDS + np.spacing(seconds.astype(np.float32)))
    if wrong.size:
        row = int(wrong[0])
        times = f"{found[row]:.4f} s; the table has {seconds[row]:.4f} s"
        raise ConversionError("", [f"the frame of row {row:,} is at {times}"])
    return first


def _pooled_statistics(parts: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the maximum, mean, minimum and standard deviation, [4, k], of the rows of episodes from those of each."""
    high, mean, low, std = (
        np.stack([np.asarray(part[name], np.float64).reshape(-1) for part in parts])
        for name in ("max", "mean", "min", "std")
    )
    counts = np.asarray([np.ravel(part.get("count", 1))[0] for part in parts], np.float64)
    whole = np.average(mean, 0, counts)
    variance = np.average(std**2 + (mean - whole) ** 2, 0, counts)
    return np.stack([high.max(0), whole, low.min(0), np.sqrt(variance)])


def _element_names(described: Mapping[str, Any]) -> list[Any]:
    """Return the names of the elements of a feature: a list, or lists of groups, ``{"motors": [...]}``."""
    names = described.get("names")
    if isinstance(names, Mapping):
        names = [name for group in names.values() if isinstance(group, list) for name in group]
    return names if isinstance(names, list) else []


def _consecutive(episodes: Sequence[Mapping[str, Any]], rows: Mapping[int, _Rows]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield groups of episodes, ascending by their rows, that have no other rows between them."""
    group: list[Mapping[str, Any]] = []
    for episode in episodes:
        if group and rows[group[-1]["number"]].stop != rows[episode["number"]].start:
            yield group
            group = []
        group.append(episode)
    yield group


def _flags(columns: Mapping[str, TableColumn], name: str, rows: int) -> NDArray[np.bool_]:
    """Return a flag of rows, [T]; False if there is none."""
    if name not in columns:
        return np.zeros(rows, np.bool_)
    return np.asarray(_numbers(columns[name], name).reshape(rows) != 0)


def _numbers(values: TableColumn, name: str = "") -> NDArray[Any]:
    if isinstance(values, Ragged):
        return values.stacked(name)
    if isinstance(values, list):
        raise ConversionError("", [f"{name} has text or bytes; expected numbers"])
    return values


def _sliced(values: TableColumn, start: int, stop: int) -> TableColumn:
    if isinstance(values, Ragged):
        return values.stacked("")[start:stop]
    return values[start:stop]
