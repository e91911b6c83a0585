"""Making the result of a plan: the partial datasets are written, here or by an engine, and appended in order."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.build.build import Chunk, WorkerResult, build, submitted_ahead
from datasets_rl.build.conversion import read_metadata, spec_of_field, write_metadata
from datasets_rl.build.engines import Engine, WorkerDiedError
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.journal import Journal
from datasets_rl.build.partial import prepare_partials, writer_columns
from datasets_rl.errors import Argument, InvalidArgumentError, PreprocessError, Remedy
from datasets_rl.format.manifest import converter_version
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetSummary, DatasetWriter
from datasets_rl.preprocessing.batches import step_bytes, whole_episodes
from datasets_rl.preprocessing.dictionaries import read_dictionaries, store_dictionaries
from datasets_rl.preprocessing.dry_run import dry_run_recipe
from datasets_rl.preprocessing.merge import Stored, member_datasets
from datasets_rl.preprocessing.partial import Task, make_partial_dataset, read_batches, seeded_random, write_episodes
from datasets_rl.preprocessing.plan import Plan
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.progress import Report, report
from datasets_rl.settings import Settings, memory_bytes
from datasets_rl.store.publish import Build
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

_PART_BYTES = 64 << 20
"""The approximate size of the data that is read for each partial dataset."""
_BATCH_BYTES = 8 << 20
"""The approximate size of a batch."""
_PART_CALLS, _BATCH_CALLS = 5_000, 500
"""Steps of a partial dataset and of a batch if a function is called for each step or episode, and may be slow."""
_MAX_COPIES = 8
"""The number of copies of a batch that a step may hold in memory at once: the maximum measured for batch functions."""
_LESS_MEMORY = Remedy("smaller values of {} and {} need less memory", Argument("jobs"), Argument("max_ram"))
_MIN_PARALLEL_SECONDS = 20.0
"""The duration for which several processes are worth starting: each takes a few seconds to import torch."""


def fit_recipe(plan: Plan, stored: Stored, *, show: bool) -> Recipe:
    """Return a copy of the recipe with steps that are fitted to the dataset."""
    batch_steps = max(1, _BATCH_BYTES // step_bytes(stored.schema))
    rows = min(plan.num_frames or len(stored), len(stored))

    def batches() -> Iterator[EpisodeBatch]:
        with report(f"fitting to {stored.manifest.id}", rows, unit=" steps", show=show) as advance:
            for batch in read_batches(stored, 0, len(stored.episodes), batch_steps, rows):
                yield batch
                advance(batch.count)

    recipe = plan.recipe.copy()
    recipe.prepare(stored)
    with seeded_random(plan.seed):
        recipe.fit(batches)
    return recipe


@dataclass
class Make:
    """The making of the result of a plan in the folder of a build."""

    stored: Stored
    plan: Plan
    unfinished: Build
    max_ram: int | None
    jobs: int | None
    threads: int
    num_parts: int | None

    def run(self, engine: Engine | None, settings: Settings) -> None:
        """Make the result.

        Raises:
            PreprocessError: If a step fails or no steps remain.
            InvalidArgumentError: If an argument is out of range.
            DiskFullError: If the disk has too little space.
        """
        frames = self.plan.num_frames
        if frames is not None and frames < 1:
            raise InvalidArgumentError(f"num_frames is {frames}, expected at least 1")
        recipe = fit_recipe(self.plan, self.stored, show=settings.progress)
        expected = dry_run_recipe(self.stored, recipe.copy(), frames)
        store_dictionaries(self._dictionaries, expected.dictionaries)
        revisions = _LayoutRevisions.read(self.unfinished.work / "revisions.json")
        revisions.unshared |= expected.unshared
        disk.require_free(
            self.plan.paths.root,
            expected.bytes,
            "the preprocessed dataset",
            hint=Remedy("make room, or give another place with {}", Argument("out")),
        )
        total = min(frames or len(self.stored), len(self.stored))
        layout = Schema.layout(expected.columns)
        if self.jobs is None:
            is_long = expected.seconds > _MIN_PARALLEL_SECONDS
            self.jobs = self._job_count(self._step_bytes(layout), settings.jobs) if is_long else 1
        if engine is None and self.jobs > 1:
            engine = LocalEngine(self.jobs, threads=self.threads)
        while True:
            schema = Schema.layout(_revised_columns(layout, revisions))
            tasks = self._make_tasks(schema, revisions.unshared)
            revision = self._build(tasks, engine, schema, recipe, settings, total if expected.as_many else None)
            if revision is None:
                return
            revisions.add(revision)

    @property
    def _dictionaries(self) -> Path:
        """The folder of the dictionaries of compressed images, decided once for this build."""
        return self.unfinished.work / "dictionaries"

    def _job_count(self, bytes_per_step: int, max_jobs: int) -> int:
        """Return the number of processes, limited so that the longest episode fits into the memory of each process."""
        process_bytes = int(self.stored.episodes.lengths.max()) * bytes_per_step * _MAX_COPIES
        return max(1, int(min(max_jobs, os.cpu_count() or 1, memory_bytes() / 2 // process_bytes)))

    def _step_bytes(self, schema: Schema) -> int:
        """Return the size of a step in bytes, before or after the recipe, whichever is larger."""
        return max(step_bytes(self.stored.schema), step_bytes(schema))

    def _make_tasks(self, schema: Schema, unshared: set[Key]) -> list[dict[str, Any]]:
        """Return a `Task` for each partial dataset. `_build` adds the paths of the folder and of the recipe."""
        lengths = self.stored.episodes.lengths
        if self.plan.num_frames is not None:
            stop = int(np.searchsorted(np.cumsum(lengths), self.plan.num_frames)) + 1
            lengths = lengths[:stop]
        bytes_per_step = self._step_bytes(schema)
        steps = _PART_BYTES // bytes_per_step
        if self.num_parts is not None:
            steps = -(-int(lengths.sum()) // self.num_parts)
        elif self.plan.recipe.calls_functions:
            steps = min(steps, _PART_CALLS)
        entries = schema.to_json()
        folders = [str(member.folder) for member in member_datasets(self.stored)]
        batch_steps = self._batch_steps(bytes_per_step)
        specs = {name: spec for name, spec in self.stored.manifest.specs.items() if spec.get("kind") != "unbounded"}
        tasks = []
        remaining = self.plan.num_frames or len(self.stored)
        for number, (first, stop) in enumerate(whole_episodes(lengths, max(1, int(steps)))):
            task = {
                "dataset": folders,
                "first": first,
                "stop": stop,
                "max_steps": batch_steps,
                "rows": remaining,
                "schema": entries,
                "unshared": sorted(list(key) for key in unshared),
                "specs": specs,
                "seed": _seed_of_task(self.plan.seed, number),
            }
            tasks.append(task)
            remaining -= int(lengths[first:stop].sum())
        return tasks

    def _batch_steps(self, bytes_per_step: int) -> int:
        batch_bytes = _BATCH_BYTES
        if self.max_ram is not None:
            batch_bytes = min(batch_bytes, self.max_ram // ((self.jobs or 1) * _MAX_COPIES))
        longest = int(self.stored.episodes.lengths.max()) * bytes_per_step
        if self.max_ram is not None and longest * _MAX_COPIES > self.max_ram:
            raise InvalidArgumentError(
                f"max_ram is {self.max_ram:,} bytes, but the longest episode has {longest:,} and needs "
                f"{longest * _MAX_COPIES:,}",
                hint="episodes are processed as a whole: allow more memory",
            )
        steps = batch_bytes // bytes_per_step
        return max(1, min(steps, _BATCH_CALLS) if self.plan.recipe.calls_functions else steps)

    def _build(
        self,
        tasks: Sequence[Mapping[str, Any]],
        engine: Engine | None,
        schema: Schema,
        recipe: Recipe,
        settings: Settings,
        steps: int | None,
    ) -> Mapping[str, Any] | None:
        """Build the result from the partial datasets.

        Returns:
            None or, if the layout does not fit the values, the revision of the layout with which to start over.
        """
        build_folder, manifest = self.unfinished.version, self.stored.manifest
        fitted = {name: np.asarray(value).tolist() for name, value in recipe.fitted.items()}
        columns = writer_columns(schema)
        dictionaries = read_dictionaries(self._dictionaries, columns)
        digests = [hashlib.sha256(dictionary.data).hexdigest() for dictionary in dictionaries.values()]
        key = hashlib.sha256(json.dumps([self.plan.fingerprint, fitted, tasks, digests]).encode()).hexdigest()
        partials = prepare_partials(self.unfinished.work / "partials", key)
        recipe_file = partials / "recipe.bin"
        if engine is not None and len(tasks) > 1:
            recipe_file.write_bytes(recipe.pickled())
        tasks = [
            {
                **task,
                "folder": str(partials / f"{number:06}"),
                "recipe": str(recipe_file),
                "dictionaries": str(self._dictionaries),
            }
            for number, task in enumerate(tasks)
        ]
        journal = Journal(self.unfinished.journal, key)
        journal.roll_back(build_folder)
        build_folder.mkdir(parents=True, exist_ok=True)
        commits = [entry["commit"] for entry in journal.entries]
        writer = DatasetWriter(
            build_folder, columns, name=manifest.id, steps=steps, commits=commits, dictionaries=dictionaries
        )
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
        metadata = read_metadata(self.stored.folder, before.metadata)
        combined = math.prod(step.steps_combined for step in recipe.steps)
        if combined > 1 and before.fps is not None:
            metadata["fps"] = before.fps / combined
        # Named by the number of the run: a recipe that is applied twice is fitted twice, and both runs can be undone.
        fitted = {f"preprocess/{len(before.history)}/{name}": value for name, value in recipe.fitted.items()}
        metadata, files = write_metadata(build, {**metadata, **fitted})
        run = {
            "recipe": dict(self.plan.description),
            "num_frames": self.plan.num_frames,
            "seed": self.plan.seed,
            "fingerprint": self.plan.fingerprint,
            "version": converter_version(),
            "of": {"id": before.id, "steps": before.steps, "episodes": before.episodes, "files": before.files_digest},
        }
        manifest = replace(
            before,
            id=self.plan.id,
            steps=written.steps,
            episodes=written.episodes,
            final_unknown=written.final_unknown,
            schema=written.schema,
            files=(*written.files, *files),
            converter=converter_version(),
            statistics=written.statistics,
            spikes=written.spikes,
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


@dataclass
class _LocalChunk(Chunk):
    """The episodes of a task, preprocessed in this process."""

    task: Mapping[str, Any]
    stored: Stored
    recipe: Recipe
    report: Report

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the episodes, and return the fields with values outside the specs."""
        with seeded_random(self.task["seed"]):
            result = write_episodes(writer, Task(**self.task), self.stored, self.recipe.copy(), self.report)
        return self._journal_entry(result)

    @staticmethod
    def _journal_entry(result: Mapping[str, Any]) -> Mapping[str, Any]:
        if "revision" in result:
            raise _LayoutChangedError(result["revision"])
        return {"outside_spec": result["outside_spec"]}


