"""Katakomba: games of NetHack, in an HDF5 file for each character, of a role, a race and an alignment.

mon-hum-neu    data/data-mon-hum-neu-any.hdf5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from datasets_rl.sources.base import Listing, Selection, Source, by_images, cut_file
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["ARRAYS", "SCREEN", "SOURCE", "Katakomba"]

SCREEN = ("tty_chars", "tty_colors", "tty_cursor")
ARRAYS = (*SCREEN, "actions", "rewards", "dones")
"""Names of the arrays of a game."""
_SHARD_BYTES = 64 << 20
_SCREEN_BYTES = {"compressed": 350.0, "raw": 2.0 * 24 * 80}
"""The characters and the colors of a step, by the form in which they are stored. The compressed size was measured of a
random player."""
_ROW_BYTES = 40
"""Everything else of a step, with the ends of the compressed bytes."""


class Katakomba(Source):
    """Source of the games that AutoAscend played with each character."""

    name = "katakomba"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    keys = (*(("observation", part) for part in SCREEN), *PLAIN[1:])
    reader = "datasets_rl.sources.katakomba.reader:KatakombaReader"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Split the file into shards of the games, see `Source.resolve`."""
        (asset,) = self.assets(name)
        facts = self.facts(name)
        fetched = facts["bytes"][0] / facts["steps"][0]
        growth = {form: (_ROW_BYTES + size) / fetched for form, size in _SCREEN_BYTES.items()}
        listing = self.listing([upstream.with_size(asset)], selection)
        return replace(listing, growth={} if selection.keys else by_images(growth, selection))

    @override
    def recognize(self, files: AddressFiles) -> str:
        found = files.ending(*self.endings)
        if len(found) != 1:
            return ""
        game = next((name for name, shape in files.arrays(found[0]).items() if shape is None), "")
        if not game or files.rows_of(found[0], [f"{game}{name}" for name in ARRAYS]) is None:
            return ""
        return f"the group {game.rstrip('/')} of {found[0]} has {', '.join(ARRAYS[:-1])} and {ARRAYS[-1]}"

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Split the file into shards of the games."""
        return replace(super().listing(assets, selection), shards=cut_file(assets[0], _SHARD_BYTES))


SOURCE = Katakomba()
