"""``rlds upgrade``: stored datasets in the current version of the format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import candidates
from ..options import Outcome, Shell, apply_to_each, combined_exit_code, dataset_arguments
from ..output import Lines, Result

GROUP = "Maintain"


def run(
    shell: Shell,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|PATH...", help="Stored datasets, or their folders.", autocompletion=candidates.stored_ids
        ),
    ],
) -> Result:
    """Rewrite the manifests of stored datasets in the current version of the format.

    Data files are not touched. Datasets of earlier versions can be read without this.

    \b
    Examples:
      rlds upgrade d4rl/hopper-medium-v2
      rlds upgrade ~/data/mine
      rlds upgrade demo/pendulum --json
    """
    from datasets_rl import store
    from datasets_rl.store import locating

    def upgrade(dataset: str) -> tuple[Path, bool]:
        folder = locating.locate(**dataset_arguments(shell, dataset), complete=True)
        return folder, store.upgrade(folder)

    outcomes = apply_to_each(shell, datasets, upgrade)
    lines = tuple(
        f"{one.item}: {'upgraded' if one.value[1] else 'is of the current version'}" for one in outcomes if one.value
    )
    return Result(
        {"datasets": [_document(one) for one in outcomes]},
        [Lines(lines)],
        quiet=[one.item for one in outcomes if one.value and one.value[1]],
        code=combined_exit_code([one.error.code if one.error else 0 for one in outcomes]),
    )


def _document(outcome: Outcome[tuple[Path, bool]]) -> dict[str, Any]:
    folder, changed = outcome.value or (None, False)
    return {
        "id": outcome.item,
        "folder": None if folder is None else str(folder),
        "upgraded": changed,
        "error": outcome.error_as_json(),
    }
