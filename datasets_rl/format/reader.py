"""A dataset in a folder: opened in O(1), read-only."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from datasets_rl.errors import BadArgument, IntegrityFailed, UnknownId
from datasets_rl.format.npy import open_npy
from datasets_rl.format.writer import EPISODES_FILE
from datasets_rl.manifest import Manifest
from datasets_rl.rows import ROWS_FILE, Field, Schema
from datasets_rl.ted.keys import EPISODE, NEXT, ROOT_FLAGS, Key, dotted
from datasets_rl.ted.steps import next_of
from datasets_rl.ted.table import EPISODE_DTYPE, EpisodeTable

__all__ = ["StoredDataset"]


class StoredDataset:
    """N steps in a folder on disk: manifest, rows, episode table.

    Opening checks that every file has the size that the manifest says, and maps files when they are first used.

    Args:
        folder: The dataset's folder.

    Raises:
        NotADataset: If the folder has no manifest.
        ManifestInvalid: If the manifest cannot be trusted.
        IntegrityFailed: If a file is missing or has another size; all such files at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        problems = _size_faults(folder, self.manifest)
        if problems:
            raise IntegrityFailed(str(folder), problems)

    @property
    def schema(self) -> Schema:
        """The fields of a step and their places."""
        return self.manifest.schema

    def __len__(self) -> int:
        """Return N."""
        return self.manifest.steps

    @cached_property
    def episodes(self) -> EpisodeTable:
        """Where each episode lies, E records."""
        path = self.folder / EPISODES_FILE
        try:
            records = npy.open_memmap(path, mode="r")
            names = EPISODE_DTYPE.names or ()
            known = records.dtype.names is not None and all(
                records.dtype[name] == EPISODE_DTYPE[name] for name in names
            )
            table = EpisodeTable(np.array(records)) if known and records.ndim == 1 else None
        except (ValueError, OSError, EOFError, KeyError, BadArgument) as error:
            raise IntegrityFailed(str(path), [str(error)]) from error
        if table is None or len(table) != self.manifest.episodes or table.steps != self.manifest.steps:
            wanted = f"{self.manifest.episodes} episodes, {self.manifest.steps} steps"
            raise IntegrityFailed(str(path), [f"it is {table}; the manifest says {wanted}"])
        return table

    @cached_property
    def rows(self) -> np.memmap[Any, Any]:
        """The records of rows.npy, a structured array [N], read-only."""
        return self.map(ROWS_FILE)

    def map(self, name: str, *, writable: bool = False) -> np.memmap[Any, Any]:
        """Map one file of the dataset as `numpy.load(..., mmap_mode="r")` would, checked against the manifest.

        Args:
            name: The file: rows.npy, final.npy, or that of a wide field.
            writable: Map copy-on-write: writes never reach the file.
        """
        steps, episodes = self.manifest.steps, self.manifest.episodes
        if name == ROWS_FILE:
            return open_npy(self.folder / name, self.schema.record, (steps,), writable=writable)
        if name == "final.npy":
            return open_npy(self.folder / name, self.schema.final_record, (episodes,), writable=writable)
        for field in self.schema.wide:
            if name in {field.file, field.final_file}:
                items = steps if name == field.file else episodes
                return open_npy(self.folder / name, field.dtype, (items, *field.shape), writable=writable)
        raise BadArgument(f"{name!r} is not a file of {self.manifest.id}")

    def column(self, key: Key, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return one field of consecutive rows.

        Args:
            key: Any key of TED: a stored field, a carried field under "next", or a root flag.
            start: First row.
            stop: Row after the last one; N by default.

        Returns:
            [stop - start, ...], in the dtype of memory: a view of the file where it stands there as such.

        Raises:
            UnknownId: If the dataset has no such key; the error names those that it has.
        """
        stop = self.manifest.steps if stop is None else min(stop, self.manifest.steps)
        if key in self.schema:
            stored = self._items(self.schema[key])[start:stop]
            read_as = self.schema[key].read_as
            return stored if read_as is None else stored.astype(read_as)
        if key in ROOT_FLAGS:
            return np.zeros((stop - start, 1), np.bool_)
        if key[0] == NEXT and key[1:] in self.schema and self.schema[key[1:]].carried:
            field = self.schema[key[1:]]
            return next_of(self._items(field), self.finals(key[1:]), self.episodes, start, stop)
        raise UnknownId(dotted(key), known=f"the keys {', '.join(dotted(one) for one in self.keys())}")

    def finals(self, key: Key) -> NDArray[Any]:
        """Return the values of a carried field after the last action of each episode, [E, ...]; zeros where unknown."""
        field = self.schema[key]
        items = self.map(field.final_file)
        return items if field.wide else np.asarray(items[field.name])

    def keys(self) -> list[Key]:
        """Return every key of a TED batch: root keys, then those under "next"."""
        stored = [field.key for field in self.schema if field.key != EPISODE]
        following = [(NEXT, *field.key) for field in self.schema if field.carried]
        root = [key for key in stored if key[0] != NEXT]
        return [*root, EPISODE, *ROOT_FLAGS, *following, *(key for key in stored if key[0] == NEXT)]

    def _items(self, field: Field) -> NDArray[Any]:
        return self.map(field.file) if field.wide else np.asarray(self.rows[field.name])

    def __repr__(self) -> str:
        manifest = self.manifest
        return f"StoredDataset({manifest.id}: {manifest.steps:,} steps, {manifest.episodes:,} episodes, {self.folder})"


def _size_faults(folder: Path, manifest: Manifest) -> list[str]:
    problems = []
    for entry in manifest.files:
        path = folder / entry.path
        try:
            size = path.lstat().st_size if not path.is_symlink() else -1
        except OSError:
            problems.append(f"{entry.path} is missing")
            continue
        if size != entry.bytes:
            shown = "a link" if size < 0 else f"{size:,} bytes"
            problems.append(f"{entry.path} is {shown}; expected a file of {entry.bytes:,} bytes")
    return problems
