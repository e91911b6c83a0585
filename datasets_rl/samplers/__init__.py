"""Which steps come next, a sampler a file."""

from datasets_rl.samplers._base import Sampler
from datasets_rl.samplers.random import RandomSampler

__all__ = ["RandomSampler", "Sampler"]
