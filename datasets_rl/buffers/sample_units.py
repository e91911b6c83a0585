"""Sample units: what each step that a sampler draws becomes in the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.arguments import check, choice_problems, size_problems
from datasets_rl.samplers.share import empty_storage_error
from datasets_rl.ted.keys import NEXT_DONE, Key, as_key

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

_ANCHOR = "anchor_index"
_VALID = "validity_mask"

Boundary = Literal["pad", "stop", "include_reset"]
Index = NDArray[np.int64]


class SampleUnit(ABC):
    """Base class of sample units. A sampler draws anchors. The unit replaces each anchor by steps of the batch.

    The buffer calls the unit after the sampler, under the lock of the buffer, and reads the steps afterwards.
    """

    @abstractmethod
    def expand(self, index: Any, info: dict[Any, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        """Replace the anchors by steps.

        Args:
            index: The anchors, int64 [B]. For a storage with several leading axes, a tuple with such a tensor per axis.
            info: The info of the sampler, by key in the batch. Entries [B, ...] have a value per anchor.
            storage: The storage that the steps will be read from, which must not be changed.

        Returns:
            The steps in the form of `index`, int64 [N], and the info, with a value per step, [N, ...], in every
            entry that had a value per anchor.
        """

    def anchor_priorities(self, batch: Any, priority: Tensor) -> tuple[Any, Tensor]:
        """Return the index and the priorities of the anchors of a batch, given a priority of each of its steps.

        Args:
            batch: A batch with its info.
            priority: Priorities, in the shape of the batch, possibly with further axes.
        """
        return batch.get("index", None), priority


class Transition(SampleUnit):
    """Every anchor is a step of the batch: the default of buffers."""

    def expand(self, index: Any, info: dict[Any, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        """Return the anchors and the info unchanged."""
        del storage
        return index, info


class Sequence(SampleUnit):
    """Every anchor becomes a window of consecutive steps in the batch: ``[B * (burn_in + length + bootstrap)]``.

        >>> rb = TensorDictReplayBuffer(storage=storage, sample_unit=Sequence(3, burn_in=2, bootstrap=1), batch_size=32)
        >>> rb.sample().reshape(32, 6)

                        burn_in | length  | bootstrap         anchor a
        step            a-2 a-1 | a a+1 a+2 | a+3             dilation d: a-2d a-d | a a+d a+2d | a+3d
        learning_mask     0   0 | 1  1   1  |  0

    A recurrent network warms up on the steps of `burn_in`, learns from the steps of `length`, and has the steps of
    `bootstrap` for its target. At the end of an episode, here of the anchor's episode 5 6 7 8, `episode_boundary`
    decides:

        length 4, anchor 7        steps      validity_mask
        "pad"                     7 8 8 8    1 1 0 0            the last step is repeated
        "stop"                    5 6 7 8    1 1 1 1            the window starts earlier, padded in a short episode
        "include_reset"           7 8 9 10   1 1 1 1            the window continues in the next episode

    Before the start of an episode, the first step is repeated, and invalid. No window contains the newest and the oldest
    step of a ring in a row, or a slot without a step.

    The unit adds to the batch ``"sequence_id"`` (the number of the window in the batch), ``"step_in_sequence"``,
    ``"learning_mask"``, ``"validity_mask"`` and ``"anchor_index"``. `update_tensordict_priority` gives an anchor the
    largest priority of the valid steps of its windows.

    Args:
        length: Number of steps to learn from, at least 1.
        episode_boundary: What happens at the end of an episode: "pad", "stop" or "include_reset".
        done_key: Key of the flag that is True on the last step of an episode. None if the stored steps are a single
            episode.
        burn_in: Number of steps before the anchor.
        bootstrap: Number of steps after those to learn from.
        dilation: Distance between successive steps of a window.

    Raises:
        InvalidArgumentError: If an argument is out of range. The message lists all problems.
    """

    def __init__(
        self,
        length: int,
        episode_boundary: Boundary = "pad",
        done_key: str | tuple[str, ...] | None = NEXT_DONE,
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
    ) -> None:
        check(
            size_problems(length=length, dilation=dilation),
            size_problems(0, burn_in=burn_in, bootstrap=bootstrap),
            choice_problems("pad", "stop", "include_reset", episode_boundary=episode_boundary),
        )
        self.length = length
        self.episode_boundary = episode_boundary
        self.done_key: Key | None = None if done_key is None else as_key(done_key)
        self.burn_in = burn_in
        self.bootstrap = bootstrap
        self.dilation = dilation

    def expand(self, index: Any, info: dict[Any, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        """Replace every anchor by its window, see `SampleUnit.expand`.

        Raises:
            InvalidArgumentError: If the storage is empty, or has no field `done_key`.
        """
        if not len(storage):
            raise empty_storage_error()
        anchors = storage.ravel(index)
        rows, valid = self._windows(storage, anchors.cpu().numpy())
        count, steps = rows.shape
        numbers = torch.arange(steps)
        info = {key: _repeated(value, steps) for key, value in info.items()} | {
            "sequence_id": torch.arange(count).repeat_interleave(steps),
            "step_in_sequence": numbers.repeat(count),
            "learning_mask": ((numbers >= self.burn_in) & (numbers < self.burn_in + self.length)).repeat(count),
            _ANCHOR: _as_entry(anchors, storage).repeat_interleave(steps, 0),
            _VALID: torch.from_numpy(valid.reshape(-1)),
        }
        flat = torch.from_numpy(rows.reshape(-1))
        return (flat if storage.ndim == 1 else storage.unravel(flat)), info

    def _windows(self, storage: Storage, anchors: Index) -> tuple[Index, NDArray[np.bool_]]:
        """Return the rows of the window of each anchor, [B, H], and whether the rows are valid, in the same shape."""
        crosses = self.episode_boundary == "include_reset" or self.done_key is None
        rows_at, place, first, last = _written_span(storage, anchors) if crosses else self._episodes(storage, anchors)
        after = self.length + self.bootstrap - 1
        if self.episode_boundary == "stop":
            place = place - np.clip(self.dilation * after - (last - place), 0, place - first)
        window = place[:, None] + self.dilation * np.arange(-self.burn_in, after + 1)
        inside = np.clip(window, first[:, None], last[:, None])
        rows = rows_at(inside)
        valid = inside == window
        if crosses and storage.torn:
            valid &= ~np.isin(rows, storage.torn_rows().numpy())
        return rows, valid

    def _episodes(self, storage: Storage, anchors: Index) -> tuple[Callable[[Index], Index], Index, Index, Index]:
        """Return a function from places to rows, and the places of the anchors and of the ends of the episodes."""
        episodes = storage.trajectories(end_key=self.done_key)
        owner, place = episodes.locate(anchors)
        first = episodes.firsts[owner]
        return episodes.rows, place, first, first + episodes.lengths[owner] - 1

    def anchor_priorities(self, batch: Any, priority: Tensor) -> tuple[Any, Tensor]:
        """Return every anchor of a batch once, with the largest priority of the valid steps of its windows."""
        anchors, valid = batch.get(_ANCHOR, None), batch.get(_VALID, None)
        if anchors is None:
            return super().anchor_priorities(batch, priority)
        anchors = anchors.flatten(0, batch.ndim - 1)
        priority = priority.reshape(len(anchors), -1)
        if valid is not None:
            anchors, priority = anchors[valid.reshape(-1)], priority[valid.reshape(-1)]
        found, owner = anchors.unique(dim=0, return_inverse=True)
        owner = owner.unsqueeze(1).expand_as(priority)
        largest = priority.new_zeros(len(found), priority.shape[1])
        return found, largest.scatter_reduce(0, owner, priority, "amax", include_self=False)

    def __repr__(self) -> str:
        names = ("length", "episode_boundary", "done_key", "burn_in", "bootstrap", "dilation")
        return f"Sequence({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _as_entry(rows: Tensor, storage: Storage) -> Tensor:
    return rows if storage.ndim == 1 else torch.stack(storage.unravel(rows), -1)


def _written_span(storage: Storage, anchors: Index) -> tuple[Callable[[Index], Index], Index, Index, Index]:
    """Return what `Sequence._episodes` returns, for all steps of an environment as a single episode."""
    slots, envs, held = storage.slot_count, storage.envs, storage.filled_count
    oldest = storage.write_count % slots if held == slots else 0
    env = (anchors % envs)[:, None]
    place = (anchors // envs - oldest) % slots
    return (
        lambda places: (places + oldest) % slots * envs + env,
        place,
        np.zeros_like(place),
        np.full_like(place, held - 1),
    )


def _repeated(value: Any, steps: int) -> Any:
    """Return the info of the anchors for each step. Other info is returned unchanged."""
    values = torch.as_tensor(value)
    return values.repeat_interleave(steps, 0) if values.ndim else value
