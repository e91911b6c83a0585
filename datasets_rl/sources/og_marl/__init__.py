"""OG-MARL: multi-agent datasets, in a zip file for each scenario, which has a vault of each quality.

core/smac_v1/3m/Good               the vault Good of core/smac_v1/3m.zip
cfcql/smac_v1/6h_vs_8z/Expert      the vault Expert of prior_work/cfcql/smac_v1/6h_vs_8z.zip
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy, join_names
from datasets_rl.sources.base import Entry, Listing, Option, Selection, Source, quality_tags

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["OGMARL", "SOURCE"]

_VAULT = re.compile(r"[\w-]+", re.ASCII)


class OGMARL(Source):
    """Source of the vaults of the scenarios that the catalog lists."""

    name = "og_marl"
    kind = "zip"
    reader = "datasets_rl.sources.og_marl.reader:VaultReader"
    image_forms = ()
    selects = frozenset({"episodes"})
    options = (Option("vault", "Vault of a zip file at an address, by the quality, such as Good."),)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Ask for the size of the file, see `Source.resolve`.

        Raises:
            MissingDependencyError: If tensorstore is not installed, without which the file would be downloaded in vain.
        """
        from datasets_rl.read.vault import require_tensorstore

        if "vault" in selection.options:
            raise InvalidArgumentError(
                f"{self.name}/{name} names a vault, and only a file at an address has an option for it"
            )
        require_tensorstore()
        (asset,) = self.assets(name)
        return self.listing([upstream.with_size(asset)], selection)

    @override
    def recognize(self, files: AddressFiles) -> str:
        found = files.ending(".zip")
        vaults = _vaults(files, found[0]) if len(found) == 1 else []
        return f"{found[0]} has the vaults {join_names(vaults)}" if vaults else ""

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        from datasets_rl.read.vault import require_tensorstore
        from datasets_rl.sources.address_files import AddressFiles

        require_tensorstore()
        (asset,) = [asset for asset in folder.assets if asset.path.lower().endswith(".zip")]
        vaults = _vaults(AddressFiles(folder, entry.name, upstream), asset.path.removeprefix(f"{entry.name}/"))
        chosen = selection.options.get("vault", vaults[0] if len(vaults) == 1 else "")
        if chosen not in vaults:
            problem = f"vault is {chosen!r}" if chosen else "it has several vaults"
            choose = Argument("selection", Call("Selection", options={"vault": vaults[0]}))
            raise ConversionError(
                entry.id, [f"{problem}, expected one of {', '.join(vaults)}"], hint=Remedy("choose one with {}", choose)
            )
        return replace(self.listing([asset.of_kind(self.kind)], selection), params={"vault": chosen})

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params or {"vault": self.facts(name)["vault"]}

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id that the catalog lists, or of another vault of a scenario that the catalog lists."""
        scenario, _, vault = name.rpartition("/")
        if name not in self.catalog["ids"] and scenario in self.catalog["groups"] and _VAULT.fullmatch(vault):
            return {"in": [*scenario.split("/")[:2], scenario], "vault": vault, "tags": quality_tags(vault)}
        return super().listed_facts(name)


def _vaults(files: AddressFiles, path: str) -> list[str]:
    """Return the names of the vaults in a zip file, sorted."""
    from datasets_rl.read.vault import find_vaults

    return sorted(files.inspected(path, find_vaults))


SOURCE = OGMARL()
