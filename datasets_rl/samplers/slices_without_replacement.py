"""Slices of trajectories, every trajectory once an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.slices import AnyKey, SliceSampler
from datasets_rl.ted.trajectories import Slices

__all__ = ["SliceSamplerWithoutReplacement"]

Index = NDArray[np.int64]


class SliceSamplerWithoutReplacement(SliceSampler):
    """Draw one slice of every trajectory, then begin again.

    An epoch takes every trajectory that has a slice once, in random order, at a random start: all its admissible starts
    are equally likely. The last batch of an epoch holds what is left. A write to the storage begins a new epoch.

        epoch      |<------ 0 ------>|<------ 1 ------>|
        batch       2 0 4 | 1 5 | 3   5 2 1 | ...           trajectories, num_slices=3

    Args:
        num_slices: See `SliceSampler`, as for all that is not explained here.
        slice_len: Steps of a slice.
        drop_last: Whether a last batch of fewer slices is left out.
        end_key: The flag that ends a trajectory.
        end_keys: Several such flags.
        traj_key: The number of the trajectory.
        ends: The end flags of all steps.
        trajectories: The numbers of the trajectories of all steps.
        truncated_key: Where the ends of slices are marked.
        init_key: Where the starts of slices are marked.
        strict_length: Whether short trajectories are left out.
        pad_output: Whether they are filled up.
        shuffle: Whether the trajectories come in random order, not from the first to the last.
        compile: Without effect.
        use_gpu: Without effect.
        generator: Where the randomness comes from.
        rank: Number of this process.
        world_size: How many there are.

    Raises:
        InvalidArgumentError: If arguments exclude each other; all problems at once.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: AnyKey | None = None,
        end_keys: Sequence[AnyKey] | None = None,
        traj_key: AnyKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        truncated_key: AnyKey | None = ("next", "truncated"),
        init_key: AnyKey | None = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        shuffle: bool = True,
        compile: bool | dict[str, Any] = False,  # noqa: A002 - the name in the reference
        use_gpu: torch.device | bool = False,
        generator: Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            pad_output=pad_output,
            compile=compile,
            use_gpu=use_gpu,
            generator=generator,
            rank=rank,
            world_size=world_size,
        )
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._left: Index = np.empty(0, np.int64)
        self._epoch_of: Slices | list[int] | None = None  # an outline, where the epoch was restored

    def _begin(self, slices: Slices) -> None:
        """Begin an epoch, unless the one that runs is of the same slices."""
        of = self._epoch_of
        same = of is slices if of is None or isinstance(of, Slices) else of == _outline(slices)
        self._epoch_of = slices
        if same and len(self._left):
            return
        self._left = np.flatnonzero(slices.counts)
        if self.shuffle:
            self._left = self._left[torch.randperm(len(self._left), generator=self.generator).numpy()]

    def _choose(self, slices: Slices, count: int) -> Index:
        self._begin(slices)
        if self.drop_last and len(self._left) < count:
            raise InvalidArgumentError(
                f"{count} slices are wanted, and there are {len(self._left)} trajectories to take them from; "
                "with drop_last no batch is left",
                hint="ask for smaller batches, or give drop_last=False",
            )
        taken, self._left = self._left[:count], self._left[count:]
        self.ran_out = len(self._left) < (count if self.drop_last else 1)
        if self.ran_out:
            self._left = self._left[:0]
        counts = slices.counts[taken]
        offsets = (torch.rand(len(taken), dtype=torch.float64, generator=self.generator).numpy() * counts).astype(
            np.int64
        )
        return slices.ends[taken] - counts + offsets

    def empty(self) -> None:
        """Forget the epoch and what is known of the storage."""
        super().empty()
        self._left, self._epoch_of = self._left[:0], None

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch as well."""
        of = self._epoch_of
        outline = _outline(of) if isinstance(of, Slices) else of
        return {**super().state_dict(), "left": torch.from_numpy(self._left), "of": outline}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say what of a state is not that of such a sampler."""
        left, of = state_dict.get("left"), state_dict.get("of")
        reasons = super().misfits(state_dict)
        if not isinstance(left, Tensor) or left.dtype != torch.int64 or left.ndim != 1:
            reasons.append("left is not the numbers of the trajectories that are left of the epoch, int64 [n]")
        elif "of" not in state_dict:
            reasons.append("of is missing; expected the slices that left is of, or None")
        elif of is not None and not _covers(of, left):
            reasons.append(f"left names trajectories that are not among those it is of, {of}")
        return reasons

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a sampler was, within its epoch."""
        super().load_state_dict(state_dict)
        self._left, self._epoch_of = state_dict["left"].numpy().copy(), state_dict["of"]

    def __getstate__(self) -> dict[str, Any]:
        of = self._epoch_of
        return {**super().__getstate__(), "_epoch_of": _outline(of) if isinstance(of, Slices) else of}


def _outline(slices: Slices) -> list[int]:
    """Return by what slices are known again after a restart: trajectories, slices in all, steps of each."""
    return [len(slices.counts), slices.total, slices.length]


def _covers(of: Any, left: Tensor) -> bool:
    whole = isinstance(of, list) and len(of) == 3 and all(isinstance(one, int) for one in of)
    return whole and (not len(left) or 0 <= int(left.min()) <= int(left.max()) < of[0])
