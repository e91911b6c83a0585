"""The fingerprints of all stored datasets in sorted arrays, so that an episode is looked up by a few binary searches.

    <home>/.identify/index      a record of `_HEADER`, and five arrays, one after the other

starts      int64 [D + 1]: the number of the first episode of each dataset, and the number of all episodes
words       uint64 [W], ascending: the first word of the digest of each field that is evidence
owners      uint32 [W]: the episode of each word
hashes      uint32 [H], ascending: the hash of each window of the sketches
windows     uint32 [H, 2]: the episode and the step of each hash, a record of `_WINDOW`

Episodes are numbered through all datasets. The file is a cache: it is made again if any version was published or removed since, or if the file
is damaged. What is found is compared with the fingerprints or the values of the datasets, so that a wrong entry never makes a match.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import DatasetsRLError
from datasets_rl.fingerprints.copies import evidence
from datasets_rl.identifying.known import KnownDataset
from datasets_rl.store.layout import INDEX_FILE, INDEX_FOLDER

_WINDOW = np.dtype([("episode", "<u4"), ("step", "<u4")])
_HEADER = np.dtype([("kind", "S16"), ("state", "S32"), ("counts", "<u8", (3,))])
_KIND = b"rlds index 1"
_WRITING = threading.Lock()
"""Held by the thread that writes an index: the temporary file has the name of the process."""
_ARRAYS: tuple[tuple[str, np.dtype[Any], int], ...] = (
    ("starts", np.dtype("<i8"), 0),
    ("words", np.dtype("<u8"), 1),
    ("owners", np.dtype("<u4"), 1),
    ("hashes", np.dtype("<u4"), 2),
    ("windows", _WINDOW, 2),
)
"""Name and dtype of each array in the file, and the number of its count in the header."""


@dataclass(frozen=True, eq=False)
class Index:
    """Fingerprints of the episodes of D datasets, see above."""

    starts: NDArray[np.int64]
    words: NDArray[np.uint64]
    owners: NDArray[np.uint32]
    hashes: NDArray[np.uint32]
    windows: NDArray[np.void]

    def owners_of(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the digests of fields occur.

        Args:
            words: First words of digests, [n]. 0 occurs nowhere.

        Returns:
            The position in `words` of each occurrence, [m], and its dataset and episode, [m, 2].
        """
        positions, rows = _occurrences(words, self.words, words != 0)
        return positions, self._places(self.owners[rows])

    def windows_of(self, hashes: NDArray[np.uint32], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where hashes of windows occur, the rarest windows, because common windows are in many episodes.

        Args:
            hashes: Hashes, [n]. 0 occurs nowhere.
            most: The greatest number of occurrences, m.

        Returns:
            The position in `hashes` of each occurrence, [m], and its dataset, episode and step, [m, 3].
        """
        positions, rows = _occurrences(hashes, self.hashes, hashes != 0, most)
        windows = self.windows[rows]
        return positions, np.column_stack([self._places(windows["episode"]), windows["step"].astype(np.int64)])

    def _places(self, episodes: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return dataset and episode, given numbers through all datasets, [m, 2]."""
        numbers = np.minimum(episodes.astype(np.int64), self.starts[-1] - 1)  # a damaged file has other numbers
        datasets = np.searchsorted(self.starts, numbers, "right") - 1
        return np.column_stack([datasets, numbers - self.starts[datasets]])


def open_index(home: Path, datasets: Sequence[KnownDataset]) -> tuple[Index, str]:
    """Return the index of datasets, which are numbered in this order, from the home folder or from their fingerprints.

    A dataset that cannot be opened has no episodes in the index.

    Returns:
        The index, and why the home folder does not keep the index. The reason is empty if the folder keeps the index.
    """
    if not datasets:
        return make_index(()), ""
    states = "\0\0".join(dataset.state() for dataset in datasets)
    state = hashlib.sha256(states.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()
    file = home / INDEX_FOLDER / INDEX_FILE
    try:
        index = _read(file, state, len(datasets))
    except (DatasetsRLError, OSError, ValueError):  # there is no such file, or something else in its place
        index = None
    if index is not None:
        without = np.flatnonzero(np.diff(index.starts) == 0).tolist()
        if all(datasets[number].problem for number in without):  # otherwise a dataset was repaired
            return index, ""
    index = make_index(datasets)
    try:
        with _WRITING:
            _write(file, state, index)
    except (DatasetsRLError, OSError) as error:
        return index, str(error).partition("\n")[0]
    return index, ""


def make_index(datasets: Sequence[KnownDataset]) -> Index:
    """Return the index of datasets, from their fingerprints."""
    words, owners = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
    hashes, windows = [np.empty(0, np.uint32)], [np.empty(0, _WINDOW)]
    starts = np.zeros(len(datasets) + 1, np.int64)
    for number, dataset in enumerate(datasets):
        first = starts[number]
        starts[number + 1] = first
        if dataset.problem:
            continue
        prints = dataset.fingerprints
        starts[number + 1] += len(prints)
        known = evidence(prints)
        for field, name in enumerate(prints.names):
            episodes = np.flatnonzero(known[:, field])
            words.append(prints.digests(name)[episodes])
            owners.append((first + episodes).astype(np.uint32))
        episodes, places = np.nonzero(prints.sketches["hash"])
        sketch = prints.sketches[episodes, places]
        hashes.append(sketch["hash"])
        found = np.empty(len(episodes), _WINDOW)
        found["episode"], found["step"] = first + episodes, sketch["step"]
        windows.append(found)
    all_words, all_hashes = np.concatenate(words), np.concatenate(hashes)
    del words, hashes
    by_word = np.argsort(all_words, kind="stable")
    all_words, all_owners = all_words[by_word], np.concatenate(owners)[by_word]
    by_hash = _order(all_hashes)
    return Index(starts, all_words, all_owners, all_hashes[by_hash], np.concatenate(windows)[by_hash])


def _order(hashes: NDArray[np.uint32]) -> NDArray[Any]:
    """Return the order of hashes. Numbers of 64 bits are sorted in a fifth of the time of `argsort`."""
    if len(hashes) > np.iinfo(np.uint32).max:
        return np.argsort(hashes, kind="stable")
    keys = hashes.astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    return keys.astype(np.uint32)


def _read(file: Path, state: bytes, datasets: int) -> Index | None:
    """Return the index in a file, or None if the file is of other datasets, or damaged.

    Raises:
        IntegrityError: If a link, a pipe or the like is in the place of the file.
        OSError: If there is no file.
        ValueError: If the file is too short.
    """
    disk.check_kind(file.parent, folder=True)
    disk.check_kind(file, folder=False)
    content = np.memmap(file, np.uint8, "r")
    header = np.frombuffer(content, _HEADER, 1)[0]
    counts = header["counts"].tolist()
    ends = np.cumsum([_HEADER.itemsize, *(dtype.itemsize * counts[which] for _, dtype, which in _ARRAYS)])
    if (header["kind"], header["state"], counts[0]) != (_KIND, state, datasets + 1) or ends[-1] != len(content):
        return None
    arrays = {
        name: np.frombuffer(content, dtype, counts[which], offset)
        for (name, dtype, which), offset in zip(_ARRAYS, ends.tolist(), strict=False)
    }
    rising = arrays["starts"][0] == 0 and (np.diff(arrays["starts"]) >= 0).all()
    return Index(**arrays) if rising else None


def _write(file: Path, state: bytes, index: Index) -> None:
    """Write an index into a file. The file of other datasets is replaced.

    Raises:
        DatasetsRLError: If the folder cannot be written, the disk is full, or a link is in the place of the folder.
    """
    disk.check_kind(file.parent, folder=True)
    disk.make_folder(file.parent)
    header = np.zeros(1, _HEADER)
    header["kind"], header["state"] = _KIND, state
    header["counts"] = [len(index.starts), len(index.words), len(index.hashes)]
    with disk.replaced_file(file) as stream:
        for array in (header, *(getattr(index, name) for name, *_ in _ARRAYS)):
            stream.write(np.ascontiguousarray(array).data.cast("B") if len(array) else b"")


def _occurrences(
    wanted: NDArray[np.generic], values: NDArray[np.generic], used: NDArray[np.bool_], most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of the wanted values occur, and the rows of the occurrences, [m] each."""
    starts, stops = np.searchsorted(values, wanted, "left"), np.searchsorted(values, wanted, "right")
    counts = np.where(used, stops - starts, 0).clip(min=0)
    if most is not None:
        rarest = np.argsort(counts, kind="stable")
        counts[rarest[np.cumsum(counts[rarest]) > most]] = 0
    positions = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions, np.repeat(starts, counts) + within
