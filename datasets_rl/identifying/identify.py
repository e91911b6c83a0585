"""The search for the episodes of a dataset in other datasets, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets_rl.downloading.opened import opened
from datasets_rl.errors import DatasetsRLError, NotADatasetError
from datasets_rl.fingerprints.copies import evidence
from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.fingerprints import computed_fingerprints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.identifying.index import Index, open_index
from datasets_rl.identifying.near import NearCopy, may_be_near, near_copy
from datasets_rl.settings import Settings
from datasets_rl.store.find import shown_id, stored_folders
from datasets_rl.ted.keys import EPISODE

_WINDOWS = 4096
"""Windows of an episode that is looked up: nearly all, so that it may be several stored episodes, joined."""
_OCCURRENCES = 20_000
_FEWEST_HITS = 2
_FEWEST_WINDOWS = 3
_SMALL = 24
"""Windows of an episode up to which a single one is enough for a comparison of values."""
_COMPARED = 64
_SHIFTS = 4
_KEPT = 512


@dataclass(frozen=True, slots=True)
class Match:
    """A stored dataset that holds some of the episodes."""

    id: str
    digest: str
    """Digest of the manifest of the version."""
    episodes: int
    """Number of its episodes."""
    exact: int
    """Number of the looked-up episodes with all their fields equal, as far as fields have enough information."""
    partial: int
    """Number of those with equal values in some fields, as a set of images has the actions of the set of states."""
    near: int
    """Number of those that are near copies: rounded, scaled, cut, split, joined."""
    fields: tuple[str, ...]
    """Dotted keys of the looked-up fields with equal values in all exact and partial copies."""
    changes: tuple[str, ...] = ()
    """What the near copies have changed, a text each."""

    @property
    def found(self) -> int:
        """Number of the looked-up episodes that the dataset holds, in any form."""
        return self.exact + self.partial + self.near


@dataclass(frozen=True, slots=True)
class Identity:
    """Which stored datasets hold the episodes of a dataset."""

    id: str
    episodes: int
    """Number of episodes that were looked up."""
    uninformative: int
    """Number of episodes without evidence: constant, scripted or very short ones, and those that move only for some steps and have no exact
    copy. They match nothing."""
    unknown: int
    """Number of the other episodes that no stored dataset holds."""
    searched: int
    """Number of stored datasets that were searched."""
    matches: tuple[Match, ...] = ()
    """The datasets that hold episodes, those with the most first."""
    damaged: tuple[str, ...] = field(default=())
    """Stored datasets that could not be opened, and were not searched, with the reason."""

    @property
    def known(self) -> bool:
        """Whether any stored dataset holds any of the episodes."""
        return bool(self.matches)


def identify(
    dataset: str | Path, *, near: bool = True, root: Path | str | None = None, settings: Settings | None = None
) -> Identity:
    """Find the stored datasets that hold the episodes of a dataset, under any id, in any format.

    A dataset that is not stored is converted in a temporary folder, which is deleted. docs/identity.md says what counts as a copy, and what is
    not recognized.

        >>> from datasets_rl import identify, load
        >>> dataset = load("demo/pendulum")
        >>> identify("demo/pendulum").episodes
        75

    Args:
        dataset: The id or the folder of a stored dataset, the path of files of any format that can be converted, or an address.
        near: Whether to look for near copies of the episodes without an exact copy, too, which compares values.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If an address does not give the files.
        ConversionError: If the files break their own format.
    """
    settings = settings or Settings.from_env()
    with opened(dataset, root=root, settings=settings) as stored:
        name = shown_id(stored.folder, stored.manifest.id, settings=settings)
        own = stored.folder.parent
        others, damaged = _stored_datasets(settings, without=own)
        index = open_index(settings.home, [one for one, _ in others])
        return Search(stored, name, others, index, damaged).run(near=near)


class Search:
    """The search for the episodes of a dataset in others."""

    def __init__(
        self,
        stored: StoredDataset,
        name: str,
        others: Sequence[tuple[StoredDataset, str]],
        index: Index,
        damaged: tuple[str, ...],
    ) -> None:
        self._stored, self._name, self._others, self._index, self._damaged = stored, name, others, index, damaged
        self._kept: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}

    def run(self, *, near: bool) -> Identity:
        """Search for exact copies, and with `near` for near copies of the other episodes."""
        prints = self._stored.fingerprints
        known = evidence(prints)
        informative = prints.informative()
        copies = exact_copies(prints, known, self._index, [one.fingerprints for one, _ in self._others])
        found = np.zeros(len(prints), np.bool_)
        tallies: dict[int, _Tally] = {}
        for number, (equal, complete) in copies.items():
            held = equal.any(axis=1)
            found |= held
            tally = tallies.setdefault(number, _Tally())
            tally.exact, tally.partial = int(complete.sum()), int((held & ~complete).sum())
            common = np.asarray(equal[held]).all(axis=0)
            tally.fields = tuple(name for name, same in zip(prints.names, np.atleast_1d(common), strict=True) if same)
        if near:
            moves = (prints.sketches["hash"] != 0).sum(axis=1) >= _FEWEST_WINDOWS
            informative &= moves | found
            missing = np.flatnonzero(informative & ~found)
            for episode, number, copy in self._near(missing):
                found[episode] = True
                tallies.setdefault(number, _Tally()).add(episode, copy, int(prints.lengths[episode]))
        matches = [tally.match(*self._others[number]) for number, tally in tallies.items()]
        return Identity(
            self._name,
            len(prints),
            int((~informative & ~found).sum()),
            int((informative & ~found).sum()),
            len(self._others),
            tuple(sorted(matches, key=lambda match: (-match.found, -match.exact, match.id))),
            self._damaged,
        )

    def _near(self, episodes: NDArray[np.int64]) -> Iterator[tuple[int, int, NearCopy]]:
        """Yield the near copies of episodes: the episode, the number of the other dataset, and the copy."""
        if not len(episodes) or not len(self._index.hashes):
            return
        for first, prints in computed_fingerprints(self._stored, episodes, windows=_WINDOWS):
            for number, sketch in enumerate(prints.sketches):
                episode = first + number
                mine = None
                found: set[tuple[int, int]] = set()
                for other, twin, shift in candidates(sketch, self._index):
                    if (other, twin) in found:
                        continue
                    mine = mine or _values(self._stored, episode)
                    theirs = self._values_of(other, twin)
                    if not may_be_near(mine, theirs, shift):
                        continue
                    copy = near_copy(mine, theirs, shift)
                    if copy is not None:
                        found.add((other, twin))
                        yield episode, other, copy

    def _values_of(self, other: int, episode: int) -> dict[str, NDArray[np.float64]]:
        """Return the values of an episode of another dataset, which are kept for the next comparisons."""
        if (other, episode) not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[other, episode] = _values(self._others[other][0], episode)
        return self._kept[other, episode]


def exact_copies(
    prints: Fingerprints, known: NDArray[np.bool_], index: Index, others: Sequence[Fingerprints]
) -> dict[int, tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Find exact copies of E episodes of F fields in the datasets of an index.

    Args:
        prints: The fingerprints of the episodes.
        known: Which fields are evidence, [E, F].
        index: The index of the other datasets.
        others: The fingerprints of the other datasets, in the order of the index.

    Returns:
        By the number of a dataset that has copies: which fields of an episode are equal in its best copy there, [E, F], and which copies
        are complete, [E]: equal in all fields that have enough information.
    """
    informative = np.stack([prints.evidence(name) for name in prints.names], axis=1)
    pairs = [np.empty((0, 3), np.int64)]
    for number, name in enumerate(prints.names):
        words = np.where(known[:, number], prints.digests(name), 0)
        episodes, owners = index.owners_of(words)
        pairs.append(np.column_stack([owners, episodes])[:, [0, 2, 1]])
    found = np.unique(np.concatenate(pairs), axis=0)  # dataset, episode, episode there
    results = {}
    for other in np.unique(found[:, 0]).tolist():
        mine, theirs = found[found[:, 0] == other, 1:].T
        equal = np.zeros((len(mine), len(prints.names)), np.bool_)
        for number, name in enumerate(prints.names):
            digests = prints.digests(name)[mine]
            for other_name in others[other].names:
                equal[:, number] |= others[other].digests(other_name)[theirs] == digests
        genuine = (equal & known[mine]).any(axis=1)  # the words are halves of digests
        order = np.lexsort((-equal.sum(axis=1), mine))
        order = order[genuine[order]]
        best = order[np.unique(mine[order], return_index=True)[1]]
        fields, complete = np.zeros_like(known), np.zeros(len(known), np.bool_)
        fields[mine[best]] = equal[best]
        complete[mine[best]] = (equal[best] | ~informative[mine[best]]).all(axis=1)
        if len(best):
            results[other] = fields, complete
    return results


