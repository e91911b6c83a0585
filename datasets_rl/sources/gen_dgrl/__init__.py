"""Gen-DGRL: episodes of Procgen, an archive of files per id, from a plain web server.

    Procgen/Datasets/Compressed/1M/level_200/expert/bigfish.tar.xz      the path in TorchRL
    1M/expert/bigfish.tar.xz                                            the path in the upstream's tool since 2023
    100k_procgen_dataset_1.tar                                          all games in a single archive

    bigfish/<time>_<episode>_<length>_<level seed>_<return>.npy         in each archive, or .npz

Both paths are tried, because it is not known which path the server supports. An archive is a single file, and is read in
parts that begin at blocks of the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import Listing, Selection, Shard, Source, by_images
from datasets_rl.sources.selection import MIN_RATIO, Numbers
from datasets_rl.ted.keys import OBSERVATION, PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SOURCE", "GenDGRL"]

_XZ_MAGIC = b"\xfd7zXZ\0"
_SHARD_STEPS = 50_000  # 600 MB of frames
_FRAME_BYTES = 3 * 64 * 64
_STEP_BYTES = 20  # of everything except the frame


class GenDGRL(Source):
    """Source of sixteen games in eight categories."""

    name = "gen_dgrl"
    reader = "datasets_rl.sources.gen_dgrl.reader:GenDGRLReader"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    def assets(self, name: str) -> Sequence[Asset]:
        """Return the archive of an id. The path is the first path above."""
        from datasets_rl.fetch.asset import Asset

        paths = self._archive_paths(name)
        urls = tuple(self.catalog["base"] + path for path in paths)
        return (_with_format(Asset(urls, paths[0])),)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Find the archive under either path, and split the archive into parts, see `Source.resolve`."""
        (asset,) = self.assets(name)
        try:
            listed = {asset.path: asset for asset in upstream.folder("", ()).assets}
        except FetchError:
            listed = {}  # neither a local folder nor a mirror that lists files
        paths = self._archive_paths(name)
        others = tuple(url for path in paths[1:] for url in upstream.mirror_urls(path))
        asset = replace(asset, urls=(*others, *asset.urls))
        asset = next((_with_format(listed[path]) for path in paths if path in listed), asset)
        steps = self.facts(name)["steps"][0]
        parts = max(1, steps // _SHARD_STEPS)
        frame_bytes = _FRAME_BYTES * (OBSERVATION in selection.kept_keys(PLAIN))
        sizes = {"compressed": _STEP_BYTES + frame_bytes / MIN_RATIO, "raw": _STEP_BYTES + frame_bytes}
        return Listing(
            (asset,),
            tuple(Shard((asset.path,), [part, parts]) for part in range(parts)),
            keys=PLAIN,
            # The lengths of the episodes are not known.
            stored_bytes={}
            if selection.episodes
            else by_images({form: steps * size for form, size in sizes.items()}, selection),
            numbers=Numbers.read(selection.episodes),
        )

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        game, groups = self.facts(name)["game"], self.catalog["groups"].values()
        return {"games": {group["game"]: group["game"] == game for group in groups if "game" in group}}

    def _archive_paths(self, name: str) -> list[str]:
        facts = self.facts(name)
        return [path.format(**facts) for path in facts["paths"]]


def _with_format(asset: Asset) -> Asset:
    """Return the asset with the file format and first bytes (magic number), which the download then checks."""
    # The archive of all games is not compressed, and may be served at the address of the archive of a single game.
    compressed = asset.path.endswith(".xz") and "100k" not in asset.path
    return replace(asset, magic=_XZ_MAGIC if compressed else b"", kind="tar.xz" if compressed else "tar")


SOURCE = GenDGRL()
