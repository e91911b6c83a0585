"""Which episode of one dataset is which episode of another dataset.

    before   A  B  C  D  E        after   A  C' X  B
    pairs    A-A  B-B  C-C'       only before: D E        only after: X

These rules pair episodes, in this order, and each episode at most once:

1. The same values in all fields that both datasets have.
2. The same values in a field that is evidence of a copy, as `datasets_rl.fingerprints` explains.
3. The same number at the source, if both datasets were made of the same dataset.
4. The same number of steps, and the same place after a pair, as an episode whose values were all changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.copies import find_copies
from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.sources import split_derived

Numbers = NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def pair_episodes(before: StoredDataset, after: StoredDataset) -> Numbers:
    """Return the episodes that both datasets have, [P, 2], the number in the first dataset ascending."""
    prints, others = before.fingerprints, after.fingerprints
    to = np.full(len(prints), -1)
    free = np.ones(len(others), np.bool_)
    names = [name for name in prints.names if name in others.names]
    if names:
        _pair_equal(to, free, _words(prints, names), _words(others, names))
    _pair_copies(to, free, prints, others)
    if split_derived(before.manifest.id)[0] == split_derived(after.manifest.id)[0]:
        sources = (before.episodes["source"], after.episodes["source"])
        _pair_equal(to, free, *(column.astype(np.uint64) for column in sources))
    _pair_places(to, free, prints.lengths, others.lengths)
    found = np.flatnonzero(to >= 0)
    return np.stack([found, to[found]], axis=1)


def renamed_fields(before: StoredDataset, after: StoredDataset, pairs: Numbers) -> dict[str, str]:
    """Return the fields that have the same values under another name: the new name by the former name.

    The values of at least one pair of episodes are the same, and evidence of a copy there. Of several new names, the name with the most
    such pairs is taken.
    """
    prints, others = before.fingerprints.take(pairs[:, 0]), after.fingerprints.take(pairs[:, 1])
    new = [name for name in others.names if name not in prints.names]
    found: dict[str, str] = {}
    for name in prints.names:
        if name in others.names:
            continue
        evident = prints.evidence(name)
        counts = {
            one: int(((prints.digests(name) == others.digests(one)) & evident).sum())
            for one in new
            if one not in found.values()
        }
        if counts and (best := max(counts, key=counts.__getitem__)) and counts[best]:
            found[name] = best
    return found


def _words(prints: Fingerprints, names: list[str]) -> NDArray[np.uint64]:
    """Return a word of the values of these fields in each episode, [E]."""
    total = prints.lengths.astype(np.uint64)
    for name in names:
        for column in (prints.digests(name), prints.finals(name)):
            total = (total ^ column) * _MIX
            total ^= total >> np.uint64(29)
    return total


def _pair_equal(to: Numbers, free: NDArray[np.bool_], words: NDArray[np.uint64], others: NDArray[np.uint64]) -> None:
    """Pair the episodes with equal words: the first with the first, the second with the second, and so on."""
    mine, theirs = np.flatnonzero(to < 0), np.flatnonzero(free)
    all_words = np.concatenate([words[mine], others[theirs]])
    # The number of each word, and not the word: two words and counts must never have one key.
    numbers = np.unique(all_words, return_inverse=True)[1].reshape(-1) * (len(all_words) + 1)
    keys, other_keys = (part + _preceding(part) for part in np.split(numbers, [len(mine)]))
    _, first, second = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    to[mine[first]] = theirs[second]
    free[theirs[second]] = False


def _preceding(numbers: Numbers) -> Numbers:
    """Return how many equal numbers precede each number, [n]."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    new = np.ones(len(numbers), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    first = np.maximum.accumulate(np.where(new, np.arange(len(numbers)), 0))
    preceding = np.empty(len(numbers), np.int64)
    preceding[order] = np.arange(len(numbers)) - first
    return preceding


def _pair_copies(to: Numbers, free: NDArray[np.bool_], prints: Fingerprints, others: Fingerprints) -> None:
    mine, theirs = np.flatnonzero(to < 0), np.flatnonzero(free)
    if not len(mine) or not len(theirs):
        return
    copies = find_copies(prints.take(mine), others.take(theirs)).episodes
    found = np.flatnonzero(copies >= 0)
    _, first = np.unique(copies[found], return_index=True)
    mine, theirs = mine[found[first]], theirs[copies[found[first]]]
    to[mine] = theirs
    free[theirs] = False


def _pair_places(to: Numbers, free: NDArray[np.bool_], lengths: Numbers, others: Numbers) -> None:
    for number in np.flatnonzero(to < 0).tolist():
        place = int(to[number - 1]) + 1 if number else 0
        follows = number == 0 or to[number - 1] >= 0
        if follows and place < len(others) and free[place] and lengths[number] == others[place]:
            to[number] = place
            free[place] = False
