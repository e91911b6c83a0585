"""Steps that keep some of the episodes, as they are."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import BadArgument
from datasets_rl.preprocess._base import Step
from datasets_rl.preprocess.steps._fields import need
from datasets_rl.ted.episodes import Episodes
from datasets_rl.ted.keys import NEXT_REWARD, Key, dotted

__all__ = [
    "KeepEpisodes",
    "KeepLengths",
    "KeepReturns",
    "KeepSuccess",
    "KeepTopReturns",
    "KeepWhere",
    "Split",
    "read_span",
    "returns",
    "success_key",
]

_SPAN = re.compile(r"(\d*)(?::(\d*)(?::([1-9]\d*))?)?")
_TEST = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")
_TESTS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def returns(block: Episodes) -> NDArray[np.float64]:
    """Return the sum of the rewards of each episode, [E]."""
    rewards = block.steps[NEXT_REWARD][:, 0].astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduceat(rewards, block.table.starts)
    return sums


def success_key(block: Episodes, name: str) -> Key:
    """Return the field that says where an episode succeeds: the one named, or the only one called "success".

    Raises:
        BadArgument: If there is none, or several.
    """
    if name:
        return need(block, [name])[0]
    found = [key for key in (*block.steps, *block.states) if key[-1] == "success"]
    if len(found) != 1:
        which = ", ".join(map(dotted, found)) or "none"
        raise BadArgument(f"fields called success: {which}; expected one", hint="name it with key=")
    return found[0]


def read_span(text: str) -> tuple[int, int | None, int]:
    """Read a range of numbers from 0 as users write it, ``0:100``, ``0:100:2`` or ``7``: start, stop, step.

    Raises:
        BadArgument: If it is none, or it is empty.
    """
    match = _SPAN.fullmatch(text)
    if match is None or not text:
        raise BadArgument(f"{text!r} is no range; expected START:STOP or START:STOP:STEP from 0, as in 0:100:2")
    start = int(match[1] or 0)
    stop = start + 1 if ":" not in text else int(match[2]) if match[2] else None
    if stop is not None and stop <= start:
        raise BadArgument(f"{text!r} is empty; expected a range with something in it")
    return start, stop, int(match[3] or 1)


def _kept(block: Episodes, mask: NDArray[np.bool_]) -> Episodes | None:
    return block.pick(mask) if mask.any() else None


def _any_step(block: Episodes, key: Key, hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say of each episode, [E], whether something holds in any step, [N]; of a state after the last one too."""
    del key
    found: NDArray[np.bool_] = np.logical_or.reduceat(hits, block.table.starts)
    return found


@dataclass
class KeepReturns(Step):
    """Keep the episodes whose return lies between two numbers, both included."""

    least: float = -np.inf
    most: float = np.inf

    purpose = "episodes by their return"

    def __call__(self, block: Episodes) -> Episodes | None:
        """Return those that are kept."""
        found = returns(block)
        return _kept(block, (found >= self.least) & (found <= self.most))


@dataclass
class KeepLengths(Step):
    """Keep the episodes of a number of steps between two, both included."""

    least: int = 1
    most: int | None = None

    purpose = "episodes by their length"

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise BadArgument(f"least is {self.least} and most is {self.most}; expected most to be the greater one")

    def __call__(self, block: Episodes) -> Episodes | None:
        """Return those that are kept."""
        most = np.inf if self.most is None else self.most
        return _kept(block, (block.lengths >= self.least) & (block.lengths <= most))
