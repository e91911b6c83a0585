"""NeoRL and NeoRL-2: tasks near the real world, in an npz file per id, whose name is the name of the file.

HalfCheetah-v3-low-100-train    v2/HalfCheetah-v3/HalfCheetah-v3-low-100-train-noise.npz
ib-medium-1000-val              v2/ib/ib-medium-1000-val.npz
Pipeline-train                  neorl2/Pipeline/Pipeline-train.npz
Pipeline-50-train               any other name of this form: a file of the user or of a mirror, which has no known digest
"""

from __future__ import annotations

import re
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
    quality_tags,
)
from datasets_rl.sources.selection import Numbers
from datasets_rl.ted.keys import PLAIN

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["ARRAYS", "SOURCE", "NeoRL"]

ARRAYS = ("obs", "next_obs", "action", "reward", "done")
"""Names of the arrays that every file has."""

_REST = re.compile(
    r"(?:-(?P<level>low|medium|high|expert))?(?:-(?P<episodes>[1-9]\d*))?-(?P<split>train|val)", re.ASCII
)
_ROW_BYTES = 12
"""The reward, the flags and the container of a row, without observations and actions."""
_WITHOUT_NOISE = "ib"
_EXACT_LENGTH = "citylearn"


class NeoRL(Source):
    """Source of the files that the catalog lists."""

    name = "neorl"
    image_forms = ()
    selects = frozenset({"episodes"})

    @override
    def ids(self) -> Sequence[str]:
        return sorted(self.catalog["digests"])

    @override
    def entry(self, name: str) -> Entry:
        task, words = self._words(name)
        facts = self.catalog["tasks"][task]
        collection = self.catalog["collections"][facts["collection"]]
        issues = [self.catalog["issues"][facts["issue"]]] if "issue" in facts else []
        parts = [facts["title"], f"{words['level']} level" if words["level"] else ""]
        parts += [f"{int(words['episodes']):,} trajectories"] if words["episodes"] else []
        parts += ["the validation file"] if words["split"] == "val" else []
        return Entry(
            self.name,
            name,
            title=", ".join(filter(None, parts)),
            description=collection["description"],
            environment=task,
            observation=SpaceSummary("state", _shape(facts, "observation")),
            action=SpaceSummary("continuous", _shape(facts, "action"), None, -1, 1),
            **self.figures(_figures(task, facts, int(words["episodes"] or 0))),
            tags=(*facts["tags"], *quality_tags(words["level"] or "")),
            license=self.catalog["license"],
            citation=collection["citation"],
            homepage=collection["homepage"],
            known_issues=tuple(issues),
            score=_score(facts, collection),
            time_limit=facts.get("time_limit"),
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        task, _ = self._words(name)
        is_second = self.catalog["tasks"][task]["collection"] == "neorl2"
        noise = "" if is_second or task == _WITHOUT_NOISE else "-noise"
        path = f"{'neorl2' if is_second else 'v2'}/{task}/{name}{noise}.npz"
        return (self.listed_file(path, "npz", md5=self.catalog["digests"].get(name)),)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        (asset,) = self.assets(name)
        return _listing(upstream.with_size(asset), selection)

    @override
    def recognize(self, files: AddressFiles) -> str:
        found = files.ending(".npz")
        rows = files.rows_of(found[0], ARRAYS) if len(found) == 1 else None
        return "" if rows is None else f"{found[0]} has {', '.join(ARRAYS)} of {rows:,} rows each"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        (asset,) = [asset for asset in folder.assets if asset.path.lower().endswith(".npz")]
        return _listing(asset.of_kind("npz"), selection)

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        from datasets_rl.sources.neorl.reader import NeoRLReader

        del params
        (path,) = files.values()
        return NeoRLReader(f"{self.name}/{name}", Path(path))

    def _words(self, name: str) -> tuple[str, dict[str, str | None]]:
        """Return the task of an id, and its level, number of episodes and split.

        Raises:
            UnknownIdError: If the id is not made up of these.
        """
        for task in self.catalog["tasks"]:
            rest = _REST.fullmatch(name, len(task)) if name.startswith(task) else None
            if rest is not None:
                return task, rest.groupdict()
        raise self.unknown(name)


def _listing(asset: Asset, selection: Selection) -> Listing:
    return Listing((asset,), (Shard((asset.path,)),), keys=PLAIN, numbers=Numbers.read(selection.episodes))


def _shape(facts: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    return (facts[name],) if name in facts else None


def _score(facts: Mapping[str, Any], collection: Mapping[str, Any]) -> Score | None:
    if "score" not in facts:
        return None
    low, high = facts["score"]
    return Score(low, high, collection["score_origin"])


def _figures(task: str, facts: Mapping[str, Any], episodes: int) -> dict[str, Any]:
    """Return the figures that follow from the number of episodes in the name, if it has one, and the time limit."""
    if not episodes:
        return {}
    stated: dict[str, Any] = {"episodes": [episodes, "name"]}
    if "time_limit" in facts:
        steps = episodes * facts["time_limit"]
        stated["steps"] = [steps, "exact" if task == _EXACT_LENGTH else "most"]
        if "observation" in facts:
            stated["bytes"] = [steps * (4 * (2 * facts["observation"] + facts["action"]) + _ROW_BYTES), "assumed"]
    return stated


SOURCE = NeoRL()
