"""OG-MARL: multi-agent datasets, in a zip file for each scenario, which has a vault of each quality.

core/smac_v1/3m/Good               the vault Good of core/smac_v1/3m.zip
cfcql/smac_v1/6h_vs_8z/Expert      the vault Expert of prior_work/cfcql/smac_v1/6h_vs_8z.zip
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy, join_names
from datasets_rl.sources.base import (
    Entry,
    Listing,
    Option,
    Selection,
    Source,
    SpaceSummary,
    quality_tags,
)

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["OGMARL", "SOURCE"]

_UID = re.compile(r"[\w-]+", re.ASCII)


class OGMARL(Source):
    """Source of the vaults of the scenarios that the catalog lists."""

    name = "og_marl"
    kind = "zip"
    reader = "datasets_rl.sources.og_marl.reader:VaultReader"
    image_forms = ()
    selects = frozenset({"episodes"})
    options = (Option("vault", "Vault of a zip file at an address, by its quality, such as Good."),)

    @override
    def ids(self) -> Sequence[str]:
        scenarios = self.catalog["scenarios"].items()
        return sorted(f"{scenario}/{uid}" for scenario, facts in scenarios for uid in facts["uids"])

    @override
    def entry(self, name: str) -> Entry:
        facts, uid = self._scenario(name)
        catalog = self.catalog
        collection, environment, scenario = name.split("/")[:3]
        described = catalog["environments"][environment]
        issues = [catalog["issues"][issue] for issue in ("all", described.get("issue")) if issue]
        agents = f", {facts['agents']} agents" if "agents" in facts else ""
        return self.catalog_entry(
            name,
            title=f"{described['title']}: {scenario}{agents}, {uid}",
            description=f"{catalog['collections'][collection]}. Agents cooperate; each has its own observation and action.",
            environment=f"{environment}/{scenario}",
            observation=SpaceSummary("state"),
            action=SpaceSummary(described["action"], (facts["agents"],) if "agents" in facts else None)
            if described["action"] == "discrete"
            else SpaceSummary("continuous", None, None, -1, 1),
            tags=("multi-agent", *described["tags"], *quality_tags(uid)),
            known_issues=tuple(issues),
            **self.figures(facts.get("figures", {}).get(uid, {})),
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        facts, _ = self._scenario(name)
        path = f"{facts['folder']}/{name.split('/')[2]}.zip"
        return (self.listed_file(path, "zip"),)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Ask for the size of the file; see `Source.resolve`.

        Raises:
            MissingDependencyError: If tensorstore is not installed, without which the file would be downloaded in vain.
        """
        from datasets_rl.read.vault import require_tensorstore

        if "vault" in selection.options:
            raise InvalidArgumentError(
                f"{self.name}/{name} names its vault; only a file at an address has an option for it"
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
                entry.id, [f"{problem}; expected one of {', '.join(vaults)}"], hint=Remedy("choose one with {}", choose)
            )
        return replace(self.listing([asset.of_kind(self.kind)], selection), params={"vault": chosen})

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"vault": params.get("vault") or self._scenario(name)[1]}

    def _scenario(self, name: str) -> tuple[dict[str, Any], str]:
        """Return what the catalog states about the scenario of an id, and the name of its vault.

        Raises:
            UnknownIdError: If the catalog does not have the scenario.
        """
        scenario, _, uid = name.rpartition("/")
        facts: dict[str, Any] | None = self.catalog["scenarios"].get(scenario)
        if facts is None or not _UID.fullmatch(uid):
            raise self.unknown(name)
        return facts, uid


def _vaults(files: AddressFiles, path: str) -> list[str]:
    """Return the names of the vaults in a zip file, sorted."""
    from datasets_rl.read.vault import find_vaults

    return sorted(files.inspected(path, find_vaults))


SOURCE = OGMARL()
