"""Preprocessing: a dataset is transformed by a recipe into partial datasets, which are appended and then published.

    dataset  --- transform -->  build-<request>/partials/*/000000, 000001, ...   any process, any machine, any order
             --- append ----->  build-<request>/version                          in order; each is then deleted
             --- publish ---->  <id>@<name>, `out`, or <id> itself              atomically; in place, `undo` reverts it

After a kill, a further run resumes: completed partial datasets are kept, and so are appended rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.build.build import Chunk, WorkerResult, build, submitted_ahead
from datasets_rl.build.conversion import spec_of_field, write_metadata
from datasets_rl.build.engines import Engine, WorkerDiedError
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.journal import Journal
from datasets_rl.build.partial import partials_folder
from datasets_rl.errors import Argument, InvalidArgumentError, PreprocessError, Remedy
from datasets_rl.format.manifest import Manifest, array_file, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetSummary, DatasetWriter
from datasets_rl.preprocessing.batches import step_bytes, whole_episodes
from datasets_rl.preprocessing.dry_run import DryRun, dry_run_recipe
from datasets_rl.preprocessing.merge import (
    Stored,
    member_datasets,
    merged_manifest,
    open_datasets,
)
from datasets_rl.preprocessing.partial import (
    Task,
    make_partial_dataset,
    read_batches,
    seeded_random,
    write_episodes,
    writer_columns,
)
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.progress import Report, report
from datasets_rl.settings import Settings, memory_bytes
from datasets_rl.sources import DERIVED
from datasets_rl.store import DatasetPaths, Version, current_version, sweep_dataset, undo
from datasets_rl.store.locating import (
    check_derived_name,
    derived_paths,
    last_history_entry,
    locate,
    named_paths,
    paths_of,
)
from datasets_rl.store.publish import Build, building, canonical, locked, point_to_published, publish
from datasets_rl.store.versions import parent_of
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

__all__ = ["Preview", "preprocess", "preview", "result_folder", "undo"]

PART_BYTES = 64 << 20
"""The approximate size of the data that is read for one partial dataset."""
_BATCH_BYTES = 8 << 20
"""The approximate size of a batch."""
_PART_CALLS, _BATCH_CALLS = 5_000, 500
"""Steps of a partial dataset and of a batch if a function is called for each step or episode, and may be slow."""
_MAX_COPIES = 8
_FORCE = Argument("force", True)
_LESS_MEMORY = Remedy("smaller values of {} and {} need less memory", Argument("jobs"), Argument("max_ram"))
"""The number of copies of a batch that a step may hold in memory at once: the maximum measured for batch functions."""
_MAX_DERIVED_NAME = 60
_RESULTS_VERSION = "0.1.0"
"""The version of this package that changed the results of recipes last."""
_MIN_PARALLEL_SECONDS = 20.0
"""The duration for which several processes are worth starting: each takes a few seconds to import torch."""


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
            must have the same fields; a further field, "dataset", has the number of the dataset that each step is from.
        recipe: The recipe, or what `Recipe.of` reads: its name or its file.
        out: A folder for the result; required for several datasets.
        name: The name of the derived dataset, after the ``@``; by default that of the recipe.
        in_place: Make the result the current version of the dataset; `undo` makes the former version current again.
        num_frames: The number of steps to read, from the first; with `in_place`, this requires `force`.
        jobs: The number of processes; by default the number of cores if the dataset is large.
        max_ram: The approximate memory in bytes that all processes may use for data.
        engine: The engine that writes the partial datasets; by default processes of this machine.
        force: Replace an existing result, or another dataset with its name. In place, a recipe that was applied last is
            applied again to the version that it was applied to before; to apply a recipe twice, name it twice.
        seed: The seed of functions that draw random numbers, which depend on it and on the partial dataset alone.
        threads: The number of torch threads in each process.
        num_parts: The number of partial datasets; by default each has about 64 MB.
        wait: Seconds to wait for another process that writes the same dataset.
        settings: The settings; by default those of the environment.

    Returns:
        The folder of the result.

    Raises:
        UnknownIdError: If there is no such dataset.
        PreprocessError: If a step fails or no steps remain; the dataset is unchanged.
        InvalidArgumentError: If another dataset has the name of the result, the dataset is itself a result of this
            recipe, or the datasets to merge have different fields.
        DiskFullError: If the disk has too little space.
        LockedError: If another process did not finish in time.
    """
    settings = settings or Settings.from_env()
    folder, recipe, out = _read_arguments(dataset, recipe, out, settings)
    folders = _as_folders(folder)
    if not recipe.steps and len(folders) == 1:
        raise InvalidArgumentError(f"the recipe {recipe.name!r} has no step", hint="only a merge of several needs none")
    # Described before it runs: the digest of a function includes its state, which a call may change.
    request = _Request(_manifest_of(folders), recipe.to_json(), num_frames, seed)
    destination = _resolve_destination(folder, out, name, request, in_place=in_place)
    target = destination.paths
    if not force and _is_present(destination, request):
        sweep_dataset(target)
        return target.folder
    target.check_changeable()
    with locked(target, str(target.folder), wait=wait):
        if not force and _is_present(destination, request):
            return target.folder
        parent = current_version(target)
        if in_place and parent is not None:
            # The same recipe again is made of what it was made of before, never of its own result.
            is_repeated = request.is_recipe_of(last_history_entry(target))
            parent = _input_of(target, parent) if is_repeated else parent
            folders = [parent.folder]
        stored = open_datasets([str(path) for path in folders])
        if not force:
            _check_loss(stored, destination, request)
        request = replace(request, manifest=stored.manifest)
        request_text = canonical({"preprocess": request.fingerprint})
        if point_to_published(target, request_text, parent):
            return target.folder
        with building(target, request_text, parent) as made:
            try:
                run = _Preprocessing(stored, recipe, request, destination, made, max_ram, jobs, threads, num_parts)
                run.make(engine, settings)
            except PreprocessError:
                # The recipe does not work, so that its partial results will not be used.
                disk.remove_tree(made.work, target.folder)
                raise
            publish(made)
    return target.folder


