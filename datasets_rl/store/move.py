"""The move of the data folder: a copy that can be repeated, a change of the setting, and the deletion of the old files.

    copy what differs  ->  the setting names the new place  ->  delete what the new place has, too

A process that is killed leaves every file at at least one place, and the same command continues. Where the
setting is not the user's file, but a variable or an option, only the user can change the setting: the old files stay
until the same command runs with the new place as the home.

What is not of a dataset stays, in the folder of a source, too: the data folder may be shared with other
projects, or be the home folder of the user. Files of a dataset are known by place, and not by name alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from datasets_rl import disk
from datasets_rl.disk import CURRENT_FILE, MANIFEST_FILE
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.store.find import dataset_places, source_folders
from datasets_rl.store.layout import MARK_FILE, STREAM_FOLDER, is_marked
from datasets_rl.store.versions import check_unused, prune_audits, prune_index

_BLOCK = 1 << 20
_MARKER = ".rlds-moved-from"
"""The file at the new place with the path of the old place, until the old place is deleted."""
_MAX_PATH_BYTES = 1 << 16


@dataclass(frozen=True)
class Move:
    """The move of a folder."""

    source: Path
    """The old place."""
    target: Path
    bytes: int
    """The bytes of all files to move."""
    free: int
    """Free bytes of the file system of the target."""
    is_switched: bool
    """Whether the target is the home already, so that only the old files are left to delete."""


def plan_move(home: Path, target: Path) -> Move | None:
    """Return the move of a folder that `move` would make or continue, or None if nothing is left to do.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        IntegrityError: If the file at the target with the old place was not written by this package.
    """
    target = disk.expand_home(target).absolute()
    home, place = home.resolve(), target.resolve()
    started_from = _read_marker(target)
    is_switched = home == place
    if not is_switched:
        _check_places(home, target, started=started_from == home)
    source = started_from if is_switched else home
    if source is None or source == place:
        return None
    size = sum(disk.tree_bytes(path) for path in _files(source) if not path.is_symlink())
    return Move(source, target, size, disk.free_bytes(target), is_switched)


def _read_marker(target: Path) -> Path | None:
    marker = target / _MARKER
    try:
        # The beginning of a file that is too long for a path is not a path either.
        return Path(disk.read_plain(marker, _MAX_PATH_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # not the path of a file
        raise IntegrityError(
            str(marker), ["the file holds no path of a folder"], hint=f"look at {marker}, and delete it"
        ) from None


def _check_places(source: Path, target: Path, *, started: bool) -> None:
    resolved = target.resolve()
    problem = ""
    if not source.is_dir():
        problem = f"{source} is not a folder: there is nothing to move"
    elif resolved in source.parents or source in resolved.parents:
        problem = f"{target} and {source} are inside each other"
    elif os.path.lexists(target) and not started and (target.is_symlink() or not _is_empty(target)):
        problem = f"{target} exists already, expected a new folder"
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
        target: The new place, on any file system.
        switch: Changes the setting of the home to the new place, and returns whether this succeeded. If not, the old
            files stay.
        advance: Called with the number of bytes that were copied.

    Returns:
        The move, or None if the folder is there already.

    Raises:
        InvalidArgumentError: If the folder cannot be moved there.
        DiskFullError: If the file system of the target has not enough space.
        LockedError: If another process is changing a dataset. Nothing is moved then.
        IntegrityError: If the copy of a file differs from the file, or a link is in the place of the file.
    """
    plan = plan_move(home, target)
    if plan is None:
        return None
    plan.target.mkdir(parents=True, exist_ok=True)
    lock = plan.target.with_name(f".{plan.target.name}.rlds-move.lock")
    with disk.lock(lock, str(plan.target), wait=0), disk.disk_errors(plan.target):
        _check_all_unused(plan.source)
        if not plan.is_switched:
            if plan.source.stat().st_dev != plan.target.stat().st_dev:
                disk.require_free(plan.target, plan.bytes - disk.tree_bytes(plan.target), "the copy of all datasets")
            disk.write_text(plan.target / _MARKER, str(plan.source))
            # A second pass costs little, and copies what changed during the first pass.
            for _ in range(2):
                _copy_all(plan.source, plan.target, advance)
            _check_all_unused(plan.source)
            if not switch(plan.target):
                return plan
            _copy_all(plan.source, plan.target, advance)  # files that were written to the old place in the meantime
        _delete_copied(plan.source, plan.target)
        disk.remove_file(plan.target / _MARKER)
        disk.sync_file(plan.target)
    return plan


def _check_all_unused(home: Path) -> None:
    for paths in (paths for root in source_folders(home) for paths in dataset_places(root)):
        check_unused(paths, str(home))
        if paths.lock.exists():
            with disk.lock(paths.lock, str(home), wait=0):
                pass


