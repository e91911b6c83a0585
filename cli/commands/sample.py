"""``rlds sample``: a batch, and the speed of sampling."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError

from ..options import Shell, StoredOrMixture, dataset_arguments, name_of, read_keys
from ..output import Facts, Result, Table, value_text
from .info import unknown_text

if TYPE_CHECKING:
    from torch import Tensor

    from datasets_rl.format.manifest import Manifest
    from datasets_rl.ted.keys import Key

GROUP = "Look"

_ROUNDS = 100
_SECONDS = 1.0
_SHOWN = 4
_UNKNOWN = "final observation unknown"


def run(
    shell: Shell,
    dataset: StoredOrMixture,
    size: Annotated[
        int, typer.Option("-n", "--batch-size", min=1, metavar="N", help="Number of transitions in the batch.")
    ] = 4,
    keys: Annotated[list[str], typer.Option("--keys", "-k", metavar="KEY,...", help="Show only these fields.")] = [],  # noqa: B006 -- Typer makes a list for each run
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed: the same N draws the same batch.")
    ] = None,
    delta_timestamps: Annotated[
        str,
        typer.Option(
            "--delta-timestamps",
            metavar="JSON",
            help="Windows of fields by seconds, as in LeRobot: '{\"action\": [0, 0.1]}'.",
        ),
    ] = "",
    fps: Annotated[
        float | None,
        typer.Option("--fps", metavar="NUMBER", help="Steps per second of --delta-timestamps. By default as stated."),
    ] = None,
) -> Result:
    """Draw a batch from a stored dataset or a mixture, and show its keys, shapes, first values and timing.

    \b
    Examples:
      rlds sample demo/pendulum
      rlds sample d4rl/hopper-medium-v2 -n 256 --keys observation,action --seed 0
      rlds sample mix.toml --json
      rlds sample lerobot/lerobot/pusht --delta-timestamps '{"observation.image": [-0.1, 0], "action": [0, 0.1, 0.2]}'
    """
    options = {"keys": chosen} if (chosen := read_keys(keys)) else {}
    window_options = {"delta_timestamps": _read_seconds(delta_timestamps), "fps": fps}
    windows = {key: one for key, one in window_options.items() if one is not None}
    if not dataset.endswith(".toml"):
        _check_keys(shell, dataset, () if windows else chosen or ())
    shell.import_torch()
    import torch

    from datasets_rl import datasets  # noqa: F401 -- loaded before the clock starts
    from datasets_rl.datasets import open_mixture  # noqa: F401 -- loaded before the clock starts

    if seed is not None:
        torch.manual_seed(seed)
    began = time.perf_counter()
    name, folder, replay = _open_dataset(shell, dataset, windows)
    opened = time.perf_counter()
    batch = _draw_batch(replay, size, options)
    first = time.perf_counter()
    rounds, spent = 1, first - opened
    if spent < _SECONDS:
        rounds, spent = _time_batches(replay, size, options)
    each = spent / rounds
    leaves = [_describe_leaf(name, leaf) for name, leaf in _leaves(batch)]
    timing = {"open_s": opened - began, "first_s": first - opened, "sample_s": each, "rounds": rounds}
    rows = tuple(
        (one["key"], one["dtype"], str(one["shape"]), ", ".join(map(value_text, one["values"]))) for one in leaves
    )
    unknown = _final_unknown(shell, replay)
    facts = (
        ("open", f"{timing['open_s'] * 1e3:.1f} ms"),
        ("first batch", f"{timing['first_s'] * 1e3:.2f} ms"),
        ("a batch", f"{each * 1e6:.0f} us, {size / each:,.0f} transitions a second, mean of {rounds}"),
    )
    return Result(
        {
            "id": name,
            "folder": str(folder),
            "batch_size": size,
            "final_unknown": {one: manifest.final_unknown for one, manifest in unknown.items()},
            "keys": leaves,
            "timing": timing,
        },
        [
            Table(("key", "dtype", "shape", "first values"), rows, title=f"{name}, {size} transitions"),
            Facts(facts, title="time"),
            *(
                [Facts(tuple((one, unknown_text(manifest)) for one, manifest in unknown.items()), title=_UNKNOWN)]
                if unknown
                else []
            ),
        ],
        quiet=[one["key"] for one in leaves],
    )


def _read_seconds(text: str) -> dict[str, Any] | None:
    try:
        seconds = json.loads(text) if text else None
    except (ValueError, RecursionError):
        seconds = text
    if isinstance(seconds, dict) or seconds is None:
        return seconds
    raise InvalidArgumentError(
        f"--delta-timestamps is {text!r}, expected JSON with a list of seconds for each field",
        hint="""write JSON as '{"action": [0, 0.1]}'""",
    )


def _check_keys(shell: Shell, dataset: str, keys: Sequence[Key]) -> None:
    """Refuse a dataset that is not stored, and keys that the dataset lacks, before torch is imported."""
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.store.find import locate
    from datasets_rl.ted.keys import keys_named

    stored = StoredDataset(locate(**dataset_arguments(shell, dataset)))
    if keys:
        keys_named(keys, stored.keys())


def _open_dataset(shell: Shell, dataset: str, windows: dict[str, Any]) -> tuple[str, Path, Any]:
    if dataset.endswith(".toml"):
        if windows:
            raise InvalidArgumentError(
                f"{dataset} is a mixture, expected a dataset for --delta-timestamps and --fps",
                hint="in Python, mix buffers that load(ID, delta_timestamps=...) returns",
            )
        from datasets_rl.datasets.open_mixture import load_mixture

        return dataset, Path(dataset), load_mixture(dataset, download=False, home=shell.settings.home)
    from datasets_rl.datasets import StoredExperienceReplay
    from datasets_rl.store.find import locate

    folder = locate(**dataset_arguments(shell, dataset))
    replay = StoredExperienceReplay(str(folder), **windows)
    return name_of(shell, folder, replay.manifest), folder, replay


def _final_unknown(shell: Shell, replay: Any) -> dict[str, Manifest]:
    """Return the datasets of a buffer that lack final observations, by id: itself, or members of a mixture."""
    members = [replay[number] for number in range(len(replay.names))] if hasattr(replay, "names") else [replay]
    return {name_of(shell, one.data_path, one.manifest): one.manifest for one in members if one.manifest.final_unknown}


def _draw_batch(replay: Any, size: int, options: dict[str, Any]) -> Any:
    try:
        return replay.sample(size, **options)
    except InvalidArgumentError:
        raise
    except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0] or "out of memory"
        raise InvalidArgumentError(
            f"no batch of {size:,} transitions: {reason}", hint="take a smaller --batch-size N"
        ) from error


def _time_batches(replay: Any, size: int, options: dict[str, Any]) -> tuple[int, float]:
    """Return how many batches were drawn, and in how many seconds, at most about 1 second."""
    began, done, spent = time.perf_counter(), 0, 0.0
    while done < _ROUNDS and spent < _SECONDS:
        replay.sample(size, **options)
        done += 1
        spent = time.perf_counter() - began
    return done, spent


def _leaves(batch: Any) -> Iterator[tuple[str, Tensor]]:
    named = ((key if isinstance(key, tuple) else (key,), leaf) for key, leaf in batch.items(True, True))
    yield from sorted((".".join(key), leaf) for key, leaf in named if hasattr(leaf, "dtype"))


def _describe_leaf(name: str, leaf: Tensor) -> dict[str, Any]:
    values = leaf.reshape(-1)[:_SHOWN].tolist()
    return {"key": name, "dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape), "values": values}
