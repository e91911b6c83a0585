"""What a writer knows about the written episodes: lengths, returns, metadata, and the vocabularies of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EPISODE_DTYPE

EPISODES_FILE = "episodes.npy"


class EpisodeLog:
    """Complete episodes, in order, as they become the episode table. Parts of the log are committed as JSON."""

    def __init__(self, text_keys: Iterable[Key]) -> None:
        self._lengths: list[int] = []
        self._final_known: list[bool] = []
        self._returns: list[NDArray[np.float64]] = []
        # Metadata in runs of episodes that were added in the same way, and of the last episodes, which were added singly.
        self._runs: list[tuple[int, Mapping[str, Any]]] = []
        self._single: list[Mapping[str, Any]] = []
        # Code 0 is the empty text, so the zeros of an unknown final state read as an empty text.
        self.vocabulary: dict[Key, dict[str, int]] = {key: {"": 0} for key in text_keys}
        """Code of each text, by text field."""
        self._mark_committed()

    def __len__(self) -> int:
        """Return the number of complete episodes, E."""
        return len(self._lengths)

    def append(self, length: int, metadata: Mapping[str, Any], *, final_known: bool) -> None:
        """Add an episode."""
        self._lengths.append(length)
        self._final_known.append(final_known)
        self._single.append(metadata)

    def extend(self, lengths: Sequence[int], final_known: Sequence[bool], metadata: Mapping[str, NDArray[Any]]) -> None:
        """Add episodes, given their values by name, [n] each."""
        self._lengths += lengths
        self._final_known += final_known
        self._close_run()
        if lengths:
            self._runs.append((len(lengths), metadata))

    def add_returns(self, returns: Iterable[NDArray[np.float64]]) -> None:
        """Add the returns of the episodes with summed rewards, [n] each."""
        self._returns += returns

    def codes(self, key: Key, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return the code of each text in the vocabulary of a field, which grows by the new texts, [V]."""
        vocabulary = self.vocabulary[key]
        return np.array([vocabulary.setdefault(text, len(vocabulary)) for text in texts], np.int32)

    def commit(self) -> dict[str, Any]:
        """Return what was added since the previous commit, as JSON values with NaN and infinity."""
        self._close_run()
        episodes, returns, runs, vocabulary_sizes = self._committed
        metadata = _joined_columns(self._runs[runs:])
        words = {dotted_name(key): [*texts][vocabulary_sizes[key] :] for key, texts in self.vocabulary.items()}
        changes = {
            "lengths": self._lengths[episodes:],
            "known": self._final_known[episodes:],
            "returns": [value for array in self._returns[returns:] for value in array.tolist()],
            "facts": {name: (column.dtype.str, column.tolist()) for name, column in metadata.items()},
            "words": words,
        }
        self._mark_committed()
        return changes

    def restore(self, commit: Mapping[str, Any]) -> None:
        """Add what an earlier process committed."""
        self.add_commit(commit)
        for key, vocabulary in self.vocabulary.items():
            new_words = commit["words"][dotted_name(key)]
            vocabulary.update({word: len(vocabulary) + index for index, word in enumerate(new_words)})
        self._mark_committed()

    def add_commit(self, commit: Mapping[str, Any]) -> None:
        """Add the episodes of a commit, but not the texts."""
        columns = {name: np.array(values, dtype) for name, (dtype, values) in commit["facts"].items()}
        self.extend(commit["lengths"], [bool(known) for known in commit["known"]], columns)
        self._returns.append(np.array(commit["returns"], np.float64))

    def _mark_committed(self) -> None:
        self._close_run()
        sizes = {key: len(texts) for key, texts in self.vocabulary.items()}
        self._committed = (len(self), len(self._returns), len(self._runs), sizes)

    def _close_run(self) -> None:
        if self._single:
            self._runs.append((len(self._single), _columns_of(self._single)))
            self._single = []

    def records(self) -> NDArray[np.void]:
        """Return the records of episodes.npy, [E]. Missing metadata is 0."""
        self._close_run()
        metadata = _joined_columns(self._runs)
        extra = [(name, values.dtype) for name, values in metadata.items() if name != "source"]
        table = np.zeros(len(self), np.dtype([*EPISODE_DTYPE.descr, *extra]))
        table["length"] = self._lengths
        table["start"] = np.cumsum(table["length"]) - table["length"]
        table["return"] = np.concatenate(self._returns)
        table["final_known"] = self._final_known
        table["source"] = np.arange(len(table))
        for name, values in metadata.items():
            table[name] = values
        return table


def _columns_of(episodes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for metadata in episodes for name in metadata)
    return {name: [metadata.get(name, 0) for metadata in episodes] for name in names}


def _joined_columns(runs: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, NDArray[Any]]:
    names = dict.fromkeys(name for _, columns in runs for name in columns)
    return {name: _joined_values([columns.get(name, [0] * count) for count, columns in runs]) for name in names}


def _joined_values(runs: Sequence[Any]) -> NDArray[Any]:
    arrays = [np.asarray(values) for values in runs]
    if len({array.dtype for array in arrays}) == 1 and arrays[0].dtype.kind in "biuf":
        return np.concatenate(arrays)
    # The common dtype depends on all values: an integer beyond 63 bits makes all others unsigned, and no floats.
    return np.array([value for values in runs for value in values])
