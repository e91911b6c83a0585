"""Katakomba: games of NetHack, in an HDF5 file for each character, of a role, a race and an alignment.

mon-hum-neu    data/data-mon-hum-neu-any.hdf5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import (
    Entry,
    EpisodeReader,
    Listing,
    Score,
    Selection,
    Source,
    SpaceSummary,
    by_images,
    cut_file,
)
from datasets_rl.sources.selection import Numbers
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["ARRAYS", "SCREEN", "SOURCE", "Katakomba"]

SCREEN = ("tty_chars", "tty_colors", "tty_cursor")
ARRAYS = (*SCREEN, "actions", "rewards", "dones")
"""Names of the arrays of a game."""
_SHARD_BYTES = 64 << 20
_SCREEN_BYTES = {"compressed": 350.0, "raw": 2.0 * 24 * 80}
"""The characters and the colors of a step, by the form in which they are stored; compressed, as of a random player."""
_ROW_BYTES = 40
"""Everything else of a step, with the ends of the compressed bytes."""
_ACTIONS = 121


class Katakomba(Source):
    """Source of the games that AutoAscend played with each character."""

    name = "katakomba"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    @override
    def entry(self, name: str) -> Entry:
        facts, catalog = self.listed_facts(name), self.catalog
        role, race, alignment = name.split("-")
        return self.catalog_entry(
            name,
            title=f"NetHack: a {catalog['alignments'][alignment]} {catalog['races'][race]} {catalog['roles'][role]}",
            description=f"{catalog['description']} The median of the scores is {facts['median']:g}.",
            environment="NetHackChallenge-v0",
            observation=SpaceSummary("pixels"),
            action=SpaceSummary("discrete", (1,), _ACTIONS),
            **self.figures({"bytes": facts["bytes"], "steps": facts["steps"]}),
            tags=("games", "nethack", "text", catalog["roles"][role]),
            known_issues=tuple(catalog["known_issues"]),
            score=Score(0, facts["score"], catalog["score_origin"]),
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        self.listed_facts(name)
        return (self.listed_file(f"data-{name}-any.hdf5", "HDF5"),)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Split the file into shards of its games; see `Source.resolve`."""
        (asset,) = self.assets(name)
        facts = self.listed_facts(name)
        fetched = facts["bytes"][0] / facts["steps"][0]
        growth = {form: (_ROW_BYTES + size) / fetched for form, size in _SCREEN_BYTES.items()}
        listing = _listing(upstream.with_size(asset), selection)
        return replace(listing, growth={} if selection.keys else by_images(growth, selection))

    @override
    def recognize(self, files: AddressFiles) -> str:
        found = files.ending(".hdf5", ".h5")
        if len(found) != 1:
            return ""
        game = next((name for name, shape in files.arrays(found[0]).items() if shape is None), "")
        if not game or files.rows_of(found[0], [f"{game}{name}" for name in ARRAYS]) is None:
            return ""
        return f"the group {game.rstrip('/')} of {found[0]} has {', '.join(ARRAYS[:-1])} and {ARRAYS[-1]}"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        (asset,) = [asset for asset in folder.assets if asset.path.lower().endswith((".hdf5", ".h5"))]
        return _listing(asset.of_kind("HDF5"), selection)

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        from datasets_rl.sources.katakomba.reader import KatakombaReader

        (path,) = files.values()
        return KatakombaReader(f"{self.name}/{name}", Path(path))


def _listing(asset: Asset, selection: Selection) -> Listing:
    """Split a file into shards of its games."""
    return Listing(
        (asset,),
        cut_file(asset, _SHARD_BYTES),
        keys=(*(("observation", part) for part in SCREEN), *PLAIN[1:]),
        numbers=Numbers.read(selection.episodes),
    )


SOURCE = Katakomba()
