"""Batch of whole episodes, stored back to back as on disk: the unit of preprocessing and writing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.episode import Episode, StoredImages, TextStates, concatenate_columns
from datasets_rl.ted.keys import Key
from datasets_rl.ted.rewards import with_float_rewards
from datasets_rl.ted.steps import values_after
from datasets_rl.ted.table import EpisodeTable

Arrays = Mapping[Key, Any]
"""Values by field: an array, or an object with the indexing of an array, such as encoded images."""


@dataclass(frozen=True)
class EpisodeBatch:
    """E whole episodes with N steps in total, an array per field.

    states        |  s_0  s_1  s_2  |  s_0  s_1  |       [N, ...]
    final_states     f_0               f_1               [E, ...], zeros if unknown
    steps         |  a_0  a_1  a_2  |  a_0  a_1  |       [N, ...]
    """

    lengths: NDArray[np.int64]
    """Number of steps of each episode, [E], at least 1."""
    steps: Arrays
    """Fields with a value per step, [N, ...]. ``("next", "reward")``, ``("next", "terminated")`` and ``("next",
    "truncated")`` are always present, ``("next", "done")`` and ``("episode",)`` never. Rewards become floating point,
    see `datasets_rl.ted.rewards`."""
    states: Arrays
    """Fields with a value before and after every step: the values before each step, [N, ...]."""
    final_states: Arrays
    """Values of the same fields after the last step of each episode, [E, ...]."""
    final_known: NDArray[np.bool_]
    """Whether the state after the last step of each episode is known, [E]."""
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Metadata of each episode by name, [E], always with "source", the number of the episode upstream."""
    vocabulary: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """Texts by text field: code i of the field stands for text i."""
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Number of each episode in its input dataset, [E], 0 to E - 1 by default."""
    compressed: frozenset[Key] = frozenset()
    """Fields of images that are stored compressed, in the batch either compressed or as pixels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", with_float_rewards(self.steps))
        if len(self.numbers) != len(self.lengths):
            object.__setattr__(self, "numbers", np.arange(len(self.lengths)))

    def __len__(self) -> int:
        """Return the number of episodes, E."""
        return len(self.lengths)

    @cached_property
    def table(self) -> EpisodeTable:
        """Episode table of the N steps."""
        return EpisodeTable.from_lengths(self.lengths)

    @property
    def count(self) -> int:
        """Total number of steps, N."""
        return int(self.lengths.sum())

    def next_states(self, key: Key) -> Any:
        """Return the values of a state field at t + 1, [N, ...]: the next row or, for the last row, the final state."""
        states, final_states = self.states[key], self.final_states[key]
        if isinstance(states, StoredImages) and isinstance(final_states, StoredImages):
            rows = np.arange(1, self.count + 1)
            rows[self.table.stops - 1] = self.count + np.arange(len(self))
            return concatenate_columns([states, final_states])[rows]
        return values_after(np.asarray(states), np.asarray(final_states), self.table, 0, self.count)

    def select_episodes(self, episodes: NDArray[Any]) -> EpisodeBatch:
        """Return the episodes with these indices, in this order, or the episodes of a mask, [E]."""
        chosen = np.arange(len(self))[episodes]
        if len(chosen) == len(self) and (np.diff(chosen) == 1).all():
            return self
        lengths = self.lengths[chosen]
        # The rows of each chosen episode, concatenated.
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

    def select_fields(self, keys: Collection[Key]) -> EpisodeBatch:
        """Return the same episodes with only these fields."""

        def select(arrays: Arrays) -> Arrays:
            return {key: values for key, values in arrays.items() if key in keys}

        return replace(
            self, steps=select(self.steps), states=select(self.states), final_states=select(self.final_states)
        )

    def __iter__(self) -> Iterator[Episode]:
        """Yield each episode as an `Episode`."""
        for number, rows in enumerate(self.table):
            extent = slice(rows.start, rows.stop)
            known = bool(self.final_known[number])
            states = {
                key: concatenate_columns([values[extent], self.final_states[key][number : number + 1]])
                if known
                else values[extent]
                for key, values in self.states.items()
            }
            steps: dict[Key, Any] = {key: values[extent] for key, values in self.steps.items()}
            texts: dict[Key, Any] = {
                key: TextStates(columns[key], tuple(self.vocabulary[key]))
                for columns in (steps, states)
                for key in columns
                if key in self.vocabulary
            }
            yield Episode(
                {key: texts.get(key, values) for key, values in steps.items()},
                {key: texts.get(key, values) for key, values in states.items()},
                metadata={name: values[number] for name, values in self.metadata.items()},
            )
