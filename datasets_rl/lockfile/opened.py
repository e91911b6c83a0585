"""Datasets that a program opens under a lock: made if they are missing, and refused if they have other content."""

from __future__ import annotations

from pathlib import Path

from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.format.manifest import Manifest
from datasets_rl.lockfile.compare import require_locked
from datasets_rl.lockfile.lock import Lock, LockedDataset, default_path
from datasets_rl.lockfile.syncing import Syncing
from datasets_rl.settings import Settings


def lock_of(lock: Path | str | bool | None, settings: Settings) -> Lock:
    """Return the lock under which datasets are opened.

    Args:
        lock: A file, or True or None for the setting ``lock`` or the lock of the project.
        settings: The settings.

    Raises:
        InvalidArgumentError: If the file cannot be read.
    """
    return Lock.read(default_path(settings) if lock is None or isinstance(lock, bool) else lock)


def find_locked(lock: Lock, dataset: str | Path, *, make: bool, settings: Settings) -> LockedDataset:
    """Return a dataset of a lock, after it was made if nothing is stored under its name.

    Args:
        lock: The lock.
        dataset: The id or the folder of the dataset.
        make: Whether a missing dataset is made.
        settings: The settings.

    Raises:
        OutdatedLockError: If the lock does not have the dataset.
        LockMismatchError, NotADatasetError, FetchError: As for `sync`.
    """
    locked = lock.find(dataset, settings=settings)
    syncing = Syncing(lock, settings)
    if make and not syncing.is_stored(locked):
        syncing.make(locked)
    return locked


def check_opened(lock: Lock, locked: LockedDataset, manifest: Manifest) -> None:
    """Check that an opened dataset has the locked content.

    Raises:
        LockMismatchError: If not. The error names the differences.
    """
    hint = Remedy(
        "{} makes the locked dataset, {} locks the present dataset", Call("lockfile.sync"), Call("lockfile.write_lock")
    )
    require_locked(locked, manifest, f"{manifest.id} under the lock {lock.path}", hint=hint)


def refuse_other_reading(lock: Lock, dataset: str | Path, argument: str, what: str) -> InvalidArgumentError:
    """Return the error of an argument of `load` with which a dataset cannot be compared with a lock."""
    return InvalidArgumentError(
        f"{dataset} is opened under the lock {lock.path}, and {argument} {what}",
        hint=f"leave out {argument}, or open the dataset without a lock: lock=False",
    )
