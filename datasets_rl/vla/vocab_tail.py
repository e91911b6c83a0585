"""Action tokenizer with the last tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.vla.action_tokenizer import ActionTokenizerBase

_EPSILON = 1e-8  # as in OpenVLA, which adds this number to the range of the statistics


class VocabTailActionTokenizer(ActionTokenizerBase):
    """Action tokenizer of OpenVLA (arXiv:2406.09246), with the last tokens of a vocabulary.

    The bins have `num_bins` edges at equal distances in [-1, 1]:

        action  -1 ........................................ 1
        edge     0      1      2            num_bins - 1       the first edge above the action is edge d
        token    size - d                                      size: `num_bins`, or `full_vocab_size`

    The decoded action is the center between edges d - 1 and d, of which there are `num_bins` - 1.

    With statistics, `encode` maps actions from [norm_low, norm_high] to [-1, 1], and `decode` maps back, elements
    outside of the mask excepted: ``0.5 * (a + 1) * (norm_high - norm_low + 1e-8) + norm_low``. As in OpenVLA, this is
    computed in float64 on the CPU.

        >>> VocabTailActionTokenizer(256).encode(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([255, 128,   0])

    Args:
        num_bins: Number of edges, at least 2.
        full_vocab_size: Number of tokens of the vocabulary, to get the tokens of the model. By default, tokens are
            numbered from the first token for actions, [0, num_bins).
        norm_low: Lower statistic of each element of an action (in OpenVLA the 1st percentile), [action_dim].
        norm_high: Upper statistic (in OpenVLA the 99th percentile), [action_dim].
        norm_mask: Which elements the statistics apply to, bool [action_dim], all by default. The element of a gripper
            is usually left out.
        gripper_binarize: Whether `decode` replaces elements outside of the mask by 1 above a threshold, and by -1
            otherwise.
        gripper_binarize_threshold: The threshold.
        gripper_invert: Whether `decode` changes the sign of elements outside of the mask.

    Raises:
        InvalidArgumentError: If a number is too small, or a statistic is given alone.
    """

    bins: Tensor
    bin_centers: Tensor
    norm_low: Tensor | None
    norm_high: Tensor | None
    norm_mask: Tensor | None

    def __init__(
        self,
        num_bins: int = 256,
        *,
        full_vocab_size: int | None = None,
        norm_low: Any = None,
        norm_high: Any = None,
        norm_mask: Any = None,
        gripper_binarize: bool = False,
        gripper_binarize_threshold: float = 0.0,
        gripper_invert: bool = False,
    ) -> None:
        super().__init__()
        if num_bins < 2:
            raise InvalidArgumentError(f"num_bins is {num_bins}, expected at least 2")
        if full_vocab_size is not None and full_vocab_size < num_bins:
            raise InvalidArgumentError(f"full_vocab_size is {full_vocab_size}, expected at least num_bins, {num_bins}")
        if (norm_low is None) != (norm_high is None):
            raise InvalidArgumentError("norm_low or norm_high is given alone, expected both")
        self.num_bins = int(num_bins)
        self.full_vocab_size = None if full_vocab_size is None else int(full_vocab_size)
        self.gripper_binarize = bool(gripper_binarize)
        self.gripper_binarize_threshold = float(gripper_binarize_threshold)
        self.gripper_invert = bool(gripper_invert)
        bins = torch.linspace(-1.0, 1.0, self.num_bins)
        self.register_buffer("bins", bins)
        self.register_buffer("bin_centers", (bins[:-1] + bins[1:]) / 2)
        low, high = (None if bound is None else torch.as_tensor(bound).double() for bound in (norm_low, norm_high))
        if low is not None and norm_mask is None:
            norm_mask = torch.ones_like(low, dtype=torch.bool)
        self.register_buffer("norm_low", low)
        self.register_buffer("norm_high", high)
        self.register_buffer("norm_mask", None if low is None else torch.as_tensor(norm_mask, dtype=torch.bool))

    @property
    @override
    def vocab_size(self) -> int:
        return self.num_bins if self.full_vocab_size is None else self.full_vocab_size

    @override
    def encode(self, actions: Tensor) -> Tensor:
        if self.norm_low is not None and self.norm_high is not None and self.norm_mask is not None:
            low, high = (bound.to(actions.device, actions.dtype) for bound in (self.norm_low, self.norm_high))
            normalized = 2 * (actions - low) / (high - low + _EPSILON) - 1
            actions = torch.where(self.norm_mask.to(actions.device), normalized, actions)
        edges = torch.bucketize(actions.clamp(-1, 1), self.bins.to(actions.device), right=True)
        return self.vocab_size - edges

    @override
    def decode(self, tokens: Tensor) -> Tensor:
        places = (self.vocab_size - tokens - 1).clamp(0, self.num_bins - 2)
        if self.norm_low is None or self.norm_high is None or self.norm_mask is None:
            return self.bin_centers.to(tokens.device)[places]
        low, high, mask = self.norm_low.cpu(), self.norm_high.cpu(), self.norm_mask.cpu()
        edges = torch.from_numpy(np.linspace(-1.0, 1.0, self.num_bins))
        centers = ((edges[:-1] + edges[1:]) / 2)[places.cpu()]
        gripper = centers
        if self.gripper_binarize:
            gripper = (gripper > self.gripper_binarize_threshold).double() * 2 - 1
        if self.gripper_invert:
            gripper = -gripper
        actions = torch.where(mask, 0.5 * (centers + 1) * (high - low + _EPSILON) + low, gripper)
        return actions.to(self.bin_centers.dtype).to(tokens.device)

    @classmethod
    def from_norm_stats(cls, norm_stats: Mapping[str, Any], unnorm_key: str, **options: Any) -> Self:
        """Return a tokenizer with the statistics of a checkpoint of OpenVLA.

        Args:
            norm_stats: Statistics by dataset: ``{name: {"action": {"q01": [...], "q99": [...], "mask": [...]}}}``.
            unnorm_key: Name of the dataset.
            **options: Other arguments of the class.

        Raises:
            UnknownKeyError: If the statistics lack the dataset.
        """
        if unnorm_key not in norm_stats:
            error = UnknownKeyError(unnorm_key, sorted(norm_stats))
            error.message = f"unnorm_key: {error.message}"
            raise error
        action = norm_stats[unnorm_key]["action"]
        return cls(norm_low=action["q01"], norm_high=action["q99"], norm_mask=action.get("mask"), **options)
