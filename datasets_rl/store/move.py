"""Moving the folder of all datasets to another place, so that a process killed at any moment loses nothing.

    copy      every file that the copy beside the target lacks is copied and compared; equal ones are skipped
    publish   the copy is renamed to the target
    switch    a link to the target takes the place of the old folder
    remove    files written to the old folder since the copy are copied, too, and the old folder is deleted

Each step can be repeated. The old folder is whole until the link has taken its place. A file in the copy, which is
deleted last, has the old place, so that the same command continues. Scripts, variables and settings that name the old
place keep working.
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
from datasets_rl.store.locating import dataset_places, source_folders

_BLOCK = 1 << 20
_MARKER = ".rlds-move"


@dataclass(frozen=True)
class Move:
    """The move of a folder."""

    source: Path
    """The old place, which has a link afterwards."""
    target: Path
    bytes: int
    """The bytes of all files."""
    free: int
    """Free bytes of the file system of the target."""

    @property
    def copy(self) -> Path:
        """The folder of the copy until it is complete."""
        return _copy_folder(self.target)

    @property
    def is_published(self) -> bool:
        """Whether the copy has its final name: it was complete then."""
        return _is_published(self.target)

    @property
    def former(self) -> Path:
        """The old folder after the link has taken its place; before that, the link."""
        return self.source.with_name(f".{self.source.name}.rlds-moved")


def plan_move(home: Path, target: Path) -> Move | None:
    """Return the move of a folder that `move` would make or continue; None if the folder is at the target already.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        IntegrityError: If the target has the marker of another move.
    """
    target = target.expanduser().absolute()
    if not target.name:
        raise InvalidArgumentError(f"{target} is the root of a file system", hint="choose a folder in it")
    started = _read_marker(home, target)
    source = home.resolve() if started is None else started
    if started is None:
        if source == target.resolve() and not target.is_symlink():
            return None
        _check_places(source, target)
    present = target if source.is_symlink() or not source.is_dir() else source
    return Move(source, target, disk.tree_bytes(present), disk.free_bytes(target.parent))


def _copy_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}{_MARKER}")


def _is_published(target: Path) -> bool:
    return target.is_dir() and not target.is_symlink() and os.path.lexists(target / _MARKER)


def _read_marker(home: Path, target: Path) -> Path | None:
    """Return the old place of a move that was begun; None if none was.

    Raises:
        IntegrityError: If there is what no move of this folder left: others may write beside the target.
    """
    folder = target if _is_published(target) else _copy_folder(target)
    marker = folder / _MARKER
    try:
        disk.check_kind(folder, folder=True)
        source = Path(disk.read_plain(marker).decode())
        if source == home.absolute() or source.resolve() in {home.resolve(), target.resolve()}:
            return source
    except FileNotFoundError:
        if not os.path.lexists(folder) or _is_empty(folder):
            return None
    except ValueError:  # it is not the path of a file
        pass
    raise IntegrityError(
        str(folder),
        [f"it is not the copy of {home} that a move began"],
        hint=f"see what {folder} is, and move or delete it",
    )


def _check_places(source: Path, target: Path) -> None:
    resolved = target.resolve()
    problem = ""
    if not source.is_dir():
        problem = f"{source} is not a folder: there is nothing to move"
    elif resolved in source.parents or source in resolved.parents:
        problem = f"{target} and {source} are inside each other"
    elif source.is_mount():
        problem = f"{source} is the root of a file system, whose place a link cannot take"
    elif target.is_mount() and not target.is_symlink():
        problem = f"{target} is the root of a file system; expected a new folder, such as {target / source.name}"
    elif resolved != source and (target.is_symlink() or (target.exists() and not _is_empty(target))):
        problem = f"{target} exists already; expected a new folder"
    if problem:
        raise InvalidArgumentError(problem, hint="choose another folder")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


def move(home: Path, target: Path, *, advance: Callable[[int], None] = lambda _: None) -> Move | None:
    """Move the folder of all datasets, or continue a move that was interrupted.

    Args:
        home: The folder.
        target: Its new place, on any file system.
        advance: Called with the number of bytes that were copied.

    Returns:
        The move; None if the folder is there already.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        DiskFullError: If the file system of the target has not enough space.
        LockedError: If another process is changing a dataset; nothing is moved then.
        IntegrityError: If the copy of a file differs from the file.
    """
    plan = plan_move(home, target)
    if plan is None:
        return None
    plan.target.parent.mkdir(parents=True, exist_ok=True)
    lock = plan.copy.with_name(f"{plan.copy.name}.lock")
    with disk.lock(lock, str(plan.target), wait=0), disk.disk_errors(plan.target):
        if not plan.is_published:
            _copy_and_publish(plan, advance)
        if plan.copy.is_symlink():  # the link that was at the target
            plan.copy.unlink()
        _switch(plan)
        if plan.former.is_dir() and not plan.former.is_symlink():
            _copy_newer(plan.former, plan.target)
        disk.remove_tree(plan.former)
        (plan.target / _MARKER).unlink()
        disk.sync_file(plan.target)
    return plan


def _copy_and_publish(plan: Move, advance: Callable[[int], None]) -> None:
    check_unused(plan.source)
    if not _same_device(plan.source, plan.target.parent):
        copied = disk.tree_bytes(plan.copy) if plan.copy.exists() else 0
        disk.require_free(plan.target.parent, plan.bytes - copied, "the copy of all datasets")
    plan.copy.mkdir(exist_ok=True)
    disk.write_text(plan.copy / _MARKER, str(plan.source))
    _mirror(plan.source, plan.copy, advance)
    # A second pass costs little, and copies what changed during the first one.
    _mirror(plan.source, plan.copy, advance)
    check_unused(plan.source)
    if plan.target.is_symlink():  # it leads to the source, which moves back
        if disk.exchange_folders(plan.copy, plan.target):
            return
        plan.target.unlink()
    elif plan.target.is_dir():
        plan.target.rmdir()
    disk.move_path(plan.copy, plan.target)


def _switch(plan: Move) -> None:
    """Put a link at the old place."""
    source, former = plan.source, plan.former
    if source.is_symlink():
        return
    if former.is_symlink():
        former.unlink()
    if source.is_dir():
        former.symlink_to(plan.target, target_is_directory=True)
        if disk.exchange_folders(former, source):
            return
        former.unlink()
        disk.move_path(source, former)
    source.symlink_to(plan.target, target_is_directory=True)
    disk.sync_file(source.parent)


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


def _mirror(source: Path, copy: Path, advance: Callable[[int], None]) -> None:
    """Make a folder equal to another one; files of the same size and time are equal."""
    disk.check_kind(copy, folder=True)
    # What the source does not have goes first: a link in the place of a folder would lead out of the copy.
    wanted = {name for _, name in _files(source)} | {_MARKER}
    for path, name in list(_files(copy)):
        if name not in wanted:
            disk.remove_tree(path)
    for path, name in _files(source):
        with suppress(FileNotFoundError):  # deleted since it was listed
            if not _is_same(path, copy / name):
                disk.remove_tree(copy / name)
                _copy(path, copy / name, advance)
    for folder in sorted((path for path in copy.rglob("*") if path.is_dir() and not path.is_symlink()), reverse=True):
        disk.sync_file(folder)
    disk.sync_file(copy)


def _copy_newer(former: Path, target: Path) -> None:
    """Copy what a process wrote into the old folder last; other files may have been deleted in the new place since."""
    for path, name in _files(former):
        present = (target / name).lstat() if os.path.lexists(target / name) else None
        if present is None or present.st_mtime_ns < path.lstat().st_mtime_ns:
            _copy(path, target / name, lambda _: None)


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
    return path.is_dir() or (status.st_size, status.st_mtime_ns) == (present.st_size, present.st_mtime_ns)


def _copy(path: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy a file, a link or an empty folder; a file appears under its name when it is complete and compared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        to = path.readlink()
        if not to.is_absolute() and ".." in to.parts:  # it leads out of the folder
            to = Path(os.path.normpath(path.parent / to))
        target.unlink(missing_ok=True)
        target.symlink_to(to)
    elif path.is_dir():
        target.mkdir(exist_ok=True)
    elif path.is_file() and not _is_linked(path, target):
        temporary = target.with_name(f".{target.name}.copy")
        disk.remove_tree(temporary)
        written = _digest_of_copy(path, temporary, advance)
        if _digest(temporary) != written:
            raise IntegrityError(str(target), ["the copy, read back, differs from the bytes that were written"])
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
