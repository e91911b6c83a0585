"""What the folder of all datasets holds: for each dataset its versions, raw files and unfinished files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from datasets_rl import disk, sources, store
from datasets_rl.disk import RECORDED_FOLDER, TRASH_FOLDER, VERSIONS_FOLDER, WORK_FOLDER
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, UnknownIdError
from datasets_rl.store import RAW_FOLDER, STREAM_FOLDER, DatasetPaths

_PARTIAL = (".part", ".part.json")


@dataclass
class Kept:
    """Bytes on the disk that belong to one dataset."""

    id: str
    dataset: int = 0
    """The current version; 0 if there is none."""
    versions: int = 0
    """Earlier versions."""
    raw: int = 0
    """Upstream files that are complete."""
    unfinished: int = 0
    """Builds, partial downloads, and recordings that are not a part of the dataset yet."""
    earlier: int = 0
    """The number of earlier versions."""

    @property
    def bytes(self) -> int:
        """The sum."""
        return self.dataset + self.versions + self.raw + self.unfinished


@dataclass
class Inventory:
    """The content of the folder of all datasets."""

    home: Path
    datasets: list[Kept] = field(default_factory=list)
    """Sorted by id."""
    trash: int = 0
    """Bytes of files that are being deleted, or were when a process died."""
    streams: int = 0
    """Bytes of the shards that streams keep."""
    bytes: int = 0
    """Everything below the folder, also what is not of this package."""
    free: int = 0
    """Free bytes of the file system."""

    @property
    def other(self) -> int:
        """Bytes of files that belong to no dataset."""
        return max(self.bytes - self.trash - self.streams - sum(one.bytes for one in self.datasets), 0)


def take_inventory(home: Path) -> Inventory:
    """Return what a folder of datasets holds; nothing is changed."""
    found: dict[str, Kept] = {}

    def kept(root: Path, name: str) -> Kept:
        return found.setdefault(f"{root.name}/{name}", Kept(f"{root.name}/{name}"))

    for folder in store.stored_folders(home):
        with suppress(ValueError):
            relative = folder.relative_to(home)
            kept(home / relative.parts[0], "/".join(relative.parts[1:])).dataset = disk.tree_bytes(folder)
    inventory = Inventory(home, bytes=disk.tree_bytes(home), free=disk.free_bytes(home))
    for path in (home / STREAM_FOLDER, *home.glob(f"*/{STREAM_FOLDER}")):
        inventory.streams += disk.tree_bytes(path) if path.is_dir() else 0
    for root in store.source_folders(home):
        names = {_flat(root, one.partition("/")[2]): one.partition("/")[2] for one in found if _is_below(one, root)}
        for path in disk.plain_folders(root / VERSIONS_FOLDER, root):
            one = kept(root, names.get(path.name, unquote(path.name)))
            one.versions += disk.tree_bytes(path)
            one.earlier += len(disk.plain_folders(path, root))
        for path in (
            name for hidden in (WORK_FOLDER, RECORDED_FOLDER) for name in disk.plain_folders(root / hidden, root)
        ):
            if size := disk.tree_bytes(path):
                kept(root, names.get(path.name, unquote(path.name))).unfinished += size
        for name, size, is_partial in _raw_files(root, frozenset(names.values())):
            one = kept(root, name)
            one.unfinished += size * is_partial
            one.raw += size * (not is_partial)
        inventory.trash += disk.tree_bytes(root / TRASH_FOLDER) if (root / TRASH_FOLDER).exists() else 0
    inventory.datasets = [found[name] for name in sorted(found)]
    return inventory


def _is_below(dataset_id: str, root: Path) -> bool:
    return dataset_id.partition("/")[0] == root.name


def _flat(root: Path, name: str) -> str:
    return DatasetPaths(root, name).work.name


def _raw_files(root: Path, stored: frozenset[str]) -> Iterator[tuple[str, int, bool]]:
    """Yield the dataset, the size, and whether it is incomplete, of each upstream file of a source."""
    raw = root / RAW_FOLDER
    for folder, _, files in () if raw.is_symlink() else os.walk(raw):
        parts = Path(folder).relative_to(raw).parts
        for file in files:
            size = Path(folder, file).lstat().st_size
            yield _dataset_of(root.name, parts, stored), size, file.endswith(_PARTIAL)


@cache
def _dataset_of(source: str, parts: tuple[str, ...], stored: frozenset[str]) -> str:
    """Return the name of the dataset that a folder of upstream files belongs to, which may contain slashes."""
    for stop in range(len(parts), 0, -1):
        name = "/".join(parts[:stop])
        if name in stored:
            return name
        with suppress(UnknownIdError, InvalidArgumentError, DatasetsRLError):
            sources.find(f"{source}/{name}")
            return name
    return parts[0] if parts else ""
