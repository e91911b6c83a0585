"""``rlds path``: where a dataset lies."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Shell, dataset_arguments
from ..output import Lines, Result


def run(
    shell: Shell,
    dataset: Annotated[str, typer.Argument(metavar="ID", show_default=False, help="SOURCE/NAME of a stored dataset.")],
) -> Result:
    """Print the folder of a stored dataset, and nothing else.

    \b
    Examples:
      cd "$(rlds path d4rl/hopper-medium-v2)"
      rlds path demo/pendulum
      rlds path demo/pendulum --json
    """
    from datasets_rl import locating

    folder = str(locating.locate(**dataset_arguments(shell, dataset)))
    return Result({"id": dataset, "path": folder}, [Lines((folder,))], quiet=[folder])
