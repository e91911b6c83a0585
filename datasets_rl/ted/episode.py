"""Episode as a source returns it, and the columns of an episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, override

from datasets_rl.ted.keys import Key, is_observation
from datasets_rl.ted.rewards import with_float_rewards


@dataclass(frozen=True, slots=True)
class TextStates:
    """Column of texts with a vocabulary: a code per row. The writer replaces the codes by the codes of the dataset."""

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


class StoredImages(ABC):
    """Column of images in another form than pixels, [T] or [T + 1], that are decoded on reading."""

    form: ClassVar[Literal["encoded", "compressed", "video"]]
    noun: ClassVar[str]
    """What the images are, for messages."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        """Return the images of a slice, a mask or row numbers."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Number of bytes of all images in this form."""

    @abstractmethod
    def without(self, rows: NDArray[np.bool_]) -> Self:
        """Return the images with the images of a mask, [n], unknown, which means without bytes."""

    @abstractmethod
    def followed_by(self, others: Sequence[Any]) -> Self | None:
        """Return these images and the images of other columns in this form, or None for a column in another form."""


@dataclass(frozen=True)
class EncodedImages(StoredImages):
    """Column of images that stay PNG or JPEG, [T] or [T + 1], and are decoded on reading."""

    form: ClassVar[Literal["encoded", "compressed", "video"]] = "encoded"
    noun: ClassVar[str] = "encoded images"
    images: Sequence[bytes | bytearray | memoryview]
    """Bytes of each image. An image without bytes is unknown."""

    @override
    def __len__(self) -> int:
        return len(self.images)

    @override
    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        return replace(self, images=[self.images[row] for row in np.arange(len(self))[rows].tolist()])

    @property
    @override
    def nbytes(self) -> int:
        return sum(map(len, self.images))

    @override
    def without(self, rows: NDArray[np.bool_]) -> Self:
        images = zip(self.images, rows.tolist(), strict=True)
        return replace(self, images=[b"" if is_unknown else image for image, is_unknown in images])

    @override
    def followed_by(self, others: Sequence[Any]) -> Self | None:
        if not all(isinstance(column, EncodedImages) for column in others):
            return None
        return replace(self, images=[image for column in (self, *others) for image in column.images])


Values: TypeAlias = "NDArray[np.generic] | TextStates | EncodedImages"


@dataclass(frozen=True, slots=True)
class Episode:
    """Episode, or a piece of an episode: T actions and the T + 1 states around them.

        time     0     1     2           T
        states   s_0   s_1   s_2   ...   s_T     [T + 1, ...], or [T, ...] if s_T is unknown
        steps    a_0   a_1   ...   a_T-1         [T, ...], where the reward and the flags of a_t are at t

    An episode that is too long for memory is split into pieces. All pieces except the last have `continues` set and T
    states, because the state after their last action is the first state of the next piece.
    """

    steps: Mapping[Key, Values]
    """Fields with a value per step, [T, ...]: ``("action",)``, ``("next", "reward")``, ``("next", "terminated")``,
    ``("next", "truncated")``, and other fields of the source. Rewards become floating point, see
    `datasets_rl.ted.rewards`."""
    states: Mapping[Key, Values]
    """Fields with a value before and after every step, [T + 1, ...] or [T, ...]: ``("observation",)``,
    ``("info", "qpos")``."""
    continues: bool = False
    """Whether the next piece continues this episode."""
    metadata: Mapping[str, int | float | bool] = field(default_factory=dict)
    """Metadata of the whole episode, such as the seed or the number upstream, ``"source"``. All episodes have the same
    names. Of several pieces, the metadata of the last piece is stored. NumPy scalars keep their dtype."""
    deferred: bool = False
    """Whether `DeferredStates` will replace the wide states of the only row of this piece, which are zeros."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", with_float_rewards(self.steps))

    def __len__(self) -> int:
        """Return the number of actions, T."""
        return len(next(iter(self.steps.values())))

    @property
    def final_known(self) -> bool:
        """Whether the observation after the last action is known; without an observation, whether every state is."""
        steps = len(self)
        observed = [array for key, array in self.states.items() if is_observation(key)]
        return all(len(array) == steps + 1 for array in observed or self.states.values())


@dataclass(frozen=True, slots=True)
class DeferredStates:
    """States of an earlier row that the source read later, because such states are at the end of the file.

    rows    x x 0 x x x      the row was appended with zeros in place of the states, in the same shard
                |--4-->|
    """

    states: Mapping[Key, NDArray[np.generic]]
    """Values by field, [1, ...] each. Only for wide fields, which have separate files."""
    rows_ago: int
    """Number of rows from the row to the end of the appended rows, itself included: 1 is the last row."""


def concatenate_columns(parts: Sequence[Any]) -> Any:
    """Return the concatenation of columns of a field. Images of the same form stay in this form."""
    first = parts[0]
    joined = first.followed_by(parts[1:]) if isinstance(first, StoredImages) else None
    return np.concatenate(parts) if joined is None else joined


def zero_unknown_states(final_states: Any, known: NDArray[np.bool_]) -> Any:
    """Return final states, [E, ...], with zeros where `known` is False. Stored images have no bytes there."""
    if known.all():
        return final_states
    if isinstance(final_states, StoredImages):
        return final_states.without(~known)
    return np.where(
        known.reshape(-1, *(1 for _ in final_states.shape[1:])), final_states, np.zeros((), final_states.dtype)
    )
