"""A dataset as a `ReplayBuffer` of d3rlpy: its episodes are views of the arrays, and a batch is gathered at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.ted.table import EpisodeTable

_PURPOSE = "as_d3rlpy()"


class D3rlpyOptions(TypedDict, total=False):
    """Arguments of d3rlpy's ``MDPDataset``."""

    transition_picker: Any
    trajectory_slicer: Any
    action_space: Any
    action_size: int | None


def replay_buffer(
    arrays: Mapping[str, Any],
    table: EpisodeTable,
    count_actions: Callable[[], int | None],
    *,
    transition_picker: Any = None,
    trajectory_slicer: Any = None,
    action_space: Any = None,
    action_size: int | None = None,
) -> Any:
    """Return a ``ReplayBuffer`` of d3rlpy over arrays, which are not copied.

    Args:
        arrays: observations, actions, rewards and terminals, [N, ...] each, as from ``as_dict("d4rl")``.
        table: The episodes of the rows.
        count_actions: Function that returns the number of discrete actions, or None if the dataset does not state it.
        transition_picker: As for ``MDPDataset``.
        trajectory_slicer: As for ``MDPDataset``.
        action_space: As for ``MDPDataset``.
        action_size: As for ``MDPDataset``.

    Raises:
        InvalidArgumentError: If d3rlpy has no transition of these episodes.
        MissingDependencyError: If d3rlpy is not installed.
    """
    with importing("d3rlpy", "d3rlpy", _PURPOSE):
        from d3rlpy.constants import ActionSpace
        from d3rlpy.dataset import BasicTransitionPicker, Episode, ReplayBuffer, TransitionMiniBatch

    rows = _Rows(arrays, table, Episode)
    if not rows.transition_count:
        raise InvalidArgumentError(
            "no transition remains: d3rlpy needs a terminated episode, or one of 2 steps or more"
        )
    first = rows.episodes[0]
    if action_space is None:
        is_discrete = np.issubdtype(rows.actions.dtype, np.integer)
        action_space = ActionSpace.DISCRETE if is_discrete else ActionSpace.CONTINUOUS
    if action_size is None:
        is_continuous = action_space == ActionSpace.CONTINUOUS
        action_size = rows.actions.shape[1] if is_continuous else int(count_actions() or rows.actions.max() + 1)

    class MappedReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # of a library without types
        """A ``ReplayBuffer`` that gathers the transitions of a batch at once."""

        def sample_transition_batch(self, batch_size: int) -> Any:
            if type(self.transition_picker) is not BasicTransitionPicker:
                return super().sample_transition_batch(batch_size)
            indices = np.random.randint(rows.transition_count, size=batch_size)  # noqa: NPY002 - the generator of d3rlpy
            return TransitionMiniBatch(**rows.transitions(indices))

    return MappedReplayBuffer(
        rows,
        transition_picker=transition_picker,
        trajectory_slicer=trajectory_slicer,
        observation_signature=first.observation_signature,
        action_signature=first.action_signature,
        reward_signature=first.reward_signature,
        action_space=action_space,
        action_size=action_size,
    )


class _Rows:
    """The episodes of a dataset, with the interface of d3rlpy's buffers.

    A transition of d3rlpy is a step with a following step, or a terminated step.
    """

    def __init__(self, arrays: Mapping[str, Any], table: EpisodeTable, make: Any) -> None:
        observations = arrays["observations"]
        parts = [*_leaves(observations)]
        self.observations: list[NDArray[Any]] = parts
        self.is_tuple = isinstance(observations, Mapping)
        self.actions: NDArray[Any] = _column(arrays["actions"])
        self.rewards: NDArray[Any] = _column(arrays["rewards"])
        self.starts, self.stops = table.starts, table.stops
        self.terminated = np.asarray(arrays["terminals"], np.bool_)[self.stops - 1]
        self.last = np.cumsum(self.stops - self.starts - ~self.terminated)
        self.episodes: Sequence[Any] = _Episodes(self, make)

    @property
    def transition_count(self) -> int:
        """Number of transitions."""
        return int(self.last[-1]) if len(self.last) else 0

    def __len__(self) -> int:
        return self.transition_count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        number = int(np.searchsorted(self.last, index, "right"))
        row = int(self._rows(np.asarray([index]), np.asarray([number]))[0])
        return self.episodes[number], row - int(self.starts[number])

    def append(self, *_: Any) -> None:
        """Raise an error: a dataset is read-only.

        Raises:
            InvalidArgumentError: Always.
        """
        raise InvalidArgumentError(
            "a dataset is read-only: it cannot take the steps of an environment",
            hint="collect into create_fifo_replay_buffer, and mix both in d3rlpy's MixedReplayBuffer",
        )

    def _rows(self, indices: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of transitions, [B], of which the episodes are known."""
        before = np.where(numbers > 0, self.last[numbers - 1], 0)
        rows: NDArray[np.int64] = self.starts[numbers] + indices - before
        return rows

    def transitions(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of a ``TransitionMiniBatch`` of B transitions, float32 [B, ...] each."""
        numbers = np.searchsorted(self.last, indices, "right")
        rows = self._rows(indices, numbers)
        is_end = self.terminated[numbers] & (rows == self.stops[numbers] - 1)
        following = np.where(is_end, rows, rows + 1)
        observations = [_floats(values[rows]) for values in self.observations]
        next_observations = [_floats(values[following]) for values in self.observations]
        next_actions = _floats(self.actions[following])
        for values in (*next_observations, next_actions):
            values[is_end] = 0
        return {
            "observations": observations if self.is_tuple else observations[0],
            "actions": _floats(self.actions[rows]),
            "rewards": _floats(self.rewards[rows]),
            "next_observations": next_observations if self.is_tuple else next_observations[0],
            "next_actions": next_actions,
            "terminals": is_end.astype(np.float32)[:, None],
            "intervals": np.ones((len(rows), 1), np.float32),
            "transitions": _Transitions(self, indices),
        }


class _Episodes(Sequence[Any]):
    """The episodes, each made on access, of views of the arrays."""

    def __init__(self, rows: _Rows, make: Any) -> None:
        self._rows, self._make = rows, make

    def __len__(self) -> int:
        return len(self._rows.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        rows = self._rows
        part = slice(int(rows.starts[number]), int(rows.stops[number]))
        observations = [values[part] for values in rows.observations]
        return self._make(
            observations=observations if rows.is_tuple else observations[0],
            actions=rows.actions[part],
            rewards=rows.rewards[part],
            terminated=bool(rows.terminated[number]),
        )


class _Transitions(Sequence[Any]):
    """The transitions of a batch, each made on access. d3rlpy reads them for some algorithms alone."""

    def __init__(self, rows: _Rows, indices: NDArray[np.int64]) -> None:
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        from d3rlpy.dataset import BasicTransitionPicker

        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return BasicTransitionPicker()(*self._rows[int(self._indices[index])])


def _leaves(values: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of an observation. Images become [N, C, H, W]."""
    if isinstance(values, Mapping):
        for part in values.values():
            yield from _leaves(part)
    else:
        is_image = values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] in {1, 3, 4}
        values = np.moveaxis(values, -1, 1) if is_image else values
        yield values if values.ndim > 1 else values[:, None]


def _column(values: NDArray[Any]) -> NDArray[Any]:
    return values if values.ndim > 1 else values[:, None]


def _floats(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32, copy=False)
