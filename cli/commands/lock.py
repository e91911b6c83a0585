"""``rlds lock``: a file that names the datasets of a project byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import candidates
from ..errors import SOME_FAILED
from ..options import Shell
from ..output import Lines, Result

if TYPE_CHECKING:
    from datasets_rl.lockfile.lock import Lock, LockedDataset

GROUP = "Share"


def run(
    shell: Shell,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID|PATH...",
            help="SOURCE/NAME, a dataset's folder, a mixture's file, or a program, FILE.py. By default what the present "
            "lock was written from.",
            autocompletion=candidates.stored_ids,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="File to write. By default rlds.lock in the root of the project."
        ),
    ] = None,
    copies: Annotated[
        list[str] | None,
        typer.Option(
            "--copy",
            metavar="ADDRESS",
            help="hf://USER/NAME, where one of the datasets is published. Can be repeated.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing, and exit with 1 if the file would change.")
    ] = False,
) -> Result:
    """Write which datasets a project uses, with a digest of every file, so that `rlds sync` makes the same bytes again.

    Of a program, the ids in calls such as load("demo/pendulum") are locked. The program is not run. Equal datasets give an
    equal file. Commit the file.

    \b
    Examples:
      rlds lock demo/pendulum@td3_bc mix.toml train.py
      rlds lock
      rlds lock --check
      rlds lock local/heater --copy hf://me/heater
    """
    from datasets_rl.lockfile.write import write_lock

    written = write_lock(*(targets or ()), path=out, copies=copies or (), check=check, settings=shell.settings)
    for text in written.computed:
        shell.printer.note(f"{text}: this dataset is not locked")
    lock = written.lock
    changes = [*_changes(written.former, lock)]
    if written.changed and written.former is not None and not changes:
        changes = ["the text differs"]
    state = "unchanged" if not written.changed else "written" if written.former is None else "changed"
    if check and written.changed:
        state = "not up to date"
    count = "1 dataset" if len(lock.datasets) == 1 else f"{len(lock.datasets):,} datasets"
    lines = (f"{lock.path}: {count}, {state}", *(f"  {change}" for change in changes))
    return Result(
        {
            "path": str(lock.path),
            "datasets": [_document(one) for one in lock.datasets],
            "changed": written.changed,
            "changes": changes,
            "not_locked": list(written.computed),
        },
        [Lines(lines)],
        quiet=[str(lock.path)],
        code=SOME_FAILED if check and written.changed else 0,
    )


def _document(dataset: LockedDataset) -> dict[str, object]:
    return {
        "id": dataset.id,
        "digest": dataset.digest,
        "steps": dataset.steps,
        "episodes": dataset.episodes,
        "parent": dataset.is_parent,
        "recorded": dataset.is_recorded,
    }


def _changes(former: Lock | None, lock: Lock) -> Iterator[str]:
    """Yield what differs from the former file, a line for each dataset and mixture."""
    if former is None:
        return
    own = {(one.id, one.is_parent): one for one in lock.datasets}
    before = {(one.id, one.is_parent): one for one in former.datasets}
    for key in sorted(own.keys() | before.keys()):
        name = key[0]
        if key not in before:
            yield f"added {name}"
        elif key not in own:
            yield f"removed {name}"
        elif own[key].digest != before[key].digest:
            yield f"updated {name}: {before[key].digest[:12]} -> {own[key].digest[:12]}"
        elif own[key] != before[key]:
            yield f"updated {name}: the same bytes, made in another way"
    mixtures, others = ({one.file: one for one in each.mixtures} for each in (lock, former))
    for file in sorted(mixtures.keys() | others.keys()):
        if mixtures.get(file) != others.get(file):
            yield f"updated {file}"
