"""Prioritized replay buffers: a shorthand for a buffer with a `PrioritizedSampler`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from datasets_rl.arguments import check
from datasets_rl.buffers.components import build_component
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.prioritized import PrioritizedSampler
from datasets_rl.storages.base import Storage


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that samples steps in proportion to their priorities (Schaul et al., 2015, arXiv 1511.05952).

        >>> rb = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
        >>> index = rb.extend(data)
        >>> batch, info = rb.sample(return_info=True)
        >>> rb.update_priority(info["index"], td_error.abs())

    Args:
        alpha: Exponent of the priorities. 0 gives uniform sampling.
        beta: Exponent of the importance weights. 1 corrects the bias fully.
        eps: Constant added to every priority, so that no priority is 0.
        dtype: Dtype of the weights.
        storage: Storage of the steps, with a `max_size`. By default a `ListStorage` of 1,000.
        reduction: Reduction of several priorities of a step to a single number: "max", "min", "mean" or "median".
        sampler_device: Device of the priorities: only the CPU, which is also the default.
        sync: Whether the sampler processes writes at once. If False, writes are processed at the next draw: then
            spawned processes may write to the buffer, and this process samples, see `PrioritizedSampler`.
        **kwargs: Other arguments of the base class, except `sampler`.

    Raises:
        InvalidArgumentError: If an argument is out of range, or a sampler is given.
    """

    def __init__(
        self,
        *,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | Callable[[], Storage] | None = None,
        reduction: str = "max",
        sampler_device: torch.device | str | None = None,
        sync: bool = True,
        **kwargs: Any,
    ) -> None:
        if "sampler" in kwargs:
            raise InvalidArgumentError(
                "sampler was passed to a prioritized buffer, which creates its own",
                hint="use ReplayBuffer(sampler=...)",
            )
        problems: list[str] = []
        built = build_component(storage, "get", problems)
        check(problems)
        sampler = PrioritizedSampler(
            built.max_size,
            alpha=alpha,
            beta=beta,
            eps=eps,
            dtype=dtype,
            reduction=reduction,
            device=sampler_device,
            sync=sync,
        )
        super().__init__(storage=built, sampler=sampler, **kwargs)

    @property
    def prioritized_sampler(self) -> PrioritizedSampler:
        """The sampler of the buffer, which has the priorities."""
        sampler = self.sampler
        if not isinstance(sampler, PrioritizedSampler):
            raise InvalidArgumentError(f"the sampler was replaced by {sampler!r}, which has no priorities")
        return sampler


class TensorDictPrioritizedReplayBuffer(PrioritizedReplayBuffer, TensorDictReplayBuffer):
    """Replay buffer of TensorDicts that samples in proportion to priorities: both of its base classes.

    >>> rb = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
    >>> rb.extend(data)
    >>> batch = rb.sample()                       # batch["priority_weight"]: multiply the loss by this
    >>> batch["td_error"] = ...
    >>> rb.update_tensordict_priority(batch)
    """
