"""Replay buffers: storage, sampler, writer and transforms put together."""

from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer

__all__ = ["ReplayBuffer", "TensorDictReplayBuffer"]
