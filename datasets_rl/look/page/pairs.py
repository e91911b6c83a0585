"""The episodes that two datasets have: which of them differ, and in which values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.differences import Difference, FieldDifference, Place
from datasets_rl.differences.values import Comparison
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look.page.curves import MAX_POINTS
from datasets_rl.ted.keys import as_key

PAGE_PAIRS = 50
"""Number of pairs on a page of the list."""
_SHOWN = 100
"""Number of changes of the description, and of episodes in a single dataset, that are shown."""


class Pairs:
    """The pairs of episodes of two datasets on the page. A pair is known by its place in `Difference.pairs`.

    Args:
        found: The difference of the two datasets.
        before: The first dataset.
        after: The second dataset.
    """

    def __init__(self, found: Difference, before: StoredDataset, after: StoredDataset) -> None:
        self._found = found
        self._before, self._after = before, after
        self._numbers = np.array(found.pairs, np.int64).reshape(-1, 2)
        self.pair = lru_cache(maxsize=64)(self._make_pair)

    @cached_property
    def _differs(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which pairs differ in which field, or in the number of steps, [P] each."""
        of = {one.name: np.isin(self._numbers[:, 0], one.episodes) for one in self._found.different_fields}
        shortened = np.isin(self._numbers[:, 0], [numbers[0] for numbers in self._found.shortened])
        return {**({"number of steps": shortened} if shortened.any() else {}), **of}

    @cached_property
    def different(self) -> NDArray[np.int64]:
        """The pairs that differ, ascending."""
        differs = np.zeros(len(self._numbers), np.bool_)
        for one in self._differs.values():
            differs |= one
        return np.flatnonzero(differs)

    @property
    def first(self) -> int | None:
        """The first pair that differs, or None if all are equal."""
        return int(self.different[0]) if len(self.different) else None

    def pair_of(self, episode: int) -> int:
        """Return the pair of an episode of the first dataset.

        Raises:
            InvalidArgumentError: If only the first dataset has the episode, or if there is no such episode.
        """
        if episode >= len(self._before.episodes):
            last = len(self._before.episodes) - 1
            raise InvalidArgumentError(f"{self._found.before.name} has no episode {episode:,}, expected 0 to {last:,}")
        places = np.flatnonzero(self._numbers[:, 0] == episode)
        if not len(places):
            raise InvalidArgumentError(
                f"episode {episode:,} of {self._found.before.name} has no counterpart in {self._found.after.name}"
            )
        return int(places[0])

    def page(self, offset: int, *, whole: bool) -> dict[str, Any]:
        """Return the difference, and a page of the list of the pairs that differ, as JSON values.

        Args:
            offset: The place of the first pair in the list.
            whole: Whether the list has all pairs.
        """
        found, listed = self._found, np.arange(len(self._numbers)) if whole else self.different
        offset = max(0, min(offset, len(listed) - 1))
        shown = listed[offset : offset + PAGE_PAIRS]
        return {
            "names": [found.before.name, found.after.name],
            "equal": found.equal,
            "summary": found.summary,
            "changes": [[one.name, one.before, one.after] for one in found.changes[:_SHOWN]],
            "fields": [self._entry(one, self._place(one.first)) for one in found.fields if not one.equal],
            "only": [
                {"total": len(numbers), "episodes": numbers[:_SHOWN]}
                for numbers in (found.only_before, found.only_after)
            ],
            "total": len(self._numbers),
            "different": len(self.different),
            "matching": len(listed),
            "offset": offset,
            "rows": [self.row(pair) for pair in shown.tolist()],
        }

    def _entry(self, one: FieldDifference, pair: int | None) -> dict[str, Any]:
        return _field(one, pair, self._before.schema[as_key(one.name)].shape if one.of_steps else ())

    def _place(self, first: Place | None) -> int | None:
        return None if first is None else self.pair_of(first.episodes[0])

    def row(self, pair: int) -> dict[str, Any]:
        """Return the entry of a pair in the list, as JSON values."""
        before, after = self._numbers[pair].tolist()
        return {
            "pair": pair,
            "episodes": [before, after],
            "lengths": [int(self._before.episodes.lengths[before]), int(self._after.episodes.lengths[after])],
            "differs": [name for name, which in self._differs.items() if which[pair]],
        }

    def _make_pair(self, pair: int) -> dict[str, Any]:
        """Return what differs in a pair, as JSON values. The values of both episodes are read.

        ``runs`` of a field has the steps with another value: the first step, and the step after the last, of at most 1,000 runs. In
        an episode with more runs, near runs are a single run. ``elements`` has the first 1,000 elements with another value.

        Raises:
            InvalidArgumentError: If there is no such pair.
        """
        if not len(self._numbers):
            raise InvalidArgumentError("the datasets have no episode in common")
        if not 0 <= pair < len(self._numbers):
            raise InvalidArgumentError(f"pair {pair:,} does not exist, expected 0 to {len(self._numbers) - 1:,}")
        steps: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
        elements: dict[str, set[int]] = defaultdict(set)

        def add(name: str, which: NDArray[np.int64], where: NDArray[np.int64]) -> None:
            steps[name].append(which)
            elements[name].update(where[:MAX_POINTS].tolist())

        comparison = Comparison(
            self._before,
            self._after,
            self._numbers[pair : pair + 1],
            differs=add,
        )
        names = {one.name: one.other_name for one in self._found.fields if one.of_steps}
        compared = [*comparison.fields(names), *comparison.columns()]
        fields = [
            {
                **self._entry(one, pair),
                "runs": _runs(steps[one.name]),
                "elements": sorted(elements[one.name])[:MAX_POINTS],
            }
            for one in compared
        ]
        firsts = [one.first.step for one in compared if one.first is not None and one.first.step >= 0]
        place = int(np.searchsorted(self.different, pair))
        after = place + (place < len(self.different) and int(self.different[place]) == pair)
        return {
            **self.row(pair),
            "total": len(self._numbers),
            "previous": int(self.different[place - 1]) if place else None,
            "next": int(self.different[after]) if after < len(self.different) else None,
            "first": min(firsts, default=None),
            "fields": fields,
        }


def _flat(element: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return the number of an element in row-major order."""
    return int(np.ravel_multi_index(element, shape)) if element else 0


def _field(one: FieldDifference, pair: int | None, shape: tuple[int, ...]) -> dict[str, Any]:
    first = None
    if one.first is not None:
        before, after = one.first.texts
        first = {
            "pair": pair,
            "episodes": [*one.first.episodes],
            "step": one.first.step,
            "element": [*one.first.element],
            "flat": _flat(one.first.element, shape),
            "before": before,
            "after": after,
        }
    return {
        "name": one.name,
        "other": one.other_name,
        "of_steps": one.of_steps,
        "compared": one.compared,
        "steps": one.steps,
        "values": one.values,
        "episodes": len(one.episodes),
        "greatest": one.greatest,
        "first": first,
    }


def _runs(parts: list[NDArray[np.int64]]) -> list[list[int]]:
    """Return ascending steps as runs, at most `MAX_POINTS`: the first step of each, and the step after the last."""
    steps = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
    gap = 1
    while len(breaks := np.flatnonzero(np.diff(steps) > gap)) >= MAX_POINTS:
        gap *= 2
    if not len(steps):
        return []
    starts, stops = steps[np.r_[0, breaks + 1]], steps[np.r_[breaks, len(steps) - 1]] + 1
    return np.stack([starts, stops], axis=1).tolist()  # type: ignore[no-any-return]
