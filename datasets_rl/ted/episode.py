"""Episode as a source returns it, and the columns that it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import OBSERVATION, Key
from datasets_rl.ted.rewards import with_float_rewards

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "DeferredStates",
    "EncodedImages",
    "Episode",
    "TextStates",
    "Values",
    "concatenate_columns",
    "zero_unknown_states",
]


@dataclass(frozen=True, slots=True)
class TextStates:
    """Column of texts with a vocabulary: one code per row. The writer replaces the codes by those of the dataset."""

    codes: NDArray[np.generic]
    """Index into `vocabulary` of each row, an integer array [T]."""
    vocabulary: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows, T."""
        return len(self.codes)

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> TextStates:
        """Return a column of these texts, [T]."""
        vocabulary = {word: number for number, word in enumerate(dict.fromkeys(texts))}
        return cls(np.fromiter((vocabulary[text] for text in texts), np.int32, len(texts)), tuple(vocabulary))


@dataclass(frozen=True)
class EncodedImages:
    """Column of images that stay PNG or JPEG, [T] or [T + 1], and are decoded on reading."""

    images: Sequence[bytes | bytearray | memoryview]
    """Bytes of each image; an image without bytes is unknown."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        """Return the images of a slice, a mask or row numbers."""
        return replace(self, images=[self.images[row] for row in np.arange(len(self))[rows].tolist()])


Values: TypeAlias = "NDArray[np.generic] | TextStates | EncodedImages"


@dataclass(frozen=True, slots=True)
class Episode:
    """Episode, or a piece of one: T actions and the T + 1 states around them.

        time     0     1     2           T
        states   s_0   s_1   s_2   ...   s_T     [T + 1, ...], or [T, ...] if s_T is unknown
        steps    a_0   a_1   ...   a_T-1         [T, ...]; the reward and the flags of a_t are at t

    An episode that is too long for memory is split into pieces. All pieces except the last have `continues` set and T
    states, because the state after their last action is the first state of the next piece.
    """

    steps: Mapping[Key, Values]
    """Fields with one value per step, [T, ...]: ``("action",)``, ``("next", "reward")``, ``("next", "terminated")``,
    ``("next", "truncated")``, and other fields of the source. Rewards become floating point, see
    `datasets_rl.ted.rewards`."""
    states: Mapping[Key, Values]
    """Fields with a value before and after every step, [T + 1, ...] or [T, ...]: ``("observation",)``,
    ``("info", "qpos")``."""
    continues: bool = False
    """Whether the next piece continues this episode."""
    metadata: Mapping[str, int | float | bool] = field(default_factory=dict)
    """Metadata of the whole episode, such as the seed or the number upstream, ``"source"``. All episodes have the same
    names. Of several pieces, the metadata of the last one is stored. NumPy scalars keep their dtype."""
    deferred: bool = False
    """Whether `DeferredStates` will replace the wide states of the only row of this piece, which are zeros."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", with_float_rewards(self.steps))

    def __len__(self) -> int:
        """Return the number of actions, T."""
        return len(next(iter(self.steps.values())))

    @property
    def final_known(self) -> bool:
        """Whether the observation after the last action is known."""
        steps = len(self)
        return all(len(array) == steps + 1 for key, array in self.states.items() if key[0] == OBSERVATION[0])


@dataclass(frozen=True, slots=True)
class DeferredStates:
    """States of an earlier row that the source read later, because they are at the end of their file.

    rows    x x 0 x x x      the row was appended with zeros in their place, in the same shard
                |--4-->|
    """

    states: Mapping[Key, NDArray[np.generic]]
    """Values by field, [1, ...] each; only for wide fields, which have separate files."""
    rows_ago: int
    """Number of rows from the row to the end of the appended rows, itself included: 1 is the last row."""


def concatenate_columns(parts: Sequence[Any]) -> Any:
    """Return the concatenation of columns of one field; if all are encoded images, the result is encoded too."""
    if all(isinstance(column, EncodedImages) for column in parts):
        return replace(parts[0], images=[image for column in parts for image in column.images])
    return np.concatenate(parts)


def zero_unknown_states(final_states: Any, known: NDArray[np.bool_]) -> Any:
    """Return final states, [E, ...], with zeros where `known` is False; encoded images have no bytes there."""
    if known.all():
        return final_states
    if isinstance(final_states, EncodedImages):
        pairs = zip(final_states.images, known.tolist(), strict=True)
        return replace(final_states, images=[image if is_known else b"" for image, is_known in pairs])
    return np.where(
        known.reshape(-1, *(1 for _ in final_states.shape[1:])), final_states, np.zeros((), final_states.dtype)
    )
