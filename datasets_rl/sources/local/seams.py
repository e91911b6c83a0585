"""Check that the next observations of a file are those of the following rows, before the file is converted."""

from __future__ import annotations

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.measured import next_rows
from datasets_rl.sources.flat.plan import Plan

_ROWS = 1 << 17
_BYTES = 64 << 20
"""Maximum number of bytes of an array that are compared here. The conversion compares all rows."""


def check_seams(file: ArrayFile, plan: Plan, ends: Ends) -> None:
    """Check that within an episode, the next observation of a row is the observation of the following row.

    Raises:
        ConversionError: If a row differs, and the description does not say that an episode ends there.
    """
    if plan.layout.seams or not plan.following:
        return
    problems = []
    for first in next_rows(file, plan, ends, _ROWS, _BYTES):
        if len(rows := first.seams):
            such = "the only such row" if len(rows) == 1 else f"{len(rows):,} such rows"
            at = f"{first.name} of row {rows[0]:,} is not {first.own} of row {rows[0] + 1:,} ({such})"
            without = "an episode ends there without a flag" if plan.by == "flags" else "an episode may end there"
            problems.append(f"{at}: {without}")
    if problems:
        hint = 'write [episodes], by = "seams" in dataset.toml if an episode ends in each such row, or correct the file'
        raise ConversionError(file.name, problems, hint=hint)
