"""``rlds cache``: what the data folder holds besides the datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..options import Shell, dataset_arguments
from ..output import Lines, Result, size_text


def run(
    shell: Shell,
    action: Annotated[Literal["prune"], typer.Argument(metavar="prune", help="What to do.")],
    datasets: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID|PATH...", show_default=False, help="With --versions: of these only."),
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="Delete the earlier versions of datasets; --undo needs them.")
    ] = False,
    builds: Annotated[
        bool, typer.Option("--builds", help="Delete unfinished builds, which their command would complete.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be freed; delete nothing.")] = False,
) -> Result:
    """Delete what killed processes left, and on request what datasets no longer need.

    \b
    Every command sweeps the data folder; this one also deletes the scratch folders of buffers
    whose process is dead.

    \b
    Examples:
      rlds cache prune
      rlds cache prune --builds --dry-run
      rlds cache prune --versions demo/pendulum
    """
    from datasets_rl import locating, store
    from datasets_rl.storages.scratch import sweep_scratch

    del action  # there is one
    freed = {"scratch folders": 0 if dry_run else sweep_scratch()}
    if builds:
        freed["unfinished builds"] = sum(store.sweep_builds(root, dry_run=dry_run) for root in _source_folders(shell))
    if versions:
        folders = (
            [locating.locate(**dataset_arguments(shell, one)) for one in datasets]
            if datasets
            else store.stored_folders(shell.settings.home)
        )
        freed["earlier versions"] = sum(store.prune(store.paths_of(one), dry_run=dry_run) for one in folders)
    verb = "would be freed" if dry_run else "freed"
    lines = tuple(f"{name}: {size_text(size)} {verb}" for name, size in freed.items())
    # What killed commands left was swept when this command began, as by every command.
    return Result({"freed": freed, "dry_run": dry_run}, [Lines(lines)], quiet=[str(sum(freed.values()))])


def _source_folders(shell: Shell) -> Iterator[Path]:
    home = shell.settings.home
    yield from sorted(path for path in home.glob("*") if path.is_dir() and path.name[0] != ".")
