"""Reader of video files: the packets of a file, and any frames of the file, decoded on all cores.

packets    | key |     | key |     | key |     |      in the order of decoding
frames        0     1     2     3     4     5
wanted              x                 x     x
passes     |-------->|              |-------->|        each from a key frame to the last wanted frame, in some thread

The index has the place of every packet in the file, so that frames are read without opening the file as a video again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import importing
from datasets_rl.read.streams import AGAIN, unexpected_format
from datasets_rl.read.threads import core_count, run_on_all_cores

if TYPE_CHECKING:
    from av import VideoFrame
    from av.video.reformatter import VideoReformatter

PACKET = np.dtype([("offset", "<i8"), ("pts", "<i8"), ("size", "<i4"), ("back", "<i4")])
"""A packet of a video: first byte in the file, time of the frame in units of `Video.base`, number of bytes, and
the number of packets back to the key frame at which decoding begins."""
_FORMATS = {1: "gray", 3: "rgb24"}
_SPACES = {1: "GRAY", 3: "RGB"}
_DECODERS = {"av1": ("libdav1d", "libaom-av1")}
"""Decoders of codecs, where the decoder of the same name needs a graphics card."""
_TASK_PACKETS = 16  # some milliseconds
_IDLE_BYTES = 128 << 20
_CODEC_FRAMES = 8  # that a decoder holds

Keep: TypeAlias = "Callable[[int, VideoFrame, VideoReformatter], object]"
"""Takes the position of a frame among the wanted frames, the frame, and the reformatter of the thread."""


def check_installed(purpose: str) -> None:
    """Check that videos can be decoded.

    Raises:
        MissingDependencyError: If PyAV is not installed.
    """
    with importing("av", "video", purpose):
        import av  # noqa: F401 -- it is installed


@dataclass(frozen=True, slots=True)
class Codec:
    """What a decoder has to know of a video before the first packet. Videos of a camera mostly share these facts."""

    name: str
    """Name of the codec, such as ``av1``."""
    extradata: bytes
    """Parameters of the codec from the header of the file."""
    height: int
    width: int
    pix_fmt: str
    color_range: int
    colorspace: int
    color_primaries: int
    color_trc: int

    def to_json(self) -> dict[str, Any]:
        """Return the codec as a JSON value."""
        return {**asdict(self), "extradata": self.extradata.hex()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Codec:
        """Restore a codec from the output of `to_json`. The input is untrusted.

        Raises:
            ValueError, TypeError, KeyError: If the input is not a codec.
        """
        numbers = {name: int(document[name]) for name in cls.__slots__[2:] if name != "pix_fmt"}
        return cls(str(document["name"]), bytes.fromhex(document["extradata"]), pix_fmt=document["pix_fmt"], **numbers)


@dataclass(frozen=True, eq=False)
class Video:
    """A video file, and the places of the packets."""

    path: Path
    codec: Codec
    base: Fraction
    """Seconds per unit of the times of packets."""
    packets: NDArray[np.void]
    """The packets in the order of decoding, `PACKET` [P]."""
    frames: NDArray[np.int64]
    """Packet of each frame, ascending by time, [F]. A file may have packets of frames that are not shown."""
    name: str = ""
    """Name of the file in a stored dataset, where files never change, or empty for a file of an upstream."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a frame."""
        return self.codec.height, self.codec.width

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Time of each frame, [F], in seconds, ascending."""
        times: NDArray[np.int64] = self.packets["pts"][self.frames]
        return times * self.base.numerator / self.base.denominator


def index_video(path: Path) -> Video:
    """Return the packets of a video file, without decoding it.

    Raises:
        ConversionError: If the file is not a video, is truncated, or has packets that are not parts of the file.
        MissingDependencyError: If PyAV is not installed.
    """
    check_installed(f"decoding {path.name}")
    import av

    packets: list[tuple[int, ...]] = []
    keys, shown = [], []
    try:
        with av.open(str(path)) as container, path.open("rb") as stream:
            if not container.streams.video:
                raise ConversionError(path.name, ["it has no video stream"])
            if (count := max(_description_counts(stream), default=1)) > 1:
                raise ConversionError(path.name, [f"a track has {count:,} descriptions of codecs, expected 1"])
            video = container.streams.video[0]
            if video.codec_context is None:
                raise ConversionError(
                    path.name, ["the video stream is of a codec that FFmpeg does not know"], hint=AGAIN
                )
            for packet in container.demux(video):
                if packet.pts is None or packet.pos is None:
                    continue
                stream.seek(packet.pos)
                if stream.read(packet.size) != bytes(packet):
                    problem = f"packet {len(packets):,} of the video is not a part of the file, expected an MP4 file"
                    raise ConversionError(path.name, [problem])
                packets.append((packet.pos, packet.pts, packet.size, 0))
                keys.append(packet.is_keyframe)
                shown.append(not packet.is_discard)
            codec = _codec_of(video.codec_context)
            base = Fraction(video.time_base or 1)
    except (av.FFmpegError, ValueError) as error:
        with path.open("rb") as stream:
            head = stream.read(64)
        is_mp4 = head[4:8] == b"ftyp"
        text = "it is damaged or truncated" if is_mp4 else unexpected_format(head, "a video")
        raise ConversionError(path.name, [f"{text}. FFmpeg reports: {_reason(error)}"], hint=AGAIN) from error
    table = np.array(packets, PACKET)
    table["back"] = _packets_back(table["pts"], np.asarray(keys, np.bool_))
    visible = np.flatnonzero(np.asarray(shown, np.bool_))
    _, firsts = np.unique(table["pts"][visible], return_index=True)
    return Video(path, codec, base, table, visible[firsts])


def _description_counts(stream: BinaryIO) -> list[int]:
    """Return how many descriptions of codecs each track of an MP4 file has, or nothing for other files.

    Each packet may use any description, while a decoder here takes a single description. FFmpeg names the packets that
    use another than the packet before, but PyAV shows this from version 16 on only.
    """
    boxes = [(0, stream.seek(0, os.SEEK_END))]
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"):
        boxes = [inner for box in boxes for inner in _boxes(stream, kind, *box)]
    counts = []
    for start, _ in boxes:
        stream.seek(start + 4)  # after the version of the box
        counts.append(int.from_bytes(stream.read(4), "big"))
    return counts


def _boxes(stream: BinaryIO, kind: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield where the contents of the boxes of a type begin and end, among the boxes in the bytes [start, stop) of a file."""
    while start + 8 <= stop:
        stream.seek(start)
        head = stream.read(16)
        size, header = int.from_bytes(head[:4], "big"), 8
        if size == 1:
            size, header = int.from_bytes(head[8:], "big"), 16
        end = start + size if size else stop
        if end < start + header:
            return
        if head[4:8] == kind:
            yield start + header, min(end, stop)
        start = end


