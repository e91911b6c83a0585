"""Videos of exported images: the stored files unchanged, or new files.

    episodes   e_0 . . . . | e_1 . . | e_2 . . .        frames of a camera, at equal distances in time
    files      file-000                | file-001       a file has whole episodes, in order
    clips      0.0    0.5     0.5  0.8   0.0   0.4      the file of an episode, and the times of its begin and end

The frame of row i of an episode is at ``start + i / fps``.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import MissingDependencyError
from datasets_rl.format.images.video import VideoFrames
from datasets_rl.read.depth import Depth
from datasets_rl.read.video import Video, check_installed

if TYPE_CHECKING:
    from av import VideoFrame

VIDEO_FILE_BYTES = 200 << 20
_FILE_SECONDS = 1000
"""Time after which a file is full: LeRobot looks for frames by times in single precision, to 0.1 ms."""
_BLOCK_FRAMES = 32
_TOLERANCE = 1e-4  # seconds, that of LeRobot
_DENOMINATOR_MAX = 1_000_000
"""Of the frames a second: exact for 30000/1001, and for numbers of six decimals, as in info.json."""
_ENCODERS = {
    "libsvtav1": {"g": "2", "crf": "30", "preset": "12"},
    "libx264": {"g": "2", "crf": "23", "preset": "fast", "sc_threshold": "0"},
}
"""Encoders, the preferred encoder first, with a key frame every second frame. AV1 has the options of LeRobot."""
_DEPTH_ENCODER = "libx265"
_DEPTH_OPTIONS = {"g": "2", "preset": "superfast", "x265-params": "lossless=1:log-level=none"}


@dataclass(frozen=True, slots=True)
class Clip:
    """The frames of an episode in a video."""

    file: int
    """Number of the file."""
    start: float
    """Time of the first frame, in seconds."""
    stop: float
    """Time after the last frame, in seconds."""


StoredClip: TypeAlias = "tuple[Video, float]"
"""The stored video of the frames of an episode, and the time of the first frame in seconds."""


class VideoWriter(ABC):
    """Writer of the videos of a camera, which is given its episodes in order.

    Args:
        path_of: Returns the path of a file by its number.
        fps: Frames per second.
    """

    def __init__(self, path_of: Callable[[int], Path], fps: float) -> None:
        self._path_of, self._fps = path_of, fps
        self.codec = ""
        """Name of the codec, after the first episode."""

    @abstractmethod
    def add(self, images: Any, lengths: NDArray[np.int64]) -> Iterator[Clip]:
        """Write the frames of whole episodes, uint8 [N, rows, columns, channels], and yield the clip of each."""

    def close(self) -> None:
        """Complete the last file."""

    def _new_path(self, file: int) -> Path:
        path = self._path_of(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class StoredVideos(VideoWriter):
    """Copies of the stored files, which have the frames already.

    Args:
        path_of: As in `VideoWriter`.
        fps: As in `VideoWriter`.
        clips: The clip of each episode.
    """

    def __init__(self, path_of: Callable[[int], Path], fps: float, clips: Iterable[StoredClip]) -> None:
        super().__init__(path_of, fps)
        self._clips = iter(clips)
        self._files: dict[Path, int] = {}

    @override
    def add(self, images: Any, lengths: NDArray[np.int64]) -> Iterator[Clip]:
        for length, (video, first) in zip(lengths.tolist(), self._clips, strict=False):
            if (file := self._files.get(video.path)) is None:
                file = self._files[video.path] = len(self._files)
                shutil.copyfile(video.path, self._new_path(file))
                self.codec = video.codec.name
            yield Clip(file, first, first + length / self._fps)


class EncodedVideos(VideoWriter):
    """Newly encoded files, see `VideoWriter`."""

    pixel_format = "yuv420p"

    def __init__(self, path_of: Callable[[int], Path], fps: float) -> None:
        super().__init__(path_of, fps)
        self._rate = Fraction(fps).limit_denominator(_DENOMINATOR_MAX)
        self._container: Any = None
        self._stream: Any = None
        self._file = -1
        self._frames = 0

    @override
    def add(self, images: Any, lengths: NDArray[np.int64]) -> Iterator[Clip]:
        for start, stop in _bounds(lengths):
            if self._is_full():
                self.close()
                self._file, self._frames = self._file + 1, 0
            first = self._frames
            for low in range(start, stop, _BLOCK_FRAMES):
                self._encode(np.asarray(images[low : min(low + _BLOCK_FRAMES, stop)]))
            yield Clip(self._file, float(first / self._rate), float(self._frames / self._rate))

    @override
    def close(self) -> None:
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container = None

    def _is_full(self) -> bool:
        if self._file < 0 or self._frames > _FILE_SECONDS * self._rate:
            return True
        path = self._path_of(self._file)  # an encoder holds the first frames, before there is a file
        return path.exists() and path.stat().st_size > VIDEO_FILE_BYTES

    def _encoder(self) -> tuple[str, Mapping[str, str]]:
        """Return the name and the options of the encoder."""
        name = check_encoder("")
        return name, _ENCODERS[name]

    def _frame(self, image: NDArray[Any]) -> VideoFrame:
        """Return an image as a frame."""
        from av import VideoFrame

        return VideoFrame.from_ndarray(image, "rgb24")

    def _open(self, rows: int, columns: int) -> None:
        import av

        name, options = self._encoder()
        os.environ.setdefault("SVT_LOG", "1")  # errors alone, because other messages go to stderr
        self._container = av.open(str(self._new_path(self._file)), "w")
        self._stream = self._container.add_stream(name, self._rate, options=dict(options))
        self._stream.height, self._stream.width, self._stream.pix_fmt = rows, columns, self.pixel_format
        self.codec = self._stream.codec_context.codec.canonical_name

    def _encode(self, pixels: NDArray[Any]) -> None:
        if self._container is None:
            self._open(*pixels.shape[1:3])
        for image in pixels:
            frame = self._frame(image)
            frame.pts, frame.time_base = self._frames, 1 / self._rate
            self._container.mux(self._stream.encode(frame))
            self._frames += 1


class DepthVideos(EncodedVideos):
    """Newly encoded files of depths, as codes of 12 bits, which are encoded without a loss, see `VideoWriter`.

    Args:
        path_of: As in `VideoWriter`.
        fps: As in `VideoWriter`.
        depth: What the codes mean.
    """

    pixel_format = "gray12le"

    def __init__(self, path_of: Callable[[int], Path], fps: float, depth: Depth) -> None:
        super().__init__(path_of, fps)
        self.depth = depth

    @override
    def _encoder(self) -> tuple[str, Mapping[str, str]]:
        return _DEPTH_ENCODER, _DEPTH_OPTIONS

    @override
    def _frame(self, image: NDArray[Any]) -> VideoFrame:
        from av import VideoFrame

        return VideoFrame.from_ndarray(self.depth.codes(image[..., 0]), self.pixel_format)


def check_depth_encoder(purpose: str) -> None:
    """Check that depths can be encoded.

    Raises:
        MissingDependencyError: If PyAV is not installed, or does not have the encoder.
    """
    check_installed(purpose)
    import av

    if _DEPTH_ENCODER not in av.codecs_available:
        raise MissingDependencyError("av with an encoder of H.265", "video", purpose)


def check_encoder(purpose: str) -> str:
    """Return the name of an encoder of images.

    Raises:
        MissingDependencyError: If PyAV is not installed, or has none.
    """
    check_installed(purpose)
    import av

    for name in _ENCODERS:
        if name in av.codecs_available:
            return name
    raise MissingDependencyError("av with an encoder of AV1 or H.264", "video", purpose)


def find_clip(frames: VideoFrames, fps: float) -> StoredClip | None:
    """Return the video of the frames of an episode, and the time of the first frame in seconds.

    Args:
        frames: The frames, [T].
        fps: Frames per second.

    Returns:
        None unless the frames follow each other in a video, at these times.
    """
    if (frames.packets < 0).any() or (frames.numbers != frames.numbers[0]).any():
        return None
    video = frames.videos[frames.numbers[0]]
    times = video.packets["pts"][frames.packets]
    between = (video.packets["pts"] >= times[0]) & (video.packets["pts"] <= times[-1])
    seconds = times * video.base.numerator / video.base.denominator
    late = np.abs(seconds - seconds[0] - np.arange(len(times)) / fps)
    follow = len(np.unique(video.packets["pts"][between])) == len(times) and bool((np.diff(times) > 0).all())
    return (video, float(seconds[0])) if follow and late.max() <= _TOLERANCE else None


def _bounds(lengths: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    return list(pairwise([0, *np.cumsum(lengths).tolist()]))
