"""The search for the episodes of a dataset in other datasets, and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets_rl.downloading.opened import check_selection, opened
from datasets_rl.fingerprints.copies import evidence
from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.fingerprints import computed_fingerprints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.identifying.index import Index, open_index
from datasets_rl.identifying.known import KnownDataset, known_datasets
from datasets_rl.identifying.near import NearCopy, may_be_near, near_copy
from datasets_rl.identifying.pixels import same_pixels
from datasets_rl.progress import waiting
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store.find import shown_id
from datasets_rl.store.layout import dataset_folder
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
    """Number of the other ones with equal values in some fields, as a set of images has the actions of the set of states."""
    near: int
    """Number of those that are near copies: rounded, scaled, cut, split, joined."""
    fields: tuple[str, ...]
    """Dotted keys of the looked-up fields with equal values in all exact and partial copies."""
    different: tuple[str, ...] = ()
    """Dotted keys of the looked-up fields with enough information that any of the partial copies has with other values, or has not."""
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
    """The id of the stored dataset, or the path or the address that was given."""
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
    damaged: tuple[str, ...] = ()
    """Stored datasets that could not be opened, and were not searched, with the reason."""
    index_problem: str = ""
    """Why the home folder does not keep the index of the stored datasets, so that each search makes the index again. Empty if the folder
    keeps the index."""

    @property
    def known(self) -> bool:
        """Whether any stored dataset holds any of the episodes."""
        return bool(self.matches)


def identify(
    dataset: str | Path,
    *,
    near: bool = True,
    selection: Selection | None = None,
    root: Path | str | None = None,
    settings: Settings | None = None,
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
        selection: The part of files that are not stored, and the options of the source of these files.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If there is a selection for a stored dataset.
        FetchError: If an address does not give the files.
        ConversionError: If the files break their own format.
    """
    settings = settings or Settings.from_env()
    check_selection(selection, dataset, settings=settings)
    with opened(dataset, selection=selection, root=root, settings=settings) as stored:
        name = shown_id(stored.folder, str(dataset), settings=settings)
        known = [*known_datasets(settings)]
        with waiting(f"indexing the episodes of {len(known):,} stored datasets", show=settings.progress):
            index, problem = open_index(settings.home, known)
        return replace(Search(stored, name, known, index).run(near=near), index_problem=problem)


