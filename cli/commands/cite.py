"""``rlds cite``: the BibTeX of datasets, and what a paper states about its datasets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..options import Shell, apply_to_each, combined_exit_code, dataset_arguments
from ..output import Facts, Lines, Result

if TYPE_CHECKING:
    from datasets_rl.catalog.citations import Citation

GROUP = "Share"


def run(
    shell: Shell,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|PATH...",
            help="SOURCE/NAME, a dataset's folder, or a mixture's file. With --statement also rlds.lock.",
            autocompletion=candidates.all_ids,
        ),
    ],
    statement: Annotated[
        bool,
        typer.Option(
            "--statement",
            help="Write a folder for a paper: BibTeX, a paragraph, and for each dataset a datasheet and croissant.json.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="New folder of --statement. By default statement."),
    ] = None,
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet",
            help="With --statement: write the narrow fields as Parquet, too, from which readers of Croissant load records.",
        ),
    ] = False,
    no_audit: Annotated[bool, typer.Option("--no-audit", help="With --statement: do not audit the datasets.")] = False,
) -> Result:
    """Print the BibTeX entries of datasets: their papers, and the sources that publish the datasets.

    A derived dataset cites its parent datasets, and a mixture cites all its members. Each entry is printed once.
    With --statement, everything is from the manifests, the lock, the catalog and an audit. What nobody stated is left open and listed.

    \b
    Examples:
      rlds cite d4rl/hopper-medium-v2
      rlds cite demo/pendulum minari/D4RL/door/human-v2 > references.bib
      rlds cite mix.toml --json
      rlds cite --statement rlds.lock --out statement --parquet
    """
    if statement:
        return _statement(shell, datasets, out or Path("statement"), parquet=parquet, audited=not no_audit)
    given = {"--out": out is not None, "--parquet": parquet, "--no-audit": no_audit}
    if unused := [name for name, is_given in given.items() if is_given]:
        raise InvalidArgumentError(f"{', '.join(unused)} is given without --statement", hint="add --statement")
    from datasets_rl.catalog.citations import cite

    def citations(dataset: str) -> Sequence[Citation]:
        is_file = Path(dataset).suffix == ".toml" and expand_home(dataset).is_file()
        where = {"dataset": dataset, "settings": shell.settings} if is_file else dataset_arguments(shell, dataset)
        return cite(**where)

    found = apply_to_each(shell, datasets, citations)
    entries: dict[str, str] = {}
    for one in chain.from_iterable(outcome.value or () for outcome in found):
        one.add_to(entries)
    lines = tuple("\n\n".join(entries.values()).split("\n")) if entries else ()
    return Result(
        {"datasets": [{"id": each.item, "citations": each.value or (), "error": each.error} for each in found]},
        [Lines(lines)],
        quiet=[*entries],
        code=combined_exit_code([each.code for each in found]),
    )


def _statement(shell: Shell, datasets: list[str], out: Path, *, parquet: bool, audited: bool) -> Result:
    """Write the statement of datasets, and return the written folders with what is open."""
    from datasets_rl.citing import write_statement

    written = write_statement(*datasets, out=out, tables=parquet, audited=audited, settings=shell.settings)
    return Result(
        {
            "out": str(out),
            "datasets": [
                {"id": one.statement.id, "folder": str(one.folder), "open": list(one.open_topics)} for one in written
            ],
        },
        [
            Facts((("folder", str(one.folder)), ("left open", ", ".join(one.open_topics))), title=one.statement.id)
            for one in written
        ],
        quiet=[str(one.folder) for one in written],
    )
