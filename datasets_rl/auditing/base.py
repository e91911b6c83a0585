"""The contract of a check of an audit.

A check looks at a field, its target, in blocks of rows. From each block the check keeps a few numbers for each episode, its
measures, and forgets the values. When all blocks are measured, the check judges the measures of all episodes:

    blocks of rows  --measure-->  numbers for each episode  --judge-->  findings

Blocks are measured in any order, on several threads, and an interrupted audit keeps what is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key

Measures: TypeAlias = "dict[str, NDArray[Any]]"
"""Numbers for each episode, [E, ...], by name."""


class Check(ABC):
    """A check: which faults it finds, how, and what it cannot find.

    Attributes:
        name: Name of the check, which is also the name of its module.
        rule: What is measured, and the threshold, in a sentence.
        why: Why the fault harms training, in a sentence.
        limits: What the check cannot find, or takes for a fault, in a sentence.
        merges: How the measures of two parts of a long episode are joined, by the name of the measure: "sum", "max", "min",
            "with NAME" for the number that belongs to the measure NAME, such as the row of a maximum, or "count of NAME" for
            how often the extreme NAME occurs.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    why: ClassVar[str]
    limits: ClassVar[str]
    merges: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def targets(self, data: Data) -> Sequence[Key] | str:
        """Return the fields to look at, or the reason why the check does not apply to the dataset.

        A check of the episode table alone, without a field, returns the key ``()``.
        """

    def measure(self, block: Block, key: Key) -> Measures:
        """Return the measures of the episodes of a block, [E, ...] each, for the names in `merges`."""
        raise NotImplementedError(f"{self.name} has no measures")

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        """Yield the findings, from the measures of all targets. Checks that compare targets override this method."""
        for key, measures in measured.items():
            yield from self.judge(data, key, measures)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        """Yield the findings of a target, from the measures of all episodes. A suspected place may be read again."""
        raise NotImplementedError(f"{self.name} judges all targets together")

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64] | None:
        """Return what the rule compares with its threshold, for each episode, [E]: the more, the more likely a fault.

        Checks that compare episodes with each other, or find a fault or not, return None.
        """
        del data, key, measures
        return None
