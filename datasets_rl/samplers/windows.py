"""Uniform sampler of the steps that have enough neighboring steps in their trajectory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import empty_storage_error

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.keys import EndKey
    from datasets_rl.ted.trajectories import Slices


class WindowSampler(Sampler):
    """Draw steps uniformly, with replacement, of steps with enough steps before and after in the same trajectory.

        trajectory                  0 1 2 3 4 | 5 6 7
        before 1, after 2             x x     |            steps that are drawn

    Args:
        before: Number of steps that a trajectory must have before a drawn step.
        after: Number of steps that a trajectory must have after a drawn step.
        generator: Random generator. By default torch's global generator.
        end_key: Flag that ends a trajectory. By default, as for `Storage.trajectories`.

    Raises:
        InvalidArgumentError: If `before` or `after` is negative.
    """

    draws_at_random = True

    def __init__(
        self, before: int = 0, after: int = 0, generator: Generator | None = None, *, end_key: EndKey | None = None
    ) -> None:
        if before < 0 or after < 0:
            raise InvalidArgumentError(f"before is {before} and after is {after}, expected at least 0")
        self.before, self.after, self.generator, self.end_key = before, after, generator, end_key
        self._slices: Slices | None = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw `batch_size` steps uniformly.

        Raises:
            InvalidArgumentError: If no trajectory has so many steps.
        """
        if not len(storage):
            raise empty_storage_error()
        trajectories = storage.trajectories(end_key=self.end_key)
        if self._slices is None or self._slices.trajectories is not trajectories:
            self._slices = trajectories.slices(self.before + 1 + self.after)
        slices = self._slices
        slices.check_any_left()
        starts, _ = slices.at(torch.randint(slices.total, (batch_size,), generator=self.generator).numpy())
        return torch.from_numpy(trajectories.rows(starts + self.before)), {}

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_slices": None}

    def __repr__(self) -> str:
        return f"WindowSampler(before={self.before}, after={self.after})"