class Search:
    """The search for the episodes of a dataset in others.

    Args:
        stored: The dataset.
        name: The id under which the dataset is shown.
        known: The datasets in the order of the index. The dataset itself, which may be among them, is not searched.
        index: The index of these datasets.
    """

    def __init__(self, stored: StoredDataset, name: str, known: Sequence[KnownDataset], index: Index) -> None:
        self._stored, self._name, self._known, self._index = stored, name, known, index
        own = dataset_folder(stored.folder)
        self._own = {number for number, one in enumerate(known) if dataset_folder(one.folder) == own}
        empty = np.flatnonzero(np.diff(index.starts) == 0).tolist()
        problems = {number: known[number].problem for number in empty if number not in self._own}
        self._damaged = {number: problem for number, problem in problems.items() if problem}
        self._kept: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}

    def run(self, *, near: bool) -> Identity:
        """Search for exact copies, and with `near` for near copies of the other episodes."""
        prints = self._stored.fingerprints
        informative = prints.informative()
        found = np.zeros(len(prints), np.bool_)
        tallies: dict[int, _Tally] = {}
        for number, copies in exact_copies(prints, evidence(prints), self._index, self._fingerprints).items():
            for row in np.flatnonzero(~copies.complete).tolist():
                self._compare_pixels(number, copies, row)
            found[copies.episodes] = True
            tallies[number] = _Tally(copies)
        if near:
            moves = (prints.sketches["hash"] != 0).sum(axis=1) >= _FEWEST_WINDOWS
            informative &= moves | found
            missing = np.flatnonzero(informative & ~found)
            for episode, number, twin, copy in self._near(missing):
                found[episode] = True
                tally = tallies.setdefault(number, _Tally(HeldCopies.of(prints, [], prints, [])))
                steps = int(prints.lengths[episode])
                if copy.shift or copy.steps != steps or not self._are_equal(number, episode, twin):
                    tally.near.setdefault(episode, _changes(copy, steps))
                else:
                    tally.same.add(episode)
        matches = [tally.match(self._known[number]) for number, tally in tallies.items()]
        return Identity(
            self._name,
            len(prints),
            int((~informative & ~found).sum()),
            int((informative & ~found).sum()),
            len(self._known) - len(self._own) - len(self._damaged),
            tuple(sorted(matches, key=lambda match: (-match.found, -match.exact, match.id))),
            tuple(self._damaged.values()),
        )

    def _fingerprints(self, number: int) -> Fingerprints | None:
        """Return the fingerprints of a dataset of the index, or None if the dataset is not searched."""
        if number in self._own or number in self._damaged:
            return None
        if problem := self._known[number].problem:
            self._damaged[number] = problem
            return None
        return self._known[number].fingerprints

    def _are_equal(self, number: int, episode: int, twin: int) -> bool:
        """Return whether an episode is equal to an episode of another dataset in all fields with enough information."""
        copies = HeldCopies.of(self._stored.fingerprints, [episode], self._known[number].fingerprints, [twin])
        self._compare_pixels(number, copies, 0)
        return bool(copies.complete[0])

    def _compare_pixels(self, number: int, copies: HeldCopies, row: int) -> None:
        """Compare the images of an episode with those of the copy, where the fingerprints are of files, and add what is equal."""
        theirs, episode, twin = self._known[number].stored, int(copies.episodes[row]), int(copies.twins[row])
        for place in np.flatnonzero(copies.telling[row] & ~copies.equal[row]).tolist():
            copies.equal[row, place] = same_pixels(self._stored, episode, copies.names[place], theirs, twin)

    def _near(self, episodes: NDArray[np.int64]) -> Iterator[tuple[int, int, int, NearCopy]]:
        """Yield the near copies of episodes: the episode, the number of the other dataset, the episode there, and the copy."""
        if not len(episodes) or not len(self._index.hashes):
            return
        for first, prints in computed_fingerprints(self._stored, episodes, windows=_WINDOWS):
            for number, sketch in enumerate(prints.sketches):
                episode = first + number
                mine = None
                found: set[tuple[int, int]] = set()
                for other, twin, shift in candidates(sketch, self._index, self._own):
                    if (other, twin) in found or self._fingerprints(other) is None:
                        continue
                    mine = mine or _values(self._stored, episode)
                    theirs = self._values_of(other, twin)
                    if not may_be_near(mine, theirs, shift):
                        continue
                    copy = near_copy(mine, theirs, shift)
                    if copy is not None:
                        found.add((other, twin))
                        yield episode, other, twin, copy

    def _values_of(self, other: int, episode: int) -> dict[str, NDArray[np.float64]]:
        """Return the values of an episode of another dataset, which are kept for the next comparisons."""
        if (other, episode) not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[other, episode] = _values(self._known[other].stored, episode)
        return self._kept[other, episode]


