"""Preprocessing: a dataset is transformed by a recipe into partial datasets, which are appended and then published.

    dataset  --- transform -->  build-<request>/partials/*/000000, 000001, ...   any process, any machine, any order
             --- append ----->  build-<request>/version                          in order. Each is then deleted
             --- publish ---->  <id>@<name>, `out`, or <id> itself              atomically. In place, `restore` reverts
             it

After a kill, a further run resumes: completed partial datasets are kept, and so are appended rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets_rl import disk
from datasets_rl.build.engines import Engine
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.manifest import Manifest, concatenated
from datasets_rl.preprocessing.dry_run import DryRun, dry_run_recipe
from datasets_rl.preprocessing.make import Make, fit_recipe
from datasets_rl.preprocessing.merge import open_datasets
from datasets_rl.preprocessing.plan import Plan, plan_result
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.steps.split import splits_in
from datasets_rl.settings import Settings
from datasets_rl.store import Version, current_version, sweep_dataset
from datasets_rl.store.find import last_history_entry, shown_id
from datasets_rl.store.publish import building, canonical, locked, parent_of, point_to_published, publish


@dataclass(frozen=True, kw_only=True)
class Preview(DryRun):
    """The expected result of a recipe for a dataset, estimated from its first episodes."""

    id: str
    recipe: Mapping[str, Any]
    fingerprint: str
    folder: Path
    """The folder of the result."""
    present: bool
    """Whether the result exists already."""
    free_bytes: int
    orders: Mapping[str, str]
    """The fields that each new vector is concatenated of, in order and each with its size, by the name of the vector."""
    splits: Sequence[str]
    """For each split, how many episodes are for validation, and how many are kept together."""


def preprocess(
    dataset: Path | str | Sequence[Path | str],
    recipe: Recipe | str,
    *,
    out: Path | str | None = None,
    name: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    jobs: int | None = None,
    max_ram: int | None = None,
    engine: Engine | None = None,
    force: bool = False,
    seed: int = 0,
    threads: int = 1,
    num_parts: int | None = None,
    wait: float = 3600.0,
    settings: Settings | None = None,
) -> Path:
    """Transform a dataset by a recipe, by default into a derived dataset next to it, ``<id>@<name of the recipe>``.

        >>> preprocess("demo/pendulum", "td3_bc")               # demo/pendulum@td3_bc
        >>> preprocess(["demo/pendulum", "demo/pendulum@td3_bc"], Recipe([]), out="both")

    If the result of the same recipe exists already, its folder is returned, whatever its name.

    Args:
        dataset: The id or the folder of a stored dataset, or those of several to merge. After the recipe, merged datasets
            must have the same fields. Another field, "dataset", has the number of the dataset of each step.
        recipe: The recipe, or what `Recipe.of` reads: its name or its file.
        out: A folder for the result, which several datasets require.
        name: The name of the derived dataset, after the ``@``, by default the name of the recipe.
        in_place: Make the result the current version of the dataset. `restore` makes the former one current again.
        num_frames: The number of steps to read, from the first. With `in_place`, this requires `force`.
        jobs: The number of processes. By default the number of cores if the dataset is large.
        max_ram: The approximate memory in bytes that all processes may use for data.
        engine: The engine that writes the partial datasets. By default processes of this machine.
        force: Replace an existing result, or another dataset with its name. In place, a recipe that was applied last is
            applied again to the version that it was applied to before. To apply a recipe twice, name the recipe twice.
        seed: The seed of functions that draw random numbers, which depend on it and on the partial dataset alone.
        threads: The number of torch threads in each process.
        num_parts: The number of partial datasets. By default each has about 64 MB.
        wait: Seconds to wait for another process that writes the same dataset.
        settings: The settings. By default those of the environment.

    Returns:
        The folder of the result.

    Raises:
        UnknownIdError: If there is no such dataset.
        PreprocessError: If a step fails or no steps remain. The dataset is unchanged.
        InvalidArgumentError: If another dataset has the name of the result, the dataset is itself a result of this
            recipe, or the datasets to merge have different fields.
        DiskFullError: If the disk has too little space.
        LockedError: If another process did not finish in time.
    """
    settings = settings or Settings.from_env()
    plan = plan_result(
        dataset, recipe, out=out, name=name, in_place=in_place, num_frames=num_frames, seed=seed, settings=settings
    )
    target = plan.paths
    if not force and plan.is_present:
        sweep_dataset(target)
        return target.folder
    return make_result(
        plan,
        jobs=jobs,
        max_ram=max_ram,
        engine=engine,
        force=force,
        threads=threads,
        num_parts=num_parts,
        wait=wait,
        settings=settings,
    )


def make_result(  # noqa: D417 -- `preprocess` describes the others
    plan: Plan,
    *,
    jobs: int | None = None,
    max_ram: int | None = None,
    engine: Engine | None = None,
    force: bool = False,
    threads: int = 1,
    num_parts: int | None = None,
    wait: float = 3600.0,
    settings: Settings,
    accept: Callable[[Manifest], None] | None = None,
) -> Path:
    """Make the result of a plan, and return its folder. `preprocess` describes the other arguments and errors.

    Args:
        plan: The plan.
        accept: Called with the manifest of the result before the result is published, to refuse it by an error.
    """
    target = plan.paths
    target.check_changeable()
    with locked(target, str(target.folder), wait=wait):
        if not force and plan.is_present:
            return target.folder
        parent = current_version(target)
        folders = plan.folders
        if plan.in_place and parent is not None:
            parent = _input_version(plan, parent)
            folders = [parent.folder]
        stored = open_datasets([str(path) for path in folders])
        plan = replace(plan, manifest=stored.manifest)
        if not force:
            plan.check_loss()
        request = canonical({"preprocess": plan.fingerprint})
        if point_to_published(target, request, parent):
            return target.folder
        with building(target, request, parent) as made:
            try:
                Make(stored, plan, made, max_ram, jobs, threads, num_parts).run(engine, settings)
            except PreprocessError:
                # The recipe does not work, so that its partial results will not be used.
                disk.remove_tree(made.work, target.folder)
                raise
            publish(made, accept)
    return target.folder


def _input_version(plan: Plan, current: Version) -> Version:
    """Return the version to apply a recipe to in place: the same recipe again is never applied to its own result."""
    if not plan.is_recipe_of(last_history_entry(plan.paths)):
        return current
    parent = parent_of(plan.paths, current)
    if parent is None:
        raise InvalidArgumentError(
            f"{plan.paths.folder} cannot be made again: the version that it was made of was pruned",
            hint="download the dataset again, or name the recipe twice to apply it to its own result",
        )
    return parent


def preview(
    dataset: Path | str | Sequence[Path | str], recipe: Recipe | str, *, settings: Settings | None = None, **where: Any
) -> Preview:
    """Estimate the result of `preprocess` from the first episodes, without writing anything.

    Args:
        dataset: As for `preprocess`.
        recipe: As for `preprocess`.
        settings: The settings. By default those of the environment.
        **where: Other arguments of `plan_result`.

    Raises:
        PreprocessError: If a step fails, or no steps of any episode remain.
    """
    settings = settings or Settings.from_env()
    plan = plan_result(dataset, recipe, settings=settings, **where)
    stored = open_datasets([str(path) for path in plan.folders])
    fitted = fit_recipe(plan, stored, show=settings.progress)
    expected = dry_run_recipe(stored, fitted.copy(), plan.num_frames)
    return Preview(
        **vars(expected),
        id=shown_id(plan.folders[0], plan.manifest.id, settings=settings)
        if len(plan.folders) == 1
        else plan.manifest.id,
        recipe=plan.description,
        fingerprint=plan.fingerprint,
        folder=plan.paths.folder,
        present=plan.is_present,
        free_bytes=disk.free_bytes(plan.paths.root),
        orders=concatenated(plan.description["steps"], fitted.fitted),
        splits=splits_in(plan.description["steps"], fitted.fitted),
    )
