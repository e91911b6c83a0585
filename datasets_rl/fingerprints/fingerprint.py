"""The fingerprints of a version's episodes: what they are, and how they are computed from rows in order.

fingerprints.npy    structured [E]: for each stored field, by dotted key, a record of `FIELD`
sketches.npy        structured [E, K]: hashes of windows, which survive changes of the values, see `sketch`

Two episodes hold the same values in a field if they have the same `digest` there. The digest depends on the values alone: on no
key, dtype, shape of a step, form of images without loss, or place in a dataset, see `canonical`. An episode whose values are constant or
follow a script is equal to others that were not copied, so `bits` says how much a field tells: the field is evidence from
`EVIDENCE_BITS` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests
from datasets_rl.fingerprints.hashing import GOLDEN, Words, mixed
from datasets_rl.fingerprints.information import EVIDENCE_BITS, Information
from datasets_rl.fingerprints.runs import Runs
from datasets_rl.fingerprints.sketch import SKETCH, SKETCH_SIZE, Sketcher

FINGERPRINTS_FILE = "fingerprints.npy"
SKETCHES_FILE = "sketches.npy"
FIELD = np.dtype([("digest", "<u8"), ("final", "<u8"), ("bits", "<u4")])
"""The record of a field of an episode: the digest of the values in all steps, the digest of the value after the last action (zero for
a field that is not shared), and the bits of information."""


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
        """Return the digest of a field's values in each episode, [E]."""
        return np.asarray(self.records[name]["digest"])

    def finals(self, name: str) -> NDArray[np.uint64]:
        """Return the digest of a field's value after the last action of each episode, [E].

        The values are zeros where `final_known` is False, and the digests are zero for a field that is not shared.
        """
        return np.asarray(self.records[name]["final"])

    def bits(self, name: str) -> NDArray[np.uint32]:
        """Return how many bits of information a field has in each episode, [E], up to `EVIDENCE_BITS`, roughly and rather too few."""
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
    """Digest of each row, [n]."""
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
        self._steps = 0
        self._sums = np.zeros(len(sizes), np.uint64)
        self._tail = np.empty((len(sizes), 0), np.uint64)
        self._information = Information(len(sizes))
        self._sketcher = Sketcher(sizes, windows)

    def add(
        self,
        rows: Mapping[str, FieldRows],
        finals: Mapping[str, RowDigests],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Add at most 65,536 rows, and return the records and the sketches of the m episodes that end, [m] and [m, K].

        Args:
            rows: The rows of every field, [n, ...].
            finals: Digest of the values after the last action of the episodes that end, [m], for the fields that have such values.
            starts: The first row of each run of rows of an episode. The first run continues the episode that is open, if any.
            stops: The row after the last row of each run.
            ended: Which runs end their episode.
        """
        names = self.dtype.names or ()
        runs = Runs.after(self._steps, starts, stops, ended)
        digests = np.empty((len(names), int(runs.stops[-1])), np.uint64)
        digests[:, : runs.context] = self._tail
        for number, name in enumerate(names):
            digests[number, runs.context :] = rows[name].digests
        folded = self._fold(digests, runs)
        bits = self._information.add(digests, [rows[name].numbers for name in names], runs)
        numbers = {name: field.numbers for name, field in rows.items() if field.numbers is not None}
        sketches = self._sketcher.add(digests, numbers, runs)
        self._steps, self._tail = runs.open, runs.tail(digests)
        records = np.zeros(np.count_nonzero(ended), self.dtype)
        for number, name in enumerate(names):
            record = records[name]
            record["digest"], record["bits"] = folded[number, : len(record)], bits[number, : len(record)]
            if name in finals:
                record["final"] = finals[name]
        return records, sketches

    def _fold(self, digests: Words, runs: Runs) -> Words:
        """Return the digest of each field in each run, [F, m]: the sum of the products of the rows' digests with keys of their steps."""
        zeros = runs.starts.copy()  # the row of step 0
        zeros[0] -= runs.before
        steps = np.arange(1, digests.shape[1] + 1) - zeros[runs.numbers]
        factors = mixed(steps.astype(np.uint64) * GOLDEN) | np.uint64(1)
        factors[: runs.context] = 0
        sums: Words = np.add.reduceat(digests * factors, runs.begins, axis=1)
        sums[:, 0] += self._sums
        self._sums = sums[:, -1] * np.uint64(runs.open > 0)
        return mixed(sums + runs.lengths.astype(np.uint64))

    def forget(self) -> None:
        """Forget the open episode: the next row begins an episode, or rows of which the fingerprint is computed later."""
        self._steps = 0
        self._sums[:], self._tail = 0, self._tail[:, :0]
        self._information.forget()
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
