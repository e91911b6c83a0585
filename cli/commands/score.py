"""``rlds score``: returns on the scale from a random policy to an expert."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Shell
from ..output import Result, Table

# Returns may be negative: -1205.6 is a number here, and no option.
CONTEXT = {"ignore_unknown_options": True}


def run(
    shell: Shell,
    dataset: Annotated[str, typer.Argument(metavar="ID", show_default=False, help="SOURCE/NAME.")],
    returns: Annotated[
        list[float], typer.Argument(metavar="RETURN...", show_default=False, help="Undiscounted returns of episodes.")
    ],
) -> Result:
    """Normalise returns: 0 is a random policy, 1 an expert. Papers print 100 times this.

    \b
    Examples:
      rlds score d4rl/hopper-medium-v2 1800
      rlds score demo/pendulum -150 -1200 -600
      rlds score d4rl/hopper-medium-v2 1800 2100 --json
    """
    from datasets_rl import sources
    from datasets_rl.scores import normalized_score

    scores = [float(normalized_score(dataset, value)) for value in returns]
    reference = sources.find(dataset).score
    low, high, origin = (reference.low, reference.high, reference.origin) if reference else (0.0, 1.0, "")
    mean = sum(scores) / len(scores)
    shell.printer.note(f"0 is the return {low:,.2f} and 1 is {high:,.2f}, from {origin}")
    data = {
        "id": dataset,
        "low": low,
        "high": high,
        "origin": origin,
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