@dataclass(frozen=True, eq=False)
class HeldCopies:
    """Copies of n episodes, of F fields, in another dataset."""

    names: tuple[str, ...]
    """Dotted keys of the F fields."""
    episodes: NDArray[np.int64]
    """Numbers of the episodes, [n]."""
    twins: NDArray[np.int64]
    """Numbers of the copies in the other dataset, [n]."""
    equal: NDArray[np.bool_]
    """Which fields are equal to any field of the copy, [n, F]."""
    telling: NDArray[np.bool_]
    """Which fields of the episode have enough information, [n, F]."""

    @classmethod
    def of(cls, prints: Fingerprints, episodes: ArrayLike, theirs: Fingerprints, twins: ArrayLike) -> HeldCopies:
        """Compare episodes with episodes of another dataset, pair by pair.

        Args:
            prints: The fingerprints of the dataset.
            episodes: Numbers of episodes, [n].
            theirs: The fingerprints of the other dataset.
            twins: Numbers of episodes of the other dataset, [n].
        """
        mine, others = np.asarray(episodes, np.int64), np.asarray(twins, np.int64)
        equal = np.zeros((len(mine), len(prints.names)), np.bool_)
        for number, name in enumerate(prints.names):
            digests = prints.digests(name)[mine]
            for other_name in theirs.names:
                equal[:, number] |= theirs.digests(other_name)[others] == digests
        telling = np.stack([prints.evidence(name)[mine] for name in prints.names], axis=1)
        return cls(prints.names, mine, others, equal, telling)

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which copies are equal in all fields that have enough information, [n]."""
        return np.asarray((self.equal | ~self.telling).all(axis=1))

    def take(self, rows: NDArray[np.int64]) -> HeldCopies:
        """Return some of the copies."""
        return HeldCopies(self.names, self.episodes[rows], self.twins[rows], self.equal[rows], self.telling[rows])


def exact_copies(
    prints: Fingerprints, known: NDArray[np.bool_], index: Index, others: Callable[[int], Fingerprints | None]
) -> dict[int, HeldCopies]:
    """Find exact copies of E episodes of F fields in the datasets of an index.

    Args:
        prints: The fingerprints of the episodes.
        known: Which fields are evidence, [E, F].
        index: The index of the other datasets.
        others: Returns the fingerprints of a dataset of the index, or None for a dataset that is not searched.

    Returns:
        By the number of a dataset that has copies: the best copy there of each episode that has any.
    """
    pairs = [np.empty((0, 3), np.int64)]
    for number, name in enumerate(prints.names):
        words = np.where(known[:, number], prints.digests(name), 0)
        episodes, owners = index.owners_of(words)
        pairs.append(np.column_stack([owners, episodes])[:, [0, 2, 1]])
    found = np.unique(np.concatenate(pairs), axis=0)  # dataset, episode, episode there
    results = {}
    for other in np.unique(found[:, 0]).tolist():
        theirs = others(other)
        if theirs is None:
            continue
        episodes, twins = found[found[:, 0] == other, 1:].T
        pair = HeldCopies.of(prints, episodes, theirs, twins)
        genuine = np.asarray((pair.equal & known[pair.episodes]).any(axis=1))  # the words are halves of digests
        order = np.lexsort((-pair.equal.sum(axis=1), pair.episodes))
        order = order[genuine[order]]
        best = order[np.unique(pair.episodes[order], return_index=True)[1]]
        if len(best):
            results[other] = pair.take(best)
    return results


def candidates(sketch: NDArray[np.void], index: Index, without: Collection[int] = ()) -> list[tuple[int, int, int]]:
    """Return which episodes may be near copies of one, by several rare windows at one shift: dataset, episode and shift of each.

    An episode that repeats itself has several shifts.

    Args:
        sketch: The windows of the episode.
        index: The index of the datasets.
        without: The numbers of datasets that are left out.
    """
    sketch = sketch[sketch["hash"] != 0]
    positions, windows = index.windows_of(sketch["hash"], _OCCURRENCES * (1 + bool(without)))
    if without:
        kept = ~np.isin(windows[:, 0], [*without])
        positions, windows = positions[kept], windows[kept]
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
    """What a dataset holds."""

    copies: HeldCopies
    """Copies that were found by digests."""
    same: set[int] = field(default_factory=set)
    """Other episodes that are equal in all fields with enough information."""
    near: dict[int, list[str]] = field(default_factory=dict)
    """Near copies by episode: what has changed, a text each."""

    def match(self, known: KnownDataset) -> Match:
        complete = self.copies.complete
        near = [texts for episode, texts in self.near.items() if episode not in self.same]
        counts = Counter(text for texts in near for text in texts)
        common = np.asarray(self.copies.equal.all(axis=0) & bool(len(complete)))
        different = np.asarray((self.copies.telling & ~self.copies.equal).any(axis=0))
        return Match(
            known.id,
            known.stored.manifest.digest,
            known.stored.manifest.episodes,
            int(complete.sum()) + len(self.same),
            int((~complete).sum()),
            len(near),
            self._named(common),
            self._named(different),
            tuple(f"{text} ({count:,})" for text, count in counts.most_common()),
        )

    def _named(self, fields: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(self.copies.names[number] for number in np.flatnonzero(fields))


def _changes(copy: NearCopy, steps: int) -> list[str]:
    """Return what a near copy of an episode of some steps has changed."""
    texts = [f"{name} scaled" for name in copy.scaled]
    texts += ["other steps"] * (copy.steps != steps or copy.shift != 0)
    return texts + [f"{name} equal up to rounding" for name in copy.equal]


def _values(stored: StoredDataset, episode: int) -> dict[str, NDArray[np.float64]]:
    """Return the numbers in rows.npy of an episode, [T, D] each."""
    rows = stored.episodes.rows(episode)
    return {
        field.name: stored.column(field.key, rows.start, rows.stop).reshape(len(rows), -1).astype(np.float64)
        for field in stored.schema
        if not field.wide and not field.text and field.key != EPISODE and field.dtype.kind in "fiu"
    }
