"""``rlds bench``: how fast batches of a dataset are, beside a bare copy of its rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Dataset, Shell, dataset_arguments, name_of
from ..output import Result, Table

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "Look"

_ROUNDS = 7
_RUN = 64
_STEPS, _CHUNK, _FRAMES, _SLICE = 3, 16, 4, 32


def run(
    shell: Shell,
    dataset: Dataset,
    size: Annotated[
        int, typer.Option("-n", "--batch-size", min=1, metavar="N", help="Number of transitions in a batch.")
    ] = 256,
    seconds: Annotated[float, typer.Option(min=0.0, metavar="S", help="Seconds to measure each kind of batch.")] = 0.5,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Number of threads that torch uses.")] = 1,
) -> Result:
    """Measure how long batches of a stored dataset take, beside a bare copy of as many of its rows.

    Kinds of batches are measured in turn. The table has medians. The first row is the lower limit: a single copy of the
    records.

    \b
    Examples:
      rlds bench demo/pendulum
      rlds bench d4rl/halfcheetah-medium-v2 -n 4096
      rlds bench ~/data/mine --threads 2 --json
    """
    from datasets_rl.store.find import locate

    folder = locate(**dataset_arguments(shell, dataset))
    shell.import_torch()
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        name, calls = _calls(shell, folder, size)
        taken = _measure(calls, seconds)
    finally:
        torch.set_num_threads(before)
    floor = taken["bare copy"]
    kinds = [
        {"kind": kind, "us": spent * 1e6, "steps_per_s": size / spent, "times_floor": spent / floor}
        for kind, spent in taken.items()
    ]
    rows = tuple(
        (str(one["kind"]), f"{one['us']:,.0f}", f"{one['steps_per_s']:,.0f}", f"{one['times_floor']:.1f}")
        for one in kinds
    )
    return Result(
        {"id": name, "folder": str(folder), "batch_size": size, "threads": threads, "kinds": kinds},
        [Table(("batch", "us", "steps a second", "of the copy"), rows, title=f"{name}, {size:,} transitions a batch")],
        quiet=[f"{one['kind']}: {one['us']:.0f} us" for one in kinds],
    )


def _calls(shell: Shell, folder: Path, size: int) -> tuple[str, dict[str, tuple[Callable[[], Any], int]]]:
    """Return the id of a dataset and, for each kind of batch, a function and the number of batches that the function makes."""
    import numpy as np

    from datasets_rl import SliceSampler
    from datasets_rl.datasets import StoredExperienceReplay
    from datasets_rl.transforms import ActionChunkTransform, CatFrames, MultiStepTransform

    def opened(**options: Any) -> Any:
        return StoredExperienceReplay(str(folder), batch_size=size, **options)

    plain = opened()
    stored = plain.stored
    generator = np.random.default_rng(0)

    def copied() -> None:
        rows = generator.integers(len(stored), size=size)
        for field in {field.file: field for field in stored.schema}.values():
            if field.image_form.is_array:
                stored.map(field.file).take(rows, axis=0)

    def run_of_batches() -> None:
        for _ in plain.batches(_RUN):
            pass

    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "bare copy": (copied, 1),
        "sample": (plain.sample, 1),
        f"batches({_RUN})": (run_of_batches, _RUN),
    }
    if stored.episodes.lengths.max() >= _SLICE and size % _SLICE == 0:
        calls[f"slices of {_SLICE}"] = (opened(sampler=SliceSampler(slice_len=_SLICE)).sample, 1)
    calls[f"{_STEPS}-step targets"] = (opened(transform=MultiStepTransform(_STEPS, 0.99)).sample, 1)
    keys = {key for key in plain.storage.keys() if len(key) == 1}  # noqa: SIM118 - a storage iterates over its steps
    if ("action",) in keys:
        calls[f"chunks of {_CHUNK} actions"] = (opened(transform=ActionChunkTransform(_CHUNK)).sample, 1)
    if ("observation",) in keys and stored.schema[("observation",)].shape:
        frames = CatFrames(_FRAMES, dim=-1, in_keys=["observation"])
        calls[f"stacks of {_FRAMES}"] = (opened(transform=frames).sample, 1)
    return name_of(shell, folder, stored.manifest), calls


def _measure(calls: Mapping[str, tuple[Callable[[], Any], int]], seconds: float) -> dict[str, float]:
    """Return the median seconds for a batch of each kind. The kinds take turns in several rounds."""
    rounds: dict[str, list[float]] = {kind: [] for kind in calls}
    for call, _ in calls.values():
        call()
    for _ in range(_ROUNDS):
        for kind, (call, batches) in calls.items():
            start, done = time.perf_counter(), 0
            while not done or time.perf_counter() - start < seconds / _ROUNDS:
                call()
                done += batches
            rounds[kind].append((time.perf_counter() - start) / done)
    return {kind: statistics.median(spent) for kind, spent in rounds.items()}
