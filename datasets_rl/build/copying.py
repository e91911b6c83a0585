"""Copying of a dataset that an upstream has in the stored format: its files are fetched, joined and checked.

shards    0 1 2 3        groups of pieces: whole files, or chunks of large files, fetched ahead of the copy
build     0 1 2          whole files are linked into the build, chunks are written at their offset
journal   0 1            then a line is synced: a repeated copy continues after this line
raw         1 2 3        the pieces of journaled shards are deleted
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets_rl import disk
from datasets_rl.build.journal import Journal
from datasets_rl.errors import IntegrityError
from datasets_rl.fetch.asset import Fetched
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.integrity import check_files
from datasets_rl.format.manifest import Manifest
from datasets_rl.progress import report
from datasets_rl.sources.base import Entry, Listing, Selection

_MAX_IN_FLIGHT = 2
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A stored dataset to copy."""

    entry: Entry
    listing: Listing
    """The listing, with the manifest of the dataset as `copied`."""
    selection: Selection

    @property
    def key(self) -> str:
        """A digest of the input: only a copy with the same key is resumed."""
        pieces = [[asset.path, asset.size, asset.sha256] for asset in self.listing.assets]
        shards = [[shard.paths, shard.part] for shard in self.listing.shards]
        return hashlib.sha256(json.dumps([self.entry.id, self._source.digest, pieces, shards]).encode()).hexdigest()

    @property
    def _source(self) -> Manifest:
        if self.listing.copied is None:
            raise IntegrityError(self.entry.id, ["the listing has no manifest of a stored dataset"])
        return self.listing.copied

    @property
    def manifest(self) -> Manifest:
        """The manifest of the copy: the manifest of the source, with the id and the origin of the copy."""
        source = self._source
        return replace(
            source,
            id=self.entry.id,
            selection=self.selection.to_json(),
            copied_from={
                "address": self.listing.params["address"].rstrip("/"),
                "id": source.id,
                "digest": source.digest,
                "selection": dict(source.selection),
            },
        )


def copy_stored(job: CopyJob, fetcher: Fetcher, folder: Path, *, work: Path) -> Manifest:
    """Copy a stored dataset into a folder, shard by shard. The manifest is written last.

    Args:
        job: The dataset.
        fetcher: The fetcher of the pieces.
        folder: The folder of the result, which may contain the files of an interrupted call.
        work: The folder of the journal, by which an interrupted call is resumed.

    Returns:
        The manifest.

    Raises:
        FetchError: If pieces cannot be fetched.
        IntegrityError: If a piece or a joined file differs from its digest, or the files are not a stored dataset.
        DiskFullError: If the dataset does not fit on the disk.
    """
    journal = Journal(work / "journal.jsonl", job.key)
    if not journal.entries:
        disk.remove_tree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remaining = job.listing.shards[len(journal.entries) :]
    groups = Listing(job.listing.assets, remaining).assets_by_shard(remaining)
    with fetcher.for_groups(groups) as shared, Prefetcher(groups, shared.fetch, _MAX_IN_FLIGHT) as prefetcher:
        for shard in remaining:
            fetched = prefetcher.take()
            _place(folder, fetched, shard.part, own=fetcher.folder)
            journal.append({"shard": len(journal.entries)})
            shared.drop(file.path for file in fetched)
            prefetcher.release()
    manifest = job.manifest
    manifest.write(folder)
    with report(f"checking {job.entry.id}", manifest.bytes, show=fetcher.settings.progress) as advance:
        problems = check_files(folder, advance)
    if problems:
        # A further call starts over: which of the pieces is wrong is not known.
        disk.remove_tree(folder)
        journal.delete()
        raise IntegrityError(
            job.entry.id, problems, hint="repeat the same call. If it fails again, the published files are wrong"
        )
    return manifest


def _place(folder: Path, fetched: Sequence[Fetched], places: Any, *, own: Path) -> None:
    """Write each fetched piece into its file. A repetition changes nothing.

    Args:
        folder: The folder of the result.
        fetched: The pieces.
        places: The file and the offset of each piece.
        own: The folder of the fetched pieces, with files that may be linked. Files of the user are copied.
    """
    for piece, (name, start) in zip(fetched, places, strict=True):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with disk.disk_errors(target):
            if piece.asset.path.endswith(f"/{name}") and piece.path.is_relative_to(own):
                disk.remove_file(target)
                disk.link_or_copy(piece.path, target)
            else:
                _write_at(piece.path, target, start)


def _write_at(path: Path, target: Path, start: int) -> None:
    """Write the bytes of a file into another file at an offset, and flush to the disk."""
    with path.open("rb") as piece, target.open("r+b" if start else "wb") as stream:
        stream.seek(start)
        shutil.copyfileobj(piece, stream, _COPY_BYTES)
        disk.sync_stream(stream)
