"""Which episodes hold the same values as others: exact copies, by the digests of their fields.

    episode 7 here       observation  x     action  y     next.reward  z     time  t
    episode 3 there      state        x     action  y                        step  t      same states and actions

A field is evidence in an episode if it has enough information there, and if no other episode of the same dataset has the same values
in this field and others elsewhere, as the actions of a script or the times of the steps do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.fingerprint import Fingerprints

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Copies:
    """For each of E episodes, the episode elsewhere that holds the same values."""

    episodes: NDArray[np.int64]
    """Number of the episode elsewhere with the most equal fields, [E], or -1 without an episode."""
    equal: NDArray[np.bool_]
    """Which fields are equal to a field of that episode, [E, F]."""
    names: tuple[str, ...]
    """Dotted keys of the F fields."""

    @property
    def found(self) -> NDArray[np.bool_]:
        """Which episodes have an exact copy, [E]."""
        found: NDArray[np.bool_] = self.episodes >= 0
        return found


def episode_digests(prints: Fingerprints) -> Words:
    """Return a digest of each episode, [E]: of the set of the values of its fields with enough information, 0 without any.

    Two datasets of the same fields, under any keys, have the same digest for the same episode.
    """
    words = _words(prints, [prints.evidence(name) for name in prints.names])
    words.sort(axis=1)
    words[:, 1:][words[:, 1:] == words[:, :-1]] = 0
    words.sort(axis=1)
    total = np.zeros(len(prints), np.uint64)
    for column in words.T:
        total = np.where(column == 0, total, (total ^ column) * np.uint64(0xBF58476D1CE4E5B9))
    return total


def evidence(prints: Fingerprints) -> NDArray[np.bool_]:
    """Return which fields are evidence of a copy in which episodes, [E, F]."""
    whole = episode_digests(prints)
    fields = np.zeros((len(prints), len(prints.names)), np.bool_)
    for number, name in enumerate(prints.names):
        informative = prints.evidence(name)
        fields[:, number] = informative & ~_is_shared(prints.digests(name), informative, whole)
    return fields


def find_copies(of: Fingerprints, among: Fingerprints) -> Copies:
    """Find an exact copy of each episode among other episodes.

    A copy has the same values in at least one field that is evidence, see above. Of several copies, the one with the most equal fields is
    taken, and then the first.

    Args:
        of: The E episodes, of F fields.
        among: The other episodes.
    """
    mine, theirs = evidence(of), evidence(among)
    words, other_words = _words(of, list(mine.T)), _words(among, list(theirs.T))
    hits, episodes = _index(other_words)
    best, most = np.full(len(of), -1), np.zeros(len(of), np.int64)
    for column in words.T:
        candidates = _look_up(column, hits, episodes)
        score = _equal(of, among, candidates).sum(axis=1)
        better = (candidates >= 0) & ((score > most) | ((score == most) & (candidates < best)))
        best, most = np.where(better, candidates, best), np.where(better, score, most)
    return Copies(best, _equal(of, among, best), of.names)


def _words(prints: Fingerprints, fields: list[NDArray[np.bool_]]) -> Words:
    """Return a word of the digest of each field in each episode, [E, F], 0 where the field is no evidence."""
    words = np.zeros((len(prints), len(prints.names)), np.uint64)
    for number, (name, used) in enumerate(zip(prints.names, fields, strict=True)):
        words[:, number] = np.where(used, prints.digests(name), 0)
    return words


def _is_shared(digests: Words, informative: NDArray[np.bool_], whole: Words) -> NDArray[np.bool_]:
    """Return which episodes have the digest of another episode whose other values differ, [E]."""
    order = np.lexsort((whole, digests, informative))
    first, same = digests[order], np.zeros(len(order), np.bool_)
    new = np.ones(len(order), np.bool_)
    new[1:] = (first[1:] != first[:-1]) | (informative[order][1:] != informative[order][:-1])
    group = np.cumsum(new) - 1
    differs = np.zeros(len(order), np.bool_)
    differs[1:] = ~new[1:] & (whole[order][1:] != whole[order][:-1])
    shared = np.bincount(group, differs, minlength=0) > 0
    same[order] = shared[group]
    return same


def _index(words: Words) -> tuple[Words, NDArray[np.int64]]:
    """Return the words of all fields in ascending order, and the episode of each, the first episode first."""
    used = np.flatnonzero(words)
    values = words.reshape(-1)[used]
    order = np.argsort(values, kind="stable")
    return values[order], used[order] // max(words.shape[1], 1)


def _look_up(words: Words, hits: Words, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first episode that has each word, or -1."""
    if not len(hits):
        return np.full(len(words), -1)
    places = np.searchsorted(hits, words).clip(max=len(hits) - 1)
    return np.where((words != 0) & (hits[places] == words), episodes[places], -1)


def _equal(of: Fingerprints, among: Fingerprints, episodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which fields of each episode are equal to a field with information of the other episode, [E, F]. None of episode -1."""
    equal = np.zeros((len(of), len(of.names)), np.bool_)
    rows = np.flatnonzero(episodes >= 0)
    others = episodes[rows]
    for number, name in enumerate(of.names):
        digests = of.digests(name)[rows]
        for other in among.names:
            equal[rows, number] |= among.digests(other)[others] == digests
    return equal
