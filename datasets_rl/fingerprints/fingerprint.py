"""The fingerprints of a version's episodes: what they are, and how they are computed from rows in order.

fingerprints.npy    structured [E]: for each stored field, by dotted key, a record of `FIELD`
sketches.npy        structured [E, K]: hashes of windows, which survive changes of the values, see `sketch`

Two episodes hold the same values in a field if they have the same `digest` there. The digest depends on the values alone: on no
key, dtype, shape of a step, form of images without loss, or place in a dataset, see `canonical`. An episode whose values are constant or
follow a script is equal to others that were not copied, so `bits` says how much a field tells: the field is evidence from
`EVIDENCE_BITS` on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests
from datasets_rl.fingerprints.choice import row_loops
from datasets_rl.fingerprints.constants import STATE
from datasets_rl.fingerprints.sketch import SKETCH, SKETCH_SIZE, Sketcher

_RUN, _ROW = 100_000, 250
"""Nanoseconds in numpy of a run of rows, and of a row."""
FINGERPRINTS_FILE = "fingerprints.npy"
SKETCHES_FILE = "sketches.npy"
FIELD = np.dtype([("digest", "<u8", (2,)), ("final", "<u8", (2,)), ("bits", "<u4"), ("rows", "<u4")])
"""The record of a field of an episode: the digest of the values in all steps, the digest of the value after the last action (zeros for
a field that is not shared), the bits of information, and about how many steps have different values, up to some thousands."""
EVIDENCE_BITS = 96
"""From how many bits on equal values are evidence of a copy: six different values that are not round, or more round ones."""


def fingerprint_dtype(names: Sequence[str]) -> np.dtype[np.void]:
    """Return the dtype of a record of `FINGERPRINTS_FILE`, given the dotted keys of the fields."""
    record: np.dtype[np.void] = np.dtype([(name, FIELD) for name in names])
    return record


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Fingerprints of E episodes, in order.

    Raises:
        KeyError: From a method, if there is no field of this name.
    """

    records: NDArray[np.void]
    """As in `FINGERPRINTS_FILE`, [E]."""
    sketches: NDArray[np.void]
    """As in `SKETCHES_FILE`, [E, K]."""
    lengths: NDArray[np.int64]
    """Number of steps of each episode, [E]."""
    final_known: NDArray[np.bool_]
    """Whether the observation after the last action is known, [E]."""

    def __len__(self) -> int:
        """Return the number of episodes, E."""
        return len(self.records)

    @property
    def names(self) -> tuple[str, ...]:
        """Dotted keys of the fields."""
        return self.records.dtype.names or ()

    def digests(self, name: str) -> NDArray[np.uint64]:
        """Return the digest of a field's values in each episode, [E, 2]."""
        return np.asarray(self.records[name]["digest"])

    def finals(self, name: str) -> NDArray[np.uint64]:
        """Return the digest of a field's value after the last action of each episode, [E, 2].

        The values are zeros where `final_known` is False, and the digests are zeros for a field that is not shared.
        """
        return np.asarray(self.records[name]["final"])

    def bits(self, name: str) -> NDArray[np.uint32]:
        """Return how many bits of information a field has in each episode, [E], roughly and rather too few."""
        return np.asarray(self.records[name]["bits"])

    def evidence(self, name: str) -> NDArray[np.bool_]:
        """Return in which episodes a field has enough information that equal values are evidence of a copy, [E]."""
        return np.asarray(self.bits(name) >= EVIDENCE_BITS)

    def informative(self) -> NDArray[np.bool_]:
        """Return which episodes have a field that is evidence, [E]. Equal episodes without one are not copies of each other."""
        result = np.zeros(len(self), np.bool_)
        for name in self.names:
            result |= self.evidence(name)
        return result

    def take(self, episodes: NDArray[Any] | slice) -> Fingerprints:
        """Return the fingerprints of some episodes, given their numbers, a mask or a slice."""
        return Fingerprints(
            self.records[episodes], self.sketches[episodes], self.lengths[episodes], self.final_known[episodes]
        )


@dataclass(frozen=True, slots=True)
class FieldRows:
    """Consecutive rows of a field."""

    digests: RowDigests
    """Digest of each row, [n, 2]."""
    fine: NDArray[np.bool_]
    """Rows that hardly equal others by chance, [n]."""
    numbers: NDArray[Any] | None = None
    """The values, [n, ...], of a field of numbers in rows.npy, otherwise None."""


class Fingerprinter:
    """Computes the fingerprints of episodes from their rows, in order. An episode may come in several calls.

    Args:
        sizes: Number of elements of a step of each field of floats, by dotted key, 0 for a field of other values, and -1 for images.
        windows: The greatest number of windows of a sketch.
    """

    def __init__(self, sizes: Mapping[str, int], windows: int = SKETCH_SIZE) -> None:
        self.dtype = fingerprint_dtype([*sizes])
        self._sizes = sizes
        self._states = {name: np.zeros(STATE, np.uint64) for name in sizes}
        self._last = {name: np.zeros(2) for name in sizes}
        self._sketcher = Sketcher(sizes, windows)

    def add(
        self,
        rows: Mapping[str, FieldRows],
        finals: Mapping[str, RowDigests],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Add rows, and return the records and the sketches of the m episodes that end, [m] and [m, K].

        Args:
            rows: The rows of every field, [n, ...].
            finals: Digest of the values after the last action of the episodes that end, [m, 2], for the fields that have such values.
            starts: The first row of each run of rows of an episode. The first run continues the episode that is open, if any.
            stops: The row after the last row of each run.
            ended: Which runs end their episode.
        """
        records = np.zeros(int(ended.sum()), self.dtype)
        digests, counts = np.zeros((len(starts), 2), np.uint64), np.zeros((len(starts), 2), np.uint32)
        for name, field in rows.items():
            scalars = np.empty(0)
            if field.numbers is not None and math.prod(field.numbers.shape[1:]) == 1:
                scalars = field.numbers.reshape(-1).astype(np.float64)
            state, last = self._states[name], self._last[name]
            loops = row_loops(_RUN * len(starts) + _ROW * len(field.digests))
            loops.fold_rows(field.digests, field.fine, scalars, starts, stops, ended, state, last, digests, counts)
            record = records[name]
            record["digest"], record["bits"], record["rows"] = digests[ended], *counts[ended].T
            if name in finals:
                record["final"] = finals[name]
        numbers = {name: field.numbers for name, field in rows.items() if field.numbers is not None}
        digests_of = {name: field.digests for name, field in rows.items()}
        return records, self._sketcher.add(digests_of, numbers, starts, stops, ended)

    def forget(self) -> None:
        """Forget the open episode: the next row begins an episode, or rows of which the fingerprint is computed later."""
        for state in self._states.values():
            state[:] = 0
        self._sketcher.forget()


__all__ = [
    "EVIDENCE_BITS",
    "FIELD",
    "FINGERPRINTS_FILE",
    "SKETCH",
    "SKETCHES_FILE",
    "SKETCH_SIZE",
    "FieldRows",
    "Fingerprinter",
    "Fingerprints",
]
