"""Memory of compressed frames: segments that are written in order, and used again once their frames are gone.

    reference, int64    | first byte (40 bits) | bytes (24 bits) |       0 is a frame of zeros

    segments            | f g h i | j k ..... | dead      | l m n o |
    live bytes            ^ 4 used  ^ open      ^ free, the next to be opened

A step holds the references of its frames, so that a frame that two steps hold is stored once. Steps that are written in
ring order leave whole segments dead. After writes in any other order, frames of sparse segments are moved together.

A frame of as many bytes as it has uncompressed is stored uncompressed: frames before the dictionary exists, and frames
that zstd cannot make smaller. Frames that differ little from a typical frame are patches of it, the others zstd frames.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.images.cache import COPIED_BYTES
from datasets_rl.read.threads import run_on_all_cores

if TYPE_CHECKING:
    from datasets_rl.read.compressed_frames import FrameDictionary

Frames = NDArray[np.uint8]
"""Frames, [n, bytes]."""
References = NDArray[np.int64]
"""Where frames are, [n]."""

_LENGTH_BITS: Final = 24
_LENGTH: Final = (1 << _LENGTH_BITS) - 1
_PAGE: Final = 4096
_MAP_NORESERVE: Final = 0x4000  # Python has its name from 3.13 on
_SEGMENT_BYTES: Final = 1 << 18
_FRAMES_PER_SEGMENT: Final = 16
_SPARE_SEGMENTS: Final = 16
"""Number of segments that may be sparse, and least number of sparse segments with frames that are moved at once."""
_MOVED_PART: Final = 8
"""The frames of a segment in so many are moved at once: finding the references takes longer than moving the frames."""
_PATCH_PART: Final = 8
"""Patches may be twice as large as on the disk: most games fit in memory anyway, and zstd takes twice the time to write."""
_PIECE_BYTES: Final = 1 << 24
_WORDS: Final = 8
_WRITING, _HEAD, _END, _USED, _DICTIONARY = range(5)


def starts_of(references: References) -> References:
    """Return the first byte of each frame."""
    return references >> _LENGTH_BITS


def lengths_of(references: References) -> References:
    """Return the number of stored bytes of each frame."""
    return references & _LENGTH


def anonymous_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros of which the system allocates a page at its first write.

    Raises:
        InvalidArgumentError: If there is no such memory.
    """
    try:
        if sys.platform == "linux":  # without a reservation: few of the pages will be written
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)
        return np.zeros(nbytes, np.uint8)
    except (MemoryError, OSError, OverflowError, ValueError) as error:
        raise InvalidArgumentError(
            f"compressed frames need {nbytes:,} bytes of address space, which is not available",
            hint="choose a smaller max_size, or a LazyMemmapStorage",
        ) from error


