"""`Layout`: which arrays of a file are which fields of a step, and how episodes end in the file. A layout is data.

A source declares the layout of its files, and a user spells the layout of own files in ``dataset.toml``. Flat rows are
arrays with a row for each step, or with another row for each episode, of all episodes of a file in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datasets_rl.sources.flat.names import EPISODE_NUMBERS, overlap, usual_keys
from datasets_rl.ted.keys import NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

if TYPE_CHECKING:
    from datasets_rl.format.images.base import Form

MARKED = ("starts", "ends", "last-rows", "lengths", "column", "steps")
"""Ways in which an array marks the episodes. For 6 rows in episodes of 2, 3 and 1:

starts     [0, 2, 5] or [1, 0, 1, 0, 0, 1]      first rows, or a flag in each first row
ends       [2, 5, 6]                            rows after the last rows
last-rows  [1, 4, 5] or [0, 1, 0, 0, 1, 1]      last rows, or a flag in each last row
lengths    [2, 3, 1]
column     [7, 7, 8, 8, 8, 9]                   number or name of the episode of each row
steps      [0, 1, 0, 1, 2, 0]                   number of each row in the episode
"""
ARRANGED = ("axis", "group", "suffix")
"""Ways in which the structure of a file separates the episodes, see `arranged.py`."""
WAYS = ("file", "flags", "seams", *MARKED, *ARRANGED)
"""Ways to mark the ends of episodes: a file for each episode, flags of steps, or states that do not continue."""
BUFFERS = ("rows", "filled", "ring")
"""Rows of a replay buffer that are steps: all rows, the rows before the size, or all rows from the next row on."""
ALIGNMENTS = ("same-row", "one-more", "action-before")
_STATES = (OBSERVATION[0], "info", "achieved_goal")


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a step, with the array that stores it."""

    key: Key
    array: str
    """Name of the array, with slashes if the array is in groups, or empty for a `constant`."""
    layout: str = ""
    """Conversion of the axes of images, ``HWC to CHW`` or ``CHW to HWC``, or empty for no conversion."""
    low: Any = None
    high: Any = None
    n: int | None = None
    """Number of categories, which are the integers from 0 to n - 1."""
    binary: bool = False
    """Whether every element is 0 or 1."""
    constant: float | None = None
    """Value of every step, instead of an array."""
    state: bool | None = None
    """Whether there is a value before and after every step, as of an observation, or None if the key decides."""
    form: Form = "raw"
    """Form in which images are stored. An array of encoded images keeps the form."""
    floats: str = ""
    """Dtype that floats are converted to. By default, floats keep the dtype."""
    optional: bool = False
    """Whether a file may lack the array, and then has no such field."""
    columns: tuple[str, ...] = ()
    """Columns of a table, which are the elements of the array, in order."""

    @property
    def is_state(self) -> bool:
        """Whether there is a value before and after every step."""
        return self.key[0] in _STATES if self.state is None else self.state


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays of a file are which fields, and how the file marks the ends of episodes."""

    fields: tuple[Field, ...] = ()
    """The fields of a step. The field ``next.observation`` has the states after the steps, and is not stored itself."""
    inferred: bool = False
    """Whether other arrays with usual names are fields, too."""
    alignment: str = ""
    """An item of `ALIGNMENTS`, by default inferred from the numbers of rows."""
    buffer: str = ""
    """An item of `BUFFERS`, by default inferred from the size and the next row that the file states."""
    by: str = ""
    """An item of `WAYS`, by default inferred from the arrays of the file."""
    marks: str = ""
    """Name of the array that marks the episodes, if `by` needs one. For an axis, name of the array of the lengths or of the
    mask of steps, if there is padding. For groups, pattern of the names, such as ``data/demo_*``."""
    starts: str = ""
    """Name of an array of the first rows of episodes, which end episodes beside the flags. A file may lack the array."""
    seams: bool = False
    """Whether an episode ends where the state after a step is not the state of the next row. By default, such a row
    is an error."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a CSV file without a header."""
    table: str = ""
    """Name of a second Parquet file with a row per episode. The columns are arrays named ``episodes/<column>``."""
    final: str = ""
    """Names of the arrays of the states after the last step of each episode, with {} for the name of the state."""
    final_known: str = ""
    """Name of the array of whether these states are known. By default, all are known."""
    unit: str = "file"
    """What the arrays are in, for messages: a file, or a group of a file."""
    missing_reward: float | None = None
    """Reward of every step of a file without rewards, or None if rewards are required."""
    vectors: bool = False
    """Whether an array of a number for each row is a field of the shape [1]. By default, the reward is, and
    an observation or action of floats."""

    def fields_of(self, arrays: Iterable[str]) -> tuple[Field, ...]:
        """Return the fields of a file with these arrays: the stated fields, and the fields inferred from usual names."""
        arrays = [*arrays]
        fields = tuple(field for field in self.fields if not field.optional or field.array in arrays)
        if not self.inferred:
            return fields
        described = {field.key for field in fields}
        taken = {field.array for field in fields} | {self.marks}
        inferred = [
            Field(key, array)
            for array, key in usual_keys(arrays).items()
            if array not in taken and not any(overlap(key, other) for other in described)
        ]
        if self.missing_reward is not None and not any(field.key == NEXT_REWARD for field in (*fields, *inferred)):
            inferred.append(Field(NEXT_REWARD, "", constant=self.missing_reward))
        return (*fields, *inferred)

    def end_marks(self, arrays: Iterable[str], fields: Sequence[Field]) -> tuple[str, str]:
        """Return the way in which a file marks the ends of episodes, an item of `WAYS`, and the marking array."""
        if self.by:
            return self.by, self.marks
        marks = next((name for name in arrays if name.lower() in EPISODE_NUMBERS), "")
        if marks:
            return "column", marks
        flags = {NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE}
        return ("flags", "") if flags & {field.key for field in fields} else ("file", "")
