"""``rlds cite``: the BibTeX of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datasets_rl.disk import expand_home

from .. import candidates
from ..options import Shell, apply_to_each, combined_exit_code, dataset_arguments
from ..output import Lines, Result

if TYPE_CHECKING:
    from datasets_rl.catalog.citations import Citation

GROUP = "Share"


def run(
    shell: Shell,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|PATH...",
            help="SOURCE/NAME, a dataset's folder, or a mixture's file.",
            autocompletion=candidates.all_ids,
        ),
    ],
) -> Result:
    """Print the BibTeX entries of datasets: their papers, and the sources that publish the datasets.

    A derived dataset cites its parent datasets, and a mixture cites all its members. Each entry is printed once.

    \b
    Examples:
      rlds cite d4rl/hopper-medium-v2
      rlds cite demo/pendulum minari/D4RL/door/human-v2 > references.bib
      rlds cite mix.toml --json
    """
    from datasets_rl.catalog.citations import cite

    def citations(dataset: str) -> Sequence[Citation]:
        is_file = Path(dataset).suffix == ".toml" and expand_home(dataset).is_file()
        where = {"dataset": dataset, "settings": shell.settings} if is_file else dataset_arguments(shell, dataset)
        return cite(**where)

    found = apply_to_each(shell, datasets, citations)
    entries = {one.key: one.bibtex for outcome in found for one in outcome.value or ()}
    lines = tuple("\n\n".join(entries.values()).split("\n")) if entries else ()
    return Result(
        {"datasets": [{"id": one.item, "citations": one.value or (), "error": one.error} for one in found]},
        [Lines(lines)],
        quiet=[*entries],
        code=combined_exit_code([one.code for one in found]),
    )
