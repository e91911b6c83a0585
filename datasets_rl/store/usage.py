"""What the folder of all datasets holds: for each dataset the versions, raw files and unfinished files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE, TRASH_NAME
from datasets_rl.errors import ManifestError
from datasets_rl.format.current import VERSION_NAME, read_current
from datasets_rl.store.find import dataset_places, source_folders
from datasets_rl.store.layout import AUDIT_FOLDER, INDEX_FOLDER, STREAM_FOLDER, DatasetPaths

_PARTIAL = (".part", ".part.json")


@dataclass
class Kept:
    """Bytes on the disk that belong to a dataset."""

    id: str
    dataset: int = 0
    """The current version. 0 without such a version."""
    versions: int = 0
    """Other versions."""
    raw: int = 0
    """Upstream files that are complete."""
    unfinished: int = 0
    """Builds, partial downloads, and recordings that are not a part of the dataset yet."""
    others: int = 0
    """The number of other versions."""

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
    audits: int = 0
    """Bytes of the measures of unfinished audits."""
    index: int = 0
    """Bytes of the index of the fingerprints of all datasets."""
    streams: int = 0
    """Bytes of the shards that streams keep."""
    bytes: int = 0
    """Everything below the folder, also what is not of this package, and the datasets to which links lead from there."""
    free: int = 0
    """Free bytes of the file system."""

    @property
    def other(self) -> int:
        """Bytes of files that belong to no dataset."""
        return max(self.bytes - self.trash - self.audits - self.index - self.streams - self._of_datasets, 0)

    @property
    def _of_datasets(self) -> int:
        return sum(one.bytes for one in self.datasets)


def take_inventory(home: Path) -> Inventory:
    """Return what a folder of datasets holds. Nothing is changed."""
    inventory = Inventory(home, bytes=disk.tree_bytes(home), free=disk.free_bytes(home))
    inventory.audits = disk.tree_bytes(home / AUDIT_FOLDER)
    inventory.index = disk.tree_bytes(home / INDEX_FOLDER)
    sizes: dict[Path, int] = {}
    for path in (home / STREAM_FOLDER, *home.glob(f"*/{STREAM_FOLDER}")):
        size = 0 if path.is_symlink() else disk.tree_bytes(path)
        inventory.streams += size
        sizes[path.resolve()] = size
    for root in source_folders(home):
        for paths in dataset_places(root):
            kept = kept_bytes(paths)
            inventory.datasets += [kept] if kept.bytes else []
            trash = sum(disk.tree_bytes(path) for path in paths.entries() if TRASH_NAME.fullmatch(path.name))
            inventory.trash += trash
            sizes[paths.folder.resolve()] = kept.bytes + trash
    inventory.datasets.sort(key=lambda kept: kept.id)
    # A link may lead to a dataset, or a whole source, on another disk, of which the size of the tree has nothing.
    inventory.bytes += sum(size for path, size in sizes.items() if not path.is_relative_to(home.resolve()))
    return inventory


def kept_bytes(paths: DatasetPaths) -> Kept:
    """Return what is on the disk of a dataset."""
    kept = Kept(f"{paths.root.name}/{paths.name}")
    if paths.has_no_pointer:
        kept.dataset = disk.tree_bytes(paths.folder)
        return kept
    try:
        current = read_current(paths.folder)
    except ManifestError:
        current = None
    if disk.is_plain_file(paths.mark_file):
        kept.unfinished += disk.tree_bytes(paths.mark_file)
    for path in disk.plain_folders(paths.folder, paths.folder):
        size = disk.tree_bytes(path)
        if VERSION_NAME.fullmatch(path.name):
            if path.name == current:
                kept.dataset = size + disk.tree_bytes(paths.current)
            elif disk.is_plain_file(path / MANIFEST_FILE):
                kept.versions += size
                kept.others += 1
        elif path == paths.recorded or path.name.startswith("build-"):
            kept.unfinished += size
        elif disk.unclaimed_name(path) == paths.raw.name:
            partial = sum(disk.tree_bytes(file) for file in disk.files_below(path) if file.name.endswith(_PARTIAL))
            kept.raw += size - partial
            kept.unfinished += partial
    return kept
