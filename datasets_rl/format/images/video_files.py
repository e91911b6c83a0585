"""The video files of a dataset: each copied once, and listed by field.

videos/<digest>.mp4      the upstream's files, unchanged, by digest
<key>.videos.json        the videos of a field, in order
<key>.packets.npy        the packets of these videos, in order
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import IntegrityError
from datasets_rl.fingerprints.canonical import RowDigests, digest_bytes
from datasets_rl.format.digests import digest_of_ranges, range_digests
from datasets_rl.format.npy import NpyStream, unfinished_blocks
from datasets_rl.progress import Report
from datasets_rl.read.video import PACKET, Codec, Video

if TYPE_CHECKING:
    from datasets_rl.format.images.video import VideoFrames

UNKNOWN = -1
"""Packet of an image that is unknown."""
VIDEO_FOLDER = "videos"
_NAME = re.compile(r"[0-9a-f]{32}\.mp4", re.ASCII)
_MAX_BLOCK = 1 << 16


class VideoFiles:
    """The videos of a field that is being written.

    Args:
        folder: The folder of the dataset.
        stream: The stream of the packets.
        entries: The videos that an earlier process committed.
    """

    def __init__(self, folder: Path, stream: NpyStream, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        self._folder = folder / VIDEO_FOLDER
        self._stream = stream
        self._firsts: dict[str, int] = {}
        self._names: dict[tuple[Path, int, int], str] = {}
        self._entries: list[Mapping[str, Any]] = []
        self._packets = 0
        for entry in entries:
            self._list(entry)
        self._committed = len(self._entries)
        self.ranges: dict[str, bytes] = {}
        """Digests of the ranges of the files that this process hashed, by path in the dataset."""

    @property
    def paths(self) -> dict[str, int]:
        """Path in the dataset and size of each file."""
        names = [f"{VIDEO_FOLDER}/{entry['name']}" for entry in self._entries]
        return {name: (self._folder.parent / name).stat().st_size for name in names}

    def place(self, frames: VideoFrames) -> NDArray[np.int64]:
        """Return the packet of each frame among the packets of all videos, [n], after storing the new videos."""
        packets = np.full(len(frames), UNKNOWN, np.int64)
        known = frames.packets >= 0
        for number in np.unique(frames.numbers[known]).tolist():
            mine = known & (frames.numbers == number)
            packets[mine] = self._add(frames.videos[number]) + frames.packets[mine]
        return packets

    def add_partial(self, folder: Path, entries: Sequence[Mapping[str, Any]], packets: Path) -> PacketShifts:
        """Store the videos of a partial dataset, and return the new numbers of the packets.

        Args:
            folder: The folder of the partial dataset.
            entries: The videos of the partial dataset.
            packets: The file of the partial dataset's packets.
        """
        counts = [entry["packets"] for entry in entries]
        blocks = unfinished_blocks(packets, PACKET, (), sum(counts), _MAX_BLOCK)
        tables = _divided(blocks, counts)
        firsts = []
        for entry, table in zip(entries, tables, strict=True):
            if entry["name"] not in self._firsts:
                disk.link_or_copy(folder / VIDEO_FOLDER / entry["name"], self._folder / entry["name"])
                self._stream.append(table)
                self._list(entry)
            firsts.append(self._firsts[entry["name"]])
        return PacketShifts(counts, firsts)

    def digests(self, packets: NDArray[np.int64]) -> RowDigests:
        """Return the digest of the frame of each packet among the packets of all videos, [n, 2], see `frame_digests`."""
        names = [entry["name"] for entry in self._entries]
        firsts = np.array([self._firsts[name] for name in names] or [0])
        numbers = np.searchsorted(firsts, packets, "right") - 1
        return frame_digests(names, numbers, np.where(packets < 0, UNKNOWN, packets - firsts[numbers]))

    def commit(self, *, sync: bool) -> list[Mapping[str, Any]]:
        """Return the videos since the previous commit, as JSON values.

        With `sync`, the files of the videos are on the disk.
        """
        new = self._entries[self._committed :]
        if sync and new:
            for entry in new:
                disk.sync_file(self._folder / entry["name"])
            disk.sync_file(self._folder)
        self._committed = len(self._entries)
        return new

    def to_json(self) -> dict[str, Any]:
        """Return the content of the list of videos."""
        codecs = list({str(entry["codec"]): entry["codec"] for entry in self._entries}.values())
        return {
            "codecs": codecs,
            "videos": [{**entry, "codec": codecs.index(entry["codec"])} for entry in self._entries],
        }

    def _add(self, video: Video) -> int:
        """Store a video unless the video is stored already, and return the number of the first packet."""
        status = video.path.stat()
        source = video.path, status.st_size, status.st_mtime_ns
        if source not in self._names:
            self._names[source] = self._link(video) if video.name else self._copy(video.path)
        name = self._names[source]
        if name not in self._firsts:
            self._stream.append(video.packets)
            base = [video.base.numerator, video.base.denominator]
            entry = {"name": name, "packets": len(video.packets), "base": base, "codec": video.codec.to_json()}
            self._list(entry)
        return self._firsts[name]

    def _list(self, entry: Mapping[str, Any]) -> None:
        self._firsts[entry["name"]] = self._packets
        self._packets += entry["packets"]
        self._entries.append(entry)

    def _link(self, video: Video) -> str:
        if not (self._folder / video.name).exists():
            disk.link_or_copy(video.path, self._folder / video.name)
        return video.name

    def _copy(self, path: Path) -> str:
        """Copy a file of the upstream, which may change or be deleted, and return the name of the copy."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{uuid4().hex}.tmp"
        try:
            with disk.disk_errors(self._folder):
                shutil.copyfile(path, temporary)
                ranges = range_digests(temporary, Report())
            name = _name_of(ranges)
            disk.move_path(temporary, self._folder / name)
        finally:
            disk.remove_tree(temporary)
        self.ranges[f"{VIDEO_FOLDER}/{name}"] = ranges
        return name


