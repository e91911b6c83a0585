"""The replay buffer of TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack
from tensordict.utils import expand_as_right
from torch import Tensor

from datasets_rl.buffers.replay import Drawn, ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.writers.base import Writer
from datasets_rl.writers.round_robin import TensorDictRoundRobinWriter

__all__ = ["TensorDictReplayBuffer"]

_INDEX = "index"


class _Said(dict[Any, Any]):
    """What is said of a choice, and what of the data gave way to it in the batch."""

    own: Mapping[Any, Any] = {}


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer whose batches are TensorDicts.

    What the sampler says of its choice, and the index of every step, stand in the batch: ``batch["index"]`` is int64
    [B], or [B, ndim] with a storage of several axes. The index is not stored: one that comes with what is written, as
    in a batch that was sampled before, is left out. The priorities of what is written are taken from `priority_key`,
    where it has them.

    Args:
        priority_key: Where a prioritised sampler finds the priorities of a batch, and of what is written.
        **kwargs: Those of `ReplayBuffer`.
    """

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def _default_writer(self) -> Writer:
        return TensorDictRoundRobinWriter()

    def _accepted(self, data: Any, *, one: bool) -> Any:
        return [*map(_without_index, data)] if isinstance(data, list) and not one else _without_index(data)

    def _priority_of(self, data: Any, axes: int) -> Tensor | None:
        if isinstance(data, list):
            data = lazy_stack(data) if data else TensorDict(batch_size=[0])
        rows = data.shape[:axes].numel()
        priority: Tensor | None = data.get(self.priority_key, None)
        if priority is None or not rows:
            return None
        priority = priority.reshape(rows, -1)
        self._sampler.expect_priority(priority)
        return priority

    def update_tensordict_priority(self, data: Any) -> None:
        """Take over the priorities of a batch that was sampled.

        Args:
            data: A TensorDict with ``"index"``, and with the priorities at `priority_key`: one for each step, or
                several, which the sampler reduces to one. Without priorities, nothing happens.

        Raises:
            InvalidArgumentError: If there is no index, or a priority is no finite number from 0; nothing has changed then.
        """
        priority = data.get(self.priority_key, None)
        if priority is None:
            return
        index = data.get(_INDEX, None)
        if index is None:
            raise InvalidArgumentError(
                f"the batch has no {_INDEX!r}; expected one that sample() returned, with its index",
                hint="what extend() returned goes into update_priority(index, priority)",
            )
        with self._lock:
            rows = self._storage.ravel(index if self._storage.ndim == 1 else index.reshape(-1, self._storage.ndim))
            # An element that is a whole trajectory has its index at each step: its priorities are reduced to one.
            while rows.ndim > 1 and bool((rows == rows[..., :1]).all()):
                rows = rows[..., 0]
            priority = priority.reshape(rows.numel(), -1)
            self._sampler.update_priority(rows.reshape(-1), priority, storage=self._storage)

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draw a batch.

        Args:
            batch_size: Steps wanted, B; by default that of the constructor.
            return_info: Return what the sampler says of its choice as well.
            include_info: False leaves the index, and what else the sampler says, out of the batch: where slices mark
                their ends, the flags are those of the data, without what transforms made of them.

        Returns:
            The batch, or the batch and a dict of info.

        Raises:
            InvalidArgumentError: If no batch size is given anywhere, or the buffer is empty.
        """
        batch, info = super().sample(batch_size, return_info=True)
        if include_info is False:
            batch = batch.exclude(*(key for key in info if key not in info.own))
            for key, value in info.own.items():
                if batch.get(key, None) is not None:
                    batch.set(key, value)
        return (batch, info) if return_info else batch

    def _make(self, drawn: Drawn) -> tuple[Any, dict[Any, Any]]:
        drawn.info = _Said(drawn.info)
        return super()._make(drawn)

    def _finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        if not info:
            return super()._finish(data, info, collate=collate)
        if collate and self._collate_fn is not None:
            data = self._collate_fn(data)
        noted = _fitting(info, data)
        own = _note(data, noted)
        if isinstance(info, _Said):
            info.own = own
        data = super()._finish(data, {}, collate=False)
        if self._transforms:
            # Transforms see what is known of the choice; one that selects keys does not take the index away.
            kept = data.keys(include_nested=True)
            _note(data, _fitting({key: value for key, value in noted.items() if key not in kept}, data))
        return data


def _without_index(data: Any) -> Any:
    if not is_tensor_collection(data):
        raise InvalidArgumentError(
            f"a {type(data).__name__} was to be written; a TensorDictReplayBuffer has TensorDicts only",
            hint="use ReplayBuffer for other data",
        )
    return data.exclude(_INDEX) if _INDEX in data.keys() else data  # noqa: SIM118 - a TensorDict iterates over its steps


def _fitting(info: dict[Any, Any], data: Any) -> dict[Any, Tensor]:
    """Return what is said of each element of a batch as entries of it; other things that are said are left out."""
    shape, device = data.shape, data.device
    noted: dict[Any, Tensor] = {}
    for key, said in info.items():
        value = torch.stack(said, -1) if isinstance(said, tuple) else said
        if value.ndim < len(shape):
            # What is known of an element holds for each of its steps, where elements are whole trajectories.
            value = expand_as_right(value, data).contiguous()
        if value.shape[: len(shape)] == shape:
            noted[key] = value if device is None or device == value.device else value.to(device, non_blocking=True)
    return noted


def _note(data: Any, noted: dict[Any, Tensor]) -> dict[Any, Any]:
    """Put entries into a batch, and return those that they replaced."""
    replaced: dict[Any, Any] = {}
    for key, value in noted.items():
        *path, name = (key,) if isinstance(key, str) else key
        node = data
        for part in path:
            node = node.get(part, None)
        if type(node) is TensorDict and not node.is_locked:
            entries = node._tensordict  # noqa: SLF001 - the checks of `set` cost more than the choice itself
            if name in entries:
                replaced[key] = entries[name]
            entries[name] = value
        else:
            if (before := data.get(key, None)) is not None:
                replaced[key] = before
            data.set(key, value)
    return replaced
