"""``rlds score``: returns on the scale from a random policy to an expert."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from datasets_rl.errors import DatasetsRLError, ManifestError, NotADatasetError

from ..options import KnownOrMixture, Shell, dataset_arguments
from ..output import Result, Table

GROUP = "Choose"

# Returns may be negative: -1205.6 is a number here, and no option.
CONTEXT = {"ignore_unknown_options": True}


def run(
    shell: Shell,
    dataset: KnownOrMixture,
    returns: Annotated[list[float], typer.Argument(metavar="RETURN...", help="Undiscounted returns of episodes.")],
    low: Annotated[float | None, typer.Option(metavar="RETURN", help="Return that has the score 0.")] = None,
    high: Annotated[float | None, typer.Option(metavar="RETURN", help="Return that has the score 1.")] = None,
    percent: Annotated[bool, typer.Option("--percent", help="Multiply the scores by 100, as papers do.")] = False,
) -> Result:
    """Normalize returns, so that 0 is a random policy and 1 is an expert.

    The two reference returns are published by the authors of a dataset, or by the field. The reference returns of your
    own data are in its dataset.toml, or given by --low and --high.

    \b
    Examples:
      rlds score d4rl/hopper-medium-v2 1800 --percent
      rlds score demo/pendulum -150 -1200 -600
      rlds score local/gripper 140 --low -10 --high 250 --json
    """
    from datasets_rl.catalog.scores import normalized_score, reference_score

    place = _place(shell, dataset, is_named=low is None or high is None)
    reference = reference_score(**place, low=low, high=high)
    if _has_changed(place):
        shell.printer.note("the dataset was preprocessed here, and the two are returns of the original rewards")
    scores = [float(normalized_score(returns=value, percent=percent, **place, low=low, high=high)) for value in returns]
    mean = sum(scores) / len(scores)
    one = 100 if percent else 1
    shell.printer.note(
        f"0 is the return {reference.low:,.2f} and {one} is {reference.high:,.2f}, from {reference.origin}"
    )
    data = {"id": dataset, **asdict(reference), "percent": percent, "returns": returns, "scores": scores, "mean": mean}
    digits = 2 if percent else 4
    rows = tuple((f"{value:g}", f"{score:.{digits}f}") for value, score in zip(returns, scores, strict=True))
    if len(scores) > 1:
        shell.printer.note(f"the mean is {mean:.{digits}f}")
    return Result(data, [Table(("return", "score"), rows)], quiet=[f"{score:.6g}" for score in scores])


def _place(shell: Shell, dataset: str, *, is_named: bool) -> dict[str, Any]:
    """Return the arguments that name the dataset. With both returns, the dataset need not be stored or known."""
    if dataset.endswith(".toml"):
        return {"dataset": Path(dataset), "settings": shell.settings}
    try:
        return dataset_arguments(shell, dataset)
    except DatasetsRLError:
        if is_named:
            raise
        return {"dataset": None, "settings": shell.settings}


def _has_changed(path: Mapping[str, Any]) -> bool:
    """Return whether the dataset that is stored here went through a recipe."""
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.store.find import locate

    if path["dataset"] is None or str(path["dataset"]).endswith(".toml"):
        return False
    with suppress(NotADatasetError, ManifestError):
        return bool(Manifest.read(locate(**path)).history)
    return False
