"""Images that are frames of the video files of the upstream, decoded on access.

    rows          | p_0 | p_1 | p_5 | p_6 |      int64 [N], the packet of each frame; -1 is unknown
    packets       | p_0 p_1 p_2 | p_3 ... p_9 |  the packets of all videos, one after the other
    videos            a.mp4         b.mp4

A batch decodes each frame once, and each group of pictures in one pass, see `datasets_rl.read.video`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.images import ImageColumn, PixelsOnAccess
from datasets_rl.read.video import Video, decode_pixels
from datasets_rl.ted.episode import StoredImages

if TYPE_CHECKING:
    from typing_extensions import Self

UNKNOWN = -1
"""Packet of an image that is unknown."""


class VideoColumn(ImageColumn):
    """Images that are frames of videos; see `ImageColumn`.

    Args:
        rows: Packet of each image among those of all videos, int64 [N].
        videos: The videos, in the order of their packets.
        shape: As in `ImageColumn`.
        path: As in `ImageColumn`.
    """

    def __init__(self, rows: NDArray[np.int64], videos: Sequence[Video], shape: tuple[int, ...], path: Path) -> None:
        super().__init__(len(rows), shape, path)
        self._rows = np.asarray(rows)
        self._videos = tuple(videos)
        self._firsts = np.cumsum([0, *(len(video.packets) for video in videos)])

    @override
    def read_stored(self, start: int, stop: int) -> VideoFrames:
        return self._frames(np.arange(start, stop))

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        self._frames(rows).decode(out, positions)

    def _frames(self, rows: NDArray[np.int64]) -> VideoFrames:
        packets = self._rows[rows]
        numbers = np.searchsorted(self._firsts, packets, "right") - 1
        wrong = np.flatnonzero((packets < UNKNOWN) | (packets >= self._firsts[-1]))
        if len(wrong):
            problem = f"image {rows[wrong[0]]:,} is packet {packets[wrong[0]]:,} of {self._firsts[-1]:,}"
            raise IntegrityError(str(self._path), [problem])
        local = np.where(packets < 0, UNKNOWN, packets - self._firsts[numbers])
        return VideoFrames(self._videos, numbers, local, self.shape[1:])


@dataclass(frozen=True, eq=False)
class VideoFrames(StoredImages, PixelsOnAccess):
    """Frames of videos as images of some rows, which a writer stores with their files; see `PixelsOnAccess`."""

    form: ClassVar[Literal["encoded", "compressed", "video"]] = "video"
    videos: tuple[Video, ...]
    """These videos and maybe others."""
    numbers: NDArray[np.int64]
    """Video of each image, [n]."""
    packets: NDArray[np.int64]
    """Packet of each image in its video, [n]; `UNKNOWN` for an unknown one."""
    shape_of_each: tuple[int, ...]

    @override
    def __len__(self) -> int:
        return len(self.packets)

    @override
    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        return replace(self, numbers=self.numbers[rows], packets=self.packets[rows])

    @property
    @override
    def nbytes(self) -> int:
        known = self.packets >= 0
        used = np.unique(self.numbers[known]).tolist()
        return sum(
            int(self.videos[number].packets["size"][self.packets[known & (self.numbers == number)]].sum())
            for number in used
        )

    @override
    def without(self, rows: NDArray[np.bool_]) -> Self:
        return replace(self, packets=np.where(rows, UNKNOWN, self.packets))

    @override
    def followed_by(self, others: Sequence[Any]) -> Self | None:
        columns = [self, *others]
        if not all(isinstance(other, VideoFrames) and other.shape_of_each == self.shape_of_each for other in others):
            return None
        places: dict[int, int] = {}
        videos: list[Video] = []
        numbers = []
        for column in columns:
            for video in column.videos:
                if places.setdefault(id(video), len(videos)) == len(videos):
                    videos.append(video)
            own = np.array([places[id(video)] for video in column.videos], np.int64)
            numbers.append(own[column.numbers])
        packets = np.concatenate([column.packets for column in columns])
        return replace(self, videos=tuple(videos), numbers=np.concatenate(numbers), packets=packets)

    def decode(self, out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        """Write the pixels to positions of `out`, [n]; an unknown image is zeros.

        Raises:
            IntegrityError: If a frame cannot be decoded, or its file is gone.
        """
        known = self.packets >= 0
        if not known.all():
            out[positions[~known]] = 0
        numbers, packets, places = self.numbers[known], self.packets[known], positions[known]
        _, firsts, copies = np.unique(np.stack([numbers, packets]), axis=1, return_index=True, return_inverse=True)
        try:
            decode_pixels(self.videos, numbers[firsts], packets[firsts], out, places[firsts])
        except ConversionError as error:
            raise IntegrityError(error.name, error.problems) from error
        except FileNotFoundError as error:
            problem = "it is missing: another version replaced the opened one, which was deleted"
            raise IntegrityError(str(error.filename), [problem], hint="open the dataset again") from error
        if len(firsts) < len(packets):
            origins = places[firsts][copies.reshape(-1)]
            repeated = np.flatnonzero(origins != places)
            out[places[repeated]] = out[origins[repeated]]

    @override
    def _decode(self, out: NDArray[np.uint8]) -> None:
        self.decode(out, np.arange(len(self)))
