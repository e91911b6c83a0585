"""``rlds cite``: the BibTeX of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import candidates
from ..options import Shell, dataset_arguments
from ..output import Lines, Result

GROUP = "Share"


def run(
    shell: Shell,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|PATH...",
            show_default=False,
            help="SOURCE/NAME, a dataset's folder, or the file of a mixture.",
            autocompletion=candidates.all_ids,
        ),
    ],
) -> Result:
    """Print the BibTeX of datasets: of their papers, and of the sources that publish them.

    Derived datasets cite what they were made of, and mixtures all members. Each entry is printed once.

    \b
    Examples:
      rlds cite d4rl/hopper-medium-v2
      rlds cite demo/pendulum minari/D4RL/door/human-v2 > references.bib
      rlds cite mix.toml --json
    """
    from datasets_rl.citing import cite

    found = {}
    for dataset in dict.fromkeys(datasets):
        is_file = Path(dataset).suffix == ".toml" and Path(dataset).expanduser().is_file()
        where = {"dataset": dataset, "settings": shell.settings} if is_file else dataset_arguments(shell, dataset)
        found[dataset] = cite(**where)
    entries = {one.key: one.bibtex for citations in found.values() for one in citations}
    text = "\n\n".join(entries.values())
    document = {
        name: [{"key": one.key, "bibtex": one.bibtex, "of": list(one.of)} for one in citations]
        for name, citations in found.items()
    }
    return Result(
        {"datasets": [{"id": name, "citations": citations} for name, citations in document.items()]},
        [Lines(tuple(text.split("\n")))],
        quiet=[*entries],
    )
