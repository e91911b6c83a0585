"""Comparison of a requested with the stored selection: what a partially stored dataset lacks, and how it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.errors import Argument, Call, InvalidArgumentError, Remedy, UnknownIdError
from datasets_rl.format.schema import holds_images
from datasets_rl.sources import Selection
from datasets_rl.sources.selection import IMAGES

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest


def check_contains(manifest: Manifest, folder: Path, selection: Selection) -> None:
    """Check that a stored dataset contains a selection.

    Args:
        manifest: The manifest of the dataset.
        folder: The folder of the dataset, for messages.
        selection: The requested selection. The stored selection decides everything that is left open.

    Raises:
        InvalidArgumentError: If it does not. The error names both selections.
    """
    if grown_selection(manifest, folder, selection, as_stored=True) is not None:
        part = Selection.from_json(manifest.selection)
        raise InvalidArgumentError(
            f"{folder} holds {part}: {selection} was requested",
            hint=Remedy(
                "`{}` adds the rest. Without a selection, the stored part opens",
                Call("download", manifest.id, selection=selection.completed_from(part).call()),
            ),
        )


def grown_selection(
    manifest: Manifest, folder: Path, selection: Selection, *, as_stored: bool = False
) -> Selection | None:
    """Return the selection to which a stored dataset must grow for a request, or None if large enough.

    Args:
        manifest: The manifest of the stored dataset.
        folder: The folder of the dataset, for messages.
        selection: The requested selection.
        as_stored: Whether the stored selection decides everything that the requested selection leaves open.

    Raises:
        InvalidArgumentError: If no dataset can have both selections: a choice contradicts the stored choice, the
            dataset was preprocessed, or the two count episodes over different files. The error names both.
    """
    options = _options_of(manifest.id)
    part, images = Selection.from_json(manifest.selection), selection.options.get(IMAGES.name)
    # Small images that the user wanted raw are bytes of the rows, which the schema does not tell from other fields.
    forms = _image_forms(manifest) or {*filter(None, [part.options.get(IMAGES.name)])}
    if images is not None and (forms <= {images} or images == "encoded" in forms):
        # The stored images have the form, by a request or by a measurement.
        selection = replace(selection, options={**selection.options, IMAGES.name: part.options.get(IMAGES.name, "")})
    anew = Remedy(
        "replace the dataset with {}, or use another place with {}", Argument("force", True), Argument("root")
    )
    if contradicted := part.contradicts(selection, options):
        stored, requested = (
            ", ".join(
                f"{name}={choices.choice(name, options) or measured.get(name, '(not given)')}" for name in contradicted
            )
            for choices, measured in ((part, {IMAGES.name: "+".join(sorted(forms))}), (selection, {}))
        )
        raise InvalidArgumentError(f"{folder} was downloaded with {stored}: {requested} was requested", hint=anew)
    if as_stored:
        selection = selection.completed_from(part)
    if part.covers(selection, options):
        return None
    both = f"{folder} holds {part}: {selection} was requested"
    if manifest.history:
        raise InvalidArgumentError(f"{both}, and a preprocessed dataset does not grow", hint=anew)
    if part.episodes and selection.episodes and not part.numbers_episodes_like(selection, options):
        raise InvalidArgumentError(f"{both}, which counts its episodes over different files", hint=anew)
    grown = part.union(selection, options)
    return grown if forms or images is None else replace(grown, options={**grown.options, IMAGES.name: images})


def _image_forms(manifest: Manifest) -> set[str]:
    """Return the forms in which the images of a stored dataset are stored."""
    return {field.form for field in manifest.schema if holds_images(field)}


def _options_of(dataset_id: str) -> Sequence[sources.Option]:
    try:
        return sources.get_source(sources.split_id(dataset_id)[0]).all_options
    except UnknownIdError:  # a dataset of the user, or of a newer version
        return ()
