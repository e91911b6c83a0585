"""Samplers: choices of the steps of a batch. A module per sampler."""

from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.consuming import ConsumingSampler
from datasets_rl.samplers.ensemble import SamplerEnsemble
from datasets_rl.samplers.episodes import EpisodeSampler, EpisodeSliceSampler
from datasets_rl.samplers.goals import GoalSampler
from datasets_rl.samplers.mixture import MixtureSampler
from datasets_rl.samplers.prioritized import PrioritizedSampler
from datasets_rl.samplers.prioritized_slices import PrioritizedSliceSampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.samplers.slices import SliceSampler
from datasets_rl.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from datasets_rl.samplers.windows import WindowSampler
from datasets_rl.samplers.without_replacement import SamplerWithoutReplacement

__all__ = [
    "ConsumingSampler",
    "EpisodeSampler",
    "EpisodeSliceSampler",
    "GoalSampler",
    "MixtureSampler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "WindowSampler",
]
