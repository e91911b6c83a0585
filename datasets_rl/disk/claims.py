"""Claims: a folder of unfinished work belongs to the process with the name at the end of the folder's name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from datasets_rl.disk.atomic import make_folder, sync_file
from datasets_rl.disk.plain import check_plain_tree, paths_like
from datasets_rl.disk.processes import CLAIMED, is_abandoned, process_name, unclaimed_name


def claims_of(folder: Path) -> list[Path]:
    """Return a folder, if present, and the claims of any process, sorted."""
    # What others named like a claim, such as raw@old, is theirs.
    named = paths_like(folder.parent, f"{glob.escape(folder.name)}@*")
    claims = [path for path in named if unclaimed_name(path) == folder.name]
    return [path for path in (folder, *claims) if os.path.lexists(path)]


def claim(folder: Path) -> Path:
    """Take a folder for this process: rename it, or a dead process's claim, to ``<name>@<process>``.

    Two processes that claim the same folder never get the same folder, with any locks.

    Returns:
        The claimed folder, which is new if there is nothing to take. `release` gives the folder back.

    Raises:
        IntegrityError: If the folder is not a plain folder, or has a link, a pipe or the like inside.
    """
    base = folder.with_name(f"{folder.name}@{process_name()}")
    names = chain([base.name], (f"{base.name}.{number}" for number in count(1)))
    own = next(path for path in map(base.with_name, names) if os.path.realpath(path) not in CLAIMED)
    for candidate in filter(is_abandoned, claims_of(folder)):
        check_plain_tree(candidate)
        if candidate != own:
            try:
                os.rename(candidate, own)  # noqa: PTH104 - the name must be free, except for an empty folder
            except OSError:  # another process was faster
                continue
        break
    make_folder(own)
    CLAIMED.add(os.path.realpath(own))
    return own


def release(claimed: Path, folder: Path | None = None) -> Path:
    """Give a claimed folder back, under its former name or the name of `folder`. Return the path.

    Where another folder has that name by now, the folder keeps the name of the claim.
    """
    CLAIMED.discard(os.path.realpath(claimed))
    target = folder or claimed.with_name(unclaimed_name(claimed))
    try:
        os.rename(claimed, target)  # noqa: PTH104 - the name must be free, except for an empty folder
    except OSError:
        return claimed
    sync_file(target.parent)
    return target


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Take a folder for this process for the duration of the block, see `claim`. An empty folder is deleted then."""
    own = claim(folder)
    try:
        yield own
    finally:
        with suppress(OSError):
            own.rmdir()
        release(own)
