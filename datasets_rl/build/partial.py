"""Partial datasets: rows in a separate folder, written by any process for `DatasetWriter.append_partial`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets_rl import disk
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key

COMMIT_FILE = "commit.json"
"""The file that is written last: a folder without this file is not a partial dataset."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def prepare_partials(folder: Path, key: str) -> Path:
    """Delete the partial datasets that a build cannot use, and create the folder for its own.

    Partial datasets are not fsynced, because most are deleted before the system writes to the disk. They are
    therefore deleted after a reboot, and always on a system that does not report its boot id.

    Args:
        folder: The parent folder. Everything inside is deleted, except the partial datasets of this build that an
            earlier process completed.
        key: Identifies the input and the code of the build.

    Returns:
        The folder for the partial datasets.
    """
    boot_id = _BOOT.read_text() if _BOOT.exists() else uuid4().hex
    partials = folder / hashlib.sha256(f"{key} {boot_id}".encode()).hexdigest()[:16]
    partials.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old != partials:
            disk.discard(old, folder)
    disk.empty_trash(partials)
    for unfinished in partials.glob(".*"):
        disk.remove_tree(unfinished)
    return partials


def writer_columns(schema: Schema) -> list[Column]:
    """Return the columns of a schema to pass to a writer, which adds the episode number and ``("next", "done")``."""
    return [field for field in schema if field.key not in {EPISODE, NEXT_DONE}]


def make_partial(
    folder: Path,
    columns: Sequence[Column],
    name: str,
    fill: Callable[[DatasetWriter], Mapping[str, Any]],
    dictionaries: Mapping[Key, FrameDictionary] | None = None,
) -> dict[str, Any]:
    """Write a partial dataset by a function, unless present already.

    Args:
        folder: The folder of the partial dataset, which appears complete or not at all.
        columns: The columns of a step.
        name: The name of the dataset, for messages.
        fill: Writes the rows and returns a description of the rows, a JSON value.
        dictionaries: The dictionary of each column of compressed images.

    Returns:
        The description, with the commit of the writer as ``commit``.
    """
    if (existing := _read_result(folder)) is not None:
        return existing
    # The name is unique, because on a cluster a second attempt may start before the first attempt has ended.
    build = folder.with_name(f".{folder.name}.{uuid4().hex}")
    build.mkdir(parents=True)
    writer = DatasetWriter(build, columns, name=name, dictionaries=dictionaries)
    try:
        result = dict(fill(writer))
        result["commit"] = writer.commit(sync=False)
        (build / COMMIT_FILE).write_text(json.dumps(result))
        try:
            disk.move_path(build, folder, sync=False)
        except OSError:
            # Another attempt finished first. The rows are the same, and another process may be reading them.
            if _read_result(folder) is None:
                raise
        return result
    finally:
        writer.discard()
        disk.remove_tree(build)


def remove_partial(folder: Path) -> None:
    """Delete a partial dataset atomically, safe against a crash or a second attempt."""
    disk.discard(folder, folder.parent)


def _read_result(folder: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads((folder / COMMIT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return result
