"""A part of a dataset in a folder of its own, made by any process on any machine, for `DatasetWriter.append_partial`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets_rl import disk
from datasets_rl.format.schema import Column
from datasets_rl.format.writer import DatasetWriter

__all__ = ["COMMIT_FILE", "make_partial", "partials_folder", "remove_partial"]

COMMIT_FILE = "commit.json"
"""Written last: a folder without it is no part."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def partials_folder(folder: Path, key: str) -> Path:
    """Make a folder for the parts of one dataset, or return the one that an earlier process has made for the same.

    Nothing waits until a part is on the disk: most are gone before the disk is asked. So none is trusted after a crash of
    the machine, nor where one cannot know of it.

    Args:
        folder: What is in it and belongs to something else, or was begun by processes that are gone, is deleted.
        key: What the parts are made of, and how.
    """
    boot = _BOOT.read_text() if _BOOT.exists() else uuid4().hex
    found = folder / hashlib.sha256(f"{key} {boot}".encode()).hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old != found:
            # First it loses its name: what is left of it by a death is no run's.
            disk.remove_tree(old.replace(folder / f".{uuid4().hex}"))
    for begun in found.glob(".*"):
        disk.remove_tree(begun)
    return found


def make_partial(
    folder: Path, columns: Sequence[Column], what: str, fill: Callable[[DatasetWriter], Mapping[str, Any]]
) -> dict[str, Any]:
    """Let a function write a part, unless it is there already.

    Args:
        folder: Where the part is afterwards, whole or not at all.
        columns: What a step consists of.
        what: The dataset's name, for messages.
        fill: Writes, and returns what is to be said of the part, a JSON value. With ``again`` in it, nothing is kept.

    Returns:
        What the function said, and as ``commit`` what the writer did.
    """
    there = _made(folder)
    if there is not None:
        return there
    # Its own name: on a cluster, a second attempt may begin while the first one is not known to have ended.
    build = folder.with_name(f".{folder.name}.{uuid4().hex}")
    build.mkdir(parents=True)
    writer = DatasetWriter(build, columns, what=what)
    try:
        result = dict(fill(writer))
        if "again" in result:
            return result
        result["commit"] = writer.commit(sync=False)
        (build / COMMIT_FILE).write_text(json.dumps(result))
        try:
            os.replace(build, folder)
        except OSError:
            # Another attempt was first. It made the same, and somebody may be reading it.
            if _made(folder) is None:
                raise
        return result
    finally:
        writer.discard()
        disk.remove_tree(build)


def remove_partial(folder: Path) -> None:
    """Delete a part: it leaves its place in one step, whoever dies meanwhile, or makes it a second time."""
    away = folder.with_name(f".{folder.name}.{uuid4().hex}")
    with suppress(FileNotFoundError):
        os.replace(folder, away)
    disk.remove_tree(away)


def _made(folder: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads((folder / COMMIT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return result
