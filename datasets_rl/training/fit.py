"""Checks that several datasets can be trained on together: spaces, recipes and conventions, before a network is built.

keys, shapes, choices     certain    always refused
fitted recipes, bounds    certain    refused, unless the user accepts other conventions
rates, scales, signs      strong     the same, as an audit of the mixture finds them
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from datasets_rl.auditing import audit_mixture
from datasets_rl.datasets.metadata import metadata_value
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.preprocessing.environment import describe_changes
from datasets_rl.ted.keys import as_key, dotted_name

_UNITS = ("rate", "scale", "values", "sign")
"""The kinds of findings about units. Keys and shapes are compared here, of the fields that the program reads."""
_UNBOUNDED = float(np.finfo(np.float32).max) / 2


def check_fit(what: str, datasets: Sequence[tuple[str, Any]], *, conventions: bool) -> None:
    """Check that datasets have the same fields in the same units. The first dataset says what is expected.

    Args:
        what: The datasets together, for messages, in the plural.
        datasets: The name of each dataset, and the dataset with the fields that the program reads.
        conventions: Whether other units, bounds and signs are refused.

    Raises:
        InvalidArgumentError: If datasets differ. The error names the datasets and the fields.
    """
    first, *others = datasets
    problems = [problem for other in others for problem in _space_problems(first, other)]
    if problems:
        raise InvalidArgumentError(
            f"{what} do not fit together: {'; '.join(problems)}",
            hint="train on datasets with the same fields, or make the fields alike in datasets that recipes derive: the steps "
            "rename, exclude and cast",
        )
    if not conventions:
        return
    problems = [
        problem for other in others for problem in (*_recipe_problems(first, other), *_bound_problems(first, other))
    ]
    folders = _folders_of_origins([dataset for _, dataset in datasets])
    if not problems and len(folders) > 1:
        problems = _audit_problems(first[1], folders)
    if problems:
        raise InvalidArgumentError(
            f"{what} have different conventions: {'; '.join(problems)}",
            hint=Remedy(
                "derive datasets with the same conventions by recipes, or, if the difference is no fault, accept it: {}",
                Argument("no_conventions", True),
            ),
        )


def _leaves(dataset: Any) -> dict[str, Any]:
    """Return the specs of the fields that a program reads, by dotted key. Flags and indices have no conventions."""
    specs = dataset.specs
    keys = [key if isinstance(key, tuple) else (key,) for key in specs.keys(True, True)]
    return {dotted_name(as_key(key)): specs[key] for key in keys if key[-1] != "final_known"}


def _space_problems(first: tuple[str, Any], other: tuple[str, Any]) -> Iterator[str]:
    (one, expected), (two, found) = ((name, _leaves(dataset)) for name, dataset in (first, other))
    for key in sorted(expected.keys() | found.keys()):
        if key not in expected or key not in found:
            has, lacks = (one, two) if key in expected else (two, one)
            yield f"{has} has {key}, and {lacks} does not"
        elif (space := _space(found[key])) != (usual := _space(expected[key])):
            yield f"{key} of {two} is {space}, expected {usual} as in {one}"


def _space(spec: Any) -> str:
    if (count := getattr(spec.space, "n", None)) is not None:
        return f"{int(count)} choices {[*spec.shape]}"
    dtype = getattr(spec, "dtype", None)
    kind = "texts" if dtype is None else "floats" if dtype.is_floating_point else str(dtype).removeprefix("torch.")
    return f"{kind} {[*spec.shape]}"


def _bound_problems(first: tuple[str, Any], other: tuple[str, Any]) -> Iterator[str]:
    """Yield the stated bounds of fields that differ. A dataset without bounds contradicts nothing."""
    (one, expected), (two, found) = ((name, _leaves(dataset)) for name, dataset in (first, other))
    for key, spec in expected.items():
        usual, bounds = _bounds(spec), _bounds(found[key])
        if usual is not None and bounds is not None and not np.allclose(usual, bounds, rtol=1e-5, atol=1e-6):
            low, high = bounds.tolist()
            usual_low, usual_high = usual.tolist()
            yield f"{key} of {two} is from {low} to {high}, expected {usual_low} to {usual_high} as in {one}"


def _bounds(spec: Any) -> Any:
    low, high = (getattr(spec.space, name, None) for name in ("low", "high"))
    if low is None or high is None or not spec.dtype.is_floating_point:
        return None
    bounds = np.stack([low.numpy(), high.numpy()])
    return bounds if (np.abs(bounds) < _UNBOUNDED).all() else None


def _folders_of_origins(datasets: Sequence[Any]) -> list[str]:
    """Return a folder for each origin. Parts of a dataset, such as of a split, have the conventions of the dataset.

    A small part may look unlike the others by chance.
    """
    folders: dict[str, str] = {}
    for dataset in datasets:
        manifest = dataset.manifest
        first = manifest.history[0] if manifest.history else {}
        origin = first["of"]["files"] if "of" in first else manifest.files_digest
        changes = [(step["step"], step["fitted"]) for step in _changes(dataset)]
        folders.setdefault(repr((origin, changes)), str(dataset.data_path))
    return [*folders.values()]


def _changes(dataset: Any) -> list[dict[str, Any]]:
    return describe_changes(dataset.manifest, partial(metadata_value, dataset.stored))


def fitted_steps(dataset: Any) -> list[dict[str, Any]]:
    """Return the steps of recipes that gave observations or actions units which depend on the data, with the parameters.

    Raises:
        InvalidArgumentError: If the dataset is a merge of datasets with different steps.
    """
    return [step for step in _changes(dataset) if step["fitted"]]


def _recipe_problems(first: tuple[str, Any], other: tuple[str, Any]) -> Iterator[str]:
    (one, expected), (two, found) = first, other
    try:
        usual, steps = fitted_steps(expected), fitted_steps(found)
    except InvalidArgumentError as error:
        yield error.message
        return
    used = {key.removeprefix("next.") for key in _leaves(found)}
    for mine, theirs in zip_longest(steps, usual):
        if mine is None or theirs is None:
            has, lacks = (two, one) if theirs is None else (one, two)
            step = mine or theirs
            yield f"{step['label']} changed {_changed(step, used)} of {has}, and not of {lacks}"
        elif (mine["step"], mine["fitted"]) != (theirs["step"], theirs["fitted"]):
            yield (
                f"{mine['label']} changed {_changed(mine, used)} of {two} with other parameters than {theirs['label']} those "
                f"of {one}"
            )


def _changed(step: Mapping[str, Any], used: Collection[str]) -> str:
    """Return the fields that a step changed by its fitted parameters."""
    fields = dict.fromkeys(name.partition("/")[0] for name in step["fitted"])
    return ", ".join(name for name in fields if name in used) or "fields"


def _audit_problems(dataset: Any, folders: Sequence[str]) -> list[str]:
    used = {key.removeprefix("next.") for key in _leaves(dataset)}
    found = audit_mixture(folders).of_level("strong")
    return [
        f"{one.message} ({one.remedy})"
        for one in found
        if one.evidence["kind"] in _UNITS and (not one.key or one.key in used)
    ]
