"""Demonstrations of robots in HDF5 files of robomimic's shape: robomimic, MimicGen, LIBERO, and custom files.

lift/ph/low_dim_v15                     lift/ph/low_dim_v15.hdf5 of robomimic's repository
mimicgen/core/stack_d0                  core/stack_d0.hdf5 of MimicGen's repository
libero/libero_spatial                   libero_spatial/*_demo.hdf5 of LIBERO's repository: a file for each task
libero/libero_spatial/<name of a file>  a single file
<any other name>                        a file or folder of the user, or of a mirror
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, ConversionError, FetchError, Remedy
from datasets_rl.sources.base import Listing, Selection, Shard, Source, by_images
from datasets_rl.sources.selection import Numbers, Option

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "Robomimic"]

_ID = re.compile(r"(?:[\w][-\w.]*/)*[\w][-\w.]*", re.ASCII)
_SHARD_BYTES = 64 << 20


class Robomimic(Source):
    """Source of the files of robomimic, MimicGen and LIBERO, and of any file or folder of this shape."""

    name = "robomimic"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    reader = "datasets_rl.sources.robomimic.reader:RobomimicReader"
    selects = frozenset({"episodes"})
    options = (
        Option("split", "Filter key of the files, such as train. By default, all demonstrations."),
        Option(
            "alignment",
            "Whether the observation beside an action is from before or after the action. By default, the files show this.",
            choices=("before", "after"),
        ),
    )

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id, or nothing for other names, which are names of files or folders of the user.

        Raises:
            UnknownIdError: If the id is not made up of letters, digits, dots, dashes and underscores, joined by
                slashes.
        """
        if not _ID.fullmatch(name):
            raise self.unknown(name)
        return self._facts(name) or {}

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        from datasets_rl.fetch.asset import Asset

        facts = self._facts(name)
        if facts is None or facts["path"].endswith("/"):
            raise NotImplementedError(f"the files of {self.name}/{name} are in a folder: resolve asks the upstream")
        return (Asset(tuple(self._urls(facts)), facts["path"]).of_kind("HDF5"),)

    @override
    def addresses(self, name: str) -> Sequence[str]:
        facts = self._facts(name)
        return () if facts is None else self._urls(facts)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """List the files of an id, and split each into shards of demonstrations, see `Source.resolve`."""
        facts = self._facts(name)
        if facts is None or facts["path"].endswith("/"):
            revision, assets, is_folder = self._list_folder(name, facts, upstream)
        else:
            revision, is_folder = "", False
            assets = tuple(upstream.with_size(asset) for asset in self.assets(name))
        listing = self.listing(assets, selection)
        params = {**listing.params, "folder": is_folder}
        return replace(listing, params=params, revision=revision, growth=self._growth(facts, selection))

    @override
    def recognize(self, files: AddressFiles) -> str:
        path = files.first_in_folder(*self.endings)
        group = next((name for name in files.arrays(path) if name.startswith("data/demo_")), "") if path else ""
        return f"{path} has the group {group.rstrip('/')}" if group else ""

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Split each file into shards of demonstrations."""
        numbers = {asset.path: number for number, asset in enumerate(assets)}
        kept = tuple(asset for asset in assets if selection.keeps_file(asset.path)) or tuple(assets)
        return Listing(
            kept,
            tuple(shard for asset in kept for shard in _shards(asset)),
            common=(kept[0].path,),  # the first demonstration of this file defines the columns
            params={
                "files": numbers,
                "folder": len(assets) > 1,
                **{option.name: selection.choice(option.name, self.options) for option in self.options},
            },
            numbers=Numbers.read(selection.episodes),
        )

    def _facts(self, name: str) -> dict[str, Any] | None:
        """Return what the catalog states about an id, or about the folder that has the file, or None for other ids."""
        listed: Mapping[str, Any] = self.catalog["ids"]
        if name in listed:
            return dict(listed[name])
        folder, _, file = name.rpartition("/")
        facts = listed.get(folder)
        if facts is None or not facts["path"].endswith("/"):
            return None
        title = f"{facts['title']}: {file.removesuffix('_demo').replace('_', ' ')}"
        return {"in": facts["in"], "path": f"{facts['path']}{file}.hdf5", "title": title}

    def _growth(self, facts: Mapping[str, Any] | None, selection: Selection) -> dict[str, float]:
        """Return the estimated number of stored bytes per fetched byte.

        MimicGen's images are compressed, LIBERO's are not, and robomimic's files have the observations twice.
        """
        sizes: dict[str, float] = {} if facts is None else self.merged("", facts).get("growth", {})
        return sizes if "raw" not in sizes else by_images(sizes, selection)

    def _urls(self, facts: Mapping[str, Any]) -> list[str]:
        return [f"{base}/{facts['path']}".rstrip("/") for base in self.merged("", facts)["addresses"]]

    def _list_folder(
        self, name: str, facts: Mapping[str, Any] | None, upstream: Upstream
    ) -> tuple[str, tuple[Asset, ...], bool]:
        """Return the revision and the files of a folder, and whether the id names a folder of several files.

        Raises:
            UnknownIdError: If there is no such id, and the user gives no files.
            ConversionError: If the folder has no HDF5 file.
        """
        from datasets_rl.fetch.asset import Asset

        path = name if facts is None else facts["path"].rstrip("/")
        try:
            folder = upstream.folder(path, [] if facts is None else self._urls(facts))
        except FetchError as error:
            if facts is not None:
                raise
            if not error.failures:  # no address was tried
                unknown = self.unknown(name)
                unknown.hint = Remedy("give the file, or the folder with the files: {}", Argument("from_local"))
                raise unknown from error
            # The user gives a file, or a mirror that cannot list files.
            asset = Asset(upstream.mirror_urls(f"{name}.hdf5"), f"{name}.hdf5").of_kind("HDF5")
            return "", (upstream.with_size(asset),), False
        found = [asset for asset in folder.assets if asset.path.endswith(self.endings)]
        if not found:
            names = ", ".join(asset.path for asset in folder.assets[:5])
            raise ConversionError(f"{self.name}/{name}", [f"it has no HDF5 file. The first files are {names}"])
        assets = tuple(asset.of_kind("HDF5") for asset in found)
        return folder.revision, assets, facts is not None or len(assets) > 1


def _shards(asset: Asset) -> list[Shard]:
    """Return the shards of a file: each has as many demonstrations as the others."""
    pieces = max(1, -(-(asset.size or 0) // _SHARD_BYTES))
    return [Shard((asset.path,), [[asset.path, piece, pieces]]) for piece in range(pieces)]


SOURCE = Robomimic()
