"""RoboSet's simulated part: HDF5 files of RoboHive's logger, one a seed, in a repository of the Hugging Face hub.

    DAPG(expert)/door_v2d-v1/<any name>.h5          or DAPG(expert)/door_v2d-v1<...>.h5

An id is the beginning of the paths of its files; a longer id's files are not its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import ConversionError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source
from datasets_rl.sources.selection import Numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.ted.table import EpisodeTable

__all__ = ["SOURCE", "RoboSet"]

_MAGIC = b"\x89HDF\r\n\x1a\n"
_PICKLES = (".pickle", ".pkl")
_SHARD_BYTES = 64 << 20


class RoboSet(Source):
    """The ids of the catalog."""

    name = "roboset"
    selects = frozenset({"episodes"})

    def ids(self) -> Sequence[str]:
        """Return every id, sorted; no network."""
        return sorted(self.catalog["ids"])

    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network.

        Raises:
            UnknownIdError: If there is no such id.
        """
        catalog = self.catalog
        if name not in catalog["ids"]:
            raise self.unknown(name)
        return Entry(
            source=self.name,
            name=name,
            title=catalog["ids"][name],
            license=catalog["license"],
            citation=catalog["citation"],
            homepage=catalog["homepage"],
            known_issues=tuple(catalog["known_issues"]),
        )

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Find the files whose paths begin with the id, and put small ones together."""
        entry = self.entry(name)
        revision, assets = self._files(entry, selection, upstream)
        seeds = {asset.path: seed for seed, asset in enumerate(assets)}
        # Before files are put together, so that one that is left out takes no other with it.
        assets = tuple(asset for asset in assets if selection.keeps_file(asset.path)) or assets
        shards = tuple(_grouped(assets, min(_SHARD_BYTES, selection.max_size or _SHARD_BYTES)))
        return Listing(
            assets,
            shards,
            common=(assets[0].path,),  # what a step consists of is what the first trial of the first file says
            params={"seeds": seeds, "keys": list(selection.keys)},
            revision=revision,
            numbers=Numbers.read(selection.episodes),
        )

    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the files of a shard."""
        from datasets_rl.sources.roboset.reader import RoboSetReader

        return RoboSetReader(f"{self.name}/{name}", {path: Path(place) for path, place in files.items()}, params or {})

    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted dataset with its raw files, column by column."""
        from datasets_rl.sources.roboset.compare import compare

        del name
        return [] if episodes is None else compare(files, column, episodes)

    def _files(self, entry: Entry, selection: Selection, upstream: Upstream) -> tuple[str, tuple[Asset, ...]]:
        """Return the revision and the HDF5 files of an id, by their paths."""
        repository = f"hf://datasets/{self.catalog['repository']}"
        found: dict[str, Asset] = {}
        # The user may have given the id's own folder.
        for below in (entry.name.rpartition("/")[0], entry.name):
            folder = upstream.folder(below, [f"{repository}/{below}"])
            found = {asset.path: asset for asset in folder.assets if self._owner(asset.path) == entry.name}
            if found:
                break
        pickles = [path for path in found if path.endswith(_PICKLES) and selection.keeps_file(path)]
        if pickles:
            problem = f"{pickles[0]} and {len(pickles) - 1:,} other files are pickles, which can run code"
            raise ConversionError(
                entry.id, [problem], hint="leave them out with --exclude '*.pickle' --exclude '*.pkl'"
            )
        assets = tuple(
            replace(found[path], magic=_MAGIC, kind="HDF5") for path in sorted(found) if path.endswith(".h5")
        )
        if not assets:
            raise ConversionError(entry.id, [f"it has no .h5 file, but {', '.join(sorted(found)[:5]) or 'nothing'}"])
        return folder.revision, assets

    def _owner(self, path: str) -> str:
        """Return the id that a file belongs to: the longest one that its path begins with."""
        starts = [one for one in self.catalog["ids"] if path.startswith(one) and not path[len(one) :][:1].isalnum()]
        return max(starts, key=len, default="")


def _grouped(assets: Sequence[Asset], most: int) -> Iterator[Shard]:
    """Put as many files into a shard as have so many bytes."""
    group: list[str] = []
    size = 0
    for asset in assets:
        if group and size + (asset.size or 0) > most:
            yield Shard(tuple(group), list(group))
            group, size = [], 0
        group.append(asset.path)
        size += asset.size or 0
    yield Shard(tuple(group), list(group))


SOURCE = RoboSet()
