"""``rlds inspect``: the rows of an episode, one a line, and its true final observation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError

from ..options import Dataset, Shell, dataset_arguments, read_keys
from ..output import Block, Facts, Result, Table, number_text

if TYPE_CHECKING:
    from datasets_rl.look import EpisodeRows, Row

# -1 is the last episode here, and no option.
CONTEXT = {"ignore_unknown_options": True}

GROUP = "Look"

_ENDS = 5
"""Rows at the start and at the end of a long episode that are shown without --rows."""
_SHORT = 4
"""Elements of a vector that are shown without --keys."""
_FIRST = ("next.reward", "action", "observation")
_FLAGS = ("next.done", "next.terminated", "next.truncated")


def run(
    shell: Shell,
    dataset: Dataset,
    episode: Annotated[
        int, typer.Option("--episode", "-e", metavar="N", help="Number of the episode; -1 is the last one.")
    ] = 0,
    rows: Annotated[
        str,
        typer.Option(
            metavar="START:STOP",
            help="Rows of the episode, as a slice of Python; : shows all, and by default the first and the last ones are shown.",
        ),
    ] = "",
    keys: Annotated[
        list[str],
        typer.Option("--keys", "-k", metavar="KEY,...", help="Show only these fields, with all their elements."),
    ] = [],  # noqa: B006 -- Typer makes a list for each run
) -> Result:
    """Show the rows of an episode, one a line, and its true final observation.

    Row t has the state before action t, and the reward of that action. Images are shown by their shapes.

    \b
    Examples:
      rlds inspect demo/pendulum
      rlds inspect d4rl/hopper-medium-v2 --episode 3 --rows 0:5
      rlds inspect ./my-dataset --episode -1 --keys action,next.reward --json
    """
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.look import StepReader, episode_rows
    from datasets_rl.store import locating

    if dataset.endswith(".toml"):
        raise InvalidArgumentError(
            f"{dataset} is a mixture; expected one of its datasets", hint="name one of its datasets"
        )
    stored = StoredDataset(locating.locate(**dataset_arguments(shell, dataset)))
    steps, chosen = StepReader(stored), read_keys(keys)
    slices = [_read_slice(rows)] if rows else [slice(0, _ENDS), slice(-_ENDS, None)]
    found = episode_rows(steps, episode, slices[0], chosen)
    if not rows:
        # In a short episode, both slices together are all rows.
        rest = slice(max(_ENDS, found.length - _ENDS), None)
        end = episode_rows(steps, episode, rest, chosen)
        found = dataclasses.replace(end, rows=(*found.rows, *end.rows))
    if not found.rows:
        raise InvalidArgumentError(
            f"--rows {rows} has no row of episode {found.episode}; expected some of 0:{found.length}"
        )
    data = {
        "id": stored.manifest.id,
        "folder": stored.folder,
        **{name: getattr(found, name) for name in ("episode", "length", "start", "final_known")},
        "return": found.episode_return,
        "rows": [{"t": row.step, "row": row.row, **row.values} for row in found.rows],
        "final": found.final,
    }
    return Result(
        data, list(_blocks(stored.manifest.id, found, full=bool(keys))), quiet=[str(row.row) for row in found.rows]
    )


def _read_slice(text: str) -> slice:
    match = re.fullmatch(r"\s*(-?\d+)?\s*(:)?\s*(-?\d+)?\s*", text)
    if match is None or (match[1], match[2]) == (None, None):
        raise InvalidArgumentError(f"--rows is {text!r}; expected START:STOP, as in 0:5, -3: or :")
    start, stop = (None if number is None else int(number) for number in (match[1], match[3]))
    if match[2] is None and start is not None:
        return slice(start, start + 1 or None)
    return slice(start, stop)


def _blocks(name: str, found: EpisodeRows, *, full: bool) -> Iterator[Block]:
    length = f"{found.length:,}, rows {found.start:,} to {found.start + found.length - 1:,} of the dataset"
    facts = (("steps", length), ("return", number_text(found.episode_return)))
    yield Facts(facts, title=f"{name}, episode {found.episode:,}")
    if found.rows:
        yield _table(found, full=full)


def _table(found: EpisodeRows, *, full: bool) -> Table:
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
    texts = [_number_text(number) for number in shown]
    if len(numbers) == 1:
        return texts[0]
    more = f" ... {len(numbers)}" if len(shown) < len(numbers) else ""
    return f"[{' '.join(texts)}{more}]"


def _number_text(number: Any) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
