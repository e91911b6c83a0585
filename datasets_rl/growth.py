"""Stored parts of datasets: what they lack for a request, and how they grow."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.errors import InvalidArgumentError, UnknownIdError
from datasets_rl.sources import Selection

if TYPE_CHECKING:
    pass

__all__ = ["missing_part", "require_part"]


def missing_part(folder: Path, selection: Selection, *, as_stored: bool = False) -> Selection | None:
    """Return the part to which a stored dataset must grow for a request, or None if it lacks nothing.

    Args:
        folder: The dataset's folder.
        selection: The part that is asked for.
        as_stored: Whether everything that the selection leaves open is as in the stored part.

    Raises:
        InvalidArgumentError: If no growth can give both parts: a choice contradicts what is stored, the dataset was preprocessed,
            or the two count episodes over other files. The error names both.
    """
    from datasets_rl.format.manifest import Manifest

    manifest = Manifest.read(folder)
    part = Selection.from_json(manifest.selection)
    options = _options_of(manifest.id)
    anew = "replace it with --force, or use another place with --root"
    if contradicted := part.contradicts(selection, options):
        here, there = (
            ", ".join(f"--{name} {one.choice(name, options) or 'left open'}" for name in contradicted)
            for one in (part, selection)
        )
        raise InvalidArgumentError(f"{folder} was made with {here}; {there} was asked for", hint=anew)
    if as_stored:
        selection = selection.within(part)
    if part.covers(selection, options):
        return None
    both = f"{folder} holds {part}; {selection} was asked for"
    if manifest.history:
        raise InvalidArgumentError(f"{both}, and a preprocessed dataset does not grow", hint=anew)
    if part.episodes and selection.episodes and not part.counts_as(selection, options):
        raise InvalidArgumentError(f"{both}, which counts its episodes over other files", hint=anew)
    return part.joined(selection, options)


def require_part(folder: Path, selection: Selection) -> None:
    """Check that a stored dataset has everything a request asks for.

    Args:
        folder: The dataset's folder.
        selection: The part that is asked for; everything that it leaves open is as in the stored part.

    Raises:
        InvalidArgumentError: If it has not; the error names both.
    """
    from datasets_rl.format.manifest import Manifest

    if missing_part(folder, selection, as_stored=True) is not None:
        manifest = Manifest.read(folder)
        part = Selection.from_json(manifest.selection)
        raise InvalidArgumentError(
            f"{folder} holds {part}; {selection} was asked for",
            hint=f"`rlds download {shlex.quote(manifest.id)} {selection.within(part)}` adds the rest; without a "
            "selection, the stored part opens",
        )


def _options_of(dataset_id: str) -> Sequence[sources.Option]:
    try:
        return sources.source(sources.split_id(dataset_id)[0]).options
    except UnknownIdError:  # the user's own dataset, or one of a newer version
        return ()
