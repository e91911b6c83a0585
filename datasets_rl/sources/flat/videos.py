"""Videos beside a table: each row of the table has a frame, and each video has exactly the frames of its rows.

table                                                video
column of paths of videos, with frame numbers        the video of each row
ep_0.csv, ep_1.csv                                   ep_0.mp4, ep_1.mp4, or front/ep_0.mp4 and rear/ep_0.mp4
log.csv of one episode, or of one video              a single video, or one of each camera
log.csv with a column of episode numbers             0.mp4, 1.mp4, ..., of the same numbers, or front/0.mp4, ...

Frame numbers count from 0 or 1, in each video or over all rows, and none is missing. A video of another length is
refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.format.images.video import VideoFrames
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.read.video import Video, decode, decode_pixels, decode_to_jpeg, index_video
from datasets_rl.sources.flat.arrays import Array, ArrayFile, Rows
from datasets_rl.sources.flat.formats import VIDEOS
from datasets_rl.sources.flat.image_paths import ImageFolder, ImagePathsFile, PathFolder
from datasets_rl.sources.flat.names import FRAME_NUMBERS

TO_JPEG = "video-to-jpeg"
QUALITY = 95
"""Quality of the JPEG images that frames become, of 100."""
_NUMBER = re.compile(r"(.*?)(\d+)(\D*)")
_EPISODE = re.compile(
    r"(ep|eps|episode|traj|trajectory|trial|rollout|run)(_?(index|idx|id|number|num|no))?", re.IGNORECASE
)
_CHANNELS = 3
_KEPT_VIDEOS = 8
_JPEG_BLOCK_BYTES = 256 << 20
_PIXEL_BLOCK_BYTES = 64 << 20
_BLOCK_FRAMES = 1024


class VideoFolder(PathFolder):
    """Videos among the files of a dataset.

    Args:
        files: The files on this machine, by the path in the folder of the dataset. Other files than videos are ignored.
        tables: The paths of the tables.
        form: The form that the user chose for images: ``raw``, ``compressed``, ``encoded``, ``video``, or an empty text.
    """

    def __init__(self, files: Mapping[str, Path], tables: Sequence[str] = (), form: str = "") -> None:
        super().__init__(files, VIDEOS)
        self.has_several_tables = len(tables) > 1
        self.form = form
        self._tables_in = Counter(table.rpartition("/")[0] for table in tables)
        self._open: dict[int, Video] = {}
        self._lengths: dict[int, tuple[int, tuple[int, int]]] = {}

    def video(self, number: int) -> Video:
        """Return the index of a video.

        Raises:
            ConversionError: If the file is not a video, or a link that leads out of the folder.
        """
        if number not in self._open:
            if not self.is_inside(number):
                raise ConversionError(self.paths[number], ["the video is a link that leads out of the folder"])
            while len(self._open) >= _KEPT_VIDEOS:
                del self._open[next(iter(self._open))]
            self._open[number] = index_video(self.files[number])
        return self._open[number]

    def length(self, number: int) -> tuple[int, tuple[int, int]]:
        """Return the number of frames of a video, and the rows and columns of a frame.

        Raises:
            ConversionError: As `video` does.
        """
        if number not in self._lengths:
            video = self.video(number)
            self._lengths[number] = len(video.frames), video.shape
        return self._lengths[number]

    def candidates(self, table: str) -> Sequence[int]:
        """Return the videos that may belong to a table: all, of a single table, or else those of the name or the folder."""
        if not self.has_several_tables:
            return range(len(self.paths))
        folder = table.rpartition("/")[0]
        own = self._by_stem.get(_stem(table), ())
        if own or not folder or self._tables_in[folder] > 1:
            return own
        return self.numbers_below(folder)

    @cached_property
    def _by_stem(self) -> Mapping[str, Sequence[int]]:
        stems: dict[str, list[int]] = {}
        for number, path in enumerate(self.paths):
            stems.setdefault(_stem(path), []).append(number)
        return stems


class FilesBeside:
    """Images and videos among the files of a dataset, which belong to the rows of tables.

    Args:
        files: The files on this machine, by the path in the folder of the dataset.
        tables: The paths of the tables.
        form: As of `VideoFolder`.
    """

    def __init__(self, files: Mapping[str, Path], tables: Sequence[str], form: str = "") -> None:
        self._images, self._videos = ImageFolder(files), VideoFolder(files, tables, form)

    def shown_in(self, file: ArrayFile, table: str) -> VideosFile:
        """Return a file with the images and the videos as arrays.

        Args:
            file: The file.
            table: The path of the file in the folder of the dataset.
        """
        return VideosFile(ImagePathsFile(file, self._images, table.rpartition("/")[0]), self._videos, table)


@dataclass(frozen=True, slots=True)
class _Camera:
    """The videos of a camera: for each range of rows, a video."""

    videos: tuple[int, ...]
    stops: NDArray[np.int64]
    """The row after the last row of each video, [V]."""


class VideosFile(ArrayFile):
    """Table with an array of images for each camera with videos beside the table.

    A column of the paths of videos becomes such an array itself. Other cameras are ``video``, or ``video/<camera>``.

    Args:
        file: The table.
        folder: The videos beside the table.
        table: The path of the table in the folder of the dataset.
    """

    def __init__(self, file: ImagePathsFile, folder: VideoFolder, table: str) -> None:
        self.take_notes_of(file)
        self._file, self._folder = file, folder
        self.arrays = dict(file.arrays)
        self._cameras: dict[str, _Camera] = {}
        rows = {array.rows for array in file.arrays.values()}
        self._count = rows.pop() if len(rows) == 1 else 0
        self._problems: list[str] = []
        self._problems_of: dict[str, list[str]] = {}
        self._numbers: NDArray[np.int64] | None = None
        if not self._count:
            return
        for name, array in file.arrays.items():
            if array.text and not array.shape and (camera := self._named(name, table)) is not None:
                self._cameras[name] = camera
        if not folder.paths and not self._cameras:
            return
        frames = next((name for name in file.arrays if FRAME_NUMBERS.fullmatch(name) and self._is_number(name)), "")
        if frames:
            self._numbers = np.asarray(file.read_all(frames)).reshape(-1).astype(np.int64)
        if not self._cameras:
            self._cameras = self._beside(table)
        for name, camera in self._cameras.items():
            problems = self._problems_of.setdefault(name, [])
            problems += [] if problems else self._camera_problems(camera)
            size = (1, 1) if problems else folder.length(camera.videos[0])[1]
            is_jpeg, is_video = folder.form in {"", "encoded"}, folder.form == "video"
            self.arrays[name] = Array(
                self._count, (*size, _CHANNELS), np.dtype(np.uint8), encoded=is_jpeg, video=is_video
            )
        if self._cameras and frames:
            self.contained = [*file.contained, frames]

    @property
    def cameras(self) -> Collection[str]:
        """Names of the arrays of images that are frames of videos."""
        return self._cameras.keys()

    @property
    def videos(self) -> list[str]:
        """Paths of the videos in the folder."""
        return self._folder.paths

    def length_of(self, path: str) -> int:
        """Return the number of frames of a video, or 0 if the file is not a video that can be read."""
        return self._length_of(self._folder.paths.index(path))

    def check(self, names: Collection[str]) -> None:
        """Check that the videos of some arrays have exactly the frames of the rows, and the images by path of others.

        Raises:
            ConversionError: If a video or an image differs. The error names every problem.
        """
        problems, hint = [*self._problems], ""
        for name in dict.fromkeys(names):
            problems += self._problems_of.get(name, ())
        if problems:
            hint = "rows and frames are matched one by one: correct the videos, the table, or their names"
        try:
            self._file.check(names)
        except ConversionError as error:
            problems += error.problems
            hint = hint or str(error.remedy)
        if problems:
            raise ConversionError(self.name, first_problems(problems), hint=hint)

    def count_rules(self, names: Collection[str]) -> Counter[str]:
        """Return how often each rule was applied to some arrays."""
        frames = sum(self._count for name in names if name in self._cameras and self.arrays[name].encoded)
        return Counter({TO_JPEG: frames}) + self._file.count_rules(names)

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name not in self._cameras:
            yield from self._file.blocks(name, rows)
            return
        camera, array = self._cameras[name], self.arrays[name]
        block_bytes = _JPEG_BLOCK_BYTES if array.encoded or array.video else _PIXEL_BLOCK_BYTES
        most = max(1, min(_BLOCK_FRAMES, block_bytes // array.row_bytes))
        start = 0
        for number, stop in zip(camera.videos, camera.stops.tolist(), strict=True):
            for first in range(0, stop - start, most):
                last = min(first + most, stop - start)
                yield self._frames(number, first, last, array)
            start = stop

    def _frames(self, number: int, first: int, last: int, array: Array) -> Any:
        video = self._folder.video(number)
        packets, none = video.frames[first:last], np.zeros(last - first, np.int64)
        try:
            if array.encoded:
                return decode_to_jpeg([video], none, packets, array.shape, QUALITY)
            if array.video:
                decode([video], none, packets, lambda *_: None)  # frames that cannot be decoded are found here
                return VideoFrames((video,), none, packets, array.shape)
            pixels: NDArray[np.uint8] = np.empty((last - first, *array.shape), np.uint8)
            decode_pixels([video], none, packets, pixels)
        except ConversionError as error:
            path = self._folder.paths[number]
            raise ConversionError(self.name, [f"{path}: {problem}" for problem in error.problems]) from error
        return pixels

    def _is_number(self, name: str) -> bool:
        array = self._file.arrays[name]
        return not array.text and array.shape in {(), (1,)} and array.dtype.kind in "iu"

    def _named(self, column: str, table: str) -> _Camera | None:
        """Return the videos of a column of paths, or None if the texts are not names of videos."""
        videos: list[int] = []
        starts: list[int] = []
        problems: list[str] = []
        by_name: list[str] = []
        below, row, before = table.rpartition("/")[0], 0, ""
        for block in self._file.blocks(column, 1 << 16):
            for text in block:
                if not isinstance(text, str) or not text.strip().lower().endswith(VIDEOS):
                    return None
                if text != before:
                    number, is_by_name, problem = self._folder.find(text, below)
                    if is_by_name and not problem:
                        path = self._folder.paths[number]
                        by_name.append(
                            f"{column} {text.strip()!r} in row {row:,} does not exist: a file of this name is only {path}"
                        )
                    problems += [f"{column} {text.strip()!r} in row {row:,} {problem}"] if problem else []
                    videos.append(number)
                    starts.append(row)
                    before = text
                row += 1
        if len(by_name) < len(videos):  # other paths of the column exist unchanged
            problems += by_name
        if len({*videos}) < len(videos) and not problems:
            problems.append(f"{column} has a video in several ranges of rows, expected consecutive rows for each video")
        self._problems_of[column] = problems
        return _Camera(tuple(videos), np.append(starts[1:], row).astype(np.int64))

    def _beside(self, table: str) -> dict[str, _Camera]:
        """Return the cameras of the videos beside the table, by the name of the array."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        candidates = self._folder.candidates(table)
        for number in candidates:
            path = self._folder.paths[number]
            stem = _stem(path)
            match = None if self._folder.has_several_tables else _NUMBER.fullmatch(stem)
            is_own = self._folder.has_several_tables and stem == _stem(table)
            named = (match[1], match[3]) if match else ("" if is_own else stem, "")
            groups.setdefault((path.rpartition("/")[0], *named), []).append(number)
        names = _camera_names([*groups])
        runs = self._runs()
        found = {}
        for name, videos in zip(names, groups.values(), strict=True):
            is_named = all(_stem(self._folder.paths[number]) == _stem(table) for number in videos)
            camera = self._matched(videos, runs, is_certain=is_named or self._numbers is not None)
            if camera is not None:
                found[name] = camera
        # Beside images by path, the videos may show the images.
        if self._numbers is not None and candidates and len(found) < len(groups) and not self._file.images:
            names_of_all = [self._folder.paths[number] for number in candidates]
            episodes = "no column of episode numbers" if runs is None else f"{len(runs):,} episodes"
            self._problems.append(
                f"the {self._count:,} rows have numbers of frames, and {episodes}, beside {join_names(names_of_all, ITEMS_MAX)}: "
                "expected one video of all rows, or a video of the number of each episode"
            )
            return {}
        return found

    def _matched(self, videos: Sequence[int], runs: Mapping[int, int] | None, *, is_certain: bool) -> _Camera | None:
        """Return the camera of some videos, or None if the rows of each video are not certain.

        Args:
            videos: The videos.
            runs: The number of rows by the number of the episode, or None if the numbers are not known.
            is_certain: Whether the rows are certainly frames of videos.
        """
        if len(videos) == 1:
            is_whole = self._length_of(videos[0]) == self._count
            if is_whole or (is_certain and (runs is None or len(runs) == 1)):
                return _Camera(tuple(videos), np.array([self._count]))
            if runs is None:
                return None  # the video may show something else
        by_number = {_last_number(self._folder.paths[video]): video for video in videos}
        if runs is None or by_number.keys() != runs.keys() or len(by_number) < len(videos):
            return None
        return _Camera(tuple(by_number[number] for number in runs), np.cumsum([*runs.values()]))

    def _length_of(self, video: int) -> int:
        """Return the number of frames of a video, or 0 if the file is not a video that can be read."""
        with suppress(ConversionError):
            return self._folder.length(video)[0]
        return 0

    def _runs(self) -> dict[int, int] | None:
        """Return the number of rows by the number of the episode, in order, or None without a column of the numbers."""
        named = (name for name in self._file.arrays if _EPISODE.fullmatch(name))
        column = next(filter(self._is_number, named), "")
        if not column:
            return None
        values = np.asarray(self._file.read_all(column)).reshape(-1)
        starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
        lengths = np.diff(np.append(starts, len(values)))
        runs = dict(zip(values[starts].tolist(), lengths.tolist(), strict=True))
        return runs if len(runs) == len(starts) else None

    def _camera_problems(self, camera: _Camera) -> Iterator[str]:
        shapes: dict[int, tuple[int, int]] = {}
        for video, (start, stop) in zip(camera.videos, pairwise([0, *camera.stops.tolist()]), strict=True):
            path = self._folder.paths[video]
            try:
                length, shapes[video] = self._folder.length(video)
            except ConversionError as error:
                yield f"{path}: {'; '.join(error.problems)}"
                continue
            if length != stop - start:
                yield f"{path} has {length:,} frames, expected {stop - start:,}, one for each row"
            if (first := next(iter(shapes.values()))) != shapes[video]:
                yield f"{path} has frames of {list(shapes[video])}, expected {list(first)} as the first video"
            yield from self._number_problems(path, start, stop)

    def _number_problems(self, path: str, start: int, stop: int) -> Iterator[str]:
        if self._numbers is None:
            return
        numbers = self._numbers[start:stop]
        # The numbers may begin again in each episode of a video of several episodes.
        follows = (np.diff(numbers) == 1) | ((numbers[1:] == numbers[0]) & (stop - start == self._count))
        if numbers[0] not in {0, 1, start, start + 1}:
            yield f"the first frame of {path} is {numbers[0]} in row {start:,}, expected 0 or 1"
        elif len(wrong := np.flatnonzero(~follows)):
            row = start + int(wrong[0]) + 1
            value, before = self._numbers[row], self._numbers[row - 1]
            yield f"the frame of {path} is {value} in row {row:,}, expected {before + 1} after {before}"

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _last_number(path: str) -> int | None:
    match = _NUMBER.fullmatch(_stem(path))
    return int(match[2]) if match else None


def _camera_names(groups: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the name of the array of each camera, by what differs: the folder, or the begin or the end of the names."""
    if len(groups) == 1:
        return ["video"]
    parts = [
        [folder.rpartition("/")[2], suffix.strip("_-. "), prefix.strip("_-. ")] for folder, prefix, suffix in groups
    ]
    for names in zip(*parts, strict=True):
        if all(names) and len({*names}) == len(groups):
            return [f"video/{name}" for name in names]
    return [f"video/{'_'.join(filter(None, names)) or number}" for number, names in enumerate(parts)]