def _name_of(ranges: bytes) -> str:
    return f"{digest_of_ranges(ranges)[:32]}.mp4"


def frame_digests(names: Sequence[str], numbers: NDArray[np.int64], packets: NDArray[np.int64]) -> RowDigests:
    """Return the digest of each of n frames, [n]: of its video's digest and its packet. Zero is an unknown frame.

    Args:
        names: The names of videos in a dataset, which are digests.
        numbers: The video of each frame, [n].
        packets: The packet of each frame in its video, [n], or `UNKNOWN`.
    """
    values = np.zeros((len(packets), 3), "<i8")
    if names:
        contents = b"".join(bytes.fromhex(name.partition(".")[0]) for name in names)
        values[:, :2] = np.frombuffer(contents, "<i8").reshape(-1, 2)[numbers]
    values[:, 2] = packets
    digests = digest_bytes(values.view(np.uint8))
    digests[packets < 0] = 0
    return digests


class PacketShifts:
    """Numbers of the packets of a partial dataset among the packets of all videos."""

    def __init__(self, counts: Sequence[int], firsts: Sequence[int]) -> None:
        self._starts = np.cumsum([0, *counts])
        self._shifts = np.append(np.asarray(firsts, np.int64) - self._starts[:-1], 0)

    def apply(self, packets: NDArray[np.int64]) -> None:
        """Replace the packets of rows, [n], in place."""
        numbers = np.searchsorted(self._starts, packets, "right") - 1
        packets += np.where(packets < 0, 0, self._shifts[numbers])


def _divided(blocks: Iterator[NDArray[Any]], counts: Sequence[int]) -> Iterator[NDArray[Any]]:
    """Yield the next `count` items of blocks for each count."""
    rest = np.empty(0, PACKET)
    for count in counts:
        while len(rest) < count:
            rest = np.concatenate([rest, next(blocks)])
        yield rest[:count]
        rest = rest[count:]


def read_videos(folder: Path, document: Any, packets: NDArray[Any], where: Path) -> list[Video]:
    """Return the videos of a field of a dataset.

    Args:
        folder: The folder of the version.
        document: The list of videos, which is not trusted.
        packets: The packets of all videos, `PACKET` [P].
        where: The file of the list, for messages.

    Raises:
        IntegrityError: If the document is not a list of videos, or does not have these packets.
    """
    problem = ""
    try:
        codecs = [Codec.from_json(codec) for codec in document["codecs"]]
        videos, first = [], 0
        for entry in document["videos"]:
            name, count = entry["name"], int(entry["packets"])
            problem = problem or ("" if _NAME.fullmatch(name) and count >= 0 else f"{name!r:.60} has {count:,} packets")
            table = packets[first : first + count]
            first += count
            numbers = np.empty(0, np.int64)
            codec, base = codecs[entry["codec"]], Fraction(*map(int, entry["base"]))
            videos.append(Video(folder / VIDEO_FOLDER / name, codec, base, table, numbers, name))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            str(where), [f"the file is not a list of videos: {type(error).__name__} {error}"]
        ) from error
    if problem or first != len(packets):
        problem = problem or f"the videos have {first:,} packets, expected the {len(packets):,} stored packets"
        raise IntegrityError(str(where), [problem])
    return videos
