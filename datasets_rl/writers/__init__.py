"""Writers, which choose the slots for new steps. Each writer has a module."""

from datasets_rl.writers.base import Writer
from datasets_rl.writers.ensemble import WriterEnsemble
from datasets_rl.writers.immutable import ImmutableDatasetWriter
from datasets_rl.writers.max_value import TensorDictMaxValueWriter
from datasets_rl.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "Writer",
    "WriterEnsemble",
]
