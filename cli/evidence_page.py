"""How files of the user are read, for ``rlds info`` and ``rlds init``: field by field, with the ends of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .output import Block, Facts, Table, count_text

if TYPE_CHECKING:
    from datasets_rl.sources.local.files import FilesDescription

_ENDS = {
    "file": "each file is an episode",
    "flags": "flags mark the last rows",
    "seams": "the next observation is not that of the following row",
    "starts": "an array marks the first rows",
    "ends": "an array has the rows after the last ones",
    "last-rows": "an array marks the last rows",
    "lengths": "an array has the lengths",
    "column": "the rows of an episode have equal values",
    "steps": "an array numbers the rows of each episode",
    "axis": "the first axis counts the episodes",
    "group": "each group of arrays is an episode",
    "suffix": "the numbers in the names of arrays are those of the episodes",
}


def evidence_blocks(found: FilesDescription, more: tuple[tuple[str, str], ...] = ()) -> Iterator[Block]:
    """Yield how files are read.

    Args:
        found: How the files are read.
        more: Further facts.
    """
    arrays = ", ".join(found.arrays)
    counted = "" if found.episodes is None else f"; {count_text(found.episodes, 'episode')} in {found.first}"
    facts = (
        ("described by", str(found.description or "the names and numbers in the files")),
        ("files", f"{found.files:,}, the first {found.first}"),
        *more,
        ("episodes end by", f"{found.by}: {_ENDS[found.by]}{arrays and f', {arrays}'}{counted}"),
        *(("measured", match) for match in found.measured),
    )
    yield Facts(facts, title=f"{found.path}")
    rows = [(one.key, one.array or "constant", one.dtype, str(list(one.shape))) for one in found.fields]
    rows += [("left out", one.array, one.dtype, str(list(one.shape))) for one in found.left_out]
    yield Table(("key", "array", "dtype", "shape"), tuple(rows), title=f"arrays of {found.first}")


def evidence_json(found: FilesDescription) -> dict[str, Any]:
    """Return how files are read, as JSON values."""
    return asdict(found)
