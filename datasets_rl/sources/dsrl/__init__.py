"""DSRL: tasks of safe reinforcement learning, in one HDF5 file per id of D4RL's layout, with the cost of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import Entry, Score, Source, SpaceSummary

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset

__all__ = ["DSRL", "SOURCE"]

_STEP_BYTES = 500


class DSRL(Source):
    """Source of the files that the catalog lists."""

    name = "dsrl"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    arrays = ("observations", "actions", "rewards", "terminals", "costs")
    reader = "datasets_rl.sources.d4rl.reader:D4RLReader"
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
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().reader_facts(name, params), "required": ["costs"]}


SOURCE = DSRL()
