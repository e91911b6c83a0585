"""Where steps are held, a storage a file."""

from datasets_rl.storages._base import Storage
from datasets_rl.storages.dataset import DatasetStorage

__all__ = ["DatasetStorage", "Storage"]