def _reason(error: Exception) -> str:
    """Return the message of FFmpeg, without the path of the file."""
    return getattr(error, "strerror", None) or str(error)


def _codec_of(context: Any) -> Codec:
    return Codec(
        name=context.codec.canonical_name,
        extradata=context.extradata or b"",
        height=context.height,
        width=context.width,
        pix_fmt=context.pix_fmt or "",
        color_range=int(context.color_range),
        colorspace=int(context.colorspace),
        color_primaries=int(context.color_primaries),
        color_trc=int(context.color_trc),
    )


def _packets_back(times: NDArray[np.int64], is_key: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of packets from each packet back to the key frame at which the decoding begins, [P].

    A frame that is shown before the last key frame needs the key frame before, too.
    """
    keys = np.union1d([0], np.flatnonzero(is_key)) if len(times) else np.empty(0, np.int64)
    numbers = np.arange(len(times))
    last = np.searchsorted(keys, numbers, "right") - 1
    last -= (times < times[keys[last]]) & (last > 0)
    return numbers - keys[last]


def decode(videos: Sequence[Video], numbers: NDArray[np.integer[Any]], packets: NDArray[np.int64], keep: Keep) -> None:
    """Decode frames on all cores, in one pass for each group of pictures. PyAV decodes without the interpreter's lock.

    Args:
        videos: The videos.
        numbers: Video of each wanted frame, [n].
        packets: Packet of each wanted frame, [n], no frame twice.
        keep: Called with each frame, by any thread, in any order.

    Raises:
        ConversionError: If a frame cannot be decoded.
    """
    if not len(packets):
        return
    order = np.lexsort((packets, numbers))
    video, stops = np.asarray(numbers)[order], packets[order]
    starts = stops.copy()
    for number in np.unique(video).tolist():
        mine = slice(*np.searchsorted(video, [number, number + 1]).tolist())
        starts[mine] -= videos[number].packets["back"][stops[mine]]
    is_new = np.append(True, (video[1:] != video[:-1]) | (starts[1:] > stops[:-1]))
    follows = np.append(False, (video[1:] == video[:-1]) & (starts[1:] <= stops[:-1] + 1))
    firsts = np.flatnonzero(is_new)
    ends = np.append(firsts[1:], len(order))
    # A frame that is shown before the last key frame begins earlier than that key frame does.
    packet_count = int((stops[ends - 1] - np.minimum.reduceat(starts, firsts) + 1).sum())

    errors: dict[int, ConversionError] = {}

    def decode_passes(first: int, last: int) -> None:
        low, high = int(firsts[first]), int(ends[last - 1])
        # Passes that follow each other are a run of packets.
        edges = [low, *(at for at in firsts[first + 1 : last].tolist() if not follows[at]), high]
        try:
            for start, stop in pairwise(edges):
                run = slice(start, stop)
                _decode_run(videos[video[start]], int(starts[run].min()), stops[run], order[run], keep)
        except ConversionError as error:
            errors[low] = error

    per_task = min(_TASK_PACKETS * len(firsts) // packet_count, len(firsts) // (4 * core_count()))
    run_on_all_cores(decode_passes, len(firsts), max(per_task, 1))
    if errors:  # of the first frame, whichever thread was the fastest
        raise errors[min(errors)]


def _decode_run(video: Video, start: int, wanted: NDArray[np.int64], positions: NDArray[np.int64], keep: Keep) -> None:
    """Decode the packets from `start`, a key frame, to the last wanted frame, and keep the wanted frames, [n]."""
    from av import FFmpegError

    times = video.packets["pts"]
    missing = dict(zip(times[wanted].tolist(), positions.tolist(), strict=True))
    run = slice(start, int(wanted[-1]) + 1)
    keys = {*times[run][video.packets["back"][run] == 0].tolist()}
    decoder = _take_decoder(video.codec)

    def keep_wanted(frames: Iterable[Any]) -> None:
        for frame in frames:
            if frame.pts in keys and not frame.key_frame:
                raise ValueError("the file lists it as a key frame, but it is not")
            if (position := missing.pop(frame.pts, None)) is not None:
                keep(position, frame, decoder.reformatter)

    time = int(times[start])
    try:
        for packet in _read_packets(video, run):
            time = packet.pts
            keep_wanted(decoder.context.decode(packet))
        if missing:  # the decoder returns some frames only after further packets
            keep_wanted(decoder.context.decode(None))
        decoder.context.flush_buffers()
    except (FFmpegError, ValueError) as error:
        problem = f"{_frame_text(video, time)} cannot be decoded: {_reason(error)}"
        raise ConversionError(video.path.name, [problem], hint=AGAIN) from error
    if missing:
        problem = f"{_frame_text(video, min(missing))} is missing between frames that can be decoded"
        raise ConversionError(video.path.name, [problem], hint=AGAIN)
    _return_decoder(decoder)


def _frame_text(video: Video, time: int) -> str:
    return f"the frame at {time * video.base.numerator / video.base.denominator:.4f} s"


def _read_packets(video: Video, run: slice) -> Iterator[Any]:
    from av import Packet

    with video.path.open("rb", buffering=0) as stream:
        for offset, time, size, back in video.packets[run].tolist():
            stream.seek(offset)
            data = stream.read(size)
            if len(data) < size:
                problem = f"it ends before {_frame_text(video, time)}: {offset + len(data):,} bytes"
                raise ConversionError(video.path.name, [problem], hint=AGAIN)
            packet = Packet(data)
            packet.pts = time
            packet.is_keyframe = back == 0  # PNG adds others to the frame before
            yield packet


class _Decoder:
    """A decoder, used by one thread at a time.

    A decoder has a single thread: the threads of the caller decode several frames at once.
    """

    def __init__(self, codec: Codec) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.codec = codec
        for name in _DECODERS.get(codec.name, (codec.name,)):
            if name in av.codecs_available:
                break
        self.context: Any = av.CodecContext.create(name, "r")
        self.context.extradata = codec.extradata or None
        self.context.thread_count = 1
        self.context.options = {"err_detect": "explode"}  # by default damaged parts are replaced by the parts around
        for attribute in Codec.__slots__[2:]:
            if value := getattr(codec, attribute):
                setattr(self.context, attribute, value)
        self.reformatter = VideoReformatter()

    @property
    def bytes(self) -> int:
        """Estimated memory in bytes."""
        return self.codec.height * self.codec.width * 3 // 2 * _CODEC_FRAMES


_lock = Lock()
_idle: list[_Decoder] = []
"""Decoders of this process that no thread uses, the last used decoder last."""


def _take_decoder(codec: Codec) -> _Decoder:
    with _lock:
        for at in reversed(range(len(_idle))):
            if _idle[at].codec == codec:
                return _idle.pop(at)
    return _Decoder(codec)


def _return_decoder(decoder: _Decoder) -> None:
    with _lock:
        _idle.append(decoder)
        while len(_idle) > 1 and sum(one.bytes for one in _idle) > _IDLE_BYTES:
            del _idle[0]


def _reset_after_fork() -> None:
    """Forget, in a forked process, the decoders, which a thread of the parent may have been using.

    Decoders are never released: FFmpeg would wait for the threads of each decoder, which the forked process does not have.
    """
    global _lock, _idle
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_idle))
    _lock, _idle = Lock(), []


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)


def decode_pixels(
    videos: Sequence[Video],
    numbers: NDArray[np.integer[Any]],
    packets: NDArray[np.int64],
    out: NDArray[np.uint8],
    positions: NDArray[np.int64] | None = None,
) -> None:
    """Decode frames into positions of `out`, uint8 [N, rows, columns, channels], resized to the shape of `out`.

    Args:
        videos: The videos.
        numbers: Video of each frame, [n].
        packets: Packet of each frame, [n], no frame twice.
        out: Output.
        positions: Position of each frame in `out`, [n], by default 0 to n - 1.

    Raises:
        ConversionError: If a frame cannot be decoded.
    """
    shape = out.shape[1:]
    lines = out.reshape(len(out), shape[0], shape[1] * shape[2])
    places = None if positions is None else positions.tolist()

    def keep(number: int, frame: VideoFrame, reformatter: VideoReformatter) -> None:
        plane: Any = _resized(frame, shape, reformatter).planes[0]
        rows = np.frombuffer(plane, np.uint8, plane.line_size * shape[0]).reshape(shape[0], plane.line_size)
        lines[number if places is None else places[number]] = rows[:, : lines.shape[2]]

    decode(videos, numbers, packets, keep)


def decode_codes(
    videos: Sequence[Video],
    numbers: NDArray[np.integer[Any]],
    packets: NDArray[np.int64],
    out: NDArray[np.uint16],
    pixel_format: str,
) -> None:
    """Decode the gray values of frames of more than 8 bits, such as those of depth cameras.

    Args:
        videos: The videos.
        numbers: Video of each frame, [n].
        packets: Packet of each frame, [n], no frame twice.
        out: Output, uint16 [n, rows, columns].
        pixel_format: ``gray12le`` or ``gray16le``.

    Raises:
        ConversionError: If a frame cannot be decoded.
    """

    def keep(number: int, frame: VideoFrame, reformatter: VideoReformatter) -> None:
        gray = frame if frame.format.name == pixel_format else reformatter.reformat(frame, format=pixel_format)
        plane: Any = gray.planes[0]
        rows, columns = out.shape[1:]
        lines = np.frombuffer(plane, "<u2", plane.line_size // 2 * rows).reshape(rows, -1)
        out[number] = lines[:, :columns]

    decode(videos, numbers, packets, keep)


def decode_to_jpeg(
    videos: Sequence[Video],
    numbers: NDArray[np.integer[Any]],
    packets: NDArray[np.int64],
    shape: tuple[int, ...],
    quality: int,
) -> list[bytes]:
    """Return frames as JPEG images, resized to `shape`.

    Args:
        videos: The videos.
        numbers: Video of each frame, [n].
        packets: Packet of each frame, [n], no frame twice.
        shape: Rows, columns and channels, 1 or 3.
        quality: The quality of JPEG, 1 to 100.

    Raises:
        ConversionError: If a frame cannot be decoded.
    """
    import simplejpeg

    out = [b""] * len(packets)

    def keep(number: int, frame: VideoFrame, reformatter: VideoReformatter) -> None:
        pixels = np.ascontiguousarray(_resized(frame, shape, reformatter).to_ndarray()).reshape(shape)
        # The colors of almost all videos have half of the resolution already.
        out[number] = simplejpeg.encode_jpeg(pixels, quality, _SPACES[shape[2]], "420" if shape[2] > 1 else "gray")

    decode(videos, numbers, packets, keep)
    return out


def _resized(frame: VideoFrame, shape: tuple[int, ...], reformatter: VideoReformatter) -> VideoFrame:
    rows, columns, channels = shape
    # An area mean, where an image becomes smaller: the default skips pixels.
    smaller = "AREA" if (frame.height, frame.width) != (rows, columns) else None
    return reformatter.reformat(frame, columns, rows, _FORMATS[channels], interpolation=smaller, **_one_thread_each())


@cache
def _one_thread_each() -> Mapping[str, Any]:
    """Return the argument of `reformat` for a single thread, which PyAV always uses before version 17."""
    import av

    return {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}