def _copy_all(source: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy every file that differs, unless the copy is newer. Files of the same size and time are equal."""
    folders = {target}
    for path in _files(source):
        copy = target / path.relative_to(source)
        above = [folder for folder in copy.parents if target in folder.parents]
        for folder in reversed(above):
            disk.check_kind(folder, folder=True)
        with suppress(FileNotFoundError):  # deleted after the listing
            if not _is_same(path, copy) and not _is_newer(copy, path):
                _copy(path, copy, advance)
                folders.update(above)
    for folder in sorted(folders, reverse=True):
        disk.sync_file(folder)


def _delete_copied(source: Path, target: Path) -> None:
    """Delete what the new place has, too, and then the empty folders. Other files and folders stay.

    Links come first: without its dataset, an interrupted move would not recognize the link of a dataset.
    """
    links = [path for path in _files(source) if path.is_symlink()]
    for path in chain(links, _files(source)):
        if (path.is_symlink() or not path.is_dir()) and _is_same(path, target / path.relative_to(source)):
            disk.remove_file(path)
    copied = [root for root in (source / STREAM_FOLDER, *source_folders(source)) if not root.is_symlink()]
    for folder in (Path(folder) for root in copied for folder, _, _ in os.walk(root, topdown=False)):
        if (target / folder.relative_to(source)).is_dir():
            disk.remove_empty(folder)
    prune_audits(source)
    prune_index(source)
    disk.remove_empty(source)


def _files(home: Path) -> Iterator[Path]:
    """Yield every file, link and empty folder of a dataset or a stream in a data folder, and every link to a dataset.

    A folder of a source that is itself a link is yielded as the link. Last of each dataset comes the file that proves that
    it is a dataset, so that a deletion in this order can be continued.
    """
    roots = source_folders(home)
    yield from filter(Path.is_symlink, roots)
    roots = [root for root in roots if not root.is_symlink()]
    for streams in (root / STREAM_FOLDER for root in (home, *roots)):
        for folder in {
            path.parent for path in disk.files_below(streams) if path.name == MARK_FILE and is_marked(path.parent)
        }:
            yield from sorted(_tree(folder), key=_is_proof)
    for paths in (paths for root in roots for paths in dataset_places(root)):
        if paths.folder.is_symlink():
            yield paths.folder
        elif paths.has_no_pointer:
            yield from sorted(_tree(paths.folder), key=_is_proof)
        else:
            for entry in sorted(paths.entries(), key=_is_proof):
                yield from _tree(entry)


def _is_proof(path: Path) -> bool:
    return path.name in {CURRENT_FILE, MANIFEST_FILE, MARK_FILE}


def _tree(path: Path) -> Iterator[Path]:
    """Yield a file or link, or of a folder every file, link and empty folder inside, or itself if empty."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        parent = Path(folder)
        yield from map(parent.joinpath, files)
        yield from (parent / name for name in folders if (parent / name).is_symlink())
        if not files and not folders:
            yield parent


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
    return os.path.lexists(path) and path.lstat().st_mtime_ns > other.lstat().st_mtime_ns


def _link_target(path: Path) -> Path:
    to = path.readlink()
    if not to.is_absolute() and ".." in to.parts:  # may lead out of the folder
        return Path(os.path.normpath(path.parent / to))
    return to


def _copy(path: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy a file, a link or an empty folder. A file gets the final name when the copy is complete and compared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        disk.make_link(target, _link_target(path))
    elif path.is_dir():
        target.mkdir(exist_ok=True)
    elif path.is_file():
        temporary = target.with_name(f".{target.name}.copy")
        disk.remove_file(temporary)
        if disk.link_file(path, temporary):  # on the same file system, the data need not be copied
            advance(path.stat().st_size)
        else:
            _copy_data(path, temporary, advance)
        disk.move_path(temporary, target, sync=False)


def _copy_data(path: Path, target: Path, advance: Callable[[int], None]) -> None:
    with target.open("wb") as copy:

        def write(block: bytes) -> None:
            copy.write(block)
            advance(len(block))

        written = _digest(path, write)
        disk.sync_stream(copy)
        # The bytes are to come from the disk, and not from the memory of the system.
        with suppress(AttributeError, OSError):
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _digest(target) != written:
        raise IntegrityError(str(target), ["the copy does not read back as written"])
    shutil.copystat(path, target)


def _digest(path: Path, each: Callable[[bytes], None] = lambda _: None) -> bytes:
    """Return the digest of a file. The blocks are passed to a function."""
    digest = hashlib.blake2b()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            each(block)
    return digest.digest()
