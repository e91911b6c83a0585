"""``rlds identify``: which stored datasets hold the episodes of a dataset, a file or an address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import candidates
from ..errors import NOT_IDENTIFIED
from ..options import Shell
from ..output import Block, Lines, Result, Table
from ..source_options import source_choices, source_options

if TYPE_CHECKING:
    from datasets_rl.identifying import Identity, Match

__all__ = ["GROUP", "run", "source_options"]

GROUP = "Look"


def run(
    shell: Shell,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="PATH|ID|ADDRESS",
            help="Files of any format, a stored dataset, or an address.",
            autocompletion=candidates.stored_ids,
        ),
    ],
    exact: Annotated[bool, typer.Option("--exact", help="Look for exact copies only, which is faster.")] = False,
    **choices: str,
) -> Result:
    """Say which stored datasets hold the episodes of a dataset, how many, and in which form.

    Episodes are recognized by their values: under any id, in any format, with other keys, dtypes and orders. Near copies are
    rounded, scaled, cut, split or joined. Files and addresses are read in a temporary folder, and nothing is stored but the
    index of the stored datasets, which `rlds cache prune --index` deletes. Constant and scripted episodes are not evidence, and
    counted. Options of a source, such as --layout, are for files that are not stored. The exit code is 0 if an episode is
    known, and 12 if none is.

    \b
    Examples:
      rlds identify ./my-dataset
      rlds identify d4rl/hopper-medium-v2 --exact
      rlds identify hf://user/name --json
    """
    from datasets_rl.identifying import identify

    identity = identify(dataset, near=not exact, selection=source_choices(choices), settings=shell.settings)
    return Result(
        asdict(identity) | {"known": identity.known},
        _blocks(identity, shell.settings.home),
        quiet=[match.id for match in identity.matches],
        code=0 if identity.known else NOT_IDENTIFIED,
    )


def _blocks(identity: Identity, home: Path) -> list[Block]:
    blocks: list[Block] = [Lines(tuple(_lines(identity, home)))]
    if identity.matches:
        header = ("dataset", "episodes", "exact", "in some fields", "near", "form")
        blocks.append(Table(header, tuple(map(_row, identity.matches)), title="held by"))
    return blocks


def _lines(identity: Identity, home: Path) -> Iterator[str]:
    held = identity.episodes - identity.unknown - identity.uninformative
    searched = f"{_datasets(identity.searched)} that {'was' if identity.searched == 1 else 'were'} searched"
    if identity.known:
        places = _datasets(len(identity.matches))
        yield f"{held:,} of {identity.episodes:,} episodes of {identity.id} are in {places}, of {searched}"
        if identity.unknown:
            yield f"{identity.unknown:,} episodes are in no stored dataset"
    elif identity.searched:
        yield f"no stored dataset has an episode of {identity.id}, of {searched}"
    else:
        yield f"no other dataset is stored in {home}: `rlds list` shows what can be downloaded, and --root names another folder"
    if identity.uninformative == identity.episodes:
        yield f"all {identity.episodes:,} episodes are constant, scripted or very short, and no evidence: equal episodes are no copies"
    elif identity.uninformative:
        yield f"{identity.uninformative:,} episodes are no evidence: constant, scripted or very short"
    for damaged in identity.damaged:
        yield f"not searched: {damaged}"
    if identity.index_problem:
        yield f"the index of the stored datasets is not kept, so that each search makes the index: {identity.index_problem}"


def _row(match: Match) -> tuple[str, ...]:
    equal = [f"equal: {', '.join(match.fields)}"] if match.fields else []
    equal += [f"other or missing there: {', '.join(match.different)}"] if match.different else []
    counts = (match.episodes, match.exact, match.partial, match.near)
    return (match.id, *(f"{count:,}" for count in counts), "; ".join([*equal, *match.changes]))


def _datasets(count: int) -> str:
    return f"{count:,} dataset{'s' * (count != 1)}"
