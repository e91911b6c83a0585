"""The move of the data folder: a copy that can be repeated, a change of the setting, and the deletion of the old files.

    copy what differs  ->  the setting names the new place  ->  delete what the new place has, too

A process that is killed leaves every file at one of the places at least, and the same command continues. Where the
setting is not the user's file, but a variable or an option, only the user can change it: the old files stay until the
same command runs with the new place as the home.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from datasets_rl import disk
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError
from datasets_rl.store.find import dataset_places, source_folders

_BLOCK = 1 << 20
_MARKER = ".rlds-moved-from"
"""The file at the new place with the path of the old one, until that is deleted."""


@dataclass(frozen=True)
class Move:
    """The move of a folder."""

    source: Path
    """The old place."""
    target: Path
    bytes: int
    """The bytes of all files at the old place."""
    free: int
    """Free bytes of the file system of the target."""
    is_switched: bool
    """Whether the target is the home already, so that only the old files are left to delete."""


def plan_move(home: Path, target: Path) -> Move | None:
    """Return the move of a folder that `move` would make or continue; None if nothing is left to do.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        IntegrityError: If the file at the target with the old place is none of ours.
    """
    target = target.expanduser().absolute()
    source = _read_marker(target)
    is_switched = home.resolve() == target.resolve()
    if is_switched and source is None:
        return None
    if not is_switched:
        _check_places(home.resolve(), target, started=source == home.resolve())
        source = home.resolve()
    if source is None or source == target.resolve():
        return None
    size = disk.tree_bytes(source) if source.is_dir() else 0
    return Move(source, target, size, disk.free_bytes(target), is_switched)


def _read_marker(target: Path) -> Path | None:
    marker = target / _MARKER
    try:
        return Path(disk.read_plain(marker).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # it is not the path of a file
        raise IntegrityError(
            str(marker), ["it holds no path of a folder"], hint=f"see what {marker} is, and delete it"
        ) from None


def _check_places(source: Path, target: Path, *, started: bool) -> None:
    resolved = target.resolve()
    problem = ""
    if not source.is_dir():
        problem = f"{source} is not a folder: there is nothing to move"
    elif resolved in source.parents or source in resolved.parents:
        problem = f"{target} and {source} are inside each other"
    elif os.path.lexists(target) and not started and (target.is_symlink() or not _is_empty(target)):
        problem = f"{target} exists already; expected a new folder"
    if problem:
        raise InvalidArgumentError(problem, hint="choose another folder")


def _is_empty(folder: Path) -> bool:
    """Return whether a folder has nothing but the marker that a killed move was writing."""
    return folder.is_dir() and all(path.name.startswith(f".{_MARKER}@") for path in folder.iterdir())


def move(
    home: Path, target: Path, *, switch: Callable[[Path], bool], advance: Callable[[int], None] = lambda _: None
) -> Move | None:
    """Move the folder of all datasets, or continue a move that was interrupted.

    Args:
        home: The folder.
        target: Its new place, on any file system.
        switch: Changes the setting of the home to the new place, and returns whether it could. If not, the old files
            stay.
        advance: Called with the number of bytes that were copied.

    Returns:
        The move; None if the folder is there already.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        DiskFullError: If the file system of the target has not enough space.
        LockedError: If another process is changing a dataset; nothing is moved then.
        IntegrityError: If the copy of a file differs from the file, or a link is in its place.
    """
    plan = plan_move(home, target)
    if plan is None:
        return None
    plan.target.mkdir(parents=True, exist_ok=True)
    lock = plan.target.with_name(f".{plan.target.name}.lock")
    with disk.lock(lock, str(plan.target), wait=0), disk.disk_errors(plan.target):
        check_unused(plan.source)
        if not plan.is_switched:
            if not _same_device(plan.source, plan.target):
                disk.require_free(plan.target, plan.bytes - disk.tree_bytes(plan.target), "the copy of all datasets")
            disk.write_text(plan.target / _MARKER, str(plan.source))
            # A second pass costs little, and copies what changed during the first one.
            for _ in range(2):
                _copy_all(plan.source, plan.target, advance)
            check_unused(plan.source)
            if not switch(plan.target):
                return plan
            _copy_all(plan.source, plan.target, advance, only_newer=True)  # what was written last to the old place
        _delete_copied(plan.source, plan.target)
        (plan.target / _MARKER).unlink(missing_ok=True)
        disk.sync_file(plan.target)
    return plan


def check_unused(home: Path) -> None:
    """Check that no process is changing a dataset below a folder.

    Raises:
        LockedError: If one is.
    """
    for paths in (paths for root in source_folders(home) for paths in dataset_places(root)):
        for path in (*paths.entries(), *disk.plain_folders(paths.recorded, paths.folder)):
            if not disk.is_abandoned(path):
                raise LockedError(str(home), f"the process that works on {path}", path)
        if paths.lock.exists():
            with disk.lock(paths.lock, str(home), wait=0):
                pass


def _copy_all(source: Path, target: Path, advance: Callable[[int], None], *, only_newer: bool = False) -> None:
    """Copy every file that differs; those of the same size and time are equal.

    Args:
        source: The old place.
        target: The new place.
        advance: Called with the number of bytes that were copied.
        only_newer: Whether files of the new place that are not older stay.
    """
    folders = {target}
    for path, name in _files(source):
        copy = target / name
        with suppress(FileNotFoundError):  # deleted since it was listed
            if not _is_same(path, copy) and not (only_newer and _is_newer(copy, path)):
                _check_folders(target, copy)
                _copy(path, copy, advance)
                folders.update(parent for parent in copy.parents if target in parent.parents)
    for folder in sorted(folders, reverse=True):
        disk.sync_file(folder)


def _check_folders(target: Path, copy: Path) -> None:
    """Check that nothing on the way to a copy is a link, which would lead out of the target.

    Raises:
        IntegrityError: If there is one.
    """
    for folder in (folder for folder in reversed(copy.parents) if target in folder.parents):
        disk.check_kind(folder, folder=True)


def _delete_copied(source: Path, target: Path) -> None:
    """Delete what the new place has, too, and then the empty folders; other files stay."""
    for path, name in list(_files(source)):
        if _is_same(path, target / name):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
    for folder, _, _ in os.walk(source, topdown=False):
        with suppress(OSError):  # it is not empty, or the root of a file system
            Path(folder).rmdir()


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every file, link and empty folder below a folder, with its relative path."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in [*files, *links]:
            yield here / name, (here / name).relative_to(root).as_posix()
        if not files and not folders and here != root:
            yield here, here.relative_to(root).as_posix()


def _is_same(path: Path, copy: Path) -> bool:
    status = path.lstat()
    try:
        present = copy.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(present.st_mode):
        return False
    if stat.S_ISLNK(status.st_mode):
        return _link_target(path) == copy.readlink()
    return path.is_dir() or (status.st_size, status.st_mtime_ns) == (present.st_size, present.st_mtime_ns)


def _is_newer(path: Path, other: Path) -> bool:
    return os.path.lexists(path) and path.lstat().st_mtime_ns >= other.lstat().st_mtime_ns


def _link_target(path: Path) -> Path:
    to = path.readlink()
    if not to.is_absolute() and ".." in to.parts:  # it may lead out of the folder
        return Path(os.path.normpath(path.parent / to))
    return to


def _copy(path: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy a file, a link or an empty folder; a file appears under its name when it is complete and compared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(_link_target(path))
    elif path.is_dir():
        target.mkdir(exist_ok=True)
    elif path.is_file() and not _is_linked(path, target):
        temporary = target.with_name(f".{target.name}.copy")
        temporary.unlink(missing_ok=True)
        written = _digest_of_copy(path, temporary, advance)
        if _digest(temporary) != written:
            raise IntegrityError(str(target), ["it does not read back as it was written"])
        shutil.copystat(path, temporary)
        os.replace(temporary, target)
    else:
        advance(path.lstat().st_size)


def _is_linked(path: Path, target: Path) -> bool:
    """Give a file a second name, where the file system can; the data need not be copied then."""
    if not _same_device(path, target.parent):
        return False
    try:
        target.unlink(missing_ok=True)
        os.link(path, target)
    except OSError:
        return False
    return True


def _same_device(path: Path, folder: Path) -> bool:
    existing = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    return path.stat().st_dev == existing.stat().st_dev


def _digest_of_copy(path: Path, target: Path, advance: Callable[[int], None]) -> bytes:
    digest = hashlib.blake2b()
    with path.open("rb") as source, target.open("wb") as copy:
        while block := source.read(_BLOCK):
            digest.update(block)
            copy.write(block)
            advance(len(block))
        copy.flush()
        os.fsync(copy.fileno())
    return digest.digest()


def _digest(path: Path) -> bytes:
    digest = hashlib.blake2b()
    with path.open("rb") as stream:
        # The bytes are to come from the disk, and not from the memory of the system.
        with suppress(AttributeError, OSError):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.digest()
