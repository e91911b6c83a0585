"""How far a conversion is: a line of JSON for each shard whose rows are on the disk.

A line that a kill cut counts for nothing, nor does a journal of another conversion.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets_rl import disk

__all__ = ["Journal"]


class Journal:
    """The lines of one conversion, which only grow.

    Args:
        path: The file; one of another conversion is replaced.
        key: What this conversion is: the same for the same upstream files, the same choices and the same code.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        self.entries: list[Mapping[str, Any]] = []
        """What was added, by this process or an earlier one."""
        good = 0
        if lines and _value(lines[0]) == {"key": key}:
            for line in lines[1:]:
                if (entry := _value(line)) is None:
                    break
                self.entries.append(entry)
                good += len(line) + 1
            with path.open("r+b") as stream:
                stream.truncate(len(lines[0]) + 1 + good)
        else:
            self.restart()

    def roll_back(self, folder: Path) -> None:
        """Bring a folder to its last commit: delete what was begun after it; with rows lost, forget all and begin anew."""
        files: Mapping[str, int] = self.entries[-1]["commit"]["files"] if self.entries else {}
        for path in folder.glob("*"):
            if path.name not in files:
                disk.remove_tree(path)
        for name, size in files.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size < size:
                disk.remove_tree(folder)
                self.restart()
                return

    def restart(self) -> None:
        """Forget all lines."""
        self.entries.clear()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(self._path, json.dumps({"key": self._key}) + "\n")

    def delete(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line, and wait until it is on the disk."""
        with disk.disk_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.entries.append(entry)


def _value(line: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
