"""Reader of video files: frames by their times, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, MissingDependencyError
from datasets_rl.read.streams import AGAIN, unexpected_format
from datasets_rl.read.threads import run_on_all_cores

if TYPE_CHECKING:
    from av import VideoFrame
    from typing_extensions import Self

_FORMATS = {1: "gray", 3: "rgb24"}
_SPACES = {1: "GRAY", 3: "RGB"}
_TASK_FRAMES = 4  # each takes about a millisecond


def check_installed(purpose: str) -> None:
    """Check that videos can be decoded.

    Raises:
        MissingDependencyError: If PyAV is not installed.
    """
    try:
        import av  # noqa: F401 -- it is installed
    except ImportError as error:
        raise MissingDependencyError("av", "video", purpose) from error


class VideoFile:
    """Open video file. A context manager.

    Args:
        path: The file.

    Raises:
        ConversionError: If the file is not a video, or is truncated.
        MissingDependencyError: If PyAV is not installed.
    """

    def __init__(self, path: Path) -> None:
        check_installed(f"decoding {path.name}")
        import av

        self.path = path
        self._errors: tuple[type[BaseException], ...] = (av.FFmpegError, ValueError)
        with ExitStack() as closing:
            try:
                self._container: Any = closing.enter_context(av.open(str(path)))
                if not self._container.streams.video:
                    raise ConversionError(path.name, ["it has no video stream"])
                self._stream = self._container.streams.video[0]
                self._stream.thread_type = "AUTO"
                packets = self._container.demux(self._stream)
                times = [packet.pts for packet in packets if packet.pts is not None and not packet.is_discard]
            except self._errors as error:
                with path.open("rb") as stream:
                    head = stream.read(64)
                problem = f"{unexpected_format(head, 'a video')}; FFmpeg reports: {error}"
                raise ConversionError(path.name, [problem], hint=AGAIN) from error
            self._closing = closing.pop_all()
        self._times: NDArray[np.int64] = np.unique(np.asarray(times, np.int64))
        self._frames: Iterator[VideoFrame] = iter(())
        self._next: int | None = None  # the first frame that the decoder has not returned
        base = self._stream.time_base or Fraction(1)
        self.seconds: NDArray[np.float64] = self._times * base.numerator / base.denominator
        """Time of each frame, [F], in seconds, ascending; read from the container without decoding."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Close the file."""
        self._frames = iter(())
        self._closing.close()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a frame."""
        return self._stream.codec_context.height, self._stream.codec_context.width

    def frames(self, start: int, stop: int) -> Iterator[VideoFrame]:
        """Decode the frames with these numbers in `seconds`, in order.

        After the frames before `start`, decoding continues; otherwise it begins at the last key frame before them.

        Raises:
            ConversionError: If a frame cannot be decoded.
        """
        number = start
        try:
            if self._next != start:
                self._container.seek(int(self._times[start]), stream=self._stream)
                self._frames = self._container.decode(self._stream)
            self._next = None
            while number < stop:
                frame = next(self._frames, None)
                time = None if frame is None else frame.pts
                if frame is None or (time is not None and time > self._times[number]):
                    problem = f"frame {number:,} of {len(self._times):,} is missing between those that can be decoded"
                    raise ConversionError(self.path.name, [problem], hint=AGAIN)
                if time == self._times[number]:
                    number += 1
                    self._next = number
                    yield frame
        except self._errors as error:
            problem = f"frame {number:,} of {len(self._times):,} cannot be decoded: {error}"
            raise ConversionError(self.path.name, [problem], hint=AGAIN) from error


def decode_frames(frames: list[VideoFrame], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return frames as pixels, uint8 [n, rows, columns, channels], resized to `shape` on all cores."""
    out: NDArray[np.uint8] = np.empty((len(frames), *shape), np.uint8)

    def keep(number: int, pixels: NDArray[np.uint8]) -> None:
        out[number] = pixels.reshape(shape)

    _convert(frames, shape, keep)
    return out


def encode_frames(frames: list[VideoFrame], shape: tuple[int, int, int], quality: int) -> list[bytes]:
    """Return frames as JPEG images, resized to `shape` on all cores.

    Args:
        frames: The frames, n of them.
        shape: Rows, columns and channels, 1 or 3.
        quality: The quality of JPEG, 1 to 100.
    """
    import simplejpeg

    out = [b""] * len(frames)

    def keep(number: int, pixels: NDArray[np.uint8]) -> None:
        # The colors of almost all videos have half of the resolution already.
        out[number] = simplejpeg.encode_jpeg(
            pixels.reshape(shape), quality, _SPACES[shape[2]], "420" if shape[2] > 1 else "gray"
        )

    _convert(frames, shape, keep)
    return out


def _convert(
    frames: list[VideoFrame], shape: tuple[int, int, int], keep: Callable[[int, NDArray[np.uint8]], None]
) -> None:
    """Call `keep` with the number and the pixels of each frame, resized to `shape`."""
    from av.video.reformatter import VideoReformatter

    rows, columns, channels = shape

    def convert_range(start: int, stop: int) -> None:
        reformatter = VideoReformatter()  # it is not for several threads
        for number in range(start, stop):
            frame = frames[number]
            # An area mean, where an image becomes smaller: the default skips pixels.
            smaller = "AREA" if (frame.height, frame.width) != (rows, columns) else None
            resized = reformatter.reformat(frame, columns, rows, _FORMATS[channels], interpolation=smaller)
            keep(number, np.ascontiguousarray(resized.to_ndarray()))

    run_on_all_cores(convert_range, len(frames), _TASK_FRAMES)
