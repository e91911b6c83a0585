"""Where steps are held, a storage a file."""

from datasets_rl.storages._base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.selection import SelectedRows
from datasets_rl.storages.trajectories import PaddedTrajectories

__all__ = ["DatasetStorage", "PaddedTrajectories", "SelectedRows", "Storage"]
