"""How many bits of information the values of a field have in an episode, so that equal values are evidence of a copy.

    values   0 0 0 0 0 0 0 0 0 0 1 0 1 1 0 1 ...
    active   * * * * * * * *     * * * * * * ...   the first 8 steps, and 8 steps from each change on

A field that rests, repeats itself or grows along a line has little information. The first `COUNTED` active steps of an episode decide:

* A value that the episode did not have before is `FINE_BITS` if equal values are hardly chance, see `canonical.fine_rows`.
* Any other value that ends a sequence of 8 values that the episode did not have before is log2 of the number of different values.
* A single number that continues the line of the last two counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import fine_rows
from datasets_rl.fingerprints.hashing import Words, chained, mixed
from datasets_rl.fingerprints.runs import CONTEXT, Indices, Runs

FINE_BITS = 16
FEWEST = 6
"""Steps of an episode that may have information."""
EVIDENCE_BITS = FINE_BITS * FEWEST
"""From how many bits on equal values are evidence of a copy: six different values that are not round, or more round ones."""
COUNTED = 128
_LENGTH = 8
_COARSE, _FINE, _SEQUENCE = range(3)
_KINDS = 4
_KIND_BIT, _GROUP_BIT = np.uint64(36), np.uint64(38)
_LINE = 1e-6


class Information:
    """Computes the bits of the fields of episodes from rows, in order.

    Args:
        fields: The number of fields, F.
    """

    def __init__(self, fields: int) -> None:
        self._last = [np.empty(0)] * fields
        """The last values of the open episode, of fields of one number."""
        self._enough = np.zeros(fields, np.bool_)
        """Which fields have enough information in the open episode."""
        self._counted = np.zeros(fields, np.int64)
        """The number of active rows that were counted, of the other fields."""
        self._fields, self._signs = np.empty(0, np.int64), np.empty(0, np.uint64)
        """The signs of these rows, see `_signs`, and the field of each."""

    def add(self, digests: Words, numbers: Sequence[NDArray[Any] | None], runs: Runs) -> NDArray[np.int64]:
        """Add rows, and return the bits of each field in each of m runs, [F, m]. They are final in the runs that end.

        Args:
            digests: Digests of the rows of each field, with the context, [F, c + n].
            numbers: The values of each field of numbers, [n, ...], otherwise None: all values are fine.
            runs: The runs of rows.
        """
        fields = [_Field(values, last, runs) for values, last in zip(numbers, self._last, strict=True)]
        self._last = [field.tail() for field in fields]
        enough = _begin_well(digests, fields, runs)
        if runs.before:
            enough[:, 0] = self._enough
        wanted = ~(enough | (runs.ended & (runs.lengths < FEWEST)))
        continued = wanted[self._fields, 0]  # an episode that ends here may have too few steps
        self._fields, self._signs = self._fields[continued], self._signs[continued]
        self._counted *= wanted[:, 0]
        bits = np.where(enough, EVIDENCE_BITS, 0)
        left, counted = np.flatnonzero(wanted.any(axis=1)), np.flatnonzero(wanted.any(axis=0))
        if len(left):
            first, stop = int(counted[0]), int(counted[-1]) + 1
            rows, part = runs.rows(first, stop), runs.part(first, stop)
            rest = self._count(
                digests[left, rows],
                [fields[number].part(rows, part) for number in left.tolist()],
                left,
                wanted[left, first:stop],
                part,
            )
            bits[left, first:stop] = np.where(enough[left, first:stop], EVIDENCE_BITS, np.minimum(rest, EVIDENCE_BITS))
        self._enough = enough[:, -1] & (runs.open > 0)
        return bits

    def _count(
        self, digests: Words, fields: Sequence[_Field], names: Indices, wanted: NDArray[np.bool_], runs: Runs
    ) -> NDArray[np.int64]:
        """Return the bits of fields in the runs where they are wanted."""
        places, groups = self._active(digests, names, wanted, runs)
        rows, count = places % digests.shape[1], len(runs.starts)
        edges = np.searchsorted(groups, np.arange(len(fields) + 1) * count).tolist()
        parts = [field.examine(rows[slice(*edge)]) for field, edge in zip(fields, pairwise(edges), strict=True)]
        fine, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
        places, groups, rows, fine = places[counts], groups[counts], rows[counts], fine[counts]
        words, coarse = digests.reshape(-1), np.flatnonzero(~fine)
        begins, sequences = runs.begins[groups[coarse] % count], np.zeros(len(coarse), np.uint64)
        for distance in reversed(range(_LENGTH)):
            inside = rows[coarse] - distance >= begins
            sequences = chained(
                sequences, np.where(inside, words[np.maximum(places[coarse] - distance, 0)], np.uint64(0))
            )
        signs = [
            _signs(groups, np.where(fine, np.uint64(_FINE), np.uint64(_COARSE)), words[places]),
            _signs(groups[coarse], np.uint64(_SEQUENCE), sequences),
            _placed(np.searchsorted(names, self._fields) * count) | self._signs,
        ]
        found = np.sort(np.concatenate(signs))  # unique() of integers takes several times as long
        found = found[np.concatenate([found[:1] == found[:1], found[1:] != found[:-1]])]
        owners = (found >> _GROUP_BIT).astype(np.int64)
        kept = np.flatnonzero((owners % count == count - 1) & (runs.open > 0))
        self._fields, self._signs = names[owners[kept] // count], found[kept] - _placed(owners[kept])
        tally = np.bincount((found >> _KIND_BIT).astype(np.int64), minlength=len(fields) * count * _KINDS)
        kinds = tally.reshape(len(fields), count, _KINDS)
        choices = np.maximum(kinds[..., _COARSE] + kinds[..., _FINE], 1)
        bits: NDArray[np.int64] = FINE_BITS * kinds[..., _FINE] + (np.frexp(choices)[1] - 1) * kinds[..., _SEQUENCE]
        return bits

    def _active(self, digests: Words, names: Indices, wanted: NDArray[np.bool_], runs: Runs) -> tuple[Indices, Indices]:
        """Return the places in the digests of the active rows that are counted, and the group of each: field * m + run."""
        fields, width = digests.shape
        active = np.ones(digests.shape, np.bool_)
        np.not_equal(digests[:, 1:], digests[:, :-1], out=active[:, 1:])
        active[:, runs.begins] = True
        for distance in (1, 2, 4):  # as many as the steps of a sequence
            active[:, distance:] |= active[:, :-distance]
        active[:, : runs.context] = False
        places = np.flatnonzero(active)
        firsts = np.searchsorted(places, np.add.outer(np.arange(fields) * width, runs.starts).reshape(-1))
        found = np.diff(firsts, append=len(places)).reshape(fields, -1)
        room = np.where(wanted, COUNTED, 0)
        room[:, 0] = np.maximum(room[:, 0] - self._counted[names], 0)
        taken = np.minimum(found, room)
        if len(runs.starts) > 1:
            self._counted[:] = 0
        self._counted[names] += taken[:, -1]
        if not runs.open:
            self._counted[:] = 0
        taken = taken.reshape(-1)
        groups = np.repeat(np.arange(len(taken)), taken)
        within = np.arange(len(groups)) - np.repeat(np.cumsum(taken) - taken, taken)
        return places[np.repeat(firsts, taken) + within], groups

    def forget(self) -> None:
        """Forget the open episode."""
        self._last = [np.empty(0)] * len(self._last)
        self._enough[:], self._counted[:] = False, 0
        self._fields, self._signs = self._fields[:0], self._signs[:0]


class _Field:
    """Consecutive rows of a field.

    Args:
        numbers: The values, [n, ...], or None where all values are fine.
        last: The values of the context of a field of one number, [c].
        runs: The runs of rows.
    """

    def __init__(self, numbers: NDArray[Any] | None, last: NDArray[np.float64], runs: Runs) -> None:
        self._numbers, self._last, self._runs = numbers, last, runs
        self._is_single = numbers is not None and math.prod(numbers.shape[1:]) == 1

    def part(self, rows: slice, runs: Runs) -> _Field:
        """Return some of the rows, given as a slice of all rows with the context, and their runs."""
        context = self._runs.context
        numbers = None if self._numbers is None else self._numbers[max(rows.start - context, 0) : rows.stop - context]
        return _Field(numbers, self._last[rows.start :], runs)

    def examine(self, rows: Indices) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows, at or after the context, are fine, and which ones count, [k] each."""
        yes = np.ones(len(rows), np.bool_)
        fine = yes if self._numbers is None else fine_rows(self._numbers, rows - self._runs.context)
        return fine, ~self._continues_line(rows) if self._is_single else yes

    def tail(self) -> NDArray[np.float64]:
        """Return the values of the context of the next rows."""
        count = len(self._runs.numbers)
        first = count - min(self._runs.open, CONTEXT)
        return self._single(np.arange(first, count)) if self._is_single else self._last[:0]

    def _single(self, rows: Indices) -> NDArray[np.float64]:
        """Return the numbers in some rows of a field of one number."""
        new = np.asarray(self._numbers).reshape(-1)[np.maximum(rows - len(self._last), 0)].astype(np.float64)
        if len(self._last):
            old = rows < len(self._last)
            new[old] = self._last[rows[old]]
        return new

    def _continues_line(self, rows: Indices) -> NDArray[np.bool_]:
        """Return which of the numbers in some rows continue the line of the two numbers before."""
        last, middle, first = self._single(np.maximum(rows - np.arange(3)[:, None], 0))
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(last) + np.abs(middle) + np.abs(first)
            found: NDArray[np.bool_] = np.abs(last - 2 * middle + first) <= _LINE * size
        return found & (rows - 2 >= self._runs.begins[self._runs.numbers[rows]])


