"""``rlds diff``: what differs between two datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import candidates
from ..options import Shell
from ..output import Block, Lines, Result, Table, number_text, value_text

if TYPE_CHECKING:
    from datasets_rl.differences import Change, Difference, FieldDifference

GROUP = "Look"

_DIFFERENT = 1
_SHOWN = 20
"""Lines of each part that are printed. `--json` has all."""
_SHORT = 4
"""Elements of a vector of which the statistics are printed."""
_STATISTICS = ("mean", "std", "min", "max")

_dataset = typer.Argument(
    metavar="ID|PATH|ADDRESS",
    help="SOURCE/NAME, SOURCE/NAME:VERSION, a folder, an address, or raw files.",
    autocompletion=candidates.stored_ids,
)


def run(
    shell: Shell,
    before: Annotated[str, _dataset],
    after: Annotated[str, _dataset],
) -> Result:
    """Compare two datasets: descriptions, episodes, and every value of the episodes that both have.

    Episodes are recognized by their values, so that the order of the episodes and the names of the fields may differ. An
    address that is not stored, and raw files, are converted into a temporary folder. Nothing is stored. The exit code is 0
    if the datasets are equal, and 1 if they differ. With -v, differences of where the data came from are shown, which do not
    count.

    \b
    Examples:
      rlds diff demo/pendulum demo/pendulum@td3_bc
      rlds diff demo/pendulum:0001 demo/pendulum
      rlds diff local/arm ./arm.hdf5
      rlds diff d4rl/hopper-medium-v2 hf://user/hopper --json
    """
    from datasets_rl.differences import diff
    from datasets_rl.disk import expand_home

    paths = [str(expand_home(one)) if one.startswith("~") else one for one in (before, after)]
    found = diff(*paths, settings=shell.settings)
    return Result(
        found.to_json(),
        [*_blocks(found, origins=shell.verbose > 0)],
        quiet=[found.summary],
        code=0 if found.equal else _DIFFERENT,
    )


def _blocks(found: Difference, *, origins: bool) -> Iterator[Block]:
    yield Lines((found.summary,))
    if found.changes:
        yield _table_of_changes("description", found.changes)
    if fields := [one for one in found.fields if not one.equal or one.name != one.other_name]:
        rows = tuple(map(_field_row, fields[:_SHOWN]))
        yield Table(
            ("field", "steps", "values", "episodes", "greatest", "first difference"),
            rows,
            title=_title("values", len(fields)),
        )
    for side, numbers in ((found.before, found.only_before), (found.after, found.only_after)):
        if numbers:
            yield Lines((f"episodes only in {side.name} ({len(numbers):,}): {_ranges(numbers)}",))
    if found.shortened:
        lines = [
            f"episode {one:,} -> {other:,}: {steps:,} -> {others:,} steps"
            for one, other, steps, others in found.shortened
        ]
        yield Lines(tuple(lines[:_SHOWN]), title=_title("episodes with another number of steps", len(lines)))
    if found.statistics:
        rows = tuple(row for name, pair in [*found.statistics.items()][:_SHOWN] for row in _statistic_rows(name, *pair))
        yield Table(
            ("statistic", *_STATISTICS), rows, title=_title("statistics, before and after", len(found.statistics))
        )
    if origins and found.origins:
        yield _table_of_changes("origin, which does not count", found.origins)


def _table_of_changes(title: str, changes: Sequence[Change]) -> Table:
    rows = tuple((one.name, one.before or "-", one.after or "-") for one in changes[:_SHOWN])
    return Table((title, "before", "after"), rows, title=_title(title, len(changes)))


def _title(title: str, count: int) -> str:
    return title if count <= _SHOWN else f"{title}: {_SHOWN} of {count:,}, --json has all"


def _field_row(one: FieldDifference) -> tuple[str, ...]:
    name = one.name if one.name == one.other_name else f"{one.name} -> {one.other_name}"
    if one.first is None:
        return (name, "0", "0", "0", "-", "equal values")
    episode, other = one.first.episodes
    place = f"episode {episode:,}" if episode == other else f"episode {episode:,} -> {other:,}"
    step = f", step {one.first.step:,}" if one.first.step >= 0 else ""
    element = f" {[*one.first.element]}" if one.first.element else ""
    values = f"{value_text(one.first.before)} -> {value_text(one.first.after)}"
    counts = f"{one.steps:,} of {one.compared:,}"
    return (
        name,
        counts,
        f"{one.values:,}",
        f"{one.episodes:,}",
        number_text(one.greatest),
        f"{place}{step}{element}: {values}",
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: ``0-3, 7``."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    texts = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,}-{run[-1]:,}" for run in runs]
    return ", ".join([*texts[:_SHOWN], *(["..."] if len(texts) > _SHOWN else [])])


def _statistic_rows(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for side, statistics in (("before", before), ("after", after)):
        yield (f"{name}, {side}", *(_numbers(statistics.get(kind)) for kind in _STATISTICS))


def _numbers(value: Any) -> str:
    if not isinstance(value, list):
        return number_text(value)
    shown = " ".join(number_text(one) if not isinstance(one, list) else "..." for one in value[:_SHORT])
    return shown if len(value) <= _SHORT else f"{shown} ..."
