"""The read of steps together with windows around them and n-step targets, as a compiled loop, imported only when needed.

The loop requests the memory of the widest span of later rows before it copies the entries of the current row. Entries that
need no record are written after it: the fewer instructions lie between two reads, the more of them wait at the same time.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.np.numpy_support import carray

from datasets_rl.loop_compiler import compile_for, copy_items, copy_pieces, int64_pointer
from datasets_rl.storages.record_kernel import FINALS, KNOWN, RECORDS, prefetch

VALUES, SUM, SUMS, ALIVE, BOOTSTRAPS, OUTSIDE, COUNT, DISCOUNT, ENDED, NUMBERS = range(10)
"""Kinds of entries, see `datasets_rl.ted.passes`."""
WITHOUT_RECORDS = OUTSIDE
"""The first of the kinds that follow from the bounds of the episode alone."""
COLUMNS = ("kind", "source", "size", "first", "distance", "steps", "target", "flag", "final")
"""The columns of the table of entries, see `gather_pass`."""
_WORDS_AHEAD, _ROWS_AHEAD = 1024, 32
"""Memory that is requested ahead, which must stay in the smallest cache until the copy."""
_LINE = 8
"""Words of a cache line."""


@compile_for(
    numba.int64(
        RECORDS,
        FINALS,
        KNOWN,
        numba.int64[::1],
        numba.int64[::1],
        numba.boolean[::1],
        numba.int64[:, ::1],
        numba.int64[::1],
        numba.float64[::1],
        numba.float32[::1],
        numba.int64[::1],
        numba.int64,
        numba.int64[:, ::1],
    )
)
def gather_pass(  # noqa: C901, PLR0912, PLR0915 - a call within the loop would take longer than what it does
    records: Any,
    finals: Any,
    known: Any,
    firsts: Any,
    lasts: Any,
    cut: Any,
    table: Any,
    layout: Any,
    powers: Any,
    discounts: Any,
    owners: Any,
    address: int,
    out: Any,
) -> int:
    """Gather the record of each row, with its next states, and the entries of a table.

    Args:
        records: All records, words [(N + 1) * stride].
        finals: The final states of each stored episode, words [F, width - stride].
        known: Whether the final states of each stored episode are known, bool [F].
        firsts: The first row of each episode, [E]: a stored episode, or a part of one.
        lasts: The last row of each episode, [E].
        cut: Whether each episode lost the row after its last row, so that it ends there by a time-out, bool [E], or [0] if
            no episode did.
        table: The entries in the order of their kinds, [P, 9]: the kind, the byte of the field in a record, the bytes of the
            field in a step, the first step, the distance between steps, the number of steps, the byte of the entry in an
            output row, a flag, and the byte of the field in the final states for values after a step, or -1. The flag says for `VALUES` whether steps
            outside of the episode are zeros, for `OUTSIDE` whether the mask is inverted, and for `SUM` whether rewards have
            8 bytes, 1, or the powers of 4 bytes are `discounts`, 2.
        layout: Words of a record, words of a window, byte of a record at which its episode is, byte at which the flag of
            terminations is, n or 0, whether n steps end before an unknown state, 1, or at it, 2, or all are known, 0, the
            number of rows before and after a row that are read at most, and the bytes at which the flags of time-outs and of
            ends are.
        powers: Powers 0 to n of the discount factor.
        discounts: The same for the entries `DISCOUNT`.
        owners: The episode of each row, [B], or [0] if the episodes are the stored ones.
        address: Address of the rows, int64 [B], contiguous.
        out: Output, words [B, W]. First, for n steps, comes the record of the row. Then come the window of the last of the
            steps, or of the row, the number of the episode, a word as in `gather_records`, and the entries.

    Returns:
        0. -1 if a row is outside of [0, N), -2 if an episode is outside of [0, E). Then `out` is incomplete.
    """
    stride, width, episode, terminated, n_steps, masked, before, after = (
        layout[0],
        layout[1],
        layout[2],
        layout[3],
        layout[4],
        layout[5],
        layout[6],
        layout[7],
    )
    count, total, row_words = len(out), len(records) // stride - 1, out.shape[1]
    rows = carray(int64_pointer(address), count)
    episode_word, episode_shift = episode // 8, episode % 8 * 8
    span = (before + after) * stride + width
    ahead = min(max(_WORDS_AHEAD // span, 1), _ROWS_AHEAD)
    record_bytes, row_bytes, final_bytes = stride * 8, row_words * 8, (width - stride) * 8
    window_at = stride if n_steps else 0
    in_bytes = records.view(np.uint8)
    in_floats, in_doubles = records.view(np.float32), records.view(np.float64)
    flat = out.reshape(-1)
    out_bytes = flat.view(np.uint8)
    out_floats, out_doubles = flat.view(np.float32), flat.view(np.float64)
    flat_finals = finals.reshape(-1)
    final_items = flat_finals.view(np.uint8)
    bounds = np.empty((count, 3), np.int64)
    reading = 0
    while reading < len(table) and table[reading, 0] < WITHOUT_RECORDS:
        reading += 1
    for number in range(-ahead, count):
        if number + ahead < count:
            later = max(rows[number + ahead] - before, 0) * stride
            stop = min(later + span, len(records))
            for word in range(later, stop, _LINE):
                prefetch(records, word)
            if stop > later:
                prefetch(records, stop - 1)
        if number < 0:
            continue
        row = rows[number]
        if row < 0 or row >= total:
            return -1
        stored = (records[row * stride + episode_word] >> episode_shift) & 0xFFFFFFFF
        owner = owners[number] if len(owners) else stored
        if owner >= len(firsts) or stored >= len(known):
            return -2
        first, last, is_cut = firsts[owner], lasts[owner], len(cut) > 0 and cut[owner]
        # Of a damaged table. A window is within an episode anyway, and n steps have to be steps of it.
        if first < 0 or last >= total or (n_steps and (row < first or row > last)):
            return -2
        end, start_out, usable = row, number * row_words, True
        whole = row - before >= first and row + after < last
        if n_steps:
            end = min(row + n_steps - 1, last)
            is_known = not masked or end != last or known[stored] or is_cut
            if not is_known and in_bytes[last * record_bytes + terminated] == 0:
                if end > row and masked == 1:
                    end -= 1
                else:
                    usable = False
            copy_items(records, row * stride, flat, start_out, stride)
        window = start_out + window_at
        flags = 1
        if end == last and not is_cut:
            copy_items(records, end * stride, flat, window, stride)
            copy_items(flat_finals, stored * (width - stride), flat, window + stride, width - stride)
            flags = numba.int64(known[stored])
        else:
            copy_items(records, end * stride, flat, window, width)
            if end == last:
                out_bytes[window * 8 + layout[8]] = 1
                out_bytes[window * 8 + layout[9]] = 1
        flat[window + width] = owner
        flat[window + width + 1] = flags << 24
        bounds[number, 0], bounds[number, 1], bounds[number, 2] = first, last, end
        for part in range(reading):
            kind, source, size = table[part, 0], table[part, 1], table[part, 2]
            offset, distance, steps = table[part, 3], table[part, 4], table[part, 5]
            target, flag, final = number * row_bytes + table[part, 6], table[part, 7], table[part, 8]
            if kind == VALUES and whole:
                read = (row + offset + (final >= 0)) * record_bytes + source
                copy_pieces(in_bytes, read, out_bytes, target, size, distance * record_bytes, steps)
            elif kind == VALUES:
                for step in range(steps):
                    wanted = row + offset + step * distance
                    inside = min(max(wanted, first), last)
                    if flag and inside != wanted:
                        for item in range(size):
                            out_bytes[target + step * size + item] = 0
                    elif final >= 0 and inside == last and not is_cut:
                        copy_pieces(
                            final_items, stored * final_bytes + final, out_bytes, target + step * size, size, 0, 1
                        )
                    else:
                        read = (inside + (final >= 0)) * record_bytes + source
                        copy_pieces(in_bytes, read, out_bytes, target + step * size, size, 0, 1)
            elif kind == SUM:
                for item in range(size):
                    if flag == 1:
                        read, total_8 = ((row * record_bytes + source) >> 3) + item, 0.0
                        for step in range(end - row + 1):
                            total_8 += powers[step] * in_doubles[read + step * stride]
                        out_doubles[(target >> 3) + item] = total_8
                    else:
                        read, total_4 = ((row * record_bytes + source) >> 2) + item, np.float32(0)
                        for step in range(end - row + 1):
                            power = discounts[step] if flag else np.float32(powers[step])
                            total_4 += power * in_floats[read + step * stride * 2]
                        out_floats[(target >> 2) + item] = total_4
            elif kind == SUMS:
                read, total_4 = (row * record_bytes + source) >> 2, np.float32(0)
                for step in range(n_steps):
                    if row + step <= end:
                        total_4 += discounts[step] * in_floats[read + step * stride * 2]
                    out_floats[(target >> 2) + step] = total_4
            elif kind == ALIVE:
                alive = np.float32(1)
                for step in range(n_steps):
                    if in_bytes[min(row + step, last) * record_bytes + terminated]:
                        alive = np.float32(0)
                    out_floats[(target >> 2) + step] = alive
            else:
                out_bytes[target] = usable and in_bytes[end * record_bytes + terminated] == 0
    for part in range(reading, len(table)):
        kind, offset, distance, steps = table[part, 0], table[part, 3], table[part, 4], table[part, 5]
        start_out, inverted = table[part, 6], table[part, 7] != 0
        for number in range(count):
            row, target = rows[number], number * row_bytes + start_out
            first, last, end = bounds[number, 0], bounds[number, 1], bounds[number, 2]
            if kind == OUTSIDE and row + offset >= first and row + offset + (steps - 1) * distance <= last:
                for step in range(steps):
                    out_bytes[target + step] = inverted
            elif kind == OUTSIDE:
                for step in range(steps):
                    wanted = row + offset + step * distance
                    out_bytes[target + step] = (wanted < first or wanted > last) != inverted
            elif kind == COUNT:
                flat[target >> 3] = end - row + 1
            elif kind == DISCOUNT:
                out_floats[target >> 2] = discounts[end - row + 1]
            elif kind == ENDED:
                for step in range(n_steps):
                    out_bytes[target + step] = row + step >= last
            else:
                for step in range(steps):
                    flat[(target >> 3) + step] = row - first + offset + step * distance
    return 0
