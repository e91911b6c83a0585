"""Gen-DGRL: episodes of Procgen, an archive of files an id, from a plain web server.

    Procgen/Datasets/Compressed/1M/level_200/expert/bigfish.tar.xz      as TorchRL has it
    1M/expert/bigfish.tar.xz                                            as the upstream's own tool has it since 2023
    100k_procgen_dataset_1.tar                                          all games in one archive

    bigfish/<time>_<episode>_<length>_<level seed>_<return>.npy         in each; or .npz

Neither scheme is known to be the one that answers: both are tried. An archive is one file, and is read in parts that
begin where its blocks do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection, Shard, Source
from datasets_rl.sources.selection import Numbers
from datasets_rl.ted.keys import OBSERVATION, PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.ted.table import EpisodeTable

__all__ = ["SOURCE", "GenDGRL"]

_XZ_MAGIC = b"\xfd7zXZ\0"
_SHARD_STEPS = 50_000  # 600 MB of frames
_FRAME_BYTES = 3 * 64 * 64
_STEP_BYTES = 20  # what is not the frame


class GenDGRL(Source):
    """Sixteen games in eight categories."""

    name = "gen_dgrl"
    selects = frozenset({"episodes"})

    def ids(self) -> Sequence[str]:
        """Return every id, sorted; no network."""
        catalog = self.catalog
        return sorted(f"{game}-{category}" for game in catalog["games"] for category in catalog["categories"])

    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network."""
        game, category = self._split(name)
        catalog = self.catalog
        return Entry(
            source=self.name,
            name=name,
            title=f"Procgen's {game}: {category['title']}",
            license=catalog["license"],
            citation=catalog["citation"],
            homepage=catalog["homepage"],
            known_issues=tuple(catalog["known_issues"][fault] for fault in category["known_issues"]),
        )

    def assets(self, name: str) -> Sequence[Asset]:
        """Return the archive of an id; its path is that of the first scheme."""
        from datasets_rl.fetch.asset import Asset

        paths = self._paths(name)
        urls = tuple(self.catalog["base"] + path for path in paths)
        return (_checked(Asset(urls, paths[0])),)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Take the archive that the user has under one of its names, or the upstream's; cut it into parts."""
        (asset,) = self.assets(name)
        try:
            there = {one.path: one for one in upstream.folder("", ()).assets}
        except FetchError:
            there = {}  # neither a folder of the user's nor a mirror that gives lists
        paths = self._paths(name)
        others = tuple(url for path in paths[1:] for url in upstream.below_mirrors(path))
        asset = replace(asset, urls=(*others, *asset.urls))
        asset = next((_checked(there[path]) for path in paths if path in there), asset)
        steps = self._split(name)[1]["steps"]
        parts = max(1, steps // _SHARD_STEPS)
        a_step = _STEP_BYTES + _FRAME_BYTES * (OBSERVATION in selection.kept_keys(PLAIN))
        return Listing(
            (asset,),
            tuple(Shard((asset.path,), [part, parts]) for part in range(parts)),
            params={"keys": list(selection.keys)},
            keys=PLAIN,
            # How long the episodes are is not known.
            stored_bytes=None if selection.episodes else steps * a_step,
            numbers=Numbers.read(selection.episodes),
        )

    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the archive."""
        from datasets_rl.sources.gen_dgrl.reader import GenDGRLReader

        (place,) = files.values()
        games = {game: game == self._split(name)[0] for game in self.catalog["games"]}
        return GenDGRLReader(f"{self.name}/{name}", Path(place), games, params or {})

    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted dataset with its archive, episode by episode."""
        from datasets_rl.sources.gen_dgrl.compare import compare

        (place,) = files.values()
        others = set(self.catalog["games"]) - {self._split(name)[0]}
        return [] if episodes is None else compare(Path(place), others, column, episodes)

    def _split(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the game, and what is known of the category."""
        game, _, category = name.partition("-")
        if game not in self.catalog["games"] or category not in self.catalog["categories"]:
            raise self.unknown(name)
        return game, self.catalog["categories"][category]

    def _paths(self, name: str) -> list[str]:
        game, category = self._split(name)
        return [path.format(game=game) for path in category["paths"]]


def _checked(asset: Asset) -> Asset:
    """Say how the file begins, which no plain tar does."""
    # The archive of all games is plain, and may be what comes under the name of that of one game.
    squeezed = asset.path.endswith(".xz") and "100k" not in asset.path
    return replace(asset, magic=_XZ_MAGIC if squeezed else b"", kind="tar.xz" if squeezed else "tar")


SOURCE = GenDGRL()
