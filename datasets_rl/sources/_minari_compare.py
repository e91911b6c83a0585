"""A converted dataset against its raw files, with h5py or pyarrow alone: none of the code that converted it takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionFailed, UnknownKey
from datasets_rl.ted.keys import Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare"]

_Column = Callable[[Key, int, int], Any]
_ROWS = {
    "rewards": ("next", "reward"),
    "terminations": ("next", "terminated"),
    "truncations": ("next", "truncated"),
}
_NAMES = {"observations": "observation", "actions": "action", "infos": "info"}


def compare(files: Mapping[str, Path], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number of every episode; texts and images, which are decoded, are left out.

    Args:
        files: The raw files by path.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes.

    Returns:
        For each column that differs, its first difference and how many rows differ.

    Raises:
        ConversionFailed: If a raw file is damaged.
    """
    differences: dict[Key, tuple[str, int]] = {}
    main = next((place for path, place in files.items() if path.endswith(".hdf5")), None)
    done: dict[int, int] = {}
    try:
        for row, number in enumerate(episodes["source"].tolist()):
            # An episode that has flags inside became several trajectories.
            skip = done.get(number, 0)
            length, start = int(episodes.lengths[row]), int(episodes.starts[row])
            raw = dict(_of_hdf5(main, number)) if main is not None else dict(_of_table(files, number))
            for key, values in raw.items():
                _one(differences, column, key, values, skip, start, length)
            done[number] = skip + length
            if row == len(episodes) - 1 or episodes["source"][row + 1] != number:
                rows = len(raw["next", "reward"])
                if done[number] != rows:
                    differences["episode",] = (f"episode {number} has {done[number]} rows, in the file {rows}", 1)
    except OSError as error:
        raise ConversionFailed("the raw files", [f"they cannot be read: {error}"]) from error
    return [f"{text} ({count:,} such rows)" for text, count in differences.values()]


def _one(
    differences: dict[Key, tuple[str, int]],
    column: _Column,
    key: Key,
    values: NDArray[Any],
    skip: int,
    start: int,
    length: int,
) -> None:
    if key == ("next", "truncated"):
        values = values.copy()
        ended = column(("next", "terminated"), start, start + length)[-1, 0]
        values[-1] |= not ended  # the last row of what has no flag at its end
    pairs = [(key, values[skip : skip + length])]
    rewards = key[0] == "next"
    if key[0] in {"observation", "info"}:
        if key[0] == "info" and len(values) == skip + length and not skip:
            pairs = []  # without a row for the reset: what stands in the file is what stands under "next"
            values = np.concatenate([values[:1], values])
        pairs.append((("next", *key), values[skip + 1 : skip + length + 1]))
    for place, wanted in pairs:
        try:
            got = np.asarray(column(place, start, start + length))
        except UnknownKey:
            return  # a field that was left out on request
        got = got[:, 0] if rewards and got.ndim > wanted.ndim else got
        same = got.shape == wanted.shape and (got == wanted) | ((got != got) & (wanted != wanted))  # noqa: PLR0124 -- NaN
        wrong = np.flatnonzero(~np.asarray(same).reshape(length, -1).all(axis=1)) if np.ndim(same) else np.array([0])
        if len(wrong):
            at = int(wrong[0])
            text = f"{dotted(place)} at row {start + at:,} is {got[at]!s:.80}, in the file {wanted[at]!s:.80}"
            before = differences.get(place, (text, 0))
            differences[place] = (before[0], before[1] + len(wrong))


def _of_hdf5(path: Path, number: int) -> Iterator[tuple[Key, NDArray[Any]]]:
    found: list[tuple[str, NDArray[Any]]] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            found.append((name, item[()]))

    with h5py.File(path, "r", locking=False) as file:
        file[f"episode_{number}"].visititems(visit)
    for name, values in found:
        root, *rest = name.replace(".", "_").split("/")
        if not _is_jpeg(values):
            yield _ROWS.get(root, (_NAMES.get(root, root), *rest)), values


def _of_table(files: Mapping[str, Path], number: int) -> Iterator[tuple[Key, NDArray[Any]]]:
    from pyarrow import feather, parquet

    place = next(
        place for path, place in files.items() if path.rpartition("/")[0].endswith(f"/{number}") and "part-" in path
    )
    table = parquet.read_table(place) if place.suffix == ".parquet" else feather.read_table(place, memory_map=False)
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        values = table.column(name).to_pylist()
        cut = values if name == "observations" else values[:-1]
        if isinstance(values[0], (int, float, bool)):
            yield _ROWS.get(name, (_NAMES.get(name, name),)), np.asarray(cut)


def _is_jpeg(values: NDArray[Any]) -> bool:
    return values.dtype == np.uint8 and values.ndim == 2 and bytes(values[0, :3]) == b"\xff\xd8\xff"