@dataclass
class _WorkerChunk(_LocalChunk):
    """The episodes of a task, preprocessed by a process of an engine into a partial dataset."""

    engine: Engine
    rows: int

    def __post_init__(self) -> None:
        self._result = WorkerResult(self.engine, make_partial_dataset, self.task, self.report)

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the partial dataset, and return the fields with values outside the specs."""
        try:
            result = self._result.get()
        except WorkerDiedError as error:
            raise PreprocessError(
                f"the process that preprocessed episodes {self.task['first']:,} to {self.task['stop']:,} {error.how}",
                hint=error.remedy or _LESS_MEMORY,
            ) from error
        entry = self._journal_entry(result)
        writer.append_partial(self._result.folder, result["commit"])
        self._result.correct_report(self.rows)
        return entry

    def release(self) -> None:
        """Delete the partial dataset."""
        self._result.remove()


def _specs_of_result(schema: Schema, before: Mapping[str, Any], outside_spec: set[str]) -> dict[str, Any]:
    """Return the specs of the fields: the previous spec if all values are inside, else a spec of dtype and shape."""
    return {
        field.name: before[field.name]
        if field.name in before and field.name not in outside_spec and _fits_spec(field, before[field.name])
        else spec_of_field(field)
        for field in schema
    }


def _fits_spec(field: Column, spec: Mapping[str, Any]) -> bool:
    if spec.get("kind") == "unbounded":
        return (spec.get("dtype"), spec.get("shape")) == (field.read_dtype.name, list(field.shape))
    return True


@dataclass
class _LayoutRevisions:
    """Revisions of the layout that later episodes require.

    They are stored, so that a build that is run again has them.
    """

    file: Path
    unshared: set[Key]
    """Fields that are stored separately at t and at t + 1."""
    decoded: set[Key]
    """Fields with images that cannot be stored encoded."""

    @classmethod
    def read(cls, file: Path) -> _LayoutRevisions:
        """Read the revisions of an earlier attempt at the same build, or empty revisions if there was no attempt."""
        revisions = cls(file, set(), set())
        with suppress(OSError, ValueError, KeyError, TypeError):
            revisions._update(json.loads(file.read_text()))
        return revisions

    def _update(self, revision: Mapping[str, Any]) -> None:
        self.unshared |= {tuple(key) for key in revision["unshared"]}
        self.decoded |= {tuple(key) for key in revision["decoded"]}

    def add(self, revision: Mapping[str, Any]) -> None:
        """Add the revision that a chunk requires, and store all."""
        self._update(revision)
        disk.write_json(self.file, {"unshared": sorted(self.unshared), "decoded": sorted(self.decoded)})


def _seed_of_task(seed: int, number: int) -> int:
    """Return the seed of a partial dataset, a hash: with sums, consecutive seeds would share random numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big") >> 1


def _revised_columns(schema: Schema, revisions: _LayoutRevisions) -> list[Column]:
    """Return the columns of a schema with some states stored separately at t + 1 and some images decoded."""
    columns: list[Column] = []
    for field in schema:
        form = "raw" if field.key in revisions.decoded else field.form
        plain = Column(field.key, field.dtype, field.shape, field.shared, field.memory_dtype, field.text, form)
        if field.key in revisions.unshared and field.shared:
            columns += [replace(plain, shared=False), replace(plain, key=("next", *field.key), shared=False)]
        else:
            columns.append(plain)
    return columns
