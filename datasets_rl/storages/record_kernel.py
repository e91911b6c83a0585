"""The gathers of records and of windows of records as compiled loops, imported only when needed.

Rows that are drawn at random are in no cache. The loop requests the memory of later rows before copying the current
row, so that the loop waits for many rows at a time: two thirds of the time of torch's `index_select`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from datasets_rl.loop_compiler import compile_for, copy_items, int64_pointer, pointer_to

_WORDS_AHEAD, _ROWS_AHEAD = 1024, 32
"""Memory that is requested ahead, which must stay in the smallest cache until the copy."""
_WINDOW_WORDS_AHEAD = 2048
"""The same for windows, with records next to each other."""
_LINE = 8
"""Words of a cache line."""
RECORDS = numba.types.Array(numba.int64, 1, "C", readonly=True)
FINALS = numba.types.Array(numba.int64, 2, "C", readonly=True)
KNOWN = numba.types.Array(numba.boolean, 1, "C", readonly=True)
_NUMBERS = (numba.int64,) * 4


@intrinsic
def _prefetch_line(typing_context: Any, words: Any, number: Any) -> Any:
    """Request the cache line of a word, without waiting for the memory."""
    del typing_context, number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature, arguments, 0)
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])  # for reading, into all caches, data
        return context.get_dummy_value()

    return numba.void(words, numba.int64), generate


prefetch: Any = _prefetch_line  # its first argument is passed by the compiler


@compile_for(numba.int64(RECORDS, FINALS, KNOWN, *_NUMBERS, numba.int64, numba.int64[:, ::1]))
def gather_records(
    records: Any, finals: Any, known: Any, stride: int, width: int, done: int, episode: int, address: int, out: Any
) -> int:
    """Gather the window of each row: the record, and the start of the next record.

    Args:
        records: All records, words [(N + 1) * stride].
        finals: The final states of each episode, words [E, width - stride].
        known: Whether the final states of each episode are known, bool [E].
        stride: Words of a record.
        width: Words of a window.
        done: Byte of a record that is 1 at the end of an episode.
        episode: Byte of a record at which its episode is, an int32.
        address: Address of the rows, int64 [B], contiguous.
        out: Output, words [B, width + 3]. After each window come the number of the row's episode, a word, and the row.
            The word's first bytes are 0, 0, 0, and whether the next states are known.

    Returns:
        The number of rows that end an episode. -1 if a row is outside of [0, N), -2 if an episode is outside of [0, E).
        Then `out` is incomplete.
    """
    count, out_words = out.shape
    total = len(records) // stride - 1
    rows = carray(int64_pointer(address), count)
    done_word, done_shift = done // 8, done % 8 * 8
    episode_word, episode_shift = episode // 8, episode % 8 * 8
    ahead = min(max(_WORDS_AHEAD // width, 1), _ROWS_AHEAD)
    ends = 0
    for number in range(-ahead, count):
        if number + ahead < count:
            later = rows[number + ahead]
            if 0 <= later < total:
                for word in range(later * stride, later * stride + width, _LINE):
                    prefetch(records, word)
                prefetch(records, later * stride + width - 1)
        if number < 0:
            continue
        row = rows[number]
        if row < 0 or row >= total:
            return -1
        start = row * stride
        of_episode = (records[start + episode_word] >> episode_shift) & 0xFFFFFFFF
        flags = 1
        if (records[start + done_word] >> done_shift) & 1:
            if of_episode >= len(known):
                return -2
            ends += 1
            flags = numba.int64(known[of_episode])
            copy_items(records, start, out, number * out_words, stride)
            for word in range(width - stride):
                out[number, stride + word] = finals[of_episode, word]
        else:
            copy_items(records, start, out, number * out_words, width)
        out[number, width] = of_episode
        out[number, width + 1] = flags << 24
        out[number, width + 2] = row
    return ends


@compile_for(
    numba.int64(
        RECORDS,
        *(numba.int64[::1],) * 3,
        numba.int64[:, :, ::1],
        numba.boolean[:, ::1],
        *(numba.int64[::1],) * 2,
        numba.int64,
        numba.int64,
    )
)
def gather_windows(
    records: Any,
    rows: Any,
    firsts: Any,
    lasts: Any,
    out: Any,
    outside: Any,
    low: Any,
    high: Any,
    before: int,
    episode: int,
) -> int:
    """Gather the records around each row, which lie next to each other. A window stays within the episode of the row.

    Args:
        records: All records, words [(N + 1) * stride].
        rows: The row of each window, [B].
        firsts: The first row of each episode, [E].
        lasts: The last row of each episode, [E].
        out: Output, words [B, W, stride], W <= N. Steps outside of the episode repeat the first or last step of the
            episode.
        outside: Output, which steps are such repetitions, [B, W].
        low: Output, the first row of the episode of each row, [B].
        high: Output, the last row of the episode of each row, [B].
        before: Number of records of a window before its row, less than W.
        episode: Byte of a record at which its episode is, an int32.

    Returns:
        0. -1 if a row is outside of [0, N), -2 if an episode is outside of [0, E). Then the output is incomplete.
    """
    count, width, stride = out.shape
    total, words = len(records) // stride - 1, width * stride
    episode_word, episode_shift = episode // 8, episode % 8 * 8
    ahead = min(max(_WINDOW_WORDS_AHEAD // words, 1), _ROWS_AHEAD)
    steps = np.empty(words, np.int64)
    for number in range(-ahead, count):
        if number + ahead < count:
            later = min(max(rows[number + ahead] - before, 0), total - width) * stride
            for word in range(later, later + words, _LINE):
                prefetch(records, word)
            prefetch(records, later + words - 1)
        if number < 0:
            continue
        row = rows[number]
        if row < 0 or row >= total:
            return -1
        start = min(max(row - before, 0), total - width)
        copy_items(records, start * stride, out, number * words, words)
        owner = (out[number, row - start, episode_word] >> episode_shift) & 0xFFFFFFFF
        if owner >= len(firsts):
            return -2
        first, last = firsts[owner], lasts[owner]
        low[number], high[number] = first, last
        within = row - before >= first and row - before + width - 1 <= last
        for step in range(width):
            wanted = row - before + step
            inside = min(max(wanted, first), last)
            outside[number, step] = inside != wanted
            if not within:
                # The source is always in the run, unless the table of episodes is damaged.
                source = min(max(inside - start, 0), width - 1)
                copy_items(out, number * words + source * stride, steps, step * stride, stride)
        if not within:
            copy_items(steps, 0, out, number * words, words)
    return 0
