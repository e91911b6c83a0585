"""Simulated part of RoboSet: HDF5 files of RoboHive's logger, one per seed, in a repository of the Hugging Face hub.

    DAPG(expert)/door_v2d-v1/<any name>.h5          or DAPG(expert)/door_v2d-v1<...>.h5

An id is the prefix of the paths of the files. A file belongs to the longest id that is a prefix of its path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, Remedy
from datasets_rl.sources.base import Entry, Listing, Selection, Source, group_files

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "RoboSet"]

_PICKLES = (".pickle", ".pkl")
_EXCLUDE = Remedy("exclude them with {}", Argument("selection", Call("Selection", exclude=("*.pickle", "*.pkl"))))
_SHARD_BYTES = 64 << 20
_TRIAL = re.compile(r"Trial\d+/", re.ASCII)


class RoboSet(Source):
    """Source of the simulated part of RoboSet."""

    name = "roboset"
    endings = (".h5", ".hdf5")
    kind = "HDF5"
    reader = "datasets_rl.sources.roboset.reader:RoboSetReader"
    selects = frozenset({"episodes"})

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (f"hf://datasets/{self.catalog['repository']}/{name.rpartition('/')[0]}",)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """List the files with paths that begin with the id, and group small files into shards, see `Source.resolve`."""
        entry = self.entry(name)
        revision, assets = self._list_files(entry, selection, upstream)
        return replace(self.listing(assets, selection), revision=revision)

    @override
    def recognize(self, files: AddressFiles) -> str:
        path = files.first_in_folder(*self.endings)
        trial = next((name for name in files.arrays(path) if _TRIAL.fullmatch(name)), "") if path else ""
        return f"{path} has the group {trial.rstrip('/')}" if trial else ""

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Group files into shards. The number of a file is the seed of the trials."""
        seeds = {asset.path: seed for seed, asset in enumerate(assets)}
        kept, shards = group_files(assets, selection, min(_SHARD_BYTES, selection.max_size or _SHARD_BYTES))
        return replace(
            super().listing(kept, selection),
            shards=tuple(replace(shard, part=list(shard.paths)) for shard in shards),
            common=(kept[0].path,),  # the first trial of the first file defines the columns
            params={"seeds": seeds},
        )

    def _list_files(self, entry: Entry, selection: Selection, upstream: Upstream) -> tuple[str, tuple[Asset, ...]]:
        """Return the revision and the HDF5 files of an id, sorted by path."""
        repository = f"hf://datasets/{self.catalog['repository']}"
        by_path: dict[str, Asset] = {}
        # A local folder of the user may be that of the id.
        for below in (entry.name.rpartition("/")[0], entry.name):
            folder = upstream.folder(below, [f"{repository}/{below}"])
            by_path = {asset.path: asset for asset in folder.assets if self._id_of_path(asset.path) == entry.name}
            if by_path:
                break
        pickles = [path for path in by_path if path.endswith(_PICKLES) and selection.keeps_file(path)]
        if pickles:
            problem = f"{pickles[0]} and {len(pickles) - 1:,} other files are pickles, which can run code"
            raise ConversionError(entry.id, [problem], hint=_EXCLUDE)
        assets = tuple(by_path[path].of_kind(self.kind) for path in sorted(by_path) if path.endswith(".h5"))
        if not assets:
            files = ", ".join(sorted(by_path)[:5]) or "none"
            raise ConversionError(entry.id, [f"it has no .h5 file, its files are {files}"])
        return folder.revision, assets

    def _id_of_path(self, path: str) -> str:
        """Return the id of a file: the longest one that is a prefix of the path."""
        prefixes = [id_ for id_ in self.catalog["ids"] if path.startswith(id_) and not path[len(id_) :][:1].isalnum()]
        return max(prefixes, key=len, default="")


SOURCE = RoboSet()
