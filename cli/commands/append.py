"""``rlds append``: datasets of the user's own that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .. import candidates
from ..options import Outcome, Shell, apply_to_each, combined_exit_code, dataset_arguments
from ..output import Lines, Result

GROUP = "Prepare"


def run(
    shell: Shell,
    dataset: Annotated[
        str,
        typer.Argument(metavar="local/NAME", help="The dataset to append to.", autocompletion=candidates.stored_ids),
    ],
    episodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID|PATH...", help="Stored datasets with the same fields.", autocompletion=candidates.stored_ids
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also add episodes that the dataset already has.")] = False,
) -> Result:
    """Add the episodes of stored datasets to the end of a dataset of your own.

    The dataset is created if it does not exist. If any of the others is not stored, nothing is added. Then each is
    added in an atomic step. A dataset that was added before is not added again, so a command that was killed can be
    repeated. Without others, the command adds the episodes that a program recorded before a kill.

    \b
    Examples:
      rlds append local/hopper local/hopper-monday local/hopper-tuesday
      rlds append local/hopper ~/data/hopper
      rlds append local/hopper
    """
    from datasets_rl import store
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.store.find import locate

    paths = store.dataset_paths(dataset, settings=shell.settings)
    before = Manifest.read(paths.folder).episodes if paths.exists else 0

    found = apply_to_each(shell, episodes or [], lambda other: locate(**dataset_arguments(shell, other)))
    complete = all(one.error is None for one in found)
    if complete:
        shell.import_torch()

    def add(other: str) -> None:
        from datasets_rl.recording.append import append_episodes

        append_episodes(dataset, locate(**dataset_arguments(shell, other)), again=again, settings=shell.settings)

    if not episodes:
        from datasets_rl.recording.append import append_episodes

        append_episodes(dataset, settings=shell.settings)
    outcomes: Sequence[Outcome[Any]] = apply_to_each(shell, episodes or [], add) if complete else found
    folder = None
    after = steps = 0
    if complete and (not outcomes or any(one.error is None for one in outcomes)):
        folder = locate(dataset, settings=shell.settings)
        manifest = Manifest.read(folder)
        after, steps = manifest.episodes, manifest.steps
        shell.printer.note(f"{dataset}: {after - before:,} episodes added, {steps:,} steps in {after:,} episodes")
    return Result(
        {
            "id": dataset,
            "folder": folder,
            "added": after - before,
            "episodes": after,
            "steps": steps,
            "datasets": [one.document({}) for one in outcomes],
        },
        [] if folder is None else [Lines((str(folder),))],
        quiet=[] if folder is None else [str(folder)],
        code=combined_exit_code([one.code for one in outcomes]),
    )
