"""The format on disk (FORMAT.md): writer, reader, verification."""

from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.writer import DatasetWriter, Written

__all__ = ["DatasetWriter", "StoredDataset", "Written"]
