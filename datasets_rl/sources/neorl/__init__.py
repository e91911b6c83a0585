"""NeoRL and NeoRL-2: tasks near the real world, in an npz file per id, whose name is the name of the file.

HalfCheetah-v3-low-100-train    v2/HalfCheetah-v3/HalfCheetah-v3-low-100-train-noise.npz
ib-medium-1000-val              v2/ib/ib-medium-1000-val.npz
Pipeline-train                  neorl2/Pipeline/Pipeline-train.npz
Pipeline-50-train               any other name of this form: a file of the user or of a mirror, which has no known digest
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.sources.base import Entry, Score, SpaceSummary, quality_tags
from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.flat.rules import rules_of
from datasets_rl.sources.flat.source import FlatSource
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    PLAIN,
)

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset

__all__ = ["SOURCE", "NeoRL"]

_REST = re.compile(
    r"(?:-(?P<level>low|medium|high|expert))?(?:-(?P<episodes>[1-9]\d*))?-(?P<split>train|val)", re.ASCII
)
_ROW_BYTES = 12
"""The reward, the flags and the container of a row, without observations and actions."""
_WITHOUT_NOISE = "ib"
_EXACT_LENGTH = "citylearn"


class NeoRL(FlatSource):
    """Source of the files that the catalog lists: rows of all trajectories, one after the other.

    obs, action   s_0 a_0   s_1 a_1   s_2 a_2 | s_0' a_0'
    next_obs      s_1       s_2       s_3     | s_1'           s_3 is stored only here
    reward        r_0       r_1       r_2     | r_0'           of the action in the same row
    done          0         0         1       | 0              0 at time limits
    truncated     0         0         0       | 0              NeoRL-2 only
    index         (0)                            3 ...         first rows of trajectories, as floats; the 0 may be missing

    A trajectory ends where index starts the next one, at a flag, and where next_obs is not the observation of the next row.
    """

    name = "neorl"
    image_forms = ()
    selects = frozenset({"episodes"})
    endings = (".npz",)
    kind = "npz"
    asks_sizes = True
    keys = PLAIN
    arrays = ("obs", "next_obs", "action", "reward", "done")
    layout = Layout(
        (
            Field(OBSERVATION, "obs"),
            Field(ACTION, "action"),
            Field(NEXT_REWARD, "reward"),
            Field((NEXT, *OBSERVATION), "next_obs"),
            Field(NEXT_TERMINATED, "done"),
            Field(NEXT_TRUNCATED, "truncated", optional=True),
        ),
        by="flags",
        starts="index",
        seams=True,
        vectors=True,
    )
    rules = rules_of(
        "same-row",
        "index-without-zero",
        "end-by-index",
        "end-without-flag",
        "flag-within-trajectory",
        "seam-without-flag",
        "next-observation-rounded",
        "both-flags",
        "flags-cast",
        "widened",
        "not-finite",
        "no-transition",
    )

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
