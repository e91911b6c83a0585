"""Action tokenizer with bins of equal width."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.vla.action_tokenizer import ActionTokenizerBase
from datasets_rl.vla.metadata import RobotDatasetMetadata


class UniformActionTokenizer(ActionTokenizerBase):
    """Action tokenizer with bins of equal width between two bounds, as in RT-2 (arXiv:2307.15818).

    The token is the number of the bin, and the decoded action its center. Actions out of bounds get the first or the
    last bin. For all others, the error of a round trip is at most half a bin.

        >>> tokenizer = UniformActionTokenizer(256, low=-1.0, high=1.0)
        >>> tokenizer.encode(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([  0, 128, 255])

    Args:
        num_bins: Number of bins of each element of an action.
        low: Lower bound: a number, or a number for each element, [action_dim].
        high: Upper bound, of the same shape.
        action_dim: Number of elements of an action, to which bounds that are single numbers are expanded.

    Raises:
        InvalidArgumentError: If `num_bins` is below 1, the bounds have different shapes, or no number is between the
            bounds.
    """

    low: Tensor
    high: Tensor

    def __init__(self, num_bins: int, *, low: Any, high: Any, action_dim: int | None = None) -> None:
        super().__init__()
        if num_bins < 1:
            raise InvalidArgumentError(f"num_bins is {num_bins}, expected at least 1")
        bounds = [torch.as_tensor(bound, dtype=torch.float32) for bound in (low, high)]
        if action_dim is not None:
            bounds = [bound.repeat(action_dim) if not bound.ndim else bound for bound in bounds]
        if bounds[0].shape != bounds[1].shape:
            shapes = " and ".join(str(list(bound.shape)) for bound in bounds)
            raise InvalidArgumentError(f"low and high have the shapes {shapes}, expected the same shape")
        if not bool((bounds[1] > bounds[0]).all()):
            raise InvalidArgumentError(
                f"low is {bounds[0].tolist()} and high is {bounds[1].tolist()}, expected high to be strictly greater"
            )
        self.num_bins = int(num_bins)
        self.register_buffer("low", bounds[0])
        self.register_buffer("high", bounds[1])

    @property
    @override
    def vocab_size(self) -> int:
        return self.num_bins

    @property
    def action_dim(self) -> int | None:
        """Number of elements of an action, or None if the bounds are single numbers."""
        return self.low.shape[-1] if self.low.ndim else None

    @override
    def encode(self, actions: Tensor) -> Tensor:
        bins = ((actions - self.low) / (self.high - self.low) * self.num_bins).floor().long()
        return bins.clamp_(0, self.num_bins - 1)

    @override
    def decode(self, tokens: Tensor) -> Tensor:
        return self.low + (tokens.to(self.low.dtype) + 0.5) / self.num_bins * (self.high - self.low)

    @classmethod
    def from_metadata(cls, metadata: RobotDatasetMetadata, num_bins: int) -> Self:
        """Return a tokenizer with the bounds of the actions of a dataset.

        Raises:
            InvalidArgumentError: If the metadata has no bounds.
        """
        if metadata.action_low is None or metadata.action_high is None:
            raise InvalidArgumentError(
                f"the metadata of {metadata.dataset_id!r} has no action bounds", hint="set action_low and action_high"
            )
        return cls(num_bins, low=metadata.action_low, high=metadata.action_high)
