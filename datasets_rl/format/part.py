"""A part of a dataset in a folder of its own, made by any process on any machine, for `DatasetWriter.absorb`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets_rl import disk
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.rows import Column

__all__ = ["COMMIT_FILE", "make_part", "remove_part"]

COMMIT_FILE = "commit.json"
"""Written last, and removed first: a folder without it is no part."""


def make_part(
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
    disk.remove_tree(folder)
    build.mkdir(parents=True)
    writer = DatasetWriter(build, columns, what=what)
    try:
        result = dict(fill(writer))
        if "again" in result:
            return result
        result["commit"] = writer.commit()
        (build / COMMIT_FILE).write_text(json.dumps(result))
        disk.sync(build / COMMIT_FILE)
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


def remove_part(folder: Path) -> None:
    """Delete a part; a process that dies meanwhile leaves none, and not half of one."""
    (folder / COMMIT_FILE).unlink(missing_ok=True)
    disk.remove_tree(folder)


def _made(folder: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads((folder / COMMIT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return result
