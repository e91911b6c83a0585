"""The comparison of two datasets: stored ones, versions, addresses, and files of which no version was made."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from datasets_rl.differences import documents
from datasets_rl.differences.difference import Difference, Side
from datasets_rl.differences.pairing import pair_episodes, renamed_fields
from datasets_rl.differences.values import Comparison
from datasets_rl.downloading.opened import check_selection, opened
from datasets_rl.format.current import VERSION_NAME
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.ted.keys import EPISODE, NEXT_DONE


def diff(
    before: str | Path, after: str | Path, *, selection: Selection | None = None, settings: Settings | None = None
) -> Difference:
    """Compare two datasets: their descriptions, their episodes, and all values of the episodes that both have.

    Episodes are recognized by their values, so that another order, other keys and another form without loss do not hide an
    equal episode. Values are equal if they are the same number: dtypes are differences of the schema.

        >>> from datasets_rl import diff, download
        >>> folder = download("demo/pendulum")
        >>> diff("demo/pendulum", folder).summary
        'equal: 15,000 steps in 75 episodes'

    Args:
        before: The id of a stored dataset, the id with a version, ``demo/pendulum:0001``, a folder, an address, or a file or a
            folder of raw files. An address that is not stored, and raw files, are converted into a temporary folder.
        after: The other dataset.
        selection: The part of raw files, and of addresses that are not stored, and the options of the source of these files.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored.
        InvalidArgumentError: If there is no such version, or a selection but no raw files.
        ManifestError: If a manifest cannot be trusted.
        IntegrityError: If files of a dataset are missing or damaged.
    """
    settings = settings or Settings.from_env()
    check_selection(selection, before, after, settings=settings)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(opened(one, selection=selection, settings=settings)) for one in (before, after)
        )
        return compare(first, second, names=(str(before), str(after)), show=settings.progress)


def compare(first: StoredDataset, second: StoredDataset, *, names: tuple[str, str], show: bool = False) -> Difference:
    """Compare two opened datasets, as `diff` does.

    Args:
        first: The first dataset.
        second: The second dataset.
        names: The names of both for readers.
        show: Whether to show the progress.

    Raises:
        IntegrityError: If files of a dataset are missing or damaged.
    """
    pairs = pair_episodes(first, second)
    renamed = renamed_fields(first, second, pairs)
    common, uncompared = _common_fields(first, second)
    with report(f"comparing {names[0]} and {names[1]}", None, unit=" steps", show=show) as advance:
        comparison = Comparison(first, second, pairs, advance)
        fields = [*comparison.fields({**common, **renamed}), *comparison.columns()]
    lengths = [stored.episodes.lengths[numbers] for stored, numbers in zip((first, second), pairs.T, strict=True)]
    rows = zip(pairs.tolist(), lengths[0].tolist(), lengths[1].tolist(), strict=True)
    only = [
        tuple(np.setdiff1d(np.arange(len(stored.episodes)), numbers).tolist())
        for stored, numbers in zip((first, second), pairs.T, strict=True)
    ]
    return Difference(
        before=_side(names[0], first),
        after=_side(names[1], second),
        changes=tuple(documents.changes(first.manifest, second.manifest, renamed)),
        origins=tuple(documents.origins(first.manifest, second.manifest)),
        pairs=tuple((one, other) for one, other in pairs.tolist()),
        only_before=only[0],
        only_after=only[1],
        fields=tuple(fields),
        uncompared=uncompared,
        shortened=tuple((one, other, steps, others) for (one, other), steps, others in rows if steps != others),
        statistics=documents.statistics_that_differ(first.manifest, second.manifest),
    )


def _side(name: str, stored: StoredDataset) -> Side:
    version = stored.folder.name if VERSION_NAME.fullmatch(stored.folder.name) else ""
    return Side(name, stored.manifest.id, version, len(stored), stored.manifest.episodes)


def _common_fields(before: StoredDataset, after: StoredDataset) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the names of the fields of both datasets: those that can be compared, texts or as many elements, and the others."""
    fields = {field.name: field for field in before.schema if field.key not in {EPISODE, NEXT_DONE}}
    both = [(fields[field.name], field) for field in after.schema if field.name in fields]
    comparable = {field.name: field.name for field, other in both if _are_comparable(field, other)}
    return comparable, tuple(field.name for field, _ in both if field.name not in comparable)


def _are_comparable(field: Field, other: Field) -> bool:
    return field.text == other.text and math.prod(field.shape) == math.prod(other.shape)
