"""Loops over the frames of a batch that call zstd's C functions by address; imported only when needed.

Nothing of Python runs between two frames, and the interpreter's lock is released: a frame takes what zstd takes.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

from datasets_rl.loop_compiler import compile_for

__all__ = ["compress_frames", "decompress_frames"]

_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_NUMBERS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_FRAMES = numba.types.Array(numba.uint8, 2, "C", readonly=True)


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
    """Ask the processor to load the memory at an address, which may be any; nothing waits for it."""
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


# The compiler passes their first argument.
_call_five: Any = _call_of_five
_call_six: Any = _call_of_six
_load_ahead: Any = _prefetch

_AHEAD, _AHEAD_BYTES, _LINE = 4, 1024, 64
"""Number of frames ahead of which the first bytes are loaded: random frames take a seventh less time."""


@compile_for(
    numba.int64(
        *(numba.int64,) * 3,
        _BYTES,
        _NUMBERS,
        _NUMBERS,
        numba.uint8[:, ::1],
        _NUMBERS,
        numba.boolean[::1],
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
    first: int,
    last: int,
) -> int:
    """Decompress the frames `first` to `last`; return how many are damaged, which `damaged` marks.

    Args:
        function: Address of ZSTD_decompress_usingDDict.
        context: Address of a decompression context.
        dictionary: Address of a dictionary, or 0.
        data: Compressed frames, uint8 [B].
        starts: First byte of each frame, [n].
        stops: Byte after the last one of each frame, [n]; a frame without bytes becomes zeros.
        out: Output, uint8 [N, bytes].
        positions: Position of each frame in `out`, [n].
        damaged: Output, bool [n]: whether the bytes are outside `data`, are not zstd, or give another number of bytes.
        first: Number of the first frame.
        last: Number after the one of the last frame.
    """
    size = out.shape[1]
    count = 0
    for number in range(first, last):
        if number + _AHEAD < last:
            start, stop = starts[number + _AHEAD], stops[number + _AHEAD]
            for at in range(start, min(stop, start + _AHEAD_BYTES), _LINE):
                _load_ahead(data.ctypes.data + at)
        start, stop, position = starts[number], stops[number], positions[number]
        if start == stop:
            out[position] = 0
            continue
        if 0 <= start < stop <= data.size:
            source, target = data[start:].ctypes.data, out[position].ctypes.data
            if _call_six(function, context, target, size, source, stop - start, dictionary) == size:
                continue
        damaged[number] = True
        count += 1
    return count


@compile_for(numba.int64(*(numba.int64,) * 2, _FRAMES, numba.uint8[::1], numba.int64[::1], *(numba.int64,) * 2))
def compress_frames(function: int, context: int, frames: Any, out: Any, ends: Any, first: int, last: int) -> int:
    """Compress the frames `first` to `last` one after the other; return the bytes of all, or an error of zstd below 0.

    Args:
        function: Address of ZSTD_compress2.
        context: Address of a compression context, with its level and dictionary.
        frames: Frames, uint8 [n, bytes].
        out: Output, uint8 [B], large enough for frames that do not become smaller.
        ends: Output, int64 [n]: byte after the last one of each frame in `out`.
        first: Number of the first frame.
        last: Number after the one of the last frame.
    """
    size = frames.shape[1]
    end = 0
    for number in range(first, last):
        source, target = frames[number].ctypes.data, out[end:].ctypes.data
        written: int = _call_five(function, context, target, out.size - end, source, size)
        if written < 0:
            return written
        end += written
        ends[number] = end
    return end
