"""The loops of `loops` and `sketch_loops` in numpy, with equal results, for data that are too few to load a compiler for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.constants import (
    COARSE,
    FINE,
    FIRST,
    GOLDEN,
    GRAMS,
    HASH_BITS,
    ROTATION_A,
    ROTATION_B,
    ROW_GRAM,
    ROWS,
    SAMPLED,
    SECOND,
    SMALLEST_RANGE,
    SPAN,
    WINDOW_GRAM,
)

Words = NDArray[np.uint64]
_OFFSETS = np.arange(-SPAN, SPAN + 1, 2)
_OTHERS = np.array([offset for offset in range(-SPAN, SPAN + 1) if offset])
_WORD = (1 << 64) - 1


def _mixed(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def _sums(words: Words, first: int, second: int, digests: Words) -> None:
    """Write the digests of rows of words, [n, W], given what their two sums begin with."""
    words = (words ^ (words >> np.uint64(32))) + np.arange(1, words.shape[1] + 1, dtype=np.uint64) * GOLDEN
    words = (words ^ (words >> np.uint64(29))) * FIRST
    words ^= words >> np.uint64(32)
    digests[:, 0] = _mixed(words.sum(axis=1, dtype=np.uint64) + np.uint64(first))
    words = (words * SECOND) ^ (words >> np.uint64(23))
    digests[:, 1] = _mixed(words.sum(axis=1, dtype=np.uint64) + np.uint64(second))


def digest_rows(values: NDArray[np.floating], digests: Words, fine: NDArray[np.bool_]) -> None:
    """Do what `loops.digest_float64` does."""
    numbers = values.astype(np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    _sums(numbers.view(np.uint64), values.shape[1], values.shape[1], digests)
    with np.errstate(over="ignore"):
        numbers *= 1024.0
    fine[:] = (numbers != np.floor(numbers)).any(axis=1)


def digest_bytes(data: NDArray[np.uint8], ends: NDArray[np.int64], digests: Words) -> None:
    """Do what `loops.digest_bytes` does."""
    sizes = np.diff(ends, prepend=0)
    for size in np.unique(sizes[sizes > 0]).tolist():
        rows = np.flatnonzero(sizes == size)
        padded = np.zeros((len(rows), 8 * (size // 8 + 1)), np.uint8)
        padded[:, :size] = data[(ends[rows] - size)[:, None] + np.arange(size)]
        found = np.empty((len(rows), 2), np.uint64)
        _sums(padded.view("<u8").astype(np.uint64, copy=False), int(GOLDEN) * size & _WORD, size, found)
        digests[rows] = found


def fold_rows(
    rows: Words,
    fine: NDArray[np.bool_],
    values: NDArray[np.float64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ended: NDArray[np.bool_],
    state: Words,
    last: NDArray[np.float64],
    digests: Words,
    counts: NDArray[np.uint32],
) -> None:
    """Do what `loops.fold_rows` does."""
    longest = int((stops - starts).max(initial=0))
    powers = [_powers(factor, longest + 1) for factor in (ROTATION_A, ROTATION_B)]
    for run, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        count = stop - start
        part = rows[start:stop]
        for number, power in enumerate(powers):
            total = (part[:, number] * power[:count][::-1]).sum(dtype=np.uint64)
            state[number] = (state[number : number + 1] * power[count] + total)[0]
        predicted = np.zeros(count, np.bool_)
        if len(values):
            line = np.concatenate([last[::-1], values[start:stop]])
            predicted = _is_predicted(line)
            predicted[: max(0, 2 - int(state[2]))] = False
            last[:] = line[-1], line[-2]
        grams = _grams(part[:, 0], state[3:4], ROW_GRAM, 8)
        new = _mark(_mixed(part[:, 1]), state[ROWS:GRAMS])
        other = _mark(_mixed(grams), state[GRAMS:]) & ~new & ~predicted
        alone = new & ~predicted
        state[2] += np.uint64(count)
        state[3] = grams[-1] if count else state[3]
        state[4] += np.uint64(np.count_nonzero(alone & fine[start:stop]))
        state[5] += np.uint64(np.count_nonzero(alone & ~fine[start:stop]) + np.count_nonzero(other))
        state[6] += np.uint64(np.count_nonzero(new))
        if ended[run]:
            digests[run] = _mixed(np.concatenate([state[:1] + state[2:3], state[1:2] ^ state[2]]))
            distinct = int(state[6])
            bits = 16 * int(state[4]) + max(0, distinct.bit_length() - 1) * int(state[5])
            counts[run] = min(bits, 0xFFFFFFFF), distinct
            state[:] = 0


def _powers(factor: np.uint64, count: int) -> Words:
    powers = np.full(count, factor)
    powers[:1] = 1
    accumulated: Words = np.multiply.accumulate(powers)
    return accumulated


def _grams(words: Words, before: Words, factor: np.uint64, length: int) -> Words:
    """Return the hash of the last words at each word, [n], given the hash before the first."""
    powers = _powers(factor, length + 1)
    grams = words.copy()
    for distance in range(1, min(length, len(words))):
        grams[distance:] += words[:-distance] * powers[distance]
    first = min(length, len(words))
    grams[:first] += before * powers[1 : first + 1]
    return grams


def _is_predicted(line: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which numbers continue the line of the two numbers before, [n], given these and the numbers, [2 + n]."""
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.abs(line[2:]) + np.abs(line[1:-1]) + np.abs(line[:-2])
        found: NDArray[np.bool_] = np.abs(line[2:] - 2 * line[1:-1] + line[:-2]) <= 1e-6 * sizes
    return found


