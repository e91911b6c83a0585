"""Images that are frames of the video files of the upstream, decoded on access.

    rows          | p_0 | p_1 | p_5 | p_6 |      int64 [N], the packet of each frame, -1 is unknown
    packets       | p_0 p_1 p_2 | p_3 ... p_9 |  the packets of all videos, in order
    videos            a.mp4         b.mp4

A batch decodes each frame once, and each group of pictures in a single pass, see `datasets_rl.read.video`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.fingerprints.canonical import RowDigests
from datasets_rl.format.images.base import ArrayFile, FieldWriter, Form, ImageForm, Items, Renumber, WholeFile
from datasets_rl.format.images.columns import ImageColumn, PixelsOnAccess
from datasets_rl.format.images.video_files import UNKNOWN, VIDEO_FOLDER, VideoFiles, frame_digests, read_videos
from datasets_rl.format.npy import NpyStream
from datasets_rl.read.video import PACKET, Video, decode_pixels
from datasets_rl.ted.episode import StoredImages

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.schema import Field
    from datasets_rl.read.compressed_frames import FrameDictionary

_PACKET_NUMBER = np.dtype(np.int64)
_IMAGE_AXES = 3


class VideoForm(ImageForm):
    """Frames of the video files of the upstream, which are stored unchanged. See `ImageForm`."""

    name: ClassVar[Form] = "video"
    noun: ClassVar[str] = "frames of videos"
    summary: ClassVar[str] = "frames of videos"
    in_shared_files: ClassVar[bool] = True

    @property
    def packets_file(self) -> str:
        """File with the packets of the videos."""
        return f"{self.key}.packets.npy"

    @property
    def videos_file(self) -> str:
        """File with the list of the videos."""
        return f"{self.key}.videos.json"

    @property
    @override
    def item(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return _PACKET_NUMBER, ()

    @property
    @override
    def buffered_bytes(self) -> int:
        return self.min_step_bytes

    @override
    def array_files(self) -> list[ArrayFile]:
        return [*super().array_files(), ArrayFile(self.packets_file, PACKET, (), "packet")]

    @override
    def whole_files(self) -> list[WholeFile]:
        return [WholeFile(self.videos_file, 2)]

    @override
    def is_file_of_images(self, path: str) -> bool:
        return path.startswith(f"{VIDEO_FOLDER}/")

    @override
    def field_problems(self, field: Field) -> Iterator[str]:
        is_image = field.dtype.str == "|u1" and len(field.shape) == _IMAGE_AXES and field.shape[2] in {1, 3}
        if not (field.wide and is_image):
            yield (
                f"{field.name} is a field of frames of videos, {field.dtype.str} {list(field.shape)}, expected |u1 with "
                "three axes, the last of 1 or 3 channels"
            )

    @override
    def open(self, stored: StoredDataset, *, final: bool) -> Items:
        name = self.final_file if final else self.file
        return VideoColumn(stored.map(name), self._videos(stored), self.column.shape, stored.folder / name)

    def _videos(self, stored: StoredDataset) -> list[Video]:
        return stored.read_whole(self.videos_file, partial(self._read_videos, stored))

    def _read_videos(self, stored: StoredDataset, path: Path) -> list[Video]:
        packets = stored.map(self.packets_file)
        if packets.dtype != PACKET or packets.ndim != 1:
            problem = f"the array is {packets.dtype} {list(packets.shape)}, expected {PACKET} [P]"
            raise IntegrityError(str(stored.folder / self.packets_file), [problem])
        videos = read_videos(stored.folder, stored.read_json(self.videos_file), packets, path)
        listed = {entry.path for entry in stored.manifest.files}
        if missing := [name for video in videos if (name := f"{VIDEO_FOLDER}/{video.name}") not in listed]:
            raise IntegrityError(str(path), [f"{missing[0]} is not a file of the manifest"])
        return videos

    @override
    def shared_files(self, stored: StoredDataset) -> Collection[str]:
        return [f"{VIDEO_FOLDER}/{video.name}" for video in self._videos(stored)]

    @override
    def writer(self, folder: Path, dictionary: FrameDictionary | None) -> FieldWriter:
        return VideoWriter(self, folder)


class VideoWriter(FieldWriter):
    """Writer of the packets of images, and of the videos with these packets. See `FieldWriter`."""

    form: VideoForm
    _videos: VideoFiles

    @override
    def open(self, streams: Mapping[str, NpyStream], entries: Sequence[Mapping[str, Any]]) -> None:
        super().open(streams, entries)
        self._videos = VideoFiles(self.folder, streams[self.form.packets_file], entries)

    @override
    def stored_values(self, values: Any) -> Any:
        return self._videos.place(values) if isinstance(values, VideoFrames) else values

    @override
    def unknown(self) -> Any:
        return np.full(1, UNKNOWN)

    @override
    def digests(self, buffer: Any, count: int) -> RowDigests:
        return self._videos.digests(buffer[:count])

    @override
    def merge(self, folder: Path, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Renumber]:
        shifts = self._videos.add_partial(folder, entries, folder / self.form.packets_file)
        return {self.form.file: shifts.apply, self.form.final_file: shifts.apply}

    @override
    def files(self) -> dict[str, int]:
        return self._videos.paths

    @override
    def commit(self, *, sync: bool) -> list[Mapping[str, Any]]:
        return self._videos.commit(sync=sync)

    @override
    def finish(self) -> Mapping[str, bytes]:
        disk.write_json(self.folder / self.form.videos_file, self._videos.to_json())
        return self._videos.ranges


class VideoColumn(ImageColumn):
    """Images that are frames of videos. See `ImageColumn`.

    Args:
        rows: Packet of each image among the packets of all videos, int64 [N].
        videos: The videos, in the order of the packets.
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
    def read_comparable(self, start: int, stop: int) -> NDArray[Any]:
        return self.read_stored(start, stop).texts()

    @override
    def digests(self, start: int, stop: int) -> RowDigests:
        frames = self.read_stored(start, stop)
        return frame_digests([video.name for video in self._videos], frames.numbers, frames.packets)

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
    """Frames of videos as images of some rows, which a writer stores with the video files. See `PixelsOnAccess`."""

    form: ClassVar[Literal["encoded", "compressed", "video"]] = "video"
    noun: ClassVar[str] = VideoForm.noun
    videos: tuple[Video, ...]
    """These videos and maybe others."""
    numbers: NDArray[np.int64]
    """Video of each image, [n]."""
    packets: NDArray[np.int64]
    """Packet of each image in its video, [n], or `UNKNOWN` for an unknown image."""
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

    def texts(self) -> NDArray[Any]:
        """Return which packet of which file each frame is, as text, [n]. The text of an unknown frame is empty."""
        texts = np.empty(len(self), object)
        for row, (number, packet) in enumerate(zip(self.numbers.tolist(), self.packets.tolist(), strict=True)):
            video = self.videos[number]
            texts[row] = "" if packet < 0 else f"packet {packet:,} of {video.name}, {video.packets[packet].item()}"
        return texts

    def decode(self, out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        """Write the pixels to positions of `out`, [n]. An unknown image is zeros.

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
            problem = "the file is missing: another version replaced the opened version, which was deleted"
            raise IntegrityError(str(error.filename), [problem], hint="open the dataset again") from error
        if len(firsts) < len(packets):
            origins = places[firsts][copies.reshape(-1)]
            repeated = np.flatnonzero(origins != places)
            out[places[repeated]] = out[origins[repeated]]

    @override
    def _decode(self, out: NDArray[np.uint8]) -> None:
        self.decode(out, np.arange(len(self)))
