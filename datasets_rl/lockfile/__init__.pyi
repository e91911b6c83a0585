from .lock import Lock as Lock
from .lock import LockedDataset as LockedDataset
from .syncing import Synced as Synced
from .syncing import sync as sync
from .write import Written as Written
from .write import write_lock as write_lock
