"""Loops over the frames of a batch that call zstd's C functions by address, imported only when needed.

Nothing of Python runs between two frames, and the interpreter's lock is released: a frame takes what zstd takes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from datasets_rl.loop_compiler import compile_for, copy_items

_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_NUMBERS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_FRAMES = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_WORDS = numba.types.Array(numba.uint64, 1, "C", readonly=True)
_CODES = numba.types.Array(numba.int32, 1, "C", readonly=True)
_TYPICAL = numba.types.Array(numba.uint64, 2, "C", readonly=True)
_PLACES = numba.int32[::1]


@intrinsic
def _call_of_five(typing_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Call a C function of five words, addresses or sizes, that returns a size."""
    del typing_context, function, a, b, c, d, e
    return numba.int64(*(numba.int64,) * 6), _generate_call


@intrinsic
def _call_of_six(typing_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    """Call a C function of six words, addresses or sizes, that returns a size."""
    del typing_context, function, a, b, c, d, e, f
    return numba.int64(*(numba.int64,) * 7), _generate_call


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the processor to load the memory at an address, which may be any address. Nothing waits for the memory."""
    del typing_context, address
    return numba.void(numba.int64), _generate_prefetch


def _generate_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    del signature
    pointer, option = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, *[option] * 3])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    read, keep, data = option(0), option(3), option(1)
    builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep, data])
    return context.get_dummy_value()


def _generate_call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    del context, signature
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word] * (len(arguments) - 1)).as_pointer()
    return builder.call(builder.inttoptr(arguments[0], kind), arguments[1:])


# The compiler passes the first argument.
_call_five: Any = _call_of_five
_call_six: Any = _call_of_six
_load_ahead: Any = _prefetch

_AHEAD, _AHEAD_BYTES, _LINE = 4, 1024, 64
"""Number of frames ahead of which the first bytes are loaded: random frames take a seventh less time."""
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)
"""The place of a word in a table are the bits of its product with the factor from this bit on."""
_ZSTD, _HEADER, _NO_CODE = 0x28, 3, 0xFFFF
"""First byte of a zstd frame, bytes of a patch before the gaps, and the code of a word without a code."""


@compile_for(numba.void(_WORDS, numba.int32[::1]))
def find_places(words: Any, table: Any) -> None:
    """Enter words into a table, in which each word is at its place, or at the next free place.

    Args:
        words: The word of each code, all different, uint64 [n].
        table: Output: the code at each place, int32 [2^k], more than n. All codes are -1 before, for none.
    """
    mask = numba.uint64(table.size - 1)
    for code in range(words.size):
        place = words[code] * _FACTOR >> _SHIFT & mask
        while table[place] >= 0:
            place = (place + numba.uint64(1)) & mask
        table[place] = code


@compile_for(numba.int64(_WORDS, _TYPICAL, _NUMBERS, _TYPICAL))
def _find_nearest(frame: Any, typical: Any, probes: Any, probed: Any) -> int:
    """Return the number of the typical frame that differs in the fewest of the probed words."""
    nearest, least = 0, probes.size + 1
    words = np.empty(probes.size, np.uint64)
    for number in range(probes.size):
        words[number] = frame[probes[number]]
    for number in range(typical.shape[0]):
        row, different = probed[number], 0
        for place in range(words.size):
            different += row[place] != words[place]
        if different < least:
            nearest, least = number, different
    return nearest


@compile_for(numba.int64(_WORDS, _WORDS, _PLACES))
def _find_words(frame: Any, base: Any, positions: Any) -> int:
    """Find the words, [n], of a patch: words that differ, and some words between, so that a gap fits in a byte.

    Args:
        frame: The frame, uint64 [W].
        base: The typical frame, uint64 [W].
        positions: Output, int32 [W].
    """
    count = before = 0
    for position in range(frame.size):
        if frame[position] != base[position]:
            while position - before > 0xFF:
                before += 0xFF
                positions[count] = before
                count += 1
            positions[count] = before = position
            count += 1
    return count


@compile_for(
    numba.int64(_WORDS, _TYPICAL, _NUMBERS, _TYPICAL, _WORDS, _CODES, numba.uint8[::1], *(numba.int64,) * 2, _PLACES)
)
def _make_patch(
    frame: Any,
    typical: Any,
    probes: Any,
    probed: Any,
    words: Any,
    table: Any,
    out: Any,
    start: int,
    max_bytes: int,
    positions: Any,
) -> int:
    """Write the patch of a frame from `start` on, and return the number of bytes, or 0 for more than `max_bytes`.

    Args:
        frame: The frame, uint64 [W].
        typical: The typical frames, uint64 [K, W].
        probes: See `FramePatches.probes`, [P].
        probed: See `FramePatches.probed`, uint64 [K, P].
        words: The word of each code, uint64 [n].
        table: See `find_places`.
        out: Output, uint8 [B].
        start: First byte of the patch in `out`.
        max_bytes: Maximum size of the patch.
        positions: Memory for the positions of words, int32 [W].
    """
    number = _find_nearest(frame, typical, probes, probed)
    count = _find_words(frame, typical[number], positions)
    gaps, codes, end = start + _HEADER, start + _HEADER + count, start + _HEADER + 3 * count
    last = start + max_bytes - 8
    if end > last:
        return 0
    out[start], out[start + 1], out[start + 2] = number, count & 0xFF, count >> 8
    mask = numba.uint64(table.size - 1)
    before = 0
    for at in range(count):
        word = frame[positions[at]]
        place = word * _FACTOR >> _SHIFT & mask
        code = table[place]
        while code >= 0 and words[code] != word:
            place = (place + numba.uint64(1)) & mask
            code = table[place]
        if code < 0:
            if end > last:
                return 0
            code = _NO_CODE
            for byte in range(8):
                out[end + byte] = (word >> numba.uint64(8 * byte)) & numba.uint64(0xFF)
            end += 8
        out[gaps + at] = positions[at] - before
        out[codes + 2 * at], out[codes + 2 * at + 1] = code & 0xFF, code >> 8
        before = positions[at]
    return end - start


@compile_for(numba.boolean(_BYTES, *(numba.int64,) * 2, _TYPICAL, _WORDS, numba.uint64[::1]))
def _apply_patch(data: Any, start: int, stop: int, typical: Any, words: Any, out: Any) -> Any:
    """Write the frame of a patch, the bytes `start` to `stop` of `data`, to `out`, and return False if the patch is damaged.

    The first byte must be the number of a typical frame.
    """
    if stop - start < _HEADER:
        return False
    count = data[start + 1] | data[start + 2] << 8
    gaps = start + _HEADER
    codes, end = gaps + count, gaps + 3 * count
    if end > stop:
        return False
    copy_items(typical, data[start] * out.size, out, 0, out.size)
    position = 0
    for number in range(count):
        position += data[gaps + number]
        if position >= out.size:
            return False
        code = data[codes + 2 * number] | data[codes + 2 * number + 1] << 8
        if code < words.size:
            out[position] = words[code]
        elif code == _NO_CODE and end + 8 <= stop:
            word = numba.uint64(0)
            for byte in range(8):
                word |= numba.uint64(data[end + byte]) << numba.uint64(8 * byte)
            out[position] = word
            end += 8
        else:
            return False
    return end == stop


@compile_for(
    numba.int64(
        *(numba.int64,) * 3,
        _BYTES,
        _NUMBERS,
        _NUMBERS,
        numba.uint8[:, ::1],
        _NUMBERS,
        numba.boolean[::1],
        _TYPICAL,
        _WORDS,
        *(numba.int64,) * 2,
    )
)
def decompress_frames(
    function: int,
    context: int,
    dictionary: int,
    data: Any,
    starts: Any,
    stops: Any,
    out: Any,
    positions: Any,
    damaged: Any,
    typical: Any,
    words: Any,
    first: int,
    last: int,
) -> int:
    """Decompress the frames `first` to `last`, and return how many are damaged, which `damaged` marks.

    Args:
        function: Address of ZSTD_decompress_usingDDict.
        context: Address of a decompression context.
        dictionary: Address of a dictionary, or 0.
        data: Compressed frames, uint8 [B].
        starts: First byte of each frame, [n].
        stops: Byte after the last byte of each frame, [n]. A frame without bytes becomes zeros.
        out: Output, uint8 [N, bytes].
        positions: Position of each frame in `out`, [n].
        damaged: Output, bool [n]: whether the bytes are outside `data`, are not zstd, or give another number of bytes.
        typical: The typical frames of patches, uint64 [K, W], or none if no frame is a patch.
        words: The word of each code of patches, uint64 [n].
        first: Number of the first frame.
        last: Number after the number of the last frame.
    """
    size = out.shape[1]
    count = 0
    for number in range(first, last):
        if number + _AHEAD < last:
            start, stop = starts[number + _AHEAD], stops[number + _AHEAD]
            if 0 <= start < stop <= data.size:  # others are found to be damaged below
                for at in range(start, min(stop, start + _AHEAD_BYTES), _LINE):
                    _load_ahead(data.ctypes.data + at)
        start, stop, position = starts[number], stops[number], positions[number]
        if start == stop:
            out[position] = 0
            continue
        if 0 <= start < stop <= data.size:
            if data[start] == _ZSTD:
                source, target = data[start:].ctypes.data, out[position].ctypes.data
                if _call_six(function, context, target, size, source, stop - start, dictionary) == size:
                    continue
            # Only frames that consist of whole words have typical frames.
            elif data[start] < typical.shape[0] and _apply_patch(
                data, start, stop, typical, words, out[position].view(np.uint64)
            ):
                continue
        damaged[number] = True
        count += 1
    return count


@compile_for(
    numba.int64(
        *(numba.int64,) * 2,
        _FRAMES,
        numba.uint8[::1],
        numba.int64[::1],
        _TYPICAL,
        _NUMBERS,
        _TYPICAL,
        _WORDS,
        _CODES,
        *(numba.int64,) * 3,
    )
)
def compress_frames(
    function: int,
    context: int,
    frames: Any,
    out: Any,
    ends: Any,
    typical: Any,
    probes: Any,
    probed: Any,
    words: Any,
    table: Any,
    max_patch: int,
    first: int,
    last: int,
) -> int:
    """Compress the frames `first` to `last` in order, and return the bytes of all, or an error of zstd below 0.

    Args:
        function: Address of ZSTD_compress2.
        context: Address of a compression context, with a level and a dictionary.
        frames: Frames, uint8 [n, bytes].
        out: Output, uint8 [B], large enough for frames that do not become smaller.
        ends: Output, int64 [n]: byte after the last byte of each frame in `out`.
        typical: The typical frames of patches, uint64 [K, W], or none for no patches.
        probes: See `FramePatches.probes`.
        probed: See `FramePatches.probed`.
        words: The word of each code of patches, uint64 [n].
        table: See `find_places`.
        max_patch: Maximum size of a patch. Larger patches are compressed by zstd.
        first: Number of the first frame.
        last: Number after the number of the last frame.
    """
    size = frames.shape[1]
    end = 0
    positions = np.empty(typical.shape[1], np.int32)
    for number in range(first, last):
        if typical.size:
            frame = frames[number].view(np.uint64)
            patch = _make_patch(frame, typical, probes, probed, words, table, out, end, max_patch, positions)
            if patch:
                end += patch
                ends[number] = end
                continue
        source, target = frames[number].ctypes.data, out[end:].ctypes.data
        written: int = _call_five(function, context, target, out.size - end, source, size)
        if written < 0:
            return written
        end += written
        ends[number] = end
    return end
