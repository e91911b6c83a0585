"""From a dataset to its transformed version: planned, made part by part, joined, and put in its place at once.

    dataset  --- parts --->  .work/<id>/parts/*/000000, 000001, ...   any process, any machine, any order
             --- join  --->  .work/<id>/build                          in their order; each part then goes
             --- publish ->  <id>@<name>, `dest`, or <id> itself       one step; in place, `undo` brings the old one back

A run that died goes on: parts that are whole stay, and so does what was joined.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError, ManifestError, PreprocessError
from datasets_rl.format.manifest import Manifest, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter, Written
from datasets_rl.pipeline.build import WorkerResult, build, started
from datasets_rl.pipeline.conversion import plain_spec, write_metadata
from datasets_rl.pipeline.engines import Engine, WorkerDiedError
from datasets_rl.pipeline.engines.local import Local
from datasets_rl.pipeline.journal import Journal
from datasets_rl.pipeline.partial import partials_folder
from datasets_rl.preprocessing.blocks import step_bytes, whole_episodes
from datasets_rl.preprocessing.dry_run import probe
from datasets_rl.preprocessing.merge import Stored, check_not_replaced, files_digest, members, merged_manifest, opened
from datasets_rl.preprocessing.partial import Task, drawing, fill, make, own_columns, read
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.progress import Report, report
from datasets_rl.settings import Settings, memory_bytes
from datasets_rl.sources import DERIVED
from datasets_rl.store import (
    DatasetPaths,
    check_derived_name,
    check_own_files,
    derived_paths,
    discard_work,
    named_paths,
    paths_of,
    sweep_folder,
    transaction,
    undo,
    unfinished,
)
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Preview", "preprocess", "preview", "result_folder", "undo"]

PART_BYTES = 64 << 20
"""Bytes that are read for a part, about."""
_BLOCK_BYTES = 8 << 20
_PART_CALLS, _BLOCK_CALLS = 5_000, 500
"""Steps of a part and of a block where a function is called for each step or episode: it may take as long as it likes."""
_COPIES = 8
"""How many times a block is in memory at once while a step works on it, at most: seen with functions of batches."""
_MAX_DERIVED_NAME = 60
_WORTH_PROCESSES = 20.0
"""Seconds of work from which on several processes are started: each takes a few to import torch."""


@dataclass(frozen=True)
class Preview:
    """What a recipe would make of a dataset, from its first episodes."""

    id: str
    recipe: Mapping[str, Any]
    fingerprint: str
    folder: Path
    """Where it would go."""
    present: bool
    """It is there already."""
    columns: tuple[Column, ...]
    twice: tuple[Key, ...]
    """Fields that are stored at t and at t + 1, because the recipe treats the two differently."""
    steps: int
    """About how many steps would come."""
    episodes: int
    bytes: int
    """About how many bytes."""
    seconds: float
    """About how long it would take in one process."""
    free_bytes: int
    sample: EpisodeBatch
    """The first episodes that come out."""


def preprocess(
    folder: Path | Sequence[Path],
    recipe: Recipe,
    *,
    dest: Path | None = None,
    as_: str = "",
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
    """Put a dataset through a recipe, which makes a dataset of its own beside it, ``<id>@<name of the recipe>``.

    Asked for a second time, what is there already is found again, under whatever name it was made.

    Args:
        folder: The dataset; or several, which become one. They must come out of the recipe with the same fields; another
            one, "dataset", says of each step which it is from.
        recipe: What happens to it.
        dest: A folder for the result; of several datasets it is needed.
        as_: The name of the derived dataset, after the ``@``; by default that of the recipe.
        in_place: The result takes the place of the dataset, whose current version becomes an earlier one; `undo` brings
            it back.
        num_frames: Only so many steps are read, from the first one on; then `in_place` needs `force`.
        jobs: Processes; by default as many as there are cores where the dataset is large.
        max_ram: Bytes that all processes may take for what they work on, about.
        engine: Where the parts are made; by default in processes of this machine.
        force: Make it anew although it is there, or something else has its name; apply the recipe to its own result.
        seed: For functions that draw numbers: what they draw depends on it and on the part alone.
        threads: Threads of torch in each process.
        num_parts: How many parts are made; by default of about 64 MB each.
        wait: Seconds to wait for another process that writes the same dataset.
        settings: By default those of the environment.

    Returns:
        The folder of the result.

    Raises:
        PreprocessError: If a step fails or nothing is left; the dataset is as it was.
        InvalidArgumentError: If something else has the name of the result, the dataset is a result of this very recipe, or
            datasets that are to be merged are not alike.
        DiskFullError: If there is no room.
        LockedError: If another process did not finish in time.
    """
    settings = settings or Settings.from_env()
    folders = _folders(folder)
    if not recipe.steps and len(folders) == 1:
        raise InvalidArgumentError(f"the recipe {recipe.name!r} has no step", hint="only a merge of several needs none")
    # A recipe is described before it does anything: functions may keep things, which then belong to what they are.
    described = recipe.to_json()
    mark = fingerprint(_manifest(folders), described, num_frames, seed)
    aim = _aim(folder, dest, as_, described, mark, in_place=in_place)
    target = aim.place
    request = ["preprocess", described, num_frames, seed, force, "in place" if in_place else mark]
    settled = not target.work.exists() and not unfinished(target)
    if settled and not force and _present(aim, described, mark, num_frames, seed):
        sweep_folder(target.folder)
        return target.folder
    repeatable = not (in_place and force)
    with transaction(target, str(target.folder), request, wait=wait, repeatable=repeatable) as change:
        if change.finished or (not force and _present(aim, described, mark, num_frames, seed)):
            return target.folder
        stored = opened([str(one) for one in folders])
        if not force:
            _check_loss(stored, aim, described, num_frames, seed)
        if target.exists:
            check_own_files(target.folder)
        run = _Preprocessing(stored, recipe, described, aim, num_frames, max_ram, jobs, seed, threads, num_parts)
        try:
            run.make(engine, settings)
            check_not_replaced([Manifest.read(one) for one in folders], run.digests)
        except PreprocessError:
            # What was made belongs to a recipe that does not work: another one will come.
            discard_work(target)
            raise
        change.publish(keep=in_place)
    return target.folder


def result_folder(
    folder: Path | Sequence[Path],
    recipe: Recipe,
    *,
    dest: Path | None = None,
    as_: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    seed: int = 0,
) -> Path:
    """Return the folder that `preprocess` with the same arguments would write to, or has written to.

    Raises:
        InvalidArgumentError: If something else is there.
    """
    folders, described = _folders(folder), recipe.to_json()
    mark = fingerprint(_manifest(folders), described, num_frames, seed)
    return _aim(folder, dest, as_, described, mark, in_place=in_place).place.folder


def preview(
    folder: Path | Sequence[Path],
    recipe: Recipe,
    *,
    dest: Path | None = None,
    as_: str = "",
    in_place: bool = False,
    num_frames: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
) -> Preview:
    """Say what `preprocess` would make, from the first episodes, without writing anything.

    Raises:
        PreprocessError: If a step fails, or nothing is left of any episode.
    """
    folders = _folders(folder)
    stored, described = opened([str(one) for one in folders]), recipe.to_json()
    mark = fingerprint(stored.manifest, described, num_frames, seed)
    aim = _aim(folder, dest, as_, described, mark, in_place=in_place)
    show = (settings or Settings.from_env()).progress
    found = probe(stored, _learned(recipe, stored, num_frames, seed, show=show).copy(), num_frames)
    return Preview(
        id=stored.manifest.id,
        recipe=described,
        fingerprint=mark,
        folder=aim.place.folder,
        present=_present(aim, described, mark, num_frames, seed),
        columns=found.columns,
        twice=tuple(sorted(found.twice)),
        steps=found.steps,
        episodes=found.episodes,
        bytes=found.bytes,
        seconds=found.seconds,
        free_bytes=disk.free_bytes(aim.place.root),
        sample=found.sample,
    )


def fingerprint(manifest: Manifest, recipe: Mapping[str, Any], num_frames: int | None, seed: int) -> str:
    """Return what identifies a result: the bytes that go in, the recipe, and the version of this package."""
    files = [[file.path, file.sha256] for file in manifest.files]
    metadata = [converter_version(), files, recipe, num_frames, seed]
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Aim:
    """Where the result of a recipe goes, and what it is called there."""

    place: DatasetPaths
    id: str
    in_place: bool = False


def _aim(
    folder: Path | Sequence[Path],
    dest: Path | None,
    as_: str,
    recipe: Mapping[str, Any],
    mark: str,
    *,
    in_place: bool,
) -> _Aim:
    """Return where the result goes.

    Raises:
        InvalidArgumentError: If something else is there, or the arguments name two places or none.
    """
    named = {"dest": dest is not None, "as_": bool(as_), "in_place": in_place}
    if sum(named.values()) > 1:
        given = " and ".join(name for name, one in named.items() if one)
        raise InvalidArgumentError(f"{given} name different places for one result", hint="give one of them")
    folders = _folders(folder)
    manifest = _manifest(folders)
    if dest is not None:
        target = named_paths(dest.expanduser().resolve(), manifest.id)
        _check_way(target, folders)
        return _Aim(target, manifest.id)
    if len(folders) > 1:
        raise InvalidArgumentError(
            f"{len(folders)} datasets become one, and it has no place", hint="name a folder for it"
        )
    base = paths_of(folders[0])
    if in_place:
        return _Aim(base, manifest.id, in_place=True)
    if isinstance(folder, Path) and folder.expanduser().is_symlink():
        # It belongs beside the name that the user knows, where `list` and `load` find it.
        base = named_paths(folder.expanduser().absolute(), manifest.id)
    name = as_ or derived_name(recipe)
    check_derived_name(name)
    target = DatasetPaths(base.root, f"{base.name}{DERIVED}{name}")
    if not as_ and not target.exists:
        made = (one for one in derived_paths(base) if _last_run(one).get("fingerprint") == mark)
        target = next(made, target)
    return _Aim(target, f"{manifest.id}{DERIVED}{target.name[len(base.name) + 1 :]}")


def derived_name(recipe: Mapping[str, Any]) -> str:
    """Return what a derived dataset is called where nobody names it: its recipe's name, or its steps'."""
    steps = "+".join(step["use"] for step in recipe["steps"])
    name = str(recipe.get("name") or steps).replace(", ", "+")
    name = re.sub(r"[^A-Za-z0-9._+,=-]+", "-", name).strip("-._+,=")
    if len(name) > _MAX_DERIVED_NAME:
        name = f"{name[:_MAX_DERIVED_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "preprocessed"


def _manifest(folders: Sequence[Path]) -> Manifest:
    found = [Manifest.read(one) for one in folders]
    return found[0] if len(found) == 1 else merged_manifest(found, folders)


def _last_run(target: DatasetPaths) -> Mapping[str, Any]:
    """Return the last entry of a dataset's history; nothing for what no recipe made."""
    try:
        history = Manifest.read(target.folder).history
    except ManifestError:  # a damaged one is the result of nothing
        return {}
    return history[-1] if history else {}


