"""D4RL: one HDF5 file per id, from the server of Berkeley's RAIL lab. ``catalog.json`` lists the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import AT_ADDRESS, Source

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset

__all__ = ["D4RL", "SOURCE"]


class D4RL(Source):
    """Source of the files in D4RL's layout that the catalog lists."""

    name = "d4rl"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    arrays: tuple[str, ...] = ("observations", "actions", "rewards", "terminals")
    optional_arrays = frozenset({"timeouts", "next_observations"})
    foreign_arrays = frozenset({"costs"})
    reader = "datasets_rl.sources.d4rl.reader:D4RLReader"
    required: tuple[str, ...] = ()
    """Names of the HDF5 datasets that a file must have beside D4RL's own."""

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        # The path is that of the upstream, so that a copy of the upstream's files can serve as a mirror.
        (asset,) = super().assets(name)
        bases: Sequence[str] = self.catalog.get("flat_urls", ())  # mirrors without the upstream's folders
        flat = (base + asset.path.rpartition("/")[2] for base in bases)
        return (replace(asset, urls=(*asset.urls, *flat)),)

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        entry = None if AT_ADDRESS in params else self.entry(name)
        stated = {} if entry is None else {"time_limit": entry.time_limit, **entry.params}
        return {**stated, "required": self.required}


SOURCE = D4RL()