def _input_of(target: DatasetPaths, version: Version) -> Version:
    """Return the version of which the current version was made.

    Raises:
        InvalidArgumentError: If it was pruned.
    """
    parent = parent_of(target, version)
    if parent is None:
        raise InvalidArgumentError(
            f"{target.folder} cannot be made again: the version that it was made of was pruned",
            hint="download the dataset again, or name the recipe twice to apply it to its own result",
        )
    return parent


def result_folder(
    folder: Path | Sequence[Path],
    recipe: Recipe,
    *,
    out: Path | None = None,
    name: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    seed: int = 0,
) -> Path:
    """Return the folder that `preprocess` with the same arguments would write to, or has written to.

    Raises:
        InvalidArgumentError: If the folder contains something else.
    """
    request = _Request(_manifest_of(_as_folders(folder)), recipe.to_json(), num_frames, seed)
    return _resolve_destination(folder, out, name, request, in_place=in_place).paths.folder


def preview(
    dataset: Path | str | Sequence[Path | str],
    recipe: Recipe | str,
    *,
    out: Path | str | None = None,
    name: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
) -> Preview:
    """Estimate the result of `preprocess` from the first episodes, without writing anything.

    Raises:
        PreprocessError: If a step fails, or no steps of any episode remain.
    """
    folder, recipe, out = _read_arguments(dataset, recipe, out, settings)
    folders = _as_folders(folder)
    stored = open_datasets([str(path) for path in folders])
    request = _Request(stored.manifest, recipe.to_json(), num_frames, seed)
    destination = _resolve_destination(folder, out, name, request, in_place=in_place)
    show = (settings or Settings.from_env()).progress
    expected = dry_run_recipe(stored, _fit_recipe(recipe, stored, num_frames, seed, show=show).copy(), num_frames)
    return Preview(
        **vars(expected),
        id=stored.manifest.id,
        recipe=request.recipe,
        fingerprint=request.fingerprint,
        folder=destination.paths.folder,
        present=_is_present(destination, request),
        free_bytes=disk.free_bytes(destination.paths.root),
    )