def _begin_well(digests: Words, fields: Sequence[_Field], runs: Runs) -> NDArray[np.bool_]:
    """Return in which runs a field begins with `FEWEST` different fine rows, and so has enough information, [F, m]."""
    found = np.zeros((len(fields), len(runs.starts)), np.bool_)
    numbers = np.flatnonzero(runs.stops - runs.starts >= FEWEST)
    if not len(numbers):
        return found
    rows = runs.starts[numbers] + np.arange(FEWEST)[:, None]
    words = np.sort(digests[:, rows], axis=1)
    differ = (words[:, 1:] != words[:, :-1]).all(axis=1)
    for field, differs, well in zip(fields, differ, found, strict=True):
        if differs.any():
            fine, counts = field.examine(rows[:, differs].reshape(-1))
            well[numbers[differs]] = (fine & counts).reshape(FEWEST, -1).all(axis=0)
    return found


def _placed(groups: Indices) -> Words:
    placed: Words = groups.astype(np.uint64) << _GROUP_BIT
    return placed


def _signs(groups: Indices, kinds: Words | np.uint64, hashes: Words) -> Words:
    """Return words of which equal ones are the same value or sequence in a group."""
    hashes = mixed(hashes) >> (np.uint64(64) - _KIND_BIT)
    signs: Words = _placed(groups) | (kinds << _KIND_BIT) | hashes
    return signs
