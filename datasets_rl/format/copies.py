"""Which episodes of stored datasets are copies: in a dataset, and of the episodes of another. The one rule of split, mixtures, training and audits.

    dataset          episode 0  s a r     episode 1  s a r'                   copies: s and a have information, and are equal
    other dataset    episode 5  s' a r                                        a copy of episode 0 and of episode 1: a is equal

Observations and actions say which episode this is. Rewards and other fields may be computed again for a copy, so they say nothing. In
episodes whose observations in rows.npy have no information, as those of images alone, all fields say which episode this is. A field has
information if its values are `EVIDENCE_BITS` new, so constant and scripted episodes are never copies.

Values are compared by the digests of fingerprints. Two fields of other values hardly ever have one digest by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.copies import episode_digests, find_copies
from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field
from datasets_rl.ted.keys import ACTION, is_observation
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable


@dataclass(frozen=True, eq=False)
class Shared:
    """Episodes that two of several datasets have."""

    first: int
    """Number of the first dataset."""
    second: int
    """Number of the second dataset."""
    pairs: NDArray[np.int64]
    """An episode of the first dataset and the copy in the second dataset, [n, 2], for each of the n copies in the second."""
    whole: NDArray[np.bool_]
    """Which copies are equal in all fields that say which episode this is, [n]. The others are equal in some of them."""
    fields: tuple[str, ...]
    """Dotted keys, in the second dataset, of the fields that are equal in all these others."""

    def __len__(self) -> int:
        """Return the number of episodes of the second dataset that the first dataset has, too."""
        return len(self.pairs)


def telling_fingerprints(
    stored: StoredDataset, rows: RowRanges | None = None, episodes: EpisodeTable | None = None
) -> Fingerprints:
    """Return the fingerprints of E episodes, in which only the fields that say which episode this is have information.

    A part of an episode has no information.

    Args:
        stored: The dataset.
        rows: Rows of the dataset that are the steps of the episodes. All rows by default.
        episodes: The table of the episodes that these rows form.
    """
    prints = _fingerprints(stored, rows, episodes)
    fields = {field.name: field for field in stored.schema}
    says = {name for name in prints.names if _is_narrow_observation(fields[name])}
    moves = np.zeros(len(prints), np.bool_)
    for name in says:
        moves |= prints.evidence(name)
    records = prints.records
    for name in prints.names:
        if name not in says and fields[name].key[0] != ACTION[0]:
            records[name]["bits"][moves] = 0
    return prints


def first_copies(prints: Fingerprints) -> NDArray[np.int64]:
    """Return the first episode with the values of each episode, [E]. An episode without a copy is its own first.

    Args:
        prints: As from `telling_fingerprints`.
    """
    words, own = episode_digests(prints), np.arange(len(prints))
    _, firsts, places = np.unique(words, return_index=True, return_inverse=True)
    found = np.where(words == 0, own, firsts[places.reshape(-1)])
    for name in prints.names:
        digests, tells = prints.digests(name), prints.evidence(name)
        differs = (digests != digests[found]) & (tells | tells[found])
        found = np.where(differs, own, found)
    return found


def first_copies_among(datasets: Sequence[Fingerprints]) -> NDArray[np.int64]:
    """Return the first episode with the values of each episode of several datasets, [E], numbered through all datasets.

    Args:
        datasets: For each dataset the fingerprints as from `telling_fingerprints`.
    """
    starts = np.cumsum([0, *map(len, datasets)])
    labels = [np.concatenate([start + first_copies(one) for start, one in zip(starts, datasets, strict=False)])]
    for shared in shared_episodes(datasets):
        label = np.arange(starts[-1])
        first, second = (shared.pairs + starts[[shared.first, shared.second]]).T
        label[second] = first
        labels.append(label)
    return joined(labels)


def joined(labels: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the first episode that each of E episodes is linked to, [E]. Two episodes with one label are linked, also through others.

    Args:
        labels: Several labels of each episode, [E] each.
    """
    groups = [np.unique(label, return_inverse=True)[1].reshape(-1) for label in labels]
    firsts = np.arange(len(groups[0]))
    while True:
        before = firsts
        for group in groups:
            least = np.full(group.max(initial=-1) + 1, len(firsts))
            np.minimum.at(least, group, firsts)
            firsts = least[group]
        if np.array_equal(before, firsts):
            return firsts


def groups_of_copies(firsts: NDArray[np.int64]) -> list[list[int]]:
    """Return the episodes of each group of copies, ascending, given the first copy of each episode, [E]."""
    order = np.argsort(firsts, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(firsts[order])) + 1)
    return [group.tolist() for group in groups if len(group) > 1]


def shared_episodes(datasets: Sequence[Fingerprints]) -> tuple[Shared, ...]:
    """Return the pairs of datasets that have the same episodes, with these episodes.

    A copy has the same values in a field that has information and that no other episode of its dataset shares, see `fingerprints.copies`.

    Args:
        datasets: For each dataset the fingerprints as from `telling_fingerprints`.
    """
    found: list[Shared] = []
    telling = [_informative_fields(one) for one in datasets]
    for first, second in combinations([number for number, one in enumerate(telling) if one.names], 2):
        copies = find_copies(telling[second], among=telling[first])
        episodes = np.flatnonzero(copies.found)
        if len(episodes):
            equal = copies.equal[episodes]
            tells = np.stack([telling[second].evidence(name)[episodes] for name in copies.names], axis=1)
            whole = np.asarray((equal | ~tells).all(axis=1))
            common = np.asarray((equal & tells)[~whole].all(axis=0))
            fields = tuple(name for name, same in zip(copies.names, common.tolist(), strict=True) if same)
            found.append(Shared(first, second, np.stack([copies.episodes[episodes], episodes], axis=1), whole, fields))
    return tuple(found)


def _informative_fields(prints: Fingerprints) -> Fingerprints:
    """Return the fingerprints of the fields that have information in any episode."""
    names = [name for name in prints.names if prints.evidence(name).any()]
    return replace(prints, records=prints.records[names])


def _fingerprints(stored: StoredDataset, rows: RowRanges | None, episodes: EpisodeTable | None) -> Fingerprints:
    """Return a copy of the fingerprints of the visible episodes, [E]."""
    prints, whole = stored.fingerprints, stored.episodes
    if rows is None or episodes is None:
        return replace(prints, records=prints.records.copy())
    first, last = rows.at(episodes.starts), rows.at(episodes.stops - 1)
    numbers = whole.episode_of(first)
    shown = prints.take(numbers)
    is_part = (whole.starts[numbers] != first) | (whole.stops[numbers] - 1 != last)
    is_part |= whole.lengths[numbers] != episodes.lengths
    for name in shown.names:
        shown.records[name]["bits"][is_part] = 0
    return shown


def _is_narrow_observation(field: Field) -> bool:
    return is_observation(field.key) and not field.wide and not field.text and field.dtype.kind in "biuf"