@dataclass(frozen=True)
class _Request:
    """What determines a result: the input files, the recipe, the number of steps to read, and the seed."""

    manifest: Manifest
    """The manifest of the input."""
    recipe: Mapping[str, Any]
    """The description of the recipe for the manifest."""
    num_frames: int | None
    seed: int

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the request.

        `_RESULTS_VERSION` is part of it, so that results are made anew once the same recipe gives other results.
        """
        files = [[file.path, file.digest] for file in self.manifest.files]
        metadata = [_RESULTS_VERSION, files, self.recipe, self.num_frames, self.seed]
        return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()

    def is_recipe_of(self, run: Mapping[str, Any]) -> bool:
        """Return whether a run in the history of a dataset applied this recipe, to whatever input."""
        if [run.get("num_frames"), run.get("seed")] != [self.num_frames, self.seed]:
            return False
        return bool(run.get("recipe") == self.recipe)

    def is_met_by(self, run: Mapping[str, Any]) -> bool:
        """Return whether a run in the history of a dataset had the same result."""
        return bool(run.get("fingerprint") == self.fingerprint)


@dataclass(frozen=True)
class _Destination:
    """The paths and the id of the result of a recipe."""

    paths: DatasetPaths
    id: str
    in_place: bool = False


def _resolve_destination(
    folder: Path | Sequence[Path],
    out: Path | None,
    name: str,
    request: _Request,
    *,
    in_place: bool,
) -> _Destination:
    """Return the destination of the result.

    Raises:
        InvalidArgumentError: If it contains something else, or the arguments name two destinations or none.
    """
    is_given = {"out": out is not None, "name": bool(name), "in_place": in_place}
    if sum(is_given.values()) > 1:
        given = [Argument(name) for name, value in is_given.items() if value]
        places = " or ".join(["{}"] * len(given))
        raise InvalidArgumentError(
            "one result has several destinations; expected one", hint=Remedy(f"give {places}", *given)
        )
    folders, base_id = _as_folders(folder), request.manifest.id
    if out is not None:
        target = named_paths(out.expanduser().resolve(), base_id)
        _check_destination(target, folders)
        return _Destination(target, base_id)
    if len(folders) > 1:
        raise InvalidArgumentError(
            f"the merge of {len(folders)} datasets has no destination", hint="name a folder for it"
        )
    base = paths_of(folders[0])
    if in_place:
        return _Destination(base, base_id, in_place=True)
    if isinstance(folder, Path) and folder.expanduser().is_symlink():
        # Next to the link that the user refers to, where `list` and `load` find the derived dataset.
        base = named_paths(folder.expanduser().absolute(), base_id)
    derived = name or derived_name(request.recipe)
    check_derived_name(derived)
    target = DatasetPaths(base.root, f"{base.name}{DERIVED}{derived}")
    if not name and not target.exists:
        same = (paths for paths in derived_paths(base) if request.is_met_by(last_history_entry(paths)))
        target = next(same, target)
    return _Destination(target, f"{base_id}{DERIVED}{target.name[len(base.name) + 1 :]}")


def derived_name(recipe: Mapping[str, Any]) -> str:
    """Return the default name of a derived dataset: the name of its recipe, or the names of its steps."""
    steps = "+".join(step["use"] for step in recipe["steps"])
    name = str(recipe.get("name") or steps).replace(", ", "+")
    name = re.sub(r"[^A-Za-z0-9._+,=-]+", "-", name).strip("-._+,=")
    if len(name) > _MAX_DERIVED_NAME:
        name = f"{name[:_MAX_DERIVED_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "preprocessed"


def _manifest_of(folders: Sequence[Path]) -> Manifest:
    manifests = [Manifest.read(folder) for folder in folders]
    return manifests[0] if len(manifests) == 1 else merged_manifest(manifests, folders)


def _is_present(destination: _Destination, request: _Request) -> bool:
    """Return whether the result exists; in place, whether the recipe is the last one that was applied."""
    if not destination.paths.exists:
        return False
    last = last_history_entry(destination.paths)
    return request.is_recipe_of(last) if destination.in_place else request.is_met_by(last)


def _read_arguments(
    dataset: Path | str | Sequence[Path | str], recipe: Recipe | str, out: Path | str | None, settings: Settings | None
) -> tuple[Path | list[Path], Recipe, Path | None]:
    """Return the folders of datasets that are given by their ids, the recipe, and the path of the destination."""
    one = isinstance(dataset, (str, Path))
    given: list[Path | str] = [dataset] if one else list(dataset)  # type: ignore[arg-type,list-item]  # by `one`
    folders = [part if isinstance(part, Path) else locate(part, settings=settings) for part in given]
    recipe = Recipe.of(recipe) if isinstance(recipe, str) else recipe
    return folders[0] if one else folders, recipe, None if out is None else Path(out)


def _as_folders(folder: Path | Sequence[Path]) -> list[Path]:
    """Return the folders with links resolved, so that a dataset is replaced and not the link to it.

    Raises:
        InvalidArgumentError: If the same folder is given twice.
    """
    folders = [path.expanduser().resolve() for path in ([folder] if isinstance(folder, Path) else folder)]
    if duplicates := sorted({str(path) for path in folders if folders.count(path) > 1}):
        raise InvalidArgumentError(
            f"{', '.join(duplicates)} is named twice; a merge takes each dataset once",
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


def _check_loss(stored: Stored, destination: _Destination, request: _Request) -> None:
    """Check that a run would not lose data, or apply a recipe twice.

    Raises:
        InvalidArgumentError: If the run would replace a dataset by some of its steps, replace another dataset, or apply
            a recipe to its own result.
    """
    if destination.in_place and request.num_frames is not None and request.num_frames < len(stored):
        raise InvalidArgumentError(
            f"num_frames is {request.num_frames:,}, and the dataset with its {len(stored):,} steps would be replaced",
            hint=Remedy("name a folder for the result with {}, or proceed anyway with {}", Argument("out"), _FORCE),
        )
    history = stored.manifest.history
    if not destination.in_place and history and request.is_recipe_of(history[-1]):
        raise InvalidArgumentError(
            f"{stored.manifest.id} is already the result of this recipe, which would be applied twice",
            hint=Remedy("preprocess the dataset that it was made of, or proceed anyway with {}", _FORCE),
        )
    if not destination.in_place and destination.paths.exists:
        name = last_history_entry(destination.paths).get("recipe", {}).get("name") or "without a name"
        raise InvalidArgumentError(
            f"{destination.paths.folder} already exists: it holds the result of another recipe or of other data ({name})",
            hint=Remedy(
                "choose another name with {} or a folder with {}, remove it first, or proceed anyway with {}",
                Argument("name"),
                Argument("out"),
                _FORCE,
            ),
        )


def _fit_recipe(recipe: Recipe, stored: Stored, num_frames: int | None, seed: int, *, show: bool) -> Recipe:
    """Return a copy of the recipe whose steps are fitted to the dataset."""
    batch_steps = max(1, _BATCH_BYTES // step_bytes(stored.schema))
    rows = min(num_frames or len(stored), len(stored))

    def batches() -> Iterator[EpisodeBatch]:
        with report(f"fitting to {stored.manifest.id}", rows, unit=" steps", show=show) as advance:
            for batch in read_batches(stored, 0, len(stored.episodes), batch_steps, rows):
                yield batch
                advance(batch.count)

    recipe = recipe.copy()
    with seeded_random(seed):
        recipe.fit(batches)
    return recipe


@dataclass
class _Preprocessing:
    """A run of a recipe on a dataset."""

    stored: Stored
    recipe: Recipe
    request: _Request
    destination: _Destination
    unfinished: Build
    max_ram: int | None
    jobs: int | None
    threads: int
    num_parts: int | None

    @property
    def target(self) -> DatasetPaths:
        """The paths of the dataset that preprocessing writes."""
        return self.destination.paths

    def make(self, engine: Engine | None, settings: Settings) -> None:
        """Build the result in the build folder."""
        if self.request.num_frames is not None and self.request.num_frames < 1:
            raise InvalidArgumentError(f"num_frames is {self.request.num_frames}; expected at least 1")
        recipe = _fit_recipe(
            self.recipe, self.stored, self.request.num_frames, self.request.seed, show=settings.progress
        )
        expected = dry_run_recipe(self.stored, recipe.copy(), self.request.num_frames)
        revisions = _LayoutRevisions.read(self.unfinished.work / "revisions.json", self.request.fingerprint)
        revisions.unshared |= expected.unshared
        disk.require_free(
            self.target.root,
            expected.bytes,
            "the preprocessed dataset",
            hint=Remedy("make room, or give another place with {}", Argument("out")),
        )
        total = min(self.request.num_frames or len(self.stored), len(self.stored))
        if self.jobs is None:
            self.jobs = (
                self._job_count(self._step_bytes(Schema.layout(expected.columns)), settings.jobs)
                if expected.seconds > _MIN_PARALLEL_SECONDS
                else 1
            )
        if engine is None and self.jobs > 1:
            engine = LocalEngine(self.jobs, threads=self.threads)
        while True:
            schema = Schema.layout(_revised_columns(Schema.layout(expected.columns), revisions))
            tasks = self._make_tasks(schema, revisions.unshared)
            revision = self._build(tasks, engine, schema, recipe, settings, total if expected.as_many else None)
            if revision is None:
                return
            revisions.add(revision)

    def _job_count(self, bytes_per_step: int, max_jobs: int) -> int:
        """Return the number of processes, limited so that the longest episode fits into memory in each of them."""
        process_bytes = int(self.stored.episodes.lengths.max()) * bytes_per_step * _MAX_COPIES
        return max(1, int(min(max_jobs, os.cpu_count() or 1, memory_bytes() / 2 // process_bytes)))

    def _step_bytes(self, schema: Schema) -> int:
        """Return the size of a step in bytes, before or after the recipe, whichever is larger."""
        return max(step_bytes(self.stored.schema), step_bytes(schema))

    def _make_tasks(self, schema: Schema, unshared: set[Key]) -> list[dict[str, Any]]:
        """Return a task for each partial dataset; `_build` sets the paths of the folder and of the recipe."""
        lengths = self.stored.episodes.lengths
        if self.request.num_frames is not None:
            stop = int(np.searchsorted(np.cumsum(lengths), self.request.num_frames)) + 1
            lengths = lengths[:stop]
        bytes_per_step = self._step_bytes(schema)
        steps = PART_BYTES // bytes_per_step
        if self.num_parts is not None:
            steps = -(-int(lengths.sum()) // self.num_parts)
        elif self.recipe.calls_functions:
            steps = min(steps, _PART_CALLS)
        entries = schema.to_json()
        folders = [str(member.folder) for member in member_datasets(self.stored)]
        batch_steps = self._batch_steps(bytes_per_step)
        specs = {name: spec for name, spec in self.stored.manifest.specs.items() if spec.get("kind") != "unbounded"}
        tasks = []
        remaining = self.request.num_frames or len(self.stored)
        for number, (first, stop) in enumerate(whole_episodes(lengths, max(1, int(steps)))):
            task = Task(
                dataset=folders,
                recipe="",
                folder="",
                first=first,
                stop=stop,
                max_steps=batch_steps,
                rows=remaining,
                schema=entries,
                unshared=sorted(list(key) for key in unshared),
                specs=specs,
                seed=_seed_of_task(self.request.seed, number),
            )
            tasks.append(asdict(task))
            remaining -= int(lengths[first:stop].sum())
        return tasks

    def _batch_steps(self, bytes_per_step: int) -> int:
        batch_bytes = _BATCH_BYTES
        if self.max_ram is not None:
            batch_bytes = min(batch_bytes, self.max_ram // ((self.jobs or 1) * _MAX_COPIES))
        longest = int(self.stored.episodes.lengths.max()) * bytes_per_step
        if self.max_ram is not None and longest * _MAX_COPIES > self.max_ram:
            raise InvalidArgumentError(
                f"max_ram is {self.max_ram:,} bytes; the longest episode has {longest:,} and needs "
                f"{longest * _MAX_COPIES:,}",
                hint="episodes are processed as a whole: allow more memory",
            )
        steps = batch_bytes // bytes_per_step
        return max(1, min(steps, _BATCH_CALLS) if self.recipe.calls_functions else steps)

    def _build(
        self,
        tasks: Sequence[Mapping[str, Any]],
        engine: Engine | None,
        schema: Schema,
        recipe: Recipe,
        settings: Settings,
        steps: int | None,
    ) -> Mapping[str, Any] | None:
        """Build the result from its partial datasets.

        Returns:
            None; or, if the layout does not fit the values, the revision of the layout with which to start over.
        """
        build_folder, manifest = self.unfinished.version, self.stored.manifest
        fitted = {name: np.asarray(value).tolist() for name, value in recipe.fitted.items()}
        key = hashlib.sha256(json.dumps([self.request.fingerprint, fitted, tasks]).encode()).hexdigest()
        partials = partials_folder(self.unfinished.work / "partials", key)
        recipe_file = partials / "recipe.bin"
        if engine is not None and len(tasks) > 1:
            recipe_file.write_bytes(recipe.pickled())
        tasks = [
            {**task, "folder": str(partials / f"{number:06}"), "recipe": str(recipe_file)}
            for number, task in enumerate(tasks)
        ]
        journal = Journal(self.unfinished.journal, key)
        journal.roll_back(build_folder)
        build_folder.mkdir(parents=True, exist_ok=True)
        commits = [entry["commit"] for entry in journal.entries]
        writer = DatasetWriter(build_folder, writer_columns(schema), name=manifest.id, steps=steps, commits=commits)
        rows = [self._row_count(task) for task in tasks]
        done = len(journal.entries)
        try:
            with ExitStack() as stack:
                progress = report(
                    f"preprocessing {manifest.id}",
                    sum(rows),
                    unit=" steps",
                    done=sum(rows[:done]),
                    show=settings.progress,
                )
                chunks = self._chunks(stack, tasks[done:], engine, recipe, stack.enter_context(progress))
                entries = build(chunks, writer, journal, len(tasks))
            written = writer.finish()
        except _LayoutChangedError as change:
            return change.layout
        finally:
            writer.discard()
        outside_spec = {name for entry in entries for name in entry["outside_spec"]}
        self._write_manifest(build_folder, written, recipe, outside_spec)
        return None

    def _chunks(
        self,
        stack: ExitStack,
        tasks: Sequence[Mapping[str, Any]],
        engine: Engine | None,
        recipe: Recipe,
        report: Report,
    ) -> Iterator[_LocalChunk]:
        """Return a chunk for each task: of this process, or of an engine, which `stack` closes."""
        if engine is None or len(tasks) < 2:
            return (_LocalChunk(task, self.stored, recipe, report) for task in tasks)
        stack.enter_context(engine)
        chunks = (_WorkerChunk(task, self.stored, recipe, report, engine, self._row_count(task)) for task in tasks)
        return submitted_ahead(chunks, engine.max_in_flight)

    def _row_count(self, task: Mapping[str, Any]) -> int:
        lengths = self.stored.episodes.lengths[task["first"] : task["stop"]]
        return min(int(lengths.sum()), int(task["rows"]))

    def _write_manifest(self, build: Path, written: DatasetSummary, recipe: Recipe, outside_spec: set[str]) -> None:
        before = self.stored.manifest
        arrays = {name: _metadata_value(self.stored, value) for name, value in before.metadata.items()}
        # Named by the number of the run: a recipe that is applied twice is fitted twice, and both runs can be undone.
        fitted = {f"preprocess/{len(before.history)}/{name}": value for name, value in recipe.fitted.items()}
        metadata, files = write_metadata(build, {**arrays, **fitted})
        run = {
            "recipe": dict(self.request.recipe),
            "num_frames": self.request.num_frames,
            "seed": self.request.seed,
            "fingerprint": self.request.fingerprint,
            "version": converter_version(),
            "of": {"id": before.id, "steps": before.steps, "episodes": before.episodes, "files": before.files_digest},
        }
        manifest = replace(
            before,
            id=self.destination.id,
            steps=written.steps,
            episodes=written.episodes,
            final_unknown=written.final_unknown,
            schema=written.schema,
            files=(*written.files, *files),
            converter=converter_version(),
            statistics=written.statistics,
            specs=_specs_of_result(written.schema, before.specs, outside_spec),
            metadata=metadata,
            history=(*before.history, run),
        )
        manifest.write(build)


class _LayoutChangedError(Exception):
    """Raised when the values of a chunk do not fit the layout of the fields: the build must start over."""

    def __init__(self, layout: Mapping[str, Any]) -> None:
        super().__init__(layout)
        self.layout = layout


class _LocalChunk(Chunk):
    """The episodes of a task, preprocessed in this process."""

    def __init__(self, task: Mapping[str, Any], stored: Stored, recipe: Recipe, report: Report) -> None:
        self.task = task
        self._stored = stored
        self._recipe = recipe
        self._report = report

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the episodes, and return the fields with values outside their specs.

        Raises:
            PreprocessError: If a step fails.
        """
        with seeded_random(self.task["seed"]):
            result = write_episodes(writer, Task(**self.task), self._stored, self._recipe.copy(), self._report)
        return self._journal_entry(result)

    @staticmethod
    def _journal_entry(result: Mapping[str, Any]) -> Mapping[str, Any]:
        if "revision" in result:
            raise _LayoutChangedError(result["revision"])
        return {"outside_spec": result["outside_spec"]}


