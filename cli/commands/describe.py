"""``rlds describe``: the distributions of a dataset's returns, lengths and fields, or the rows of an episode."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError

from ..options import Shell, StoredOrMixture, dataset_arguments, dataset_folders, name_of, read_keys
from ..output import Bars, Block, Facts, Lines, Result, Table, as_json, number_text, sparkline, value_text

if TYPE_CHECKING:
    from datasets_rl.look import (
        Description,
        Distribution,
        EndStatistics,
        EpisodeRows,
        FieldDescription,
        Histogram,
        Row,
    )
    from datasets_rl.ted.keys import Key

GROUP = "Look"

_QUANTILES = ("q01", "q10", "q50", "q90", "q99")
_ENDS = 5
"""Rows at the start and at the end of a long episode that are shown without --rows."""
_SHORT = 4
"""Elements of a vector that are shown without --keys."""
_FIRST = ("next.reward", "action", "observation")
_FLAGS = ("next.done", "next.terminated", "next.truncated")


def run(
    shell: Shell,
    dataset: StoredOrMixture,
    keys: Annotated[
        list[str], typer.Option("--keys", "-k", metavar="KEY,...", help="Show only these fields, with all elements.")
    ] = [],  # noqa: B006 -- Typer makes a list for each run
    bins: Annotated[int, typer.Option(min=2, max=1000, metavar="N", help="Number of bins of each histogram.")] = 12,
    episode: Annotated[
        int | None,
        typer.Option("--episode", "-e", metavar="N", help="Show the rows of this episode. -1 is the last episode."),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            metavar="START:STOP",
            help="Rows of the episode, as a slice of Python. : shows all, and by default the first and the last rows "
            "are shown.",
        ),
    ] = "",
) -> Result:
    """Show histograms of the returns, lengths and fields of a dataset, or the rows of an episode.

    Values that are NaN or infinite, constants and outliers are counted, and the output shows whether returns and
    lengths depend on how episodes end. Outliers are below q01 - (q99 - q01) or above q99 + (q99 - q01), where
    q01 and q99 are the 1% and 99% quantiles. Of images at most 256 steps are read. A mixture's datasets are shown in
    order.

    With --episode, row t has the state before action t, and the reward of that action. The last row is the observation
    after the last action. Images are shown by shape.

    \b
    Examples:
      rlds describe demo/pendulum
      rlds describe d4rl/hopper-medium-v2 --keys action,next.reward --bins 40
      rlds describe d4rl/hopper-medium-v2 --episode 3 --rows 0:5
      rlds describe ./my-dataset --episode -1 --json
    """
    chosen = read_keys(keys)
    if episode is not None or rows:
        return _episode_result(shell, dataset, episode or 0, rows, chosen)
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.look import StepReader, describe
    from datasets_rl.progress import waiting

    found: list[tuple[Path, Description]] = []
    for folder in dataset_folders(shell, dataset):
        stored = StoredDataset(folder)
        name = name_of(shell, folder, stored.manifest)
        with waiting(f"reading {len(stored):,} steps of {name}", show=shell.settings.progress):
            described = describe(StepReader(stored), keys=chosen, bins=bins)
        found.append((folder, dataclasses.replace(described, id=name)))
    orders = {folder: Manifest.read(folder).orders for folder, _ in found}
    data = [
        {**as_json(one), "folder": folder, "issues": one.issues(), "orders": orders[folder]} for folder, one in found
    ]
    blocks = [block for folder, one in found for block in _blocks(one, orders[folder])]
    quiet = [issue for _, one in found for issue in one.issues()]
    return Result(data[0] if not dataset.endswith(".toml") else {"datasets": data}, blocks, quiet=quiet)


def _blocks(found: Description, orders: Mapping[str, str]) -> Iterator[Block]:
    counts = f"{found.steps:,} steps, {found.episodes:,} episodes"
    yield Facts((("size", counts), *((f"{key}, in order", order) for key, order in orders.items())), title=found.id)
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
        yield Bars(tuple(_bins(found.histogram)), title=f"histogram of {name}")


def _bins(histogram: Histogram) -> Iterator[tuple[str, int]]:
    """Yield the label and the count of each bin, with the outliers first and last."""
    low, *_, high = edges = histogram.edges
    each = all(start + 0.5 == int(start + 0.5) and stop - start == 1 for start, stop in pairwise(edges))
    if histogram.below:
        yield f"below {number_text(low)}", histogram.below
    for (start, stop), count in zip(pairwise(edges), histogram.counts, strict=True):
        yield f"{int(start + 0.5)}" if each else f"{number_text(start)} to {number_text(stop)}", count
    if histogram.above:
        yield f"above {number_text(high)}", histogram.above


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


def _episode_result(shell: Shell, dataset: str, episode: int, rows: str, keys: list[Key] | None) -> Result:
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.look import StepReader, episode_rows
    from datasets_rl.store.find import locate

    if dataset.endswith(".toml"):
        raise InvalidArgumentError(
            f"{dataset} is a mixture, expected one of its datasets", hint="name a dataset of the mixture"
        )
    stored = StoredDataset(folder := locate(**dataset_arguments(shell, dataset)))
    steps = StepReader(stored)
    found = episode_rows(steps, episode, _read_slice(rows) if rows else slice(0, _ENDS), keys)
    if not rows and found.length > _ENDS:
        rest = slice(max(_ENDS, found.length - _ENDS), None)
        end = episode_rows(steps, episode, rest, keys)
        found = dataclasses.replace(end, rows=(*found.rows, *end.rows))
    if not found.rows:
        raise InvalidArgumentError(
            f"--rows {rows} has no row of episode {found.episode}, expected some of 0:{found.length}"
        )
    shown = name_of(shell, folder, stored.manifest)
    data = {
        "id": shown,
        "folder": stored.folder,
        **{name: getattr(found, name) for name in ("episode", "length", "start", "final_known")},
        "return": found.episode_return,
        "rows": [{"t": row.step, "row": row.row, **row.values} for row in found.rows],
        "final": found.final,
    }
    return Result(data, list(_episode_page(shown, found, full=bool(keys))), quiet=[str(row.row) for row in found.rows])


def _read_slice(text: str) -> slice:
    match = re.fullmatch(r"\s*(-?\d+)?\s*(:)?\s*(-?\d+)?\s*", text)
    if match is None or (match[1], match[2]) == (None, None):
        raise InvalidArgumentError(f"--rows is {text!r}, expected START:STOP, as in 0:5, -3: or :")
    start, stop = (None if number is None else int(number) for number in (match[1], match[3]))
    if match[2] is None and start is not None:
        return slice(start, start + 1 or None)
    return slice(start, stop)


def _episode_page(name: str, found: EpisodeRows, *, full: bool) -> Iterator[Block]:
    length = f"{found.length:,}, rows {found.start:,} to {found.start + found.length - 1:,} of the dataset"
    facts = (("steps", length), ("return", number_text(found.episode_return)))
    yield Facts(facts, title=f"{name}, episode {found.episode:,}")
    if found.rows:
        yield _rows_table(found, full=full)


def _rows_table(found: EpisodeRows, *, full: bool) -> Table:
    names = [name for name in found.rows[0].values if name not in _FLAGS]
    names.sort(key=lambda name: _place(name, found.rows[0].values[name]))
    lines = []
    for number, row in enumerate(found.rows):
        if number and row.step != found.rows[number - 1].step + 1:
            lines.append(("...", *[""] * (1 + len(names))))
        lines.append((str(row.step), _end_text(row), *(_value_text(row.values[name], full=full) for name in names)))
    if found.rows[-1].step == found.length - 1:
        states = {name: _value_text(value, full=full) for name, value in (found.final or {}).items()}
        if not found.final_known:
            states = {name: "unknown" for name in names if name.partition(".")[0] == "observation"}
        lines.append((str(found.length), "final", *(states.get(name, "") for name in names)))
    return Table(("t", "end", *names), tuple(lines), title="rows", listing=True, numbers=True)


def _place(name: str, value: Any) -> int:
    """Return the place of a column: the reward and the action come first, and images last."""
    part_of = name if name in _FIRST else name.partition(".")[0]
    if part_of in _FIRST:
        return _FIRST.index(part_of)
    return len(_FIRST) + (not isinstance(value, str) and not hasattr(value, "reshape"))


def _end_text(row: Row) -> str:
    return "terminated" if row.terminated else "truncated" if row.truncated else ""


def _value_text(value: Any, *, full: bool) -> str:
    if isinstance(value, str):
        return value
    if not hasattr(value, "reshape"):
        return f"{value.dtype} {list(value.shape)}"
    numbers = value.reshape(-1).tolist()
    shown = numbers if full or len(numbers) <= _SHORT else numbers[: _SHORT - 1]
    texts = [value_text(number) for number in shown]
    if len(numbers) == 1:
        return texts[0]
    more = f" ... {len(numbers)}" if len(shown) < len(numbers) else ""
    return f"[{' '.join(texts)}{more}]"
