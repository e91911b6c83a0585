"""``rlds sample``: what a batch looks like, and how fast it comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Shell, target
from ..output import Facts, Result, Table

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDS = 100
_SHOWN = 4


def run(
    shell: Shell,
    dataset: Annotated[
        str, typer.Argument(metavar="ID|PATH", show_default=False, help="SOURCE/NAME, or a dataset's folder.")
    ],
    size: Annotated[int, typer.Option("-n", "--batch-size", min=1, metavar="N", help="Transitions in the batch.")] = 4,
) -> Result:
    """Draw a batch from a stored dataset: its keys, shapes and first values, and the time it takes.

    \b
    Examples:
      rlds sample demo/pendulum
      rlds sample d4rl/hopper-medium-v2 -n 256
      rlds sample ./my-dataset --json
    """
    from datasets_rl import library
    from datasets_rl.datasets import open_dataset

    folder = library.locate(target(dataset), settings=shell.settings)
    began = time.perf_counter()
    replay = open_dataset(folder)
    opened = time.perf_counter()
    batch = replay.sample(size)
    first = time.perf_counter()
    for _ in range(_ROUNDS):
        replay.sample(size)
    each = (time.perf_counter() - first) / _ROUNDS
    keys = [_described(name, leaf) for name, leaf in _leaves(batch)]
    timing = {"open_s": opened - began, "first_s": first - opened, "sample_s": each, "rounds": _ROUNDS}
    rows = tuple((one["key"], one["dtype"], str(one["shape"]), _short(one["values"])) for one in keys)
    facts = (
        ("open", f"{timing['open_s'] * 1e3:.1f} ms"),
        ("first batch", f"{timing['first_s'] * 1e3:.2f} ms"),
        ("a batch", f"{each * 1e6:.0f} us, {size / each:,.0f} transitions a second, mean of {_ROUNDS}"),
    )
    return Result(
        {"id": replay.manifest.id, "folder": str(folder), "batch_size": size, "keys": keys, "timing": timing},
        [
            Table(("key", "dtype", "shape", "first values"), rows, title=f"{replay.manifest.id}, {size} transitions"),
            Facts(facts, title="time"),
        ],
        quiet=[one["key"] for one in keys],
    )


def _leaves(batch: Any) -> Iterator[tuple[str, Tensor]]:
    named = ((key if isinstance(key, tuple) else (key,), leaf) for key, leaf in batch.items(True, True))
    yield from sorted((".".join(key), leaf) for key, leaf in named if hasattr(leaf, "dtype"))


def _described(name: str, leaf: Tensor) -> dict[str, Any]:
    values = leaf.reshape(-1)[:_SHOWN].tolist()
    return {"key": name, "dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape), "values": values}


def _short(values: list[Any]) -> str:
    shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    return ", ".join(shown)
