"""``rlds diff``: what differs between two datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import candidates
from ..options import Shell
from ..output import Block, Lines, Result, Table, number_text
from ..source_options import source_choices, source_options

if TYPE_CHECKING:
    from datasets_rl.differences import Change, Difference, FieldDifference

__all__ = ["GROUP", "run", "source_options"]

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
    **choices: str,
) -> Result:
    """Compare two datasets: descriptions, episodes, and every value of the episodes that both have.

    Episodes are recognized by their values, so that the order of the episodes and the names of the fields may differ. An
    address that is not stored, and raw files, are converted into a temporary folder, with the options of a source, such as --layout. Nothing is stored. The exit code is 0
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
    found = diff(*paths, selection=source_choices(choices), settings=shell.settings)
    return Result(
        found.to_json(),
        [*_blocks(found, origins=shell.verbose > 0), *_beside(shell, found, before, after)],
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
    if statistics := [*_statistics(found.statistics)]:
        rows = tuple(row for both in statistics[:_SHOWN] for row in both)
        yield Table(("statistic", *_STATISTICS), rows, title=_title("statistics, before and after", len(statistics)))
    if origins and found.origins:
        yield _table_of_changes("origin, which does not count", found.origins)


def _beside(shell: Shell, found: Difference, before: str, after: str) -> Iterator[Block]:
    """Yield the command that shows the episodes that differ, if any do."""
    if found.shortened or found.different_fields:
        yield Lines((shell.rlds("view", before, after, "--diff"),), title="the episodes beside each other")


def _table_of_changes(title: str, changes: Sequence[Change]) -> Table:
    rows = tuple((one.name, one.before or "-", one.after or "-") for one in changes[:_SHOWN])
    return Table(("what", "before", "after"), rows, title=_title(title, len(changes)))


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
    values = " -> ".join(one.first.texts)
    compared = f" of {one.compared:,}"
    return (
        name,
        f"{one.steps:,}{compared}" if one.of_steps else "-",
        f"{one.values:,}",
        f"{len(one.episodes):,}{'' if one.of_steps else compared}",
        number_text(one.greatest),
        f"{place}{step}{element}: {values}",
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: ``0-3, 7``."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    texts = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,}-{run[-1]:,}" for run in runs]
    return ", ".join([*texts[:_SHOWN], *(["..."] if len(texts) > _SHOWN else [])])


def _statistics(
    found: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield two rows for each name of both datasets whose shown digits differ. Those of images are left to `--json`."""
    for name, sides in found.items():
        if not all(sides) or any(isinstance(one, list) for one in _elements(sides[0].get("mean"))):
            continue
        before, after = (tuple(_numbers(side.get(kind)) for kind in _STATISTICS) for side in sides)
        if before != after:
            yield (f"{name}, before", *before), (f"{name}, after", *after)


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _numbers(value: Any) -> str:
    elements = _elements(value)
    shown = " ".join(map(number_text, elements[:_SHORT]))
    return shown if len(elements) <= _SHORT else f"{shown} ..."
