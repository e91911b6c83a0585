"""Episodes that are stored twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.format.split_mix import GOLDEN, mix_bits
from datasets_rl.ted.keys import Key

_FEWEST = 5
_FEWEST_OF_INTEGERS = 50


class DuplicateEpisodes(Check):
    name = "duplicate_episodes"
    rule = (
        f"Two episodes of at least {_FEWEST} steps, or {_FEWEST_OF_INTEGERS} steps if all numbers are integers, have the same states and actions in "
        "every step, and the actions change."
    )
    why = "A copy counts twice in training. A copy in the validation part makes the validation loss too small."
    limits = (
        "Copies with another cast, codec, scale or length are near copies. Deterministic seeds make equal episodes."
    )
    merges = {"hash": "sum", "change": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 2:
            return "the dataset has a single episode"
        return [()] if self._keys(data) else "the dataset has no narrow states and actions"

    def measure(self, block: Block, key: Key) -> Measures:
        return block.once("hashes", key, lambda: self._hashes(block))

    def _hashes(self, block: Block) -> Measures:
        total = np.zeros(len(block), np.uint64)
        changes = np.zeros(len(block), np.bool_)
        for number, field in enumerate(self._keys(block.data)):
            values = block.now(field)
            total += _row_hashes(values, number)
            changes |= (block.after(field) != values).any(axis=1) & block.has_after
        # The sum over the rows does not depend on how blocks divide an episode. The step number makes the order count.
        mixed = mix_bits((total + block.time.astype(np.uint64) * GOLDEN) * GOLDEN)
        return {"hash": np.add.reduceat(mixed, block.starts), "change": block.sums(changes)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        lengths = data.episodes.lengths
        fit = long_enough(data, measures)
        pairs = np.stack([measures["hash"][fit], lengths[fit].astype(np.uint64)])
        _, groups, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        groups = groups.reshape(-1)
        for group in np.flatnonzero(counts > 1).tolist():
            first, *others = fit[groups == group].tolist()
            copies = [other for other in others if self.are_equal(data, first, data, other)]
            if copies:
                yield Finding(
                    self.name,
                    "proof",
                    f"episode {first:,} is stored {len(copies) + 1} times: also as {', '.join(map(str, copies[:5]))}"
                    f"{' and others' if len(copies) > 5 else ''}",
                    episodes=(first, *copies),
                    evidence={"copies": len(copies), "steps": int(lengths[first])},
                    remedy=drop(copies),
                )

    def are_equal(self, data: Data, first: int, others: Data, second: int) -> bool:
        """Return whether an episode has the same states and actions as an episode of the same, or of another dataset."""
        one, two = data.episodes.rows(first), others.episodes.rows(second)
        for key in self._keys(data):
            values, copied = data.steps.read(key, one.start, one.stop), others.steps.read(key, two.start, two.stop)
            if not np.array_equal(values.view(np.uint8), copied.view(np.uint8)):
                return False
        return True

    def fields(self, data: Data) -> tuple[str, ...]:
        """Return the names, types and shapes of the states and actions. Episodes of datasets with the same ones can be equal."""
        fields = [data.field(key) for key in self._keys(data)]
        return tuple(f"{field.name} {field.dtype.str} {list(field.shape)}" for field in fields)

    def _keys(self, data: Data) -> list[Key]:
        return sorted([*data.states, *data.actions])


def long_enough(data: Data, measures: Measures) -> NDArray[np.int64]:
    """Return the episodes that hardly are equal by chance, ascending."""
    # A walk over few places, with few actions, repeats by itself.
    measured = any(key in data.floats for key in [*data.states, *data.actions])
    fewest = _FEWEST if measured else _FEWEST_OF_INTEGERS
    return np.flatnonzero((data.episodes.lengths >= fewest) & (measures["change"] >= _FEWEST - 1))


def _row_hashes(values: NDArray[np.generic], seed: int) -> NDArray[np.uint64]:
    """Return a hash of each row, uint64 [N], of values [N, D]."""
    width = values.shape[1]
    words = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    padded = np.zeros((len(values), -(-words.shape[1] // 8) * 8), np.uint8)
    padded[:, : words.shape[1]] = words
    numbers = padded.view(np.uint64)
    salts = mix_bits((np.arange(numbers.shape[1], dtype=np.uint64) + np.uint64(1 + seed * 4096 + width)) * GOLDEN)
    hashes: NDArray[np.uint64] = mix_bits((numbers ^ salts) * GOLDEN).sum(axis=1, dtype=np.uint64)
    return hashes
