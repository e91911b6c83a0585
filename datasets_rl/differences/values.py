"""Values of the fields that two datasets have, compared in the episodes that both have, block by block.

pairs      (0, 1)         (2, 0)
before     rows 0 1 2     rows 7 8
after      rows 4 5 6     rows 0 1        equal, or the first difference, the greatest, and how many
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.differences.difference import EPISODE_TABLE, FieldDifference, Place
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field

Numbers = NDArray[np.int64]
Rows = slice | Numbers
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive rows of paired episodes."""

    pairs: Numbers
    """The pair of each row, [n]."""
    steps: Numbers
    """The step in the episode, [n]."""
    before: Rows
    after: Rows


class Comparison:
    """Compares the values of paired episodes.

    Args:
        before: The first dataset.
        after: The second dataset.
        pairs: Numbers of the paired episodes in both datasets, [P, 2].
        advance: Called with the number of steps that were compared.
        differs: Called with the dotted key of a field in the first dataset, the steps of the episodes with another value, and the
            elements with another value, in row-major order.
    """

    def __init__(
        self,
        before: StoredDataset,
        after: StoredDataset,
        pairs: Numbers,
        advance: Callable[[int], object] = lambda _: None,
        differs: Callable[[str, Numbers, Numbers], object] = lambda *_: None,
    ) -> None:
        self._before, self._after, self._pairs, self._advance = before, after, pairs, advance
        self._differs = differs
        first, second = pairs.T
        self._lengths = np.minimum(before.episodes.lengths[first], after.episodes.lengths[second])
        self._ends = np.cumsum(self._lengths)

    def fields(self, names: Mapping[str, str]) -> Iterator[FieldDifference]:
        """Compare fields of as many elements, given the dotted key in the second dataset by the dotted key in the first."""
        fields = {field.name: field for field in self._before.schema}
        others = {field.name: field for field in self._after.schema}
        chosen = [(fields[name], others[other]) for name, other in names.items()]
        narrow = [(field, other) for field, other in chosen if not field.wide and not other.wide]
        counts = {
            field.name: _Counts(
                self._pairs,
                field.name,
                other.name,
                self._texts(field, other),
                partial(self._differs, field.name),
            )
            for field, other in chosen
        }
        self._compare_narrow(narrow, counts)
        for field, other in chosen:
            if (field, other) not in narrow:
                self._compare_wide(field, other, counts[field.name])
            if field.shared and other.shared:
                self._compare_finals(field, other, counts[field.name])
            yield counts[field.name].result()

    def columns(self) -> Iterator[FieldDifference]:
        """Compare the columns that both episode tables have, but rows, numbers of steps, and numbers at the source."""
        table, other = self._before.episodes, self._after.episodes
        first, second = self._pairs.T
        for name in table.names:
            if name in other.names and name not in {"start", "length", "source"}:
                title = f"{EPISODE_TABLE}{name}"
                counts = _Counts(self._pairs, title, title)
                where = _Block(np.arange(len(first)), np.full(len(first), -1), first, second)
                counts.add(table[name][first], other[name][second], where)
                yield counts.result()

    def _texts(self, field: Field, other: Field) -> tuple[Sequence[str], Sequence[str]] | None:
        if field.text and other.text:
            return self._before.texts(field.key), self._after.texts(other.key)
        return None

    def _compare_narrow(self, chosen: Sequence[tuple[Field, Field]], counts: Mapping[str, _Counts]) -> None:
        if not chosen:
            return
        rows, others = self._before.rows, self._after.rows
        same_layout = (
            rows.dtype == others.dtype
            and [field for field, _ in chosen] == [other for _, other in chosen]
            and not any(field.text for field, _ in chosen)
        )
        for block in self._blocks(max(rows.itemsize, others.itemsize)):
            mine, theirs = rows[block.before], others[block.after]
            same = same_layout and _equal_bytes(mine, theirs)
            for field, other in chosen:
                if same:
                    counts[field.name].compared += len(block.pairs)
                else:
                    counts[field.name].add(mine[field.name], theirs[other.name], block)
            self._advance(len(block.pairs))

    def _compare_wide(self, field: Field, other: Field, counts: _Counts) -> None:
        items, others = self._before.items(field.key), self._after.items(other.key)
        for block in self._blocks(max(field.step_bytes, other.step_bytes)):
            self._add_items(items, others, block, counts)
            self._advance(len(block.pairs))

    def _compare_finals(self, field: Field, other: Field, counts: _Counts) -> None:
        first, second = self._pairs.T
        known = (
            self._before.episodes["final_known"][first]
            & self._after.episodes["final_known"][second]
            & (self._before.episodes.lengths[first] == self._after.episodes.lengths[second])
        )
        pairs = np.flatnonzero(known)
        items, others = self._before.final_states(field.key), self._after.final_states(other.key)
        size = max(1, _BLOCK_BYTES // max(field.step_bytes, other.step_bytes, 1))
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            block = _Block(part, self._lengths[part], _rows(first[part]), _rows(second[part]))
            self._add_items(items, others, block, counts)

    def _add_items(self, items: Any, others: Any, block: _Block, counts: _Counts) -> None:
        if isinstance(items, ImageColumn) and type(items) is type(others):
            block = _unequal_images(items, others, block, counts)
            if not len(block.pairs):
                return
        mine, theirs = items[_ascending(block.before)], others[_ascending(block.after)]
        counts.add(_restored(mine, block.before), _restored(theirs, block.after), block)

    def _blocks(self, step_bytes: int) -> Iterator[_Block]:
        total = int(self._ends[-1]) if len(self._ends) else 0
        size = max(1, _BLOCK_BYTES // max(step_bytes, 1))
        starts = (self._before.episodes.starts[self._pairs[:, 0]], self._after.episodes.starts[self._pairs[:, 1]])
        for begin, end in pairwise([*range(0, total, size), total]):
            numbers = np.arange(begin, end)
            pairs = np.searchsorted(self._ends, numbers, side="right")
            steps = numbers - (self._ends[pairs] - self._lengths[pairs])
            yield _Block(pairs, steps, *(_rows(first[pairs] + steps) for first in starts))


def _rows(rows: Numbers) -> Rows:
    """Return consecutive rows as a slice, of which a file is read without a copy."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _ascending(rows: Rows) -> Rows:
    return rows if isinstance(rows, slice) else np.sort(rows)


def _restored(values: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """Return values that were read in ascending order in the order of the rows."""
    return values if isinstance(rows, slice) else values[np.argsort(np.argsort(rows, kind="stable"), kind="stable")]


def _equal_bytes(mine: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Return whether all fields of records are equal, the numbers of their episodes included."""
    return np.array_equal(np.ascontiguousarray(mine).view(np.uint8), np.ascontiguousarray(theirs).view(np.uint8))


def _unequal_images(items: ImageColumn, others: ImageColumn, block: _Block, counts: _Counts) -> _Block:
    """Return the rows of a block whose stored images are not the same, and count the other rows as equal."""
    if not isinstance(block.before, slice) or not isinstance(block.after, slice):
        return block
    mine = items.read_comparable(block.before.start, block.before.stop)
    theirs = others.read_comparable(block.after.start, block.after.stop)
    same = mine == theirs
    differs = ~same.reshape(len(same), math.prod(same.shape[1:])).all(axis=1)
    counts.compared += int(np.count_nonzero(~differs))
    rows = np.flatnonzero(differs)
    return _Block(block.pairs[rows], block.steps[rows], block.before.start + rows, block.after.start + rows)


class _Counts:
    """What differs in a field, so far."""

    def __init__(
        self,
        pairs: Numbers,
        name: str,
        other_name: str,
        texts: tuple[Sequence[str], Sequence[str]] | None = None,
        differs: Callable[[Numbers, Numbers], object] = lambda *_: None,
    ) -> None:
        self.compared = self._steps = self._values = 0
        self._pairs, self._names, self._differs = pairs, (name, other_name), differs
        self._texts = None if texts is None else [np.array(one, object) for one in texts]
        self._different = np.zeros(len(pairs), np.bool_)
        self._first: tuple[tuple[int, int], Place] | None = None
        self._greatest: float | None = None

    def add(self, mine: NDArray[Any], theirs: NDArray[Any], block: _Block) -> None:
        count = len(block.pairs)
        self.compared += count
        if self._texts is not None:
            mine, theirs = (texts[codes] for texts, codes in zip(self._texts, (mine, theirs), strict=True))
        flat, others = (np.asarray(one).reshape(count, math.prod(one.shape[1:])) for one in (mine, theirs))
        unequal = flat != others
        if not unequal.any():
            return
        if flat.dtype.kind == others.dtype.kind == "f":
            unequal &= ~(np.isnan(flat) & np.isnan(others))
        rows = np.flatnonzero(unequal.any(axis=1))
        if not len(rows):
            return
        self._steps += len(rows)
        self._values += int(np.count_nonzero(unequal))
        self._different[block.pairs[rows]] = True
        self._differs(block.steps[rows], np.flatnonzero(unequal.any(axis=0)))
        self._keep_first(int(rows[0]), unequal, (flat, others), mine.shape[1:], block)
        self._keep_greatest(flat[unequal], others[unequal])

    def _keep_first(
        self,
        row: int,
        unequal: NDArray[np.bool_],
        values: tuple[NDArray[Any], NDArray[Any]],
        shape: tuple[int, ...],
        block: _Block,
    ) -> None:
        pair, step = int(block.pairs[row]), int(block.steps[row])
        if self._first is not None and self._first[0] <= (pair, step):
            return
        element = int(np.argmax(unequal[row]))
        before, after = (_plain(one[row, element]) for one in values)
        indices = tuple(int(one) for one in np.unravel_index(element, shape))
        numbers = (int(self._pairs[pair, 0]), int(self._pairs[pair, 1]))
        self._first = ((pair, step), Place(numbers, step, indices, before, after))

    def _keep_greatest(self, mine: NDArray[Any], theirs: NDArray[Any]) -> None:
        if mine.dtype.kind not in "biuf" or theirs.dtype.kind not in "biuf":
            return
        distances = _distances(mine, theirs)
        finite = distances[np.isfinite(distances)]
        if finite.size:
            self._greatest = max(self._greatest or 0.0, float(finite.max()))

    def result(self) -> FieldDifference:
        return FieldDifference(
            *self._names,
            self.compared,
            self._steps,
            self._values,
            tuple(self._pairs[self._different, 0].tolist()),
            None if self._first is None else self._first[1],
            self._greatest,
        )


def _distances(mine: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    """Return the distances of numbers, [n]. Those of integers are exact, which float64 is not."""
    if mine.dtype.kind in "iu" and theirs.dtype.kind in "iu":
        apart = mine.astype(np.uint64) - theirs.astype(np.uint64)
        return np.where(mine > theirs, apart, np.negative(apart))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(mine.astype(np.float64) - theirs.astype(np.float64))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
