"""The fingerprints of several datasets in sorted arrays, so that an episode is looked up by a few binary searches.

words.npy       uint64, ascending: the first word of the digest of each field that is evidence
owners.npy      int64 [.., 2]: the dataset and the episode of each word
hashes.npy      uint32, ascending: the hash of each window of the sketches
windows.npy     int64 [.., 3]: the dataset, the episode and the step of each hash

The arrays are a cache, ``<home>/.identify/<digest>``, of the versions with which the digest was computed. They are made again when a version
is published or removed, and an index that cannot be stored stays in memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.fingerprints.copies import evidence
from datasets_rl.format.reader import StoredDataset

INDEX_FOLDER = ".identify"
_INDEX = re.compile(r"\.?[0-9a-f]{16}")
_NAMES = ("words", "owners", "hashes", "windows")


@dataclass(frozen=True, eq=False)
class Index:
    """Fingerprints of the episodes of several datasets, see above."""

    words: NDArray[np.uint64]
    owners: NDArray[np.int64]
    hashes: NDArray[np.uint32]
    windows: NDArray[np.int64]

    def owners_of(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the digests of fields occur.

        Args:
            words: First words of digests, [n]. 0 occurs nowhere.

        Returns:
            The position in `words` of each occurrence, [m], and its dataset and episode, [m, 2].
        """
        return _occurrences(words, self.words, self.owners, words != 0)

    def windows_of(self, hashes: NDArray[np.uint32], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where hashes of windows occur, the rarest ones, because common windows tell no episodes apart.

        Args:
            hashes: Hashes, [n]. 0 occurs nowhere.
            most: The greatest number of occurrences, m.

        Returns:
            The position in `hashes` of each occurrence, [m], and its dataset, episode and step, [m, 3].
        """
        return _occurrences(hashes, self.hashes, self.windows, hashes != 0, most)


def open_index(home: Path, datasets: Sequence[StoredDataset]) -> Index:
    """Return the index of datasets, which are numbered in this order, from the home folder or from their fingerprints."""
    parts = [f"{stored.folder}\0{stored.manifest.digest}\0" for stored in datasets]
    digest = hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    folder = home / INDEX_FOLDER / digest
    try:
        return Index(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _NAMES))
    except (OSError, ValueError):
        index = make_index(datasets)
    try:
        _store(index, folder)
    except OSError:
        return index  # a home that cannot be written, or is full, keeps no index
    return index


def make_index(datasets: Sequence[StoredDataset]) -> Index:
    """Return the index of datasets, from their fingerprints."""
    words, owners = [np.empty(0, np.uint64)], [np.empty((0, 2), np.int64)]
    hashes, windows = [np.empty(0, np.uint32)], [np.empty((0, 3), np.int64)]
    for number, stored in enumerate(datasets):
        prints = stored.fingerprints
        known = evidence(prints)
        for field, name in enumerate(prints.names):
            episodes = np.flatnonzero(known[:, field])
            words.append(prints.digests(name)[episodes])
            owners.append(np.stack([np.full(len(episodes), number), episodes], axis=1))
        episodes, places = np.nonzero(prints.sketches["hash"])
        sketch = prints.sketches[episodes, places]
        hashes.append(sketch["hash"])
        windows.append(np.stack([np.full(len(episodes), number), episodes, sketch["step"].astype(np.int64)], axis=1))
    all_words, all_hashes = np.concatenate(words), np.concatenate(hashes)
    by_word, by_hash = np.argsort(all_words, kind="stable"), np.argsort(all_hashes, kind="stable")
    return Index(
        all_words[by_word],
        np.concatenate(owners)[by_word],
        all_hashes[by_hash],
        np.concatenate(windows)[by_hash],
    )


def _store(index: Index, folder: Path) -> None:
    parent = folder.parent
    for old in disk.plain_folders(parent, parent):
        if _INDEX.fullmatch(old.name):
            disk.remove_tree(old)
    temporary = parent / f".{folder.name}"
    temporary.mkdir(parents=True, exist_ok=True)
    for name in _NAMES:
        np.save(temporary / f"{name}.npy", getattr(index, name))
    disk.move_path(temporary, folder)


def _occurrences(
    wanted: NDArray[np.generic],
    values: NDArray[np.generic],
    places: NDArray[np.int64],
    used: NDArray[np.bool_],
    most: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts, stops = np.searchsorted(values, wanted, "left"), np.searchsorted(values, wanted, "right")
    counts = np.where(used, stops - starts, 0)
    if most is not None:
        rarest = np.argsort(counts, kind="stable")
        counts[rarest[np.cumsum(counts[rarest]) > most]] = 0
    positions = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions, np.asarray(places[np.repeat(starts, counts) + within])
