"""Several whole trajectories that lie back to back, as they do on the disk: what is worked on at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import EncodedImages, Episode, TextStates, end_to_end
from datasets_rl.ted.keys import Key
from datasets_rl.ted.steps import next_of
from datasets_rl.ted.table import EpisodeTable

__all__ = ["EpisodeBatch"]

Arrays = Mapping[Key, Any]
"""A field each: an array, or what is read like one, as pictures that are still encoded."""


@dataclass(frozen=True)
class EpisodeBatch:
    """E trajectories with N steps in all; an array a field.

    states   |  s_0  s_1  s_2  |  s_0  s_1  |       [N, ...]
    finals      f_0               f_1               [E, ...], zeros where not known
    steps    |  a_0  a_1  a_2  |  a_0  a_1  |       [N, ...]
    """

    lengths: NDArray[np.int64]
    """Steps of each, [E], from 1."""
    steps: Arrays
    """What happens once a step; ``("next", "reward")``, ``("next", "terminated")`` and ``("next", "truncated")`` are
    always there, ``("next", "done")`` and ``("episode",)`` never."""
    states: Arrays
    """What exists before and after every step."""
    final_states: Arrays
    """The states after the last actions, of the same fields."""
    final_known: NDArray[np.bool_]
    """Whether the state after its last action is known, [E]."""
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is known about each as a whole, [E]: always its number upstream, "source"."""
    vocabulary: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """The texts that the numbers of a text field stand for."""
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Which of the dataset's episodes each comes from, [E]; counted from 0 where nobody says."""

    def __post_init__(self) -> None:
        if len(self.numbers) != len(self.lengths):
            object.__setattr__(self, "numbers", np.arange(len(self.lengths)))

    def __len__(self) -> int:
        """Return E."""
        return len(self.lengths)

    @cached_property
    def table(self) -> EpisodeTable:
        """Where each one lies among the N steps."""
        return EpisodeTable.from_lengths(self.lengths)

    @property
    def count(self) -> int:
        """N."""
        return int(self.lengths.sum())

    def following(self, key: Key) -> Any:
        """Return what a state is at t + 1, [N, ...]: the row below, and behind the last row of each its final one."""
        states, final_states = self.states[key], self.final_states[key]
        if isinstance(states, EncodedImages) and isinstance(final_states, EncodedImages):
            rows = np.arange(1, self.count + 1)
            rows[self.table.stops - 1] = self.count + np.arange(len(self))
            return end_to_end([states, final_states])[rows]
        return next_of(np.asarray(states), np.asarray(final_states), self.table, 0, self.count)

    def pick(self, episodes: NDArray[Any]) -> EpisodeBatch:
        """Return some of the trajectories, by their numbers or by a mask, in that order."""
        chosen = np.arange(len(self))[episodes]
        if len(chosen) == len(self) and (np.diff(chosen) == 1).all():
            return self
        lengths = self.lengths[chosen]
        # The rows of each one, one after the other.
        starts = self.table.starts[chosen]
        rows = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return replace(
            self,
            lengths=lengths,
            steps={key: values[rows] for key, values in self.steps.items()},
            states={key: values[rows] for key, values in self.states.items()},
            final_states={key: values[chosen] for key, values in self.final_states.items()},
            final_known=self.final_known[chosen],
            metadata={name: values[chosen] for name, values in self.metadata.items()},
            numbers=self.numbers[chosen],
        )

    def only(self, keys: Collection[Key]) -> EpisodeBatch:
        """Return the same trajectories with some of their fields."""

        def kept(arrays: Arrays) -> Arrays:
            return {key: values for key, values in arrays.items() if key in keys}

        return replace(self, steps=kept(self.steps), states=kept(self.states), final_states=kept(self.final_states))

    def __iter__(self) -> Iterator[Episode]:
        """Yield each trajectory by itself."""
        for number, rows in enumerate(self.table):
            span = slice(rows.start, rows.stop)
            known = bool(self.final_known[number])
            states = {
                key: end_to_end([values[span], self.final_states[key][number : number + 1]]) if known else values[span]
                for key, values in self.states.items()
            }
            steps: dict[Key, Any] = {key: values[span] for key, values in self.steps.items()}
            texts: dict[Key, Any] = {
                key: TextStates(one[key], tuple(self.vocabulary[key]))
                for one in (steps, states)
                for key in one
                if key in self.vocabulary
            }
            yield Episode(
                {key: texts.get(key, values) for key, values in steps.items()},
                {key: texts.get(key, values) for key, values in states.items()},
                metadata={name: values[number] for name, values in self.metadata.items()},
            )
