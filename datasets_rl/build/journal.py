"""The journal of a build: a line of JSON for each chunk with rows on the disk.

A line that was truncated by a kill is ignored, and so is the journal of another build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from datasets_rl import disk


class Journal:
    """The append-only journal of a build.

    Args:
        path: The file. The journal of another build is replaced.
        key: Identifies the build: equal for equal input files, arguments and code.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        parsed = [*takewhile(bool, map(_parse_entry, lines))]
        self.entries = parsed[1:]
        """The entries that this process or an earlier process appended."""
        if parsed[:1] == [{"key": key}]:
            with path.open("r+b") as stream:
                stream.truncate(sum(len(line) + 1 for line in lines[: len(parsed)]))
        else:
            self.restart()

    def roll_back(self, folder: Path) -> None:
        """Roll a folder back to its last commit.

        Files that were created after the commit are deleted. If committed rows are missing, the folder is deleted and
        the journal restarted.
        """
        files: Mapping[str, int] = self.entries[-1]["commit"]["files"] if self.entries else {}
        kept = {folder / name for name in files}
        kept |= {parent for path in kept for parent in path.parents}
        for path in [*folder.glob("*"), *folder.glob("*/*")]:
            if path not in kept:
                disk.remove_tree(path)
        for name, size in files.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size < size:
                disk.remove_tree(folder)
                self.restart()
                return

    def restart(self) -> None:
        """Delete all entries."""
        self.entries.clear()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(self._path, json.dumps({"key": self._key}) + "\n")

    def delete(self) -> None:
        """Delete the file."""
        disk.remove_file(self._path)

    def append(self, entry: Mapping[str, Any], *, sync: bool = True) -> None:
        """Append an entry, and flush to the operating system, with `sync` also to the disk."""
        with disk.disk_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
            if sync:
                disk.sync_stream(stream)
        self.entries.append(entry)


def _parse_entry(line: bytes) -> Mapping[str, Any]:
    """Return the entry of a line, empty if the line is damaged."""
    with suppress(ValueError):
        if isinstance(value := json.loads(line), dict):
            return value
    return {}