class FrameRing:
    """Compressed frames of the same size.

        words, int64      being written | next byte, end of its segment | segments used so far | dictionary bytes + 1
        live, int64       bytes of each segment that references name
        dictionary
        segments

    All frames are in a single memory, which processes may share. No part of it is touched before it is needed. If a
    process dies during a write, the next writer counts the live bytes again from the references of all steps.

    Args:
        frame_bytes: Size of a frame in bytes.
        frames: Maximum number of references.
        allocate: Function that returns memory of a number of bytes, zeros before the first write. Called once.
        reserve: Function that is called before so many bytes of the memory are touched for the first time.
        name: The keys of the frames, for messages.

    Raises:
        InvalidArgumentError: If a frame has no bytes, or 16 MiB or more.
    """

    def __init__(
        self,
        frame_bytes: int,
        frames: int,
        allocate: Callable[[int], NDArray[np.uint8]],
        reserve: Callable[[int], None],
        name: str = "the images",
    ) -> None:
        from datasets_rl.read.compressed_frames import FrameDictionary  # deferred: imports zstandard

        if not 0 < frame_bytes <= _LENGTH:
            raise InvalidArgumentError(
                f"a frame of {name} has {frame_bytes:,} bytes, expected 1 to {_LENGTH:,}",
                hint=f"leave {name} out of compress=",
            )
        self.frame_bytes = frame_bytes
        unaligned = max(_SEGMENT_BYTES, _FRAMES_PER_SEGMENT * frame_bytes)
        self.segment_bytes = -(-unaligned // _PAGE) * _PAGE
        self._usable_bytes = self.segment_bytes // frame_bytes * frame_bytes
        # Twice the bytes of frames that cannot be compressed: each of the segments may be half dead. The rest is room
        # to move.
        self._segments = 5 * -(-frames * frame_bytes // self._usable_bytes) // 2 + 4 * _SPARE_SEGMENTS
        dictionary_bytes = FrameDictionary.max_bytes(frame_bytes)
        header = 8 * (_WORDS + self._segments) + dictionary_bytes
        self._first = -(-header // _PAGE) * _PAGE
        self.memory: NDArray[np.uint8] = allocate(self._first + self._segments * self.segment_bytes)
        words = self.memory[: 8 * (_WORDS + self._segments)].view(np.int64)
        self._words, self._live = words[:_WORDS], words[_WORDS:]
        self._dictionary_area = self.memory[8 * len(words) :][:dictionary_bytes]
        self._data = self.memory[self._first :]
        self._dictionary: FrameDictionary | None = None
        self._reserve = reserve
        self._opened = False

    @property
    def writing(self) -> bool:
        """Whether a write has begun and not ended, in this process or in a process that died."""
        return bool(self._words[_WRITING])

    @writing.setter
    def writing(self, value: bool) -> None:
        self._words[_WRITING] = value

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use: the counts, the dictionary, and all segments that have ever been written."""
        return self._first + int(self._words[_USED]) * self.segment_bytes

    @property
    def dictionary(self) -> FrameDictionary | None:
        """The dictionary, or None before the first frames have been seen."""
        size = int(self._words[_DICTIONARY]) - 1
        if self._dictionary is None and size >= 0:
            from datasets_rl.read.compressed_frames import FrameDictionary  # deferred: imports zstandard

            self._dictionary = FrameDictionary(self._dictionary_area[:size].tobytes())
        return self._dictionary

    def train(self, frames: Frames) -> None:
        """Train the dictionary, once: all frames that are compressed later need the dictionary."""
        from datasets_rl.read.compressed_frames import FrameDictionary  # deferred: as above

        self.use_dictionary(FrameDictionary.train(frames).data)

    def use_dictionary(self, data: bytes) -> None:
        """Use a dictionary that exists, before the first frame is compressed."""
        self._dictionary_area[: len(data)] = np.frombuffer(data, np.uint8)
        self._words[_DICTIONARY] = len(data) + 1

    def append(self, frames: Frames) -> References:
        """Store frames, [n, bytes], and count a reference to each frame.

        Without a dictionary, the frames are stored uncompressed.
        """
        from datasets_rl.read.compressed_frames import compress  # deferred: imports zstandard
        from datasets_rl.storages.ring_loops import place_frames  # deferred: loads numba

        if self.dictionary is None:
            compressed, ends = np.empty(0, np.uint8), np.arange(1, len(frames) + 1) * self.frame_bytes
        else:
            compressed, ends = compress(frames, self.dictionary, patch_part=_PATCH_PART)
        references = np.empty(len(frames), np.int64)
        memory = self._data, self._live, self._words[_HEAD : _END + 1]
        number = 0
        while (
            number := place_frames(
                frames, compressed, ends, *memory, references, _LENGTH_BITS, self.segment_bytes, number
            )
        ) < len(frames):
            self._open_segment()
        return references

    def _open_segment(self) -> None:
        segment = int(np.argmin(self._live))
        if self._live[segment]:
            raise RuntimeError("every segment holds frames, expected a free segment")
        if segment >= self._words[_USED]:
            self._reserve(self.segment_bytes)
            self._words[_USED] = segment + 1
        self._opened = True
        self._words[_HEAD] = segment * self.segment_bytes
        self._words[_END] = (segment + 1) * self.segment_bytes

    def retain(self, references: References) -> None:
        """Count another reference to each of these frames, [n]."""
        self._count(references, 1)

    def release(self, references: References) -> None:
        """Count a reference less to each of these frames, [n]: a frame without references is gone."""
        self._count(references, -1)

    def _count(self, references: References, sign: int) -> None:
        from datasets_rl.storages.ring_loops import count_references  # deferred: loads numba

        count_references(references, self._live, _LENGTH_BITS, self.segment_bytes, sign)

    def recount(self, references: References) -> None:
        """Count the references of all steps, [n], after a process has died."""
        self._live[:] = 0
        self._words[_HEAD] = self._words[_END] = 0  # the next write opens a free segment
        self.retain(references)

    def is_sparse(self) -> bool:
        """Return whether more than half of the bytes in use are dead, as after many writes that are not in ring order.

        False if no segment was opened since the last call: the bytes in use are then unchanged.
        """
        if not self._opened:
            return False
        self._opened = False
        live = self._live[: int(self._words[_USED])]
        return int(np.count_nonzero(live)) > 2 * (int(live.sum()) // self._usable_bytes) + _SPARE_SEGMENTS

    def movable(self, references: References) -> References:
        """Return the references to frames that should be moved, [n]: frames in the sparsest segments."""
        live = self._live.copy()
        live[live == 0] = live[(int(self._words[_END]) - 1) // self.segment_bytes] = self.segment_bytes
        count = max(_SPARE_SEGMENTS, int(self._words[_USED]) // _MOVED_PART)
        sparsest = np.argpartition(live, count)[:count]
        chosen = np.zeros(self._segments, np.bool_)
        chosen[sparsest[live[sparsest] <= self.segment_bytes // 2]] = True
        moved: References = references[chosen[starts_of(references) // self.segment_bytes] & (references > 0)]
        return moved

    def read(self, references: References, out: Frames) -> None:
        """Decompress frames, [n], into memory of the caller, [n, bytes]: each distinct frame once.

        Raises:
            ConversionError: If a frame is damaged.
        """
        read_frames(self._data, self.dictionary, references, out)

    def state_dict(self) -> dict[str, Any]:
        """Return the dictionary, and the segments that have been written, as views of about 16 MiB."""
        size = self.segment_bytes * max(_PIECE_BYTES // self.segment_bytes, 1)
        end = int(self._words[_USED]) * self.segment_bytes
        pieces = [torch.from_numpy(self._data[start : min(start + size, end)]) for start in range(0, end, size)]
        trained = int(self._words[_DICTIONARY]) - 1
        dictionary = None if trained < 0 else torch.from_numpy(self._dictionary_area[:trained].copy())
        return {"dictionary": dictionary, "pieces": pieces}


def read_frames(
    data: NDArray[np.uint8], dictionary: FrameDictionary | None, references: References, out: Frames
) -> None:
    """Decompress frames, [n], of some segments, [B], into memory of the caller, [n, bytes]: each distinct frame once.

    Raises:
        ConversionError: If a frame is damaged.
    """
    from datasets_rl.format.images.loops import copy_repeated, find_firsts  # deferred: loads numba
    from datasets_rl.read.compressed_frames import FrameDictionary, decompress  # deferred: imports zstandard

    size = out.shape[1]
    firsts, origins = np.empty_like(references), np.empty_like(references)
    count = find_firsts(references, firsts, origins)
    places = firsts[:count]
    distinct = references[places]
    starts, lengths = starts_of(distinct), lengths_of(distinct)
    plain = lengths == size
    if plain.any():
        out[places[plain]] = sliding_window_view(data, size)[starts[plain]]
        starts, lengths, places = starts[~plain], lengths[~plain], places[~plain]
    if len(places):
        stops = starts + lengths
        decompress(data, starts, stops, dictionary or FrameDictionary(), out, places, name="the compressed frames")
    if count < len(references):
        per_task = max(COPIED_BYTES // size, 1)
        run_on_all_cores(lambda first, last: copy_repeated(out, origins, first, last), len(references), per_task)


class SavedFrames:
    """The frames in a saved state, which may be larger than the memory.

    Args:
        state: The result of `FrameRing.state_dict`, from a file that may have been changed.
        frame_bytes: Size of a frame in bytes.

    Raises:
        InvalidArgumentError: If the state is not a state of compressed frames.
    """

    def __init__(self, state: Any, frame_bytes: int) -> None:
        from datasets_rl.read.compressed_frames import FrameDictionary  # deferred: imports zstandard

        saved = state if isinstance(state, dict) else {}
        dictionary, pieces = saved.get("dictionary"), saved.get("pieces")
        tensors: list[Any] = [None]
        if isinstance(pieces, list):
            tensors = [*pieces, *([] if dictionary is None else [dictionary])]
        if not all(map(_is_bytes, tensors)):
            raise InvalidArgumentError("the compressed frames of the state are not tensors of bytes")
        self._pieces = [piece.numpy() for piece in tensors[: len(saved["pieces"])]]
        self.dictionary = None
        if dictionary is not None:
            self.dictionary = FrameDictionary(tensors[-1].numpy().tobytes())
            if not self.dictionary.fits(frame_bytes):
                raise InvalidArgumentError(
                    f"the dictionary of the state, {len(self.dictionary.data):,} bytes, is not for frames of "
                    f"{frame_bytes:,} bytes"
                )
        self.frame_bytes = frame_bytes
        self._starts = np.cumsum([0, *map(len, self._pieces)])

    def contains(self, references: References) -> bool:
        """Return whether all frames, [n], are inside of a piece."""
        starts, lengths = starts_of(references), lengths_of(references)
        stops = np.append(self._starts[1:], 0)[self._pieces_of(starts)]
        inside = (starts >= 0) & (starts + lengths <= stops) & (lengths <= self.frame_bytes)
        return bool((inside | (references == 0)).all())

    def _pieces_of(self, starts: References) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, starts, side="right") - 1

    def read(self, references: References) -> Frames:
        """Return frames, [n, bytes].

        Raises:
            ConversionError: If a frame is damaged.
        """
        out = np.zeros((len(references), self.frame_bytes), np.uint8)
        pieces = self._pieces_of(starts_of(references))
        for piece in np.unique(pieces[references != 0]):
            chosen = np.flatnonzero((pieces == piece) & (references != 0))
            frames = np.empty((len(chosen), self.frame_bytes), np.uint8)
            offset = int(self._starts[piece]) << _LENGTH_BITS
            read_frames(self._pieces[piece], self.dictionary, references[chosen] - offset, frames)
            out[chosen] = frames
        return out


def _is_bytes(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.uint8 and value.ndim == 1 and value.is_cpu