class _WorkerChunk(_LocalChunk):
    """The episodes of a task, preprocessed by a process of an engine into a partial dataset."""

    def __init__(
        self,
        task: Mapping[str, Any],
        stored: Stored,
        recipe: Recipe,
        report: Report,
        engine: Engine,
        rows: int,
    ) -> None:
        super().__init__(task, stored, recipe, report)
        self._rows = rows
        self._result = WorkerResult(engine, make_partial_dataset, task, report)

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the partial dataset, and return the fields with values outside their specs.

        Raises:
            PreprocessError: If a step fails, or the process died.
        """
        try:
            result = self._result.get()
        except WorkerDiedError as error:
            raise PreprocessError(
                f"the process that preprocessed episodes {self.task['first']:,} to {self.task['stop']:,} {error.how}",
                hint=error.remedy or _LESS_MEMORY,
            ) from error
        entry = self._journal_entry(result)
        writer.append_partial(self._result.folder, result["commit"])
        self._result.correct_report(self._rows)
        return entry

    def release(self) -> None:
        """Delete the partial dataset."""
        self._result.remove()


def _metadata_value(stored: Stored, value: Any) -> Any:
    file = array_file(value)
    return value if file is None else np.array(map_npy(stored.folder / file))


def _specs_of_result(schema: Schema, before: Mapping[str, Any], outside_spec: set[str]) -> dict[str, Any]:
    """Return the specs of the fields: the previous one if all values are inside it, else one of dtype and shape."""
    return {
        field.name: before[field.name]
        if field.name in before and field.name not in outside_spec and _fits_spec(field, before[field.name])
        else spec_of_field(field)
        for field in schema
    }


def _fits_spec(field: Column, spec: Mapping[str, Any]) -> bool:
    if spec.get("kind") == "unbounded":
        return (spec.get("dtype"), spec.get("shape")) == ((field.memory_dtype or field.dtype).name, list(field.shape))
    return True


@dataclass
class _LayoutRevisions:
    """Revisions of the layout that later episodes require; stored, so that a build that is run again has them."""

    file: Path
    fingerprint: str
    unshared: set[Key]
    """Fields that are stored separately at t and at t + 1."""
    decoded: set[Key]
    """Fields whose images cannot be stored encoded."""

    @classmethod
    def read(cls, file: Path, fingerprint: str) -> _LayoutRevisions:
        """Read the revisions of an earlier attempt at the same run; empty ones if there was none."""
        with suppress(OSError, ValueError, KeyError):
            document = json.loads(file.read_text())
            if document["fingerprint"] == fingerprint:
                unshared = {tuple(key) for key in document["unshared"]}
                return cls(file, fingerprint, unshared, {tuple(key) for key in document["decoded"]})
        return cls(file, fingerprint, set(), set())

    def add(self, revision: Mapping[str, Any]) -> None:
        """Add the revision that a chunk requires, and store all."""
        self.unshared |= {tuple(key) for key in revision["unshared"]}
        self.decoded |= {tuple(key) for key in revision["decoded"]}
        disk.write_json(
            self.file,
            {"fingerprint": self.fingerprint, "unshared": sorted(self.unshared), "decoded": sorted(self.decoded)},
        )


def _seed_of_task(seed: int, number: int) -> int:
    """Return the seed of a partial dataset, a hash: with sums, consecutive seeds would share random numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big") >> 1


def _revised_columns(schema: Schema, revisions: _LayoutRevisions) -> list[Column]:
    """Return the columns of a schema with some states stored separately at t + 1 and some images decoded."""
    columns: list[Column] = []
    for field in schema:
        encoded = field.encoded and field.key not in revisions.decoded
        plain = Column(field.key, field.dtype, field.shape, field.shared, field.memory_dtype, field.text, encoded)
        if field.key in revisions.unshared and field.shared:
            columns += [replace(plain, shared=False), replace(plain, key=("next", *field.key), shared=False)]
        else:
            columns.append(plain)
    return columns
