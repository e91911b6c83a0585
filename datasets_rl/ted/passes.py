"""What a batch has in addition to the fields of its steps, as data: windows, their masks, and n-step targets.

A transform states these entries, and a storage reads them together with the steps, in one pass over its records:

    row i            r_0  r_1  [r_2  r_3  r_4]  r_5 | ...
    Values(-1, 0)         x     x
    Values(0, 1, 2)             x    x    x
    n_steps 2                   x    x                 "next" of r_3, and the sum of the rewards of r_2 and r_3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from datasets_rl.ted.keys import Key


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a field at some steps around each step, [W, ...]. A window stays within its episode."""

    field: Key
    """Key of the field. Under "next", a field that is also at the root has its value after the step."""
    offsets: Sequence[int]
    """The steps, relative to the step of the batch, [W]: a range or a tuple."""
    zeros: bool = False
    """Whether steps outside of the episode are zeros, and not its first or last step."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Which steps of a window are outside of the episode, bool [W]."""

    offsets: Sequence[int]
    inverted: bool = False
    """Whether True stands for steps of the episode instead."""


@dataclass(frozen=True, slots=True)
class TimeSteps:
    """The numbers of the steps of a window, counted from the first step of the episode, int64 [W]. They go on after it."""

    offsets: range


@dataclass(frozen=True, slots=True)
class RewardSum:
    """The discounted sum of the rewards up to the end of the n steps."""

    field: Key
    rounded: bool = False
    """Whether the powers of the discount factor are computed in the dtype of the rewards, float32, and not rounded to it."""


@dataclass(frozen=True, slots=True)
class RewardSums:
    """The discounted sums of the rewards up to each of n steps, [n], with powers in the dtype of the rewards, float32."""

    field: Key


@dataclass(frozen=True, slots=True)
class Alive:
    """Whether the episode has not terminated up to each of n steps, 0 or 1, float32 [n]."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Whether the episode has ended at or before each of n steps, bool [n]."""


@dataclass(frozen=True, slots=True)
class StepCount:
    """The number of steps up to the end of the n steps, int64."""


@dataclass(frozen=True, slots=True)
class Discount:
    """The power of the discount factor that applies to the state after these steps."""


@dataclass(frozen=True, slots=True)
class Bootstraps:
    """Whether the value of the state after these steps counts, bool: the episode is not terminated, the state known."""


Part: TypeAlias = (
    Values | Outside | TimeSteps | RewardSum | RewardSums | Alive | Ended | StepCount | Discount | Bootstraps
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a batch."""

    key: Key
    parts: tuple[Part, ...]
    """What the entry consists of, one after another in memory."""
    shape: tuple[int, ...] | None = None
    """The shape of a step. By default, W and the shape of the field of `Values`, and no axis without such a field."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The entries of a batch that are read with the fields of its steps, and replace fields of the same keys."""

    entries: tuple[Entry, ...]
    n_steps: int = 0
    """Maximum number of steps, n, after which entries under "next" are read. 0 reads the entries of each step itself."""
    discount: float = 1.0
    shortens: bool = True
    """Whether the n steps end before an unknown state, where this leaves a step, unless the episode is terminated."""


class Field(Protocol):
    """Properties of a field that are known before the field is read."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a step."""


class ReadsInPass(Protocol):
    """A transform with results that a storage may read in one pass with the steps, in place of the transform."""

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, beside the fields: values that can be hashed."""

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the results as entries of a pass, or None if the pass has no such entries.

        Args:
            fields: The fields of a batch that a pass can read, by key.
        """
