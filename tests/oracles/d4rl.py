"""Comparison of a converted dataset with its raw file, using h5py but none of the code that converted it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences, equal_rows

from datasets_rl import sources
from datasets_rl.ted.table import EpisodeTable

_BLOCK_BYTES = 4 << 20
_ROOTS = {"observations": ("observation",), "actions": ("action",), "infos": ("info",)}
_NEXT_ROOTS = {"next_observations": ("next", "observation"), "rewards": ("next", "reward"), "costs": ("next", "cost")}
_SKIPPED = ("metadata", "virtual", "terminals", "timeouts")


def compare(
    dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable | None = None
) -> list[str]:
    """Compare every row of every column, and the episode ends that the file does not mark."""
    source, name = sources.split_id(dataset_id)
    (expected,) = (asset.path for asset in sources.get_source(source).assets(name))
    if expected not in files:
        return [f"the raw files are {', '.join(files) or 'none'}; {dataset_id} is converted from {expected}"]
    entry = sources.find(dataset_id)
    # The number of steps after which a trajectory may be truncated, if the file marks no time-outs.
    limit = None if entry.params["continuing"] else entry.time_limit
    return file_differences(files[expected], column, limit, episodes)


def file_differences(path: Path, column: Column, limit: int | None, episodes: EpisodeTable | None) -> list[str]:
    """Compare every row of a file in D4RL's layout; without time-outs, a row at the `limit` of steps is truncated."""
    with h5py.File(path, "r", locking=False) as file:
        rows = len(file["terminals"])
        raw = dict(named_datasets(file, "", ()))
        differences: list[str] = []
        for name, dataset in raw.items():
            per_step = dataset.shape and len(dataset) == rows and dataset.dtype.kind in "biuf"
            if per_step and name.partition("/")[0] not in _SKIPPED and 0 not in dataset.shape:
                differences.extend(_compare_values(dataset, _key_of_dataset(name), column, rows))
        differences.extend(_compare_next_rows(raw, column, rows))
        differences.extend(_compare_flags(raw, column, rows, limit))
        if episodes is not None:
            differences.extend(_compare_episodes(raw, episodes, rows))
    return differences


