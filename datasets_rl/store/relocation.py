"""Moving the folder of all datasets to another place, so that a process killed at any moment loses nothing.

    copy             every file goes to <parent of target>/.<name>.rlds-move, is read back, and is compared
    check            no process is changing a dataset
    publish          the copy is renamed to the target
    switch           a link to the target takes the place of the old folder, by an exchange of the two names
    catch up         files that another process wrote to the old folder during the copy are copied
    remove           the old folder is deleted, and then the record of the move

The old folder stays whole until the link has taken its place. Which of these steps are done is seen from the folders
themselves; the record beside the target has the old place and the time of the last comparison. A link stays at the old
place, so that scripts, variables and settings that name it keep working.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from datasets_rl import disk
from datasets_rl.disk import RECORDED_FOLDER, WORK_FOLDER
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError

_BLOCK = 1 << 20
_SLACK = 2.0
"""Seconds by which the clock of a file system may differ from that of the process."""


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
    def record(self) -> Path:
        """The record of a move that is not finished."""
        return self.target.with_name(f".{self.target.name}.rlds-move.json")

    @property
    def copy(self) -> Path:
        """The folder of the copy until it is complete."""
        return self.target.with_name(f".{self.target.name}.rlds-move")

    @property
    def former(self) -> Path:
        """The old folder after the link has taken its place; before that, the link."""
        return self.source.with_name(f".{self.source.name}.rlds-moved")


def plan_move(home: Path, target: Path) -> Move | None:
    """Return the move of a folder that `move` would make or continue; None if the folder is at the target already.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        IntegrityError: If beside the target there is the record of the move of another folder, or what no move left.
    """
    target = target.expanduser().absolute()
    if not target.name:
        raise InvalidArgumentError(f"{target} is the root of a file system", hint="choose a folder in it")
    started = _read_record(home, target)
    source = home.resolve() if started is None else started[0]
    if started is None:
        if source == target.resolve() and not target.is_symlink():
            return None
        _check_places(source, target)
    present = source if source.is_dir() else target
    return Move(source, target, disk.tree_bytes(present), disk.free_bytes(target.parent))


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
    target = target.expanduser().absolute()
    lock = target.with_name(f".{target.name}.rlds-move.lock")
    if plan is None:
        if next(target.parent.glob(f"{glob.escape(lock.name)}*"), None):  # of a process that was killed at the end
            with disk.lock(lock, str(target), wait=0):
                return None
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with disk.lock(lock, str(target), wait=0), disk.disk_errors(target):
        if _read_record(home, plan.target) is None:
            _check_unused(plan.source)
            _require_space(plan)
            disk.write_json(plan.record, {"from": str(plan.source), "compared": 0.0})
        if not _is_published(plan):
            _copy_and_publish(plan, advance)
        if plan.copy.is_symlink():  # the link that was at the target
            plan.copy.unlink()
        _switch(plan)
        _catch_up(home, plan)
        if plan.former.is_dir() and not plan.former.is_symlink():
            disk.remove_tree(plan.former)
        plan.record.unlink(missing_ok=True)
    return plan


def _read_record(home: Path, target: Path) -> tuple[Path, float] | None:
    """Return the old place and the time of the last comparison of a move that was begun; None if none was.

    Others may write beside the target, so that a record counts only if it is of this folder.

    Raises:
        IntegrityError: If the record is of another folder, or not a record.
    """
    record = target.with_name(f".{target.name}.rlds-move.json")
    copy = target.with_name(f".{target.name}.rlds-move")
    try:
        document = json.loads(disk.read_plain(record))
        source, compared = Path(document["from"]), float(document["compared"])
    except FileNotFoundError:
        if os.path.lexists(copy):
            raise _foreign_error(copy, "no move is recorded") from None
        return None
    except (OSError, ValueError, LookupError, RecursionError, TypeError):
        raise _foreign_error(record, "it is not the record of a move") from None
    if not _is_place(source, home, target):
        raise _foreign_error(record, f"it records the move of {source}, and not of {home}")
    return source, compared


def _foreign_error(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(str(path), [problem], hint=f"see what {path} is, and move or delete it")


def _is_place(source: Path, home: Path, target: Path) -> bool:
    """Return whether a recorded old place is one of this move: its links lead there, or all of it is at the target."""
    place = home.absolute().parent.resolve() / home.name
    seen: set[Path] = set()
    while place not in seen:
        seen.add(place)
        if place.is_symlink():
            place = Path(os.path.normpath(place.parent / place.readlink()))
            place = place.parent.resolve() / place.name
    if source in seen or (source.is_symlink() and source.resolve() == target.resolve()):
        return True
    # After a move back to the place of a link, the folder that the link led to is known from the record alone.
    files = [(path, name) for path, name in _files(source) if not path.is_symlink()]
    return bool(files) and not target.is_symlink() and all(_is_same(path, target / name) for path, name in files)


def _require_space(plan: Move) -> None:
    if not _same_device(plan.source, plan.target.parent):
        copied = disk.tree_bytes(plan.copy) if plan.copy.exists() else 0
        disk.require_free(plan.target.parent, plan.bytes - copied, "the copy of all datasets")


def _is_published(plan: Move) -> bool:
    """Return whether the copy has its final name: it was complete then."""
    is_folder = plan.target.is_dir() and not plan.target.is_symlink()
    is_copying = plan.copy.is_dir() and not plan.copy.is_symlink()
    return not is_copying and is_folder and (plan.source.is_symlink() or not _is_empty(plan.target))


def _copy_and_publish(plan: Move, advance: Callable[[int], None]) -> None:
    _mirror(plan.source, plan.copy, advance)
    # A second pass costs little, and copies files that changed during the first one.
    compared = time.time()
    _mirror(plan.source, plan.copy, advance)
    _check_unused(plan.source)
    disk.write_json(plan.record, {"from": str(plan.source), "compared": compared})
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


def _catch_up(home: Path, plan: Move) -> None:
    """Copy files of the old folder that changed after the last comparison.

    Other files are left alone: they may have been deleted in the new place since.
    """
    started = _read_record(home, plan.target)
    if started is None or not plan.former.is_dir() or plan.former.is_symlink():
        return
    for path, name in _files(plan.former):
        status, copy = path.lstat(), plan.target / name
        present = copy.lstat() if os.path.lexists(copy) else None
        is_newer = present is None or present.st_mtime_ns < status.st_mtime_ns
        if status.st_ctime >= started[1] - _SLACK and is_newer:
            copy.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path, copy, lambda _: None)


def _check_unused(home: Path) -> None:
    """Check that no process is changing a dataset below a folder.

    Raises:
        LockedError: If one is.
    """
    for root in (path for path in home.iterdir() if path.is_dir()):
        for folder in (root / WORK_FOLDER, *(root / RECORDED_FOLDER).glob("*/")):
            if held := disk.free_owner_files(folder):
                raise LockedError(str(home), f"the process that owns {held[0].stem}", held[0])


def _mirror(source: Path, copy: Path, advance: Callable[[int], None]) -> None:
    """Make a folder equal to another one; files of the same size and time are equal."""
    disk.check_kind(copy, folder=True)
    copy.mkdir(parents=True, exist_ok=True)
    # What the source does not have goes first: a link in the place of a folder would lead out of the copy.
    wanted = {name for _, name in _files(source)}
    for path, name in list(_files(copy)):
        if name not in wanted:
            disk.remove_tree(path)
    for path, name in _files(source):
        target = copy / name
        with suppress(FileNotFoundError):  # deleted since it was listed
            if _is_same(path, target):
                continue
            disk.remove_tree(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path, target, advance)
    for folder in sorted((path for path in copy.rglob("*") if path.is_dir() and not path.is_symlink()), reverse=True):
        disk.sync_file(folder)
    disk.sync_file(copy)


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


def _copy_file(path: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy a file, a link or an empty folder; a file appears under its name when it is complete and compared."""
    if path.is_symlink():
        _copy_link(path, target)
        return
    if path.is_dir():
        target.mkdir(exist_ok=True)
        return
    size = path.lstat().st_size
    if stat.S_ISREG(path.lstat().st_mode) and not _is_linked(path, target):
        temporary = target.with_name(f".{target.name}.copy")
        disk.remove_tree(temporary)
        written = _digest_of_copy(path, temporary, advance)
        if _digest(temporary) != written:
            raise IntegrityError(str(target), ["it does not read back as it was written"])
        shutil.copystat(path, temporary)
        os.replace(temporary, target)
    else:
        advance(size)


def _copy_link(path: Path, target: Path) -> None:
    """Copy a link; one that leads out of the folder by a relative path gets an absolute one."""
    to = path.readlink()
    if not to.is_absolute() and ".." in to.parts:
        to = Path(os.path.normpath(path.parent / to))
    with suppress(FileNotFoundError):
        target.unlink()
    target.symlink_to(to)


def _is_linked(path: Path, target: Path) -> bool:
    """Give a file a second name, where the file system can; the data need not be copied then."""
    if not _same_device(path, target.parent):
        return False
    try:
        with suppress(FileNotFoundError):
            target.unlink()
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
