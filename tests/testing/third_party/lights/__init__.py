"""A package beside datasets_rl: a source, and a component of each other kind in `lights.components`."""

from __future__ import annotations

from datasets_rl.sources.base import Listing, Shard, Source


class Lights(Source):
    """The days of the catalog, each a shard."""

    name = "lights"
    reader = "lights.reader:DayReader"

    def assets(self, name):
        return [self.listed_file(path, "zip") for path in self.facts(name)["days"]]

    def listing(self, assets, selection):
        return Listing(tuple(assets), tuple(Shard((asset.path,)) for asset in assets))


SOURCE = Lights()
