"""Compressed frames: each is a patch or a zstd frame, with a dictionary of what the frames of a column have in common.

    frames    | frame 0       | frame 1       | frame 2       |     uint8 [n, bytes]
    data      | patch 0 | zstd 1  | patch 2 |                       uint8 [B], some 30 times fewer
    ends                ^ ends[0] ^ ends[1] ^ ends[2]               int64 [n]

Any frame is read alone: a patch as fast as a copy, and a zstd frame in about a microsecond more.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray
from zstandard._cffi import ffi, lib  # type: ignore[import-not-found]  # compiled, without types

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.read.patches import MAX_TYPICAL, MAX_WORDS, TYPICAL_FRAMES, WORD, FramePatches
from datasets_rl.read.streams import AGAIN, first_problems
from datasets_rl.read.threads import run_on_all_cores

ZSTD_BYTES: Final = 256 << 10
"""Maximum size of the dictionary of zstd. Of the frames of ten Atari games, 64 KB leave 1/28 of the bytes, and 256 KB
1/31."""
TRAINING_FRAMES: Final = 1000
"""Number of frames that a dictionary is trained on. More frames take time and save nothing."""
_TRAINING_BYTES = 64 << 20
_MIN_TRAINING_FRAMES = 8
_LEVEL = 3  # level 5 saves a twentieth of the bytes, in three times the time
_SKIPPABLE, _SKIPPABLE_MAGIC = struct.Struct("<II"), 0x184D2A50  # then as many bytes: zstd's format, "skippable frames"
_HEADER: Final = struct.Struct("<3q")  # the bytes of a dictionary begin with K, W and n of the patches
_MIN_ZSTD_BYTES, _SAMPLE_BYTES_PER_BYTE = 4096, 16
_PATCH_PART: Final = 16
"""Of the frames of ten Atari games, patches of up to a 16th leave 1/31 of the bytes, of up to an 8th 1/26, zstd alone
1/34."""
_TASK_BYTES = 1 << 19  # frames per task of a thread: some 100 microseconds. Half of that takes a fifth longer


Item = TypeVar("Item")


class FrameDictionary:
    """What the frames of a column have in common: each frame is stored as the difference.

        K | W | n       int64, number of typical frames, of words in each, and of words with a code
        typical frames  uint64 [K, W]
        words           uint64 [n]
        zstd            the dictionary of zstd, to the end

    Args:
        data: The bytes of the dictionary, by default of the dictionary of frames that have nothing in common.

    Raises:
        InvalidArgumentError: If the bytes are not a dictionary.
    """

    def __init__(self, data: bytes = bytes(_HEADER.size)) -> None:
        counts = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (-1, 0, 0)
        frames, positions, words = counts
        stop = _HEADER.size + WORD * (frames * positions + words)
        are_possible = 0 <= frames <= MAX_TYPICAL and 0 <= positions <= len(data) and 0 <= words <= MAX_WORDS
        if not are_possible or stop > len(data):
            raise InvalidArgumentError(
                f"the dictionary of compressed frames has {len(data):,} bytes that begin with the numbers {counts}, "
                f"expected up to {MAX_TYPICAL} typical frames, words, and up to {MAX_WORDS:,} words with a code"
            )
        values = np.frombuffer(data, np.uint64, (stop - _HEADER.size) // WORD, _HEADER.size)
        typical = values[: frames * positions].reshape(frames, positions)
        self.data = data
        self.patches, self._zstd = FramePatches(typical, values[frames * positions :]), data[stop:]
        self._for_compression: dict[int, Any] = {}

    @classmethod
    def train(cls, frames: NDArray[np.uint8], max_bytes: int = ZSTD_BYTES) -> FrameDictionary:
        """Return a dictionary for similar frames.

        Args:
            frames: Frames, [n, ...]: some `TRAINING_FRAMES`, spread over what will be compressed.
            max_bytes: Maximum size of the part of zstd.
        """
        flat = _flat(frames)
        if len(flat) < _MIN_TRAINING_FRAMES:
            return cls()
        flat = np.ascontiguousarray(flat[:: math.ceil(flat.nbytes / _TRAINING_BYTES)])
        patches, zstd = FramePatches.train(flat), _train_zstd(flat, max_bytes)
        header = _HEADER.pack(*patches.typical.shape, len(patches.words))
        return cls(header + patches.typical.tobytes() + patches.words.tobytes() + zstd)

    @staticmethod
    def max_bytes(frame_bytes: int) -> int:
        """Return the maximum size of a dictionary that is trained on frames of so many bytes."""
        return _HEADER.size + TYPICAL_FRAMES * frame_bytes + MAX_WORDS * WORD + ZSTD_BYTES

    def fits(self, frame_bytes: int) -> bool:
        """Return whether the dictionary may have been trained on frames of so many bytes."""
        typical = self.patches.typical
        is_for_size = not len(typical) or typical.shape[1] * WORD == frame_bytes
        return is_for_size and len(self.data) <= self.max_bytes(frame_bytes)

    def patches_of(self, frame_bytes: int) -> FramePatches:
        """Return what patches of frames of so many bytes need, or nothing for frames of another size than the typical frames."""
        return self.patches if self.patches.typical.shape[1] * WORD == frame_bytes else FramePatches()

    @cached_property
    def without_patches(self) -> FrameDictionary:
        """The same dictionary for zstd alone: either dictionary reads frames that this dictionary compresses."""
        return FrameDictionary(bytes(_HEADER.size) + self._zstd)

    @cached_property
    def for_decompression(self) -> Any:
        """The C object of the dictionary that `decompress` takes."""
        made = lib.ZSTD_createDDict(ffi.from_buffer(self._zstd), len(self._zstd)) if self._zstd else ffi.NULL
        return ffi.gc(made, lib.ZSTD_freeDDict)

    def for_compression(self, frame_bytes: int) -> Any:
        """Return the C object of the dictionary that `compress` takes for frames of this size."""
        if (prepared := self._for_compression.get(frame_bytes)) is not None:
            return prepared
        parameters = lib.ZSTD_getCParams(_LEVEL, frame_bytes, len(self._zstd))
        made = lib.ZSTD_createCDict_advanced(
            ffi.from_buffer(self._zstd),
            len(self._zstd),
            lib.ZSTD_dlm_byCopy,
            lib.ZSTD_dct_auto,
            parameters,
            lib.ZSTD_defaultCMem,
        )
        self._for_compression[frame_bytes] = prepared = ffi.gc(made, lib.ZSTD_freeCDict)
        return prepared

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameDictionary, (self.data,)


def _train_zstd(frames: NDArray[np.uint8], max_bytes: int) -> bytes:
    """Return a dictionary of zstd for similar frames, [n, bytes], or no bytes if the frames have nothing in common."""
    if (size := min(max_bytes, frames.nbytes // _SAMPLE_BYTES_PER_BYTE)) < _MIN_ZSTD_BYTES:
        return b""
    # Of segments as large as a frame, because the same part of two frames is in the same place.
    segment = max(min(frames.shape[1], size // 8), 16)
    try:
        return zstandard.train_dictionary(
            size, [frame.tobytes() for frame in frames], k=segment, d=8, level=_LEVEL
        ).as_bytes()
    except zstandard.ZstdError:  # the frames are too small, or all frames are equal
        return b""


def compress(
    frames: NDArray[np.uint8], dictionary: FrameDictionary, *, patch_part: int = _PATCH_PART
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Compress frames, each alone, on all cores.

    Args:
        frames: Frames of a shape, [n, ...].
        dictionary: The dictionary that the frames will be decompressed with.
        patch_part: A patch has at most this part of the bytes of the frame. Larger patches are left to zstd.

    Returns:
        data: The compressed frames in order, [B].
        ends: Byte after the last byte of each frame in `data`, [n].
    """
    from datasets_rl.read.frame_loops import compress_frames

    flat = _flat(frames)
    count, size = flat.shape
    max_bytes = lib.ZSTD_compressBound(size)
    ends = np.empty(count, np.int64)
    pieces: dict[int, NDArray[np.uint8]] = {}
    prepared = dictionary.for_compression(size)
    patches = dictionary.patches_of(size)

    def compress_range(first: int, last: int) -> None:
        with _borrow(_compressors, _Compressor) as compressor:
            context, out = compressor.prepare(prepared, max_bytes * (last - first))
            written = compress_frames(
                _function("ZSTD_compress2"),
                context,
                flat,
                out,
                ends,
                patches.typical,
                patches.probes,
                patches.probed,
                patches.words,
                patches.table,
                size // patch_part,
                first,
                last,
            )
            if written < 0:
                raise MemoryError(f"zstd reports: {ffi.string(lib.ZSTD_getErrorName(written % (1 << 64))).decode()}")
            pieces[first] = out[:written].copy()

    run_on_all_cores(compress_range, count, max(_TASK_BYTES // max(size, 1), 1))
    if len(pieces) == 1:
        return pieces[0], ends
    firsts = sorted(pieces)
    end = 0
    for first, last in pairwise([*firsts, count]):
        ends[first:last] += end
        end += len(pieces[first])
    return np.concatenate([np.empty(0, np.uint8), *(pieces[first] for first in firsts)]), ends


def decompress(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    dictionary: FrameDictionary,
    out: NDArray[np.uint8],
    positions: NDArray[np.int64] | None = None,
    *,
    name: str = "frames",
    numbers: NDArray[np.int64] | None = None,
) -> None:
    """Decompress frames into the memory of the caller, on all cores.

    No frame writes outside the place of the frame in `out`, whatever the bytes claim.

    Args:
        data: Compressed frames, [B].
        starts: First byte of each frame, [n].
        stops: Byte after the last byte of each frame, [n]. A frame without bytes becomes zeros.
        dictionary: The dictionary that the frames were compressed with.
        out: Output, [N, ...], contiguous.
        positions: Position of each frame in `out`, [n], by default 0 to n - 1.
        name: Name of the frames in errors.
        numbers: Number of each frame in errors, [n], by default 0 to n - 1.

    Raises:
        ConversionError: If the bytes of a frame are damaged or outside `data`, or the frame has another size. The error
            names the number of each.
    """
    from datasets_rl.read.frame_loops import decompress_frames

    flat = out.reshape(len(out), -1) if len(out) else np.empty((0, 0), np.uint8)
    places = np.arange(len(starts)) if positions is None else positions
    damaged = np.zeros(len(starts), np.bool_)
    prepared = dictionary.for_decompression
    patches = dictionary.patches_of(flat.shape[1])

    def decompress_range(first: int, last: int) -> None:
        with _borrow(_decompressors, _decompression_context) as context:
            decompress_frames(
                _function("ZSTD_decompress_usingDDict"),
                _address(context),
                _address(prepared),
                data,
                starts,
                stops,
                flat,
                places,
                damaged,
                patches.typical,
                patches.words,
                first,
                last,
            )

    run_on_all_cores(decompress_range, len(starts), max(_TASK_BYTES // max(flat.shape[1], 1), 1))
    if damaged.any():
        wrong = np.flatnonzero(damaged)
        shown = wrong if numbers is None else numbers[wrong]
        problem = f"is damaged: the result is not {flat.shape[1]:,} bytes that were compressed with this dictionary"
        raise ConversionError(
            name, first_problems([f"frame {number:,} {problem}" for number in shown], "frames"), hint=AGAIN
        )


def reserved(frame_bytes: int) -> NDArray[np.uint8]:
    """Return bytes that any zstd frame of this size can replace, see `padded`. The bytes are not a frame."""
    return padded(np.empty(0, np.uint8), lib.ZSTD_compressBound(frame_bytes) + _SKIPPABLE.size)


def padded(frame: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return a zstd frame, [B], followed by bytes that zstd skips, [size]."""
    content = size - len(frame) - _SKIPPABLE.size
    header = np.frombuffer(_SKIPPABLE.pack(_SKIPPABLE_MAGIC, content), np.uint8)
    return np.concatenate([frame, header, np.zeros(content, np.uint8)])


class _Compressor:
    """What a thread needs to compress: a context of zstd, which has a dictionary, and memory for the output."""

    def __init__(self) -> None:
        self._context = ffi.gc(lib.ZSTD_createCCtx(), lib.ZSTD_freeCCtx)
        lib.ZSTD_CCtx_setParameter(self._context, lib.ZSTD_c_dictIDFlag, 0)  # four bytes of each frame
        self._dictionary: Any = None
        self._out = np.empty(0, np.uint8)

    def prepare(self, dictionary: Any, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
        """Return the address of the context with a dictionary, and `nbytes` bytes or more."""
        if dictionary is not self._dictionary:
            lib.ZSTD_CCtx_refCDict(self._context, dictionary)
            self._dictionary = dictionary  # which the context does not keep alive
        if len(self._out) < nbytes:
            self._out = np.empty(nbytes, np.uint8)  # the system gives memory only to written pages
        return _address(self._context), self._out


def _decompression_context() -> Any:
    return ffi.gc(lib.ZSTD_createDCtx(), lib.ZSTD_freeDCtx)


_compressors: deque[_Compressor] = deque()
_decompressors: deque[Any] = deque()
"""The contexts that no thread uses."""


@contextmanager
def _borrow(idle: deque[Item], create: Callable[[], Item]) -> Iterator[Item]:
    """Take an idle context, or a new context, for a thread, and return the context afterwards."""
    try:
        item = idle.pop()
    except IndexError:
        item = create()
    try:
        yield item
    finally:
        idle.append(item)


@cache
def _function(name: str) -> int:
    """Return the address of a C function."""
    return _address(ffi.addressof(lib, name))


def _address(pointer: Any) -> int:
    return int(ffi.cast("intptr_t", pointer))


def _flat(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return frames as contiguous rows of bytes, [n, bytes]."""
    return np.ascontiguousarray(frames).reshape(len(frames), -1) if len(frames) else np.empty((0, 0), np.uint8)