def _present(aim: _Aim, recipe: Mapping[str, Any], mark: str, num_frames: int | None, seed: int) -> bool:
    """Return whether the result is there; in place, whether the recipe is the last one that was applied."""
    if not aim.place.exists:
        return False
    last = _last_run(aim.place)
    return _is_run(last, recipe, num_frames, seed) if aim.in_place else last.get("fingerprint") == mark


def _is_run(run: Mapping[str, Any], recipe: Mapping[str, Any], num_frames: int | None, seed: int) -> bool:
    return [run.get("recipe"), run.get("num_frames"), run.get("seed")] == [recipe, num_frames, seed]


def _folders(folder: Path | Sequence[Path]) -> list[Path]:
    """Return the folders by the names that they have without links: what is replaced must be the dataset, not a link.

    Raises:
        InvalidArgumentError: If one of several is named twice.
    """
    folders = [one.expanduser().resolve() for one in ([folder] if isinstance(folder, Path) else folder)]
    if twice := sorted({str(one) for one in folders if folders.count(one) > 1}):
        raise InvalidArgumentError(
            f"{', '.join(twice)} is named twice; a merge takes each dataset once",
            hint="name it once, or weight it in a mixture",
        )
    return folders


def _check_way(target: DatasetPaths, folders: Sequence[Path]) -> None:
    if target.folder in folders:
        raise InvalidArgumentError(
            f"{target.folder} is where the dataset itself lies", hint="name another folder, or preprocess it in place"
        )
    disk.check_nesting(target.folder)
    if target.exists and not Manifest.read(target.folder).history:
        raise InvalidArgumentError(
            f"{target.folder} is in the way: it holds a dataset that no recipe made", hint="remove it first"
        )
    if target.folder.exists() and not target.exists and (not target.folder.is_dir() or any(target.folder.iterdir())):
        raise InvalidArgumentError(f"{target.folder} is in the way: it holds something that is not a dataset")


