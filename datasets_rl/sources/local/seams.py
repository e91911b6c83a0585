"""Check that the next observations of a file are those of the following rows, before the file is converted."""

from __future__ import annotations

import numpy as np

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.measured import rows_of
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.values import find_jumps

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
    by_key = {part.column.key: part.array for part in plan.parts}
    problems = []
    for key, name in plan.following.items():
        own = by_key[key]
        widest = max(file.arrays[one].row_bytes for one in (own, name))
        steps = np.arange(min(ends.steps, _ROWS, _BYTES // max(widest, 1)))
        if len(steps) < 2:
            continue
        episodes = np.searchsorted(np.cumsum(ends.lengths), steps, "right").astype(np.int64)
        after = rows_of(file, name, steps + ends.extra * episodes)
        observed = rows_of(file, own, steps + ends.extras[own] * episodes)
        jumps, _ = find_jumps(after[:-1], observed[1:])
        rows = np.flatnonzero(jumps & (episodes[1:] == episodes[:-1]))
        if len(rows):
            such = "the only such row" if len(rows) == 1 else f"{len(rows):,} such rows"
            at = f"{name} of row {rows[0]:,} is not {own} of row {rows[0] + 1:,} ({such})"
            without = "an episode ends there without a flag" if plan.by == "flags" else "an episode may end there"
            problems.append(f"{at}: {without}")
    if problems:
        hint = 'write [episodes], by = "seams" in dataset.toml if an episode ends in each such row, or correct the file'
        raise ConversionError(file.name, problems, hint=hint)
