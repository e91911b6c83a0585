"""The differences between a stored dataset and a lock, a sentence each, and the refusal of another dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from datasets_rl.errors import LockMismatchError, Remedy
from datasets_rl.format.manifest import Manifest, converter_version
from datasets_rl.format.schema import Field
from datasets_rl.lockfile.lock import LockedDataset, LockedRecipe
from datasets_rl.sources import Selection

_MAX_SENTENCES = 20


def field_text(column: Field) -> str:
    """Return the name, the stored dtype, the shape and the other properties of a field: ``observation <f4 [3] shared``."""
    words = [column.name, column.dtype.str, str([*column.shape])]
    words += [name for name in ("shared", "text") if getattr(column, name)]
    words += [] if column.form == "raw" else [column.form]
    words += [] if column.memory_dtype is None else [f"read as {column.memory_dtype.str}"]
    return " ".join(words)


def is_locked_content(locked: LockedDataset, manifest: Manifest) -> bool:
    """Return whether a dataset has the locked files, and the locked fields in these files."""
    fields = tuple(sorted(map(field_text, manifest.schema)))
    return manifest.files_digest == locked.digest and (not locked.fields or fields == locked.fields)


def require_locked(locked: LockedDataset, manifest: Manifest, where: str, *, hint: str | Remedy = "") -> None:
    """Check that a dataset is the dataset of a lock.

    Args:
        locked: The dataset of the lock.
        manifest: The manifest of the other dataset.
        where: What the other dataset is, for messages.
        hint: What to do next.

    Raises:
        LockMismatchError: If not. The error names each difference.
    """
    if not is_locked_content(locked, manifest):
        raise LockMismatchError(where, differences(locked, manifest), hint=hint)


def differences(locked: LockedDataset, manifest: Manifest) -> list[str]:
    """Return how a dataset differs from the dataset of a lock: first the causes, then fields and files.

    Empty if the files and the fields are equal, however they were made.
    """
    if is_locked_content(locked, manifest):
        return []
    found = [*_causes(locked, manifest), *_contents(locked, manifest)]
    if not found:
        found = [_digest_difference(locked, manifest)]
    more = len(found) - _MAX_SENTENCES
    return found if more < 1 else [*found[:_MAX_SENTENCES], f"and {more:,} more"]


def _causes(locked: LockedDataset, manifest: Manifest) -> Iterator[str]:
    """Yield differences in how the datasets were made."""
    own, wanted = (Selection.from_json(one) for one in (selected_part(manifest), locked.selection))
    if own != wanted:
        yield f"the selection is {own}, expected {wanted}"
    if locked.revision and manifest.revision != locked.revision:
        yield f"the revision is {manifest.revision or 'not stated'}, expected {locked.revision}"
    yield from _recipe_differences(locked, manifest)
    if locked.raw:
        own_files = {file.path: file.sha256 for file in manifest.raw}
        locked_files = {file.path: file.sha256 for file in locked.raw}
        yield from _file_differences("the raw file", "the sha256", own_files, locked_files)
    if locked.recordings and manifest.recordings != locked.recordings:
        lists = (", ".join(one) or "none" for one in (manifest.recordings, locked.recordings))
        yield "the recordings are {}, expected {}".format(*lists)
    if locked.package and manifest.converter != locked.package:
        yield f"the dataset was written by datasets-rl {manifest.converter or 'unknown'}, expected {locked.package}"
    elif locked.package and converter_version() != locked.package:
        yield f"this is datasets-rl {converter_version()}, and the lock has {locked.package}"


def _contents(locked: LockedDataset, manifest: Manifest) -> Iterator[str]:
    """Yield differences in the data."""
    for name in ("steps", "episodes") if locked.steps else ():
        own, wanted = getattr(manifest, name), getattr(locked, name)
        if own != wanted:
            yield f"there are {own:,} {name}, expected {wanted:,}"
    own_fields, fields = (
        {one.partition(" ")[0]: one for one in each} for each in (map(field_text, manifest.schema), locked.fields)
    )
    for name in sorted(own_fields.keys() | fields.keys()) if fields else ():
        if own_fields.get(name) != fields.get(name):
            yield f"the field {name} is {_after(own_fields.get(name))}, expected {_after(fields.get(name))}"
    if locked.files:
        own_files, files = (
            {file.path: file.digest for file in each} for each in (manifest.content_files, locked.files)
        )
        yield from _file_differences("", "the digest", own_files, files)
    else:
        yield _digest_difference(locked, manifest)


def _digest_difference(locked: LockedDataset, manifest: Manifest) -> str:
    return f"the files have the digest {_short(manifest.files_digest)}, expected {_short(locked.digest)}"


def _after(text: str | None) -> str:
    return "missing" if text is None else text.partition(" ")[2]


def _file_differences(kind: str, digest: str, own: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(own.keys() | wanted.keys()):
        name = f"{kind} {path}".strip()
        if path not in own:
            yield f"{name} is missing"
        elif path not in wanted:
            yield f"{name} is not in the lock"
        elif own[path] != wanted[path]:
            yield f"{name} has {digest} {_short(own[path])}, expected {_short(wanted[path])}"


def _short(digest: str) -> str:
    """Return the first digits of a digest, by which people compare digests."""
    return f"{digest[:12]}..."


def selected_part(manifest: Manifest) -> dict[str, Any]:
    """Return the selection of a dataset, of a copy that of the original, without a revision that the manifest states."""
    stated = manifest.copied_from.get("selection", manifest.selection)
    options = {
        name: value
        for name, value in stated.get("options", {}).items()
        if (name, value) != ("revision", manifest.revision)
    }
    selection = {**stated, "options": options}
    return {name: value for name, value in selection.items() if value}


def _recipe_differences(locked: LockedDataset, manifest: Manifest) -> Iterator[str]:
    """Yield differences between the last recipes of a dataset and the recipes of a lock."""
    history = [run for run in manifest.history if "recipe" in run]
    own = history[len(history) - len(locked.recipes) :] if locked.recipes else []
    if not locked.recipes and history and not locked.is_parent:
        yield f"the recipe {history[-1]['recipe'].get('name')!r} was applied, expected none"
    elif len(own) < len(locked.recipes) or len(history) < len(locked.recipes):
        yield f"{len(history):,} recipes were applied, expected {len(locked.recipes):,}"
        return
    for run, recipe in zip(own, locked.recipes, strict=True):
        yield from run_differences(run, recipe)


def run_differences(run: Mapping[str, Any], recipe: LockedRecipe) -> Iterator[str]:
    """Yield the differences between an entry in the history of a manifest and a recipe of a lock."""
    named = f"the recipe {recipe.name!r}"
    for name in ("num_frames", "seed"):
        own, wanted = run.get(name), getattr(recipe, name)
        if own != wanted:
            yield f"{name} of {named} is {own}, expected {wanted}"
    steps = run["recipe"].get("steps", [])
    if len(steps) != len(recipe.steps):
        yield f"{named} has {len(steps):,} steps, expected {len(recipe.steps):,}"
    for number, (step, wanted) in enumerate(zip(steps, recipe.steps, strict=False)):
        if step.get("use") != wanted.get("use"):
            yield f"step {number} of {named} is {step.get('use')}, expected {wanted.get('use')}"
            continue
        for key in sorted(step.keys() | wanted.keys()):
            own, expected = (json.dumps(one[key]) if key in one else "the default" for one in (step, wanted))
            if own != expected:
                yield f"{key} of step {number} ({wanted.get('use')}) of {named} is {own}, expected {expected}"
    inputs = [(one.id, one.digest) for one in recipe.of]
    own_inputs = [(one["id"], one["files"]) for one in ([run["of"]] if "of" in run else [])]
    if len(inputs) == 1 and own_inputs and own_inputs[0][1] != inputs[0][1]:
        own_id, own_digest = own_inputs[0]
        yield f"{named} was applied to {own_id} with the digest {_short(own_digest)}, expected {_short(inputs[0][1])}"
