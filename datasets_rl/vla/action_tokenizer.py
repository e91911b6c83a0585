"""Base class of action tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class ActionTokenizerBase(nn.Module, ABC):
    """Base class of action tokenizers, which map each element of an action to a token and back.

    A model of language predicts the tokens. The shape of the actions is arbitrary. Bounds and statistics apply to
    the last axis: [*B, action_dim] for single steps, [*B, T, chunk, action_dim] for chunks of actions.
    """

    @abstractmethod
    def encode(self, actions: Tensor) -> Tensor:
        """Map actions, floats [..., action_dim], to tokens, int64 [..., action_dim]."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """Map tokens, int64 [..., action_dim], to actions, float32 [..., action_dim]."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of different tokens."""
