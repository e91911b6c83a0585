"""What a preprocessing is to make: of which datasets, by which recipe, and where."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets_rl.disk import expand_home
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing.merge import merged_manifest
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.settings import Settings
from datasets_rl.sources import DERIVED
from datasets_rl.store import DatasetPaths
from datasets_rl.store.find import check_derived_name, derived_paths, last_history_entry, locate, named_paths, paths_of

_FORCE = Argument("force", True)
_MAX_DERIVED_NAME = 60
_RESULTS_VERSION = "0.1.0"
"""The version of this package that changed the results of recipes last."""


@dataclass(frozen=True)
class Plan:
    """The input of a preprocessing, the recipe, and the resulting dataset."""

    folders: Sequence[Path]
    """The folders of the datasets to read, with links resolved."""
    manifest: Manifest
    """The manifest of the input."""
    recipe: Recipe
    description: Mapping[str, Any]
    """The description of the recipe for the manifest."""
    num_frames: int | None
    seed: int
    paths: DatasetPaths
    """The paths of the result."""
    id: str
    """The id of the result."""
    in_place: bool

    @cached_property
    def fingerprint(self) -> str:
        """The digest of what determines the result.

        `_RESULTS_VERSION` is part of the digest, so that results are made anew once the same recipe gives other
        results.
        """
        files = [[file.path, file.digest] for file in self.manifest.files]
        metadata = [_RESULTS_VERSION, files, self.description, self.num_frames, self.seed]
        return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()

    def is_recipe_of(self, run: Mapping[str, Any]) -> bool:
        """Return whether a run in the history of a dataset applied this recipe, to whatever input."""
        applied = [run.get("recipe"), run.get("num_frames"), run.get("seed")]
        return applied == [self.description, self.num_frames, self.seed]

    @property
    def is_present(self) -> bool:
        """Whether the result exists or, in place, whether the recipe is the last recipe that was applied."""
        if not self.paths.exists:
            return False
        last = last_history_entry(self.paths)
        return self.is_recipe_of(last) if self.in_place else last.get("fingerprint") == self.fingerprint

    def check_loss(self) -> None:
        """Check that a run would not lose data, or apply a recipe twice.

        Raises:
            InvalidArgumentError: If the run would replace a dataset by some of its steps, replace another dataset, or
                apply a recipe to the result of the same recipe.
        """
        if self.in_place:
            if self.num_frames is not None and self.num_frames < self.manifest.steps:
                raise InvalidArgumentError(
                    f"num_frames is {self.num_frames:,}, and the dataset with its {self.manifest.steps:,} steps would be "
                    "replaced",
                    hint=Remedy(
                        "name a folder for the result with {}, or proceed anyway with {}", Argument("out"), _FORCE
                    ),
                )
            return
        history = self.manifest.history
        if history and self.is_recipe_of(history[-1]):
            raise InvalidArgumentError(
                f"{self.manifest.id} is already the result of this recipe, which would be applied twice",
                hint=Remedy("preprocess the dataset that it was made of, or proceed anyway with {}", _FORCE),
            )
        if self.paths.exists:
            name = last_history_entry(self.paths).get("recipe", {}).get("name") or "without a name"
            raise InvalidArgumentError(
                f"{self.paths.folder} already exists: it holds the result of another recipe or of other data ({name})",
                hint=Remedy(
                    "choose another name with {} or a folder with {}, remove it first, or proceed anyway with {}",
                    Argument("name"),
                    Argument("out"),
                    _FORCE,
                ),
            )


def plan_result(
    dataset: Path | str | Sequence[Path | str],
    recipe: Recipe | str,
    *,
    out: Path | str | None = None,
    name: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
) -> Plan:
    """Return what `preprocess` with the same arguments would make, or has made. Nothing is written.

    Raises:
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If the recipe has no step, the destination contains something else, or the arguments name
            two destinations or none.
    """
    given = [dataset] if isinstance(dataset, (str, Path)) else list(dataset)
    found = [item if isinstance(item, Path) else locate(item, settings=settings) for item in given]
    folders = _resolved(found)
    recipe = Recipe.of(recipe) if isinstance(recipe, str) else recipe
    if not recipe.steps and len(folders) == 1:
        raise InvalidArgumentError(f"the recipe {recipe.name!r} has no step", hint="only a merge of several needs none")
    manifests = [Manifest.read(folder) for folder in folders]
    manifest = manifests[0] if len(manifests) == 1 else merged_manifest(manifests, folders)
    # Described before the run: the digest of a function includes its state, which a call may change.
    description = recipe.to_json()
    destinations = {"out": out is not None, "name": bool(name), "in_place": in_place}
    if sum(destinations.values()) > 1:
        chosen = [Argument(key) for key, value in destinations.items() if value]
        places = " or ".join(["{}"] * len(chosen))
        raise InvalidArgumentError(
            "one result has several destinations, expected one", hint=Remedy(f"give {places}", *chosen)
        )
    if out is None and len(folders) > 1:
        raise InvalidArgumentError(
            f"the merge of {len(folders)} datasets has no destination", hint="name a folder for it"
        )
    base = paths_of(folders[0])
    plan = Plan(folders, manifest, recipe, description, num_frames, seed, base, manifest.id, in_place)
    if out is not None:
        paths = named_paths(expand_home(out).resolve(), manifest.id)
        _check_destination(paths, folders)
        return replace(plan, paths=paths)
    if in_place:
        return plan
    if expand_home(found[0]).is_symlink():
        # Next to the link that the user refers to, where `list` and `load` find the derived dataset.
        base = named_paths(expand_home(found[0]).absolute(), manifest.id)
    derived = name or _derived_name(description)
    check_derived_name(derived)
    plan = replace(plan, paths=DatasetPaths(base.root, f"{base.name}{DERIVED}{derived}"))
    if not name and not plan.paths.exists:
        others = (replace(plan, paths=paths) for paths in derived_paths(base))
        plan = next((other for other in others if other.is_present), plan)
    return replace(plan, id=f"{manifest.id}{DERIVED}{plan.paths.name[len(base.name) + 1 :]}")


def _derived_name(recipe: Mapping[str, Any]) -> str:
    """Return the default name of a derived dataset: the name of the recipe, or the names of the steps."""
    steps = "+".join(step["use"] for step in recipe["steps"])
    name = str(recipe.get("name") or steps).replace(", ", "+")
    name = re.sub(r"[^A-Za-z0-9._+,=-]+", "-", name).strip("-._+,=")
    if len(name) > _MAX_DERIVED_NAME:
        name = f"{name[:_MAX_DERIVED_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "preprocessed"


def _resolved(folders: Sequence[Path]) -> list[Path]:
    """Return the folders with links resolved, so that a dataset is replaced and not a link."""
    folders = [expand_home(path).resolve() for path in folders]
    if duplicates := sorted({str(path) for path in folders if folders.count(path) > 1}):
        raise InvalidArgumentError(
            f"{', '.join(duplicates)} is named twice, but a merge takes each dataset once",
            hint="name it once, or weight it in a mixture",
        )
    return folders


def _check_destination(target: DatasetPaths, folders: Sequence[Path]) -> None:
    if target.folder in folders:
        raise InvalidArgumentError(
            f"{target.folder} is the folder of the dataset itself",
            hint="name another folder, or preprocess it in place",
        )
    target.check_changeable()
    if target.exists and not Manifest.read(target.folder).history:
        raise InvalidArgumentError(
            f"{target.folder} already exists: it holds a dataset that is not the result of a recipe, which is not replaced",
            hint="remove it first",
        )
