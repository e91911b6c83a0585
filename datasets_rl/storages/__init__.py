"""Storages: containers for the steps of a replay buffer, a module per storage."""

from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.ensemble import StorageEnsemble
from datasets_rl.storages.lazy import LazyTensorStorage
from datasets_rl.storages.lazy_stack import LazyStackStorage
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.memmap import LazyMemmapStorage
from datasets_rl.storages.tensor import TensorStorage
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View

__all__ = [
    "DatasetStorage",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "PaddedTrajectories",
    "Storage",
    "StorageEnsemble",
    "TensorStorage",
    "View",
]
