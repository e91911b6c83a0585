"""The files of a statement that a repository can have beside the dataset, so that the hub shows and describes the values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.format.manifest import Manifest

CROISSANT_FILE = "croissant.json"
DATASHEET_FILE = "datasheet.md"
TABLES_FOLDER = "parquet"
TABLES = (f"{TABLES_FOLDER}/steps.parquet", f"{TABLES_FOLDER}/episodes.parquet")
ATTACHED = (CROISSANT_FILE, DATASHEET_FILE, *TABLES)
"""Paths in the folder of a dataset's statement, and in the repository."""

SPLIT = "split"
"""Metadata of episodes in which upstreams state the part of each episode, such as train."""


def version_mark(manifest: Manifest) -> str:
    """Return the end of the version in croissant.json, which identifies the files that the document describes."""
    return f"+{manifest.files_digest[:12]}"


def attached_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the paths of the files of a statement, after a check that they describe a dataset.

    Args:
        folder: The folder of a dataset in a statement.
        manifest: The manifest of the dataset.

    Raises:
        InvalidArgumentError: If the folder has no croissant.json, or the document describes other files.
    """
    again = Remedy("{} writes the statement of the dataset", Call("citing.write_statement", manifest.id, out=...))
    if not (folder / CROISSANT_FILE).exists():
        within = sorted(path.parent for path in folder.glob(f"*/{CROISSANT_FILE}"))
        raise InvalidArgumentError(
            f"{folder} is not the statement of a dataset: there is no {CROISSANT_FILE}",
            hint=f"name the folder of the dataset there: {' or '.join(map(str, within))}" if within else again,
        )
    try:
        document: Any = json.loads((folder / CROISSANT_FILE).read_text(encoding="utf-8"))
        version = str(document["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"{folder} is not the statement of a dataset: {error}", hint=again) from error
    if not version.endswith(version_mark(manifest)):
        raise InvalidArgumentError(
            f"{folder / CROISSANT_FILE} has the version {version}, expected an end of {version_mark(manifest)}",
            hint=again,
        )
    return [path for path in ATTACHED if (folder / path).is_file()]
