"""DSRL: tasks of safe reinforcement learning, in one HDF5 file per id of D4RL's layout, with the cost of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Score, Selection, Source, SpaceSummary
from datasets_rl.sources.d4rl import FLAT_FILE, flat_file_evidence, flat_file_listing

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["DSRL", "SOURCE"]

_STEP_BYTES = 500


class DSRL(Source):
    """Source of the files that the catalog lists."""

    name = "dsrl"
    image_forms = ()

    @override
    def entry(self, name: str) -> Entry:
        facts, catalog = self.listed_facts(name), self.catalog
        group = catalog["groups"][facts["in"]]
        steps = facts["episodes"] * facts["time_limit"]
        low, high = facts["score"]
        return self.catalog_entry(
            name,
            title=f"{group['title']}: {facts['environment'].removeprefix('Safety').removeprefix('Safe')}",
            description=f"{group['description']} Costs of an episode are at most {facts['cost']}.",
            environment=facts["environment"],
            observation=SpaceSummary("state"),
            action=SpaceSummary("continuous", None, None, -1, 1),
            **self.figures(
                {
                    "bytes": [steps * _STEP_BYTES, "assumed"],
                    "steps": [steps, "most"],
                    "episodes": [facts["episodes"], "name"],
                }
            ),
            tags=tuple(group["tags"]),
            known_issues=tuple(catalog["known_issues"]),
            score=Score(low, high, catalog["score_origin"]),
            time_limit=facts["time_limit"],
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        return (self.listed_file(self.listed_facts(name)["path"], "HDF5"),)

    @override
    def recognize(self, files: AddressFiles) -> str:
        return flat_file_evidence(files, costs=True)

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        return flat_file_listing(entry, folder)

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        from datasets_rl.sources.d4rl.reader import D4RLReader

        facts = self.listed_facts(name) if FLAT_FILE not in (params or {}) else {}
        path = (params or {}).get(FLAT_FILE) or facts["path"]
        reader = D4RLReader(
            Path(files[path]), f"{self.name}/{name}", time_limit=facts.get("time_limit"), continuing=False
        )
        if not any(column.key == ("next", "cost") for column in reader.columns):
            reader.__exit__()
            raise ConversionError(f"{self.name}/{name}", ["costs is missing; expected costs [N]"])
        return reader


SOURCE = DSRL()
