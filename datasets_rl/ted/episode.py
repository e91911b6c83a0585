"""One trajectory as a source gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import OBSERVATION, Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DeferredStates", "EncodedImages", "Episode", "TextStates", "Values", "end_to_end", "known_only"]


@dataclass(frozen=True, slots=True)
class TextStates:
    """A column of texts: for each row the number of a word. The writer gives every word its number in the dataset."""

    codes: NDArray[np.generic]
    """Whole numbers [T], each below the number of words."""
    vocabulary: tuple[str, ...]

    def __len__(self) -> int:
        """Return T."""
        return len(self.codes)

    @classmethod
    def of(cls, texts: Sequence[str]) -> TextStates:
        """Make a column of texts, [T]."""
        vocabulary = {word: number for number, word in enumerate(dict.fromkeys(texts))}
        return cls(np.fromiter((vocabulary[text] for text in texts), np.int32, len(texts)), tuple(vocabulary))


@dataclass(frozen=True)
class EncodedImages:
    """A column of pictures that stay PNG or JPEG, [T] or [T + 1]; they are decoded when they are read."""

    images: Sequence[bytes | bytearray | memoryview]
    """One without bytes is not known."""

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.images)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        """Return some of them, by a slice, a mask or row numbers."""
        return replace(self, images=[self.images[row] for row in np.arange(len(self))[rows].tolist()])


Values: TypeAlias = "NDArray[np.generic] | TextStates | EncodedImages"


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory, or a piece of one: T actions and the T + 1 states around them.

        time     0     1     2           T
        states   s_0   s_1   s_2   ...   s_T     [T + 1, ...], or [T, ...] where s_T is not known
        steps    a_0   a_1   ...   a_T-1         [T, ...]; r and the flags of a_t stand at t

    A trajectory that is too long to hold comes as several pieces; all but the last say `continues` and have T states,
    because the state after their last action is the first state of the next piece.
    """

    steps: Mapping[Key, Values]
    """What happens once a step, [T, ...]: ``("action",)``, ``("next", "reward")``, ``("next", "terminated")``,
    ``("next", "truncated")``, and whatever else the source has."""
    states: Mapping[Key, Values]
    """What exists before and after every step, [T + 1, ...] or [T, ...]: ``("observation",)``, ``("info", "qpos")``."""
    continues: bool = False
    """The next piece goes on with the same trajectory."""
    metadata: Mapping[str, int | float | bool] = field(default_factory=dict)
    """What is known about the whole trajectory, such as the seed or the upstream's own number, ``"source"``; the last
    piece's count, and every trajectory has the same ones. Numbers of numpy keep their dtype."""

    def __len__(self) -> int:
        """Return T, the number of actions."""
        return len(next(iter(self.steps.values())))

    @property
    def final_known(self) -> bool:
        """Whether the observation after the last action is there."""
        steps = len(self)
        return all(len(array) == steps + 1 for key, array in self.states.items() if key[0] == OBSERVATION[0])


@dataclass(frozen=True, slots=True)
class DeferredStates:
    """States of an earlier row, which come only now because they stand at the end of their file.

    rows    x x 0 x x x      the row was given with zeros in their place, in the same shard
                |--4-->|
    """

    states: Mapping[Key, NDArray[np.generic]]
    """[1, ...] for each; only of fields so wide that they have a file of their own."""
    back: int
    """Rows that were given since, and the row itself: 1 is the last one."""


def end_to_end(parts: Sequence[Any]) -> Any:
    """Return columns of one field one behind the other; pictures that are all still encoded stay so."""
    if all(isinstance(one, EncodedImages) for one in parts):
        return replace(parts[0], images=[image for one in parts for image in one.images])
    return np.concatenate(parts)


def known_only(final_states: Any, known: NDArray[np.bool_]) -> Any:
    """Return final states, [E, ...], as zeros where they are not known; encoded pictures have no bytes there."""
    if known.all():
        return final_states
    if isinstance(final_states, EncodedImages):
        held = zip(final_states.images, known.tolist(), strict=True)
        return replace(final_states, images=[image if is_known else b"" for image, is_known in held])
    return np.where(
        known.reshape(-1, *(1 for _ in final_states.shape[1:])), final_states, np.zeros((), final_states.dtype)
    )