def _check_loss(stored: Stored, aim: _Aim, recipe: Mapping[str, Any], num_frames: int | None, seed: int) -> None:
    """Let a run pass after which nothing is gone, or done twice, that nobody meant.

    Raises:
        InvalidArgumentError: If it would replace a dataset by some of its steps or by the result of something else, or apply a
            recipe to its own result.
    """
    if aim.in_place and num_frames is not None and num_frames < len(stored):
        raise InvalidArgumentError(
            f"num_frames is {num_frames:,}, and the dataset with its {len(stored):,} steps would be replaced",
            hint="name a folder for the result (--out DIR, dest=), or insist (--force, force=True)",
        )
    history = stored.manifest.history
    if not aim.in_place and history and _is_run(history[-1], recipe, num_frames, seed):
        raise InvalidArgumentError(
            f"{stored.manifest.id} is a result of this very recipe, which would be applied twice",
            hint="preprocess the dataset that it was made of, or insist (--force, force=True)",
        )
    if not aim.in_place and aim.place.exists:
        name = _last_run(aim.place).get("recipe", {}).get("name") or "without a name"
        raise InvalidArgumentError(
            f"{aim.place.folder} is in the way: it holds the result of another recipe or of other data ({name})",
            hint="choose another name (--as NAME, as_=) or folder, remove it first, or insist (--force, force=True)",
        )