def _mark(words: Words, bits: Words) -> NDArray[np.bool_]:
    """Set the bits of words in a set of 1,024 bits, and return which words set their bit, [n]."""
    places, within = (words >> np.uint64(60)).astype(np.int64), words & np.uint64(63)
    first = np.zeros(len(words), np.bool_)
    first[np.unique(places * 64 + within.astype(np.int64), return_index=True)[1]] = True
    new: NDArray[np.bool_] = first & (bits[places] >> within & np.uint64(1) == 0)
    np.bitwise_or.at(bits, places, np.uint64(1) << within)
    return new


def sketch_rows(
    values: NDArray[np.float64],
    anchors: NDArray[np.float32],
    firsts: NDArray[np.int64],
    groups: NDArray[np.int64],
    places: NDArray[np.int64],
    tail: int,
    digests: Words,
    grams: Words,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ended: NDArray[np.bool_],
    state: NDArray[np.int64],
    kept: Words,
    sketches: Words,
) -> int:
    """Do what `sketch_loops.sketch_rows` does."""
    kinds, episodes = len(anchors) // 2, 0
    limits = [0, *np.searchsorted(places[:, 0], stops + tail - SPAN).tolist()]
    limits = np.maximum.accumulate(limits).tolist()
    for run, (first, stop) in enumerate(pairwise(limits)):
        count, steps = int(state[0]), int(state[1])
        begin = int(starts[run]) + tail - (min(steps, tail) if run == 0 else 0)
        earliest = max(begin + SPAN, int(starts[run]) + tail - SPAN)
        middles, chosen = places[first:stop].T
        kind = (chosen >= kinds).astype(np.int64)
        inside = (middles >= earliest) & (middles >= begin + SPAN + kind)
        middles, chosen, kind = middles[inside], chosen[inside], kind[inside]
        equal = anchors[chosen[:, None], middles[:, None] + _OTHERS] == anchors[chosen, middles][:, None]
        only = ~equal.any(axis=1)
        middles, chosen, kind = middles[only], chosen[only], kind[only]
        zero = int(starts[run]) + tail - steps
        entries = [kept[:count], _windows(values, firsts[chosen], groups[chosen], middles, kind, middles - zero)]
        part = slice(int(starts[run]), int(stops[run]))
        entries += [_row_windows(words[part, 0], gram, steps) for words, gram in zip(digests, grams, strict=True)]
        state[0] = _keep(np.concatenate(entries), kept)
        state[1] = steps + stops[run] - starts[run]
        if ended[run]:
            sketches[episodes] = kept
            episodes += 1
            for array in (kept, grams, state):
                array[...] = 0
    return episodes


def _windows(
    values: NDArray[np.float64],
    firsts: NDArray[np.int64],
    groups: NDArray[np.int64],
    middles: NDArray[np.int64],
    kind: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> Words:
    """Return hash and step of windows, without those that have no shape."""
    words = (groups + 4 * kind).astype(np.uint64)
    halves = np.zeros(len(words), np.uint64)
    alive = np.ones(len(words), np.bool_)
    for other in range(int(groups.max(initial=0))):
        within = np.flatnonzero(alive & (other < groups))
        levels = np.where((groups[within] == 1) & (other == 0), FINE, COARSE)
        words[within] = _shapes(values, firsts[within] + other, middles[within], levels, words[within])
        alive[within] = words[within] != 0
        if other == 0:
            halves = (_mixed(words) >> np.uint64(48) << np.uint64(16)) | np.uint64(1 << 16)
    hashes = halves | (_mixed(words) >> np.uint64(48))
    entries: Words = ((hashes << HASH_BITS) | steps.astype(np.uint64))[alive]
    return entries


def _shapes(
    values: NDArray[np.float64],
    elements: NDArray[np.int64],
    middles: NDArray[np.int64],
    levels: NDArray[np.float64],
    words: Words,
) -> Words:
    window = values[elements[:, None], middles[:, None] + _OFFSETS]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        low, high = window.min(axis=1), window.max(axis=1)
        extent = high - low
        has_shape = extent > SMALLEST_RANGE * np.maximum(np.abs(low), np.abs(high))
    window, factor = window[has_shape], levels[has_shape] / extent[has_shape]
    differences = np.abs(values[elements, middles][has_shape, None] - window) * factor[:, None]
    found = words[has_shape]
    for column in (np.floor(differences + 0.5).astype(np.int64) + 64).astype(np.uint64).T:
        found = (found ^ column) * GOLDEN
        found ^= found >> np.uint64(29)
    result = np.zeros(len(words), np.uint64)
    result[has_shape] = found
    return result


def _row_windows(words: Words, gram: Words, steps: int) -> Words:
    """Return hash and step of the windows of rows with the same values, and keep the hash and the last word in `gram`."""
    if not len(words):
        return words
    grams = _grams(words, gram[:1], WINDOW_GRAM, 2 * SPAN)
    changed = words != np.concatenate([gram[1:], words[:-1]])
    numbers = steps + np.arange(len(words))
    chosen = changed & (words % np.uint64(SAMPLED) == 0) & (numbers >= 2 * SPAN - 1)
    gram[:] = grams[-1], words[-1]
    hashes = (_mixed(grams[chosen]) >> HASH_BITS) | np.uint64(1)
    entries: Words = (hashes << HASH_BITS) | (numbers[chosen] - SPAN).astype(np.uint64)
    return entries


def _keep(entries: Words, kept: Words) -> int:
    """Write the entries with the smallest distinct hashes, each with its first step, and return their number."""
    entries = np.sort(entries)
    distinct = np.ones(len(entries), np.bool_)
    distinct[1:] = entries[1:] >> HASH_BITS != entries[:-1] >> HASH_BITS
    found = entries[distinct][: len(kept)]
    kept[: len(found)], kept[len(found) :] = found, 0
    return len(found)
