"""``rlds path``: where a dataset lies."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import candidates
from ..options import Shell, dataset_arguments
from ..output import Lines, Result

GROUP = "Get"


def run(
    shell: Shell,
    dataset: Annotated[
        str, typer.Argument(metavar="ID", help="SOURCE/NAME of a stored dataset.", autocompletion=candidates.stored_ids)
    ],
) -> Result:
    """Print the folder of a stored dataset.

    \b
    Examples:
      cd "$(rlds path demo/pendulum)"
      rlds path demo/pendulum
      rlds path demo/pendulum --json
    """
    from datasets_rl.store.find import locate

    folder = str(locate(**dataset_arguments(shell, dataset)))
    return Result({"id": dataset, "path": folder}, [Lines((folder,))], quiet=[folder])
