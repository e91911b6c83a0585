"""``rlds stats``: the distributions of a dataset's returns, lengths and fields."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Shell, StoredOrMixture, dataset_folders, read_keys
from ..output import Bars, Block, Facts, Lines, Result, Table, as_json, number_text, sparkline

if TYPE_CHECKING:
    from datasets_rl.look import Description, Distribution, EndStatistics, FieldDescription

GROUP = "Look"

_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def run(
    shell: Shell,
    dataset: StoredOrMixture,
    keys: Annotated[list[str], typer.Option("--keys", "-k", metavar="KEY,...", help="Show only these fields.")] = [],  # noqa: B006 -- Typer makes a list for each run
    bins: Annotated[int, typer.Option(min=2, max=1000, metavar="N", help="Number of bins of each histogram.")] = 12,
) -> Result:
    """Show histograms of the returns, lengths and fields of a dataset.

    Values that are NaN or infinite, constants and outliers are counted, and it is shown whether returns and lengths
    depend on how episodes end. Outliers are farther from the quantiles q01 and q99 than these from each other. Of
    images at most 256 steps are read. A mixture's datasets are shown one after the other.

    \b
    Examples:
      rlds stats demo/pendulum
      rlds stats d4rl/hopper-medium-v2 --keys action,next.reward --bins 40
      rlds stats ./my-dataset --json
    """
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.look import StepReader, describe
    from datasets_rl.progress import waiting

    chosen = read_keys(keys)
    found: list[tuple[Path, Description]] = []
    for folder in dataset_folders(shell, dataset):
        stored = StoredDataset(folder)
        with waiting(f"reading {len(stored):,} steps of {stored.manifest.id}", show=shell.settings.progress):
            found.append((folder, describe(StepReader(stored), keys=chosen, bins=bins)))
    data = [{**as_json(one), "folder": folder, "issues": one.issues()} for folder, one in found]
    blocks = [block for _, one in found for block in _blocks(one)]
    quiet = [issue for _, one in found for issue in one.issues()]
    return Result(data[0] if not dataset.endswith(".toml") else {"datasets": data}, blocks, quiet=quiet)


def _blocks(found: Description) -> Iterator[Block]:
    counts = f"{found.steps:,} steps, {found.episodes:,} episodes"
    yield Facts((("size", counts),), title=found.id)
    if issues := found.issues():
        yield Lines(tuple(issues), title="issues")
    yield from _episode_blocks("returns", found.returns)
    yield from _episode_blocks("lengths", found.lengths)
    yield _ends_table(found)
    correlation = tuple((name, f"{value:+.2f}") for name, value in found.ends.correlation.items() if value is not None)
    if correlation:
        yield Facts(correlation, title="correlation of time-outs with")
    if rows := [row for field in found.fields for row in _field_rows(field)]:
        header = ("field", "histogram", "mean", "std", "min", "max", "outliers")
        yield Table(header, tuple(rows), title="fields", listing=True, numbers=True)
    if sampled := [field for field in found.fields if field.sampled]:
        yield Lines(tuple(f"{field.key}: of {field.sampled:,} steps" for field in sampled), title="samples")
    for field in found.fields:
        if field.texts:
            yield Bars(tuple((text or '""', count) for text, count in field.texts), title=f"{field.key}, most frequent")


def _episode_blocks(name: str, found: Distribution) -> Iterator[Block]:
    quantiles = ", ".join(f"{one} {number_text(found.quantiles.get(one))}" for one in _QUANTILES)
    facts = (
        ("mean", f"{number_text(found.mean)}, std {number_text(found.std)}"),
        ("range", f"{number_text(found.min)} to {number_text(found.max)}"),
        ("quantiles", quantiles if not found.constant else ""),
    )
    yield Facts(facts, title=name)
    if found.histogram is not None and not found.constant:
        yield Bars(tuple(zip(_bin_names(found), _counts(found), strict=True)), title=f"histogram of {name}")


def _bin_names(found: Distribution) -> list[str]:
    """Return the labels of the bins, with those of outliers first and last."""
    histogram = found.histogram
    if histogram is None:
        return []
    low, *_, high = edges = histogram.edges
    pairs = pairwise(edges)
    each = all(start + 0.5 == int(start + 0.5) and stop - start == 1 for start, stop in pairs)
    names = [f"{int(start + 0.5)}" for start in edges[:-1]] if each else _range_names(edges)
    below = [f"below {number_text(low)}"] * bool(histogram.below)
    return [*below, *names, *[f"above {number_text(high)}"] * bool(histogram.above)]


def _range_names(edges: tuple[float, ...]) -> list[str]:
    return [f"{number_text(start)} to {number_text(stop)}" for start, stop in pairwise(edges)]


def _counts(found: Distribution) -> list[int]:
    histogram = found.histogram
    if histogram is None:
        return []
    outliers = [[count] * bool(count) for count in (histogram.below, histogram.above)]
    return [*outliers[0], *histogram.counts, *outliers[1]]


def _ends_table(found: Description) -> Table:
    rows = (("terminal state", found.ends.terminated), ("time-out", found.ends.timed_out))
    header = ("episodes that end by", "number", "mean return", "length", "reward per step")
    shown = tuple(_end_row(name, one) for name, one in rows if one.episodes)
    return Table(header, shown, title="ends of episodes", listing=True, numbers=True)


def _end_row(name: str, ends: EndStatistics) -> tuple[str, ...]:
    means = (ends.mean_return, ends.mean_length, ends.mean_reward)
    return (name, f"{ends.episodes:,}", *map(number_text, means))


def _field_rows(field: FieldDescription) -> Iterator[tuple[str, ...]]:
    for name, one in zip(field.names(), field.elements, strict=True) if field.elements else ():
        numbers = map(number_text, (one.mean, one.std, one.min, one.max))
        outliers = f"{one.outliers:,}" if one.outliers else "-"
        shape = "constant" if one.constant else sparkline(one.histogram.counts) if one.histogram is not None else "-"
        yield (name, shape, *numbers, outliers)
