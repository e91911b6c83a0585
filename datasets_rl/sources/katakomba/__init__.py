"""Katakomba: games of NetHack, in an HDF5 file for each character, of a role, a race and an alignment.

mon-hum-neu    data/data-mon-hum-neu-any.hdf5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import (
    Entry,
    EpisodeReader,
    Listing,
    Score,
    Selection,
    Shard,
    Source,
    SpaceSummary,
    by_images,
)
from datasets_rl.sources.selection import Numbers
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SCREEN", "SOURCE", "Katakomba"]

SCREEN = ("tty_chars", "tty_colors", "tty_cursor")
_MAGIC = b"\x89HDF\r\n\x1a\n"
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
        from datasets_rl.fetch.asset import Asset

        self.listed_facts(name)
        path = f"data-{name}-any.hdf5"
        return (Asset((self.catalog["base_url"] + path,), path, magic=_MAGIC, kind="HDF5"),)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Split the file into shards of its games; see `Source.resolve`."""
        (asset,) = self.assets(name)
        asset = upstream.with_size(asset)
        pieces = max(1, -(-(asset.size or 0) // _SHARD_BYTES))
        facts = self.listed_facts(name)
        fetched = facts["bytes"][0] / facts["steps"][0]
        growth = {form: (_ROW_BYTES + size) / fetched for form, size in _SCREEN_BYTES.items()}
        return Listing(
            (asset,),
            tuple(Shard((asset.path,), [piece, pieces]) for piece in range(pieces)),
            params={"keys": list(selection.keys)},
            keys=(*(("observation", part) for part in SCREEN), *PLAIN[1:]),
            growth={} if selection.keys else by_images(growth, selection),
            numbers=Numbers.read(selection.episodes),
        )

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        from datasets_rl.sources.katakomba.reader import KatakombaReader

        (path,) = files.values()
        return KatakombaReader(f"{self.name}/{name}", Path(path), params or {})


SOURCE = Katakomba()
