"""V-D4RL: images of the DeepMind control suite, a folder per id, on the Hugging Face hub.

vd4rl/main/<task>/<policy>/64px/<time>-<uuid>-<rows>.npz      an episode per file, as DreamerV2 writes episodes
vd4rl/main/<task>/<policy>/84px/<number>.hdf5                 rows of DrQ-v2, split into files within episodes
vd4rl/distracting/..., vd4rl/multitask/...                    the same
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.sources.base import (
    Entry,
    EpisodeReader,
    Listing,
    Selection,
    Shard,
    Source,
    by_images,
    cut_file,
    group_by_size,
    none_kept,
    quality_tags,
)
from datasets_rl.sources.selection import MIN_RATIO, Numbers, read_numbers
from datasets_rl.ted.keys import natural_order

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "VD4RL"]

_SHARD_BYTES = 64 << 20
_OTHERS = re.compile(r"(distracting|multitask)/[a-z_]+/(64|84)px(/[a-z]+)?")
_EPISODE = re.compile(r"(\d+)px/(?:.*/)?[^/]*-(\d+)\.npz", re.ASCII)
_STEP_BYTES = 100  # of everything except the image
_EPISODE_ARRAYS = ("image", "action", "reward", "is_first", "is_last")
_ROW_ARRAYS = ("observation", "action", "reward", "discount", "step_type")
_KINDS = {".npz": b"PK\x03\x04", ".hdf5": b"\x89HDF\r\n\x1a\n"}


class VD4RL(Source):
    """Source of the folders of the repository.

    Ids in "distracting" and "multitask" are accepted even if the catalog does not list such ids.
    """

    name = "vd4rl"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id: the words of the name are groups of the catalog.

        Raises:
            UnknownIdError: If the catalog does not list the id, and the id has another form.
        """
        listed, groups = self.catalog["ids"], self.catalog["groups"]
        if name not in listed and not _OTHERS.fullmatch(name):
            raise self.unknown(name)
        parts = name.split("/")
        title = ", ".join(groups.get(part, {}).get("word", part) for part in parts[1:])
        known = [part for part in (*parts, "all") if part in groups]
        return {"in": known, "title": title, "tags": quality_tags(name), **listed.get(name, {})}

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (f"hf://datasets/{self.catalog['repository']}/vd4rl/{name}",)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Group the files of the folder, without the subfolders, into shards, see `Source.resolve`."""
        entry = self.entry(name)
        path = f"vd4rl/{name}"
        folder = upstream.folder(path, [f"hf://datasets/{self.catalog['repository']}/{path}"])
        return self._listing(entry, folder, path, selection)

    @override
    def recognize(self, files: AddressFiles) -> str:
        found = [path for path in files.ending(*_KINDS) if "/" not in path]
        kinds = {path.rpartition(".")[2] for path in found}
        if len(kinds) != 1:
            return ""
        arrays = files.arrays(found[0])
        needed = _EPISODE_ARRAYS if found[0].endswith(".npz") else _ROW_ARRAYS
        if not {*needed} <= arrays.keys() or len(arrays[needed[0]] or ()) != 4:
            return ""
        return f"{found[0]} has {', '.join(needed[:-1])} and {needed[-1]}, of which {needed[0]} has images"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        return self._listing(entry, folder, entry.name, selection)

    def _listing(self, entry: Entry, folder: Folder, path: str, selection: Selection) -> Listing:
        inside = [asset for asset in folder.assets if asset.path.rpartition("/")[0] == path]
        kinds = {suffix for suffix in _KINDS if any(asset.path.endswith(suffix) for asset in inside)}
        if len(kinds) != 1:
            names = ", ".join(sorted(asset.path[len(path) + 1 :] for asset in folder.assets)[:5])
            raise ConversionError(entry.id, [f"{path} has the files {names}, expected .npz files or .hdf5 files"])
        (suffix,) = kinds
        assets = [
            replace(asset, magic=_KINDS[suffix], kind=suffix[1:].replace("hdf5", "HDF5"))
            for asset in inside
            if asset.path.endswith(suffix)
        ]
        shards = _episode_shards if suffix == ".npz" else _row_shards
        return replace(shards(assets, selection), entry=entry, revision=folder.revision)

    @override
    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        from datasets_rl.sources.vd4rl.episodes import EpisodeFiles
        from datasets_rl.sources.vd4rl.shards import RowFiles

        kind = EpisodeFiles if next(iter(files)).endswith(".npz") else RowFiles
        return kind(dataset_id or f"{self.name}/{name}", files)


def _episode_shards(assets: Sequence[Asset], selection: Selection) -> Listing:
    """Group episodes into shards of about `_SHARD_BYTES`. `Shard.part` is the number and the path of each episode."""
    assets = sorted(assets, key=lambda asset: asset.path)  # the names begin with the time of writing
    # Files are excluded before files are grouped, because a shard with an excluded file would be dropped completely.
    numbers = read_numbers(selection.episodes, len(assets))
    chosen = [number for number in numbers if selection.keeps_file(assets[number].path)]
    if not chosen:
        raise none_kept(assets)
    shard_bytes = min(_SHARD_BYTES, selection.max_size or _SHARD_BYTES)
    groups = group_by_size(chosen, (assets[number].size or 0 for number in chosen), shard_bytes)
    shards = (
        Shard(tuple(assets[number].path for number in group), [[number, assets[number].path] for number in group])
        for group in groups
    )
    # The first file defines the columns.
    common = (assets[chosen[0]].path,)
    chosen_assets = tuple(assets[number] for number in chosen)
    return Listing(chosen_assets, tuple(shards), common, stored_bytes=_stored_bytes(chosen_assets, selection))


def _stored_bytes(assets: Sequence[Asset], selection: Selection) -> dict[str, float]:
    """Return the size of the episodes from the lengths in the file names, or nothing if a length is missing."""
    if selection.keys and "pixels" not in selection.keys:
        return {}
    matches = [match for asset in assets if (match := _EPISODE.search(asset.path)) is not None]
    if len(matches) < len(assets):
        return {}
    pixels = sum(int(match[2]) * 3 * int(match[1]) ** 2 for match in matches)
    others = sum(int(match[2]) for match in matches) * _STEP_BYTES
    return by_images({"compressed": pixels / MIN_RATIO + others, "raw": pixels + others}, selection)


def _row_shards(assets: Sequence[Asset], selection: Selection) -> Listing:
    """Split each file into shards of rows. The first step of a shard begins with the last image of the previous file."""
    assets = sorted(assets, key=lambda asset: natural_order(asset.path))
    paths = [asset.path for asset in assets]
    ranges = tuple(shard for asset in assets for shard in cut_file(asset, _SHARD_BYTES))
    part = Listing(tuple(assets), ranges).narrow_to(selection)
    kept = [paths.index(asset.path) for asset in sorted(part.assets, key=lambda asset: natural_order(asset.path))]
    if kept != [*range(kept[0], kept[-1] + 1)]:
        raise InvalidArgumentError(
            f"{paths[kept[0] + 1]} is excluded, but an episode may continue in it", hint="select consecutive files"
        )
    shards = []
    for shard in part.shards:
        (path,) = shard.paths
        piece = shard.part[0]
        before = None if piece or path == paths[kept[0]] else paths[paths.index(path) - 1]
        params = {
            "file": path,
            "before": before,
            "cut": shard.part,
            "begins": path == paths[0],
            "ends": shard is part.shards[-1],
        }
        shards.append(Shard((path,) if before is None else (before, path), params))
    # The first file defines the columns.
    return replace(part, shards=tuple(shards), common=(paths[kept[0]],), numbers=Numbers.read(selection.episodes))


SOURCE = VD4RL()
