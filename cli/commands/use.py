"""``rlds use``: choose the current version of a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..options import Shell, dataset_arguments
from ..output import Lines, Result, steps_text

GROUP = "Prepare"


def run(
    shell: Shell,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="ID|PATH",
            show_default=False,
            help="A stored dataset, or its folder.",
            autocompletion=candidates.stored_ids,
        ),
    ],
    which: Annotated[
        str,
        typer.Argument(
            metavar="[VERSION]",
            show_default=False,
            help="The number or the name of a version, as `rlds info ID` lists versions.",
        ),
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Use the version that the current version was made of.")] = False,
) -> Result:
    """Make another version of a dataset the current version. Prints the folder of the dataset.

    No version is deleted: `rlds cache prune --versions` deletes the versions that are not current.

    \b
    Examples:
      rlds use demo/pendulum 1
      rlds use demo/pendulum 0002-a733c209
      rlds use demo/pendulum --undo
    """
    from datasets_rl import store
    from datasets_rl.format.manifest import Manifest

    if bool(which) == undo:
        raise InvalidArgumentError(
            "expected a version, or --undo" if not undo else f"--undo has no meaning beside the version {which}",
            hint=f"`{shell.rlds('info', dataset)}` lists the versions",
        )
    found = dataset_arguments(shell, dataset)
    paths = store.find_paths(**found)
    before = store.current_version(paths, replaces=True)
    folder = store.restore(paths.folder, "parent" if undo else which)
    current = store.Version(store.version_folder(folder))
    manifest = Manifest.read(current.folder)
    origin = manifest.history[-1].get("recipe", {}).get("name") or "a recipe" if manifest.history else "download"
    state = "is current already" if before is not None and before.name == current.name else "is current"
    shell.printer.note(f"{dataset}: version {current.number} {state}, {steps_text(manifest)}, made by {origin}")
    return Result(
        {"id": dataset, "folder": str(folder), "version": current.name}, [Lines((str(folder),))], quiet=[str(folder)]
    )
