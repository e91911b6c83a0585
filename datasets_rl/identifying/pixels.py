"""Whether two episodes have the same images, although one of them has PNG or JPEG, which fingerprints take as bytes of files.

here    raw pixels  ---------------- compare ----------------  decoded pixels  <-  PNG    there
"""

from __future__ import annotations

import numpy as np

from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field

_ROWS = 16


def same_pixels(mine: StoredDataset, episode: int, name: str, theirs: StoredDataset, twin: int) -> bool:
    """Return whether a field of images of an episode has the pixels of a field of another episode, in every step.

    Args:
        mine: A dataset.
        episode: The number of an episode.
        name: The dotted key of a field of the dataset.
        theirs: Another dataset.
        twin: The number of an episode of the other dataset.
    """
    field = next(one for one in mine.schema if one.name == name)
    fields = [one for one in theirs.schema if _may_be_equal(field, one)]
    rows, other_rows = mine.episodes.rows(episode), theirs.episodes.rows(twin)
    if len(rows) != len(other_rows):
        return False
    fields.sort(key=lambda one: one.name != name)
    return any(_are_equal(mine, field, rows, theirs, one, other_rows) for one in fields)


def _may_be_equal(field: Field, other: Field) -> bool:
    """Return whether two fields are images of the same size whose fingerprints are of files on at least one side."""
    of_files = {field.form, other.form} & {"encoded", "video"}
    return bool(of_files) and (field.shape, field.dtype) == (other.shape, other.dtype)


def _are_equal(
    mine: StoredDataset, field: Field, rows: range, theirs: StoredDataset, other: Field, other_rows: range
) -> bool:
    shift = other_rows.start - rows.start
    starts = [rows.start, *range(rows.start + 1, rows.stop, _ROWS)]  # the first image shows most differences
    for start, stop in zip(starts, [*starts[1:], rows.stop], strict=True):
        images = mine.column(field.key, start, stop)
        if not np.array_equal(images, theirs.column(other.key, start + shift, stop + shift)):
            return False
    return True