def named_datasets(
    group: h5py.Group, prefix: str, parents: tuple[h5py.Group, ...]
) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield each dataset below a group once per name; `visititems` gives only one name each, and follows no links."""
    for name, item in group.items():
        if isinstance(item, h5py.Dataset):
            yield f"{prefix}{name}", item
        elif item not in (*parents, group):
            yield from named_datasets(item, f"{prefix}{name}/", (*parents, group))


def _key_of_dataset(name: str) -> tuple[str, ...]:
    root, *rest = name.replace(".", "_").split("/")
    return (*{**_ROOTS, **_NEXT_ROOTS}.get(root, (root,)), *rest)


def _compare_values(dataset: h5py.Dataset, key: tuple[str, ...], column: Column, rows: int) -> Iterator[str]:
    """Compare a column row by row, including the next observations at the ends of episodes."""
    differences = Differences(column)
    for start, stop in _chunk_ranges(dataset, rows):
        raw, converted = dataset[start:stop], np.asarray(column(key, start, stop))
        if key[:2] == ("next", "observation") and converted.shape == raw.shape:
            # Within an episode, the observation of the next row is stored, which may differ by rounding.
            within = ~np.asarray(column(("next", "done"), start, stop), bool).reshape(-1)
            same = within & nearly_equal_rows(raw, converted)
            raw[same] = converted[same]
        differences.compare_values(key, start, raw, converted)
    yield from differences.texts()


def _compare_next_rows(raw: dict[str, h5py.Dataset], column: Column, rows: int) -> Iterator[str]:
    """Compare the next observation and info of each step within a trajectory with the next row of the raw file."""
    for name, dataset in raw.items():
        root, _, rest = name.partition("/")
        has_next = "/".join(filter(None, ("next_observations", rest))) in raw if root == "observations" else False
        if root not in {"observations", "infos"} or has_next or 0 in dataset.shape:
            continue
        key = ("next", *_key_of_dataset(name))
        differences = Differences(column)
        for start, stop in _chunk_ranges(dataset, rows):
            last = min(stop, rows - 1)
            within = ~np.asarray(column(("next", "done"), start, last), bool).reshape(-1)
            differences.compare(key, start, dataset[start + 1 : last + 1], within)
        yield from differences.texts()


def _compare_flags(raw: dict[str, h5py.Dataset], column: Column, rows: int, limit: int | None) -> Iterator[str]:
    def converted(name: str) -> NDArray[np.bool_]:
        return np.asarray(column(("next", name), 0, rows)).reshape(-1)

    timed = "timeouts" in raw
    terminals = raw["terminals"][:].reshape(-1) == 1
    timeouts = raw["timeouts"][:].reshape(-1) == 1 if timed else np.zeros(rows, bool)
    terminated, truncated, done = (converted(name) for name in ("terminated", "truncated", "done"))
    yield from _first_wrong_row(
        "next.terminated", np.flatnonzero(terminated != terminals), "differs from the file's terminals"
    )
    yield from _first_wrong_row("next.truncated", np.flatnonzero(timeouts & ~truncated), "lacks the file's time-out")
    yield from _first_wrong_row(
        "next.done", np.flatnonzero(done != (terminated | truncated)), "is not terminated or truncated"
    )
    added = truncated & ~timeouts
    added[-1:] = False
    repairs = _jump_rows(raw, rows)
    if not timed and limit is not None:
        repairs |= _rows_at_limit(done, limit)
    yield from _first_wrong_row(
        "next.truncated", np.flatnonzero(added & ~repairs), "is set, but the file has no time-out"
    )


def _compare_episodes(raw: dict[str, h5py.Dataset], episodes: EpisodeTable, rows: int) -> Iterator[str]:
    marked = raw["terminals"][:].reshape(-1) == 1
    if "timeouts" in raw:
        marked |= raw["timeouts"][:].reshape(-1) == 1
    if episodes.steps != rows:
        yield f"the episodes have {episodes.steps:,} rows, the file {rows:,}"
        return
    repaired = ~marked[episodes.stops - 1]
    wrong = np.flatnonzero(episodes["repaired"] != repaired)
    yield from _first_wrong_row("repaired", wrong, "does not match the end flags of the file", "episode")
    wrong = np.flatnonzero(episodes["source"] != np.arange(len(episodes)))
    yield from _first_wrong_row("source", wrong, "is not the number of the episode", "episode")


def _jump_rows(raw: dict[str, h5py.Dataset], rows: int) -> NDArray[np.bool_]:
    """Return the mask of rows whose next observation differs from the observation of the following row, [N]."""
    jumps = np.zeros(rows, bool)
    for name, dataset in raw.items():
        root, slash, rest = name.partition("/")
        following = raw.get(f"next_observations{slash}{rest}")
        if root != "observations" or following is None:
            continue
        for start, stop in _chunk_ranges(dataset, rows - 1):
            jumps[start:stop] |= ~nearly_equal_rows(dataset[start + 1 : stop + 1], following[start:stop])
    return jumps


def _rows_at_limit(done: NDArray[np.bool_], limit: int) -> NDArray[np.bool_]:
    """Return the mask of last rows of trajectories whose number of steps equals the limit, [N]."""
    ends = np.flatnonzero(done)
    mask = np.zeros(len(done), bool)
    mask[ends[np.diff(ends, prepend=-1) == limit]] = True
    return mask


def _first_wrong_row(name: str, rows: NDArray[np.intp], text: str, noun: str = "row") -> Iterator[str]:
    if len(rows):
        yield f"{name} at {noun} {int(rows[0]):,} {text} ({len(rows):,} such {noun}s)"


def nearly_equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of rows that are equal except for rounding, [T]; docs/sources/d4rl.md states the limit."""
    if left.dtype.kind != "f" or right.dtype.kind != "f":
        return equal_rows(left, right)
    limit = max(1e-5, *(8 * float(np.finfo(values.dtype).eps) for values in (left, right)))
    small = np.where(np.abs(left) < np.abs(right), left, right)
    same = np.isclose(left, right, rtol=0, atol=0, equal_nan=True)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(np.subtract(left, right, dtype=np.float64))
        same |= np.isfinite(distance) & (distance <= limit + limit * np.abs(small, dtype=np.float64))
    return np.asarray(same.reshape(len(left), math.prod(left.shape[1:])).all(axis=1))


def _chunk_ranges(dataset: h5py.Dataset, rows: int) -> Iterator[tuple[int, int]]:
    """Split [0, rows) at chunk boundaries, because h5py decompresses a chunk again for every read that touches it."""
    row_bytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
    step = dataset.chunks[0] if dataset.chunks else 1
    size = max(step, _BLOCK_BYTES // row_bytes // step * step)
    for start in range(0, rows, size):
        yield start, min(start + size, rows)
