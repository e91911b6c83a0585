"""Which slot a new step takes, a writer a file."""

from datasets_rl.writers._base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter

__all__ = ["ImmutableDatasetWriter", "Writer"]
