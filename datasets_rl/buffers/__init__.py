"""Replay buffers, composed of a storage, a sampler, a writer and transforms."""

from datasets_rl.buffers.conditional import ConditionalUpdateResult
from datasets_rl.buffers.ensemble import ReplayBufferEnsemble
from datasets_rl.buffers.hindsight import HERReplayBuffer, HindsightStrategy
from datasets_rl.buffers.loader import SampledBatches
from datasets_rl.buffers.mixture import Mixture
from datasets_rl.buffers.prioritized import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.sample_units import SampleUnit, Sequence, Transition
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer

__all__ = [
    "ConditionalUpdateResult",
    "HERReplayBuffer",
    "HindsightStrategy",
    "Mixture",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "SampleUnit",
    "SampledBatches",
    "Sequence",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "Transition",
]
