"""``rlds score``: returns on the scale from a random policy to an expert."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from datasets_rl.errors import ManifestError, NotADatasetError

from ..options import Shell, dataset_arguments
from ..output import Result, Table

# Returns may be negative: -1205.6 is a number here, and no option.
CONTEXT = {"ignore_unknown_options": True}


def run(
    shell: Shell,
    dataset: Annotated[
        str, typer.Argument(metavar="ID|PATH", show_default=False, help="SOURCE/NAME, or a dataset's folder.")
    ],
    returns: Annotated[
        list[float], typer.Argument(metavar="RETURN...", show_default=False, help="Undiscounted returns of episodes.")
    ],
) -> Result:
    """Normalize returns: 0 is a random policy, 1 an expert. Papers print 100 times this.

    Datasets of Minari bring the two returns with them: download one first.

    \b
    Examples:
      rlds score d4rl/hopper-medium-v2 1800
      rlds score demo/pendulum -150 -1200 -600
      rlds score d4rl/hopper-medium-v2 1800 2100 --json
    """
    from datasets_rl.scores import normalized_score, reference_score

    place = dataset_arguments(shell, dataset)
    reference = reference_score(**place)
    if _has_changed(place):
        shell.printer.note("it was preprocessed here; the two are returns of the rewards that it had before")
    scores = [float(normalized_score(returns=value, **place)) for value in returns]
    mean = sum(scores) / len(scores)
    shell.printer.note(f"0 is the return {reference.low:,.2f} and 1 is {reference.high:,.2f}, from {reference.origin}")
    data = {
        "id": dataset,
        **asdict(reference),
        "returns": returns,
        "scores": scores,
        "mean": mean,
    }
    table = Table(
        ("return", "score"), tuple((f"{value:g}", f"{score:.4f}") for value, score in zip(returns, scores, strict=True))
    )
    if len(scores) > 1:
        shell.printer.note(f"their mean is {mean:.4f}")
    return Result(data, [table], quiet=[f"{score:.6g}" for score in scores])


def _has_changed(path: Mapping[str, Any]) -> bool:
    """Say whether the dataset that is stored here went through a recipe."""
    from datasets_rl import locating
    from datasets_rl.format.manifest import Manifest

    with suppress(NotADatasetError, ManifestError):
        return bool(Manifest.read(locating.locate(**path)).history)
    return False