def _learned(recipe: Recipe, stored: Stored, num_frames: int | None, seed: int, *, show: bool) -> Recipe:
    """Return the recipe after the steps that need it have seen the dataset, each for itself."""
    most = max(1, _BLOCK_BYTES // step_bytes(stored.schema))
    rows = min(num_frames or len(stored), len(stored))

    def blocks() -> Iterator[EpisodeBatch]:
        with report(f"learning from {stored.manifest.id}", rows, unit=" steps", show=show) as advance:
            for block in read(stored, 0, len(stored.episodes), most, rows):
                yield block
                advance(block.count)

    recipe = recipe.copy()
    with drawing(seed):
        recipe.fit(blocks)
    return recipe


@dataclass
class _Preprocessing:
    """One run of a recipe over a dataset."""

    stored: Stored
    recipe: Recipe
    described: Mapping[str, Any]
    """What the recipe is, for the manifest."""
    aim: _Aim
    num_frames: int | None
    max_ram: int | None
    jobs: int | None
    seed: int
    threads: int
    num_parts: int | None

    @property
    def target(self) -> DatasetPaths:
        """Where the result goes."""
        return self.aim.place

    def make(self, engine: Engine | None, settings: Settings) -> None:
        """Leave the finished dataset in the build folder."""
        if self.num_frames is not None and self.num_frames < 1:
            raise InvalidArgumentError(f"num_frames is {self.num_frames}; expected at least 1")
        recipe = _learned(self.recipe, self.stored, self.num_frames, self.seed, show=settings.progress)
        found = probe(self.stored, recipe.copy(), self.num_frames)
        self.target.work.mkdir(parents=True, exist_ok=True)
        late = _LayoutRevisions.read(self.target.work / "late.json", self.mark)
        late.twice |= found.twice
        disk.require_free(
            self.target.root,
            found.bytes,
            "the preprocessed dataset",
            hint="make room, or give another place with --out DIR",
        )
        total = min(self.num_frames or len(self.stored), len(self.stored))
        if self.jobs is None:
            self.jobs = (
                self._jobs(self._step_bytes(Schema.layout(found.columns)), settings.jobs)
                if found.seconds > _WORTH_PROCESSES
                else 1
            )
        if engine is None and self.jobs > 1:
            engine = Local(self.jobs, threads=self.threads)
        while True:
            schema = Schema.layout(_laid_anew(Schema.layout(found.columns), late))
            tasks = self._tasks(schema, late.twice)
            again = self._join(tasks, engine, schema, recipe, settings, total if found.as_many else None)
            if again is None:
                return
            late.add(again)

    def _jobs(self, each: int, most: int) -> int:
        """Return how many processes there should be: no more than have room for the longest episode each."""
        held = int(self.stored.episodes.lengths.max()) * each * _COPIES
        return max(1, int(min(most, os.cpu_count() or 1, memory_bytes() / 2 // held)))

    def _step_bytes(self, schema: Schema) -> int:
        """Return the bytes of a step, as it goes in or as it comes out."""
        return max(step_bytes(self.stored.schema), step_bytes(schema))

    @cached_property
    def digests(self) -> list[str]:
        """What identifies the bytes of each dataset that is read."""
        return [files_digest(one.manifest) for one in members(self.stored)]

    @cached_property
    def mark(self) -> str:
        """What identifies the result."""
        return fingerprint(self.stored.manifest, self.described, self.num_frames, self.seed)

    def _tasks(self, schema: Schema, twice: set[Key]) -> list[dict[str, Any]]:
        """Cut the episodes into parts; where they and the recipe lie is not said yet."""
        lengths = self.stored.episodes.lengths
        if self.num_frames is not None:
            stop = int(np.searchsorted(np.cumsum(lengths), self.num_frames)) + 1
            lengths = lengths[:stop]
        each = self._step_bytes(schema)
        steps = PART_BYTES // each
        if self.num_parts is not None:
            steps = -(-int(lengths.sum()) // self.num_parts)
        elif self.recipe.one_by_one:
            steps = min(steps, _PART_CALLS)
        entries = schema.to_json()
        folders = [str(one.folder) for one in members(self.stored)]
        most = self._block_steps(each)
        specs = {name: spec for name, spec in self.stored.manifest.specs.items() if spec.get("kind") != "unbounded"}
        tasks = []
        left = self.num_frames or len(self.stored)
        for number, (first, stop) in enumerate(whole_episodes(lengths, max(1, int(steps)))):
            task = Task(
                dataset=folders,
                digests=self.digests,
                recipe="",
                folder="",
                first=first,
                stop=stop,
                most=most,
                rows=left,
                schema=entries,
                apart=sorted(list(key) for key in twice),
                specs=specs,
                seed=_seed(self.seed, number),
            )
            tasks.append(asdict(task))
            left -= int(lengths[first:stop].sum())
        return tasks

    def _block_steps(self, each: int) -> int:
        room = _BLOCK_BYTES if self.max_ram is None else min(_BLOCK_BYTES, self.max_ram // ((self.jobs or 1) * _COPIES))
        longest = int(self.stored.episodes.lengths.max()) * each
        if self.max_ram is not None and longest * _COPIES > self.max_ram:
            raise InvalidArgumentError(
                f"max_ram is {self.max_ram:,} bytes; the longest episode has {longest:,} and needs {longest * _COPIES:,}",
                hint="episodes are worked on as a whole: allow more memory",
            )
        return max(1, min(room // each, _BLOCK_CALLS) if self.recipe.one_by_one else room // each)

    def _join(
        self,
        tasks: Sequence[Mapping[str, Any]],
        engine: Engine | None,
        schema: Schema,
        recipe: Recipe,
        settings: Settings,
        steps: int | None,
    ) -> Mapping[str, Any] | None:
        """Make the parts and join them; or return which fields must be stored in another way, and nothing is made."""
        build_folder, manifest = self.target.build, self.stored.manifest
        fitted = {name: np.asarray(value).tolist() for name, value in recipe.fitted.items()}
        key = hashlib.sha256(json.dumps([self.mark, fitted, tasks]).encode()).hexdigest()
        parts = partials_folder(self.target.work / "partials", key)
        file = parts / "recipe.bin"
        if engine is not None and len(tasks) > 1:
            file.write_bytes(recipe.pickled())
        tasks = [
            {**task, "folder": str(parts / f"{number:06}"), "recipe": str(file)} for number, task in enumerate(tasks)
        ]
        journal = Journal(self.target.journal, key)
        journal.roll_back(build_folder)
        build_folder.mkdir(parents=True, exist_ok=True)
        commits = [entry["commit"] for entry in journal.entries]
        writer = DatasetWriter(build_folder, own_columns(schema), what=manifest.id, steps=steps, commits=commits)
        rows = [self._rows_of(task) for task in tasks]
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
        except _LayoutChanged as change:
            return change.layout
        finally:
            writer.discard()
        self._write_manifest(build_folder, written, recipe, {name for entry in entries for name in entry["unfit"]})
        return None

    def _chunks(
        self,
        stack: ExitStack,
        tasks: Sequence[Mapping[str, Any]],
        engine: Engine | None,
        recipe: Recipe,
        report: Report,
    ) -> Iterator[_LocalChunk]:
        """Return the chunks of tasks: of this process, or of an engine that `stack` ends."""
        if engine is None or len(tasks) < 2:
            return (_LocalChunk(task, self.stored, recipe, report) for task in tasks)
        stack.enter_context(engine)
        chunks = (_WorkerChunk(task, self.stored, recipe, report, engine, self._rows_of(task)) for task in tasks)
        return started(chunks, engine.max_in_flight)

    def _rows_of(self, task: Mapping[str, Any]) -> int:
        lengths = self.stored.episodes.lengths[task["first"] : task["stop"]]
        return min(int(lengths.sum()), int(task["rows"]))

    def _write_manifest(self, build: Path, written: Written, recipe: Recipe, unfit: set[str]) -> None:
        before = self.stored.manifest
        arrays = {name: _metadata_value(self.stored, value) for name, value in before.metadata.items()}
        # Under the number of the run: a recipe that is applied twice learns twice, and both can be undone.
        fitted = {f"preprocess/{len(before.history)}/{name}": value for name, value in recipe.fitted.items()}
        metadata, files = write_metadata(build, {**arrays, **fitted})
        done = {
            "recipe": dict(self.described),
            "num_frames": self.num_frames,
            "seed": self.seed,
            "fingerprint": self.mark,
            "version": converter_version(),
            "of": {"id": before.id, "steps": before.steps, "episodes": before.episodes, "files": files_digest(before)},
        }
        manifest = replace(
            before,
            id=self.aim.id,
            steps=written.steps,
            episodes=written.episodes,
            final_unknown=written.final_unknown,
            schema=written.schema,
            files=(*written.files, *files),
            converter=converter_version(),
            statistics=written.statistics,
            specs=_specs(written.schema, before.specs, unfit),
            metadata=metadata,
            history=(*before.history, done),
        )
        manifest.write(build)


class _LayoutChanged(Exception):
    """A chunk holds values that the layout of the fields does not allow: everything must be made anew."""

    def __init__(self, layout: Mapping[str, Any]) -> None:
        super().__init__(layout)
        self.layout = layout


class _LocalChunk:
    """The episodes of a task, preprocessed in this process."""

    def __init__(self, task: Mapping[str, Any], stored: Stored, recipe: Recipe, report: Report) -> None:
        self.task = task
        self._stored = stored
        self._recipe = recipe
        self._report = report

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the episodes, and return the fields whose values left their specs.

        Raises:
            PreprocessError: If a step fails.
        """
        with drawing(self.task["seed"]):
            result = fill(writer, Task(**self.task), self._stored, self._recipe.copy(), self._report)
        return self._entry(result)

    @staticmethod
    def _entry(result: Mapping[str, Any]) -> Mapping[str, Any]:
        if "again" in result:
            raise _LayoutChanged(result["again"])
        return {"unfit": result["unfit"]}

    def release(self) -> None:
        """Do nothing: no file is used up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Do nothing: no file is open."""


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
        self._result = WorkerResult(engine, make, task, report)

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the partial dataset.

        Raises:
            PreprocessError: If a step fails, or the process died.
        """
        try:
            result = self._result.get()
        except WorkerDiedError as error:
            raise PreprocessError(
                f"the process that made episodes {self.task['first']:,} to {self.task['stop']:,} {error.how}",
                hint=error.hint or "fewer --jobs or a smaller --max-ram need less memory",
            ) from error
        entry = self._entry(result)
        writer.append_partial(self._result.folder, result["commit"])
        self._result.correct_report(self._rows)
        return entry

    def release(self) -> None:
        """Delete the partial dataset."""
        self._result.remove()


def _metadata_value(stored: Stored, value: Any) -> Any:
    if isinstance(value, dict):
        return np.array(map_npy(stored.folder / value["file"]))
    return value


def _specs(schema: Schema, before: Mapping[str, Any], unfit: set[str]) -> dict[str, Any]:
    """Keep the specs that all values are in; the others say dtype and shape."""
    return {
        field.name: before[field.name]
        if field.name in before and field.name not in unfit and _fits(field, before[field.name])
        else plain_spec(field)
        for field in schema
    }


def _fits(field: Column, spec: Mapping[str, Any]) -> bool:
    if spec.get("kind") == "unbounded":
        return (spec.get("dtype"), spec.get("shape")) == ((field.memory_dtype or field.dtype).name, list(field.shape))
    return True


@dataclass
class _LayoutRevisions:
    """What is found out about fields only in later parts: then all is made anew, and it stays known if the run dies."""

    file: Path
    mark: str
    twice: set[Key]
    """Fields that are stored at t and at t + 1."""
    decoded: set[Key]
    """Fields whose pictures do not stay encoded."""

    @classmethod
    def read(cls, file: Path, mark: str) -> _LayoutRevisions:
        """Read what an earlier run of the same found out, if there was one."""
        with suppress(OSError, ValueError, KeyError):
            found = json.loads(file.read_text())
            if found["mark"] == mark:
                return cls(file, mark, {tuple(key) for key in found["apart"]}, {tuple(key) for key in found["decoded"]})
        return cls(file, mark, set(), set())

    def add(self, again: Mapping[str, Any]) -> None:
        """Add what a part found out."""
        self.twice |= {tuple(key) for key in again["apart"]}
        self.decoded |= {tuple(key) for key in again["decoded"]}
        disk.write_json(self.file, {"mark": self.mark, "apart": sorted(self.twice), "decoded": sorted(self.decoded)})


def _seed(seed: int, number: int) -> int:
    """Return the seed of a part: sums would let the parts of one seed draw what those of the next one draw."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big") >> 1


def _laid_anew(schema: Schema, late: _LayoutRevisions) -> list[Column]:
    """Return the columns of a schema with some states stored twice and some pictures decoded."""
    columns: list[Column] = []
    for field in schema:
        encoded = field.encoded and field.key not in late.decoded
        plain = Column(field.key, field.dtype, field.shape, field.shared, field.memory_dtype, field.text, encoded)
        if field.key in late.twice and field.shared:
            columns += [replace(plain, shared=False), replace(plain, key=("next", *field.key), shared=False)]
        else:
            columns.append(plain)
    return columns
