"""Uniform, with replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from datasets_rl.errors import BadArgument
from datasets_rl.samplers._base import Sampler

if TYPE_CHECKING:
    from datasets_rl.storages._base import Storage

__all__ = ["RandomSampler"]


class RandomSampler(Sampler):
    """Draw every step with equal chance, with replacement.

    Args:
        generator: Where the randomness comes from; by default torch's global generator, so that `torch.manual_seed`
            alone reproduces a run.
    """

    def __init__(self, generator: Generator | None = None) -> None:
        self.generator = generator

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw `batch_size` steps, each of the storage's with the same chance."""
        held = len(storage)
        if not held:
            raise BadArgument("the storage holds no step to sample", hint="extend the buffer first")
        return torch.randint(held, (batch_size,), generator=self.generator), {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler's own generator, if it has one."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a generator."""
        if "generator" in state_dict:
            self.generator = self.generator or Generator()
            self.generator.set_state(state_dict["generator"])
