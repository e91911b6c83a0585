"""ExORL: the replay buffers of agents that explored domains of the DM control suite, one zip file per id.

    <domain>/<algorithm>.zip       buffer/episode_000000_1000.npz       an episode each: number and steps
                                   video/...                            not read

The zip file is read in place, in parts of whole episodes. A folder of the unpacked files is read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import AT_ADDRESS, Entry, Listing, Selection, Source, cut_file, group_files
from datasets_rl.sources.exorl.names import ARRAYS, episode_order

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "ExORL"]

_FOLDERS = ("", "buffer")
"""Folders with episodes below the folder of an id, or of the user."""
_SHARD_BYTES = 64 << 20
_UNSIZED_SHARDS = 16
"""Shards of a zip file of a size that no address reports."""
_GROWTH = {"": 1.1}
"""Assumed number of stored bytes per fetched byte, to estimate sizes: that of generated episodes."""


class ExORL(Source):
    """Source of six domains, each explored by nine algorithms."""

    name = "exorl"
    kind = "zip"
    reader = "datasets_rl.sources.exorl.reader:ExORLReader"
    image_forms = ()
    selects = frozenset({"episodes"})

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Split the zip file, or a folder of the files, into shards, see `Source.resolve`."""
        try:
            listed = upstream.folder(name, ()).assets
        except FetchError:
            listed = ()  # neither a folder of the user nor a mirror that lists files
        found = {asset.path.removeprefix(f"{name}/"): asset for asset in listed}
        unpacked = [] if f"{name}.zip" in found else _episodes(found)
        return self.listing(unpacked or [upstream.with_size(asset) for asset in self.assets(name)], selection)

    @override
    def recognize(self, files: AddressFiles) -> str:
        from datasets_rl.sources.exorl.reader import inspect_zip

        zips = files.ending(".zip")
        found = [path for path in files.ending(".npz") if _is_episode(path)]
        if len(zips) == 1:
            place, arrays = f"an episode in {zips[0]}", files.inspected(zips[0], inspect_zip)
        elif found:
            place, arrays = found[0], files.arrays(found[0])
        else:
            return ""
        if not {*ARRAYS} <= arrays.keys() or "image" in arrays:
            return ""
        return f"{place} has {', '.join(ARRAYS[:-1])} and {ARRAYS[-1]}, and the name has a number and the steps"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        zips = [asset for asset in folder.assets if asset.path.lower().endswith(".zip")]
        found = {asset.path.removeprefix(f"{entry.name}/"): asset for asset in folder.assets}
        listing = self.listing([asset.of_kind("zip") for asset in zips] or _episodes(found), selection)
        return replace(listing, params={AT_ADDRESS: True})

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Split a zip file, or the files of episodes, into shards."""
        if assets[0].kind == "zip":
            kept, shards = tuple(assets), cut_file(assets[0], _SHARD_BYTES, unsized=_UNSIZED_SHARDS)
        else:
            kept, shards = group_files(assets, selection, _SHARD_BYTES)
        return replace(super().listing(kept, selection), shards=shards, growth=_GROWTH)


def _is_episode(path: str) -> bool:
    return path.rpartition("/")[0] in _FOLDERS and episode_order(path) is not None


def _episodes(files: Mapping[str, Asset]) -> list[Asset]:
    """Return the files of episodes in order, from the files of a folder by the path in the folder."""
    paths = sorted(filter(_is_episode, files), key=lambda path: episode_order(path) or ())
    return [files[path].of_kind("npz") for path in paths]


SOURCE = ExORL()
