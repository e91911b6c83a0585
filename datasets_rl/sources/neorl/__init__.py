"""NeoRL and NeoRL-2: tasks near the real world, in an npz file per id. An id is the name of the file.

HalfCheetah-v3-low-100-train    v2/HalfCheetah-v3/HalfCheetah-v3-low-100-train-noise.npz
ib-medium-1000-val              v2/ib/ib-medium-1000-val.npz
Pipeline-train                  neorl2/Pipeline/Pipeline-train.npz
Pipeline-50-train               any other name of this form: a file of the user or of a mirror, which has no known digest
"""

from __future__ import annotations

import re
from typing import Any

from typing_extensions import override

from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.flat.rules import rules_of
from datasets_rl.sources.flat.source import FlatSource
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, PLAIN

__all__ = ["SOURCE", "NeoRL"]

_REST = re.compile(
    r"(?:-(?P<level>low|medium|high|expert))?(?:-(?P<episodes>[1-9]\d*))?-(?P<split>train|val)", re.ASCII
)


class NeoRL(FlatSource):
    """Source of the files that the catalog lists: rows of all trajectories, in order.

    obs, action   s_0 a_0   s_1 a_1   s_2 a_2 | s_0' a_0'
    next_obs      s_1       s_2       s_3     | s_1'           s_3 is stored only here
    reward        r_0       r_1       r_2     | r_0'           of the action in the same row
    done          0         0         1       | 0              0 at time limits
    truncated     0         0         0       | 0              NeoRL-2 only
    index         (0)                            3 ...         first rows of trajectories, as floats. The 0 may be missing

    A trajectory ends where index starts the next trajectory, at a flag, and where next_obs is not the observation of
    the next row.
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
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id that the catalog lists, or of another name of this form.

        Raises:
            UnknownIdError: If the name is not made up of a task, a level, a number of episodes and a split.
        """
        for task in (task for task in self.catalog["groups"] if name.startswith(task)):
            rest = _REST.fullmatch(name, len(task))
            if rest is None or name in self.catalog["ids"]:
                continue
            collection = next(
                facts["in"][0] for listed, facts in self.catalog["ids"].items() if listed.startswith(task)
            )
            title = [
                "{task}",
                *["{level} level"] * bool(rest["level"]),
                *["{count:,} trajectories"] * bool(rest["episodes"]),
            ]
            title += ["the validation file"] * (rest["split"] == "val")
            groups = [collection, task, *filter(None, [rest["level"]])]
            facts: dict[str, Any] = {"in": groups, "title": ", ".join(title)}
            if rest["episodes"]:
                count, limit = int(rest["episodes"]), self.catalog["groups"][task].get("time_limit")
                facts |= {"count": count, "episodes": [count, "name"]}
                facts |= {"steps": [count * limit, "most"]} if limit else {}
            return facts
        return super().listed_facts(name)


SOURCE = NeoRL()
