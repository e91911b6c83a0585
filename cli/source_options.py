"""Options of the sources, for commands that convert files: ``--images``, ``--layout``, ``--split``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from datasets_rl.sources import Option, Selection


def source_choices(choices: Mapping[str, str]) -> Selection:
    """Return the options of the sources that the user chose, as a selection.

    Args:
        choices: The values of `source_options`, by the name of the parameter.
    """
    from datasets_rl.sources import Selection

    return Selection(options={name.replace("_", "-"): value for name, value in choices.items() if value})


def source_options() -> Sequence[inspect.Parameter]:
    """Return the options of the sources."""
    from datasets_rl import sources

    found: dict[str, list[tuple[str, Option]]] = {}
    for source in sources.importable_sources()[0]:
        for option in source.all_options:
            found.setdefault(option.name, []).append((source.name, option))
    return [_source_option(name, owners) for name, owners in sorted(found.items())]


def _source_option(name: str, owners: Sequence[tuple[str, Option]]) -> inspect.Parameter:
    """Return the option of this name, which shows the values that each source accepts."""
    values = dict.fromkeys(value for _, option in owners for value in option.choices)
    helps: dict[str, list[str]] = {}
    for source, described in owners:
        helps.setdefault(described.help.rstrip("."), []).append(source)
    # An option that several sources share is an option of every source with such data.
    text = "; ".join(text if len(sources) > 1 else f"{sources[0]}: {text}" for text, sources in helps.items())
    option = typer.Option(
        f"--{name}", metavar="|".join(values) or "VALUE", help=f"{text}.", autocompletion=lambda: list(values)
    )
    return inspect.Parameter(
        name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, option]
    )
