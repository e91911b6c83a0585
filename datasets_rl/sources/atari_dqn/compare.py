"""A converted run against its raw files: none of the code that converted it takes part."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from datasets_rl.errors import ConversionError, UnknownKeyError
from datasets_rl.read.streams import DAMAGED
from datasets_rl.read.tfrecord import example, records
from datasets_rl.ted.keys import Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare_episodes", "compare_logs"]

_Column = Callable[[Key, int, int], Any]
_BLOCK = 512
_BLANKS = 3
_SMALL = ("action", "reward", "terminal")
_FLAT: Mapping[str, Key] = {
    "action": ("action",),
    "reward": ("next", "reward"),
    "terminal": ("next", "terminated"),
    "observation": ("observation",),
    "following": ("next", "observation"),
}


class _Differences:
    """The first difference of each column, and how many rows differ."""

    def __init__(self, column: _Column) -> None:
        self._column = column
        self._found: dict[Key, tuple[str, int]] = {}

    def check(self, name: str, start: int, wanted: NDArray[Any]) -> None:
        key, count = _FLAT[name], len(wanted)
        if not count:
            return
        try:
            got = np.asarray(self._column(key, start, start + count)).reshape(wanted.shape)
        except UnknownKeyError:
            return  # it was left out on request
        wrong = np.flatnonzero((got != wanted).reshape(count, -1).any(axis=1))
        if len(wrong):
            at = int(wrong[0])
            told = f"{dotted(key)} at row {start + at:,} is {got[at]!s:.60}, in the file {wanted[at]!s:.60}"
            text, before = self._found.get(key, (told, 0))
            self._found[key] = (text, before + len(wrong))

    def told(self, rows: int, episodes: EpisodeTable) -> list[str]:
        found = [f"{text} ({count:,} such rows)" for text, count in self._found.values()]
        if episodes.steps != rows:
            found.append(f"it has {episodes.steps:,} rows, the files have {rows:,}")
        return found


def compare_logs(files: Mapping[int, Mapping[str, Path]], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every row of every checkpoint that is no blank one.

    Args:
        files: For each checkpoint, the files by what they hold.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes.

    Returns:
        For each column that differs, its first difference and how many rows differ.

    Raises:
        ConversionError: If a raw file is damaged.
    """
    differences = _Differences(column)
    at, owed = 0, _BLANKS
    before: tuple[int, int, Mapping[str, NDArray[Any]]] | None = None
    try:
        for number, places in sorted(files.items()):
            if "invalid_range" not in places:
                continue  # nothing of it was asked for but how it begins or ends
            added, flat = int(_load(places["add_count"])), {name: _load(places[name]) for name in _SMALL}
            capacity = len(flat["action"])
            cursor = added % capacity
            if number and added == capacity - 1:
                continue
            joined = before is not None and before[0] == number - 1 and _follows(before, added, flat)
            if not joined:
                owed = _known_owed(flat, places) if number or added >= capacity else _BLANKS
            for block in _blocks(places, flat, cursor, joined=joined):
                zero = np.logical_and.reduce([_zero(one) for one in block.values()])
                kept, owed = _kept(zero, block["terminal"], owed)
                for name, values in block.items():
                    differences.check(name, at, values[kept])
                at += int(kept.sum())
            before = (number, added, flat) if cursor == capacity - 1 else None
    except DAMAGED as error:
        raise ConversionError("the raw files", [f"they cannot be read: {error}"]) from error
    return differences.told(at, episodes)


def _follows(before: tuple[int, int, Mapping[str, NDArray[Any]]], added: int, flat: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether the last row of a checkpoint is the one behind those of the checkpoint before."""
    capacity = len(flat["action"])
    if capacity != len(before[2]["action"]) or added >= capacity:
        return added == before[1] + capacity
    return all(before[2][name][added:-1].tobytes() == flat[name][added:-1].tobytes() for name in _SMALL)


def _known_owed(flat: Mapping[str, NDArray[Any]], places: Mapping[str, Path]) -> int:
    """Return how many blank rows may follow the last row, the only one that is known of those before."""
    if flat["terminal"][-1]:
        return _BLANKS
    if flat["action"][-1] or flat["reward"][-1]:
        return 0
    shown = False
    for _, frames in _frames(places):
        shown = bool(frames[-1].any())
    return 0 if shown else _BLANKS - 1


def _zero(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(~values.any(axis=tuple(range(1, values.ndim))))


def _kept(zero: NDArray[np.bool_], terminal: NDArray[np.uint8], owed: int) -> tuple[NDArray[np.bool_], int]:
    """Return which rows are not blank, and how many blank ones may still follow."""
    kept = np.ones(len(zero), np.bool_)
    for first, most in [(0, owed), *((int(end) + 1, _BLANKS) for end in np.flatnonzero(terminal))]:
        row = first
        while row < min(first + most, len(zero)) and zero[row]:
            kept[row] = False
            row += 1
        owed = first + most - row if row == len(zero) else 0
    return kept, owed


def _blocks(
    places: Mapping[str, Path], flat: Mapping[str, NDArray[Any]], cursor: int, *, joined: bool
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the rows of a checkpoint in the order in which they were added, read a second time for the last one."""
    if joined:
        last = {name: one[-1:] for name, one in flat.items()}
        for _, frames in _frames(places):
            last["observation"] = frames[-1:]
        yield last
    if "observation" not in places:
        yield {name: one[:cursor] for name, one in flat.items()}
    for start, frames in _frames(places):
        block = {name: one[start : min(start + len(frames), cursor)] for name, one in flat.items()}
        yield {**block, "observation": frames[: len(block["action"])]}


def _frames(places: Mapping[str, Path]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    if "observation" not in places:
        return
    with gzip.open(places["observation"]) as stream:
        npy.read_magic(stream)
        (rows, *frame), _, dtype = npy.read_array_header_1_0(stream)
        for start in range(0, rows, _BLOCK):
            count = min(_BLOCK, rows - start)
            yield start, np.frombuffer(stream.read(count * 84 * 84), dtype).reshape(count, *frame)


def _load(place: Path) -> NDArray[Any]:
    with gzip.open(place) as stream:
        array: NDArray[Any] = np.load(io.BytesIO(stream.read()), allow_pickle=False)
    return array


def compare_episodes(files: Mapping[str, Path], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every step of every record of RL Unplugged; see `compare_logs`."""
    differences = _Differences(column)
    at = 0
    paths = [path for path in files if ".tfrecord-" in path]
    for path in sorted(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", path)]):
        with files[path].open("rb") as stream:
            for payload in records(stream, path):
                raw: Mapping[str, Any] = example(payload, path)
                steps = len(raw["steps/action"]) - 1
                if steps < 1:
                    continue
                images = [np.asarray(Image.open(io.BytesIO(one))) for one in raw["steps/observation"]]
                frames = np.stack(images).reshape(steps + 1, 84, 84)
                over = np.arange(steps) == steps - 1
                differences.check("action", at, raw["steps/action"][:-1])
                differences.check("reward", at, raw["steps/reward"][:-1])
                differences.check("terminal", at, over & bool(raw["steps/is_terminal"][-1]))
                differences.check("observation", at, frames[:-1])
                differences.check("following", at, frames[1:])
                at += steps
    return differences.told(at, episodes)
