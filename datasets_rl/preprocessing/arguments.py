"""The arguments of `BaseDatasetExperienceReplay.preprocess`, as in TorchRL, converted to a recipe and an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self

from datasets_rl.build.engines import Engine, TaskFunction, TaskResult
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.functions import Function, Per
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.preprocessing.run import preprocess
from datasets_rl.progress import Report
from datasets_rl.settings import Settings

_START_METHODS = {None, "fork", "spawn", "forkserver"}


@dataclass(frozen=True)
class PreprocessArguments:
    """The arguments of a call, verbatim."""

    fn: Callable[[Any], Any] | Recipe | Step | str
    dim: int = 0
    num_workers: int | None = None
    _: KW_ONLY
    chunksize: int | None = None
    num_chunks: int | None = None
    pool: Any = None
    generator: torch.Generator | None = None
    max_tasks_per_child: int | None = None
    worker_threads: int = 1
    index_with_generator: bool = False
    pbar: bool = False
    mp_start_method: str | None = None
    num_frames: int | None = None
    dest: Path | str | None = None
    batched: bool = False
    per: Per | None = None
    max_ram: int | None = None
    force: bool = False
    in_place: bool = False

    def run(self, folder: Path, *, name: str = "") -> Path:
        """Preprocess the dataset in a folder. See `datasets_rl.preprocessing.preprocess`.

        Returns:
            The folder of the result.

        Raises:
            InvalidArgumentError: If arguments exclude each other or have no effect. The error names all of these
                arguments.
        """
        self._check()
        steps = Manifest.read(folder).steps if self.num_frames is None else self.num_frames
        settings = Settings.from_env()
        return preprocess(
            folder,
            self._recipe(steps),
            out=self.dest,
            name=name,
            in_place=self.in_place,
            num_frames=self.num_frames,
            jobs=1 if self.num_workers == 0 else self.num_workers,
            max_ram=self.max_ram,
            engine=self._engine(),
            force=self.force,
            seed=0 if self.generator is None else int(torch.randint(1 << 62, (1,), generator=self.generator)),
            threads=self.worker_threads,
            settings=replace(settings, progress=settings.progress and self.pbar),
        )

    def _check(self) -> None:
        problems = []
        if self.dim != 0:
            problems.append(f"dim is {self.dim}, but the only axis of a dataset is 0")
        if self.chunksize is not None and self.num_chunks is not None:
            problems.append("chunksize and num_chunks exclude each other")
        counts = {
            "num_workers": (self.num_workers, 0),
            "chunksize": (self.chunksize, 0),
            "num_chunks": (self.num_chunks, 1),
            "worker_threads": (self.worker_threads, 1),
        }
        problems += [
            f"{name} is {value}, expected at least {minimum}"
            for name, (value, minimum) in counts.items()
            if value is not None and value < minimum
        ]
        if self.pool is not None and not (self.num_workers is None and self.max_tasks_per_child is None):
            problems.append("a pool brings its own processes: num_workers and max_tasks_per_child have no effect")
        if self.per in {"step", "episode"} and (self.chunksize or self.num_chunks):
            problems.append(f"per is {self.per!r}, but chunksize and num_chunks are for functions of a batch")
        if self.chunksize == 0 and (self.batched or self.per in {"batch", "episode"}):
            problems.append("chunksize is 0, which passes single steps, but batched and per contradict chunksize")
        if self.mp_start_method not in _START_METHODS:
            problems.append(f"mp_start_method is {self.mp_start_method!r}, expected 'fork', 'spawn' or 'forkserver'")
        if self._given_recipe and (self.batched or self.per or self.chunksize or self.num_chunks):
            problems.append(
                "a recipe determines the input of its steps: batched, per, chunksize and num_chunks have no effect"
            )
        if self.batched and self.per not in {None, "batch"}:
            problems.append(f"batched is True and per is {self.per!r}")
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    @cached_property
    def _given_recipe(self) -> Recipe | None:
        """The recipe, if `fn` is a recipe, its name or a step, or None if `fn` is a function."""
        if isinstance(self.fn, str):
            return Recipe.of(self.fn)
        is_step = isinstance(self.fn, Step) or (isinstance(self.fn, type) and issubclass(self.fn, Step))
        return Recipe([self.fn]) if is_step else self.fn if isinstance(self.fn, Recipe) else None

    def _recipe(self, steps: int) -> Recipe:
        if recipe := self._given_recipe:
            return recipe
        batch_steps = self.chunksize or 0 if self.num_chunks is None else -(-steps // self.num_chunks)
        function: Any = self.fn
        name = getattr(function, "__qualname__", "")
        if not (self.per or self.batched or batch_steps):
            return Recipe([function], name)
        per: Per = self.per or "batch"
        return Recipe([Function(function, per, batch_steps if per == "batch" else 0)], name)

    def _engine(self) -> Engine | None:
        if self.pool is not None:
            return _Pool(self.pool)
        if self.num_workers in {None, 0, 1}:
            return None
        return LocalEngine(self.num_workers, threads=self.worker_threads, max_tasks_per_child=self.max_tasks_per_child)


@dataclass(frozen=True)
class _Pool:
    """An engine that writes partial datasets in a process pool of the caller."""

    pool: Any

    @property
    def max_in_flight(self) -> int:
        """The number of partial datasets to have at once. A pool does not expose the number of processes."""
        return 2 * (os.cpu_count() or 1)

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:  # noqa: ARG002 -- a pool reports no steps
        """Submit a task to the pool. See `Engine.submit`."""
        wait: TaskResult = self.pool.apply_async(make, (task, Report())).get
        return wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Leave the pool to the caller."""
