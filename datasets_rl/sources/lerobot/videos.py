"""The frames of episodes in LeRobot's videos, and what is wrong with the frames.

video        f_0 . . . . . f_6 | f_7 . . f_10 | f_11      frames by time, at equal distances
episodes     0.0        0.6      0.7     1.0    1.1       start + timestamp of each row
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.images.video import VideoFrames
from datasets_rl.format.schema import Column
from datasets_rl.read.depth import Depth
from datasets_rl.read.video import Video, decode, decode_codes, decode_pixels, decode_to_jpeg, index_video
from datasets_rl.sources.lerobot.layout import Feature
from datasets_rl.ted.episode import EncodedImages, Values

_JPEG = 0.15  # bytes per byte of pixels
_CODECS = {
    "av01": "av1",
    "avc1": "h264",
    "h265": "hevc",
    "hev1": "hevc",
    "hvc1": "hevc",
    "libsvtav1": "av1",
    "libx264": "h264",
    "mp4v": "mpeg4",
    "vp09": "vp9",
}
"""Other names of codecs in meta/info.json: names in MP4 files, and names of encoders."""
_SECONDS = 1e-4  # tolerance of the time of a frame, that of LeRobot


class OpenVideos:
    """The index of the video of each camera that is read, a single video at a time."""

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


def find_packets(
    video: Video, camera: Feature, place: Mapping[str, Any], seconds: NDArray[np.float64], fps: float
) -> tuple[NDArray[np.int64], bool]:
    """Return the packet of the frame of each row of an episode, [T], and whether the rows have late times.

    The frames follow each other. Where the times of the table begin late, by the same time in every row, and the video
    has a frame for each row, the order decides:

        frames    0.0  0.1  0.2  0.3
        rows           0.1  0.2  0.3  0.4     the first row has the first frame

    Args:
        video: The video.
        camera: The feature of the frames.
        place: The place of the episode in the video, an item of ``videos`` in `Shard.part`.
        seconds: Time of each row since the beginning of the episode, [T].
        fps: Frames per second.

    Raises:
        ConversionError: If the video does not have exactly these frames.
    """
    if "overlaps" in place:
        raise ConversionError("", [f"meta/episodes states that episode {place['overlaps']} has the same frames"])
    if video.shape != camera.shape[:2]:
        problem = f"the frames are {list(video.shape)}, but meta/info.json states {list(camera.shape[:2])}"
        raise ConversionError("", [problem])
    rows, begin = len(seconds), place.get("start", 0.0)
    first = int(np.searchsorted(video.seconds, begin - _SECONDS))
    # Before version 3.0, a video has a single episode.
    length = round((place["stop"] - place["start"]) * fps) if "stop" in place else len(video.frames)
    length = min(rows, len(video.frames) - first) if length == rows else length
    is_late = bool(seconds[0] > _SECONDS)
    if length != rows:
        kind = "shorter" if length < rows else "longer"
        late = f", and the times of the table begin at {seconds[0]:.4f} s" if is_late else ""
        raise ConversionError("", [f"the video is {kind} than the table: {length:,} frames for {rows:,} rows{late}"])
    found, times = video.seconds[first : first + rows], seconds + begin
    # The times of rows are rounded to single precision.
    rounding = _SECONDS + np.spacing(times.astype(np.float32))
    wrong = np.abs(found - times) > rounding
    is_by_order = bool(wrong.any() and is_late and abs(found[0] - begin) <= _SECONDS)
    if is_by_order:
        wrong = np.abs(found - times + seconds[0]) > rounding + np.spacing(np.float32(seconds[0]))
    if wrong.any():
        row = int(wrong.argmax())
        late = f". The times of the table begin at {seconds[0]:.4f} s" if is_late else ""
        problem = f"the frame of row {row:,} is at {found[row]:.4f} s, but the table has {times[row]:.4f} s{late}"
        raise ConversionError("", [problem])
    return video.frames[first : first + rows], is_by_order


def harmless_faults(
    video: Video, camera: Feature, place: Mapping[str, Any], packets: NDArray[np.int64]
) -> Iterator[tuple[str, str]]:
    """Yield the rule and the text of each fault that costs no episode. The arguments are the arguments of `find_packets`."""
    if camera.codec and _CODECS.get(camera.codec, camera.codec) != video.codec.name:
        text = f"meta/info.json states {camera.codec}: the files were read all the same"
        yield f"codec of {camera.name}", f"frames of {camera.name} are {video.codec.name}, and {text}"
    unused = len(video.frames) - 1 - int(np.flatnonzero(video.frames == packets[-1])[0]) if "is_last" in place else 0
    if unused:
        file = place["path"].rpartition("/")[2]
        text = "if the frames are of an earlier episode, the frames of the episodes after it are shifted"
        yield (
            f"unused-frames {place['path']}",
            f"{file} of {camera.name} ends with {unused:,} frames that no episode has: {text}",
        )


class EpisodeFrames:
    """Frames of an episode in a video, all of which can be decoded, in their stored form.

    Args:
        video: The video.
        packets: Packet of each frame, [T].
        column: The column of the images.
        depth: What the values mean, if the values are depths.
        quality: The quality of JPEG, if the frames become encoded images.
        max_bytes: Bytes of converted frames that are kept. More frames are converted when they are taken.

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
