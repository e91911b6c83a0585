"""Rules of flat rows: the text of each decision that the reader of flat rows may make, by a stable name."""

from __future__ import annotations

from collections.abc import Mapping

from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE

__all__ = ["RULES", "rules_of"]

RULES: Mapping[str, str] = {
    "same-row": "row i has the observation, the action taken in it, and the reward and flags of that action",
    "one-more": "an episode has one more observation than actions: the last one is the observation after the last "
    "action",
    "action-before": "row i has an observation, and the action, reward and flags before it: action, reward and flags were moved one "
    "row up",
    "index-without-zero": "the array of first rows does not begin with 0: the first trajectory begins there",
    "end-by-index": "a trajectory ends without a flag, because the array of first rows starts another one: the last row "
    "was marked truncated",
    "flag-within-trajectory": "a flag within a trajectory of the array of first rows ends the episode, too",
    "no-terminated": "the files have no flag for terminations: no step is marked terminated",
    "done-as-terminated": "the files have no flag for terminations: every end that is not marked truncated is marked "
    "terminated",
    "done-as-truncated": "steps that are done and not terminated were marked truncated",
    "end-without-flag": "episodes end without a flag: the last step of such an episode was marked truncated",
    "seam-without-flag": "the next observation differs from the observation of the next row, but the row has no end flag: "
    "the row was marked truncated, because another trajectory begins after the row",
    "next-observation-rounded": "next observations differ from the observation of the next row only by rounding "
    "(docs/sources/d4rl.md states the limit): the observation of the next row was stored for both",
    "final-observation-kept": "the observation after the last step of an episode was taken from the files",
    "final-observation-unknown": "the files do not store the observation after the last step of an episode",
    "both-flags": "steps that are terminated and truncated keep both flags",
    "flags-cast": "the files store flags as numbers, 0 or 1, which were converted to booleans",
    "widened": "unsigned integers of 16 and 32 bits were converted to signed integers of 32 and 64 bits, which torch "
    "can gather",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
    **NOT_FINITE,
    **NO_TRANSITION,
}


def rules_of(*names: str) -> dict[str, str]:
    """Return some of the rules with the texts, in the order of the names."""
    return {name: RULES[name] for name in names}