def candidates(sketch: NDArray[np.void], index: Index) -> list[tuple[int, int, int]]:
    """Return which episodes may be near copies of one, by several rare windows at one shift: dataset, episode and shift of each.

    An episode that repeats itself has several shifts.
    """
    sketch = sketch[sketch["hash"] != 0]
    positions, windows = index.windows_of(sketch["hash"], _OCCURRENCES)
    if not len(positions):
        return []
    shifts = windows[:, 2] - sketch["step"].astype(np.int64)[positions]
    places = np.column_stack([windows[:, :2], shifts])
    groups, counts = np.unique(places, axis=0, return_counts=True)
    best = np.argsort(-counts, kind="stable")
    fewest = _FEWEST_HITS if len(sketch) > _SMALL else 1
    best = best[counts[best] >= fewest]
    _, owners = np.unique(groups[best][:, :2], axis=0, return_inverse=True)
    together = np.argsort(owners, kind="stable")
    ranks = np.empty(len(best), np.int64)
    ranks[together] = np.arange(len(best)) - np.searchsorted(owners[together], owners[together])
    chosen = best[ranks < _SHIFTS][:_COMPARED]
    return [(int(dataset), int(episode), int(shift)) for dataset, episode, shift in groups[chosen]]


@dataclass(slots=True)
class _Tally:
    exact: int = 0
    partial: int = 0
    fields: tuple[str, ...] = ()
    near: set[int] = field(default_factory=set)
    changes: dict[str, int] = field(default_factory=dict)

    def add(self, episode: int, copy: NearCopy, steps: int) -> None:
        self.near.add(episode)
        texts = [f"{name} scaled" for name in copy.scaled]
        texts += [f"{copy.steps:,} steps in common"] * (copy.steps != steps or copy.shift != 0)
        texts += [f"{name} equal up to rounding" for name in copy.equal]
        for text in texts:
            key = "other steps" if text.endswith("in common") else text
            self.changes[key] = self.changes.get(key, 0) + 1

    def match(self, stored: StoredDataset, name: str) -> Match:
        changes = tuple(f"{text} ({count:,})" for text, count in sorted(self.changes.items(), key=lambda one: -one[1]))
        digest, episodes = stored.manifest.digest, stored.manifest.episodes
        return Match(name, digest, episodes, self.exact, self.partial, len(self.near), self.fields, changes)


def _values(stored: StoredDataset, episode: int) -> dict[str, NDArray[np.float64]]:
    """Return the numbers in rows.npy of an episode, [T, D] each."""
    rows = stored.episodes.rows(episode)
    return {
        field.name: stored.column(field.key, rows.start, rows.stop).reshape(len(rows), -1).astype(np.float64)
        for field in stored.schema
        if not field.wide and not field.text and field.key != EPISODE and field.dtype.kind in "fiu"
    }


def _stored_datasets(settings: Settings, *, without: Path) -> tuple[list[tuple[StoredDataset, str]], tuple[str, ...]]:
    found, damaged = [], []
    for folder in _unique(stored_folders(settings.home)):
        if folder.resolve() == without.resolve():
            continue
        try:
            stored = StoredDataset(folder)
        except NotADatasetError:
            continue
        except DatasetsRLError as error:
            damaged.append(f"{folder}: {error}")
            continue
        found.append((stored, shown_id(folder, stored.manifest.id, settings=settings)))
    return found, tuple(damaged)


def _unique(folders: Iterable[Path]) -> list[Path]:
    return list({folder.resolve(): folder for folder in folders}.values())
